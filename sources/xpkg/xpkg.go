// Package xpkg reads and makes Crossplane packages. These are OCI images with a
// package.yaml, as specified in contributing/specifications/xpkg.md of
// github.com/crossplane/crossplane.
//
//   - [Read] reads the package with a digest: manifest.go finds the layers with
//     package.yaml, layer.go extracts it, stream.go decodes it within the memory of
//     memory.go, and lint.go and meta.go check the objects. [Platforms] (platforms.go)
//     lists the platforms of an image.
//   - [Build] (build.go) and [BuildWithRuntime] (embed.go) make a package from a
//     directory, the latter on top of a controller's image. fields.go finds misspelt
//     fields. file.go writes and opens package files, image.go pushes them to a
//     registry.
//
// Bytes come from a [Source] and go to a [Destination]. sources/oci implements both and
// verifies digests. This package opens no connections. Package render interprets the
// objects of a package.
//
// Packages are not trusted. The constants below bound everything, and the errors for
// exceeding them wrap [sources.ErrLimit]. Reading takes the memory of the decoded
// documents and a few megabytes of buffers: neither layers nor package.yaml are in memory
// as a whole.
package xpkg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"

	"gitopsd.dev/sources"
)

// Limits of a package.
const (
	// maxIndexManifests bounds the manifests of an index.
	maxIndexManifests = 256
	// maxLayers bounds the layers of an image; container runtimes stop at 127.
	maxLayers = 512
	// maxFetchedBytes bounds the fetched bytes of a package: manifests,
	// configurations and layers, for all platforms together.
	maxFetchedBytes = 1 << 30
	// maxExpandedBytes bounds the decompressed layers.
	maxExpandedBytes = 4 << 30
	// maxTarEntries bounds the files in layers.
	maxTarEntries = 500_000
	// maxPackageBytes bounds package.yaml; the largest known have some 90 MB.
	maxPackageBytes = 256 << 20
	// maxDocuments bounds the objects in package.yaml.
	maxDocuments = sources.DefaultMaxDocuments
	// maxDocumentBytes bounds one object: the API server accepts 3 MiB.
	maxDocumentBytes = 4 << 20
	// maxDocumentValues and maxPackageValues bound the values in one object and in all,
	// by the number of characters that can separate two. Values behind aliases are
	// counted in addition. 900 CRDs have 1.4 million.
	maxDocumentValues = 500_000
	maxPackageValues  = 10_000_000
	// maxPackageMemory bounds the memory of the decoded objects of one package,
	// in bytes. The largest known takes half of it.
	maxPackageMemory = 256 << 20
	// maxConfigBytes bounds an image's configuration.
	maxConfigBytes = 4 << 20
	// maxWindow bounds the memory that a zstd stream may require.
	maxWindow = 64 << 20
)

const (
	// annotation, on a layer's descriptor, says which consumer the layer is for. In the
	// image's labels ":" and the layer's digest follow. The layer with package.yaml has
	// the value base.
	annotation     = "io.crossplane.xpkg"
	baseLayer      = "base"
	extensionsNode = "xpkg-extensions"
	// packageFile is the file that makes an image a package.
	packageFile = "package.yaml"
)

// Source reads contents by digest; *oci.Client and [*Image] are Sources. Both methods
// fail if the Source does not have the content.
type Source interface {
	// Manifest returns the index or manifest with digest d. It fails for any
	// other bytes.
	Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error)
	// Blob returns the content of size bytes with digest d. Reading to the end
	// fails for any other bytes.
	Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error)
}

// InvalidError is the error for a package that breaks the specification. The
// same digest always gives the same error: its publisher must correct it.
type InvalidError struct {
	// Package is repository@digest, or the package's file. It is empty for a package
	// that is being built; then the problems have the files.
	Package string
	// Problems are sentences, each with its place.
	Problems []string
	// cause is a sentinel such as sources.ErrLimit, or nil.
	cause error
}

// maxProblems bounds the problems in the text of an error.
const maxProblems = 20

func (e *InvalidError) Error() string {
	subject := ""
	if e.Package != "" {
		subject = e.Package + ": "
	}
	if len(e.Problems) == 1 {
		return subject + e.Problems[0]
	}
	listed := e.Problems[:min(len(e.Problems), maxProblems)]
	text := fmt.Sprintf("%s%d problems:\n\t%s", subject, len(e.Problems), strings.Join(listed, "\n\t"))
	if more := len(e.Problems) - len(listed); more > 0 {
		text += fmt.Sprintf("\n\tand %d more", more)
	}
	return text
}

func (e *InvalidError) Unwrap() error { return e.cause }

// Is reports whether target is [sources.ErrUnfit].
func (e *InvalidError) Is(target error) bool { return target == sources.ErrUnfit }

// invalid is an [InvalidError] without its package.
type invalid struct {
	text  string
	cause error
}

func (i *invalid) Error() string { return i.text }

// malformed returns the error for YAML that does not decode.
func malformed(prefix string, err error) error {
	problem := &invalid{text: prefix + shorten(err.Error())}
	if errors.Is(err, sources.ErrLimit) {
		problem.cause = sources.ErrLimit
	}
	return problem
}

