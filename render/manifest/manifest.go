// Package manifest holds Kubernetes objects as rendering sees them: decoded,
// immutable, identified without a version, and shared between all the clusters
// that get the same object.
//
//   - [ID] names an object in a cluster; [Origin] is the place in the fleet
//     repository or the package where it was written (manifest.go).
//   - [Object] is one object (object.go). Its tree never changes;
//     [Object.WithMetadata] returns a second object that shares all but its metadata.
//     tree.go reads and makes trees.
//   - [AppendJSON] (json.go) writes the canonical form, and [Object.Hash] is its digest.
//   - [Set] holds the objects of one cluster, each defined once (set.go).
//   - kinds.go names the kinds that gitopsd treats specially, builtin.go the names
//     that kubectl accepts for built-in kinds, and ours.go the labels and annotations
//     that gitopsd reads and writes. No other package of render, reconcile or cmd
//     spells them out.
//
// Package sources decodes YAML, render/kustomize builds kustomizations, and reconcile
// compares objects with a cluster.
package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/sources"
)

// ID identifies an object in a cluster. It has no version, since the API server
// serves an object in all of them. IDs are comparable.
type ID struct {
	// Group is the API group; empty for the core group.
	Group string
	Kind  string
	// Namespace is as written: empty for cluster-scoped objects, and for objects that
	// use the namespace of the request.
	Namespace string
	Name      string
}

// String returns "kind.group/namespace/name", without an empty group or namespace.
func (id ID) String() string {
	var b strings.Builder
	b.WriteString(strings.ToLower(id.Kind))
	if id.Group != "" {
		b.WriteByte('.')
		b.WriteString(id.Group)
	}
	b.WriteByte('/')
	if id.Namespace != "" {
		b.WriteString(id.Namespace)
		b.WriteByte('/')
	}
	b.WriteString(id.Name)
	return b.String()
}

// Compare orders IDs by group, kind, namespace and name, bytewise.
func (id ID) Compare(other ID) int {
	return cmp.Or(
		strings.Compare(id.Group, other.Group),
		strings.Compare(id.Kind, other.Kind),
		strings.Compare(id.Namespace, other.Namespace),
		strings.Compare(id.Name, other.Name),
	)
}

// Origin is the place that an object comes from. Origins are comparable.
type Origin struct {
	// File is a path in the fleet repository, or in Package if that is set. It is empty
	// for an object that gitopsd makes. In a remote base it begins with the repository
	// and commit (remote.Root).
	File string
	// Line is where the object starts in File, from 1; 0 if unknown.
	Line int
	// Package is the pinned package that holds the object; the zero Pin for an
	// object of the fleet repository.
	Package sources.Pin
	// For is the setting or feature that gitopsd makes the object for, if not for a
	// package: "spec.pins of the Cluster".
	For string
}

// String returns the origin as errors and `gitopsd why` show it: "file:line" for the
// repository, "package reference@digest, file:line" for a package, "made by gitopsd for …"
// for an object that gitopsd makes.
func (o Origin) String() string {
	file := o.File
	if o.Line > 0 {
		file += ":" + strconv.Itoa(o.Line)
	}
	switch {
	case o.For != "":
		return "made by gitopsd for " + o.For
	case o.Package == (sources.Pin{}) && o.File == "":
		return "an unknown place"
	case o.Package == (sources.Pin{}):
		return file
	case o.File == "":
		return "the runtime of package " + o.Package.String()
	}
	return "package " + o.Package.String() + ", " + file
}

// Place returns "file:line" for an object of the fleet repository, and the same as String
// for an object that gitopsd makes. It is empty for other objects.
func (o Origin) Place() string {
	if o.File+o.For == "" || o.Package != (sources.Pin{}) {
		return ""
	}
	return o.String()
}

// InPackage returns the origin of a package's object after a space and in parentheses. It
// is empty for other objects.
func (o Origin) InPackage() string {
	if o.Package == (sources.Pin{}) {
		return ""
	}
	return " (" + o.String() + ")"
}

// GroupVersion splits an apiVersion: "apps/v1" is group "apps", version "v1",
// and "v1" has the empty group.
func GroupVersion(apiVersion string) (group, version string) {
	if group, version, ok := strings.Cut(apiVersion, "/"); ok {
		return group, version
	}
	return "", apiVersion
}

// identify returns the ID of a tree. It fails if the tree is not an object.
func identify(tree map[string]any) (ID, error) {
	apiVersion, err := text(tree, "apiVersion")
	if err != nil {
		return ID{}, err
	}
	kind, err := text(tree, "kind")
	if err != nil {
		return ID{}, err
	}
	group, version := GroupVersion(apiVersion)
	if !validName(version) || strings.Contains(apiVersion, "/") && !validName(group) {
		return ID{}, fmt.Errorf("apiVersion: %q is neither <version> nor <group>/<version>", apiVersion)
	}
	if strings.IndexFunc(kind, notAlphanumeric) >= 0 {
		return ID{}, fmt.Errorf("kind: %q is not a kind: letters and digits only", kind)
	}
	id := ID{Group: group, Kind: kind}
	meta, ok := tree["metadata"].(map[string]any)
	if !ok {
		return id, fmt.Errorf("metadata: is missing, or not a mapping")
	}
	if _, generated := meta["generateName"]; generated && meta["name"] == nil {
		return id, fmt.Errorf("metadata.generateName: the object would be a new one each time; write metadata.name")
	}
	if id.Name, err = text(meta, "name"); err != nil {
		return id, fmt.Errorf("metadata.%w", err)
	}
	if !validName(id.Name) {
		return id, fmt.Errorf("metadata.name: %q is not a name: at most 253 characters, no spaces, '/' or '%%'", id.Name)
	}
	if meta["namespace"] != nil {
		if id.Namespace, err = text(meta, "namespace"); err != nil {
			return id, fmt.Errorf("metadata.%w", err)
		}
		if !validName(id.Namespace) {
			return id, fmt.Errorf("metadata.namespace: %q is not a name", id.Namespace)
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		if err := checkStrings(meta, field); err != nil {
			return id, err
		}
	}
	return id, nil
}

func text(m map[string]any, field string) (string, error) {
	switch v := m[field].(type) {
	case string:
		if v != "" {
			return v, nil
		}
	case nil:
	default:
		return "", fmt.Errorf("%s: want a string, have %s", field, described(v))
	}
	return "", fmt.Errorf("%s: is missing", field)
}

func checkStrings(meta map[string]any, field string) error {
	if meta[field] == nil {
		return nil
	}
	m, ok := meta[field].(map[string]any)
	if !ok {
		return fmt.Errorf("metadata.%s: want a mapping of strings", field)
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if _, ok := m[key].(string); !ok {
			return fmt.Errorf("metadata.%s: %s: want a string, have %s", field, key, described(m[key]))
		}
	}
	return nil
}

// described returns a value that is not a string for an error: a number or boolean itself, only
// the type of any other one.
func described(v any) string {
	switch v := v.(type) {
	case map[string]any:
		return "a mapping"
	case []any:
		return "a list"
	case nil:
		return "null"
	default:
		return fmt.Sprint(v) + "; quote it"
	}
}

func notAlphanumeric(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
}

// validName reports whether s can be one segment of a URL's path. The API server has
// stricter rules for each type.
func validName(s string) bool {
	return s != "" && len(s) <= 253 && s != "." && s != ".." &&
		strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '/' || r == '%' }) < 0
}
