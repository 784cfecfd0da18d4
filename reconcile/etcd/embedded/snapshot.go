package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/connect"
)

// Snapshot writes a snapshot of the etcd in a directory into a new file, whether or not the etcd runs.
func Snapshot(ctx context.Context, c Config, file string) error {
	if _, err := os.Stat(filepath.Join(c.Dir, "etcd")); err != nil {
		return fmt.Errorf("embedded etcd: %s has no data of an etcd: %w", c.Dir, err)
	}
	s, err := Start(ctx, Config{Log: c.Log, Dir: c.Dir, Now: c.Now})
	if errors.Is(err, ErrInUse) {
		endpoint, err := os.ReadFile(filepath.Join(c.Dir, "endpoint"))
		if err != nil {
			return fmt.Errorf("embedded etcd: %s is in use, and does not say where its etcd runs; try again once it has started: %w", c.Dir, err)
		}
		return snapshotOf(ctx, adminOf(c.Dir, strings.TrimSpace(string(endpoint))), c, file)
	}
	if err != nil {
		return err
	}
	return errors.Join(snapshotOf(ctx, s.Admin(), c, file), s.Close())
}

func snapshotOf(ctx context.Context, cfg admin.Config, c Config, file string) error {
	cfg.Log, cfg.Fleet = c.Log, "snapshot"
	a, err := admin.Open(cfg)
	if err != nil {
		return err
	}
	return a.Snapshot(ctx, file)
}

// restoredRevision returns the revision of a restored etcd: clients that saw revisions after the snapshot,
// or after an earlier restoration of the same or another one, must not see them again with other content.
// They learn that their revision was compacted, and list again. It grows by a million a second, faster
// than an etcd can be written to.
func restoredRevision(snapshot int64, now time.Time) int64 {
	return max(snapshot+1_000_000_000, now.UnixMicro())
}

// restoring begins the names of directories with incomplete data.
const restoring = "etcd.restoring"

// Restore creates the data of an embedded etcd from a snapshot. The directory must not exist or be empty.
// The next start creates a new CA, so clients need new certificates. A failed restoration leaves no data,
// and a killed one can be repeated.
func Restore(ctx context.Context, c Config, file string) (err error) {
	if _, _, err := c.check(); err != nil {
		return err
	}
	if err := verifySnapshot(ctx, file); err != nil {
		return err
	}
	lock, err := acquire(c.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	if err := mustBeEmpty(c.Dir); err != nil {
		return err
	}
	// A new one each time: the process of a killed restoration may still write into another.
	partial, err := os.MkdirTemp(c.Dir, restoring+".*")
	if err != nil {
		return err
	}
	if len(c.RestoreCommand) > 0 {
		err = restoreApart(ctx, c.RestoreCommand, file, partial)
	} else {
		err = RestoreData(file, partial)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("snapshot %s cannot be restored: %w", file, err), os.RemoveAll(partial))
	}
	return os.Rename(partial, filepath.Join(c.Dir, "etcd")) // completes the restoration
}

// restoreApart creates the data in a process of its own. The error is what the process printed, or how it
// ended.
func restoreApart(ctx context.Context, command []string, file, dir string) error {
	var said head
	c := exec.CommandContext(ctx, command[0], slices.Concat(command[1:], []string{file, dir})...)
	c.Stderr = &said
	err := c.Run()
	text := strings.TrimSpace(string(said))
	exit, ended := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !ended:
		return fmt.Errorf("a process that reads it: %w", err)
	case exit.ExitCode() == 1 && text != "":
		return errors.New(strings.TrimPrefix(text, "gitopsd: "))
	}
	text, _, _ = strings.Cut(text, "\n")
	return fmt.Errorf("it is garbled: the process that read it ended (%v: %s); use another copy", exit, text)
}

// head is a writer that keeps the beginning.
type head []byte

func (h *head) Write(b []byte) (int, error) {
	const most = 4 << 10
	*h = append(*h, b[:min(len(b), most-len(*h))]...)
	return len(b), nil
}

