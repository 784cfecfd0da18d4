package why

import (
	"io/fs"
	"maps"
	"path"

	"gitopsd.dev/render/edit"
	"gitopsd.dev/render/remote"
)

// everything has all files of a build: the fleet repository, and remote bases by their
// names in the build.
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

// with returns the files with other content for one of them.
func (e everything) with(name string, content []byte) everything {
	if tree, at, ok := e.remote.Split(name); ok {
		e.remote.Trees = maps.Clone(e.remote.Trees)
		e.remote.Trees[tree] = edit.Overlay(e.remote.Trees[tree], map[string][]byte{at: content})
	} else {
		e.repository = edit.Overlay(e.repository, map[string][]byte{name: content})
	}
	return e
}

// named returns the path in the build that an entry of a kustomization in dir names.
func (e everything) named(dir, entry string) string {
	if remote.Looks(entry) {
		if base, err := e.remote.Allowed.Base(entry); err == nil {
			return base.Name()
		}
	}
	return path.Join(dir, entry)
}
