package upgrade

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/versions"
)

// ruling has the fleet's rules and the publisher's retractions for the versions of a package.
type ruling struct {
	repository string
	rules      *rules.Rules
	retracted  []rules.Retraction
	// open are the tags that are neither excluded nor retracted.
	open []string
	// unknown is why the retractions could not be read; nil if they could.
	unknown error
	// newest is the package with the retractions; nil if there is none.
	newest *sources.Package
	// digests are the digests of tags that refuse looked up.
	digests map[string]sources.Digest
}

// ruling applies the fleet's rules and the publisher's retractions to a repository's tags. The
// retractions are as [resolve.Retractions] reads them from the versions that are not excluded.
func (u *Upgrader) ruling(ctx context.Context, state *desired.State, p *Versions, tags []string) *ruling {
	r := &ruling{repository: p.Repository, rules: &state.Registry.Rules, digests: make(map[string]sources.Digest)}
	allowed := slices.DeleteFunc(slices.Clone(tags), func(tag string) bool {
		return r.rules.Excluded(sources.Ref{Repository: r.repository, Tag: tag}) != nil
	})
	r.retracted, r.unknown = resolve.Retractions(allowed, func(tag string) (_ *sources.Package, err error) {
		r.newest = p.pkg
		if tag != p.Current || p.pkg == nil {
			r.newest, err = u.read(ctx, state, p.Clusters, sources.Ref{Repository: p.Repository, Tag: tag})
		}
		return r.newest, err
	})
	r.open = slices.DeleteFunc(allowed, func(tag string) bool { return r.why(tag) != "" })
	return r
}

// read returns a package that is signed as the clusters require.
func (u *Upgrader) read(ctx context.Context, state *desired.State, clusters []string, ref sources.Ref) (*sources.Package, error) {
	d, err := u.digest(ctx, state, ref)
	if err == nil {
		err = u.signed(ctx, state, clusters, ref, d)
	}
	if err != nil {
		return nil, err
	}
	return u.cfg.Fetch(ctx, state.Origin(ref.Repository), d)
}

// excluded returns a declared package that the fleet excludes, by its records in the lock:
// clusters keep it, but their state has no package for the declaration. It returns false if the
// package is not excluded, not in the lock, or cannot be read.
func (u *Upgrader) excluded(ctx context.Context, state *desired.State, d sources.Declaration) (sources.Selected, bool) {
	var none sources.Selected
	repository, version := d.Ref.Repository, d.Ref.Version()
	digest, ok := state.Lock.Digest(repository, version)
	if !ok || d.Ref.Digest != "" && d.Ref.Digest != digest {
		return none, false
	}
	if state.Registry.Rules.Excluded(sources.Ref{Repository: repository, Tag: d.Ref.Tag, Digest: digest}) == nil {
		return none, false
	}
	pkg, err := u.cfg.Fetch(ctx, state.Origin(repository), digest)
	if err != nil {
		return none, false
	}
	s := sources.Selected{Declaration: d, Pin: sources.Pin{Ref: d.Ref, Digest: digest}, Package: pkg}
	if image, ok := state.Lock.Lookup(lockfile.Key{Repository: repository, Version: version, Item: lockfile.ItemRuntime}); ok {
		if pkg.Meta.Image != "" {
			ref, err := resolve.ParseImage(pkg.Meta.Image)
			if err != nil {
				return none, false
			}
			repository = ref.Repository
		}
		s.Runtime = repository + "@" + image
	}
	return s, true
}

// about returns why a version is excluded, and why it is retracted; empty if it is not.
func (r *ruling) about(ref sources.Ref) (excluded, retracted string) {
	if e := r.rules.Excluded(ref); e != nil {
		excluded = fmt.Sprintf("%s (%s)", e.Reason, e.Place)
	}
	if t, ok := rules.Retracted(r.retracted, ref); ok {
		retracted = t.Reason
	}
	return excluded, retracted
}

// refuse removes a tag from open and returns true if its digest is excluded or retracted. It
// sends no request unless some entry names a digest.
func (u *Upgrader) refuse(ctx context.Context, state *desired.State, r *ruling, tag string) (bool, error) {
	if tag == "" || !r.namesDigest() {
		return false, nil
	}
	d, err := u.digest(ctx, state, sources.Ref{Repository: r.repository, Tag: tag})
	if err != nil {
		return false, err
	}
	if r.digests[tag] = d; r.why(tag) == "" {
		return false, nil
	}
	r.open = slices.DeleteFunc(r.open, func(other string) bool { return other == tag })
	return true, nil
}

// namesDigest reports whether a version is excluded or retracted by its digest.
func (r *ruling) namesDigest() bool {
	is := func(v rules.Range) bool { return strings.HasPrefix(v.String(), "sha256:") }
	excludes := func(e rules.Exclude) bool {
		return sources.SameRepository(e.Repository, r.repository) && is(e.Versions)
	}
	return slices.ContainsFunc(r.rules.Excludes, excludes) ||
		slices.ContainsFunc(r.retracted, func(t rules.Retraction) bool { return is(t.Versions) })
}

// why returns why a tag is not proposed; empty if it may be.
func (r *ruling) why(tag string) string {
	ref := sources.Ref{Repository: r.repository, Tag: tag, Digest: r.digests[tag]}
	if e := r.rules.Excluded(ref); e != nil {
		return e.String()
	}
	if t, ok := rules.Retracted(r.retracted, ref); ok {
		return t.String()
	}
	return ""
}

// skipped returns the versions that would be proposed without the ruling, and why they are not.
func (r *ruling) skipped(tags []string, current string, opts versions.Options) []string {
	newer, err := versions.Find(tags, current, opts)
	if err != nil {
		return nil // the caller has the error
	}
	var all []string
	for _, tag := range slices.Compact([]string{newer.Update, newer.Latest}) {
		if why := r.why(tag); tag != "" && why != "" {
			all = append(all, tag+" is "+why)
		}
	}
	return all
}

// leftOut returns the end of an error: the tag that a query would select without the ruling, and
// why it does not.
func (r *ruling) leftOut(query string, tags []string, current string, opts versions.Options) string {
	tag, err := versions.Select(query, tags, current, opts)
	if err != nil {
		return ""
	}
	return "; " + tag + " is " + r.why(tag)
}
