package oci

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Reader reads packages and their signatures. The errors of its methods are an [*Error],
// or a [*MismatchError] for content without the requested digest.
type Reader interface {
	// Resolve returns the digest of a reference's tag, or the reference's own.
	Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error)
	// Manifest returns the index or manifest with digest d.
	Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error)
	// Blob returns the content of size bytes with digest d. Reading to the end
	// fails for any other bytes.
	Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error)
	// Referrers returns the manifests of a type that refer to a digest.
	Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error)
	// Tags returns the tags of a repository.
	Tags(ctx context.Context, repository string) ([]string, error)
}

var (
	_ Reader = (*Client)(nil)
	_ Reader = (*Layout)(nil)
	_ Reader = recording{}
)

// Layout reads contents from a directory, an OCI image layout
// (github.com/opencontainers/image-spec, image-layout.md) made by [Recorder.Files].
// It asks no registry: the error for contents that it lacks is [sources.ErrUnasked].
// Everything is hashed when it is read.
//
// The index has a manifest for each name, which is in the annotation
// org.opencontainers.image.ref.name: "repository@digest" for a package, an image's
// index or a Sigstore bundle, "repository:tag" for cosign's signatures.
type Layout struct {
	files fs.FS
	dir   string
	index layoutIndex
	// fault is why nothing can be read; nil if the layout is valid.
	fault *problem
}

// layoutIndex is index.json.
type layoutIndex struct {
	SchemaVersion int                `json:"schemaVersion"`
	MediaType     string             `json:"mediaType"`
	Manifests     []layoutDescriptor `json:"manifests"`
}

type layoutDescriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Digest       sources.Digest    `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations"`
}

func (d layoutDescriptor) name() string { return d.Annotations[refName] }

const (
	refName       = "org.opencontainers.image.ref.name"
	indexType     = "application/vnd.oci.image.index.v1+json"
	layoutVersion = `{"imageLayoutVersion":"1.0.0"}` + "\n"
	layoutFile    = "oci-layout"
	indexFile     = "index.json"
	blobDir       = "blobs/sha256"
	// maxLayoutIndexBytes bounds index.json.
	maxLayoutIndexBytes = 16 << 20
)

// evidenceTag matches the tags of cosign's signatures. Unlike other tags, one that is not
// in a layout does not exist.
var evidenceTag = regexp.MustCompile(`^sha256-[0-9a-f]{64}(\.[a-z]+)?$`)

// OpenLayout returns the layout in a directory of a fleet repository. If there is no valid
// one, the methods of the Layout return errors that say so, since not everything in a fleet
// needs packages.
func OpenLayout(files fs.FS, dir string) *Layout {
	l := &Layout{files: files, dir: dir}
	switch err := l.readIndex(); {
	case errors.Is(err, fs.ErrNotExist):
		l.fault = &problem{Unasked, fmt.Sprintf("there are no packages in %s, and no registry is asked; run `gitopsd lock vendor %s` where they can be, and commit the directory", dir, dir)}
	case err != nil:
		l.fault = &problem{Malformed, fmt.Sprintf("%s is not as `gitopsd lock vendor` writes it: %v; run that again", dir, err)}
	}
	return l
}

func (l *Layout) readIndex() error {
	marker, err := readFile(l.files, path.Join(l.dir, layoutFile), maxManifestBytes)
	if err != nil {
		return err
	}
	if !strings.Contains(string(marker), `"1.0.0"`) {
		return fmt.Errorf("%s is of an unknown version", layoutFile)
	}
	text, err := readFile(l.files, path.Join(l.dir, indexFile), maxLayoutIndexBytes)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &l.index); err != nil {
		return fmt.Errorf("%s: %w", indexFile, err)
	}
	for _, m := range l.index.Manifests {
		if _, err := sources.ParseDigest(string(m.Digest)); err != nil {
			return fmt.Errorf("%s: %w", indexFile, err)
		}
	}
	return nil
}

// check returns the layout's fault, if any, as an error about subject.
func (l *Layout) check(subject string) error {
	if l.fault == nil {
		return nil
	}
	return &Error{Subject: subject, Reason: l.fault.reason, Text: l.fault.text}
}

func readFile(files fs.FS, name string, limit int64) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = fmt.Errorf("%s: more than %d bytes: %w", name, limit, sources.ErrLimit)
	}
	return content, err
}

// Resolve implements [Reader]. It only knows the tags of signatures.
func (l *Layout) Resolve(_ context.Context, ref sources.Ref) (sources.Digest, error) {
	if ref.Digest != "" {
		return ref.Digest, nil
	}
	if err := l.check(ref.String()); err != nil {
		return "", err
	}
	for _, m := range l.index.Manifests {
		if m.name() == ref.String() {
			return m.Digest, nil
		}
	}
	if evidenceTag.MatchString(ref.Tag) {
		return "", &Error{Subject: ref.String(), Reason: NotFound, Text: l.dir + " has no such tag"}
	}
	return "", l.unasked(ref.String(), "what a tag names")
}

func (l *Layout) unasked(subject, what string) error {
	return &Error{Subject: subject, Reason: Unasked, Text: fmt.Sprintf("%s is not in %s, and no registry is asked; run `gitopsd lock` and `gitopsd lock vendor %s` where they can be", what, l.dir, l.dir)}
}

