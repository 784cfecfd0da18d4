package lockfile

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Locks are merged three-way and part by part. A part is what a person decides on, such
// as all records of one version of a package, or all lines of one dependency in one
// cluster. A part that one side changed is taken from that side, so that updates and
// rollbacks both survive. A part that both sides changed is the union of their lines,
// which are contested if they have different digests or versions.
//
// The merge is symmetric in ours and theirs, and merging a side again changes
// nothing.

// Merge merges two locks with the common ancestor base.
func Merge(base, ours, theirs *File) *File {
	return merge(base, ours, theirs, byLine)
}

// Rebase merges as [Merge] does, and takes theirs where the two disagree.
func Rebase(base, ours, theirs *File) *File {
	return merge(base, ours, theirs, func(_, _, theirs lineSet) lineSet { return theirs })
}

// line is a record with its sum, a selection, or conversion rules.
type line struct {
	key        Key
	sum        string
	selection  Selection
	conversion Conversion
}

// lineSet maps each line to its number in the file.
type lineSet map[line]int

// part identifies the unit of a merge: a version of a package, a package in a cluster
// (as a dependency or, since the lock does not decide on these, as declared), or the
// conversion rules of a definition in a cluster.
type part struct {
	cluster, repository, version string
	declared                     bool
	definition                   string
}

// partOf returns the part that a line belongs to.
func partOf(l line) part {
	if c := l.conversion; c != (Conversion{}) {
		return part{cluster: c.Cluster, definition: c.Definition}
	}
	if s := l.selection; l.sum == "" {
		return part{cluster: s.Cluster, repository: s.Repository, declared: s.Parent == ""}
	}
	return part{repository: l.key.Repository, version: l.key.Version}
}

func (f *File) parts() map[part]lineSet {
	parts := make(map[part]lineSet)
	add := func(l line, at int) {
		p := partOf(l)
		if parts[p] == nil {
			parts[p] = make(lineSet)
		}
		parts[p][l] = at
	}
	for k, r := range f.all() {
		add(line{key: k, sum: r.sum}, r.line)
	}
	for s, at := range f.selections.all() {
		add(line{selection: s}, at)
	}
	for c, at := range f.conversions.all() {
		add(line{conversion: c}, at)
	}
	return parts
}

func (f *File) add(lines lineSet) {
	for l, at := range lines {
		switch {
		case l.conversion != (Conversion{}):
			f.convert(l.conversion, at)
		case l.sum == "":
			f.choose(l.selection, at)
		default:
			f.put(l.key, record{l.sum, at})
		}
	}
}

func merge(base, ours, theirs *File, disagree func(base, ours, theirs lineSet) lineSet) *File {
	o, a, b := base.parts(), ours.parts(), theirs.parts()
	merged := new(File)
	for _, parts := range []map[part]lineSet{a, b} {
		for p := range parts {
			merged.add(mergePart(p, o[p], a[p], b[p], disagree))
		}
	}
	recorded := make(map[part]bool)
	for k := range merged.all() {
		recorded[part{repository: k.Repository, version: k.Version}] = true
	}
	for s := range merged.selections.all() {
		p := part{repository: s.Repository, version: s.Version}
		if recorded[p] || a[p] == nil && b[p] == nil {
			continue
		}
		// One side dropped the records of a version that only the other selects.
		if !ours.selects(p) {
			merged.add(b[p])
		}
		if !theirs.selects(p) {
			merged.add(a[p])
		}
	}
	return merged
}

// selects reports whether any cluster selects a version.
func (f *File) selects(p part) bool {
	for s := range f.selections.all() {
		if s.Repository == p.repository && s.Version == p.version {
			return true
		}
	}
	return false
}

