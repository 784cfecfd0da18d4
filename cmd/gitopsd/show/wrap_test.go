package show

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestWrap(t *testing.T) {
	const id = "deployment.apps/a-namespace-with-a-long-name/frontend"
	for _, tt := range []struct {
		name, text string
		width      int
		want       []string
	}{
		{"no width", strings.Repeat("word ", 40), 0, []string{strings.Repeat("word ", 40)}},
		{"it fits", "  one two", 80, []string{"  one two"}},
		{"it fits to the column", "    one two three four five", 27, []string{"    one two three four five"}},
		{"at a space", "    one two three four five", 26, []string{"    one two three four", "      five"}},
		{"columns are not bytes", "één twéé drié viér vijf", 23, []string{"één twéé drié viér vijf"}},
		{"a long word first", "  " + id + " is there and is as it was", 28, []string{"  " + id, "    is there and is as it", "    was"}},
		{"a long word last", "  it is " + id, 30, []string{"  it is", "    " + id}},
		{"a long word alone", id, 30, []string{id}},
		{"a mark", "  ~ " + id + ": changed", 30, []string{"  ~ " + id + ":", "    changed"}},
		{"no room beside the indentation", "          one two three four five six", 10, []string{"          one two three four", "            five six"}},
		{"nothing", "", 80, []string{""}},
		{"spaces", "   ", 80, []string{"   "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if have := wrap(tt.text, tt.width); !slices.Equal(have, tt.want) {
				t.Errorf("%q\nwant %q", have, tt.want)
			}
		})
	}
}

// Wrapped text has all words, in lines that are no longer than they must be.
func FuzzWrap(f *testing.F) {
	f.Add("    ! widget.acme.example/default/w refused: it is …  somebody's", 30)
	f.Add("a\tb  c", 1)
	f.Fuzz(func(t *testing.T, text string, width int) {
		if !utf8.ValidString(text) {
			return
		}
		lines := wrap(text, width)
		if have, want := squeezed(strings.Join(lines, " ")), squeezed(text); have != want {
			t.Fatalf("%q became %q", want, have)
		}
		for _, l := range lines {
			words := strings.Trim(l, " ")
			if room := max(width-(len(l)-len(strings.TrimLeft(l, " "))), 20); width > 0 && utf8.RuneCountInString(words) > room && strings.LastIndexByte(words, ' ') > 4 {
				t.Errorf("width %d: %q has %d columns, and could be broken", width, l, utf8.RuneCountInString(l))
			}
		}
	})
}

// squeezed replaces runs of spaces by one, and trims the text.
func squeezed(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' }), " ")
}
