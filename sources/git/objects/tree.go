package objects

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// Entry is one entry of a tree object.
type Entry struct {
	Name string
	Mode filemode.FileMode
	Hash plumbing.Hash
	// start and end are the entry's offsets in the tree's content.
	start, end int
}

// ParseTree reads the entries of a tree object, in their order.
func ParseTree(content []byte) ([]Entry, error) {
	entries := make([]Entry, 0, len(content)/40)
	for i := 0; i < len(content); {
		start := i
		var mode uint32
		for ; i < len(content) && content[i] != ' '; i++ {
			if content[i] < '0' || content[i] > '7' || i-start == 7 {
				return nil, errors.New("malformed tree: the mode of an entry is not octal")
			}
			mode = mode<<3 | uint32(content[i]-'0')
		}
		i++
		nul := -1
		if i < len(content) {
			nul = bytes.IndexByte(content[i:], 0)
		}
		if nul < 0 || len(content) < i+nul+1+len(plumbing.Hash{}) {
			return nil, errors.New("malformed tree: an entry is cut off")
		}
		e := Entry{Name: string(content[i : i+nul]), Mode: filemode.FileMode(mode), start: start}
		i += nul + 1
		i += copy(e.Hash[:], content[i:])
		e.end = i
		entries = append(entries, e)
	}
	return entries, nil
}

// EncodeTree returns the tree object with the entries.
func EncodeTree(entries []Entry) Raw {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b Entry) int { return strings.Compare(a.sortName(), b.sortName()) })
	var content []byte
	for _, e := range sorted {
		content = e.appendTo(content)
	}
	return NewRaw(plumbing.TreeObject, content)
}

func (e Entry) appendTo(content []byte) []byte {
	content = fmt.Appendf(content, "%o %s\x00", uint32(e.Mode), e.Name)
	return append(content, e.Hash[:]...)
}

// The type of an entry is in its mode.
func (e Entry) IsDir() bool       { return e.Mode&0o170000 == 0o040000 }
func (e Entry) isFile() bool      { return e.Mode&0o170000 == 0o100000 }
func (e Entry) isSymlink() bool   { return e.Mode&0o170000 == 0o120000 }
func (e Entry) IsSubmodule() bool { return e.Mode&0o170000 == 0o160000 }

// reachable reports whether the entry has a valid name, which git would check out.
func (e Entry) reachable() bool {
	return e.Name != "" && e.Name != "." && e.Name != ".." && !strings.EqualFold(e.Name, ".git") &&
		!strings.Contains(e.Name, "/")
}

// sortName returns the name that Git sorts the entry by.
func (e Entry) sortName() string {
	if e.IsDir() {
		return e.Name + "/"
	}
	return e.Name
}

// Graft replaces the file at path in the tree root by blob, or adds it, and
// returns the new trees, the root last. Everything else stays as it is, including an
// existing file's mode.
func Graft(r Reader, root plumbing.Hash, path string, blob plumbing.Hash) ([]Raw, error) {
	if !fs.ValidPath(path) || path == "." {
		return nil, fmt.Errorf("%q is not the path of a file", path)
	}
	var content []byte
	if root != plumbing.ZeroHash {
		var err error
		if content, err = r.Read(plumbing.TreeObject, root); err != nil {
			return nil, fmt.Errorf("tree %s: %w", root, err)
		}
	}
	entries, err := ParseTree(content)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", root, err)
	}
	name, rest, isDir := strings.Cut(path, "/")
	e := Entry{Name: name, Mode: filemode.Regular, Hash: blob, start: -1}
	if !e.reachable() {
		return nil, fmt.Errorf("%q cannot be the name of a file in a repository", name)
	}
	if isDir {
		e.Mode = filemode.Dir
	}
	for _, have := range entries {
		if have.Name == name {
			if have.IsDir() != isDir || !isDir && !have.isFile() {
				return nil, fmt.Errorf("%s in the repository is a %s, so that it cannot be written", name, have.kind())
			}
			e = have
			break
		}
	}
	var below []Raw
	if isDir {
		var sub plumbing.Hash
		if e.start >= 0 {
			sub = e.Hash
		}
		if below, err = Graft(r, sub, rest, blob); err != nil {
			return nil, err
		}
		e.Hash = below[len(below)-1].Hash
	} else {
		e.Hash = blob
	}
	return append(below, NewRaw(plumbing.TreeObject, e.putInto(content, entries))), nil
}

// putInto returns a tree's content with e in place of the entry at e.start, or, if that is
// negative, inserted in order.
func (e Entry) putInto(content []byte, entries []Entry) []byte {
	if e.start >= 0 {
		out := bytes.Clone(content)
		copy(out[e.end-len(e.Hash):e.end], e.Hash[:])
		return out
	}
	at := len(content)
	for _, o := range entries {
		if e.sortName() < o.sortName() {
			at = o.start
			break
		}
	}
	out := make([]byte, 0, len(content)+len(e.Name)+32)
	out = e.appendTo(append(out, content[:at]...))
	return append(out, content[at:]...)
}

func (e Entry) kind() string {
	switch {
	case e.IsDir():
		return "directory"
	case e.isFile():
		return "file"
	case e.isSymlink():
		return "symbolic link"
	case e.IsSubmodule():
		return "submodule"
	}
	return fmt.Sprintf("thing of mode %o", uint32(e.Mode))
}

// DifferOnly reports whether two trees differ in one file alone, which the second one has: in its
// content, or because the first one does not have it.
func DifferOnly(before, after []byte, file string) (bool, error) {
	rest, was, err := without(before, file)
	if err != nil {
		return false, err
	}
	same, now, err := without(after, file)
	if was.Name == "" {
		was.Mode = filemode.Regular
	}
	return now.isFile() && now.Mode == was.Mode && now.Hash != was.Hash && bytes.Equal(rest, same), err
}

// without returns a tree's content without an entry, and the entry; zero if there is none.
func without(content []byte, name string) ([]byte, Entry, error) {
	entries, err := ParseTree(content)
	if i := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == name }); i >= 0 {
		e := entries[i]
		return slices.Concat(content[:e.start], content[e.end:]), e, err
	}
	return content, Entry{}, err
}
