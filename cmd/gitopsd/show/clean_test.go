package show

import (
	"strings"
	"testing"
)

// A cleaned text has nothing that a terminal would obey.
func TestClean(t *testing.T) {
	for _, tt := range []struct{ have, want string }{
		{"plain – text, één\nline", "plain – text, één\nline"},
		{"a\tb", "a\tb"},
		{"a\x1b[2Jb\rc\bd\x00", "a[2Jbcd"},
		{"left\u202eright\u2066", "leftright"},
		{"c1 \u009b31m", "c1 31m"},
		{string([]byte{'a', 0xff, 0x9b}), "a\ufffd\ufffd"},
	} {
		if have := Clean(tt.have); have != tt.want {
			t.Errorf("%q: %q, want %q", tt.have, have, tt.want)
		}
		var b strings.Builder
		if n, err := Cleaned(&b).Write([]byte(tt.have)); n != len(tt.have) || err != nil || b.String() != tt.want {
			t.Errorf("%q: wrote %q (%d, %v)", tt.have, b.String(), n, err)
		}
	}
	var b strings.Builder
	text := NewText(&b, Options{Colour: true})
	text.Line("%s and %s", text.Paint(Red, "red"), "\x1b[31mred\x1b[2J")
	text.Say(Green, "  one\ntwo")
	if err := text.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[31mred\x1b[0m and \x1b[31mred[2J\n\x1b[32m  one\x1b[0m\n\x1b[32m    two\x1b[0m\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
