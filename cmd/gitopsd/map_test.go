package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestMap checks README's map of the code: each package is in it, by its path or by its name in
// the lines of the package above it, and every path in it exists.
func TestMap(t *testing.T) {
	root := os.DirFS("../..")
	readme, err := fs.ReadFile(root, "README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "## Map of the code\n\n```\n")
	if !ok {
		t.Fatal("README.md has no map of the code")
	}
	text, _, _ := strings.Cut(rest, "```")
	said := make(map[string]string) // the map's text, by path
	last := ""
	for line := range strings.Lines(text) {
		name, what, _ := strings.Cut(line, " ")
		if name != "" {
			if last = name; said[name] != "" {
				t.Errorf("%s is in the map twice", name)
			}
		}
		said[last] += what
	}
	for name := range said {
		if info, err := fs.Stat(root, name); err != nil || !info.IsDir() {
			t.Errorf("%s is in the map, and no directory", name)
		}
	}
	for _, room := range []string{"cmd", "sources", "render", "reconcile", "testscripts"} {
		err := fs.WalkDir(root, room, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case !d.IsDir():
				return nil
			case name == "cmd/devcluster" || d.Name() == "testdata":
				return fs.SkipDir // a module of its own
			}
			source, err := fs.Glob(root, name+"/*.go")
			if err != nil || len(source) == 0 || said[name] != "" {
				return err
			}
			named := regexp.MustCompile(`\b` + regexp.QuoteMeta(path.Base(name)) + `\b`)
			if !named.MatchString(said[path.Dir(name)]) {
				t.Errorf("the map of the code in README.md does not have %s", name)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
