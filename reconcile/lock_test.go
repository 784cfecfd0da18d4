package reconcile

import (
	"strings"
	"testing"

	"gitopsd.dev/sources/lockfile"
)

// The commit's message names packages and conversion rules that changed.
func TestLockMessage(t *testing.T) {
	parse := func(lines ...string) *lockfile.File {
		t.Helper()
		f, err := lockfile.Parse("clusters.lock", []byte(strings.Join(lines, "\n")+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	rules := func(cluster, c string) string {
		return "@" + cluster + " as.example.org conversion h1:" + strings.Repeat(c, 43) + "="
	}
	at := func(content string) string { return "reg.io/acme/a v1 " + digest(content) }
	moved := func(repository string) string {
		return "- " + repository + " v1 " + digest("old") + "\n+ " + repository + " v1 " + digest("new")
	}
	long := "reg.io/" + strings.Repeat("a", 40)
	for _, tt := range []struct {
		name          string
		before, after *lockfile.File
		want          string
	}{
		{"rules", parse(rules("dev", "A"), rules("prod", "A")), parse(rules("dev", "B"), rules("prod", "A")),
			"Lock as.example.org conversion\n\n- " + rules("dev", "A") + "\n+ " + rules("dev", "B")},
		{"rules and a package", parse("@dev reg.io/a v1"), parse("@dev reg.io/a v2", rules("dev", "A")),
			"Lock a v2, as.example.org conversion\n\n- @dev reg.io/a v1\n+ " + rules("dev", "A") + "\n+ @dev reg.io/a v2"},
		{"rules that went", parse(rules("dev", "A")), parse("@dev reg.io/a v1"), "Lock a v1\n\n- " + rules("dev", "A") + "\n+ @dev reg.io/a v1"},
		{"a tag that moved", parse("@dev reg.io/acme/a v1", at("old")), parse("@dev reg.io/acme/a v1", at("new")),
			"Lock a v1 " + short12("old") + " -> " + short12("new") + "\n\n" + moved("reg.io/acme/a")},
		{"a tag that moved, of a long name", parse(long + " v1 " + digest("old")), parse(long + " v1 " + digest("new")), "Lock 1 package\n\n" + moved(long)},
		{"records alone", parse("@dev reg.io/acme/a v1", at("old")), parse("@dev reg.io/acme/a v1", at("old"), "reg.io/acme/a v1/package.yaml "+digest("x")), "Lock what was resolved"},
	} {
		if have := lockMessage(tt.before, tt.after); have != tt.want {
			t.Errorf("%s: have\n%s\nwant\n%s", tt.name, have, tt.want)
		}
	}
}
