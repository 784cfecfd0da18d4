package connect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Snapshot writes a snapshot of the whole etcd into a new file, with mode 0600. The file exists once it
// is complete.
func Snapshot(ctx context.Context, c Config, file string) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("snapshot: %s exists; name a new file", file)
	}
	opening, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	s, err := Connect(opening, c)
	if err != nil {
		return err
	}
	defer s.Close()
	out, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, ignore(os.Remove(out.Name()), fs.ErrNotExist)) }()
	if err := s.save(ctx, out); err != nil {
		return errors.Join(fmt.Errorf("snapshot: %w", err), out.Close())
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	err = os.Link(out.Name(), file) // replaces no file
	if err != nil && !errors.Is(err, fs.ErrExist) {
		err = os.Rename(out.Name(), file) // for file systems without links
	}
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// ignore returns err unless it is kind.
func ignore(err, kind error) error {
	if errors.Is(err, kind) {
		return nil
	}
	return err
}

// save writes a snapshot and verifies it. The timeout bounds how long etcd may send nothing: a whole
// snapshot may take long.
func (s *Session) save(ctx context.Context, out *os.File) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, err := s.Client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer in.Close()
	idle := time.AfterFunc(s.Config.Timeout, func() { cancel(fmt.Errorf("etcd sent nothing for %s", s.Config.Timeout)) })
	defer idle.Stop()
	size, err := io.Copy(out, progress{in, func() { idle.Reset(s.Config.Timeout) }})
	if err != nil {
		return errors.Join(err, ignore(context.Cause(ctx), context.Canceled))
	}
	if err := out.Sync(); err != nil {
		return err
	}
	return VerifySnapshot(ctx, out, size)
}

// progress is a reader that calls tell after each Read.
type progress struct {
	io.Reader
	tell func()
}

func (p progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.tell()
	return n, err
}

// VerifySnapshot returns an error unless a snapshot of a size ends with the hash of its content.
func VerifySnapshot(ctx context.Context, file io.ReaderAt, size int64) error {
	// Databases consist of pages of at least 512 bytes.
	if size <= sha256.Size || size%512 != sha256.Size {
		return fmt.Errorf("is no complete snapshot of an etcd: it has %d bytes; use a file that `gitopsd etcd snapshot` or `etcdctl snapshot save` made", size)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, canceled{ctx, io.NewSectionReader(file, 0, size-sha256.Size)}); err != nil {
		return err
	}
	want := make([]byte, sha256.Size)
	if _, err := file.ReadAt(want, size-sha256.Size); err != nil {
		return err
	}
	if !bytes.Equal(hash.Sum(nil), want) {
		return errors.New("is garbled: its hash is not that of its content; use another copy")
	}
	return nil
}

// canceled is a reader that ends with a context.
type canceled struct {
	ctx context.Context
	io.Reader
}

func (c canceled) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.Reader.Read(p)
}
