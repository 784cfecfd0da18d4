// Package conversion converts objects of a CustomResourceDefinition between its
// versions by rules that the API's author writes beside the schema. It needs no
// webhook of the author's own.
//
//   - [Compile] checks rules against the schemas of both versions, in both directions:
//     paths and types fit, and no field is forgotten. An error that every object would
//     cause is an error of Compile (compile.go, copy.go, coverage.go).
//   - A [Set] holds compiled rules. [Set.Convert] is total and pure: it never changes its
//     input, never fails for a value, and keeps fields that the other version lacks in
//     one annotation (convert.go, engine.go, restore.go).
//   - [Set.ConvertJSON] does the same for JSON. It copies most objects as text, without
//     decoding them (route.go, journey.go). It gives the same results as Convert.
//   - [Decode] reads objects without changing their numbers.
//   - [Definition] makes the CustomResourceDefinition of an APIResourceSchema of kcp.
//
// Package rules reads the documents, stash the annotation, and structural the schemas;
// proof tests rules on generated objects, and bundle packs them for the webhook that
// serves them. Package render/cel evaluates expressions.
package conversion

import (
	"errors"

	"gitopsd.dev/render/cel"
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

// Report lists the fields that a conversion did not simply convert. The zero Report
// means that nothing was lost, kept or restored.
type Report struct {
	// Stashed are fields that the other version cannot hold unchanged. They were written
	// to the stash.
	Stashed []Note
	// Restored are fields of the converted object that came out of the stash.
	Restored []Note
	// Stale are fields of the stash that were not restored: the object was changed in the
	// other version since, or they do not fit the schema.
	Stale []Note
	// Ignored says which parts of the annotation no conversion wrote.
	Ignored []Note
	// Dropped are fields that did not fit into the stash, or that could not be tried. They
	// are lost.
	Dropped []Note
	// Failed are rules that failed on a value. Their target fields are left out, and the
	// values that they read are in the stash.
	Failed []Note
}

// Note is one field in a [Report].
type Note struct {
	// From and To are the versions of the pair: an object that goes through the hub
	// is converted by two.
	From, To string
	// Path is the field, in the syntax of render/field: in To for failed rules and
	// restored fields, else in From.
	Path string
	// Bytes is the size of the value as JSON; 0 for failed rules.
	Bytes int
	// Rule is where the rule is written; empty for other notes.
	Rule string
	// Err says why a rule failed, why a field is stale or dropped, or what is ignored;
	// empty for a field that was too large, and otherwise.
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
		return nil, errors.New("the JSON is not an object")
	}
	return object, nil
}

// ConvertJSON is [Set.Convert] for an object in JSON, which is decoded only if it must.
// The errors are those of [Decode] and of Convert.
func (s *Set) ConvertJSON(data []byte, to string) (converted []byte, report Report, err error) {
	var budget cel.Budget
	defer budget.Done()
	if converted, ok := s.byRoute(&budget, data, to); ok {
		return converted, Report{}, nil
	}
	return s.convertJSON(&budget, data, to)
}

// convertJSON decodes the object, converts and encodes it.
func (s *Set) convertJSON(budget *cel.Budget, data []byte, to string) (converted []byte, report Report, err error) {
	object, err := Decode(data)
	if err != nil {
		return nil, Report{}, err
	}
	object, report, err = s.within(budget, object, to)
	if err != nil {
		return nil, Report{}, err
	}
	converted, err = exact.Encode(object)
	return converted, report, err
}