func bad(format string, args ...any) error {
	return &invalid{text: fmt.Sprintf(format, args...)}
}

func tooMuch(format string, args ...any) error {
	return &invalid{text: fmt.Sprintf(format, args...), cause: sources.ErrLimit}
}

// Read fetches and parses the package with digest d in a repository: an image,
// or an index with one image for each platform.
//
// The error is an [*InvalidError] for a package that breaks the specification,
// [sources.ErrNoRoom] if there is no memory for it, and the context's if that ended.
// Errors of src are returned unchanged, and take precedence over errors about bytes that
// were not verified.
func Read(ctx context.Context, src Source, repository string, d sources.Digest) (*sources.Package, error) {
	r := newReader(src, repository)
	p, images, err := r.read(ctx, d)
	if err == nil && p.Meta.Kind == sources.Provider && p.Meta.Image == "" {
		p.Runnable, err = r.runnable(ctx, images)
	}
	switch subject := repository + "@" + string(d); {
	case errors.Is(err, sources.ErrNoRoom):
		return nil, fmt.Errorf("%s: %w", subject, err)
	case err != nil:
		return nil, named(subject, err)
	}
	return p, nil
}

// named adds the subject to an error of this package.
func named(subject string, err error) error {
	switch err := err.(type) {
	case *invalid:
		return &InvalidError{Package: subject, Problems: []string{err.text}, cause: err.cause}
	case *InvalidError:
		err.Package = subject
	}
	return err
}

// reader reads one package. Its limits are for the whole package, with all images of an
// index.
type reader struct {
	src        Source
	repository string
	fetch      atomic.Int64 // bytes that may still be fetched
	expand     int64        // bytes that layers may still expand to
	entries    int          // files that may still be in layers
}

func newReader(src Source, repository string) *reader {
	r := &reader{src: src, repository: repository, expand: maxExpandedBytes, entries: maxTarEntries}
	r.fetch.Store(maxFetchedBytes)
	return r
}

// spend subtracts n bytes from the limit of fetched bytes.
func (r *reader) spend(n int64) error {
	if n > maxFetchedBytes || r.fetch.Add(-n) < 0 {
		return tooMuch("its images have more than %d bytes to fetch, for all platforms together", maxFetchedBytes)
	}
	return nil
}

// read returns the package, without Runnable, and its images.
func (r *reader) read(ctx context.Context, d sources.Digest) (*sources.Package, []image, error) {
	images, isIndex, err := r.images(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	if err := sameBase(images); err != nil {
		return nil, nil, err
	}
	// Fetch everything first, and then take memory, since others wait for that.
	others, err := r.otherContents(ctx, images)
	if err != nil {
		return nil, nil, err
	}
	var docs []sources.Document
	var space *share
	content, err := r.content(ctx, images[0], func(packageYAML io.Reader) (err error) {
		if space, err = memory.enter(ctx); err == nil {
			docs, err = decode(packageYAML, space)
		}
		return err
	})
	if space != nil {
		defer space.leave()
	}
	if err != nil {
		return nil, nil, err
	}
	for i, other := range others {
		if other != "" && other != content {
			return nil, nil, bad("its content differs between platforms: %s is %s for %s and %s for %s; "+
				"build all platforms from one %[1]s", packageFile, content, images[0].platform, other, images[i].platform)
		}
	}
	p := &sources.Package{Repository: r.repository, Digest: d, Content: content}
	if isIndex {
		for _, img := range images {
			p.Children = append(p.Children, sources.Child{Platform: img.platform, Digest: img.digest})
		}
	}
	p.Meta, p.Documents, err = lint(docs, func(i int) string {
		return fmt.Sprintf("%s line %d", packageFile, docs[i].Line)
	})
	if err != nil {
		return nil, nil, err
	}
	return p, images, space.keep(p)
}

// sameBase returns an error if the images have different base layers, and so perhaps
// different types.
func sameBase(images []image) error {
	for _, img := range images[1:] {
		if a, b := images[0].baseDigest(), img.baseDigest(); a != "" && b != "" && a != b {
			return bad("its content differs between platforms: the base layer is %s for %s and %s for %s; "+
				"build all platforms from one base layer", a, images[0].platform, b, img.platform)
		}
	}
	return nil
}

// otherContents returns the digests of package.yaml in the images whose layers do not show
// whether it equals the first image's. They are empty for other images.
func (r *reader) otherContents(ctx context.Context, images []image) ([]sources.Digest, error) {
	contents := make([]sources.Digest, len(images))
	for i, img := range images[1:] {
		if img.sameLayers(images[0]) || img.baseDigest() != "" && img.baseDigest() == images[0].baseDigest() {
			continue
		}
		content, err := r.content(ctx, img, func(packageYAML io.Reader) error {
			_, err := io.Copy(io.Discard, packageYAML)
			return err
		})
		if err != nil {
			return nil, err
		}
		contents[i+1] = content
	}
	return contents, nil
}
