package git

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

// MaxFile is the largest file that is read from a repository, in bytes. It holds
// for trees and commits too.
const MaxFile = 64 << 20

// objects reads objects by name. What it returns has the hash that it was asked
// for. It is safe for concurrent use.
type objects interface {
	// read returns the content of an object of type t and at most MaxFile
	// bytes. It may be changed by the caller.
	read(t plumbing.ObjectType, h plumbing.Hash) ([]byte, error)
	// size returns how long the content of a blob is.
	size(h plumbing.Hash) (int64, error)
}

// errTooLarge is the error for an object of more than MaxFile bytes.
func errTooLarge(size int64) error {
	return fmt.Errorf("%.1f MiB are more than the %d MiB that are read of one file: %w", float64(size)/(1<<20), MaxFile>>20, sources.ErrLimit)
}

// checkHash makes sure that content is what its name says.
func checkHash(t plumbing.ObjectType, h plumbing.Hash, content []byte) error {
	if have := plumbing.ComputeHash(t, content); have != h {
		return fmt.Errorf("the content of %s %s has the hash %s", t, h, have)
	}
	return nil
}

// rawObject is an object that is not written yet.
type rawObject struct {
	typ     plumbing.ObjectType
	hash    plumbing.Hash
	content []byte
}

func newRawObject(t plumbing.ObjectType, content []byte) rawObject {
	return rawObject{typ: t, hash: plumbing.ComputeHash(t, content), content: content}
}

// encoded is the object in go-git's form.
func (o rawObject) encoded() plumbing.EncodedObject {
	obj := new(plumbing.MemoryObject)
	obj.SetType(o.typ)
	obj.Write(o.content) // cannot fail
	return obj
}

// readCommit reads a commit object; its tree is not looked at.
func readCommit(o objects, h plumbing.Hash) (*object.Commit, error) {
	content, err := o.read(plumbing.CommitObject, h)
	if err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	c := new(object.Commit)
	if err := c.Decode(rawObject{typ: plumbing.CommitObject, content: content}.encoded()); err != nil {
		return nil, fmt.Errorf("commit %s: %w", h, err)
	}
	return c, nil
}

// newCommit returns a commit in this project's vocabulary.
func newCommit(o objects, c *object.Commit) sources.Commit {
	subject, _, _ := strings.Cut(strings.TrimSpace(c.Message), "\n")
	return sources.Commit{
		Hash:    c.Hash.String(),
		Subject: subject,
		Author:  fmt.Sprintf("%s <%s>", c.Author.Name, c.Author.Email),
		Time:    c.Committer.When,
		Files:   newFiles(o, c.TreeHash, c.Committer.When),
	}
}

// encodeCommit makes a commit object, dated now.
func encodeCommit(name, mail, message string, tree plumbing.Hash, parents ...plumbing.Hash) (rawObject, error) {
	who := object.Signature{Name: name, Email: mail, When: time.Now().UTC().Truncate(time.Second)}
	if !strings.HasSuffix(message, "\n") {
		message += "\n"
	}
	c := object.Commit{Author: who, Committer: who, Message: message, TreeHash: tree, ParentHashes: parents}
	obj := new(plumbing.MemoryObject)
	if err := c.Encode(obj); err != nil {
		return rawObject{}, err
	}
	content, err := readAll(obj)
	return newRawObject(plumbing.CommitObject, content), err
}

// readAll returns a copy of an object's content.
func readAll(obj plumbing.EncodedObject) ([]byte, error) {
	r, err := obj.Reader()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	buf := make([]byte, obj.Size())
	_, err = io.ReadFull(r, buf)
	return buf, err
}

// encodePack makes a pack of objects, without deltas: what is sent is one file,
// the trees above it and a commit.
func encodePack(list []rawObject) ([]byte, error) {
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
