//go:build unix

package git

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"gitopsd.dev/sources"
)

// When a push is given up, git takes its locks off the ref and its hooks end.
func TestLocalCancel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("directory"))
	f.commit("A fleet", fleet)
	r := f.open()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	const hook = "reference-transaction" // runs while the ref is locked
	if err := f.repo.Hook(hook, "#!/bin/sh\ntest \"$1\" = prepared || exit 0\nexec >"+name+"\necho locked\nsleep 90\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, _, err := r.Update(ctx, sources.LockFile, "Lock", constant("lock\n"))
		ended <- err
	}()
	running, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	text := make([]byte, len("locked\n"))
	if _, err := io.ReadFull(running, text); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	gone := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(running) // until all that have it open are gone
		gone <- err
	}()
	select {
	case err := <-gone:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the hook still runs")
	}
	if err := f.repo.Hook(hook, "#!/bin/sh\n"); err != nil {
		t.Fatal(err)
	}
	if _, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock\n")); err != nil || !wrote {
		t.Errorf("the next update: %v, %v", wrote, err)
	}
}
