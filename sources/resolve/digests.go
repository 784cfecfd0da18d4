package resolve

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// A tag is one package in the whole fleet: the one that the lock records. Declarations
// and rules may name a digest beside the tag. What they say together is decided before
// the first load starts, so that neither the order of clusters nor of loads matters:
//
//   - The lock's digest stays while a declaration names it, while the declaration of a
//     cluster that has the tag cannot be read, or while the package replaces another and
//     no person reviews the change.
//   - Otherwise packagePullPolicy: Always activates the digest that declarations name, if
//     all name the same, wherever the tag is declared.
//   - A tag without a record gets that digest. If they name several, it gets none.
//
// One thing is only known once a tag moves: whether the new digest can be used. If that
// fails for a cluster that works with the lock's digest, the tag stays in all clusters.

// tagged is what declarations say about a tag; the zero value: nothing.
type tagged struct {
	// names are the places of the declarations that name a digest, by digest.
	names map[sources.Digest][]string
	// moving: packagePullPolicy: Always lets the tag move.
	moving bool
	// replaces is an entry that replaces packages with this one, unless a person reviews
	// what changes; nil if there is none.
	replaces *rules.Replace

	// locked is the lock's digest; empty if there is none, or if it is resolved again.
	locked sources.Digest
	// activated is the digest that the tag has from now on; empty if it stays as it is.
	activated sources.Digest

	// moved reports whether a load has another digest than the lock's.
	moved bool
	// failed is why the tag does not move; nil if it may.
	failed *failedMove
}

// failedMove is a digest that a tag does not move to, since that fails in a cluster.
type failedMove struct {
	digest  sources.Digest
	cluster string // empty for a dependency
	err     error
	// hinted is the digest to which an interrupted run moved the tag; empty if it did not.
	hinted sources.Digest
}

func (f *failedMove) where() string {
	if f.cluster == "" {
		return ""
	}
	return " in cluster " + f.cluster
}

// named returns the error for a declaration that names the digest.
func (f *failedMove) named(l *load, line int) error {
	return fmt.Errorf("%s is not what %s has for it, which stays in all clusters, since %s fails%s: %w",
		l.ref, lockfile.Where(line), f.digest, f.where(), f.err)
}

// unsettled returns the error for a tag that an interrupted run moved to a third digest.
func (f *failedMove) unsettled(ref sources.Ref) error {
	return fmt.Errorf("%s was moved to %s by a run that was interrupted, and is %s now, which fails%s: %w\n%s", ref, f.hinted, f.digest, f.where(), f.err, mayHave)
}

// tagOf returns a reference without its digest.
func tagOf(ref sources.Ref) sources.Ref { return sources.Ref{Repository: ref.Repository, Tag: ref.Tag} }

// says returns what declarations say about the tag of a reference.
func (p *pass) says(ref sources.Ref) *tagged {
	if t := p.tagged[tagOf(ref)]; t != nil && ref.Tag != "" {
		return t
	}
	return new(tagged)
}

// note notes what a declaration says about a tag.
func (p *pass) note(cluster string, d *sources.Declaration, l *load) {
	if l.ref.Tag == "" {
		return
	}
	place := "cluster " + cluster
	switch {
	case l.by != nil:
		place = l.by.Place
	case d.Place() != "":
		place += " (" + d.Place() + ")"
	}
	t := p.names(l.ref, place)
	approved := l.ref.Digest != "" || !d.ManualActivation
	t.moving = t.moving || d.PullPolicy == sources.PullAlways && approved && (l.by == nil || p.cfg.Approve)
}

// names notes the digest of a reference with a tag, if it has one, and where it is. It
// returns what is known about the tag.
func (p *pass) names(ref sources.Ref, place string) *tagged {
	if ref.Tag == "" {
		return new(tagged)
	}
	t := p.tagged[tagOf(ref)]
	if t == nil {
		t = &tagged{names: make(map[sources.Digest][]string)}
		p.tagged[tagOf(ref)] = t
	}
	if ref.Digest != "" && !slices.Contains(t.names[ref.Digest], place) {
		t.names[ref.Digest] = append(t.names[ref.Digest], place)
	}
	return t
}

// rule notes the digest of a reference in a rule, for the tag under all names of its
// registry.
func (p *pass) rule(ref sources.Ref, place string) {
	p.names(ref, place)
	for tag := range p.tagged {
		if tag.Tag == ref.Tag && sources.SameRepository(tag.Repository, ref.Repository) {
			p.names(sources.Ref{Repository: tag.Repository, Tag: tag.Tag, Digest: ref.Digest}, place)
		}
	}
}

