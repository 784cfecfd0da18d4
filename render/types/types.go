// Package types computes a digest for every type that a CustomResourceDefinition or
// a CompositeResourceDefinition defines: equal digests mean that API servers accept,
// prune, default, store, print and serve objects of that type alike. A
// ManagedResourceDefinition defines the types of the CustomResourceDefinition that
// Crossplane makes of it.
//
// A digest is "h1:" and the standard base64 of the SHA-256 of the type's canonical form,
// a line of JSON. TYPES.md, beside this file, specifies the form and shows how to
// recompute a digest with types.jq and sha256sum. The form holds the fields that the API
// server's behaviour depends on, with the API server's defaults filled in. It leaves out
// documentation, the address of a conversion webhook, and the formatting of the YAML. So
// a package's CRD has the same digest as the live CRD made from it.
//
// The form leaves out fields that apiextensions.k8s.io/v1 of Kubernetes 1.37 does not
// have, since an API server drops them. A test fails when a newer Kubernetes adds a
// field that the form neither writes nor leaves out on purpose.
//
// A [Definition] is a view of either kind of definition.
//
// The files: form.go writes definitions, schema.go schemas, and canon.go canonical JSON;
// definition.go has the view; managed.go makes CustomResourceDefinitions of
// ManagedResourceDefinitions. The package reads decoded trees (package sources) and
// imports nothing of Kubernetes. Package compat, below this one, decides whether one
// type can replace another, and package harm what that does to existing objects.
package types

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"

	"gitopsd.dev/sources"
)

// Type is one kind in one version, and the digest of its definition. Types are
// comparable.
type Type struct {
	Group, Version, Kind string
	// Digest is "h1:" and 44 characters of base64, as in go.sum.
	Digest string
}

// String returns the type's line in the text that Sum hashes, without the newline:
// "group/version kind digest".
func (t Type) String() string {
	return t.Group + "/" + t.Version + " " + t.Kind + " " + t.Digest
}

// Of returns the types that an object defines, in the order of its versions: the
// kind of a CustomResourceDefinition or ManagedResourceDefinition (active or not),
// or the kinds of a CompositeResourceDefinition's composites and claims. Other objects
// define none.
//
// It fails, naming the object and the field, if the API server could not decode
// the object, or no longer serves its API version.
func Of(object map[string]any) ([]Type, error) {
	return list(func(f *former) error { return f.object(object) })
}

// Sorted returns the types of a definition in an order of their own, so that lists can be
// compared: the order of versions has no meaning to the API server. Errors are those of [Of].
func Sorted(definition map[string]any) ([]Type, error) {
	all, err := Of(definition)
	slices.SortFunc(all, func(a, b Type) int { return cmp.Compare(a.String(), b.String()) })
	return all, err
}

// All returns the types that documents define, sorted by group, version and kind. It
// fails as [Of] does, and if a type is defined twice.
func All(docs []sources.Document) ([]Type, error) {
	all, err := list(func(f *former) error {
		for _, d := range docs {
			if err := f.object(d.Tree); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, compare)
	for i := 1; i < len(all); i++ {
		if compare(all[i-1], all[i]) == 0 {
			return nil, fmt.Errorf("%s/%s %s is defined twice: a type must have one definition", all[i].Group, all[i].Version, all[i].Kind)
		}
	}
	return all, nil
}

// list returns the types that write produces.
func list(write func(*former) error) ([]Type, error) {
	var all []Type
	err := write(&former{each: func(t Type, form []byte) {
		sum := sha256.Sum256(form)
		t.Digest = digest(sum[:])
		all = append(all, t)
	}})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Package returns the "types" record of a package in the lock: [Sum] of [All].
func Package(docs []sources.Document) (string, error) {
	all, err := All(docs)
	if err != nil {
		return "", err
	}
	return Sum(all), nil
}

// Sum returns the digest of a set of types in any order: the hash of their String
// lines, sorted bytewise, each ended by a newline. In a shell, for a file of such
// lines:
//
//	LC_ALL=C sort types | sha256sum | cut -c1-64 | tr a-f A-F | basenc -d --base16 | base64
func Sum(all []Type) string {
	lines := make([]string, len(all))
	for i, t := range all {
		lines[i] = t.String() + "\n"
	}
	slices.Sort(lines)
	h := sha256.New()
	for _, l := range lines {
		h.Write([]byte(l))
	}
	return digest(h.Sum(nil))
}

func digest(sum []byte) string {
	return "h1:" + base64.StdEncoding.EncodeToString(sum)
}

func compare(a, b Type) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Kind, b.Kind))
}

// SchemaForm returns the canonical form of a schema: schemas with equal forms
// accept, prune and default alike.
func SchemaForm(s any) (string, error) {
	var c canon
	if err := schema(&c, s); err != nil {
		return "", err
	}
	return string(c.buf), nil
}

// DataForm returns the canonical form of a default or of an enum's element: equal
// values have equal forms.
func DataForm(v any) (string, error) {
	var c canon
	if err := c.data(v); err != nil {
		return "", err
	}
	return string(c.buf), nil
}
