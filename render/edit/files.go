package edit

import (
	"bytes"
	"io/fs"
	"sync"
)

// Overlay returns files with changed content for some of them. It ignores changed files that
// do not exist in files.
func Overlay(files fs.FS, changed map[string][]byte) fs.FS {
	return overlay{files, func(name string) ([]byte, error) { return changed[name], nil }}
}

// overlay takes the content of regular files from content, or from the embedded FS if that
// is nil. The embedded FS has everything else, including symbolic links.
type overlay struct {
	fs.FS
	content func(name string) ([]byte, error)
}

var _ fs.ReadLinkFS = overlay{}

// Open implements fs.FS.
func (o overlay) Open(name string) (fs.File, error) {
	info, err := fs.Stat(o.FS, name)
	if err != nil || !info.Mode().IsRegular() {
		return o.FS.Open(name)
	}
	content, err := o.content(name)
	if err != nil {
		return nil, err
	}
	if content == nil {
		return o.FS.Open(name)
	}
	return &file{Reader: bytes.NewReader(content), info: fileInfo{info, int64(len(content))}}, nil
}

// Stat implements fs.StatFS. The size of a changed file is the old one.
func (o overlay) Stat(name string) (fs.FileInfo, error) { return fs.Stat(o.FS, name) }

// Lstat implements fs.ReadLinkFS.
func (o overlay) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(o.FS, name) }

// ReadLink implements fs.ReadLinkFS.
func (o overlay) ReadLink(name string) (string, error) { return fs.ReadLink(o.FS, name) }

// ReadDir implements fs.ReadDirFS.
func (o overlay) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(o.FS, name) }

// Snapshot is a file system whose regular files keep the content that was read first, even
// if others write to them. It is safe for concurrent use.
type Snapshot struct {
	overlay
	mu   sync.Mutex
	read map[string][]byte
}

// NewSnapshot returns a Snapshot of files, none of which is read yet.
func NewSnapshot(files fs.FS) *Snapshot {
	s := &Snapshot{read: make(map[string][]byte)}
	s.overlay = overlay{files, s.first}
	return s
}

func (s *Snapshot) first(name string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if content, ok := s.read[name]; ok {
		return content, nil
	}
	content, err := fs.ReadFile(s.FS, name)
	if err == nil {
		s.read[name] = content
	}
	return content, err
}

// Changed reports whether a file differs from what was read, or exists but was not read.
func (s *Snapshot) Changed(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, read := s.read[name]
	is, err := fs.ReadFile(s.FS, name)
	return read != (err == nil) || !bytes.Equal(was, is)
}

type file struct {
	*bytes.Reader
	info fileInfo
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

type fileInfo struct {
	fs.FileInfo
	size int64
}

func (i fileInfo) Size() int64 { return i.size }