func mergePart(p part, base, ours, theirs lineSet, disagree func(base, ours, theirs lineSet) lineSet) lineSet {
	same := func(a, b lineSet) bool { return maps.EqualFunc(a, b, func(int, int) bool { return true }) }
	switch {
	case same(ours, base), same(ours, theirs):
		return theirs
	case same(theirs, base):
		return ours
	}
	o, a, b := base.head(), ours.head(), theirs.head()
	switch {
	case p.declared, same(a, b), p.cluster != "" && (len(ours) == 0 || len(theirs) == 0):
		return byLine(base, ours, theirs)
	case len(ours) == 0:
		return theirs // records that the other side changed are not dropped
	case len(theirs) == 0, same(b, o):
		return ours
	case same(a, o):
		return theirs
	}
	return disagree(base, ours, theirs)
}

// head returns the lines that the others of a part follow from: the digest of a version,
// or the version that a cluster selects.
func (s lineSet) head() lineSet {
	head := make(lineSet)
	for l := range s {
		switch {
		case l.conversion != (Conversion{}):
			head[l] = 0
		case l.sum == "":
			head[line{selection: Selection{Version: l.selection.Version}}] = 0
		case l.key.Item == "":
			head[l] = 0
		}
	}
	return head
}

// byLine returns the lines that both sides have or one side added.
func byLine(base, ours, theirs lineSet) lineSet {
	merged := make(lineSet)
	for _, side := range []lineSet{theirs, ours} {
		for l, at := range side {
			_, old := base[l]
			_, mine := ours[l]
			_, yours := theirs[l]
			if !old || mine && yours {
				merged[l] = at
			}
		}
	}
	return merged
}

// Added returns the lines of after that before does not have.
func Added(before, after *File) *File {
	added := new(File)
	old := before.parts()
	for p, lines := range after.parts() {
		for l, at := range lines {
			if _, there := old[p][l]; !there {
				added.add(lineSet{l: at})
			}
		}
	}
	return added
}

// Moved returns the versions that have different digests before and after, sorted.
func Moved(before, after *File) []Key {
	var moved []Key
	for k, was := range before.records {
		if now, there := after.records[k]; there && k.Item == "" && now.sum != was.sum {
			moved = append(moved, k)
		}
	}
	slices.SortFunc(moved, compareKeys)
	return moved
}

// Add adds all lines of other.
func (f *File) Add(other *File) {
	for _, lines := range other.parts() {
		f.add(lines)
	}
}

// Has reports whether f has all lines of other.
func (f *File) Has(other *File) bool {
	return len(Added(f, other).parts()) == 0
}

// FormatConflicts returns the lock's bytes with Git's conflict markers around
// contested lines.
func (f *File) FormatConflicts(ours, theirs *File) []byte {
	contested := make(map[part]bool)
	for k := range f.contested {
		contested[partOf(line{key: k, sum: "any"})] = true
	}
	for _, all := range f.contestedSelections() {
		contested[partOf(line{selection: all[0]})] = true
	}
	a, b := ours.parts(), theirs.parts()
	var blocks []string
	for p, lines := range f.parts() {
		var common, mine, yours []string
		for l := range lines {
			text := l.String() + "\n"
			_, inOurs := a[p][l]
			_, inTheirs := b[p][l]
			switch {
			case !contested[p] || inOurs && inTheirs:
				common = append(common, text)
			case inOurs:
				mine = append(mine, text)
			default:
				yours = append(yours, text)
			}
		}
		blocks = append(blocks, common...)
		if contested[p] {
			slices.Sort(mine)
			slices.Sort(yours)
			blocks = append(blocks, "<<<<<<< ours\n"+strings.Join(mine, "")+"=======\n"+strings.Join(yours, "")+">>>>>>> theirs\n")
		}
	}
	// A block is sorted by its first line.
	first := func(block string) string {
		return strings.TrimPrefix(strings.TrimPrefix(block, "<<<<<<< ours\n"), "=======\n")
	}
	slices.SortFunc(blocks, func(a, b string) int { return cmp.Compare(first(a), first(b)) })
	return []byte(strings.Join(blocks, ""))
}

func (l line) String() string {
	switch {
	case l.conversion != (Conversion{}):
		return l.conversion.String()
	case l.sum == "":
		return l.selection.String()
	}
	return l.key.String() + " " + l.sum
}