// Tags implements [Reader]. It always fails.
func (l *Layout) Tags(_ context.Context, repository string) ([]string, error) {
	return nil, cmp.Or(l.check(repository), l.unasked(repository, "the list of tags"))
}

// Manifest implements [Reader].
func (l *Layout) Manifest(_ context.Context, repository string, d sources.Digest) ([]byte, error) {
	subject := repository + "@" + string(d)
	f, err := l.open(subject, d)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
	if err != nil {
		return nil, l.broken(subject, err)
	}
	if seen := sources.DigestOf(raw); seen != d {
		return nil, l.mismatch(raw, &MismatchError{Subject: subject, Registry: l.dir, Want: d, Seen: seen, WantSize: -1, SeenSize: int64(len(raw))})
	}
	return raw, nil
}

// lfsPointer begins the files that Git LFS commits in the place of others
// (github.com/git-lfs/git-lfs, docs/spec.md).
const lfsPointer = "version https://git-lfs.github.com/spec/"

// mismatch returns the error for other content, which begins with start.
func (l *Layout) mismatch(start []byte, err *MismatchError) error {
	if !bytes.HasPrefix(start, []byte(lfsPointer)) {
		return err
	}
	return &Error{Subject: err.Subject, Reason: Malformed, Text: fmt.Sprintf("%s has a pointer of Git LFS in its place; run `gitopsd lock vendor %[1]s`, which turns LFS off there, and commit; then `git add --renormalize %[1]s`, and commit again", l.dir)}
}

func (l *Layout) open(subject string, d sources.Digest) (fs.File, error) {
	if err := l.check(subject); err != nil {
		return nil, err
	}
	if _, err := sources.ParseDigest(string(d)); err != nil {
		return nil, &Error{Subject: subject, Reason: Malformed, Text: err.Error()}
	}
	f, err := l.files.Open(path.Join(l.dir, blobDir, d.Hex()))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, l.unasked(subject, "it")
	case err != nil:
		return nil, l.broken(subject, err)
	}
	return f, nil
}

func (l *Layout) broken(subject string, err error) error {
	return &Error{Subject: subject, Reason: Malformed, Text: fmt.Sprintf("it cannot be read from %s: %v", l.dir, err)}
}

// Blob implements [Reader].
func (l *Layout) Blob(_ context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error) {
	subject := repository + "@" + string(d)
	f, err := l.open(subject, d)
	if err != nil {
		return nil, err
	}
	return &layoutBlob{layout: l, subject: subject, want: d, size: size, f: f, hash: sha256.New()}, nil
}

// layoutBlob verifies a file while it is read.
type layoutBlob struct {
	layout  *Layout
	subject string
	want    sources.Digest
	size, n int64
	f       fs.File
	hash    hash.Hash
	// start are the first bytes that were read, as many as an lfsPointer has.
	start []byte
}

// Read implements io.Reader. It returns io.EOF only after bytes with the digest.
func (b *layoutBlob) Read(p []byte) (int, error) {
	n, err := b.f.Read(p)
	b.hash.Write(p[:n])
	b.n += int64(n)
	b.start = append(b.start, p[:min(n, len(lfsPointer)-len(b.start))]...)
	mismatch := &MismatchError{Subject: b.subject, Registry: b.layout.dir, Want: b.want, WantSize: b.size, SeenSize: b.n}
	switch {
	case b.n > b.size:
		return 0, b.layout.mismatch(b.start, mismatch)
	case err == io.EOF && b.n == b.size:
		if mismatch.Seen = sources.DigestSum(b.hash); mismatch.Seen == b.want {
			return n, io.EOF
		}
		return 0, b.layout.mismatch(b.start, mismatch)
	case err == io.EOF:
		return 0, b.layout.mismatch(b.start, mismatch)
	case err != nil:
		return 0, b.layout.broken(b.subject, err)
	}
	return n, nil
}

func (b *layoutBlob) Close() error { return b.f.Close() }

// Referrers implements [Reader], for the types that the [Recorder] saw.
func (l *Layout) Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error) {
	if err := l.check(repository + "@" + string(d)); err != nil {
		return nil, err
	}
	var found []sources.Digest
	for _, m := range l.index.Manifests {
		if m.ArtifactType != artifactType || m.name() != repository+"@"+string(m.Digest) {
			continue
		}
		raw, err := l.Manifest(ctx, repository, m.Digest)
		if err != nil {
			return nil, err
		}
		var manifest struct {
			Subject struct {
				Digest sources.Digest `json:"digest"`
			} `json:"subject"`
		}
		if json.Unmarshal(raw, &manifest) == nil && manifest.Subject.Digest == d {
			found = append(found, m.Digest)
		}
	}
	return found, nil
}

// formatIndex returns index.json with descriptors, sorted by name and without
// duplicates, so that equal contents have equal bytes.
func formatIndex(all []layoutDescriptor) ([]byte, error) {
	slices.SortFunc(all, func(a, b layoutDescriptor) int {
		return cmp.Or(cmp.Compare(a.name(), b.name()), cmp.Compare(a.Digest, b.Digest))
	})
	all = slices.CompactFunc(all, func(a, b layoutDescriptor) bool { return a.name() == b.name() && a.Digest == b.Digest })
	text, err := json.MarshalIndent(layoutIndex{SchemaVersion: 2, MediaType: indexType, Manifests: all}, "", "  ")
	return append(text, '\n'), err
}
