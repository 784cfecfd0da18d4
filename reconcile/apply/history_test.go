package apply

import "testing"

func TestHistory(t *testing.T) {
	const long = "h1:1 h1:2 h1:3 h1:4 h1:5 h1:6 h1:7 h1:8 h1:9 none"
	for _, tt := range []struct{ from, before, to, want string }{
		{"", "", "h1:a", ""},                         // it is not known what it was
		{"h1:a", "", "h1:a", ""},                     // applied again
		{"h1:a", "", "h1:b", "h1:a"},                 // a new version
		{"h1:b", "h1:a", "h1:b", "h1:a"},             // applied again
		{"h1:b", "h1:a", "h1:a", "h1:b"},             // back
		{"h1:a", "h1:b", "h1:c", "h1:a h1:b"},        // on
		{"h1:c", "h1:a h1:b", "h1:b", "h1:c h1:a"},   // two back
		{"h1:b", "none", "h1:c", "h1:b none"},        // it came with a version of its package
		{"h1:b", " \n  h1:a\t", "h1:c", "h1:b h1:a"}, // written by somebody
		{"h1:0", long, "h1:x", "h1:0 h1:1 h1:2 h1:3 h1:4 h1:5 h1:6 h1:7 h1:8 h1:9"},
	} {
		if have := history(tt.from, tt.before, tt.to); have != tt.want {
			t.Errorf("from %q after %q to %q: %q, want %q", tt.from, tt.before, tt.to, have, tt.want)
		}
	}
}
