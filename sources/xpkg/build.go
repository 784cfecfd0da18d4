package xpkg

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
)

// Check returns what is wrong with an object that a package is to hold: texts that begin with
// the field.
type Check func(tree map[string]any) []string

// Build makes a package from a directory of YAML files. One document, usually in
// crossplane.yaml, is the meta object; the package installs all others. The
// directory examples at the root, directories with names that start with a dot, and
// files that are not YAML are left out.
//
// The package is an image with one layer, which is annotated as the base layer and has
// package.yaml. That consists of the unchanged files: first the one with the meta object,
// then the others sorted by path. The same files give the same digest.
//
// The error for invalid files, and for what check finds in them, is an [*InvalidError] with file
// and line. Other errors are the file system's. check may be nil.
func Build(dir fs.FS, check Check) (*Image, error) {
	stream, meta, err := packageStream(dir, check)
	if err != nil {
		return nil, named("", err)
	}
	img, err := newImage(stream)
	if err == nil {
		img.alone = meta.Kind == sources.Provider && meta.Image == ""
	}
	return img, err
}

// packageStream makes package.yaml, and returns its meta object.
func packageStream(dir fs.FS, check Check) ([]byte, sources.PackageMeta, error) {
	var meta sources.PackageMeta
	files, err := readFiles(dir)
	if err != nil {
		return nil, meta, err
	}
	if len(files) == 0 {
		return nil, meta, bad("there is no YAML file in the directory")
	}
	// Lint one list of documents, as a reader will, each with its file.
	var docs []sources.Document
	var places []string
	for i, f := range files {
		for _, d := range f.docs {
			if group, _ := groupVersion(d); group == groupMeta {
				files[i].meta = true
			}
			docs = append(docs, d)
			places = append(places, fmt.Sprintf("%s:%d", f.path, d.Line))
		}
	}
	if meta, _, err = lint(docs, func(i int) string { return places[i] }); err != nil {
		return nil, meta, err
	}
	if err := lintRetractions(docs, places); err != nil {
		return nil, meta, err
	}
	problems := lintMeta(docs, places)
	for i, d := range docs {
		if check == nil {
			break
		}
		for _, text := range check(d.Tree) {
			problems = append(problems, fmt.Sprintf("%s: %s: %s", places[i], describe(d), text))
		}
	}
	if len(problems) > 0 {
		return nil, meta, &InvalidError{Problems: problems}
	}
	slices.SortStableFunc(files, func(a, b file) int {
		switch {
		case a.meta == b.meta:
			return strings.Compare(a.path, b.path)
		case a.meta:
			return -1
		}
		return 1
	})
	var stream bytes.Buffer
	for _, f := range files {
		stream.WriteString("---\n")
		stream.Write(f.content)
	}
	if stream.Len() > maxPackageBytes {
		return nil, meta, tooMuch("the YAML files have %d bytes, more than %d", stream.Len(), maxPackageBytes)
	}
	return stream.Bytes(), meta, nil
}

// lintRetractions checks the annotation with retractions. Readers ignore invalid ones, so
// packages in registries are not checked.
func lintRetractions(docs []sources.Document, places []string) error {
	for i, d := range docs {
		group, _ := groupVersion(d)
		value := at(d.Tree, "metadata", "annotations", rules.RetractAnnotation)
		if group != groupMeta || value == nil {
			continue
		}
		written, ok := value.(string)
		if !ok {
			return bad("%s: %s: metadata.annotations: %s is not a string", places[i], describe(d), rules.RetractAnnotation)
		}
		if _, err := rules.ParseRetractions(written); err != nil {
			return bad("%s: %s: metadata.annotations: %s: %v", places[i], describe(d), rules.RetractAnnotation, err)
		}
	}
	return nil
}

// file is one YAML file of a directory.
type file struct {
	path    string
	content []byte // ends with a newline, does not start with "---"
	docs    []sources.Document
	meta    bool
}

// readFiles reads and decodes the files of a package.
func readFiles(dir fs.FS) ([]file, error) {
	var files []file
	err := fs.WalkDir(dir, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name == "examples" || name != "." && strings.HasPrefix(entry.Name(), ".") {
				return fs.SkipDir
			}
			return nil
		case path.Ext(name) != ".yaml" && path.Ext(name) != ".yml":
			return checkOther(dir, name, entry)
		case !entry.Type().IsRegular():
			return bad("%s is not a regular file; a package is made of files in its own directory", name)
		}
		f, err := readFile(dir, name)
		if err != nil {
			return err
		}
		if len(f.docs) > 0 {
			files = append(files, f)
		}
		return nil
	})
	return files, err
}

