package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/preview"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// shown returns a cluster without its plan. local are the packages by --replace.
func shown(c *desired.Unit, local []desired.Local) preview.ClusterPlan {
	cp := preview.ClusterPlan{
		Name: c.Name, Suspended: c.Spec.Suspend, Packages: packageNames(c),
		Details: make(map[string]preview.PackageDetails), Revisions: make(map[string]string), Declared: make(map[string]string),
		Undeclared:  make(map[string]sources.Declaration),
		Unpublished: make(map[string]bool),
	}
	for _, s := range c.Packages {
		d, ref := s.Declaration, s.Pin.Ref
		p := preview.PackageDetails{Repository: ref.Repository, Version: ref.Version(), Verified: s.Verified, Replaces: s.Replacement()}
		if s.Origin.RewrittenBy != "" {
			p.From = s.Origin.String()
		}
		cp.Unpublished[d.Name] = slices.ContainsFunc(local, func(l desired.Local) bool { return sources.SameRepository(l.Repository, s.Replaces.Repository) })
		cp.Details[d.Name], cp.Revisions[d.Name] = p, s.Revision()
		if undeclared, ok := s.Undeclared(); ok {
			cp.Undeclared[d.Name] = undeclared
		} else if d.File != "" {
			cp.Declared[d.Name] = fmt.Sprintf("%s %s (%s)", d.Kind, d.Name, d.Place())
		}
	}
	return cp
}

// packageNames returns the packages of a cluster, by name.
func packageNames(c *desired.Unit) map[string]string {
	names := make(map[string]string)
	for _, s := range c.Packages {
		names[s.Declaration.Name] = versioned(s.Pin.Ref)
	}
	return names
}

// versioned returns "repository version".
func versioned(ref sources.Ref) string { return ref.Repository + " " + ref.Version() }

// lockedNames returns the packages of a cluster as a lock selects them. Packages are
// matched by repository, since the lock has no names.
func lockedNames(c *desired.Unit, lock *lockfile.File) map[string]string {
	versions := make(map[string]string)
	for _, s := range lock.Selections(c.Name) {
		versions[s.Repository] = s.Version
	}
	names := make(map[string]string)
	for _, s := range c.Packages {
		if v := versions[s.Pin.Ref.Repository]; v != "" {
			names[s.Declaration.Name] = s.Pin.Ref.Repository + " " + v
		}
	}
	return names
}

// installedNames returns the packages that a cluster has, by name. Where the cluster does
// not tell, the version is the lock's, and fromLock has the name. The version of a revision
// is looked up in the locks.
func installedNames(c *desired.Unit, installed map[string]unit.Installed, locked map[string]string, locks ...*lockfile.File) (names map[string]string, fromLock map[string]bool) {
	names, fromLock = make(map[string]string), make(map[string]bool)
	for _, s := range c.Packages {
		name, ref := s.Declaration.Name, s.Pin.Ref
		found, known := installed[name]
		switch {
		case !known && locked[name] != "":
			names[name] = locked[name]
			fromLock[name] = locked[name] != versioned(ref)
		case found.Reference != "":
			names[name] = found.Reference
			if r, err := sources.ParseRef(found.Reference); err == nil {
				names[name] = versioned(r)
			}
		case found.Revision == s.Revision():
			names[name] = versioned(ref)
		case found.Revision != "":
			names[name] = ref.Repository + " " + versionOf(ref.Repository, found.Revision, locked[name], locks)
		}
	}
	return names, fromLock
}

// versionOf returns the version of a revision, or the revision if no lock knows it. It tries
// the version in the cluster's line of the lock first.
func versionOf(repository, revision, locked string, locks []*lockfile.File) string {
	_, own, _ := strings.Cut(locked, " ")
	for _, lock := range locks {
		for _, version := range append([]string{own}, lock.Versions(repository)...) {
			if digest, ok := lock.Digest(repository, version); ok && strings.HasSuffix(revision, "-"+digest.Short()) {
				return version
			}
		}
	}
	return revision
}

// Bounds on the files that are compared to know whether a working tree equals a commit.
const (
	mostCompared      = 2_000    // files
	mostComparedBytes = 16 << 20 // of all files
)

// revisionOf returns the short hash of the commit that is checked out, if all files of the
// working tree equal it. Otherwise, and if there are very many files, it returns "".
func revisionOf(root string, tree *workingTree) string {
	commit, repo, err := commitOf(root, "HEAD")
	if err != nil {
		return "" // no repository yet, or none with commits
	}
	defer repo.Close()
	files, size := 0, 0
	differs := errors.New("differs")
	same := func(a, b fs.FS) error {
		return fs.WalkDir(a, ".", func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Type() == fs.ModeIrregular { // a submodule: nothing is read from it
				return err
			}
			if files++; files > 2*mostCompared || size > 2*mostComparedBytes {
				return differs
			}
			have, err := fs.ReadFile(a, name)
			if err != nil {
				return err
			}
			want, err := fs.ReadFile(b, name)
			if size += len(have); err != nil || !bytes.Equal(have, want) {
				return differs
			}
			return nil
		})
	}
	if same(commit.Files, tree.commit.Files) != nil || same(tree.commit.Files, commit.Files) != nil {
		return ""
	}
	return sources.ShortHash(commit.Hash)
}
