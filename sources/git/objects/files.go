package objects

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"gitopsd.dev/sources"
)

// files is the file system of a tree; see newFiles.
type files struct {
	objects Reader
	root    plumbing.Hash
	time    time.Time

	mu   sync.Mutex
	dirs map[plumbing.Hash][]Entry // parsed trees, sorted by name
}

// maxDirs bounds the parsed trees of a files.
const maxDirs = 10_000

// newFiles returns the tree root as a file system of regular files and
// directories. Objects are read when they are needed. It is safe for concurrent
// use.
//
// A symbolic link is listed, but is not followed. A submodule is listed as neither a file nor a
// directory ([fs.ModeIrregular]), and a name that is not UTF-8 as it is; neither can be opened.
// Entries that git would not check out, such as ".git", are left out. A name may have a backslash, unlike
// those of other file systems. All times are t, the
// commit's.
func newFiles(r Reader, root plumbing.Hash, t time.Time) fs.FS {
	return &files{objects: r, root: root, time: t, dirs: make(map[plumbing.Hash][]Entry)}
}

// Optional interfaces that save an Open, and the one for symbolic links.
var (
	_ fs.ReadFileFS = (*files)(nil)
	_ fs.ReadDirFS  = (*files)(nil)
	_ fs.StatFS     = (*files)(nil)
	_ fs.ReadLinkFS = (*files)(nil)
)

var _ sources.ContentFS = (*files)(nil)

func (f *files) Open(name string) (fs.File, error) {
	e, err := f.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if e.IsDir() {
		list, err := f.list("open", name, e)
		if err != nil {
			return nil, err
		}
		return &openDir{info: info{f: f, e: e}, list: list}, nil
	}
	return &openFile{info: info{f: f, e: e}, path: name}, nil
}

func (f *files) ReadFile(name string) ([]byte, error) {
	e, err := f.lookup("read", name)
	if err != nil {
		return nil, err
	}
	return f.readFile(name, e)
}

func (f *files) readFile(name string, e Entry) ([]byte, error) {
	if e.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("is a directory")}
	}
	content, err := f.objects.Read(plumbing.BlobObject, e.Hash)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	return content, nil
}

func (f *files) ReadDir(name string) ([]fs.DirEntry, error) {
	e, err := f.lookup("open", name)
	if err != nil {
		return nil, err
	}
	return f.list("readdir", name, e)
}

func (f *files) Stat(name string) (fs.FileInfo, error) {
	e, err := f.lookup("stat", name)
	if err != nil {
		return nil, err
	}
	return info{f: f, e: e}.sized(name)
}

// Lstat implements fs.ReadLinkFS.
func (f *files) Lstat(name string) (fs.FileInfo, error) {
	e, err := f.find("lstat", name)
	if err != nil {
		return nil, err
	}
	return info{f: f, e: e}.sized(name)
}

