package local

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSyncDir(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	owned := func(name string) bool { return !strings.HasSuffix(name, ".txt") }
	sync := func(dir string, files ...string) (int, error) {
		return SyncDir(root, dir, files, func(name string) ([]byte, error) {
			if name == "bad" {
				return nil, errors.New("cannot be read")
			}
			return []byte("content of " + name), nil
		}, owned)
	}
	for _, tt := range []struct {
		files   []string
		changed int
	}{
		{[]string{"a", "b/c"}, 2},
		{[]string{"a", "b/c"}, 0},
		{[]string{"a", "b/d"}, 2},
		{[]string{"a"}, 1},
	} {
		if changed, err := sync("p/q", tt.files...); err != nil || changed != tt.changed {
			t.Errorf("%q: %d changed, %v", tt.files, changed, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "p/q/a")); err != nil || string(text) != "content of a" {
		t.Errorf("have %q, %v", text, err)
	}
	// A file of a run that was interrupted goes away, one of somebody else's stays.
	for _, tt := range []struct{ name, want string }{
		{"a.1" + tmpSuffix, ""},
		{"notes.txt", "p/q: has notes.txt, which does not belong to it"},
	} {
		if err := os.WriteFile(filepath.Join(root, "p/q", tt.name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := sync("p/q", "e"); tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := sync("x", "bad", "a"); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("have %v", err)
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".", "..", "/tmp", "../x", "link", "p/q/e"} {
		if _, err := sync(dir, "a"); err == nil {
			t.Errorf("%s: no error", dir)
		}
	}
}
