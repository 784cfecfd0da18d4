package sources_test

import (
	"cmp"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"same", "same", 0},
		{"pkg.crossplan.io", "pkg.crossplane.io", 1},
		{"kitten", "sitting", 3},
		{"ab", "ba", 1},
		{"spce.nmae", "spec.name", 2},
	} {
		if have := sources.Distance(tt.a, tt.b); have != tt.want {
			t.Errorf("%q, %q: have %d, want %d", tt.a, tt.b, have, tt.want)
		}
		if have := sources.Distance(tt.b, tt.a); have != tt.want {
			t.Errorf("%q, %q: have %d, want %d", tt.b, tt.a, have, tt.want)
		}
	}
}

func TestMeant(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name       string
		candidates []string
		want       string
	}{
		{"reson", []string{"version", "reason"}, "; did you mean reason?"},
		{"Reason", []string{"reason"}, "; did you mean reason?"},
		{"ab", []string{"xy", "bc"}, ""},
		{"bat", []string{"rat", "cat"}, "; did you mean cat?"},
		{"entirely", []string{"different"}, ""},
		{"x", nil, ""},
	} {
		if have := sources.Meant(tt.name, tt.candidates); have != tt.want {
			t.Errorf("%q among %q: have %q, want %q", tt.name, tt.candidates, have, tt.want)
		}
		all := cmp.Or(tt.want, "; there are "+strings.Join(tt.candidates, ", "))
		if have := sources.MeantOrAll(tt.name, tt.candidates); have != all {
			t.Errorf("%q among %q: have %q, want %q", tt.name, tt.candidates, have, all)
		}
	}
}
