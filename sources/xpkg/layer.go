package xpkg

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"gitopsd.dev/sources"
)

// Whiteouts of the OCI image specification (layer.md) are files that remove files of the
// layers below.
const (
	whiteoutPrefix = ".wh."
	whiteoutAll    = ".wh..wh..opq"
)

// content passes the image's package.yaml to consume and returns its digest. The file is
// in the base layer or, without one, in the file system of all layers: in the topmost
// layer with it, unless a layer above removes it.
func (r *reader) content(ctx context.Context, img image, consume func(packageYAML io.Reader) error) (sources.Digest, error) {
	layers := img.layers
	if img.base >= 0 {
		layers = layers[img.base : img.base+1]
	}
	if err := checkLayers(layers); err != nil {
		return "", err
	}
	w := &walk{reader: r, consume: consume, hash: sha256.New()}
	for n := len(layers) - 1; n >= 0; n-- {
		if err := r.layer(ctx, layers[n], w); err != nil {
			return "", err
		}
		if w.found {
			return sources.DigestSum(w.hash), nil
		}
		if w.removed && img.base < 0 {
			return "", bad("its layer %s removes %s, and no layer above it has one", layers[n].Digest, packageFile)
		}
	}
	where := "in the root of its file system"
	if img.base >= 0 {
		where = fmt.Sprintf("in the root of its base layer %s", layers[0].Digest)
	}
	if w.elsewhere != "" {
		return "", bad("there is no %s %s; the one at %.200q does not count", packageFile, where, w.elsewhere)
	}
	return "", bad("there is no %s %s; is it a Crossplane package?", packageFile, where)
}

func checkLayers(layers []descriptor) error {
	for _, l := range layers {
		if !layerTypes[l.MediaType] {
			return bad("its layer %s is %.100q, not a layer of an image", l.Digest, l.MediaType)
		}
	}
	return nil
}

// layer walks a layer and reads it to the end, which verifies the digest. The error of
// reading, for instance about another digest, takes precedence.
func (r *reader) layer(ctx context.Context, l descriptor, w *walk) error {
	if err := r.spend(l.Size); err != nil {
		return err
	}
	blob, err := r.src.Blob(ctx, r.repository, l.Digest, l.Size)
	if err != nil {
		return err
	}
	defer blob.Close()
	err = w.layer(blob)
	if _, err := io.Copy(io.Discard, blob); err != nil {
		return err
	}
	var known *invalid
	if err != nil && !errors.As(err, &known) && !errors.Is(err, sources.ErrNoRoom) {
		return bad("its layer %s cannot be read: %s", l.Digest, shorten(err.Error()))
	}
	return err
}

// walk looks for package.yaml in layers, from the top down.
type walk struct {
	reader  *reader // for its limits
	consume func(io.Reader) error
	hash    hash.Hash

	found     bool
	removed   bool   // from the layers below
	elsewhere string // path of a package.yaml in a directory
}

// layer reads a layer to the end of its archive.
func (w *walk) layer(blob io.Reader) error {
	expanded, closeExpanded, err := expand(blob)
	if err != nil {
		return err
	}
	defer closeExpanded()
	archive := tar.NewReader(&bounded{r: expanded, left: &w.reader.expand})
	foundHere := false
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if w.reader.entries--; w.reader.entries < 0 {
			return tooMuch("its layers have more than %d files", maxTarEntries)
		}
		name, err := entryName(header.Name)
		if err != nil {
			return err
		}
		switch name {
		case packageFile:
			if foundHere {
				return bad("%s is in one layer twice, which readers take for different packages", packageFile)
			}
			foundHere, w.found = true, true
			if err := w.file(header, archive); err != nil {
				return err
			}
		case whiteoutPrefix + packageFile, whiteoutAll:
			w.removed = true
		default:
			if w.elsewhere == "" && path.Base(name) == packageFile {
				w.elsewhere = name
			}
		}
	}
}

// entryName returns an entry's path in the file system, without a leading slash, or "."
// for the root. It refuses paths outside, though nothing is written there.
func entryName(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", bad("its layer has a file %.200q, which leaves the file system", name)
		}
	}
	clean := path.Clean("/" + name)[1:]
	switch clean {
	case packageFile, whiteoutPrefix + packageFile:
		if strings.HasPrefix(name, "/") {
			return "", bad("its layer has %.200q with an absolute path; want %s", name, clean)
		}
	case "":
		clean = "."
	}
	return clean, nil
}

// file passes package.yaml to consume.
func (w *walk) file(header *tar.Header, content io.Reader) error {
	switch {
	case header.Typeflag == tar.TypeSymlink, header.Typeflag == tar.TypeLink:
		return bad("its %s is a link, to %.200q; want a regular file", packageFile, header.Linkname)
	case header.Typeflag != tar.TypeReg:
		return bad("its %s is not a regular file", packageFile)
	case header.Size > maxPackageBytes:
		return tooMuch("its %s has %d bytes, more than %d", packageFile, header.Size, maxPackageBytes)
	}
	content = io.TeeReader(content, w.hash)
	if err := w.consume(content); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, content)
	return err
}

// bounded returns an error if a stream exceeds the package's limit of bytes.
type bounded struct {
	r    io.Reader
	left *int64
}

func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if *b.left -= int64(n); *b.left < 0 {
		return 0, tooMuch("its layers expand to more than %d bytes", int64(maxExpandedBytes))
	}
	return n, err
}

// The first bytes of compressed files.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// expand decompresses a layer by the format that its first bytes show. The caller calls
// the returned function at the end.
func expand(blob io.Reader) (io.Reader, func(), error) {
	in := bufio.NewReaderSize(blob, 128<<10)
	magic, err := in.Peek(4)
	if err != nil && err != io.EOF {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		r, err := gzip.NewReader(in)
		if err != nil {
			return nil, nil, err
		}
		return r, func() { r.Close() }, nil
	case bytes.Equal(magic, zstdMagic):
		r, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return in, func() {}, nil
}
