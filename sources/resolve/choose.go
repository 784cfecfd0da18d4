package resolve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/versions"
)

// version returns the version of a dependency by the fleet's rules, or else by
// [pass.choose]. It is the version that dependents see, before any replacement.
func (p *pass) version(ctx context.Context, req Request, repo string, locked map[string][]string, hinted map[string]string, wanted []edge) (sources.Ref, error) {
	if s := p.cfg.Rules.Selected(repo); s != nil {
		named := *s
		named.Ref.Repository = repo // by the name that the dependents have
		return p.selectedVersion(ctx, req, &named, wanted)
	}
	if by := p.cfg.Rules.Fixed(repo); by != nil {
		return sources.Ref{Repository: repo}, nil // replaces any version
	}
	from := p.cfg.Rules.VersionsOf(repo)
	stays := slices.Clone(locked[from])
	for _, by := range p.cfg.Rules.Replaces {
		if !sources.SameRepository(by.Repository, repo) || by.Version == "" {
			continue
		}
		// The lock has the replacement of the version.
		ref, _, err := p.replacement(ctx, sources.Ref{Repository: repo, Tag: by.Version})
		if err == nil && slices.Contains(locked[ref.Repository], ref.Version()) && !slices.Contains(stays, by.Version) {
			stays = append(stays, by.Version)
		}
	}
	hint := hinted[from]
	if was := locked[repo]; hint == "" && from != repo && len(stays) == 0 && len(was) == 1 {
		hint = was[0] // keep the version if the replacement has the same
	}
	ref, err := p.choose(ctx, req, from, stays, hint, wanted)
	ref.Repository = repo
	return ref, err
}

// selected returns the versions of dependencies that the lock selects for a cluster, by
// repository, without those that are updated. There is one for each, unless a merge left
// several. Packages that were declared until now are included. hinted has the hint's
// versions with a record.
func (p *pass) selected(req Request) (locked map[string][]string, hinted map[string]string) {
	locked, hinted = make(map[string][]string), make(map[string]string)
	former := make(map[string][]string) // of packages that were declared
	for _, s := range p.lines[req.Cluster] {
		switch {
		case p.updates(req, s.Repository):
		case s.Parent == "":
			former[s.Repository] = append(former[s.Repository], s.Version)
		case !slices.Contains(locked[s.Repository], s.Version):
			locked[s.Repository] = append(locked[s.Repository], s.Version)
		}
	}
	for repo, versions := range former {
		if len(versions) == 1 && locked[repo] == nil {
			locked[repo] = versions
		}
	}
	for _, s := range p.hint.Selections(req.Cluster) {
		_, here := p.before.Digest(s.Repository, s.Version)
		_, there := p.hint.Digest(s.Repository, s.Version)
		if s.Parent != "" && (here || there) {
			hinted[s.Repository] = s.Version
		}
	}
	return locked, hinted
}

