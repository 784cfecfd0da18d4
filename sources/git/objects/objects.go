// Package objects reads and makes Git objects, independent of their storage:
// it returns commits as [sources.Commit], and trees as a read-only file system
// (files.go), replaces a file in a tree (tree.go), and makes packs of new objects.
//
// sources/git/store stores fetched objects; sources/git reads the objects of a
// repository on disk.
package objects

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"gitopsd.dev/sources"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"
)

// MaxFile is the largest file that is read from a repository, in bytes. It is the limit
// for trees and commits too.
const MaxFile = 64 << 20

// Reader reads objects by hash. It is safe for concurrent use. Both methods fail if an
// object is missing or damaged.
type Reader interface {
	// Read returns the content of an object, verified by its hash. The caller may
	// change it. Read fails if the object is not of type t. The error is
	// [sources.ErrLimit] for more than [MaxFile] bytes.
	Read(t plumbing.ObjectType, h plumbing.Hash) ([]byte, error)
	// Size returns the size of a blob in bytes.
	Size(h plumbing.Hash) (int64, error)
}

// TooLarge returns the error for an object of more than [MaxFile] bytes.
func TooLarge(size int64) error {
	return fmt.Errorf("%.1f MiB is more than the %d MiB allowed for a file: %w", float64(size)/(1<<20), MaxFile>>20, sources.ErrLimit)
}

// Check fails if content does not have the hash h.
func Check(t plumbing.ObjectType, h plumbing.Hash, content []byte) error {
	if have := plumbing.ComputeHash(t, content); have != h {
		return fmt.Errorf("the content of %s %s has the hash %s", t, h, have)
	}
	return nil
}

// Raw is an object that is not written yet.
type Raw struct {
	Type    plumbing.ObjectType
	Hash    plumbing.Hash
	Content []byte
}

// NewRaw returns an object with its hash.
func NewRaw(t plumbing.ObjectType, content []byte) Raw {
	return Raw{Type: t, Hash: plumbing.ComputeHash(t, content), Content: content}
}

// encoded returns the object in go-git's form.
func (o Raw) encoded() plumbing.EncodedObject {
	obj := new(plumbing.MemoryObject)
	obj.SetType(o.Type)
	obj.Write(o.Content) // cannot fail
	return obj
}

// maxHeaders bounds the headers of a commit in bytes. Signatures, and the signed tags that were
// merged, have some thousand. The time to decode a header grows with the square of its lines, and
// decoding cannot be stopped.
const maxHeaders = 64 << 10

// ReadCommit reads a commit object, but not its tree.
func ReadCommit(r Reader, h plumbing.Hash) (*object.Commit, error) {
	content, err := r.Read(plumbing.CommitObject, h)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	if headers, _, _ := bytes.Cut(content, []byte("\n\n")); len(headers) > maxHeaders {
		return nil, fmt.Errorf("commit %s: its headers have %d bytes, more than %d", h, len(headers), maxHeaders)
	}
	c := new(object.Commit)
	if err := c.Decode(Raw{Type: plumbing.CommitObject, Content: content}.encoded()); err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	return c, nil
}

// NewCommit returns a commit with its files.
func NewCommit(r Reader, c *object.Commit) sources.Commit {
	subject, _, _ := strings.Cut(strings.TrimSpace(c.Message), "\n")
	return sources.Commit{
		Hash:    c.Hash.String(),
		Subject: subject,
		Author:  fmt.Sprintf("%s <%s>", c.Author.Name, c.Author.Email),
		Time:    c.Committer.When,
		Files:   newFiles(r, c.TreeHash, c.Committer.When),
	}
}

// EncodeCommit makes a commit object, dated now.
func EncodeCommit(name, mail, message string, tree plumbing.Hash, parents ...plumbing.Hash) (Raw, error) {
	who := object.Signature{Name: name, Email: mail, When: time.Now().UTC().Truncate(time.Second)}
	if !strings.HasSuffix(message, "\n") {
		message += "\n"
	}
	c := object.Commit{Author: who, Committer: who, Message: message, TreeHash: tree, ParentHashes: parents}
	obj := new(plumbing.MemoryObject)
	if err := c.Encode(obj); err != nil {
		return Raw{}, err
	}
	content, err := ReadAll(obj)
	return NewRaw(plumbing.CommitObject, content), err
}

// ReadAll returns a copy of an object's content.
func ReadAll(obj plumbing.EncodedObject) ([]byte, error) {
	r, err := obj.Reader()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	buf := make([]byte, obj.Size())
	_, err = io.ReadFull(r, buf)
	return buf, err
}

// EncodePack makes a pack of objects, without deltas: a push has only a file, the trees
// above it and a commit.
func EncodePack(list []Raw) ([]byte, error) {
	storage := memory.NewStorage()
	hashes := make([]plumbing.Hash, 0, len(list))
	for _, obj := range list {
		h, err := storage.SetEncodedObject(obj.encoded())
		if err != nil {
			return nil, err
		}
		hashes = append(hashes, h)
	}
	var buf bytes.Buffer
	if _, err := packfile.NewEncoder(&buf, storage, false).Encode(hashes, 0); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
