package kustomize

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"

	"gitopsd.dev/sources"
)

// snapshot is the file system for kustomize. It has the files that the inspection read, with
// the same content, and no others. It is read-only.
type snapshot struct {
	// files has the contents by slash-separated path relative to the root.
	files map[string][]byte
	// dirs are the directories of the files; "." is the root.
	dirs map[string]bool
}

var _ filesys.FileSystem = (*snapshot)(nil)

var errReadOnly = errors.New("read-only file system")

func newSnapshot() *snapshot {
	return &snapshot{files: make(map[string][]byte), dirs: map[string]bool{".": true}}
}

func (s *snapshot) add(name string, content []byte) {
	s.files[name] = content
	s.addDir(path.Dir(name))
}

func (s *snapshot) addDir(dir string) {
	for !s.dirs[dir] {
		s.dirs[dir] = true
		dir = path.Dir(dir)
	}
}

// digest identifies a build by its directory and everything in the snapshot.
func (s *snapshot) digest(dir string) sources.Digest {
	h := sha256.New()
	write := func(parts ...string) {
		for _, p := range parts {
			fmt.Fprintf(h, "%d:%s", len(p), p)
		}
	}
	write(dir)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		write(name, string(s.files[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(s.dirs)) {
		write(name)
	}
	return sources.Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// abs returns kustomize's path of a file of the repository.
func abs(name string) string { return path.Join("/", name) }

// rel is the reverse of abs.
func rel(name string) string {
	if name = strings.TrimPrefix(path.Join("/", name), "/"); name == "" {
		return "."
	}
	return name
}

func (s *snapshot) ReadFile(name string) ([]byte, error) {
	content, ok := s.files[rel(name)]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: rel(name), Err: fs.ErrNotExist}
	}
	return content, nil
}

func (s *snapshot) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	r := rel(name)
	if s.dirs[r] {
		return filesys.ConfirmedDir(abs(r)), "", nil
	}
	if _, ok := s.files[r]; ok {
		return filesys.ConfirmedDir(abs(path.Dir(r))), path.Base(r), nil
	}
	return "", "", &fs.PathError{Op: "open", Path: r, Err: fs.ErrNotExist}
}

func (s *snapshot) IsDir(name string) bool { return s.dirs[rel(name)] }

func (s *snapshot) Exists(name string) bool {
	_, ok := s.files[rel(name)]
	return ok || s.IsDir(name)
}

// Kustomize's build uses none of the following methods.

func (s *snapshot) Open(string) (filesys.File, error)    { return nil, errReadOnly }
func (s *snapshot) Create(string) (filesys.File, error)  { return nil, errReadOnly }
func (s *snapshot) Mkdir(string) error                   { return errReadOnly }
func (s *snapshot) MkdirAll(string) error                { return errReadOnly }
func (s *snapshot) RemoveAll(string) error               { return errReadOnly }
func (s *snapshot) WriteFile(string, []byte) error       { return errReadOnly }
func (s *snapshot) ReadDir(string) ([]string, error)     { return nil, errReadOnly }
func (s *snapshot) Glob(string) ([]string, error)        { return nil, errReadOnly }
func (s *snapshot) Walk(string, filepath.WalkFunc) error { return errReadOnly }
