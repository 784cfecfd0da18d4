package why

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Find parses a question, "kind[.group]/[namespace/]name[:field]", and returns the
// object among a cluster's that it names, and the field. Case does not matter in
// kinds. The namespace may be left out if only one object has the name.
//
// The error wraps [ErrNotFound] if there is no such object. It is an error, too, if
// the question is malformed or names several objects.
func Find(set *manifest.Set, text string) (manifest.ID, field.Path, error) {
	if strings.Count(text, "/") == 0 {
		return manifest.ID{}, nil, fmt.Errorf("%q: want kind[.group]/[namespace/]name, as plans show objects, and :field after it for one field", text)
	}
	// Names of RBAC objects have colons of their own: the longest object that
	// there is goes first.
	for end := len(text); end > 0; end = strings.LastIndexByte(text[:end], ':') {
		id, err := find(set, text[:end])
		if err != nil {
			return id, nil, err
		}
		if id == (manifest.ID{}) {
			continue
		}
		if end == len(text) {
			return id, nil, nil
		}
		path, err := field.Parse(text[end+1:])
		return id, path, err
	}
	object, _, _ := strings.Cut(text, ":")
	kind, name, _ := strings.Cut(object, "/")
	kind, _, _ = strings.Cut(kind, ".")
	asked := manifest.ID{Kind: kind, Name: name[strings.LastIndexByte(name, '/')+1:]}
	return manifest.ID{}, nil, fmt.Errorf("%s: %w%s", object, ErrNotFound, similar(set, asked))
}

// find returns the one object that text names; the zero ID if there is none.
func find(set *manifest.Set, text string) (manifest.ID, error) {
	typ, rest, _ := strings.Cut(text, "/")
	kind, group, hasGroup := strings.Cut(typ, ".")
	namespace, name, hasNamespace := strings.Cut(rest, "/")
	if !hasNamespace {
		namespace, name = "", rest
	}
	var found []manifest.ID
	for _, o := range set.All() {
		id := o.ID()
		switch {
		case !strings.EqualFold(id.Kind, kind), id.Name != name, hasGroup && id.Group != group, hasNamespace && id.Namespace != namespace:
		case id.String() == text:
			return id, nil
		default:
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return manifest.ID{}, nil
	case 1:
		return found[0], nil
	}
	return manifest.ID{}, fmt.Errorf("%s: there are %s and %s; write it in full", text, found[0], found[1])
}