// choose returns a version of a dependency that satisfies all dependents: the locked
// one; else the hinted one, if it still exists; else, if one was locked, the highest
// recorded one; else the highest of other clusters (fleet.go); else the highest in
// the registry.
func (p *pass) choose(ctx context.Context, req Request, repo string, locked []string, hinted string, wanted []edge) (sources.Ref, error) {
	var digest sources.Digest
	var ranges []edge
	for _, e := range wanted {
		d, err := sources.ParseDigest(e.dep.Constraint)
		switch {
		case err != nil:
			ranges = append(ranges, e)
		case digest != "" && digest != d:
			return sources.Ref{}, fmt.Errorf("no version satisfies %s", chain(wanted))
		default:
			digest = d
		}
	}
	if digest != "" {
		if len(ranges) > 0 {
			return sources.Ref{}, fmt.Errorf("a digest and a range cannot both be satisfied: %s; declare the package with the version you want", chain(wanted))
		}
		ref := sources.Ref{Repository: repo, Digest: digest}
		if e := p.exclusion(ref); e != nil && !slices.Contains(locked, string(digest)) {
			return sources.Ref{}, fmt.Errorf("%s is %s, and is what %s asks for", ref, e, chain(wanted))
		}
		return ref, nil
	}
	suits, stays := 0, (*semver.Version)(nil)
	for _, tag := range locked {
		// A locked tag stays, even if versions.Parse does not accept it.
		if v, err := semver.NewVersion(tag); err == nil {
			if ok, err := all(v, ranges); err == nil && ok {
				if suits++; stays == nil || stays.LessThan(v) {
					stays = v
				}
			}
		}
	}
	if suits > 1 {
		if err := p.before.ContestedSelection(req.Cluster, repo); err != nil {
			return sources.Ref{}, err
		}
	}
	if stays != nil { // of several, one is locked as itself, and the others as replacements
		return sources.Ref{Repository: repo, Tag: stays.Original()}, nil
	}
	if d := unreadable(req, repo); d != nil {
		return sources.Ref{}, fmt.Errorf("%s decides on no version of it while the declaration of %s cannot be read; correct that first: %s", sources.LockFile, d.Name, chain(wanted))
	}
	open, _ := p.allowed(repo, []string{hinted})
	if best, err := highest(open, ranges); err == nil && best != "" {
		ref := sources.Ref{Repository: repo, Tag: best}
		l := p.load(ctx, ref, nil, req.Images)
		if !errors.Is(l.err, sources.ErrNotFound) && p.exclusion(l.pinned()) == nil {
			return ref, nil
		}
	}
	if len(locked) > 0 {
		// The locked version no longer satisfies the dependents, most likely after a
		// revert. Then the version before is recorded.
		open, _ := p.allowed(repo, p.before.Versions(repo))
		best, err := highest(open, ranges)
		if err != nil || best != "" {
			return sources.Ref{Repository: repo, Tag: best}, err
		}
	}
	if p.cfg.Mode == Readonly {
		return sources.Ref{}, decidedf("clusters.lock selects no version that satisfies %s, and is read-only here; run `gitopsd lock` and commit the change", chain(wanted))
	}
	if !p.updates(req, repo) {
		best, err := p.highestElsewhere(ctx, req, repo, ranges)
		if err != nil || best != "" {
			return sources.Ref{Repository: repo, Tag: best}, err
		}
	}
	tags, err := p.list(ctx, req.Images, repo)
	if err != nil {
		return sources.Ref{}, fmt.Errorf("looking for a version that satisfies %s: %w", chain(wanted), err)
	}
	best, err := p.highestOpen(ctx, req, repo, tags, wanted)
	return sources.Ref{Repository: repo, Tag: best}, err
}

// selectedVersion returns the version that the fleet selects for a dependency. It fails
// unless that satisfies all dependents.
func (p *pass) selectedVersion(ctx context.Context, req Request, s *rules.Select, wanted []edge) (sources.Ref, error) {
	l := &load{asked: s.Ref, ref: s.Ref, pin: sources.Pin{Ref: s.Ref, Digest: s.Ref.Digest}}
	if slices.ContainsFunc(wanted, func(e edge) bool { return isDigest(e.dep.Constraint) }) {
		l = p.load(ctx, s.Ref, nil, req.Images)
	}
	if l.err != nil {
		return sources.Ref{}, l.err
	}
	if p.cfg.Rules.Replaced(s.Ref) == nil {
		ref := s.Ref
		if ref.Digest == "" {
			ref.Digest, _ = p.peekDependency(ctx, req, ref) // loading it has the error again
		}
		if e := p.exclusion(ref); e != nil {
			return sources.Ref{}, fmt.Errorf("%s selects %s %s, which is %s; change one of the two", s.Place, s.Ref.Repository, s.Ref.Version(), e)
		}
	}
	for _, e := range wanted {
		if ok, err := satisfies(l.pin, e.dep.Constraint); err != nil {
			return sources.Ref{}, fmt.Errorf("%s selects %s for %s: %w", s.Place, s.Ref, chain(wanted), err)
		} else if !ok {
			return sources.Ref{}, fmt.Errorf("%s selects %s %s, and %s needs %s; change one of the two", s.Place, s.Ref.Repository, s.Ref.Version(), e.from.load.ref, e.dep.Constraint)
		}
	}
	return s.Ref, nil
}

