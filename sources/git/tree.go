package git

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
)

// treeEntry is one entry of a tree object.
type treeEntry struct {
	name string
	mode filemode.FileMode
	hash plumbing.Hash
	// start and end are where the entry stands in the tree's content.
	start, end int
}

// parseTree reads the content of a tree object, in its order.
func parseTree(content []byte) ([]treeEntry, error) {
	entries := make([]treeEntry, 0, len(content)/40)
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
		e := treeEntry{name: string(content[i : i+nul]), mode: filemode.FileMode(mode), start: start}
		i += nul + 1
		i += copy(e.hash[:], content[i:])
		e.end = i
		entries = append(entries, e)
	}
	return entries, nil
}

func (e treeEntry) isDir() bool       { return e.mode&0o170000 == 0o040000 }
func (e treeEntry) isFile() bool      { return e.mode&0o170000 == 0o100000 }
func (e treeEntry) isSymlink() bool   { return e.mode&0o170000 == 0o120000 }
func (e treeEntry) isSubmodule() bool { return e.mode&0o170000 == 0o160000 }

// reachable says that the entry has a name by which it can be asked for.
// Others, which git itself refuses to check out, do not exist for us.
func (e treeEntry) reachable() bool {
	return e.name != "" && e.name != "." && e.name != ".." && !strings.EqualFold(e.name, ".git") &&
		!strings.ContainsAny(e.name, "/\\") && utf8.ValidString(e.name)
}

// before says how Git sorts entries: by name, a directory as if its name ended
// in a slash.
func (e treeEntry) before(o treeEntry) bool {
	return e.sortName() < o.sortName()
}

func (e treeEntry) sortName() string {
	if e.isDir() {
		return e.name + "/"
	}
	return e.name
}

// graft returns the tree root with the file at path replaced by blob, or added,
// and the trees that are new, root's last. Everything else stays byte by byte as
// it was, an existing file's mode too.
func graft(o objects, root plumbing.Hash, path string, blob plumbing.Hash) ([]rawObject, error) {
	if !fs.ValidPath(path) || path == "." {
		return nil, fmt.Errorf("%q is not the path of a file", path)
	}
	var content []byte
	if root != plumbing.ZeroHash {
		var err error
		if content, err = o.read(plumbing.TreeObject, root); err != nil {
			return nil, fmt.Errorf("tree %s: %w", root, err)
		}
	}
	entries, err := parseTree(content)
	if err != nil {
		return nil, fmt.Errorf("tree %s: %w", root, err)
	}
	name, rest, isDir := strings.Cut(path, "/")
	e := treeEntry{name: name, mode: filemode.Regular, hash: blob, start: -1}
	if isDir {
		e.mode = filemode.Dir
	}
	for _, have := range entries {
		if have.name == name {
			if have.isDir() != isDir || !isDir && !have.isFile() {
				return nil, fmt.Errorf("%s in the repository is a %s, so that it cannot be written", name, have.kind())
			}
			e = have
			break
		}
	}
	var below []rawObject
	if isDir {
		var sub plumbing.Hash
		if e.start >= 0 {
			sub = e.hash
		}
		if below, err = graft(o, sub, rest, blob); err != nil {
			return nil, err
		}
		e.hash = below[len(below)-1].hash
	} else {
		e.hash = blob
	}
	return append(below, newRawObject(plumbing.TreeObject, e.putInto(content, entries))), nil
}

// putInto returns a tree's content with e in the place of the entry that it was
// read as, or, with a negative start, inserted where it belongs.
func (e treeEntry) putInto(content []byte, entries []treeEntry) []byte {
	if e.start >= 0 {
		out := bytes.Clone(content)
		copy(out[e.end-len(e.hash):e.end], e.hash[:])
		return out
	}
	at := len(content)
	for _, o := range entries {
		if e.before(o) {
			at = o.start
			break
		}
	}
	out := make([]byte, 0, len(content)+len(e.name)+32)
	out = append(out, content[:at]...)
	out = fmt.Appendf(out, "%o %s\x00", uint32(e.mode), e.name)
	out = append(out, e.hash[:]...)
	return append(out, content[at:]...)
}

func (e treeEntry) kind() string {
	switch {
	case e.isDir():
		return "directory"
	case e.isFile():
		return "file"
	case e.isSymlink():
		return "symbolic link"
	case e.isSubmodule():
		return "submodule"
	}
	return fmt.Sprintf("thing of mode %o", uint32(e.mode))
}
