package store

import (
	"bytes"
	"cmp"
	"compress/zlib"
	"crypto/sha1"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/idxfile"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
)

// Limits of a server's packs. go-git's parser inflates every object into memory twice,
// however large. Here the declared sizes are checked before memory is allocated, and only
// deltas and their bases are in memory.
const (
	maxPack     = 1 << 30   // bytes on the wire and on disk
	maxInflated = 8 << 30   // bytes of all its objects together
	maxObjects  = 2_000_000 // objects
	maxHeld     = 512 << 20 // bytes in memory while resolving deltas
	// maxDeltaChain is git's own limit (pack.depth in git-config(1)).
	maxDeltaChain = 4095
)

// packScan is a pack on disk with a list of its objects. Deltas are not resolved yet.
type packScan struct {
	file     *os.File
	checksum plumbing.Hash
	entries  []packEntry             // by offset
	byBase   map[plumbing.Hash][]int // deltas that name their base by its hash
}

// packEntry is an object of a pack. The hash of a delta is zero until it is resolved.
type packEntry struct {
	offset int64
	crc    uint32
	typ    plumbing.ObjectType
	delta  bool
	hash   plumbing.Hash
	kids   []int // the deltas that are based on this object
}

// scanPack copies a pack from r to file, checking its checksum and the limits.
func scanPack(file *os.File, r io.Reader) (*packScan, error) {
	in := &io.LimitedReader{R: io.TeeReader(r, file), N: maxPack}
	s := &packScan{file: file, byBase: make(map[plumbing.Hash][]int)}
	if err := s.scan(packfile.NewScanner(in)); err != nil {
		if in.N == 0 {
			err = fmt.Errorf("the files of one commit are more than %d MiB packed: %w", maxPack>>20, sources.ErrLimit)
		}
		return nil, err
	}
	// The scanner may have read ahead: the checksum must be at the end of the file.
	if _, err := io.Copy(io.Discard, in); err != nil {
		return nil, err
	}
	var trailer plumbing.Hash
	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.ReadAt(trailer[:], size-int64(len(trailer)))
	}
	if err != nil {
		return nil, err
	}
	if trailer != s.checksum {
		return nil, errors.New("malformed pack: there is more behind its end")
	}
	return s, nil
}

func (s *packScan) scan(scanner *packfile.Scanner) error {
	_, count, err := scanner.Header()
	if err != nil {
		return err
	}
	if count > maxObjects {
		return fmt.Errorf("the pack has %d objects, more than the %d that are read: %w", count, maxObjects, sources.ErrLimit)
	}
	s.entries = make([]packEntry, 0, min(count, 1<<16)) // the count may be false
	var inflated int64
	for i := range int(count) {
		h, err := scanner.NextObjectHeader()
		if err != nil {
			return err
		}
		if h.Length < 0 || h.Length > maxInflated-inflated {
			return fmt.Errorf("the objects of the pack are more than %d MiB inflated: %w", maxInflated>>20, sources.ErrLimit)
		}
		inflated += h.Length
		e := packEntry{offset: h.Offset, typ: h.Type}
		var n int64
		switch h.Type {
		case plumbing.CommitObject, plumbing.TreeObject, plumbing.BlobObject, plumbing.TagObject:
			hasher := plumbing.NewHasher(h.Type, h.Length)
			if n, e.crc, err = scanner.NextObject(hasher); err != nil {
				return err
			}
			e.hash = hasher.Sum()
		case plumbing.OFSDeltaObject, plumbing.REFDeltaObject:
			e.delta = true
			var head deltaHead
			if n, e.crc, err = scanner.NextObject(&head); err != nil {
				return err
			}
			target, err := head.target()
			if err != nil {
				return err
			}
			if target > objects.MaxFile || h.Length > objects.MaxFile {
				return objects.TooLarge(max(target, h.Length))
			}
			inflated += target
			if h.Type == plumbing.REFDeltaObject {
				s.byBase[h.Reference] = append(s.byBase[h.Reference], i)
				break
			}
			base, ok := slices.BinarySearchFunc(s.entries, h.OffsetReference, func(e packEntry, offset int64) int { return cmp.Compare(e.offset, offset) })
			if !ok {
				return errors.New("malformed pack: a delta is based on nothing")
			}
			s.entries[base].kids = append(s.entries[base].kids, i)
		default:
			return fmt.Errorf("malformed pack: an object of type %d", h.Type)
		}
		if n != h.Length {
			return errors.New("malformed pack: an object is shorter than it says")
		}
		s.entries = append(s.entries, e)
	}
	s.checksum, err = scanner.Checksum()
	return err
}

// deltaHead keeps the beginning of a delta: the sizes of its base and of its
// result, as variable-length integers (gitformat-pack(5)).
type deltaHead struct{ buf []byte }

func (d *deltaHead) Write(p []byte) (int, error) {
	d.buf = append(d.buf, p[:min(len(p), 2*binary.MaxVarintLen64-len(d.buf))]...)
	return len(p), nil
}

// target returns the size of the delta's result.
func (d *deltaHead) target() (int64, error) {
	_, n := binary.Uvarint(d.buf)
	if n > 0 {
		if size, m := binary.Uvarint(d.buf[n:]); m > 0 && size <= math.MaxInt64 {
			return int64(size), nil
		}
	}
	return 0, errors.New("malformed pack: a delta without sizes")
}

// lookup returns an object outside of the pack that the pack may refer to.
type lookup func(h plumbing.Hash) (plumbing.ObjectType, []byte, error)

