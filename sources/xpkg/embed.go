package xpkg

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Runtime is the image of a package's controller, or an index with one for each
// platform.
type Runtime struct {
	// Source has the image. It is an *oci.Client, or an [*Image] from [Open].
	Source Source
	// Repository of the image; an *Image ignores it.
	Repository string
	Digest     sources.Digest
}

// BuildWithRuntime makes a package as [Build] does, with its layer on top of its
// controller's image, as Crossplane's tools publish Providers and Functions. For an index
// it makes a package for each platform. The contents are in the system's temporary
// directory until the caller closes the image. It fails as Build does, with errors of the
// Source, and with an [*InvalidError] for a runtime that is not an image, or that has no
// program to run.
//
// Uncompressed layers of the runtime are compressed. Other layers, its entrypoint, user
// and environment stay as they are.
func BuildWithRuntime(ctx context.Context, dir fs.FS, runtime Runtime, check Check) (*Image, error) {
	stream, meta, err := packageStream(dir, check)
	if err != nil {
		return nil, named("", err)
	}
	switch {
	case meta.Kind == sources.Configuration:
		return nil, named("", bad("a Configuration has no controller, and so no runtime image"))
	case meta.Image != "":
		return nil, named("", bad("its metadata names the image %s, which would run instead of the one in the package; remove it", meta.Image))
	}
	e := embedder{ctx: ctx, runtime: newReader(runtime.Source, runtime.Repository)}
	if e.spool, err = os.MkdirTemp("", "gitopsd-package-"); err != nil {
		return nil, err
	}
	img, err := e.embed(stream, runtime.Digest)
	if err == nil {
		var built *sources.Package
		if built, err = Read(ctx, img, "", img.root); err == nil && meta.Kind == sources.Provider && !built.Runnable {
			err = bad("it has neither an entrypoint nor a command, so that no node could start it; name the image that the controller was built as")
		}
	}
	if err != nil {
		return nil, errors.Join(named("runtime image "+string(runtime.Digest), err), e.Close())
	}
	return img, nil
}

// embedder puts a package on top of runtime images.
type embedder struct {
	ctx     context.Context
	runtime *reader
	// spool is the directory of the contents in files.
	spool string
	files []*os.File
	image *Image
	base  layer
}

// Close removes the contents.
func (e *embedder) Close() error {
	var errs []error
	for _, f := range e.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(e.spool))...)
}

func (e *embedder) embed(stream []byte, runtime sources.Digest) (*Image, error) {
	var err error
	if e.base, err = newLayer(stream); err != nil {
		return nil, err
	}
	e.image = &Image{contents: make(map[sources.Digest]*io.SectionReader), file: e}
	e.image.add(e.base.compressed)
	m, err := e.runtime.manifest(e.ctx, runtime)
	if err != nil {
		return nil, err
	}
	if m.Manifests == nil {
		d, _, err := e.child(m, runtime)
		if err != nil {
			return nil, err
		}
		e.image.root = d.Digest
		return e.image, nil
	}
	children, err := platforms(*m.Manifests)
	if err != nil {
		return nil, err
	}
	var index []descriptor
	for _, c := range children {
		m, err := e.runtime.manifest(e.ctx, c.Digest)
		if err != nil {
			return nil, err
		}
		d, own, err := e.child(m, c.Digest)
		if err != nil {
			return nil, err
		}
		if d.Platform = c.Platform; d.Platform == nil {
			d.Platform = own
		}
		index = append(index, d)
	}
	return e.image, e.image.setIndex(index)
}

