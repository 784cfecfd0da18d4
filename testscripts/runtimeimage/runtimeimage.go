// Package runtimeimage writes the image that packages of tests and of the demo are built
// on, in the place of their controllers' own. It names a program and has no files: the
// nodes of test clusters run no images.
package runtimeimage

import (
	"archive/tar"
	"errors"
	"os"
)

// The image's configuration, and Docker's list of the images in a file.
const (
	configuration = `{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/controller"],"User":"65532"},"rootfs":{"type":"layers","diff_ids":[]}}`
	list          = `[{"Config":"config.json","RepoTags":null,"Layers":[]}]`
)

// Write writes the image to a file, as "docker save" does, for `gitopsd package build
// --runtime-image`. The file is the same each time.
func Write(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(f)
	for _, content := range []struct{ name, text string }{{"config.json", configuration}, {"manifest.json", list}} {
		err = errors.Join(err, archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: content.name, Mode: 0o644, Size: int64(len(content.text))}))
		if err == nil {
			_, err = archive.Write([]byte(content.text))
		}
	}
	return errors.Join(err, archive.Close(), f.Close())
}
