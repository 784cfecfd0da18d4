// Package store is the cache of objects that sources/git fetched: packs with an
// index, and a list of the commits that are complete. It accepts packs as
// servers send them (pack.go), within limits, and reads objects from them.
//
// Content is hashed when it is read: a damaged cache gives errors, never other
// content.
package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// Store is one generation of the cache of a repository: a directory of packs,
// to which fetches add, and a file that lists the commits whose trees are
// complete. Packs never change; when the store has grown too much or is
// damaged, another generation replaces it.
//
// Read, Size and Damaged are safe for concurrent use; Add, Has and Due are for
// one goroutine at a time. A store can be read after its directory was removed.
type Store struct {
	// Dir is its directory.
	Dir string

	mu      sync.Mutex
	packs   []*pack
	cache   cache.Object
	damaged error

	// Of Add, Has and Due alone:
	tips    []plumbing.Hash       // complete commits, oldest first
	trees   map[plumbing.Hash]int // trees known to be complete, with how many paths are below
	bytes   int64                 // of all packs
	largest int64                 // of the largest pack, which is a whole snapshot or more
}

// pack is a pack with its index. Its file stays open, so that it can be read
// after the directory was removed.
type pack struct {
	index *idxfile.MemoryIndex
	file  *packfile.Packfile
}

const (
	// cacheSize bounds the objects of a store that are kept in memory.
	cacheSize = 8 * cache.MiByte
	// maxPacks and growth define when a store is due for replacement: more
	// packs make reading slower, and most objects of a store that grew to four
	// snapshots are of old commits.
	maxPacks = 64
	growth   = 4
	// slack is the growth that every store may have, in bytes.
	slack = 4 << 20
	// keptTips is how many complete commits a server is told about.
	keptTips = 32
	// maxPaths bounds the paths of a commit: a tree that holds another twice,
	// which holds another twice, and so on, is small in Git and endless to
	// walk.
	maxPaths = 1_000_000
	maxDepth = 100 // of directories
)

const tipsFile = "tips"

// New makes an empty store in the directory dir.
func New(dir string) (*Store, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return &Store{Dir: dir, cache: cache.NewObjectLRU(cacheSize), trees: make(map[plumbing.Hash]int)}, nil
}

// Open opens the store of an earlier process. It fails if one of its commits is
// not complete.
func Open(dir string) (*Store, error) {
	s := &Store{Dir: dir, cache: cache.NewObjectLRU(cacheSize), trees: make(map[plumbing.Hash]int)}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "pack-") || !strings.HasSuffix(e.Name(), ".idx") {
			continue
		}
		index, err := readIndex(filepath.Join(dir, e.Name()))
		if err == nil {
			err = s.addPack(index)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
	}
	list, err := os.ReadFile(filepath.Join(dir, tipsFile))
	if err != nil {
		return nil, err
	}
	for line := range strings.FieldsSeq(string(list)) {
		if !plumbing.IsHash(line) {
			return nil, fmt.Errorf("%s: %q is not the name of a commit", tipsFile, line)
		}
		h := plumbing.NewHash(line)
		if err := s.verify(h); err != nil {
			return nil, err
		}
		s.tips = append(s.tips, h)
	}
	if len(s.tips) == 0 {
		return nil, errors.New("no commit in it")
	}
	return s, nil
}

func readIndex(name string) (*idxfile.MemoryIndex, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	index := idxfile.NewMemoryIndex()
	if err := idxfile.NewDecoder(f).Decode(index); err != nil {
		return nil, err
	}
	return index, nil
}

func packName(checksum plumbing.Hash, ext string) string {
	return "pack-" + checksum.String() + ext
}

// addPack adds the pack of an index to the store.
func (s *Store) addPack(index *idxfile.MemoryIndex) error {
	f, err := osfs.New(s.Dir).Open(packName(plumbing.Hash(index.PackfileChecksum), ".pack"))
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.packs = append(s.packs, &pack{
		index: index,
		// Without a file system, objects are read from the open file.
		file: packfile.NewPackfileWithCache(index, nil, f, s.cache, 0),
	})
	s.bytes += size
	s.largest = max(s.largest, size)
	return nil
}

// Add fetches the commit h into the store. fetch is called with the commits
// that are complete, and passes the pack to its sink. The error is fetch's,
// sources.ErrLimit, [ErrDamaged] if the pack builds on objects that are no
// longer there, or one about a pack that is invalid or lacks objects. After an
// error the store is as before.
func (s *Store) Add(h plumbing.Hash, fetch func(have []plumbing.Hash, sink func(io.Reader) error) error) error {
	err := s.AddPart(func(sink func(io.Reader) error) error { return fetch(slices.Clone(s.tips), sink) })
	if err != nil {
		return err
	}
	if err := s.verify(h); err != nil {
		return err
	}
	tips := append(slices.Clone(s.tips), h)
	tips = tips[max(0, len(tips)-keptTips):]
	var text strings.Builder
	for _, t := range tips {
		fmt.Fprintln(&text, t)
	}
	if err := writeFile(filepath.Join(s.Dir, tipsFile), []byte(text.String())); err != nil {
		return err
	}
	s.tips = tips
	return nil
}

// AddPart fetches a pack that makes no commit complete. It fails as Add does.
func (s *Store) AddPart(fetch func(sink func(io.Reader) error) error) error {
	tmp, err := os.CreateTemp(s.Dir, "tmp_pack_")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // when it has its name, there is nothing to remove
	defer tmp.Close()
	var scan *packScan
	err = fetch(func(r io.Reader) (err error) {
		scan, err = scanPack(tmp, r)
		return err
	})
	if err != nil || scan == nil || len(scan.entries) == 0 {
		return err
	}
	// The server is no longer waiting: this may take a while.
	return s.keep(tmp, scan)
}

