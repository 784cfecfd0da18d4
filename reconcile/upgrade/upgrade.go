// Package upgrade finds newer versions of a fleet's packages with their changes
// ([Upgrader.Outdated]), and edits declarations to use them ([Upgrader.Bump],
// [Upgrader.BumpAll]). It reads a tree and registries, but no cluster, and writes nothing:
// the caller prints or writes the results.
//
// outdated.go finds versions, bump.go and all.go compute edits, and moves.go lists the
// packages that an edit changes. rules.go applies the fleet's rules and publishers'
// retractions. controller.go compares controllers, and conversion.go checks conversion rules.
//
// sources/versions chooses among tags, render/edit finds where a version is written,
// render/types/compat compares types, and reconcile/desired computes a tree before
// and after an edit.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/versions"
)

// Config configures an [Upgrader]. All fields except Prerelease are required.
type Config struct {
	// Computer computes the state of a tree; for a Bump, of all clusters.
	Computer *desired.Computer
	// Digest returns the digest of a tag in its registry.
	Digest func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error)
	// Verify returns an error unless a package is signed as the policy requires.
	Verify func(ctx context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error)
	// Fetch returns the package with a digest.
	Fetch func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error)
	// Tags returns a repository's tags.
	Tags func(ctx context.Context, from sources.Origin) ([]string, error)
	// Prerelease includes pre-releases. A package that already has one gets newer ones in any
	// case.
	Prerelease bool
}

// Upgrader finds and applies upgrades, for one tree at a time.
type Upgrader struct{ cfg Config }

// New makes an Upgrader.
func New(cfg Config) (*Upgrader, error) {
	if cfg.Computer == nil || cfg.Digest == nil || cfg.Verify == nil || cfg.Fetch == nil || cfg.Tags == nil {
		return nil, errors.New("upgrade: Computer, Digest, Verify, Fetch and Tags are required")
	}
	return &Upgrader{cfg}, nil
}

// Matches reports whether a pattern names a package: by its repository, with or
// without the default registry, by the repository's last part, or by the name of its
// declaration.
func Matches(pattern, repository, name string) bool {
	return sources.SameRepository(pattern, repository) || sources.DefaultRegistry+"/"+pattern == repository || pattern == path.Base(repository) || pattern == name
}

// Named returns the repository, of several, that a pattern names by [Matches]; "" if it names
// none. It fails if the pattern may be more than one of them.
func Named(pattern string, repositories []string) (string, error) {
	if i := slices.IndexFunc(repositories, func(r string) bool { return sources.SameRepository(pattern, r) }); i >= 0 {
		return repositories[i], nil // a full name is never ambiguous
	}
	var found []string
	for _, r := range repositories {
		if Matches(pattern, r, "") && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	slices.Sort(found)
	return "", ambiguous(pattern, found)
}

func ambiguous(pattern string, repositories []string) error {
	return fmt.Errorf("%q may be %s; write which", pattern, strings.Join(repositories, " or "))
}

// needs returns the versions of a repository that a cluster's packages depend on,
// and the repositories of those packages.
func needs(c *desired.Unit, repository string) (all []versions.Need, parents []string) {
	for _, s := range c.Packages {
		if s.Declaration.SkipDependencyResolution {
			continue
		}
		for _, d := range s.Package.Meta.DependsOn {
			if d.Repository == repository {
				all = append(all, versions.Need{From: s.Pin.Ref.String(), Constraint: d.Constraint})
				parents = append(parents, s.Pin.Ref.Repository)
			}
		}
	}
	return all, parents
}

// digest returns the digest of a version from the lock, otherwise from the registry.
func (u *Upgrader) digest(ctx context.Context, state *desired.State, ref sources.Ref) (sources.Digest, error) {
	if d, ok := state.Lock.Digest(ref.Repository, ref.Tag); ok {
		return d, nil
	}
	return u.cfg.Digest(ctx, state.Origin(ref.Repository), ref.Tag)
}

// signed returns an error unless a version is signed as each of the clusters requires.
func (u *Upgrader) signed(ctx context.Context, state *desired.State, clusters []string, ref sources.Ref, d sources.Digest) error {
	type check struct {
		from   sources.Origin
		policy *sources.Verification
	}
	var done []check
	for _, name := range clusters {
		c := state.Get(name)
		from, ok := c.Origin(ref.Repository)
		if !ok {
			continue
		}
		policy, err := c.Images.Verification(ref, from)
		if err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		now := check{from, policy}
		if policy == nil || slices.ContainsFunc(done, func(c check) bool { return reflect.DeepEqual(c, now) }) {
			continue
		}
		if _, err := u.cfg.Verify(ctx, from, d, policy); err != nil {
			return err
		}
		done = append(done, now)
	}
	return nil
}

// compare returns the changes to a package's types, without unchanged ones.
func compare(ctx context.Context, old, new *sources.Package) ([]compat.Change, error) {
	all, err := compat.CompareAll(ctx, definitions(old), definitions(new))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c compat.Change) bool { return c.Change == compat.Same }), nil
}

func definitions(pkg *sources.Package) compat.Set {
	found := make(compat.Set)
	for _, doc := range pkg.Documents {
		if manifest.Text(doc.Tree, "metadata", "name") != "" && slices.Contains(manifest.Definitions, manifest.KindOf(doc.Tree)) {
			found.Add(doc.Tree)
		}
	}
	return found
}
