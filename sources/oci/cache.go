package oci

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/sources"
)

// cache keeps contents in files named by their whole digest. Nothing depends on it: a
// missing or damaged entry is fetched again, and a disk that is full or read-only
// is only a warning.
//
// An entry gets its name by a rename, once it is complete and verified, and is not
// changed afterwards, so that any number of processes can share the directory. Entries
// are not synced to disk; the hash of one that a power failure damaged is wrong.
//
// A nil *cache and a nil *entry are valid, and keep nothing.
type cache struct {
	dir string
	max int64
	log *slog.Logger

	warned atomic.Bool
	mu     sync.Mutex
	size   int64 // of all entries, once known
	known  bool
}

const (
	// temporary is the prefix of files being written; those older than
	// staleAfter belong to a process that died.
	temporary  = "writing-"
	staleAfter = time.Hour
)

func (c *cache) path(d sources.Digest) string {
	return filepath.Join(c.dir, "sha256", d.Hex())
}

// warn logs that the cache does not work, once until it works again.
func (c *cache) warn(what string, err error) {
	if !c.warned.Swap(true) {
		c.log.Warn("the package cache cannot be used, packages are fetched each time", "dir", c.dir, "doing", what, "error", err)
	}
}

// open returns a verified entry of the given size, to be read from its start, or nil.
func (c *cache) open(d sources.Digest, size int64) *os.File {
	if c == nil {
		return nil
	}
	f, err := os.Open(c.path(d))
	if err != nil {
		if !os.IsNotExist(err) {
			c.warn("open", err)
		}
		return nil
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(f, size+1))
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		c.warn("read", err)
		return nil
	}
	if n != size || sources.DigestSum(h) != d {
		f.Close()
		c.log.Warn("dropping a damaged entry of the package cache, fetching it anew", "dir", c.dir, "digest", d)
		if err := os.Remove(c.path(d)); err != nil && !os.IsNotExist(err) {
			c.warn("remove", err)
		}
		return nil
	}
	// The least recently used entries are removed first. An error is harmless.
	now := time.Now()
	_ = os.Chtimes(f.Name(), now, now)
	return f
}

// get returns the content of a small entry.
func (c *cache) get(d sources.Digest, limit int64) ([]byte, bool) {
	if c == nil {
		return nil, false
	}
	fi, err := os.Stat(c.path(d))
	if err != nil || fi.Size() > limit {
		return nil, false
	}
	f := c.open(d, fi.Size())
	if f == nil {
		return nil, false
	}
	defer f.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(f); err != nil || sources.DigestOf(buf.Bytes()) != d {
		return nil, false
	}
	return buf.Bytes(), true
}

// put stores a small content that the caller has verified.
func (c *cache) put(d sources.Digest, content []byte) {
	e := c.create(d, int64(len(content)))
	e.write(content)
	e.commit()
}

// entry is a content that is being written to the cache.
type entry struct {
	cache *cache
	name  string // final path
	f     *os.File
	size  int64
}

// create starts an entry, or returns nil if that is impossible.
func (c *cache) create(d sources.Digest, size int64) *entry {
	if c == nil || size > c.max {
		return nil
	}
	name := c.path(d)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		c.warn("create the directory", err)
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(name), temporary)
	if err != nil {
		c.warn("create a file", err)
		return nil
	}
	return &entry{cache: c, name: name, f: f}
}

func (e *entry) write(p []byte) {
	if e == nil || e.f == nil {
		return
	}
	n, err := e.f.Write(p)
	e.size += int64(n)
	if err != nil {
		e.cache.warn("write", err)
		e.abort()
	}
}

// commit adds the entry to the cache. The caller has verified the content.
func (e *entry) commit() {
	if e == nil || e.f == nil {
		return
	}
	tmp := e.f.Name()
	err := e.f.Close()
	e.f = nil
	if err == nil {
		err = os.Rename(tmp, e.name)
	}
	if err != nil {
		os.Remove(tmp)
		e.cache.warn("write", err)
		return
	}
	e.cache.warned.Store(false)
	e.cache.grow(e.size)
}

// abort removes an incomplete entry. After commit it does nothing.
func (e *entry) abort() {
	if e == nil || e.f == nil {
		return
	}
	e.f.Close()
	os.Remove(e.f.Name())
	e.f = nil
}

// grow counts a new entry, and makes room if there are too many.
func (c *cache) grow(size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.size += size
	if c.known && c.size <= c.max {
		return
	}
	// Other processes write here too: count the files.
	type file struct {
		path string
		size int64
		used time.Time
	}
	var files []file
	c.size, c.known = 0, true
	err := filepath.WalkDir(filepath.Join(c.dir, "sha256"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		fi, err := d.Info()
		switch {
		case err != nil: // removed meanwhile
			return nil
		case strings.HasPrefix(d.Name(), temporary):
			if time.Since(fi.ModTime()) > staleAfter {
				os.Remove(path)
			}
			return nil
		}
		files = append(files, file{path, fi.Size(), fi.ModTime()})
		c.size += fi.Size()
		return nil
	})
	if err != nil {
		c.warn("count", err)
		return
	}
	if c.size <= c.max {
		return
	}
	// Remove a tenth more than needed, so as not to do this for each entry.
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	for _, f := range files {
		if c.size <= c.max-c.max/10 {
			return
		}
		if err := os.Remove(f.path); err != nil && !os.IsNotExist(err) {
			c.warn("remove", err)
			continue
		}
		c.size -= f.size
	}
}
