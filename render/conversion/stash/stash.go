// Package stash keeps fields of one version of an object that another version lacks. One
// annotation of the object has the fields and their values, by version.
//
// [Differences] finds the fields to keep; [Read] and [Stash.Write] read and write the
// annotation. Package conversion decides which fields still hold.
package stash

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// The API server refuses a conversion result with more than 256 KiB of annotations, and
// with it every LIST of the type. So all annotations stay below MaxAnnotations, and the
// stash below MaxBytes.
const (
	MaxAnnotations = 224 << 10
	MaxBytes       = 128 << 10
	// MaxEntries limits the fields of a stash.
	MaxEntries = 4000
)

// Entry is one field in the stash: its value, or that it was absent.
type Entry struct {
	Path   field.Path
	Value  any
	Absent bool
}

// Stash has the kept fields by version.
type Stash map[string][]Entry

// Path is the path of the annotation.
var Path = field.Path{field.Key("metadata"), field.Key("annotations"), field.Key(manifest.ConversionStashAnnotation)}

// Read reads the annotation of an object. Anybody can write annotations, so Read leaves
// out entries that no conversion wrote, and garbage says so.
func Read(object map[string]any) (s Stash, garbage string) {
	text := manifest.Text(object, "metadata", "annotations", manifest.ConversionStashAnnotation)
	switch {
	case text == "":
		return nil, ""
	case len(text) > MaxAnnotations:
		return nil, fmt.Sprintf("ignored, since it has %d bytes, and conversions write at most %d", len(text), MaxBytes)
	}
	tree, err := exact.Decode([]byte(text))
	versions, ok := tree.(map[string]any)
	if err != nil || !ok {
		return nil, "ignored, since no conversion wrote it"
	}
	s = Stash{}
	n, bad := 0, 0
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		entries, ok := versions[version].([]any)
		if !ok {
			bad++
		}
		for _, item := range entries {
			m, _ := item.(map[string]any)
			text, ok := m["path"].(string)
			path, err := field.Parse(text)
			value, has := m["value"]
			if n++; !ok || err != nil || n > MaxEntries {
				bad++
				continue
			}
			s[version] = append(s[version], Entry{path, value, !has})
		}
	}
	switch {
	case bad == 1:
		garbage = "1 entry ignored, since no conversion wrote it"
	case bad > 1:
		garbage = fmt.Sprintf("%d entries ignored, since no conversion wrote them", bad)
	}
	return s, garbage
}

func (s Stash) encode() ([]byte, error) {
	versions := map[string]any{}
	for version, entries := range s {
		var list []any
		for _, e := range entries {
			list = append(list, e.tree())
		}
		if len(list) > 0 {
			versions[version] = list
		}
	}
	if len(versions) == 0 {
		return nil, nil
	}
	return exact.Encode(versions)
}

// tree returns the entry as it is in the annotation.
func (e Entry) tree() map[string]any {
	item := map[string]any{"path": e.Path.String()}
	if !e.Absent {
		item["value"] = e.Value
	}
	return item
}

// Size returns the size of the value as JSON.
func (e Entry) Size() int {
	if e.Absent {
		return 0
	}
	text, err := exact.Encode(e.Value)
	if err != nil {
		return 0
	}
	return len(text)
}

// Write writes the stash into an object that is not shared, and returns the fields that
// did not fit. Fields of versions that are not listed are dropped first.
func (s Stash) Write(object map[string]any, versions []string) (dropped Stash) {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return s
	}
	annotations := map[string]any{}
	room := MaxAnnotations
	for k, v := range manifest.Mapping(metadata, "annotations") {
		annotations[k] = v
		text, _ := v.(string)
		room -= len(k) + len(text)
	}
	room = min(room-len(manifest.ConversionStashAnnotation), MaxBytes)
	dropped = s.shrink(room, versions)
	text, err := s.encode()
	if err != nil || len(text) == 0 {
		return dropped
	}
	annotations[manifest.ConversionStashAnnotation] = string(text)
	metadata["annotations"] = annotations
	return dropped
}

// shrink removes fields until the stash has at most room bytes and MaxEntries fields, and
// returns them. Fields of versions that are not listed go first, and then the largest.
func (s Stash) shrink(room int, versions []string) (dropped Stash) {
	type sized struct {
		version string
		index   int
		size    int
		other   bool
	}
	var all []sized
	total := len("{}")
	for _, version := range slices.Sorted(maps.Keys(s)) {
		name, _ := exact.Encode(version)
		total += len(name) + len(":[],")
		other := !slices.Contains(versions, version)
		for i, e := range s[version] {
			text, err := exact.Encode(e.tree())
			size := len(text) + len(",")
			if err != nil {
				size = room // it cannot be kept
			}
			total += size
			all = append(all, sized{version, i, size, other})
		}
	}
	slices.SortStableFunc(all, func(a, b sized) int {
		if a.other != b.other {
			if a.other {
				return -1
			}
			return 1
		}
		return cmp.Compare(b.size, a.size)
	})
	out := map[string]map[int]bool{}
	dropped = Stash{}
	for n, f := range all {
		if total <= room && len(all)-n <= MaxEntries {
			break
		}
		total -= f.size
		if out[f.version] == nil {
			out[f.version] = map[int]bool{}
		}
		out[f.version][f.index] = true
		dropped[f.version] = append(dropped[f.version], s[f.version][f.index])
	}
	for version, gone := range out {
		var left []Entry
		for i, e := range s[version] {
			if !gone[i] {
				left = append(left, e)
			}
		}
		s[version] = left
	}
	return dropped
}

// Without returns the text of an annotation without the fields of a version, empty if
// none are left, and reports whether it had the version. A text that no conversion wrote
// has no versions.
func Without(text, version string) (left string, had bool) {
	if text == "" || len(text) > MaxAnnotations {
		return text, false
	}
	tree, err := exact.Decode([]byte(text))
	versions, _ := tree.(map[string]any)
	if _, had = versions[version]; err != nil || !had {
		return text, false
	}
	delete(versions, version)
	if len(versions) == 0 {
		return "", true
	}
	all, err := exact.Encode(versions)
	if err != nil {
		return text, false
	}
	return string(all), true
}

// Apply writes the field into a tree, and reports whether it could. It adds no elements
// to lists.
func (e Entry) Apply(tree any) bool {
	last := len(e.Path) - 1
	for _, s := range e.Path[:last] {
		v, ok := s.In(tree)
		if !ok || v == nil {
			m, isMap := tree.(map[string]any)
			if s.List || !isMap {
				return false
			}
			if e.Absent {
				return true
			}
			v = map[string]any{}
			m[s.Key] = v
		}
		tree = v
	}
	s := e.Path[last]
	if m, ok := tree.(map[string]any); ok && !s.List {
		if e.Absent {
			delete(m, s.Key)
		} else {
			m[s.Key] = exact.Clone(e.Value)
		}
		return true
	}
	return false
}
