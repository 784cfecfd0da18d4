package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/local"
)

// readObjects returns the objects in files, in all files below directories, and in stdin,
// which is named "-". stdin may be nil.
func readObjects(stdin io.Reader, names ...string) ([]*manifest.Object, error) {
	var all []*manifest.Object
	for _, name := range names {
		err := eachDocument(name, stdin, func(doc sources.Document, origin manifest.Origin) error {
			objects, err := manifest.FromDocument(doc, origin)
			all = append(all, objects...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// replaceFile replaces a file that exists, wherever it is, as [local.WriteFile] does. If name is
// a symbolic link, it replaces the file that the link names.
func replaceFile(name string, text []byte) error {
	file, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	if err := local.WriteFile(filepath.Dir(file), filepath.Base(file), text); err != nil {
		return fmt.Errorf("in %s: %w", filepath.Dir(file), err)
	}
	return nil
}

// eachDocument calls do for each document in a file, in all files below a directory, or in
// stdin, which is named "-". stdin may be nil.
func eachDocument(name string, stdin io.Reader, do func(sources.Document, manifest.Origin) error) error {
	if name == "-" {
		if stdin == nil {
			return errors.New("only a file can be named here")
		}
		return decodeDocuments(name, stdin, do)
	}
	read := func(name string) error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return decodeDocuments(name, f, do)
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return walkYAML(name, read)
	}
	return read(name)
}

func decodeDocuments(name string, in io.Reader, do func(sources.Document, manifest.Origin) error) error {
	docs, err := sources.DecodeYAML(in, sources.Limits{})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, doc := range docs {
		if err := do(doc, manifest.Origin{File: name, Line: doc.Line}); err != nil {
			return err
		}
	}
	return nil
}

// walkYAML calls do for each YAML or JSON file below a directory.
func walkYAML(dir string, do func(name string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := dir + string(os.PathSeparator) + e.Name()
		switch {
		case e.IsDir():
			err = walkYAML(name, do)
		case e.Name() == "kustomization.yaml", e.Name() == "kustomization.yml":
			// It lists other files and is not an object.
		case isYAML(name):
			err = do(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml") || strings.HasSuffix(name, ".json")
}
