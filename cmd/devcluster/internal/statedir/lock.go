package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Lock waits until no other command has the directory's lock, takes it, and returns the
// function that releases it. The kernel releases the lock of a killed process. waiting is
// called once if the wait takes more than a second. If the directory does not exist, the
// error is [ErrNotUp].
func (d Dir) Lock(ctx context.Context, waiting func()) (unlock func(), err error) {
	started := time.Now()
	for {
		f, err := os.OpenFile(d.lockFile(), os.O_CREATE|os.O_RDWR, 0o600)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", d, ErrNotUp)
		}
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && d.isLockFile(f) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", d.lockFile(), err)
		}
		if waiting != nil && time.Since(started) > time.Second {
			waiting()
			waiting = nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for another devcluster command on %s: %w", d, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// isLockFile reports whether f is still the lock file: `down` removes it, and a command
// that waited meanwhile would hold the lock of a removed file.
func (d Dir) isLockFile(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(d.lockFile())
	return err == nil && os.SameFile(held, named)
}
