package why

import (
	"bytes"
	"io/fs"
	"maps"
	"path"
	"time"

	"gitopsd.dev/render/remote"
)

// everything is all that a cluster is built from: the fleet repository, and remote
// bases by the names that they have in a build.
type everything struct {
	repository fs.FS
	remote     remote.Bases
}

func (e *explainer) everything() everything { return everything{e.in.Files, e.in.Remote} }

// Open implements fs.FS.
func (e everything) Open(name string) (fs.File, error) {
	if tree, at, ok := e.remote.Split(name); ok {
		return e.remote.Trees[tree].Open(at)
	}
	return e.repository.Open(name)
}

// with is the same in which one file has another content.
func (e everything) with(name string, content []byte) everything {
	if tree, at, ok := e.remote.Split(name); ok {
		e.remote.Trees = maps.Clone(e.remote.Trees)
		e.remote.Trees[tree] = without{e.remote.Trees[tree], at, content}
	} else {
		e.repository = without{e.repository, name, content}
	}
	return e
}

// named is what an entry of a kustomization in a directory names.
func (e everything) named(dir, entry string) string {
	if remote.Looks(entry) {
		if base, err := e.remote.Allowed.Base(entry); err == nil {
			return base.Name()
		}
	}
	return path.Join(dir, entry)
}

// without is a file system in which one file has another content.
type without struct {
	fs.FS
	name    string
	content []byte
}

func (w without) Open(name string) (fs.File, error) {
	if name != w.name {
		return w.FS.Open(name)
	}
	info, err := fs.Stat(w.FS, name)
	if err != nil {
		return nil, err
	}
	return &openFile{Reader: bytes.NewReader(w.content), info: info}, nil
}

type openFile struct {
	*bytes.Reader
	info fs.FileInfo
}

func (f *openFile) Close() error               { return nil }
func (f *openFile) Stat() (fs.FileInfo, error) { return sized{f.info, f.Size()}, nil }

// sized is what is known of a file, but for its size.
type sized struct {
	fs.FileInfo
	size int64
}

func (s sized) Size() int64        { return s.size }
func (s sized) ModTime() time.Time { return time.Time{} }
