package xpkg

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// A package file (.xpkg) is a tar archive of an image, as "docker save" writes it. It has
// an OCI image layout, and Docker's manifest.json for the same blobs, which Crossplane's
// tools read.
const (
	layoutFile         = "oci-layout"
	layoutIndex        = "index.json"
	layoutBlobs        = "blobs/sha256/"
	dockerManifestFile = "manifest.json"
	layoutVersion      = `{"imageLayoutVersion":"1.0.0"}`

	// maxFileEntries bounds the files in a package file.
	maxFileEntries = 10_000
)

// dockerImage is an entry of manifest.json.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// WriteTo writes the image as a package file. The same image gives the same
// bytes.
func (i *Image) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	archive := tar.NewWriter(counted)
	err := i.writeFiles(archive)
	return counted.n, errors.Join(err, archive.Close())
}

// WriteFile writes the image as a package file of that name, atomically.
func (i *Image) WriteFile(name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	_, err = i.WriteTo(f)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func (i *Image) writeFiles(archive *tar.Writer) error {
	root, ok := i.contents[i.root]
	if !ok {
		return bad("%s is not in it", i.root)
	}
	raw, err := io.ReadAll(io.NewSectionReader(root, 0, root.Size()))
	if err != nil {
		return err
	}
	m, err := parseManifest(raw)
	if err != nil {
		return err
	}
	index, err := json.Marshal(manifest{
		SchemaVersion: 2,
		MediaType:     mediaOCIIndex,
		Manifests:     &[]descriptor{{MediaType: m.mediaType(), Digest: i.root, Size: root.Size()}},
	})
	if err != nil {
		return err
	}
	type small struct {
		name    string
		content []byte
	}
	files := []small{{layoutFile, []byte(layoutVersion)}, {layoutIndex, index}}
	if m.Manifests == nil {
		docker := dockerImage{Config: layoutBlobs + m.Config.Digest.Hex()}
		for _, l := range m.Layers {
			docker.Layers = append(docker.Layers, layoutBlobs+l.Digest.Hex())
		}
		content, err := json.Marshal([]dockerImage{docker})
		if err != nil {
			return err
		}
		files = append(files, small{dockerManifestFile, content})
	}
	for _, f := range files {
		if err := writeFile(archive, f.name, int64(len(f.content)), bytes.NewReader(f.content)); err != nil {
			return err
		}
	}
	for _, d := range slices.Sorted(maps.Keys(i.contents)) {
		content := i.contents[d]
		if err := writeFile(archive, layoutBlobs+d.Hex(), content.Size(), io.NewSectionReader(content, 0, content.Size())); err != nil {
			return err
		}
	}
	return nil
}

func writeFile(archive *tar.Writer, name string, size int64, content io.Reader) error {
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

// Open opens a package file from WriteTo, Crossplane's tools or "docker save". Contents
// stay in the file, and are hashed once, by Open. The caller closes the image. The error
// for a file in another format is an [*InvalidError].
func Open(name string) (*Image, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	img, err := open(f)
	if err != nil {
		f.Close()
		return nil, named(name, err)
	}
	img.file, img.name = f, name
	return img, nil
}

func open(f *os.File) (*Image, error) {
	files, err := listFiles(f)
	if err != nil {
		return nil, err
	}
	img := &Image{contents: make(map[sources.Digest]*io.SectionReader)}
	digests := make(map[string]sources.Digest, len(files))
	for name, content := range files {
		h := sha256.New()
		if _, err := io.Copy(h, io.NewSectionReader(content, 0, content.Size())); err != nil {
			return nil, err
		}
		d := sources.DigestSum(h)
		if claimed, ok := strings.CutPrefix(name, layoutBlobs); ok && claimed != d.Hex() {
			return nil, bad("it is damaged: %.200s has digest %s", name, d)
		}
		digests[name] = d
		if strings.HasPrefix(name, layoutBlobs) {
			img.contents[d] = content
		}
	}
	switch {
	case files[layoutIndex] != nil:
		img.root, err = layoutRoot(files[layoutIndex])
	case files[dockerManifestFile] != nil:
		err = img.fromDocker(files, digests)
	default:
		err = bad("it has neither %s nor %s: it is not an image", layoutIndex, dockerManifestFile)
	}
	if err != nil {
		return nil, err
	}
	if img.contents[img.root] == nil {
		return nil, bad("its manifest %s is not in it", img.root)
	}
	return img, nil
}

// listFiles returns the files in an archive.
func listFiles(f *os.File) (map[string]*io.SectionReader, error) {
	files := make(map[string]*io.SectionReader)
	archive := tar.NewReader(f)
	for {
		header, err := archive.Next()
		if err == io.EOF {
			return files, nil
		}
		if err != nil {
			return nil, bad("it is not a package file (a tar archive of an image): %v", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if len(files) == maxFileEntries {
			return nil, tooMuch("it has more than %d files", maxFileEntries)
		}
		// The reader has not read past the header.
		offset, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		name := path.Clean(header.Name)
		if files[name] != nil {
			return nil, bad("%.200s is in it twice", name)
		}
		files[name] = io.NewSectionReader(f, offset, header.Size)
	}
}

func readSmall(content *io.SectionReader, into any) error {
	if content.Size() > maxConfigBytes {
		return tooMuch("a manifest in it has %d bytes", content.Size())
	}
	raw, err := io.ReadAll(io.NewSectionReader(content, 0, content.Size()))
	if err != nil {
		return err
	}
	if err := parseJSON(raw, into); err != nil {
		return bad("a manifest in it is not valid: %v", err)
	}
	return nil
}

// layoutRoot returns the one image that index.json names.
func layoutRoot(index *io.SectionReader) (sources.Digest, error) {
	var m manifest
	if err := readSmall(index, &m); err != nil {
		return "", err
	}
	if m.Manifests == nil || len(*m.Manifests) != 1 {
		return "", bad("its %s does not name one image", layoutIndex)
	}
	return sources.ParseDigest(string((*m.Manifests)[0].Digest))
}

// fromDocker makes the manifest that Docker's format lacks, with the annotations that
// Crossplane's tools keep in labels.
func (i *Image) fromDocker(files map[string]*io.SectionReader, digests map[string]sources.Digest) error {
	var list []dockerImage
	if err := readSmall(files[dockerManifestFile], &list); err != nil {
		return err
	}
	if len(list) != 1 {
		return bad("it has %d images; want one", len(list))
	}
	configFile := files[path.Clean(list[0].Config)]
	if configFile == nil {
		return bad("its configuration %.200q is not in it", list[0].Config)
	}
	var c config
	if err := readSmall(configFile, &c); err != nil {
		return err
	}
	m := manifest{
		SchemaVersion: 2,
		MediaType:     mediaOCIManifest,
		Config:        &descriptor{MediaType: mediaOCIConfig, Digest: digests[path.Clean(list[0].Config)], Size: configFile.Size()},
	}
	i.contents[m.Config.Digest] = configFile
	for _, name := range list[0].Layers {
		content := files[path.Clean(name)]
		if content == nil {
			return bad("its layer %.200q is not in it", name)
		}
		l := descriptor{MediaType: mediaOCILayer, Digest: digests[path.Clean(name)], Size: content.Size()}
		i.contents[l.Digest] = content
		magic := make([]byte, len(gzipMagic))
		if _, err := content.ReadAt(magic, 0); err == nil && bytes.Equal(magic, gzipMagic) {
			l.MediaType = mediaOCILayerGzip
		}
		if what := c.Config.Labels[fmt.Sprintf("%s:%s", annotation, l.Digest)]; what != "" {
			l.Annotations = map[string]string{annotation: what}
		}
		m.Layers = append(m.Layers, l)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	i.root = i.add(raw)
	return nil
}
