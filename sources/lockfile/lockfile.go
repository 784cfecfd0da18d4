// Package lockfile is clusters.lock: for each cluster the packages it selects,
// and for each package version the digests it resolved to.
//
// The lock is text, one record a line, sorted, without time stamps, so that Git can
// merge it and people can read its diff:
//
//	@CLUSTER REPOSITORY VERSION
//	@CLUSTER REPOSITORY VERSION <- REPOSITORY
//	@CLUSTER DEFINITION conversion SUM
//	REPOSITORY VERSION SUM
//	REPOSITORY VERSION/ITEM SUM
//
// The first two forms select a version for a cluster, as a requirement in go.mod does.
// The second is for a dependency, and names the package that depends on it. The third
// has the digest of the conversion rules of a CustomResourceDefinition
// (conversions.go).
//
// The last two verify, as go.sum does. The first has the digest of the index or manifest
// that the version resolved to. The items are each platform's manifest
// ("linux/amd64"), the content that defines the types ("package.yaml"), the types
// ("types"), the controller's image ("runtime"), and, if that is not the package
// itself, its platforms ("runtime/linux/amd64"). A reference by digest has the digest in
// the version column.
//
// There is one version for each cluster and dependency, and one sum for each version
// and item, unless a merge left several because two people decided differently
// (merge.go). Then none is used, and the package has an error that names them
// (contested.go). images.go lists the controllers' images, mismatch.go is the error
// about a sum that differs.
//
// The package is pure: it parses (parse.go), formats, compares and merges.
// sources/resolve decides when a record is added.
package lockfile

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	"gitopsd.dev/sources"
)

// Selection is the version of a package in a cluster. It is comparable.
type Selection struct {
	Cluster    string
	Repository string
	Version    string
	// Parent is the repository of a package that depends on this one; empty
	// if the cluster declares it.
	Parent string
}

// Key identifies a record. It is comparable.
type Key struct {
	Repository string
	Version    string
	// Item is empty for the version itself, or "package.yaml", "types",
	// "runtime", a platform, or "runtime/" and a platform.
	Item string
}

// The items that are not platforms.
const (
	ItemContent = "package.yaml"
	ItemTypes   = "types"
	ItemRuntime = "runtime"
)

// File is a lock in memory. The zero value is an empty lock. It is not safe for
// concurrent changes.
type File struct {
	selections  ofClusters[Selection]
	conversions ofClusters[Conversion]
	records     map[Key]record
	// contested has the records of keys with different sums. Their keys are not in
	// records.
	contested map[Key][]record
}

// record has its line in the parsed file, from 1; 0 if it was added since.
type record struct {
	sum  string
	line int
}

// String returns the first two columns of the record's line.
func (k Key) String() string {
	if k.Item == "" {
		return k.Repository + " " + k.Version
	}
	return k.Repository + " " + k.Version + "/" + k.Item
}

// isOf reports whether the record is about a version of a package.
func (k Key) isOf(repository, version string) bool {
	return k.Repository == repository && k.Version == version
}

// version returns the key of the version that the record is about.
func (k Key) version() Key { return Key{Repository: k.Repository, Version: k.Version} }

// String returns the selection's line.
func (s Selection) String() string {
	line := "@" + s.Cluster + " " + s.Repository + " " + s.Version
	if s.Parent != "" {
		line += " <- " + s.Parent
	}
	return line
}