// keep gives a pack its index and name.
func (s *Store) keep(tmp *os.File, scan *packScan) error {
	index, err := scan.resolve(s.lookup)
	if err != nil {
		return err
	}
	name := filepath.Join(s.Dir, packName(scan.checksum, ".pack"))
	if _, err := os.Stat(name); err == nil {
		return nil // the same pack again
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	if err := writeIndex(s.Dir, index, packName(scan.checksum, ".idx")); err != nil {
		return err
	}
	return s.addPack(index)
}

// lookup reads an object of any type.
func (s *Store) lookup(h plumbing.Hash) (plumbing.ObjectType, []byte, error) {
	t, content, err := s.get(h)
	if err == nil {
		err = objects.Check(t, h, content)
	}
	if err != nil && !errors.Is(err, sources.ErrLimit) {
		return t, nil, s.damage(err)
	}
	return t, content, err
}

// writeFile replaces a file atomically.
func writeFile(name string, content []byte) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// Has reports whether the commit h is complete in the store.
func (s *Store) Has(h plumbing.Hash) bool { return slices.Contains(s.tips, h) }

// Due reports whether a new store should replace this one.
func (s *Store) Due() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged != nil || len(s.packs) >= maxPacks || s.bytes > growth*s.largest+slack
}

// verify checks that the commit h and everything below its tree can be read.
func (s *Store) verify(h plumbing.Hash) error {
	c, err := objects.ReadCommit(s, h)
	if err != nil {
		return err
	}
	paths, err := s.verifyTree(c.TreeHash, 0)
	if err != nil {
		return fmt.Errorf("commit %s: %w", h, err)
	}
	if paths > maxPaths {
		return fmt.Errorf("commit %s has more than %d files: %w", h, maxPaths, sources.ErrLimit)
	}
	return nil
}

// verifyTree returns how many paths are below a tree; it stops counting above
// maxPaths.
func (s *Store) verifyTree(h plumbing.Hash, depth int) (int, error) {
	if paths, ok := s.trees[h]; ok {
		return paths, nil
	}
	if depth > maxDepth {
		return 0, fmt.Errorf("directories are nested deeper than %d: %w", maxDepth, sources.ErrLimit)
	}
	content, err := s.Read(plumbing.TreeObject, h)
	if err != nil {
		return 0, err
	}
	entries, err := objects.ParseTree(content)
	if err != nil {
		return 0, fmt.Errorf("tree %s: %w", h, err)
	}
	paths := len(entries)
	for _, e := range entries {
		if e.IsDir() {
			below, err := s.verifyTree(e.Hash, depth+1)
			if err != nil {
				return 0, err
			}
			paths = min(paths+below, maxPaths+1)
			continue
		}
		if !e.IsSubmodule() && !s.contains(e.Hash) {
			return 0, s.damage(fmt.Errorf("the content of %s (%s) is missing", e.Name, e.Hash))
		}
	}
	s.trees[h] = paths
	return paths, nil
}

func (s *Store) contains(h plumbing.Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, _ := s.find(h)
	return p != nil
}

// find looks for an object. The caller holds mu.
func (s *Store) find(h plumbing.Hash) (*pack, int64) {
	for _, p := range s.packs {
		if offset, err := p.index.FindOffset(h); err == nil {
			return p, offset
		}
	}
	return nil, 0
}

// ErrDamaged is in the chain of errors about objects that the store had and
// lost.
var ErrDamaged = errors.New("the cache is damaged, and is fetched anew at the next poll")

// damage marks the store as due for replacement.
func (s *Store) damage(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damaged = err
	return fmt.Errorf("%w (%s: %w)", ErrDamaged, s.Dir, err)
}

// Read implements objects.Reader.
func (s *Store) Read(t plumbing.ObjectType, h plumbing.Hash) ([]byte, error) {
	have, content, err := s.lookup(h)
	if err == nil && have != t {
		return nil, fmt.Errorf("%s is a %s, not a %s", h, have, t)
	}
	return content, err
}

func (s *Store) get(h plumbing.Hash) (t plumbing.ObjectType, content []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer recoverDamage(h, &err)
	p, offset := s.find(h)
	if p == nil {
		return t, nil, fmt.Errorf("%s is missing", h)
	}
	size, err := p.file.GetSizeByOffset(offset)
	if err != nil {
		return t, nil, fmt.Errorf("%s: %w", h, err)
	}
	if size > objects.MaxFile {
		return t, nil, objects.TooLarge(size)
	}
	obj, err := p.file.Get(h)
	if err != nil {
		return t, nil, fmt.Errorf("%s: %w", h, err)
	}
	content, err = objects.ReadAll(obj)
	return obj.Type(), content, err
}

// Size implements objects.Reader.
func (s *Store) Size(h plumbing.Hash) (int64, error) {
	size, err := s.getSize(h)
	if err != nil {
		return 0, s.damage(err)
	}
	return size, nil
}

func (s *Store) getSize(h plumbing.Hash) (size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer recoverDamage(h, &err)
	p, offset := s.find(h)
	if p == nil {
		return 0, fmt.Errorf("%s is missing", h)
	}
	if size, err = p.file.GetSizeByOffset(offset); err != nil {
		return 0, fmt.Errorf("%s: %w", h, err)
	}
	return size, nil
}

// recoverDamage turns a panic of go-git into an error: a file was changed after
// it was written.
func recoverDamage(h plumbing.Hash, err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%s: %v", h, p)
	}
}

// Damaged reports whether an object that was in the store could not be read.
func (s *Store) Damaged() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged != nil
}