// child makes the package's image for one platform, and returns its descriptor
// and the platform in its configuration.
func (e *embedder) child(m *manifest, d sources.Digest) (descriptor, *platform, error) {
	none := descriptor{}
	if m.Manifests != nil || m.Config.MediaType != mediaOCIConfig && m.Config.MediaType != mediaDockerConfig {
		return none, nil, bad("%s is not a container image", d)
	}
	c, own, err := e.config(*m.Config)
	if err != nil {
		return none, nil, err
	}
	out := manifest{SchemaVersion: 2, MediaType: mediaOCIManifest}
	for _, l := range m.Layers {
		if l.Annotations[annotation] == baseLayer {
			return none, nil, bad("%s is a package already; name the image that its controller was built as", d)
		}
		spooled, err := e.layer(l)
		if err != nil {
			return none, nil, err
		}
		out.Layers = append(out.Layers, spooled)
	}
	out.Layers = append(out.Layers, e.base.descriptor())
	configuration, err := json.Marshal(c)
	if err != nil {
		return none, nil, err
	}
	out.Config = &descriptor{MediaType: mediaOCIConfig, Digest: e.image.add(configuration), Size: int64(len(configuration))}
	raw, err := json.Marshal(out)
	if err != nil {
		return none, nil, err
	}
	return descriptor{MediaType: mediaOCIManifest, Digest: e.image.add(raw), Size: int64(len(raw))}, own, nil
}

// config returns a runtime's configuration with the package's layer added. Other fields
// stay as they are.
func (e *embedder) config(d descriptor) (map[string]any, *platform, error) {
	known, err := e.runtime.config(e.ctx, d)
	if err != nil {
		return nil, nil, err
	}
	for label, what := range known.Config.Labels {
		if strings.HasPrefix(label, annotation+":") && what == baseLayer {
			return nil, nil, bad("it is a package already; name the image that its controller was built as")
		}
	}
	blob, err := e.runtime.src.Blob(e.ctx, e.runtime.repository, d.Digest, d.Size)
	if err != nil {
		return nil, nil, err
	}
	defer blob.Close()
	dec := json.NewDecoder(blob)
	dec.UseNumber() // as it was written
	var c map[string]any
	if err := dec.Decode(&c); err != nil {
		return nil, nil, bad("its configuration is not valid: %v", err)
	}
	settings := mapping(c, "config")
	mapping(settings, "Labels")[annotation+":"+string(e.base.digest)] = baseLayer
	rootfs := mapping(c, "rootfs")
	diffs, _ := rootfs["diff_ids"].([]any)
	rootfs["diff_ids"] = append(slices.Clone(diffs), string(e.base.diffID))
	if history, ok := c["history"].([]any); ok {
		c["history"] = append(slices.Clone(history), map[string]any{"created_by": "gitopsd package build"})
	}
	return c, &known.platform, nil
}

// mapping returns the mapping under a key, and adds it if there is none.
func mapping(m map[string]any, key string) map[string]any {
	o, ok := m[key].(map[string]any)
	if !ok {
		o = make(map[string]any)
		m[key] = o
	}
	return o
}

// layer copies a layer of the runtime, compressed.
func (e *embedder) layer(l descriptor) (descriptor, error) {
	if !layerTypes[l.MediaType] {
		return l, bad("its layer %s is %.100q, not a file system", l.Digest, l.MediaType)
	}
	if l.Size > maxFetchedBytes {
		return l, tooMuch("its layer %s has %d bytes, more than %d", l.Digest, l.Size, maxFetchedBytes)
	}
	blob, err := e.runtime.src.Blob(e.ctx, e.runtime.repository, l.Digest, l.Size)
	if err != nil {
		return l, err
	}
	defer blob.Close()
	f, err := os.CreateTemp(e.spool, "layer-")
	if err != nil {
		return l, err
	}
	e.files = append(e.files, f)
	h := sha256.New()
	to := &counter{w: io.MultiWriter(f, h)}
	var magic [4]byte
	n, err := io.ReadFull(blob, magic[:])
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return l, err
	}
	start := magic[:n]
	from := io.MultiReader(bytes.NewReader(start), blob)
	mediaType := mediaOCILayerGzip
	switch {
	case bytes.HasPrefix(start, zstdMagic):
		mediaType = mediaOCILayerZstd
		_, err = io.Copy(to, from)
	case bytes.HasPrefix(start, gzipMagic):
		_, err = io.Copy(to, from)
	default:
		compressed := gzip.NewWriter(to)
		_, err = io.Copy(compressed, from)
		err = errors.Join(err, compressed.Close())
	}
	if err != nil {
		return l, err
	}
	d := sources.DigestSum(h)
	e.image.contents[d] = io.NewSectionReader(f, 0, to.n)
	return descriptor{MediaType: mediaType, Digest: d, Size: to.n}, nil
}
