package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"gitopsd.dev/sources"
)

// quiet is how long a tree must have been left alone before a change is told:
// editors and Git write several files at once.
const quiet = 200 * time.Millisecond

// Watch tells of changes below root, .git and editors' temporary files apart:
// once for any number of changes that come together. The channel is closed when
// the context ends or watching becomes impossible.
func Watch(ctx context.Context, root string) (<-chan struct{}, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", root, err)
	}
	if err := watchBelow(w, root); err != nil {
		return nil, errors.Join(fmt.Errorf("watching %s: %w", root, err), w.Close())
	}
	changes := make(chan struct{}, 1)
	go func() {
		defer close(changes)
		defer w.Close()
		follow(ctx, w, changes)
	}()
	return changes, nil
}

// watchBelow watches a directory and all below it.
func watchBelow(w *fsnotify.Watcher, dir string) error {
	return filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone meanwhile
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case d.Name() == ".git":
			return fs.SkipDir
		}
		if err := w.Add(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func follow(ctx context.Context, w *fsnotify.Watcher, changes chan<- struct{}) {
	settled := time.NewTimer(time.Hour)
	settled.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-w.Events:
			if !ok {
				return
			}
			if event.Op == fsnotify.Chmod || ignored(filepath.Base(event.Name)) {
				continue
			}
			if event.Has(fsnotify.Create) {
				// What cannot be watched any more is gone again.
				_ = watchBelow(w, event.Name)
			}
			settled.Reset(quiet)
		case _, ok := <-w.Errors:
			if !ok {
				return
			}
			// Events were lost: something changed.
			settled.Reset(quiet)
		case <-settled.C:
			select {
			case changes <- struct{}{}:
			default: // the last one was not read yet
			}
		}
	}
}

// ignored tells files that editors, Git and this package make for a moment.
func ignored(name string) bool {
	return name == ".git" || name == "4913" || strings.HasSuffix(name, "~") || strings.HasSuffix(name, ".lock") && name != sources.LockFile ||
		strings.HasPrefix(name, ".#") || strings.HasPrefix(name, "."+sources.LockFile+"-") ||
		strings.HasPrefix(name, ".") && (strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".swx"))
}
