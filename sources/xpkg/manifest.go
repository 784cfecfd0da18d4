package xpkg

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// Media types of the OCI image specification and of Docker.
const (
	mediaOCIIndex       = "application/vnd.oci.image.index.v1+json"
	mediaOCIManifest    = "application/vnd.oci.image.manifest.v1+json"
	mediaOCIConfig      = "application/vnd.oci.image.config.v1+json"
	mediaOCILayer       = "application/vnd.oci.image.layer.v1.tar"
	mediaOCILayerGzip   = "application/vnd.oci.image.layer.v1.tar+gzip"
	mediaOCILayerZstd   = "application/vnd.oci.image.layer.v1.tar+zstd"
	mediaDockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
	mediaDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	mediaDockerConfig   = "application/vnd.docker.container.image.v1+json"
)

// layerTypes are the media types of layers. The compression is determined by the first
// bytes, as in container runtimes.
var layerTypes = map[string]bool{
	mediaOCILayer:     true,
	mediaOCILayerGzip: true,
	mediaOCILayerZstd: true,
	"application/vnd.oci.image.layer.nondistributable.v1.tar":      true,
	"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip": true,
	"application/vnd.oci.image.layer.nondistributable.v1.tar+zstd": true,
	"application/vnd.docker.image.rootfs.diff.tar":                 true,
	"application/vnd.docker.image.rootfs.diff.tar.gzip":            true,
	"application/vnd.docker.image.rootfs.diff.tar.zstd":            true,
	"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip":    true,
}

// descriptor is the part of an OCI content descriptor that is used here.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      sources.Digest    `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Variant      string `json:"variant,omitempty"`
}

// String returns "os/architecture[/variant]".
func (p platform) String() string {
	if p.Variant == "" {
		return p.OS + "/" + p.Architecture
	}
	return p.OS + "/" + p.Architecture + "/" + p.Variant
}

// manifest is an index or an image manifest.
type manifest struct {
	SchemaVersion int           `json:"schemaVersion"`
	MediaType     string        `json:"mediaType,omitempty"`
	Config        *descriptor   `json:"config,omitempty"`
	Layers        []descriptor  `json:"layers,omitempty"`
	Manifests     *[]descriptor `json:"manifests,omitempty"`
}

// image is one image of a package.
type image struct {
	platform string // os/architecture[/variant]; empty if unknown
	digest   sources.Digest
	layers   []descriptor
	base     int // index of the layer with package.yaml; -1 for the file system of all
	// configuration is the descriptor of a container image's configuration; nil for
	// other types.
	configuration *descriptor
}

func (i image) baseDigest() sources.Digest {
	if i.base < 0 {
		return ""
	}
	return i.layers[i.base].Digest
}

func (i image) sameLayers(j image) bool {
	return i.base == j.base && slices.EqualFunc(i.layers, j.layers, func(a, b descriptor) bool { return a.Digest == b.Digest })
}

// mediaType returns the manifest's media type, which is optional in OCI's manifests.
func (m *manifest) mediaType() string {
	if m.Manifests != nil {
		return cmp.Or(m.MediaType, mediaOCIIndex)
	}
	return cmp.Or(m.MediaType, mediaOCIManifest)
}

// parseManifest reads an index or image manifest strictly. It refuses one that is both,
// or has duplicate keys, since readers take such a manifest for different packages.
func parseManifest(raw []byte) (*manifest, error) {
	var m manifest
	if err := parseJSON(raw, &m); err != nil {
		return nil, bad("its manifest is not valid: %v", err)
	}
	switch {
	case m.SchemaVersion == 1:
		return nil, bad("its manifest is of Docker's schema 1, which registries dropped; push it again with a current tool")
	case m.SchemaVersion != 2:
		return nil, bad("its manifest has schemaVersion %d; want 2", m.SchemaVersion)
	case m.Manifests != nil && (m.Config != nil || len(m.Layers) > 0):
		return nil, bad("its manifest has both layers and manifests, which readers take for different packages")
	}
	switch m.MediaType {
	case "":
	case mediaOCIIndex, mediaDockerIndex:
		if m.Manifests == nil {
			return nil, bad("its media type is that of an index, and it has no manifests")
		}
	case mediaOCIManifest, mediaDockerManifest:
		if m.Manifests != nil {
			return nil, bad("its media type is that of an image, and it has manifests as an index has")
		}
	default:
		return nil, bad("it is %.100q, not an image", m.MediaType)
	}
	if m.Manifests != nil {
		return &m, checkDescriptors("manifest", *m.Manifests, maxIndexManifests)
	}
	if m.Config == nil {
		return nil, bad("its manifest has neither a config nor manifests")
	}
	if err := checkDescriptors("config", []descriptor{*m.Config}, 1); err != nil {
		return nil, err
	}
	return &m, checkDescriptors("layer", m.Layers, maxLayers)
}

