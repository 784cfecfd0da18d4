package xpkg

import (
	"context"
	"errors"
	"io"
	"slices"

	"gitopsd.dev/sources"
)

// Image is a package that is here rather than in a registry: one that Build
// made, in memory, or Open found, in a file. It is a Source, and safe for
// concurrent use.
type Image struct {
	root     sources.Digest
	contents map[sources.Digest]*io.SectionReader
	file     io.Closer // nil in memory
}

// Digest is that of the image's index or manifest: what the package will be
// known by.
func (i *Image) Digest() sources.Digest { return i.root }

// Close closes the file that the image is in, if any.
func (i *Image) Close() error {
	if i.file == nil {
		return nil
	}
	return i.file.Close()
}

func (i *Image) open(d sources.Digest) (*io.SectionReader, error) {
	content, ok := i.contents[d]
	if !ok {
		return nil, bad("%s is not in it", d)
	}
	return io.NewSectionReader(content, 0, content.Size()), nil
}

// Manifest implements Source; the repository does not matter.
func (i *Image) Manifest(_ context.Context, _ string, d sources.Digest) ([]byte, error) {
	r, err := i.open(d)
	if err != nil {
		return nil, err
	}
	if r.Size() > maxConfigBytes {
		return nil, tooMuch("its manifest %s has %d bytes", d, r.Size())
	}
	return io.ReadAll(r)
}

// Blob implements Source; the repository does not matter.
func (i *Image) Blob(_ context.Context, _ string, d sources.Digest, size int64) (io.ReadCloser, error) {
	r, err := i.open(d)
	if err != nil {
		return nil, err
	}
	if r.Size() != size {
		return nil, bad("%s has %d bytes, and its manifest says %d", d, r.Size(), size)
	}
	return io.NopCloser(r), nil
}

// Destination is where packages are pushed to. *oci.Client is one.
type Destination interface {
	// PushBlob uploads a content of a repository; open may be called again
	// for another attempt.
	PushBlob(ctx context.Context, repository string, d sources.Digest, size int64, open func() (io.ReadCloser, error)) error
	// PushManifest stores a manifest under ref's tag, or without one under
	// its digest.
	PushManifest(ctx context.Context, ref sources.Ref, mediaType string, raw []byte) error
}

// Push brings the package in a file to a registry, as Image.Push does, and
// returns its digest.
func Push(ctx context.Context, to Destination, file string, ref sources.Ref) (sources.Digest, error) {
	img, err := Open(file)
	if err != nil {
		return "", err
	}
	defer img.Close()
	err = img.Push(ctx, to, ref)
	if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
		invalid.Package = file
	}
	return img.root, err
}

// Push brings an image to a registry, under ref's tag or, if it has none, its
// digest alone. It reads the package first, and pushes none that Read refuses.
func (i *Image) Push(ctx context.Context, to Destination, ref sources.Ref) error {
	if ref.Digest != "" && ref.Digest != i.root {
		return named(ref.String(), bad("the package to be pushed has digest %s", i.root))
	}
	if _, err := Read(ctx, i, ref.Repository, i.root); err != nil {
		return err
	}
	return named(ref.String(), i.push(ctx, to, sources.Ref{Repository: ref.Repository, Tag: ref.Tag}, i.root))
}

// push brings a manifest after what it names, so that what a tag leads to is
// always complete.
func (i *Image) push(ctx context.Context, to Destination, ref sources.Ref, d sources.Digest) error {
	raw, err := i.Manifest(ctx, ref.Repository, d)
	if err != nil {
		return err
	}
	m, err := parseManifest(raw)
	if err != nil {
		return err
	}
	if m.Manifests != nil {
		for _, child := range *m.Manifests {
			if err := i.push(ctx, to, sources.Ref{Repository: ref.Repository}, child.Digest); err != nil {
				return err
			}
		}
		return to.PushManifest(ctx, ref, mediaTypeOr(m, mediaOCIIndex), raw)
	}
	for _, content := range slices.Concat(m.Layers, []descriptor{*m.Config}) {
		if _, err := i.Blob(ctx, ref.Repository, content.Digest, content.Size); err != nil {
			return err
		}
		err := to.PushBlob(ctx, ref.Repository, content.Digest, content.Size, func() (io.ReadCloser, error) {
			return i.Blob(ctx, ref.Repository, content.Digest, content.Size)
		})
		if err != nil {
			return err
		}
	}
	return to.PushManifest(ctx, ref, mediaTypeOr(m, mediaOCIManifest), raw)
}

func mediaTypeOr(m *manifest, otherwise string) string {
	if m.MediaType != "" {
		return m.MediaType
	}
	return otherwise
}
