package manifest

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Set holds the objects of one cluster, ordered by ID, each ID once. It is immutable and
// safe for concurrent use.
type Set struct {
	objects []*Object
}

// DuplicateError is the error for an object that is defined more than once. None of
// the definitions is used, since the intended one is unknown.
type DuplicateError struct {
	// ID is the object's.
	ID ID
	// Objects are the definitions, at least two.
	Objects []*Object
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("%s %s; keep one definition", e.ID, e.Reason())
}

// Reason returns where the definitions are, without the object's name.
func (e *DuplicateError) Reason() string {
	places := make([]string, len(e.Objects))
	for i, o := range e.Objects {
		places[i] = o.origin.String()
	}
	slices.Sort(places)
	return fmt.Sprintf("is defined %d times: by %s", len(places), strings.Join(places, " and by "))
}

// NewSet returns the set of the objects. An object that is defined more than once is not in
// the set; the result has a [DuplicateError] for each such ID, in order.
func NewSet(objects []*Object) (*Set, []*DuplicateError) {
	sorted := slices.Clone(objects)
	slices.SortStableFunc(sorted, func(a, b *Object) int { return a.id.Compare(b.id) })
	var duplicates []*DuplicateError
	kept := sorted[:0]
	for i := 0; i < len(sorted); {
		end := i + 1
		for end < len(sorted) && sorted[end].id == sorted[i].id {
			end++
		}
		if end == i+1 {
			kept = append(kept, sorted[i])
		} else {
			duplicates = append(duplicates, &DuplicateError{ID: sorted[i].id, Objects: slices.Clone(sorted[i:end])})
		}
		i = end
	}
	clear(sorted[len(kept):])
	return &Set{objects: kept}, duplicates
}

// Len returns the number of objects.
func (s *Set) Len() int { return len(s.objects) }

// All returns the objects, ordered by ID; read-only.
func (s *Set) All() []*Object { return s.objects }

// Get returns the object with an ID, or nil.
func (s *Set) Get(id ID) *Object {
	i, found := slices.BinarySearchFunc(s.objects, id, func(o *Object, id ID) int { return o.id.Compare(id) })
	if !found {
		return nil
	}
	return s.objects[i]
}

// Equal reports whether two sets have equal objects. A nil set equals only nil.
func (s *Set) Equal(other *Set) bool {
	if s == nil || other == nil || s == other {
		return s == other
	}
	return slices.EqualFunc(s.objects, other.objects, func(a, b *Object) bool { return a.id == b.id && a.Hash() == b.Hash() })
}

// WriteYAML writes the objects as one YAML stream, in order, as `kustomize build`
// prints them. Before each object it writes its notes as comments; notes may be nil.
func (s *Set) WriteYAML(w io.Writer, notes func(*Object) []string) error {
	var buf bytes.Buffer
	for i, o := range s.objects {
		buf.Reset()
		if i > 0 {
			buf.WriteString("---\n")
		}
		if notes != nil {
			for _, note := range notes(o) {
				buf.WriteString("# " + strings.ReplaceAll(note, "\n", " ") + "\n")
			}
		}
		doc, err := o.YAML()
		if err != nil {
			return err
		}
		buf.Write(doc)
		if _, err := w.Write(buf.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