// highestOpen returns the highest version in a registry that satisfies all dependents and
// is neither excluded nor retracted, or else the highest retracted one.
func (p *pass) highestOpen(ctx context.Context, req Request, repo string, tags []string, wanted []edge) (string, error) {
	// An alias may be an excluded or retracted version.
	open, why := p.allowed(repo, versions.Lasting(tags))
	left := slices.Clone(open)
	var all []rules.Retraction
	highestRetracted, reason, read := "", "", false
	for {
		best, err := highest(left, wanted)
		if err != nil {
			return "", err
		}
		if best == "" {
			break
		}
		left = slices.DeleteFunc(left, func(tag string) bool { return tag == best })
		if !read {
			if all, err = p.retractions(ctx, req, repo, open); err != nil {
				return "", err
			}
			read = true
		}
		ref := sources.Ref{Repository: repo, Tag: best}
		r, bad := rules.Retracted(all, ref)
		if !bad {
			if ref.Digest, err = p.peekDependency(ctx, req, ref); err != nil {
				return "", err
			}
			if e := p.exclusion(ref); e != nil {
				why = append(why, fmt.Sprintf("%s is %s", best, e))
				continue
			}
			r, bad = rules.Retracted(all, ref)
		}
		if !bad {
			return best, nil
		}
		if highestRetracted == "" {
			highestRetracted, reason = best, r.String()
		}
	}
	if highestRetracted == "" {
		return "", noVersion(repo, wanted, tags, why)
	}
	p.avoided[sources.Ref{Repository: repo, Tag: highestRetracted}] = reason
	return highestRetracted, nil
}

// highestElsewhere returns the highest version of other clusters that satisfies all
// dependents and is not excluded, or "".
func (p *pass) highestElsewhere(ctx context.Context, req Request, repo string, wanted []edge) (string, error) {
	left, _ := p.allowed(repo, p.elsewhere(ctx, req, repo))
	for {
		best, err := highest(left, wanted)
		if err != nil || best == "" {
			return "", err
		}
		ref := sources.Ref{Repository: repo, Tag: best}
		if ref.Digest, err = p.peekDependency(ctx, req, ref); err != nil {
			return "", err
		}
		if p.exclusion(ref) == nil {
			return best, nil
		}
		left = slices.DeleteFunc(left, func(tag string) bool { return tag == best })
	}
}

// list returns a repository's tags. They are requested once a pass.
func (p *pass) list(ctx context.Context, images sources.ImageConfigs, repo string) ([]string, error) {
	from, err := images.Origin(sources.Ref{Repository: repo}, nil)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	tags, known := p.tags[from]
	if !known {
		tags = sync.OnceValues(func() ([]string, error) { return p.cfg.Tags(ctx, from) })
		p.tags[from] = tags
	}
	p.mu.Unlock()
	return tags()
}

// peekDependency returns the digest of a version that may be chosen.
func (p *pass) peekDependency(ctx context.Context, req Request, ref sources.Ref) (sources.Digest, error) {
	if d, ok := p.before.Digest(ref.Repository, ref.Tag); ok {
		return d, nil
	}
	from, err := req.Images.Origin(ref, nil)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return p.now(ctx, &load{asked: ref, ref: ref, origin: from})
}

// highest returns the highest version among tags that satisfies all dependents,
// or "".
func highest(tags []string, wanted []edge) (string, error) {
	return versions.Highest(tags, func(v *semver.Version) (bool, error) { return all(v, wanted) })
}

func all(v *semver.Version, wanted []edge) (bool, error) {
	for _, e := range wanted {
		c, err := semver.NewConstraint(e.dep.Constraint)
		if err != nil {
			return false, fmt.Errorf("%s asks for %s %q, which is neither a version range nor a digest: %w", e.from.load.ref, e.dep.Repository, e.dep.Constraint, err)
		}
		if !c.Check(v) {
			return false, nil
		}
	}
	return true, nil
}

// satisfies reports whether a pin satisfies a constraint. It fails if the constraint is a
// range and the pin has no version.
func satisfies(pin sources.Pin, constraint string) (bool, error) {
	if d, err := sources.ParseDigest(constraint); err == nil {
		return pin.Digest == d, nil
	}
	c, err := semver.NewConstraint(constraint)
	if err != nil {
		return false, err
	}
	v, err := versions.Parse(pin.Ref.Tag)
	if err != nil {
		return false, fmt.Errorf("%s names no semantic version; declare one, by tag or tag@digest, so that the range can be checked", pin.Ref)
	}
	return c.Check(v), nil
}

func isDigest(s string) bool {
	_, err := sources.ParseDigest(s)
	return err == nil
}

func noVersion(repo string, wanted []edge, tags, why []string) error {
	text := fmt.Sprintf("no version of %s satisfies %s; the registry has %s", repo, chain(wanted), versions.List(tags))
	const most = 3
	for _, w := range why[:min(most, len(why))] {
		text += "\n" + w
	}
	if more := len(why) - most; more > 0 {
		text += fmt.Sprintf("\nand %d more are excluded", more)
	}
	return errors.New(text)
}
