package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"sync"

	"gitopsd.dev/sources"
)

// Recorder records which contents are read through its Readers, to write them to a
// [Layout]. It is safe for concurrent use.
type Recorder struct {
	mu        sync.Mutex
	manifests map[located]Reader
	blobs     map[sources.Digest]recordedBlob
	// tags are the resolved tags, artifacts the types of referrers.
	tags      map[sources.Ref]sources.Digest
	artifacts map[located]string
}

// located identifies a content in a repository.
type located struct {
	repository string
	digest     sources.Digest
}

type recordedBlob struct {
	from       Reader
	repository string
	size       int64
}

// NewRecorder returns an empty Recorder.
func NewRecorder() *Recorder {
	return &Recorder{
		manifests: make(map[located]Reader), blobs: make(map[sources.Digest]recordedBlob),
		tags: make(map[sources.Ref]sources.Digest), artifacts: make(map[located]string),
	}
}

// Reader returns a Reader of the same contents as from.
func (r *Recorder) Reader(from Reader) Reader { return recording{from, r} }

type recording struct {
	Reader
	r *Recorder
}

func (c recording) Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error) {
	d, err := c.Reader.Resolve(ctx, ref)
	if err == nil && ref.Digest == "" {
		c.r.mu.Lock()
		c.r.tags[ref] = d
		c.r.mu.Unlock()
	}
	return d, err
}

func (c recording) Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error) {
	raw, err := c.Reader.Manifest(ctx, repository, d)
	if err == nil {
		c.r.mu.Lock()
		c.r.manifests[located{repository, d}] = c.Reader
		c.r.mu.Unlock()
	}
	return raw, err
}

func (c recording) Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error) {
	blob, err := c.Reader.Blob(ctx, repository, d, size)
	if err == nil {
		c.r.mu.Lock()
		c.r.blobs[d] = recordedBlob{c.Reader, repository, size}
		c.r.mu.Unlock()
	}
	return blob, err
}

func (c recording) Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error) {
	found, err := c.Reader.Referrers(ctx, repository, d, artifactType)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	for _, d := range found {
		c.r.artifacts[located{repository, d}] = artifactType
	}
	return found, err
}

// File is a file of a layout.
type File struct {
	// Name is its path in the layout's directory, with slashes.
	Name string
	// Content reads it.
	Content func(ctx context.Context) ([]byte, error)
}

// Owned reports whether a file in a layout's directory may be from [Recorder.Files].
func Owned(name string) bool {
	switch name {
	case layoutFile, indexFile, attributesFile:
		return true
	}
	dir, hex := path.Split(name)
	_, err := sources.ParseDigest("sha256:" + hex)
	return dir == blobDir+"/" && err == nil
}

// attributesFile prevents Git from changing contents, and so digests: line endings, filters such as
// Git LFS, and $Id$.
const (
	attributesFile = ".gitattributes"
	attributes     = "* -text -filter -ident\n"
)

// Files returns the files of a layout with everything that was read, in the order to
// write them in: the index comes last, after everything that it names. It fails if a
// content cannot be read again, or has more than limit bytes.
func (r *Recorder) Files(ctx context.Context, limit int64) ([]File, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	contents := make(map[sources.Digest]func(context.Context) ([]byte, error))
	raws := make(map[located][]byte)
	inner := make(map[sources.Digest]bool) // the children of indexes
	for l, from := range r.manifests {
		raw, err := from.Manifest(ctx, l.repository, l.digest)
		if err != nil {
			return nil, err
		}
		raws[l] = raw
		contents[l.digest] = func(context.Context) ([]byte, error) { return raw, nil }
		var index struct {
			Manifests []struct {
				Digest sources.Digest `json:"digest"`
			} `json:"manifests"`
		}
		_ = json.Unmarshal(raw, &index) // readers have checked it
		for _, m := range index.Manifests {
			inner[m.Digest] = true
		}
	}
	for d, b := range r.blobs {
		if b.size > limit {
			return nil, fmt.Errorf("%s@%s has %d MiB, and a file of a fleet repository may have %d MiB: %w", b.repository, d, b.size>>20, limit>>20, sources.ErrLimit)
		}
		contents[d] = func(ctx context.Context) ([]byte, error) {
			blob, err := b.from.Blob(ctx, b.repository, d, b.size)
			if err != nil {
				return nil, err
			}
			defer blob.Close()
			return io.ReadAll(blob)
		}
	}
	var roots []layoutDescriptor
	add := func(name string, l located) {
		raw, read := raws[l]
		if !read {
			return // not needed
		}
		var manifest struct {
			MediaType string `json:"mediaType"`
		}
		_ = json.Unmarshal(raw, &manifest)
		if manifest.MediaType == "" { // optional in OCI's manifests
			manifest.MediaType = "application/vnd.oci.image.manifest.v1+json"
		}
		roots = append(roots, layoutDescriptor{
			MediaType: manifest.MediaType, ArtifactType: r.artifacts[l], Digest: l.digest, Size: int64(len(raw)),
			Annotations: map[string]string{refName: name},
		})
	}
	tagged := make(map[located]bool)
	for ref, d := range r.tags {
		l := located{ref.Repository, d}
		tagged[l] = true
		add(ref.String(), l)
	}
	for l := range r.manifests {
		if !inner[l.digest] && !tagged[l] {
			add(l.repository+"@"+string(l.digest), l)
		}
	}
	index, err := formatIndex(roots)
	if err != nil {
		return nil, err
	}
	text := func(s string) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) { return []byte(s), nil }
	}
	files := []File{{attributesFile, text(attributes)}, {layoutFile, text(layoutVersion)}}
	for d, content := range contents {
		files = append(files, File{blobDir + "/" + d.Hex(), content})
	}
	return append(files, File{indexFile, text(string(index))}), nil
}