func checkDescriptors(what string, list []descriptor, most int) error {
	if len(list) > most {
		return tooMuch("it has %d %ss, more than %d", len(list), what, most)
	}
	for i, d := range list {
		if _, err := sources.ParseDigest(string(d.Digest)); err != nil {
			return bad("its %s %d: %.200v", what, i+1, err)
		}
		if d.Size < 0 {
			return bad("its %s %d has a size of %d", what, i+1, d.Size)
		}
	}
	return nil
}

// images returns the images of a digest, sorted by platform.
func (r *reader) images(ctx context.Context, d sources.Digest) (images []image, isIndex bool, err error) {
	m, err := r.manifest(ctx, d)
	if err != nil {
		return nil, false, err
	}
	if m.Manifests == nil {
		img, err := r.image(ctx, m, d, &platform{})
		return []image{img}, false, err
	}
	children, err := platforms(*m.Manifests)
	if err != nil {
		return nil, true, err
	}
	images = make([]image, len(children))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for i, child := range children {
		group.Go(func() error {
			m, err := r.manifest(ctx, child.Digest)
			if err != nil {
				return err
			}
			if m.Manifests != nil {
				return bad("its index has another index in it (%s); only images are expected there", child.Digest)
			}
			images[i], err = r.image(ctx, m, child.Digest, child.Platform)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, true, err
	}
	slices.SortFunc(images, func(a, b image) int { return cmp.Compare(a.platform, b.platform) })
	for i := 1; i < len(images); i++ {
		if a, b := images[i-1], images[i]; a.platform == b.platform {
			return nil, true, bad("its index has two images for %s (%s and %s), and nothing tells which one to use", a.platform, a.digest, b.digest)
		}
	}
	return images, true, nil
}

func (r *reader) manifest(ctx context.Context, d sources.Digest) (*manifest, error) {
	raw, err := r.src.Manifest(ctx, r.repository, d)
	if err != nil {
		return nil, err
	}
	if err := r.spend(int64(len(raw))); err != nil {
		return nil, err
	}
	return parseManifest(raw)
}

// platforms returns the package's images in an index. It leaves out extensions for other
// consumers, attestations (with platform unknown/unknown), and images without a platform
// if others have one.
func platforms(children []descriptor) ([]descriptor, error) {
	var with, without []descriptor
	for _, c := range children {
		switch {
		case c.Annotations[annotation] == extensionsNode, c.Annotations["vnd.docker.reference.type"] != "":
		case c.Platform == nil || c.Platform.OS == "" && c.Platform.Architecture == "":
			without = append(without, c)
		case c.Platform.OS == "unknown" && c.Platform.Architecture == "unknown":
		default:
			with = append(with, c)
		}
	}
	switch {
	case len(with) > 0:
		return with, nil
	case len(without) == 1:
		return without, nil
	case len(without) > 1:
		return nil, bad("its index has %d images and none says for which platform", len(without))
	}
	return nil, bad("its index has no image")
}

// platformName matches the parts of a platform, which the lock will have.
var platformName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// image reads an image's manifest. It fetches the configuration only if it needs labels,
// because no layer is annotated, or a platform, because p is nil.
func (r *reader) image(ctx context.Context, m *manifest, d sources.Digest, p *platform) (image, error) {
	img := image{digest: d, layers: m.Layers, base: -1}
	if len(m.Layers) == 0 {
		return img, bad("its image %s has no layers", d)
	}
	if err := img.mark(func(l descriptor) string { return l.Annotations[annotation] }); err != nil {
		return img, err
	}
	if m.Config.MediaType == mediaOCIConfig || m.Config.MediaType == mediaDockerConfig {
		img.configuration = m.Config
	}
	if (img.base < 0 || p == nil) && img.configuration != nil {
		config, err := r.config(ctx, *m.Config)
		if err != nil {
			return img, err
		}
		if img.base < 0 {
			err := img.mark(func(l descriptor) string { return config.Config.Labels[annotation+":"+string(l.Digest)] })
			if err != nil {
				return img, err
			}
		}
		if p == nil {
			p = &config.platform
		}
	}
	if p == nil {
		return img, nil
	}
	var err error
	img.platform, err = p.name(d)
	return img, err
}

// name returns "os/architecture[/variant]", or "" if the platform of image d is
// empty.
func (p platform) name(d sources.Digest) (string, error) {
	if p == (platform{}) {
		return "", nil
	}
	parts := []string{p.OS, p.Architecture}
	if p.Variant != "" {
		parts = append(parts, p.Variant)
	}
	for _, part := range parts {
		if !platformName.MatchString(part) {
			return "", bad("its image %s has the platform %.100q, which is not a name", d, part)
		}
	}
	if p.OS == "runtime" {
		return "", bad("its image %s is for the operating system %q, which stands for something else in the lock", d, p.OS)
	}
	return p.String(), nil
}

// mark finds the base layer. Value returns the value of the annotation or label.
func (i *image) mark(value func(descriptor) string) error {
	for n, l := range i.layers {
		if value(l) != baseLayer {
			continue
		}
		if i.base >= 0 {
			return bad("its image %s has two layers marked %s: %s (%s and %s); the specification allows one",
				i.digest, annotation, baseLayer, i.layers[i.base].Digest, l.Digest)
		}
		i.base = n
	}
	return nil
}

// config is the part of an image's configuration that is used here.
type config struct {
	platform
	Config struct {
		Entrypoint []string          `json:"Entrypoint,omitempty"`
		Cmd        []string          `json:"Cmd,omitempty"`
		Labels     map[string]string `json:"Labels,omitempty"`
	} `json:"config"`
	RootFS struct {
		Type    string           `json:"type"`
		DiffIDs []sources.Digest `json:"diff_ids"`
	} `json:"rootfs"`
}

// runnable reports whether any image has a program to run. Nodes do not start an image
// with neither an Entrypoint nor a Cmd.
func (r *reader) runnable(ctx context.Context, images []image) (bool, error) {
	for _, img := range images {
		if img.configuration == nil {
			continue
		}
		c, err := r.config(ctx, *img.configuration)
		if err != nil {
			return false, err
		}
		if len(c.Config.Entrypoint)+len(c.Config.Cmd) > 0 {
			return true, nil
		}
	}
	return false, nil
}

func (r *reader) config(ctx context.Context, d descriptor) (*config, error) {
	if d.Size > maxConfigBytes {
		return nil, tooMuch("its configuration has %d bytes, more than %d", d.Size, maxConfigBytes)
	}
	if err := r.spend(d.Size); err != nil {
		return nil, err
	}
	blob, err := r.src.Blob(ctx, r.repository, d.Digest, d.Size)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	var raw bytes.Buffer
	if _, err := raw.ReadFrom(blob); err != nil {
		return nil, err
	}
	var c config
	if err := parseJSON(raw.Bytes(), &c); err != nil {
		return nil, bad("its configuration is not valid: %v", err)
	}
	return &c, nil
}

// parseJSON decodes a JSON value. It refuses duplicate keys.
func parseJSON(raw []byte, into any) error {
	err := json.Unmarshal(raw, into) // refuses values that are nested too deeply for checkKeys
	if err == nil {
		err = checkKeys(json.NewDecoder(bytes.NewReader(raw)), reflect.TypeOf(into))
	}
	if err != nil {
		return errors.New(shorten(err.Error()))
	}
	return nil
}

// checkKeys returns an error for duplicate keys in the next value, which is decoded into a t;
// t is nil for a value that is not decoded. Keys of structs are compared without case, as
// encoding/json does.
func checkKeys(dec *json.Decoder, t reflect.Type) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	token, err := dec.Token()
	if err != nil {
		return err
	}
	delim, ok := token.(json.Delim)
	if !ok {
		return nil
	}
	seen := make(map[string]bool)
	for dec.More() {
		var key string
		if delim == '{' {
			token, err := dec.Token()
			if err != nil {
				return err
			}
			name, _ := token.(string)
			if key = name; t != nil && t.Kind() == reflect.Struct {
				key = fold(name)
			}
			if seen[key] {
				return errors.New("duplicate key " + name)
			}
			seen[key] = true
		}
		if err := checkKeys(dec, member(t, key)); err != nil {
			return err
		}
	}
	_, err = dec.Token()
	return err
}

// member returns the type that a member of a t is decoded into, nil for none.
func member(t reflect.Type, key string) reflect.Type {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		return t.Elem()
	case reflect.Struct:
		for _, f := range reflect.VisibleFields(t) {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if strings.EqualFold(cmp.Or(tag, f.Name), key) {
				return f.Type
			}
		}
	}
	return nil
}

// fold returns a key without case: each letter is the first in Unicode of those that are
// equal under simple folding.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
			least = min(least, next)
		}
		return least
	}, key)
}

// shorten bounds untrusted text for logs.
func shorten(s string) string {
	const most = 200
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
