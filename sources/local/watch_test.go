package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// watched is a watched directory.
type watched struct {
	*testing.T
	dir     string
	changes <-chan error
}

func watch(t *testing.T, files map[string]string) *watched {
	t.Helper()
	w := &watched{T: t, dir: filepath.Join(t.TempDir(), "fleet")}
	write(t, w.dir, files)
	var err error
	if w.changes, err = Watch(t.Context(), w.dir); err != nil {
		t.Fatal(err)
	}
	return w
}

// told waits for a report of a change, and for all reports that follow from it.
func (w *watched) told(what string) {
	w.Helper()
	select {
	case err, ok := <-w.changes:
		if err != nil || !ok {
			w.Fatalf("%s: %v, %t", what, err, ok)
		}
	case <-time.After(20 * time.Second):
		w.Fatalf("%s is not told", what)
	}
}

// silent checks that do causes no report.
func (w *watched) silent(what string, do func()) {
	w.Helper()
	for more := true; more; { // the rest of what was before
		select {
		case <-w.changes:
		case <-time.After(3 * quiet):
			more = false
		}
	}
	do()
	select {
	case err := <-w.changes:
		w.Errorf("%s is told: %v", what, err)
	case <-time.After(3 * quiet):
	}
}

func (w *watched) write(name, content string) {
	w.Helper()
	write(w.T, w.dir, map[string]string{name: content})
}

func (w *watched) do(errs ...error) {
	w.Helper()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	w := watch(t, map[string]string{"clusters.yaml": "", "clusters/prod/ns.yaml": "", ".git/HEAD": ""})
	path := func(name string) string { return filepath.Join(w.dir, name) }

	w.write("clusters.yaml", "changed")
	w.told("a written file")
	w.write("clusters/prod/ns.yaml", "changed")
	w.told("a written file in a directory")
	w.write("clusters/dev/deep/er/new.yaml", "new")
	w.told("a new file in new directories")
	w.write("clusters/dev/deep/er/new.yaml", "changed")
	w.told("a change in new directories")
	w.do(os.Rename(path("clusters/dev"), path("clusters/test")))
	w.told("a directory with another name")
	w.write("clusters/test/deep/er/new.yaml", "changed again")
	w.told("a change in a directory with another name")
	w.do(os.RemoveAll(path("clusters")))
	w.told("a removed directory")
	w.write("clusters/prod/ns.yaml", "back")
	w.told("a directory that is back")
	w.write("clusters/prod/ns.yaml", "changed")
	w.told("a change in a directory that is back")

	// As an editor saves: another file that takes the name.
	w.silent("a backup", func() {
		w.write("clusters.yaml~", "old")
		w.write(".clusters.yaml.swp", "swap")
	})
	w.do(os.Rename(path("clusters.yaml~"), path("clusters.yaml")))
	w.told("a file replaced")
	w.silent("what is no content", func() {
		w.do(os.WriteFile(path("4913"), nil, 0o644), os.Remove(path("4913")))
		w.write(".git/index", "x")
		w.write(".git/refs/heads/main", "x")
		w.write("#clusters.yaml#", "x")
		w.do(os.Symlink("nobody@nowhere", path(".#clusters.yaml")))
		w.do(os.Chmod(path("clusters.yaml"), 0o600))
	})
	w.do(WriteLock(w.dir, []byte("lock\n")))
	w.told("a new lock")
	w.silent("the same lock", func() { w.do(WriteLock(w.dir, []byte("lock\n"))) })
}

// Many changes at once are told in a few words, and those that come while
// nobody listens in one.
func TestWatchBursts(t *testing.T) {
	t.Parallel()
	w := watch(t, map[string]string{"file": ""})
	for n := range 2000 {
		w.write(filepath.Join("dir", strings.Repeat("x", n%50+1), "file"), "content")
	}
	time.Sleep(5 * quiet)
	w.told("a burst")
	w.silent("nothing", func() {})
}

// A root that is replaced, as a script does that makes the tree anew.
func TestWatchRootReplaced(t *testing.T) {
	t.Parallel()
	w := watch(t, map[string]string{"file": "one", "dir/file": "one"})
	w.do(os.Rename(w.dir, w.dir+".old"))
	w.write("file", "two")
	w.write("dir/file", "two")
	w.told("another root")
	deadline := time.Now().Add(20 * time.Second)
	for n := 0; ; n++ { // until it is watched again
		w.write("dir/file", strings.Repeat("x", n))
		select {
		case err := <-w.changes:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-time.After(2 * quiet):
		}
		if time.Now().After(deadline) {
			t.Fatal("changes in the other root are not told")
		}
	}
}

func TestWatchEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := Watch(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err, ok := <-changes; ok {
		t.Errorf("%v, want the channel closed", err)
	}
	dir := filepath.Join(t.TempDir(), "nope")
	if _, err := Watch(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "watching "+dir) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
