package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Changes come in bursts: a checkout writes many files, and an editor several for one. A
// burst is reported when nothing has happened for quiet, and at least every longest.
const (
	quiet   = 100 * time.Millisecond
	longest = time.Second
)

// lookAgain is the interval for looking for a missing root.
const lookAgain = 200 * time.Millisecond

// Watch reports changes of the files below dir until ctx ends, which closes the channel. A
// nil value means that files have changed since the last value; an error is about a
// directory that can no longer be watched. Files in .git and temporary files of editors
// are ignored. Watch fails if dir cannot be watched.
//
// A slow receiver misses nothing: changes are reported together.
func Watch(ctx context.Context, dir string) (<-chan error, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	fsw, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, hint(err))
	}
	w := &watcher{fsw: fsw, dir: dir, out: make(chan error)}
	if err := w.add(dir); err != nil {
		fsw.Close()
		return nil, err
	}
	go w.run(ctx)
	return w.out, nil
}

type watcher struct {
	fsw *fsnotify.Watcher
	dir string
	out chan error
}

// add watches dir and all directories below. Each is watched before it is read,
// so that no later file is missed.
func (w *watcher) add(dir string) error {
	if err := w.fsw.Add(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) && dir != w.dir {
			return nil // already removed
		}
		return fmt.Errorf("watching %s: %w", dir, hint(err))
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && dir != w.dir {
			return nil
		}
		return fmt.Errorf("watching %s: %w", dir, err)
	}
	var failed error
	for _, e := range entries {
		if e.IsDir() && !ignored(e.Name()) {
			failed = errors.Join(failed, w.add(filepath.Join(dir, e.Name())))
		}
	}
	return failed
}

// hint adds advice to an error about a limit of the system.
func hint(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: the limit of watches is reached; raise it with sysctl fs.inotify.max_user_watches", err)
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: the limit of watchers or open files is reached; raise it with sysctl fs.inotify.max_user_instances or ulimit -n", err)
	}
	return err
}

// run sends reports for events.
func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	defer w.fsw.Close()
	var (
		settled = time.NewTimer(quiet) // runs while a burst does
		gone    = time.NewTicker(lookAgain)
		started time.Time // start of the burst, zero if there is none
		report  []error   // values to send, in order
	)
	settled.Stop()
	gone.Stop()
	defer settled.Stop()
	defer gone.Stop()
	changed := func() {
		now := time.Now()
		if started.IsZero() {
			started = now
		}
		settled.Reset(max(0, min(quiet, time.Until(started.Add(longest)))))
	}
	for {
		var out chan error
		var next error
		if len(report) > 0 {
			out, next = w.out, report[0]
		}
		select {
		case <-ctx.Done():
			return
		case out <- next:
			report = report[1:]
		case <-settled.C:
			started = time.Time{}
			if len(report) == 0 || report[len(report)-1] != nil {
				report = append(report, nil)
			}
		case e := <-w.fsw.Events:
			if e.Name == w.dir && e.Has(fsnotify.Remove|fsnotify.Rename) {
				gone.Reset(lookAgain)
			}
			if !w.matters(e) {
				continue
			}
			if e.Has(fsnotify.Create) {
				if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
					if err := w.add(e.Name); err != nil {
						report = append(report, err)
					}
				}
			}
			changed()
		case err := <-w.fsw.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				report = append(report, fmt.Errorf("watching %s: %w", w.dir, err))
				continue
			}
			// Events were lost, perhaps for new directories.
			if err := w.add(w.dir); err != nil {
				report = append(report, err)
			}
			changed()
		case <-gone.C:
			if w.add(w.dir) == nil {
				gone.Stop()
				changed()
			}
		}
	}
}

// matters reports whether an event may change the content of the tree.
func (w *watcher) matters(e fsnotify.Event) bool {
	if e.Op == fsnotify.Chmod {
		return false // indexers and virus scanners
	}
	rel, err := filepath.Rel(w.dir, e.Name)
	if err != nil {
		return false
	}
	for part := range strings.SplitSeq(filepath.ToSlash(rel), "/") {
		if ignored(part) {
			return false
		}
	}
	return true
}

// ignored reports whether a file or directory of that name is ignored: Git's own, or a
// temporary one of an editor or of this package.
func ignored(name string) bool {
	if hidden(name) || name == "4913" || name == ".DS_Store" { // 4913 is vim's
		return true
	}
	is := func(part func(s, part string) bool, parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return part(name, p) })
	}
	return is(strings.HasPrefix, ".#", "#", ".goutputstream-", ".nfs") ||
		is(strings.HasSuffix, "~", ".swp", ".swo", ".swx", ".kate-swp", "___jb_tmp___", "___jb_old___", tmpSuffix)
}
