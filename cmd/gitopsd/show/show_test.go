package show

import (
	"fmt"
	"strings"
	"testing"
)

// A comment of any size is valid Markdown, and counts what is missing.
func TestComment(t *testing.T) {
	long := strings.Repeat("a line of text\n", 10_000)
	for _, tt := range []struct {
		name                  string
		head, tail            int // bytes
		sections              []string
		open                  int // sections in the comment
		cut, missing, hasTail bool
	}{
		{name: "nothing"},
		{name: "everything fits", tail: 100, sections: []string{"a", "b"}, open: 2, hasTail: true},
		{name: "short sections leave their room to long ones", sections: []string{"a", long, "b"}, open: 3, cut: true},
		{name: "long ones share it", tail: 100, sections: []string{long, long, long}, open: 3, cut: true, hasTail: true},
		{name: "a head without room for the tail", head: 50_000, tail: 20_000, sections: []string{long}, open: 1, cut: true},
		{name: "a head without room for anything", head: MaxComment - 80, sections: []string{long, long}, missing: true},
		{name: "more sections than there is room for", sections: strings.SplitAfter(strings.Repeat(strings.Repeat("x", 500)+"\n", 1000), "\n"), open: 110, missing: true},
		{name: "a line that is longer than its share", sections: []string{long, strings.Repeat("long", MaxComment), long}, open: 3, cut: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Comment{Command: "gitopsd plan", Item: "cluster"}
			c.Head.WriteString(strings.Repeat("h", tt.head))
			c.Tail.WriteString(strings.Repeat("t", tt.tail))
			for i, s := range tt.sections {
				c.Section(fmt.Sprintf("number %d", i), "", s)
			}
			var b strings.Builder
			if _, err := c.WriteTo(&b); err != nil {
				t.Fatal(err)
			}
			text := b.String()
			if len(text) > MaxComment {
				t.Errorf("%d bytes", len(text))
			}
			if tt.cut && len(text) < MaxComment*6/10 {
				t.Errorf("%d bytes alone, although something is cut", len(text))
			}
			if open, closed := strings.Count(text, "<details>"), strings.Count(text, "</details>"); open != tt.open || closed != open {
				t.Errorf("%d sections are opened, %d closed, want %d", open, closed, tt.open)
			}
			if n := strings.Count(text, "\n```"); n != 2*tt.open {
				t.Errorf("%d fences for %d sections", n, tt.open)
			}
			if have := strings.Contains(text, "more lines; run `gitopsd plan` to see them"); have != tt.cut {
				t.Errorf("lines are missing: %t, want %t", have, tt.cut)
			}
			if have := strings.Contains(text, "more clusters; run `gitopsd plan` to see them"); have != tt.missing {
				t.Errorf("sections are missing: %t, want %t", have, tt.missing)
			}
			if have := tt.tail > 0 && strings.HasSuffix(text, strings.Repeat("t", tt.tail)); have != tt.hasTail {
				t.Errorf("the tail is there: %t, want %t", have, tt.hasTail)
			}
		})
	}
}

// Text in a block cannot end the block.
func TestEscapes(t *testing.T) {
	for _, tt := range []struct{ name, have, want string }{
		{"a fence", Fenced("", "a\n```\nb\n"), "\n````\na\n```\nb\n````\n"},
		{"a language", Fenced("diff", "+ a"), "\n```diff\n+ a\n```\n"},
		{"a line", Escaped("a *b* `c` <d> & e|f\ng"), "a \\*b\\* \\`c\\` &lt;d&gt; &amp; e\\|f g"},
		{"a link", Escaped("![p](q) \\*r* ~~s~~\r"), "!\\[p\\](q) \\\\\\*r\\* \\~\\~s\\~\\~"},
		{"a mention", Escaped("@all, me@all reg.io/a@sha256:0"), "@<!-- -->all, me@all reg.io/a@sha256:0"},
		{"code in a sentence", Sentence("run `a <b> *c*` *now*"), "run `a <b> *c*` \\*now\\*"},
		{"a backquote alone", Sentence("a `b"), "a \\`b"},
		{"backquotes in a row", Sentence("a ``b`` [c]"), "a \\`\\`b\\`\\` \\[c\\]"},
		{"a summary", Details("a -> b </summary>\n&", "", "text"), "\n<details><summary>a -> b &lt;/summary> &amp;</summary>\n\n```\ntext\n```\n\n</details>\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.have != tt.want {
				t.Errorf("%q, want %q", tt.have, tt.want)
			}
		})
	}
}

func TestFold(t *testing.T) {
	for _, tt := range []struct {
		all                    bool
		n, most, shown, folded int
	}{{false, 0, 3, 0, 0}, {false, 4, 3, 4, 0}, {false, 5, 3, 3, 2}, {true, 5, 3, 5, 0}, {false, 5, 0, 0, 5}} {
		shown, folded := NewText(nil, Options{All: tt.all}).Fold(tt.n, tt.most)
		if shown != tt.shown || folded != tt.folded {
			t.Errorf("%d of %d are shown and %d folded, want %d and %d", shown, tt.n, folded, tt.shown, tt.folded)
		}
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	text := NewText(&b, Options{Colour: true, Width: 30})
	text.Heading("  ", "name", "said of it in more words than fit")
	text.Indented("    ", Red, "one\ntwo\n")
	text.Say(Plain, "plain")
	text.Line("%d%%", 5)
	if err := text.Flush(); err != nil {
		t.Fatal(err)
	}
	want := "  \x1b[1mname\x1b[0m: said of it in more\n    words than fit\n\x1b[31m    one\x1b[0m\n\x1b[31m    two\x1b[0m\nplain\n5%\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