// RestoreData creates a data directory from a snapshot with etcd's library. The library panics on files
// that are not etcd databases, which is an error here. It maps the file into memory, so a crafted file may
// crash the process or make it loop forever.
func RestoreData(file, dir string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is garbled: %v", p)
		}
	}()
	manager := snapshot.NewV3(logger(nil, new(atomic.Bool)))
	status, err := manager.Status(file)
	if err != nil {
		return fmt.Errorf("it is no database of etcd's: %w", err)
	}
	return manager.Restore(snapshot.RestoreConfig{
		SnapshotPath: file, Name: name, OutputDataDir: dir, PeerURLs: []string{peerURL}, InitialCluster: name + "=" + peerURL,
		InitialClusterToken: "gitopsd", MarkCompacted: true,
		RevisionBump: uint64(restoredRevision(status.Revision, time.Now()) - status.Revision),
	})
}

// spared reports whether an entry may be in an empty directory: its lock, or what ext4 has in a new volume.
func spared(e fs.DirEntry) bool { return e.Name() == "lock" || e.Name() == "lost+found" }

// mustBeEmpty returns an error if a directory has anything but that and the rest of a killed restoration,
// which it removes.
func mustBeEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !spared(e) && !strings.HasPrefix(e.Name(), restoring) {
			return fmt.Errorf("embedded etcd: %s is not empty (it has %s); a snapshot is restored into a new directory, so that nothing is overwritten", dir, e.Name())
		}
	}
	for _, e := range entries {
		if spared(e) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// verifySnapshot returns an error unless a file is a whole snapshot of an etcd.
func verifySnapshot(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return fmt.Errorf("snapshot: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("snapshot %s: %w", file, fs.ErrInvalid)
	}
	if err := connect.VerifySnapshot(ctx, f, info.Size()); err != nil {
		return fmt.Errorf("snapshot %s %w", file, err)
	}
	if err := wholeDatabase(f, info.Size()); err != nil {
		return fmt.Errorf("snapshot %s cannot be restored: %w", file, err)
	}
	return nil
}

// A bbolt database begins with two pages of metadata, each with a header. They are written in turn, and
// have a checksum, so that one is sound after a crash.
const (
	boltHeader                = 16
	boltMeta                  = 64
	boltMagic                 = 0xED0CDAED
	smallestPage, largestPage = 512, 1 << 16
)

// wholeDatabase returns an error unless a file has all pages that its metadata announce. bbolt maps files
// into memory, and crashes at a page beyond the end. It also ends the process of an etcd that starts with
// another file.
func wholeDatabase(f io.ReaderAt, size int64) error {
	errNone := errors.New("it is no database of etcd's")
	// The pages are zero unless the metadata are sound.
	meta := func(at int64) (pageSize, pages uint64, err error) {
		b := make([]byte, boltMeta)
		if _, err := f.ReadAt(b, at+boltHeader); err != nil {
			return 0, 0, errNone
		}
		pageSize = uint64(binary.NativeEndian.Uint32(b[8:]))
		if binary.NativeEndian.Uint32(b) != boltMagic || pageSize < smallestPage || pageSize > largestPage {
			return 0, 0, errNone
		}
		hash := fnv.New64a()
		hash.Write(b[:boltMeta-8])
		if hash.Sum64() == binary.NativeEndian.Uint64(b[boltMeta-8:]) {
			pages = binary.NativeEndian.Uint64(b[40:])
		}
		return pageSize, pages, nil
	}
	pageSize, pages, err := meta(0)
	if err != nil {
		return err
	}
	_, more, err := meta(int64(pageSize))
	if err != nil {
		return err
	}
	switch pages = max(pages, more); {
	case pages == 0:
		return errNone
	case pages > uint64(size)/pageSize:
		return fmt.Errorf("it tells of %d pages of %d bytes, and is smaller", pages, pageSize)
	}
	return nil
}