// checkOther refuses a symbolic link or a submodule that would leave out the files of a directory.
func checkOther(dir fs.FS, name string, entry fs.DirEntry) error {
	switch {
	case name == "examples" || strings.HasPrefix(entry.Name(), "."):
		return nil
	case entry.Type()&fs.ModeIrregular != 0:
		return bad("%s is a submodule or another Git repository, which is not read; a package is made of files in its own directory: put them there, or remove it", name)
	case entry.Type()&fs.ModeSymlink == 0:
		return nil
	}
	if info, err := fs.Stat(dir, name); err == nil && info.Mode().IsRegular() {
		return nil
	}
	return bad("%s is a symbolic link, which is not followed; a package is made of files in its own directory: put them there in place of the link, or remove it", name)
}

// separate matches text that would change the meaning of files that are joined to a
// stream.
var separate = regexp.MustCompile(`(?m)^(?:%|\.\.\.\s*$)`)

func readFile(dir fs.FS, name string) (file, error) {
	content, err := fs.ReadFile(dir, name)
	if err != nil {
		return file{}, err
	}
	if at := separate.FindIndex(content); at != nil {
		line := 1 + bytes.Count(content[:at[0]], []byte("\n"))
		return file{}, bad(`%s:%d: leave out YAML directives and "...", which mean nothing in a Kubernetes manifest`, name, line)
	}
	docs, err := sources.DecodeYAML(bytes.NewReader(content), sources.Limits{Nodes: maxDocumentValues})
	if err != nil {
		return file{}, malformed(name+": ", err)
	}
	content = bytes.TrimPrefix(content, []byte("\ufeff"))
	content = bytes.TrimPrefix(content, []byte("---\n"))
	if !bytes.HasSuffix(content, []byte("\n")) {
		content = append(content, '\n')
	}
	return file{path: name, content: content, docs: docs}, nil
}

// layer is a base layer.
type layer struct {
	compressed []byte
	// digest of the compressed layer, diffID of the decompressed one.
	digest, diffID sources.Digest
}

func (l layer) descriptor() descriptor {
	return descriptor{
		MediaType: mediaOCILayerGzip, Digest: l.digest, Size: int64(len(l.compressed)),
		Annotations: map[string]string{annotation: baseLayer},
	}
}

// newLayer makes the layer with a package.yaml, without times, users or other
// properties of the machine.
func newLayer(packageYAML []byte) (layer, error) {
	var out, archive bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return layer{}, err
	}
	tarred := tar.NewWriter(&archive)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: packageFile, Mode: 0o644, Size: int64(len(packageYAML)), Format: tar.FormatUSTAR}
	err = errors.Join(tarred.WriteHeader(header), write(tarred, packageYAML), tarred.Close(),
		write(compressed, archive.Bytes()), compressed.Close())
	return layer{compressed: out.Bytes(), digest: sources.DigestOf(out.Bytes()), diffID: sources.DigestOf(archive.Bytes())}, err
}

// newImage makes the image of a package.yaml.
func newImage(packageYAML []byte) (*Image, error) {
	base, err := newLayer(packageYAML)
	if err != nil {
		return nil, err
	}
	// The content is the same on all platforms; Crossplane looks for this one
	// first.
	c := config{platform: platform{Architecture: "amd64", OS: "linux"}}
	// Formats without annotations mark the layer by this label.
	c.Config.Labels = map[string]string{annotation + ":" + string(base.digest): baseLayer}
	c.RootFS.Type = "layers"
	c.RootFS.DiffIDs = []sources.Digest{base.diffID}
	configuration, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(manifest{
		SchemaVersion: 2,
		MediaType:     mediaOCIManifest,
		Config:        &descriptor{MediaType: mediaOCIConfig, Digest: sources.DigestOf(configuration), Size: int64(len(configuration))},
		Layers:        []descriptor{base.descriptor()},
	})
	if err != nil {
		return nil, err
	}
	img := &Image{contents: make(map[sources.Digest]*io.SectionReader)}
	img.add(configuration)
	img.add(base.compressed)
	img.root = img.add(raw)
	return img, nil
}

func write(w io.Writer, p []byte) error {
	_, err := w.Write(p)
	return err
}
