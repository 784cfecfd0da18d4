package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// licenseID is the project's license by its name in SPDX.
	licenseID = "Apache-2.0"
	// user is the user and group of the process. Kubelets verify that a user is not root
	// only if it is a number.
	user = "65532:65532"
	home = "home/nonroot"
)

// image is an index of images for platforms, with their SBOMs.
type image struct {
	index  v1.ImageIndex
	digest v1.Hash
	// sboms has the list of each platform twice, referring to the platform's image and to
	// the index: most tools ask for the referrers of a tag's digest, which is the index's.
	sboms []v1.Image
}

// assemble makes an image of programs that differ only in their platforms.
func assemble(programs []*program) (*image, error) {
	base, err := baseLayer()
	if err != nil {
		return nil, err
	}
	made := &image{index: mutate.IndexMediaType(empty.Index, types.OCIImageIndex)}
	var images []v1.Image
	for _, p := range programs {
		one, err := platformImage(base, p)
		if err != nil {
			return nil, err
		}
		images = append(images, one)
		made.index = mutate.AppendManifests(made.index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{Platform: &p.platform}})
	}
	made.index = mutate.Annotations(made.index, annotations(programs[0])).(v1.ImageIndex)
	if made.digest, err = made.index.Digest(); err != nil {
		return nil, err
	}
	more, err := rootsVersion()
	if err != nil {
		return nil, err
	}
	for i, p := range programs {
		text, err := sbom(p, more)
		if err != nil {
			return nil, err
		}
		for _, subject := range []partial.Describable{images[i], made.index} {
			attached, err := attach(subject, text, p)
			if err != nil {
				return nil, err
			}
			made.sboms = append(made.sboms, attached)
		}
	}
	return made, nil
}

// annotations returns the annotations of an image.
func annotations(p *program) map[string]string {
	said := map[string]string{
		"org.opencontainers.image.title":    p.name(),
		"org.opencontainers.image.licenses": licenseID,
		"org.opencontainers.image.created":  p.committed().Format(time.RFC3339),
	}
	if v := p.version(); v != "" {
		said["org.opencontainers.image.version"] = v
	}
	if revision := p.setting("vcs.revision"); revision != "" {
		said["org.opencontainers.image.revision"] = revision
	}
	return said
}

// platformImage puts a program on top of the base layer.
func platformImage(base v1.Layer, p *program) (v1.Image, error) {
	binary := "usr/local/bin/" + p.name()
	layer, err := newLayer([]entry{
		{name: "usr/", mode: 0o755},
		{name: "usr/local/", mode: 0o755},
		{name: "usr/local/bin/", mode: 0o755},
		{name: binary, mode: 0o755, content: p.content},
	})
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: p.committed()}
	said := annotations(p)
	one, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS: p.platform.OS, Architecture: p.platform.Architecture, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: user, Entrypoint: []string{"/" + binary}, WorkingDir: "/", Labels: said,
			Env: []string{"PATH=/usr/local/bin", "HOME=/" + home},
		},
	})
	if err != nil {
		return nil, err
	}
	one = mutate.ConfigMediaType(mutate.MediaType(one, types.OCIManifestSchema1), types.OCIConfigJSON)
	one, err = mutate.Append(one,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "certificates of authorities, and a user"}},
		mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "go build " + p.info.Path}},
	)
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(one, said).(v1.Image), nil
}

// baseLayer returns a layer with the files that a static program needs.
func baseLayer() (v1.Layer, error) {
	authorities, err := roots()
	if err != nil {
		return nil, err
	}
	return newLayer([]entry{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nnonroot:x:65532:\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/" + home + ":/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: authorities},
		{name: "home/", mode: 0o755},
		{name: home + "/", mode: 0o700, id: 65532},
		{name: "tmp/", mode: 0o1777},
	})
}

// entry is a file, or a directory if the name ends in a slash.
type entry struct {
	name    string
	mode    int64
	id      int // user and group
	content []byte
}

// newLayer returns a layer with these entries, in this order. Their time is the Unix epoch.
func newLayer(entries []entry) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Uid: e.id, Gid: e.id, Size: int64(len(e.content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		h.Typeflag = tar.TypeReg
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9), tarball.WithCompressedCaching)
}

// attach returns a manifest with a program's SBOM that refers to a subject
// (github.com/opencontainers/image-spec, manifest.md, "Guidelines for Artifact Usage").
func attach(subject partial.Describable, text []byte, p *program) (v1.Image, error) {
	to, err := partial.Descriptor(subject)
	if err != nil {
		return nil, err
	}
	to.Platform, to.ArtifactType, to.Annotations = nil, "", nil
	layer := static.NewLayer(text, sbomType)
	content, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	content.Annotations = map[string]string{
		"org.opencontainers.image.title": fmt.Sprintf("%s-%s-%s.cdx.json", p.name(), p.platform.OS, p.platform.Architecture),
	}
	config := []byte("{}")
	digest, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&artifact{config: config, layer: layer, manifest: &v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: sbomType,
		Config:      v1.Descriptor{MediaType: "application/vnd.oci.empty.v1+json", Digest: digest, Size: size},
		Layers:      []v1.Descriptor{*content},
		Subject:     to,
		Annotations: map[string]string{"org.opencontainers.image.created": p.committed().Format(time.RFC3339)},
	}})
}

// artifact is a manifest with one layer. It implements [partial.CompressedImageCore].
type artifact struct {
	manifest *v1.Manifest
	config   []byte
	layer    v1.Layer
}

func (a *artifact) MediaType() (types.MediaType, error) { return a.manifest.MediaType, nil }
func (a *artifact) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a *artifact) RawManifest() ([]byte, error)        { return json.Marshal(a.manifest) }
func (a *artifact) LayerByDigest(d v1.Hash) (partial.CompressedLayer, error) {
	has, err := a.layer.Digest()
	if err != nil {
		return nil, err
	}
	if d != has {
		return nil, fmt.Errorf("%s is not in the artifact, which has %s", d, has)
	}
	return a.layer, nil
}
