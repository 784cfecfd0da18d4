package xpkg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Image is a package on this machine: in memory, from [Build]; in temporary files,
// from [BuildWithRuntime]; or in a file, from [Open]. It is a [Source], and safe for
// concurrent use.
type Image struct {
	root     sources.Digest
	contents map[sources.Digest]*io.SectionReader
	file     io.Closer // nil in memory
	// name has the names of the files that it was opened from, for errors.
	name  string
	alone bool
}

// Digest returns the digest of the image's index or manifest.
func (i *Image) Digest() sources.Digest { return i.root }

// Alone reports whether it is a Provider from [Build] without a controller.
func (i *Image) Alone() bool { return i.alone }

// Close closes the files of the image, if it has any.
func (i *Image) Close() error {
	if i.file == nil {
		return nil
	}
	return i.file.Close()
}

// add stores a content in memory.
func (i *Image) add(content []byte) sources.Digest {
	d := sources.DigestOf(content)
	i.contents[d] = io.NewSectionReader(bytes.NewReader(content), 0, int64(len(content)))
	return d
}

// setIndex makes an index of images, one for each platform, and sets it as the root.
func (i *Image) setIndex(children []descriptor) error {
	slices.SortFunc(children, func(a, b descriptor) int { return cmp.Compare(a.Platform.String(), b.Platform.String()) })
	raw, err := json.Marshal(manifest{SchemaVersion: 2, MediaType: mediaOCIIndex, Manifests: &children})
	if err != nil {
		return err
	}
	i.root = i.add(raw)
	return nil
}

func (i *Image) open(d sources.Digest) (*io.SectionReader, error) {
	content, ok := i.contents[d]
	if !ok {
		return nil, bad("%s is not in it", d)
	}
	return io.NewSectionReader(content, 0, content.Size()), nil
}

// Manifest implements [Source]. It ignores the repository.
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

// Blob implements [Source]. It ignores the repository.
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

// Destination receives packages; *oci.Client is one. Both methods fail if the registry
// cannot be reached or refuses the content.
type Destination interface {
	// PushBlob uploads content to a repository. It calls open for each attempt, and
	// fails if open does.
	PushBlob(ctx context.Context, repository string, d sources.Digest, size int64, open func() (io.ReadCloser, error)) error
	// PushManifest stores a manifest under ref's tag, or without one by its
	// digest.
	PushManifest(ctx context.Context, ref sources.Ref, mediaType string, raw []byte) error
}

// OpenFiles opens package files as one package. Several files must be for different
// platforms, and the package is an index of them. The caller closes it. OpenFiles fails
// as [Open] does, and if two files have a platform in common.
func OpenFiles(ctx context.Context, files []string) (*Image, error) {
	var images closers
	for _, file := range files {
		img, err := Open(file)
		if err != nil {
			return nil, errors.Join(err, images.Close())
		}
		images = append(images, img)
	}
	if len(images) == 1 {
		return images[0], nil
	}
	all, err := bundle(ctx, files, images)
	if err != nil {
		return nil, errors.Join(err, images.Close())
	}
	all.file, all.name = images, strings.Join(files, ", ")
	return all, nil
}

// closers are images that are closed together.
type closers []*Image

func (c closers) Close() error {
	var errs []error
	for _, img := range c {
		errs = append(errs, img.Close())
	}
	return errors.Join(errs...)
}

// Push pushes package files, as [OpenFiles] and [Image.Push] do, and returns the digest.
func Push(ctx context.Context, to Destination, files []string, ref sources.Ref) (sources.Digest, error) {
	img, err := OpenFiles(ctx, files)
	if err != nil {
		return "", err
	}
	defer img.Close()
	return img.root, img.Push(ctx, to, ref)
}

// bundle makes an index of several images. Contents stay where they are.
func bundle(ctx context.Context, files []string, images []*Image) (*Image, error) {
	all := &Image{contents: make(map[sources.Digest]*io.SectionReader)}
	var index []descriptor
	by := make(map[platform]string)
	for n, img := range images {
		children, err := img.children(ctx)
		if err != nil {
			return nil, named(files[n], err)
		}
		for _, c := range children {
			if other, twice := by[*c.Platform]; twice {
				return nil, named(files[n], bad("it is for %s, as %s is; each file must be for another platform", c.Platform, other))
			}
			by[*c.Platform] = files[n]
			index = append(index, c)
		}
		maps.Copy(all.contents, img.contents)
	}
	return all, all.setIndex(index)
}

// children returns the images of an index, or the image itself, with their platforms.
func (i *Image) children(ctx context.Context) ([]descriptor, error) {
	r := newReader(i, "")
	m, err := r.manifest(ctx, i.root)
	if err != nil {
		return nil, err
	}
	list := []descriptor{{MediaType: m.mediaType(), Digest: i.root, Size: i.contents[i.root].Size()}}
	if m.Manifests != nil {
		if list, err = platforms(*m.Manifests); err != nil {
			return nil, err
		}
	}
	for n := range list {
		c := &list[n]
		if c.Platform != nil {
			continue
		}
		if m, err = r.manifest(ctx, c.Digest); err != nil {
			return nil, err
		}
		if m.Config == nil {
			return nil, bad("its index has another index in it (%s); only images are expected there", c.Digest)
		}
		known, err := r.config(ctx, *m.Config)
		if err != nil {
			return nil, err
		}
		if known.OS == "" || known.Architecture == "" {
			return nil, bad("its image %s does not say for which platform it is", c.Digest)
		}
		c.Platform = &known.platform
	}
	return list, nil
}

// Push pushes an image to a registry, under ref's tag, or without one by its digest. It
// reads the package first, and fails as [Read] does if it is not valid. Other errors are
// the Destination's.
func (i *Image) Push(ctx context.Context, to Destination, ref sources.Ref) error {
	err := i.pushValid(ctx, to, ref)
	if invalid, ok := errors.AsType[*InvalidError](err); ok && i.name != "" {
		invalid.Package = i.name
	}
	return err
}

func (i *Image) pushValid(ctx context.Context, to Destination, ref sources.Ref) error {
	if ref.Digest != "" && ref.Digest != i.root {
		return named(ref.String(), bad("the package to be pushed has digest %s", i.root))
	}
	if _, err := Read(ctx, i, ref.Repository, i.root); err != nil {
		return err
	}
	return named(ref.String(), i.push(ctx, to, sources.Ref{Repository: ref.Repository, Tag: ref.Tag}, i.root))
}

// push pushes a manifest after its contents, so that a tag always names a
// complete image.
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
		return to.PushManifest(ctx, ref, m.mediaType(), raw)
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
	return to.PushManifest(ctx, ref, m.mediaType(), raw)
}
