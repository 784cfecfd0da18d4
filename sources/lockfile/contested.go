package lockfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Contradiction is an error about a lock with different lines for one key, as a merge
// leaves them if two people decided differently. None of the lines is used until a
// person removes the others.
type Contradiction struct {
	// Subject is the record or dependency that the lines are about.
	Subject string
	// Repository is the package's.
	Repository string
	// Says are the versions or sums, sorted by line, and Lines their lines; 0
	// for an unknown line.
	Says  []string
	Lines []int
}

func (c *Contradiction) Error() string {
	var where []string
	for i, says := range c.Says {
		where = append(where, fmt.Sprintf("%s in %s", says, Where(c.Lines[i])))
	}
	return fmt.Sprintf("%s has two lines for %s: %s. A merge left both, and nothing is changed by either; everything else goes on. "+
		"Delete the lines that are out of date, or run `gitopsd lock --update=%s`, and commit the change",
		sources.LockFile, c.Subject, strings.Join(where, ", "), c.Repository)
}

// Contested returns a [*Contradiction] if records of a version of a package
// differ.
func (f *File) Contested(repository, version string) error {
	var keys []Key
	for k := range f.contested {
		if k.isOf(repository, version) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	// The other records follow from the digest, whose key is the first.
	return f.contradiction(slices.MinFunc(keys, compareKeys))
}

func (f *File) contradiction(k Key) error {
	both := slices.Clone(f.contested[k])
	slices.SortFunc(both, func(a, b record) int { return cmp.Or(cmp.Compare(a.line, b.line), cmp.Compare(a.sum, b.sum)) })
	c := &Contradiction{Subject: k.String(), Repository: k.Repository}
	for _, r := range both {
		c.Says, c.Lines = append(c.Says, r.sum), append(c.Lines, r.line)
	}
	return c
}

// ContestedSelection returns a [*Contradiction] if lines select different
// versions of a dependency for one cluster.
func (f *File) ContestedSelection(cluster, repository string) error {
	c := &Contradiction{Subject: fmt.Sprintf("the dependency %s of cluster %s", repository, cluster), Repository: repository}
	all := f.contestedSelections()[owned{cluster, repository}]
	slices.SortFunc(all, func(a, b Selection) int {
		return cmp.Or(cmp.Compare(f.selections[cluster][a], f.selections[cluster][b]), cmp.Compare(a.Version, b.Version))
	})
	for _, s := range all {
		if !slices.Contains(c.Says, s.Version) {
			c.Says, c.Lines = append(c.Says, s.Version), append(c.Lines, f.selections[cluster][s])
		}
	}
	if c.Says == nil {
		return nil
	}
	return c
}

// Contradictions returns a [*Contradiction] for each contested record, and then for
// each contested dependency.
func (f *File) Contradictions() []error {
	var all []error
	for _, k := range slices.SortedFunc(maps.Keys(f.contested), compareKeys) {
		all = append(all, f.contradiction(k))
	}
	for _, o := range slices.SortedFunc(maps.Keys(f.contestedSelections()), compareOwned) {
		all = append(all, f.ContestedSelection(o.cluster, o.repository))
	}
	return all
}

// owned is a package in a cluster.
type owned struct{ cluster, repository string }

// contestedSelections returns the lines of dependencies with several versions.
// Declared packages are left out, since their declarations decide on the version.
func (f *File) contestedSelections() map[owned][]Selection {
	found := make(map[owned][]Selection)
	for s := range f.selections.all() {
		if o := (owned{s.Cluster, s.Repository}); s.Parent != "" {
			found[o] = append(found[o], s)
		}
	}
	maps.DeleteFunc(found, func(_ owned, all []Selection) bool {
		return !slices.ContainsFunc(all, func(s Selection) bool { return s.Version != all[0].Version })
	})
	return found
}

func compareKeys(a, b Key) int { return cmp.Compare(a.String(), b.String()) }

func compareOwned(a, b owned) int {
	return cmp.Or(cmp.Compare(a.cluster, b.cluster), cmp.Compare(a.repository, b.repository))
}
