// Package edit changes the YAML of a repository, and leaves every other byte as it
// is: comments, order, quotes and line endings.
//
// It owns
//   - versions of packages (version.go): where the files say which version a cluster
//     gets, and another one in that place;
//   - annotations of objects (annotate.go, yaml.go).
//
// Which version or annotation to write is for the caller to decide, and writing
// files for sources/local.
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

// splice returns the text with the edits. Of edits that overlap, as in objects that
// share a part, the first counts.
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