// decide decides what the tags are that declarations name digests of.
func (p *pass) decide() {
	for _, s := range p.cfg.Rules.Selects {
		p.rule(s.Ref, s.Place)
	}
	for _, by := range p.cfg.Rules.Replaces {
		p.rule(by.With, by.Place)
	}
	for tag, t := range p.tagged {
		if !p.updatesVersion(tag) {
			t.locked, _ = p.before.Digest(tag.Repository, tag.Tag)
		}
		for i, by := range p.cfg.Rules.Replaces {
			uses := by.With.Repository == tag.Repository && (by.With.Tag == tag.Tag || by.With.Version() == "")
			if uses && !p.cfg.Approve && t.replaces == nil {
				t.replaces = &p.cfg.Rules.Replaces[i]
			}
		}
		if named := t.only(); p.cfg.Mode == Add && t.locked != "" && named != "" && t.moving && !t.stays() && p.use(tag).unread == "" {
			t.activated = named
			p.forget(tag)
		}
	}
}

// settle decides about a tag after loads of it. If one of them fails with a new digest and
// works with the lock's, the tag stays, and all are loaded again, so that clusters and the
// lock have one digest. If an interrupted run moved the tag, it does not go back to the lock's
// digest: clusters may have the run's already.
func (p *pass) settle(ctx context.Context, loads []*load) {
	t := p.says(loads[0].ref)
	moves := func(l *load) bool { return l.pin.Digest != "" && l.pin.Digest != t.locked }
	if t.locked == "" || t.moved || !slices.ContainsFunc(loads, moves) {
		return
	}
	repository, version := loads[0].ref.Repository, loads[0].ref.Version()
	was, _ := p.hint.Digest(repository, version)
	i := slices.IndexFunc(loads, func(l *load) bool {
		return moves(l) && l.err != nil && was != l.pin.Digest && p.works(ctx, l, t.locked)
	})
	if i < 0 {
		t.moved = slices.ContainsFunc(loads, func(l *load) bool { return moves(l) && l.err == nil })
		return
	}
	failed := loads[i]
	for _, l := range loads {
		if l.ref.Digest == failed.pin.Digest && l.err != nil {
			failed = l // the declaration that names it comes first
			break
		}
	}
	t.failed = &failedMove{digest: failed.pin.Digest, cluster: failed.cluster, err: failed.err}
	if was != t.locked {
		t.failed.hinted = was
	}
	p.mu.Lock()
	p.lock.Adopt(p.before, repository, version)
	p.mu.Unlock()
	for _, l := range loads {
		l.pin, l.verified, l.runtime, l.pullSecrets = sources.Pin{}, "", "", nil
		p.run(ctx, l)
	}
}

// unmovedTags returns an error for each declared tag that stays at the lock's digest, sorted.
func (p *pass) unmovedTags() []*PackageError {
	var all []*PackageError
	for tag, t := range p.tagged {
		if f := t.failed; f != nil && f.hinted == "" && p.use(tag).declared {
			err := fmt.Errorf("the tag stays at %s in all clusters, since %s fails%s: %w", t.locked, f.digest, f.where(), f.err)
			all = append(all, &PackageError{Name: tag.String(), Ref: tag, Err: err})
		}
	}
	slices.SortFunc(all, func(a, b *PackageError) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// works reports whether a load's package can be used with a digest.
func (p *pass) works(ctx context.Context, l *load, d sources.Digest) bool {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	policy, err := l.policy()
	if err == nil {
		_, err = verifyBy(ctx, p.cfg.Verify, policy, sources.Pin{Ref: tagOf(l.ref), Digest: d}, l.origin)
	}
	if err == nil {
		_, err = p.fetch(ctx, l.origin, d)
	}
	return err == nil
}

// only returns the digest that all name; empty if they name none or several.
func (t *tagged) only() sources.Digest {
	if len(t.names) != 1 {
		return ""
	}
	return slices.Collect(maps.Keys(t.names))[0]
}

// keeper returns the first place that names the lock's digest; empty if none does.
func (t *tagged) keeper() string {
	if at := t.names[t.locked]; len(at) > 0 {
		return slices.Min(at)
	}
	return ""
}

// stays reports whether the tag keeps the lock's digest.
func (t *tagged) stays() bool { return t.keeper() != "" || t.replaces != nil }

// conflict returns the error for a tag with several digests; nil if there is one.
func (t *tagged) conflict(tag sources.Ref) error {
	if len(t.names) < 2 {
		return nil
	}
	places := maps.Clone(t.names)
	if t.locked != "" {
		places[t.locked] = append(slices.Clone(places[t.locked]), sources.LockFile)
	}
	var named []string
	for _, digest := range slices.Sorted(maps.Keys(places)) {
		named = append(named, fmt.Sprintf("    %s  %s", digest, strings.Join(slices.Sorted(slices.Values(places[digest])), ", ")))
	}
	return fmt.Errorf("%s is declared with different digests, and a tag is one package in the whole fleet:\n\n%s\n\nName one digest everywhere, or declare the versions by digest alone", tagOf(tag), strings.Join(named, "\n"))
}

// namedElsewhere explains the error for a package whose digest another declaration names.
func (p *pass) namedElsewhere(l *load, err error) error {
	at := p.says(l.ref).names[l.pin.Digest]
	if err == nil || l.ref.Digest != "" || len(at) == 0 {
		return err
	}
	return fmt.Errorf("%w\n(the digest is the one that %s names for %s)", err, slices.Min(at), tagOf(l.ref))
}