// Format returns the lock's bytes: its lines sorted bytewise. Equal locks have
// equal bytes.
func (f *File) Format() []byte {
	lines := make([]string, 0, len(f.records))
	for s := range f.selections.all() {
		lines = append(lines, s.String())
	}
	for c := range f.conversions.all() {
		lines = append(lines, c.String())
	}
	for k, r := range f.all() {
		lines = append(lines, k.String()+" "+r.sum)
	}
	slices.Sort(lines)
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// all yields every record, including contested ones, in no order.
func (f *File) all() iter.Seq2[Key, record] {
	return func(yield func(Key, record) bool) {
		for k, r := range f.records {
			if !yield(k, r) {
				return
			}
		}
		for k, both := range f.contested {
			for _, r := range both {
				if !yield(k, r) {
					return
				}
			}
		}
	}
}

// Clone returns a copy that shares nothing.
func (f *File) Clone() *File {
	c := &File{selections: f.selections.clone(), conversions: f.conversions.clone(), records: maps.Clone(f.records), contested: maps.Clone(f.contested)}
	for k, both := range c.contested {
		c.contested[k] = slices.Clone(both)
	}
	return c
}

func (f *File) choose(s Selection, line int) { f.selections.add(s.Cluster, s, line) }

// put adds a record. If the key has another sum, both records are contested.
func (f *File) put(k Key, r record) {
	if both, contested := f.contested[k]; contested {
		if !slices.ContainsFunc(both, func(other record) bool { return other.sum == r.sum }) {
			f.contested[k] = append(both, r)
		}
		return
	}
	have, there := f.records[k]
	switch {
	case !there:
		if f.records == nil {
			f.records = make(map[Key]record)
		}
		f.records[k] = r
	case have.sum != r.sum:
		if f.contested == nil {
			f.contested = make(map[Key][]record)
		}
		f.contested[k] = []record{have, r}
		delete(f.records, k)
	}
}

// Lookup returns the sum recorded for k. A contested key has none.
func (f *File) Lookup(k Key) (string, bool) {
	r, ok := f.records[k]
	return r.sum, ok
}

// Line returns the line of a record in the parsed file, from 1; 0 if it was
// added since.
func (f *File) Line(k Key) int { return f.records[k].line }

// Digest returns the digest that a version of a package resolved to.
func (f *File) Digest(repository, version string) (sources.Digest, bool) {
	sum, ok := f.Lookup(Key{Repository: repository, Version: version})
	return sources.Digest(sum), ok
}

// Records returns the records of one version of a package, by item.
func (f *File) Records(repository, version string) map[string]string {
	found := make(map[string]string)
	for k, r := range f.records {
		if k.isOf(repository, version) {
			found[k.Item] = r.sum
		}
	}
	return found
}

// Versions returns the recorded versions of a package. Those that more clusters select
// come first; equally used ones are in descending order.
func (f *File) Versions(repository string) []string {
	uses := make(map[string]int)
	for k := range f.records {
		if k.Repository == repository && k.Item == "" {
			uses[k.Version] += 0
		}
	}
	for s := range f.selections.all() {
		if _, ok := uses[s.Version]; ok && s.Repository == repository {
			uses[s.Version]++
		}
	}
	return slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(cmp.Compare(uses[b], uses[a]), cmp.Compare(b, a))
	})
}

// Selections returns the selections of a cluster, sorted.
func (f *File) Selections(cluster string) []Selection {
	return slices.SortedFunc(maps.Keys(f.selections[cluster]), compareSelections)
}

func compareSelections(a, b Selection) int { return cmp.Compare(a.String(), b.String()) }

// AllSelections returns the selections of each cluster that has any, sorted.
func (f *File) AllSelections() map[string][]Selection {
	all := make(map[string][]Selection)
	for cluster := range f.selections {
		all[cluster] = f.Selections(cluster)
	}
	return all
}

// Clusters returns the names of the clusters that have any lines, sorted.
func (f *File) Clusters() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(f.selections)), maps.Keys(f.conversions))
	slices.Sort(names)
	return slices.Compact(names)
}

// Select replaces the selections of a cluster. It panics if one of them is
// another cluster's.
func (f *File) Select(cluster string, selections []Selection) {
	delete(f.selections, cluster)
	for _, s := range selections {
		if s.Cluster != cluster {
			panic("lockfile: a selection of " + s.Cluster + " given for " + cluster)
		}
		f.choose(s, 0)
	}
}

// Forget removes all records of one version of a package, so that it can be
// recorded again.
func (f *File) Forget(repository, version string) {
	f.remove(func(k Key) bool { return k.isOf(repository, version) })
}

// Tidy removes the records of versions that no cluster selects, and returns their
// number.
func (f *File) Tidy() int {
	used := make(map[Key]bool)
	for s := range f.selections.all() {
		used[Key{Repository: s.Repository, Version: s.Version}] = true
	}
	return f.remove(func(k Key) bool { return !used[k.version()] })
}

// remove removes the records, contested or not, with matching keys, and returns their
// number.
func (f *File) remove(matches func(Key) bool) int {
	removed := 0
	for k := range f.all() {
		if matches(k) {
			removed++
		}
	}
	maps.DeleteFunc(f.records, func(k Key, _ record) bool { return matches(k) })
	maps.DeleteFunc(f.contested, func(k Key, _ []record) bool { return matches(k) })
	return removed
}

// Record compares a sum with the one recorded for k, or adds it if there is
// none. The error is a [*Mismatch] if they differ, and a [*Contradiction] if
// the key is contested. With an error the lock is unchanged.
func (f *File) Record(k Key, sum, seenIn string) error {
	if err := checkSum(k, sum); err != nil {
		return fmt.Errorf("recording %s: %w", k, err)
	}
	if _, contested := f.contested[k]; contested {
		return f.contradiction(k)
	}
	if have, ok := f.records[k]; ok && have.sum != sum {
		return &Mismatch{Key: k, Line: have.line, Locked: have.sum, Seen: sum, SeenIn: seenIn}
	}
	f.put(k, record{sum: sum})
	return nil
}

// Adopt replaces the records of one version of a package by other's.
func (f *File) Adopt(other *File, repository, version string) {
	f.Forget(repository, version)
	for k, r := range other.all() {
		if k.isOf(repository, version) {
			f.put(k, r)
		}
	}
}
