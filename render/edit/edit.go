// Package edit changes the YAML of a repository and keeps every other byte: comments,
// order, quotes and line endings.
//
// version.go finds and replaces the versions of packages. annotate.go and yaml.go set
// annotations of objects. files.go overlays a file system with changed files. The caller
// decides which version or annotation to write, and sources/local writes files.
package edit

import (
	"bytes"
	"slices"
)

// edit replaces the bytes of a text from start to end.
type edit struct {
	start, end int
	with       string
}

// splice returns the text with the edits. If edits overlap, as in objects that share a
// part, the first one wins.
func splice(text []byte, edits []edit) []byte {
	slices.SortStableFunc(edits, func(a, b edit) int { return a.start - b.start })
	var out bytes.Buffer
	at := 0
	for _, e := range edits {
		if e.start < at {
			continue
		}
		out.Write(text[at:e.start])
		out.WriteString(e.with)
		at = e.end
	}
	out.Write(text[at:])
	return out.Bytes()
}