// ReadLink implements fs.ReadLinkFS.
func (f *files) ReadLink(name string) (string, error) {
	e, err := f.find("readlink", name)
	if err != nil {
		return "", err
	}
	if !e.isSymlink() {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	target, err := f.readFile(name, e)
	return string(target), err
}

// Content implements sources.ContentFS.
func (f *files) Content(except string) (string, error) {
	list, err := f.dir(f.root)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, e := range list {
		if e.Name != except {
			fmt.Fprintf(h, "%o %s %s\x00", uint32(e.Mode), e.Hash, e.Name)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Lookup finds the entry of a regular file or a directory in a tree.
func Lookup(r Reader, root plumbing.Hash, name string) (Entry, error) {
	return (&files{objects: r, root: root, dirs: make(map[plumbing.Hash][]Entry)}).lookup("stat", name)
}

// lookup finds the entry of a regular file or a directory.
func (f *files) lookup(op, name string) (Entry, error) {
	e, err := f.find(op, name)
	if err == nil && e.isSymlink() {
		err = &fs.PathError{Op: op, Path: name, Err: errSymlink}
	}
	return e, err
}

// find finds the entry of a regular file, a directory or a symbolic link.
func (f *files) find(op, name string) (Entry, error) {
	if !fs.ValidPath(name) {
		return Entry{}, &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	e := Entry{Name: ".", Mode: 0o040000, Hash: f.root}
	if name == "." {
		return e, nil
	}
	done := 0
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case e.isSymlink():
			return e, &fs.PathError{Op: op, Path: name[:done-1], Err: errSymlink}
		case !e.IsDir():
			return e, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		list, err := f.dir(e.Hash)
		if err != nil {
			return e, &fs.PathError{Op: op, Path: name, Err: err}
		}
		i, ok := slices.BinarySearchFunc(list, part, func(e Entry, name string) int { return strings.Compare(e.Name, name) })
		if !ok {
			return e, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		e = list[i]
		done += len(part) + 1
		if e.IsSubmodule() {
			return e, &fs.PathError{Op: op, Path: name[:done-1], Err: errSubmodule}
		}
	}
	return e, nil
}

var (
	errSymlink   = errors.New("is a symbolic link, which is not followed in a fleet repository; put the file itself there")
	errSubmodule = errors.New("is a submodule, which is not fetched; put its files into the repository, or name its address as a remote base")
)

// dir returns the reachable entries of a tree, sorted by name.
func (f *files) dir(h plumbing.Hash) ([]Entry, error) {
	f.mu.Lock()
	list, ok := f.dirs[h]
	f.mu.Unlock()
	if ok {
		return list, nil
	}
	content, err := f.objects.Read(plumbing.TreeObject, h)
	if err != nil {
		return nil, err
	}
	if list, err = ParseTree(content); err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(e Entry) bool {
		return !e.reachable() || !e.IsDir() && !e.isFile() && !e.isSymlink() && !e.IsSubmodule()
	})
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(list); i++ {
		if list[i].Name == list[i-1].Name {
			return nil, fmt.Errorf("malformed tree: duplicate entry %s", list[i].Name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.dirs) == maxDirs {
		clear(f.dirs)
	}
	f.dirs[h] = list
	return list, nil
}

func (f *files) list(op, name string, e Entry) ([]fs.DirEntry, error) {
	if !e.IsDir() {
		return nil, &fs.PathError{Op: op, Path: name, Err: errors.New("is not a directory")}
	}
	entries, err := f.dir(e.Hash)
	if err != nil {
		return nil, &fs.PathError{Op: op, Path: name, Err: err}
	}
	list := make([]fs.DirEntry, 0, len(entries))
	for _, e := range entries {
		list = append(list, dirEntry{info: info{f: f, e: e}, path: path.Join(name, e.Name)})
	}
	return list, nil
}

// info describes an entry. Its size is set by sized.
type info struct {
	f    *files
	e    Entry
	size int64
}

// sized returns the info with the size of the entry at name.
func (i info) sized(name string) (fs.FileInfo, error) {
	if i.e.IsDir() || i.e.IsSubmodule() {
		return i, nil
	}
	size, err := i.f.objects.Size(i.e.Hash)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	i.size = size
	return i, nil
}

func (i info) Name() string       { return i.e.Name }
func (i info) Size() int64        { return i.size }
func (i info) ModTime() time.Time { return i.f.time }
func (i info) IsDir() bool        { return i.e.IsDir() }
func (i info) Sys() any           { return nil }

func (i info) Mode() fs.FileMode {
	switch {
	case i.e.IsDir():
		return fs.ModeDir | 0o555
	case i.e.isSymlink():
		return fs.ModeSymlink | 0o777
	case i.e.IsSubmodule():
		return fs.ModeIrregular
	case i.e.Mode&0o111 != 0:
		return 0o555
	}
	return 0o444
}

type dirEntry struct {
	info
	path string
}

func (d dirEntry) Type() fs.FileMode          { return d.Mode().Type() }
func (d dirEntry) Info() (fs.FileInfo, error) { return d.sized(d.path) }
func (d dirEntry) String() string             { return fs.FormatDirEntry(d) }

// openDir is an open directory.
type openDir struct {
	info
	list []fs.DirEntry // entries not read yet
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *openDir) Close() error               { return nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.e.Name, Err: errors.New("is a directory")}
}

func (d *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		n = len(d.list)
	} else if len(d.list) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.list))
	list := slices.Clone(d.list[:n])
	d.list = d.list[n:]
	return list, nil
}

// openFile is an open file. Its content is read at the first use. Like an *os.File, it is
// for one goroutine, except for ReadAt.
type openFile struct {
	info
	path string

	once   sync.Once
	err    error
	reader *bytes.Reader
	closed bool
}

func (o *openFile) load() error {
	if o.closed {
		return &fs.PathError{Op: "read", Path: o.path, Err: fs.ErrClosed}
	}
	o.once.Do(func() {
		var content []byte
		content, o.err = o.f.readFile(o.path, o.e)
		o.reader = bytes.NewReader(content)
	})
	return o.err
}

func (o *openFile) Stat() (fs.FileInfo, error) { return o.sized(o.path) }

func (o *openFile) Read(p []byte) (int, error) {
	if err := o.load(); err != nil {
		return 0, err
	}
	return o.reader.Read(p)
}

func (o *openFile) ReadAt(p []byte, off int64) (int, error) {
	if err := o.load(); err != nil {
		return 0, err
	}
	return o.reader.ReadAt(p, off)
}

func (o *openFile) Seek(offset int64, whence int) (int64, error) {
	if err := o.load(); err != nil {
		return 0, err
	}
	return o.reader.Seek(offset, whence)
}

func (o *openFile) Close() error {
	o.closed = true
	return nil
}
