package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"gitopsd.dev/cmd/gitopsd/preview"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// shown is a cluster without its plan.
func shown(c *desired.Unit) preview.ClusterPlan {
	return preview.ClusterPlan{
		Name: c.Name, Suspended: c.Spec.Suspend, Packages: packageNames(c), Details: details(c), Revisions: revisions(c), Declared: declared(c),
	}
}

func packageNames(c *desired.Unit) map[string]string {
	names := make(map[string]string)
	for _, s := range c.Packages {
		ref := s.Pin.Ref
		names[s.Declaration.Name] = ref.Repository + " " + ref.Version()
	}
	return names
}

// details returns where a cluster's packages come from, and who signed them.
func details(c *desired.Unit) map[string]preview.PackageDetails {
	all := make(map[string]preview.PackageDetails)
	for _, s := range c.Packages {
		p := preview.PackageDetails{Repository: s.Pin.Ref.Repository, Version: s.Pin.Ref.Version(), Verified: s.Verified, Replaces: s.Replacement()}
		if s.Origin.RewrittenBy != "" {
			p.From = s.Origin.String()
		}
		all[s.Declaration.Name] = p
	}
	return all
}

func revisions(c *desired.Unit) map[string]string {
	names := make(map[string]string)
	for _, s := range c.Packages {
		names[s.Declaration.Name] = s.Revision()
	}
	return names
}

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

// declared returns where the packages of a cluster are declared. A dependency is not.
func declared(c *desired.Unit) map[string]string {
	places := make(map[string]string)
	for _, s := range c.Packages {
		d := s.Declaration
		if d.File == "" || s.Parent != "" {
			continue
		}
		places[d.Name] = fmt.Sprintf("%s %s (%s)", d.Kind, d.Name, d.Place())
	}
	return places
}

// installedNames returns the packages that a cluster has, by name: "repository version".
// Those of which the cluster tells nothing are as in the lock; fromLock names them. The
// version of a revision is looked up in the locks.
func installedNames(c *desired.Unit, installed map[string]unit.Installed, locked map[string]string, locks ...*lockfile.File) (names map[string]string, fromLock map[string]bool) {
	names, fromLock = make(map[string]string), make(map[string]bool)
	for _, s := range c.Packages {
		name, ref := s.Declaration.Name, s.Pin.Ref
		found, known := installed[name]
		switch {
		case !known && locked[name] != "":
			names[name] = locked[name]
			fromLock[name] = locked[name] != ref.Repository+" "+ref.Version()
		case found.Reference != "":
			names[name] = found.Reference
			if r, err := sources.ParseRef(found.Reference); err == nil {
				names[name] = r.Repository + " " + r.Version()
			}
		case found.Revision == s.Revision():
			names[name] = ref.Repository + " " + ref.Version()
		case found.Revision != "":
			names[name] = ref.Repository + " " + versionOf(ref.Repository, found.Revision, locked[name], locks)
		}
	}
	return names, fromLock
}

// versionOf returns the version that a revision is of, first as the cluster's line in the
// lock has it, or the revision if no lock knows it.
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

// Bounds on what is compared to know whether a working tree is a commit.
const (
	mostCompared      = 2_000    // files
	mostComparedBytes = 16 << 20 // of them
)

// revisionOf returns the short name of the commit that is checked out, if all files of the
// working tree are as in it; else, and if there are very many, the empty string.
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
			if err != nil || entry.IsDir() {
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
	const digits = 10 // as elsewhere
	return commit.Hash[:min(digits, len(commit.Hash))]
}