// resolve computes the hashes of the objects that are stored as deltas, and returns the
// index of the pack. It looks up and appends the bases that a thin pack lacks, as git
// index-pack --fix-thin does.
func (s *packScan) resolve(outside lookup) (*idxfile.MemoryIndex, error) {
	scanner := packfile.NewScanner(s.file)
	for i := range s.entries {
		e := &s.entries[i]
		if e.delta {
			continue
		}
		if e.kids = append(e.kids, s.take(e.hash)...); len(e.kids) == 0 {
			continue
		}
		base, err := s.content(scanner, e)
		if err != nil {
			return nil, err
		}
		if err := s.resolveKids(scanner, i, base, int64(len(base)), 1); err != nil {
			return nil, err
		}
	}
	if len(s.byBase) > 0 {
		if err := s.complete(scanner, outside); err != nil {
			return nil, err
		}
	}
	w := new(idxfile.Writer)
	if err := w.OnHeader(uint32(len(s.entries))); err != nil {
		return nil, err
	}
	for _, e := range s.entries {
		if e.hash.IsZero() {
			return nil, errors.New("malformed pack: deltas that are based on each other")
		}
		w.Add(e.hash, uint64(e.offset), e.crc)
	}
	if err := w.OnFooter(s.checksum); err != nil {
		return nil, err
	}
	return w.Index()
}

// take removes and returns the deltas that name h as their base.
func (s *packScan) take(h plumbing.Hash) []int {
	kids := s.byBase[h]
	delete(s.byBase, h)
	return kids
}

// complete appends the objects that a thin pack lacks, and resolves the deltas
// that are based on them.
func (s *packScan) complete(scanner *packfile.Scanner, outside lookup) error {
	end, err := s.file.Seek(-int64(len(s.checksum)), io.SeekEnd)
	if err != nil {
		return err
	}
	// Resolving one base may resolve others, with deltas on deltas.
	for len(s.byBase) > 0 {
		for base := range s.byBase {
			t, content, err := outside(base)
			if err != nil {
				return fmt.Errorf("the pack has a delta on %s, which is neither in it nor here: %w", base, err)
			}
			e := packEntry{offset: end, typ: t, hash: base, kids: s.take(base)}
			var raw bytes.Buffer
			if err := encodeEntry(&raw, t, content); err != nil {
				return err
			}
			e.crc = crc32.ChecksumIEEE(raw.Bytes())
			if _, err := s.file.WriteAt(raw.Bytes(), end); err != nil {
				return err
			}
			end += int64(raw.Len())
			s.entries = append(s.entries, e)
			if err := s.resolveKids(scanner, len(s.entries)-1, content, int64(len(content)), 1); err != nil {
				return err
			}
			break // byBase has changed
		}
	}
	return s.seal(end)
}

// encodeEntry encodes an object as an entry of a pack (gitformat-pack(5)).
func encodeEntry(w *bytes.Buffer, t plumbing.ObjectType, content []byte) error {
	size := len(content)
	head := byte(t)<<4 | byte(size&0x0f)
	for size >>= 4; size > 0; size >>= 7 {
		w.WriteByte(head | 0x80)
		head = byte(size & 0x7f)
	}
	w.WriteByte(head)
	z := zlib.NewWriter(w)
	_, err := z.Write(content)
	return errors.Join(err, z.Close())
}

// seal writes the number of objects and the checksum of a pack that ends at end.
func (s *packScan) seal(end int64) error {
	count := binary.BigEndian.AppendUint32(nil, uint32(len(s.entries)))
	if _, err := s.file.WriteAt(count, 8); err != nil {
		return err
	}
	hash := sha1.New()
	if _, err := io.Copy(hash, io.NewSectionReader(s.file, 0, end)); err != nil {
		return err
	}
	hash.Sum(s.checksum[:0])
	_, err := s.file.WriteAt(s.checksum[:], end)
	return err
}

// resolveKids resolves the deltas on the object i with the content base, and the deltas
// on those. held is the memory of the contents up to here, depth the number of deltas.
func (s *packScan) resolveKids(scanner *packfile.Scanner, i int, base []byte, held int64, depth int) error {
	if depth > maxDeltaChain {
		return fmt.Errorf("deltas on deltas, more than %d: %w", maxDeltaChain, sources.ErrLimit)
	}
	if held > maxHeld {
		return fmt.Errorf("deltas on deltas of more than %d MiB together: %w", maxHeld>>20, sources.ErrLimit)
	}
	kids := s.entries[i].kids
	for n, k := range kids {
		kid := &s.entries[k]
		delta, err := s.content(scanner, kid)
		if err != nil {
			return err
		}
		content, err := packfile.PatchDelta(base, delta)
		if err != nil {
			return fmt.Errorf("malformed pack: %w", err)
		}
		kid.typ = s.entries[i].typ
		kid.hash = plumbing.ComputeHash(kid.typ, content)
		if n == len(kids)-1 {
			held -= int64(len(base))
			base = nil // so that a long chain has only two objects in memory
		}
		if kid.kids = append(kid.kids, s.take(kid.hash)...); len(kid.kids) == 0 {
			continue
		}
		if err := s.resolveKids(scanner, k, content, held+int64(len(content)), depth+1); err != nil {
			return err
		}
	}
	return nil
}

// content inflates an object's entry.
func (s *packScan) content(scanner *packfile.Scanner, e *packEntry) ([]byte, error) {
	h, err := scanner.SeekObjectHeader(e.offset)
	if err != nil {
		return nil, err
	}
	if h.Length > objects.MaxFile {
		return nil, objects.TooLarge(h.Length)
	}
	buf := bytes.NewBuffer(make([]byte, 0, h.Length))
	if _, _, err := scanner.NextObject(buf); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// writeIndex writes an index beside its pack.
func writeIndex(dir string, index *idxfile.MemoryIndex, name string) (err error) {
	f, err := os.CreateTemp(dir, temporary+"idx_")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = idxfile.NewEncoder(f).Encode(index)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}
