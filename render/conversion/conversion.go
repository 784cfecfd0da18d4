// Package conversion converts objects of a CustomResourceDefinition between its
// versions by rules that the API's author writes beside the schema. It needs no
// webhook of the author's own.
//
//   - [Compile] checks rules against the schemas of both versions: types, paths, and
//     that no field is forgotten, both ways. Whatever no value could avoid is an error
//     there.
//   - A [Set] is compiled rules. [Set.Convert] is total and pure: it never changes its
//     input, never fails for a value, and keeps in one annotation what the other
//     version cannot hold.
//   - [Set.ConvertJSON] is the same for JSON, and decodes few objects: most only have
//     fields that are copied or moved, and come back as they were (route.go). Convert
//     says what is right for the others, and for these too in the tests.
//   - [Decode] reads objects without changing their numbers.
//
// The language of the documents is render/conversion/rules', CEL is render/cel's.
// Proofs on generated objects, and serving, are elsewhere.
package conversion

import (
	"errors"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

// Document is one document of rules, as read from YAML or JSON.
type Document struct {
	// Origin is where the document is written; errors begin with it.
	Origin manifest.Origin
	// Tree is the whole document: apiVersion, kind, metadata, spec.
	Tree map[string]any
}

// Report says what a conversion did beside converting. The zero Report means that
// nothing was lost, and that nothing was kept or restored.
type Report struct {
	// Stashed are fields of the object that the other version does not hold, or not
	// as they were. They were written to the stash.
	Stashed []Note
	// Restored are fields of the converted object that came out of the stash.
	Restored []Note
	// Stale are fields in the stash that were not restored, since the object was
	// changed in the other version since, or since they do not fit the schema.
	Stale []Note
	// Ignored are notes about the annotation itself: what no conversion wrote there.
	Ignored []Note
	// Dropped are fields that did not fit into the stash. They are lost.
	Dropped []Note
	// Failed are rules that failed on a value. Their fields are left out, and the
	// values that they read are in the stash.
	Failed []Note
}

// Note is one field in a [Report].
type Note struct {
	// From and To are the versions of the pair: an object that goes through the hub
	// is converted by two.
	From, To string
	// Path is the field, as render/field writes paths: in To for failed rules and
	// restored fields, else in From.
	Path string
	// Bytes is the size of the value as JSON; 0 for failed rules.
	Bytes int
	// Rule is where the rule is written; empty for other notes.
	Rule string
	// Err says why a rule failed, why a field is stale or what is ignored; empty
	// otherwise.
	Err string
}

// Decode reads an object from JSON. Integers that fit are int64, and any other number
// keeps its text.
func Decode(data []byte) (map[string]any, error) {
	v, err := exact.Decode(data)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("the JSON is no object")
	}
	return object, nil
}

// ConvertJSON is [Set.Convert] for an object in JSON, which is decoded only if it must.
// The errors are those of [Decode] and of Convert.
func (s *Set) ConvertJSON(data []byte, to string) (converted []byte, report Report, err error) {
	if converted, ok := s.byRoute(data, to); ok {
		return converted, Report{}, nil
	}
	return s.convertJSON(data, to)
}

// convertJSON decodes the object, converts and encodes it.
func (s *Set) convertJSON(data []byte, to string) (converted []byte, report Report, err error) {
	object, err := Decode(data)
	if err != nil {
		return nil, Report{}, err
	}
	object, report, err = s.Convert(object, to)
	if err != nil {
		return nil, Report{}, err
	}
	converted, err = exact.Encode(object)
	return converted, report, err
}
