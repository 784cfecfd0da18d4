package objects

import (
	"bytes"
	"strings"
	"testing"
)

func FuzzParseTree(f *testing.F) {
	hash := strings.Repeat("\x01", 20)
	f.Add([]byte("100644 a\x00" + hash + "40000 b\x00" + hash))
	f.Add([]byte("100644 a"))
	f.Fuzz(func(t *testing.T, content []byte) {
		entries, err := ParseTree(content)
		if err != nil {
			return
		}
		end := 0
		for _, e := range entries {
			if e.start != end {
				t.Fatalf("entry %q starts at %d, the one before ends at %d", e.Name, e.start, end)
			}
			end = e.end
		}
		if end != len(content) {
			t.Fatalf("the last entry ends at %d of %d", end, len(content))
		}
		// Writing an entry back changes nothing but its hash.
		for _, e := range entries {
			if !bytes.Equal(e.putInto(content, entries), content) {
				t.Fatalf("entry %q written back changes the tree", e.Name)
			}
		}
	})
}
