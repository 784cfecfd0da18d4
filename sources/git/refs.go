package git

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
)

// ref returns the object that a ref names, zero if there is no such ref.
func (l *local) ref(name string) (plumbing.Hash, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ref, err := l.storage.Reference(plumbing.ReferenceName(name))
	switch {
	case errors.Is(err, plumbing.ErrReferenceNotFound):
		return plumbing.ZeroHash, nil
	case err != nil:
		return plumbing.ZeroHash, fmt.Errorf("%s: %w", name, err)
	case ref.Type() != plumbing.HashReference:
		return plumbing.ZeroHash, fmt.Errorf("%s is a symbolic ref to %s: use that", name, ref.Target())
	}
	return ref.Hash(), nil
}

// lockFile is a file that Git's programs make beside the one they are about to
// change, and then rename to it.
type lockFile struct {
	name string
	file *os.File
}

// The time that other programs are given to finish what they hold a lock for.
// Git itself waits 100 ms for refs (core.filesRefLockTimeout).
const (
	lockTimeout = time.Second
	lockRetry   = 10 * time.Millisecond
)

// errLocked is in the chain of errors about locks that others do not give up.
var errLocked = errors.New("locked")

// lockPath makes the lock of a file, waiting up to lockTimeout for others to give
// it up.
func lockPath(name string) (*lockFile, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(lockRetry) {
		f, err := os.OpenFile(name+".lock", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err == nil {
			return &lockFile{name: name, file: f}, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w: %s.lock exists; if no git command is running there, one was killed: remove that file", errLocked, name)
		}
	}
}

// write puts content into the lock file, durably.
func (l *lockFile) write(content []byte) error {
	_, err := l.file.Write(content)
	return errors.Join(err, l.file.Sync(), l.file.Close())
}

// commit makes the lock file the file that it locks.
func (l *lockFile) commit() error {
	err := os.Rename(l.name+".lock", l.name)
	if err == nil {
		l.file = nil
	}
	return err
}

// unlock gives up the lock, unless it is committed.
func (l *lockFile) unlock() {
	if l.file != nil {
		l.file.Close()
		os.Remove(l.name + ".lock")
		l.file = nil
	}
}

// refLock is a ref that nobody else can change.
type refLock struct {
	*lockFile
	l   *local
	ref string
}

func (l *local) lockRef(ref string) (*refLock, error) {
	lock, err := lockPath(filepath.Join(l.common, filepath.FromSlash(ref)))
	if err != nil {
		return nil, err
	}
	return &refLock{lockFile: lock, l: l, ref: ref}, nil
}

func (r *refLock) set(h plumbing.Hash) error {
	if err := r.write([]byte(h.String() + "\n")); err != nil {
		return err
	}
	return r.commit()
}

// remove removes the ref, which may be in a file of its own, packed with
// others, or both.
func (r *refLock) remove() error {
	packed, err := lockPath(filepath.Join(r.l.common, "packed-refs"))
	if err != nil {
		return err
	}
	defer packed.unlock()
	content, err := os.ReadFile(packed.name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if kept := withoutRef(content, r.ref); len(kept) < len(content) {
		if err := packed.write(kept); err != nil {
			return err
		}
		if err := packed.commit(); err != nil {
			return err
		}
	}
	// Last, since until now the ref is what this file says.
	if err := os.Remove(r.name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// withoutRef returns a packed-refs file without a ref. A line "^hash" belongs to
// the line before it.
func withoutRef(content []byte, ref string) []byte {
	var kept []byte
	drop := false
	for line := range bytes.Lines(content) {
		if !bytes.HasPrefix(line, []byte("^")) {
			_, name, _ := bytes.Cut(bytes.TrimRight(line, "\r\n"), []byte(" "))
			drop = string(name) == ref
		}
		if !drop {
			kept = append(kept, line...)
		}
	}
	return kept
}
