package why

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// Find parses a question, "kind[.group]/[namespace/]name[:field]", and returns the object
// of the cluster and the field. The kind may be in any case, a plural or a short name, as for
// kubectl. The namespace may be omitted if only one object has the name.
//
// The error wraps [ErrNotFound] if there is no such object. Find also fails if the question
// is malformed or matches several objects.
func Find(set *manifest.Set, text string) (manifest.ID, field.Path, error) {
	if !strings.Contains(text, "/") {
		return manifest.ID{}, nil, fmt.Errorf("%q: want kind[.group]/[namespace/]name, as plans show objects, and :field after it for one field", text)
	}
	// Names of RBAC objects may have colons. The longest name that exists wins.
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
		return id, written(set.Get(id), path), err
	}
	object, _, _ := strings.Cut(text, ":")
	kind, name, _ := strings.Cut(object, "/")
	kind, _, _ = strings.Cut(kind, ".")
	asked := manifest.ID{Kind: kind, Name: name[strings.LastIndexByte(name, '/')+1:]}
	if named := kinds(set, kind); len(named) > 0 {
		asked.Kind = named[0].Kind
	}
	return manifest.ID{}, nil, fmt.Errorf("%s: %w%s", object, ErrNotFound, similar(set, asked))
}

// written returns a field of an object as the repository has it: plans show the stringData of
// a Secret as data, where it takes precedence.
func written(o *manifest.Object, shown field.Path) field.Path {
	if !o.ID().Is(manifest.Secret) || len(shown) == 0 || shown[0].Key != "data" {
		return shown
	}
	path := slices.Clone(shown)
	path[0] = field.Key("stringData")
	if _, ok := path.In(o.Tree()); !ok {
		return shown
	}
	return path
}

// kinds returns the kinds that have a name for kubectl: built-in ones, and those that the
// objects define.
func kinds(set *manifest.Set, name string) []manifest.GroupKind {
	if name == "" {
		return nil
	}
	var named []manifest.GroupKind
	if kind, ok := manifest.BuiltInKind(name); ok {
		named = append(named, kind)
	}
	for _, o := range set.All() {
		if !o.ID().Is(manifest.Definitions...) {
			continue
		}
		for _, field := range []string{"names", "claimNames"} {
			names := append(manifest.Texts(o.Tree(), "spec", field, "shortNames"),
				manifest.Text(o.Tree(), "spec", field, "plural"), manifest.Text(o.Tree(), "spec", field, "singular"))
			if slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, name) }) {
				named = append(named, manifest.GroupKind{Group: manifest.Text(o.Tree(), "spec", "group"), Kind: manifest.Text(o.Tree(), "spec", field, "kind")})
			}
		}
	}
	return named
}

// find returns the object that text names; the zero ID if there is none. It fails if there
// are several.
func find(set *manifest.Set, text string) (manifest.ID, error) {
	typ, rest, _ := strings.Cut(text, "/")
	kind, group, hasGroup := strings.Cut(typ, ".")
	namespace, name, hasNamespace := strings.Cut(rest, "/")
	if !hasNamespace {
		namespace, name = "", rest
	}
	named := kinds(set, kind)
	var found []manifest.ID
	for _, o := range set.All() {
		id := o.ID()
		switch {
		case !strings.EqualFold(id.Kind, kind) && !id.Is(named...), id.Name != name, hasGroup && id.Group != group, hasNamespace && id.Namespace != namespace:
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
