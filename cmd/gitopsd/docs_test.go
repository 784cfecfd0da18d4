package main

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
)

// TestPages checks README and the pages below docs: links lead to existing files and headings,
// and README links every page.
func TestPages(t *testing.T) {
	root := os.DirFS("../..")
	names, err := fs.Glob(root, "docs/*.md")
	if err != nil || len(names) == 0 {
		t.Fatal("no pages", err)
	}
	headings := make(map[string]map[string]bool) // the anchors of each page
	texts := make(map[string]string)
	for _, name := range append(names, "README.md") {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		texts[name] = fence.ReplaceAllString(string(text), "")
		headings[name] = make(map[string]bool)
		for _, m := range heading.FindAllStringSubmatch(texts[name], -1) {
			headings[name][anchor(m[1])] = true
		}
	}
	linked := make(map[string]bool) // by README
	for name, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, at, _ := strings.Cut(m[1], "#")
			to := path.Join(path.Dir(name), file)
			if file == "" {
				to = name
			}
			if name == "README.md" {
				linked[to] = true
			}
			if _, err := fs.Stat(root, to); err != nil {
				t.Errorf("%s links %s: %v", name, m[1], err)
			} else if at != "" && !headings[to][at] {
				t.Errorf("%s links %s, and %s has no such heading", name, m[1], to)
			}
		}
	}
	for _, name := range names {
		if !linked[name] {
			t.Errorf("README.md does not link %s", name)
		}
	}
}

// anchor returns the anchor that forges give a heading.
func anchor(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ' || r == '-':
			b.WriteByte('-')
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}
