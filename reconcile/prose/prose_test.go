package prose_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gitopsd.dev/reconcile/prose"
)

func TestCount(t *testing.T) {
	for _, tt := range []struct{ have, want string }{
		{prose.Count(0, "type"), "0 types"},
		{prose.Count(1, "type"), "1 type"},
		{prose.Count(2, "more type"), "2 more types"},
		{prose.Agree(1, "pin stays", "pins stay"), "1 pin stays"},
		{prose.Agree(3, "pin stays", "pins stay"), "3 pins stay"},
		{prose.Some(nil, 2), ""},
		{prose.Some([]string{"a", "b"}, 2), "a, b"},
		{prose.Some([]string{"a", "b", "c", "d"}, 2), "a, b and 2 more"},
	} {
		if tt.have != tt.want {
			t.Errorf("%q, want %q", tt.have, tt.want)
		}
	}
}

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
			if have := prose.Wrap(tt.text, tt.width); !slices.Equal(have, tt.want) {
				t.Errorf("%q\nwant %q", have, tt.want)
			}
		})
	}
}

// Whatever the text and the width, all words are there, in lines that are no
// longer than they must be.
func FuzzWrap(f *testing.F) {
	f.Add("    ! widget.acme.example/default/w refused: it is …  somebody's", 30)
	f.Add("a\tb  c", 1)
	f.Fuzz(func(t *testing.T, text string, width int) {
		if !utf8.ValidString(text) {
			return
		}
		lines := prose.Wrap(text, width)
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

// squeezed is a text with one space where there are several, and none at its ends.
func squeezed(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' }), " ")
}
