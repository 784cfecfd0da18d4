package events

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCut(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":            "",
		"0123456789":  "0123456789",
		"0123456789a": "0123456…",
		"012345é789a": "012345…",
		"ééééé":       "ééééé",
		"éééééé":      "ééé…",
	} {
		if have := cut(text, 10); have != want || !utf8.ValidString(have) || len(have) > 10 {
			t.Errorf("%q: %q, want %q", text, have, want)
		}
	}
	if have := cut(strings.Repeat("x", 5000), maxNote); len(have) != maxNote {
		t.Errorf("%d bytes", len(have))
	}
}
