// Package store is the cache of the objects that sources/git fetches: packs with an
// index, and a list of the complete commits. It accepts packs from servers, within limits
// (pack.go), and reads objects from them.
//
// Content is hashed when it is read, so that a damaged cache returns errors, and not
// other content.
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

// Store is one generation of the cache of a repository: a directory of packs, which
// fetches add to, and a file that lists the commits with complete trees. Packs do not
// change. If the store has grown too much or is damaged, another generation replaces it.
//
// Read, Size and Damaged are safe for concurrent use. Add, AddPart, Has and Due are for
// one goroutine at a time. A store can be read after its directory was removed.
type Store struct {
	// Dir is its directory.
	Dir string

	mu      sync.Mutex
	packs   []*pack
	cache   cache.Object
	damaged error

	// Only for Add, AddPart, Has and Due:
	tips    []plumbing.Hash       // complete commits, oldest first
	trees   map[plumbing.Hash]int // complete trees, with the number of paths below
	bytes   int64                 // of all packs
	largest int64                 // of the largest pack, which has at least a whole snapshot
}

// pack is a pack with its index. Its file stays open, so that it can be read
// after the directory was removed.
type pack struct {
	index *idxfile.MemoryIndex
	file  *packfile.Packfile
}

const (
	// cacheSize bounds the memory for objects of a store.
	cacheSize = 8 * cache.MiByte
	// maxPacks and growth define when a store is due for replacement: many packs
	// make reading slow, and most objects of a store with the size of four snapshots
	// are of old commits.
	maxPacks = 64
	growth   = 4
	// slack is the growth that is always allowed, in bytes.
	slack = 4 << 20
	// keptTips bounds the complete commits that are sent to a server.
	keptTips = 32
	// maxPaths bounds the paths of a commit: a tree that has a subtree twice, which has
	// a subtree twice, and so on, is small in Git and endless to walk.
	maxPaths = 1_000_000
	maxDepth = 100 // of directories
)

const tipsFile = "tips"

// New makes an empty store in the directory dir.
func New(dir string) (*Store, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	return newStore(dir), nil
}

func newStore(dir string) *Store {
	return &Store{Dir: dir, cache: cache.NewObjectLRU(cacheSize), trees: make(map[plumbing.Hash]int)}
}

// temporary begins the names of files that are not complete.
const temporary = "tmp_"

// Open opens the store of an earlier process. It fails if there is none, or one of its
// commits is not complete.
func Open(dir string) (*Store, error) {
	s := newStore(dir)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), temporary) {
			os.Remove(filepath.Join(dir, e.Name())) // of a process that was killed
		}
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

// Add fetches the commit h into the store. Fetch is called with the complete commits,
// and passes the pack to sink. The error is fetch's, [sources.ErrLimit], [ErrDamaged] if
// the pack builds on objects that are no longer there, or one about a pack that is
// invalid or lacks objects. With an error no commit is added.
func (s *Store) Add(h plumbing.Hash, fetch func(have []plumbing.Hash, sink func(io.Reader) error) error) error {
	err := s.AddPart(func(sink func(io.Reader) error) error { return fetch(slices.Clone(s.tips), sink) })
	if err != nil {
		return err
	}
	if err := s.verify(h); errors.Is(err, ErrDamaged) {
		return err
	} else if err != nil {
		return &InvalidError{err}
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

// AddPart fetches a pack without a complete commit. It fails as Add does.
func (s *Store) AddPart(fetch func(sink func(io.Reader) error) error) error {
	tmp, err := os.CreateTemp(s.Dir, temporary+"pack_")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	defer tmp.Close()
	var scan *packScan
	err = fetch(func(r io.Reader) (err error) {
		scan, err = scanPack(tmp, r)
		return err
	})
	if err != nil || scan == nil || len(scan.entries) == 0 {
		return err
	}
	// This may take a while: the server is not waiting any more.
	return s.keep(tmp, scan)
}

// keep makes the index of a pack, and adds both to the store.
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

// Has reports whether the store has the complete commit h.
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

// verifyTree checks that everything below a tree is there, and returns the number of
// paths, or maxPaths+1 if there are more.
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

// find returns the pack and offset of an object, or nil. The caller holds mu.
func (s *Store) find(h plumbing.Hash) (*pack, int64) {
	for _, p := range s.packs {
		if offset, err := p.index.FindOffset(h); err == nil {
			return p, offset
		}
	}
	return nil, 0
}

// ErrDamaged is in the chain of errors about objects that the store has lost.
var ErrDamaged = errors.New("the cache is damaged; the next poll fetches it again")

// InvalidError says that a fetched object is not a commit, or that the commit is not valid.
type InvalidError struct{ error }

func (e *InvalidError) Unwrap() error { return e.error }

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

// recoverDamage turns a panic of go-git, about a file that was changed, into an error.
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
