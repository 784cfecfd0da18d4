package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/versions"
)

// The fleet's rules apply to every choice of a version:
//
//   - An excluded version is not chosen for dependencies, and a declaration of it is an
//     error. A dependency with this version in the lock keeps it, with a note: rules do
//     not change what runs.
//   - A selected version is used for the dependency in every cluster that does not
//     declare the package, whatever the lock has. It must satisfy all dependents.
//   - A retracted version is chosen only if no other in the registry satisfies the
//     dependents. Retractions are read from the highest version, as in Go, and only
//     when a version is chosen from the registry.

// refused returns the resolution of a cluster while no version may be chosen.
func (p *pass) refused(req Request) (*Resolution, []lockfile.Selection) {
	out := new(Resolution)
	for _, d := range req.Declarations {
		out.Errors = append(out.Errors, &PackageError{Name: d.Name, Ref: d.Ref, Err: p.cfg.Refuse})
	}
	return out, p.lines[req.Cluster]
}

// excluded returns an error if a declared version is excluded and not replaced.
func (p *pass) excluded(ref sources.Ref) error {
	if p.cfg.Rules.Replaced(ref) != nil {
		return nil
	}
	if e := p.exclusion(ref); e != nil {
		return fmt.Errorf("%s is %s; declare another version", ref, e)
	}
	return nil
}

// exclusion returns the entry that excludes a reference; nil if there is none.
func (p *pass) exclusion(ref sources.Ref) *rules.Exclude {
	e := p.cfg.Rules.Excluded(ref)
	if e == nil && ref.Digest != "" {
		e = p.alike(ref.Repository, ref.Digest)
	}
	return e
}

// alike returns the entry that excludes another version with the same digest in the lock,
// which is the same package; nil if there is none.
func (p *pass) alike(repository string, d sources.Digest) *rules.Exclude {
	for i, e := range p.cfg.Rules.Excludes {
		if !sources.SameRepository(e.Repository, repository) {
			continue
		}
		for _, version := range p.before.Versions(repository) {
			if have, ok := p.before.Digest(repository, version); ok && have == d && e.Versions.Contains(version) {
				return &p.cfg.Rules.Excludes[i]
			}
		}
	}
	return nil
}

// allowed returns the tags that are not excluded, and the reasons for the others.
func (p *pass) allowed(repository string, tags []string) (allowed, why []string) {
	for _, tag := range tags {
		ref := sources.Ref{Repository: repository, Tag: tag}
		by := p.cfg.Rules.Replaced(ref)
		ref.Digest, _ = p.before.Digest(repository, tag)
		if e := p.cfg.Rules.Excluded(ref); e != nil && by == nil {
			why = append(why, fmt.Sprintf("%s is %s", tag, e))
			continue
		}
		allowed = append(allowed, tag)
	}
	slices.Sort(why)
	return allowed, why
}

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

// replacement returns the reference that replaces another, and the entry for it; asked
// and nil if there is none.
func (p *pass) replacement(ctx context.Context, asked sources.Ref) (sources.Ref, *rules.Replace, error) {
	by := p.cfg.Rules.Replaced(asked)
	if by == nil {
		return asked, nil, nil
	}
	if by.Directory != "" {
		if p.cfg.Directory == nil {
			return asked, nil, fmt.Errorf("%s is replaced by the directory %s, which cannot be read here", asked, by.Directory)
		}
		d, err := p.cfg.Directory(ctx, by.Directory)
		if err != nil {
			return asked, nil, fmt.Errorf("%s is replaced by the directory %s (%s): %w", asked, by.Directory, by.Place, err)
		}
		return sources.Ref{Repository: asked.Repository, Digest: d}, by, nil
	}
	ref := by.With
	if ref.Version() == "" {
		ref.Tag = asked.Tag
	}
	if ref.Version() == "" {
		return asked, nil, fmt.Errorf("%s names no version that %s could have in its place (%s); give the replacement a version", asked, by.With.Repository, by.Place)
	}
	return ref, by, nil
}

// locked returns an error if a replacement must be in the lock and is not.
func (p *pass) locked(l *load, isLocked bool) error {
	if l.by == nil || isLocked || l.by.Local || p.cfg.Approve {
		return nil
	}
	with := l.ref.String()
	if l.by.Directory != "" {
		with = "the directory " + l.by.Directory + " as it is now"
	}
	return fmt.Errorf("%s is replaced by %s (%s), which %s does not record; run `gitopsd lock` and commit the change", l.asked, with, l.by.Place, sources.LockFile)
}

// policy returns who must have signed the package. If no policy applies to a replacement,
// the replaced package's does, so that it is no way around a signature.
func (l *load) policy() (*sources.Verification, error) {
	policy, err := l.images.Verification(l.ref, l.origin)
	if l.by == nil || err != nil {
		return policy, err
	}
	if policy == nil {
		policy, err = l.images.Verification(l.asked, sources.Origin{Repository: l.asked.Repository})
	}
	switch {
	case l.by.Local:
		return nil, err // only for a plan
	case policy != nil && l.by.Directory != "":
		return nil, fmt.Errorf("ImageConfig %s asks for a signature, and the directory %s has none", policy.ImageConfig, l.by.Directory)
	}
	return policy, err
}

// distinct fails dependencies if a repository would be installed twice: by its own name and
// as a replacement, or as two replacements.
func distinct(nodes map[string]*node) {
	used := make(map[string][]string) // repositories as used -> keys of nodes
	for _, repo := range sortedKeys(nodes) {
		if n := nodes[repo]; n.err == nil {
			used[n.load.ref.Repository] = append(used[n.load.ref.Repository], repo)
		}
	}
	for with, repos := range used {
		if len(repos) == 1 {
			continue
		}
		var roles []string
		for _, repo := range repos {
			switch n := nodes[repo]; {
			case n.load.by != nil:
				roles = append(roles, fmt.Sprintf("in place of %s (%s)", repo, n.load.by.Place))
			case n.fixed():
				roles = append(roles, "as declared")
			default:
				roles = append(roles, "as a dependency by its own name")
			}
		}
		for _, repo := range repos {
			if n := nodes[repo]; !n.fixed() {
				n.err = fmt.Errorf("%s would be installed twice, %s; a cluster can have one of them: declare the package that is replaced, or remove the replacement", with, strings.Join(roles, " and "))
			}
		}
	}
}

// place returns the place of the reference's digest.
func (l *load) place() string {
	if l.by == nil {
		return "the declaration"
	}
	return l.by.Place
}

// replaced returns the repository that a load replaces, or "" if there is none.
func replaced(l *load) string {
	if l.by == nil {
		return ""
	}
	return l.asked.Repository
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
			ref.Digest = p.peekDependency(ctx, req, ref)
		}
		if e := p.cfg.Rules.Excluded(ref); e != nil {
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

func isDigest(s string) bool {
	_, err := sources.ParseDigest(s)
	return err == nil
}

// retracted identifies the retractions of a repository, as a cluster may read them.
type retracted struct {
	origin sources.Origin
	policy string
}

// highestOpen returns the highest version in a registry that satisfies all dependents and
// is neither excluded nor retracted, or else the highest retracted one.
func (p *pass) highestOpen(ctx context.Context, req Request, repo string, tags []string, wanted []edge) (string, error) {
	open, why := p.allowed(repo, tags)
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
			all, read = p.retractions(ctx, req, repo, open), true
		}
		ref := sources.Ref{Repository: repo, Tag: best}
		r, bad := rules.Retracted(all, ref)
		if !bad {
			ref.Digest = p.peekDependency(ctx, req, ref)
			if e := p.cfg.Rules.Excluded(ref); e != nil {
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
		ref.Digest = p.peekDependency(ctx, req, ref)
		if p.cfg.Rules.Excluded(ref) == nil {
			return best, nil
		}
		left = slices.DeleteFunc(left, func(tag string) bool { return tag == best })
	}
}

// peekDependency returns the digest of a version that may be chosen, or "" if it is
// unknown. Loading that version has the error then.
func (p *pass) peekDependency(ctx context.Context, req Request, ref sources.Ref) sources.Digest {
	if d, ok := p.before.Digest(ref.Repository, ref.Tag); ok {
		return d
	}
	from, err := req.Images.Origin(ref, nil)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	d, err := p.now(ctx, &load{asked: ref, ref: ref, origin: from})
	if err != nil {
		return ""
	}
	return d
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

// retractions returns the retractions in the highest of the tags, or none if it cannot be
// read or lacks the signature that the cluster requires.
func (p *pass) retractions(ctx context.Context, req Request, repo string, tags []string) []rules.Retraction {
	tag := Latest(tags)
	if tag == "" {
		return nil
	}
	ref := sources.Ref{Repository: repo, Tag: tag}
	origin, err := req.Images.Origin(ref, nil)
	if err != nil {
		return nil
	}
	// Clusters may require different signatures.
	policy, err := req.Images.Verification(ref, origin)
	if err != nil {
		return nil
	}
	of := retracted{origin: origin}
	if policy != nil {
		text, err := json.Marshal(policy)
		if err != nil {
			return nil
		}
		of.policy = string(text)
	}
	all, known := p.retracted[of]
	if known {
		return all
	}
	all, _ = p.readRetractions(ctx, req, ref, origin) // only advice; without it all versions are open
	p.retracted[of] = all
	return all
}

func (p *pass) readRetractions(ctx context.Context, req Request, ref sources.Ref, origin sources.Origin) ([]rules.Retraction, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	d, isLocked := p.before.Digest(ref.Repository, ref.Tag)
	if !isLocked {
		var err error
		if d, err = p.now(ctx, &load{asked: ref, ref: ref, origin: origin}); err != nil {
			return nil, err
		}
	}
	if _, err := Verify(ctx, p.cfg.Verify, req.Images, sources.Pin{Ref: ref, Digest: d}, origin); err != nil {
		return nil, err
	}
	pkg, err := p.fetch(ctx, origin, d)
	if err != nil {
		return nil, err
	}
	return rules.Retractions(pkg), nil
}

// content identifies a fetched package.
type content struct {
	from   sources.Origin
	digest sources.Digest
}

// fetch fetches a package once a pass, be it for its content or its retractions.
func (p *pass) fetch(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
	key := content{from, d}
	p.mu.Lock()
	pkg := p.fetched[key]
	p.mu.Unlock()
	if pkg != nil {
		return pkg, nil
	}
	pkg, err := p.cfg.Fetch(ctx, from, d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.unfetched[key] = true
		return nil, err
	}
	p.fetched[key] = pkg
	return pkg, nil
}

// failed reports whether this pass could not fetch a package.
func (p *pass) failed(from sources.Origin, d sources.Digest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.unfetched[content{from, d}]
}

// Latest returns the tag of the version whose metadata has the retractions: the highest
// release, or the highest pre-release if there is no release.
func Latest(tags []string) string {
	release := func(v *semver.Version) (bool, error) { return v.Prerelease() == "", nil }
	tag, _ := versions.Highest(tags, release)
	if tag == "" {
		tag, _ = versions.Highest(tags, func(*semver.Version) (bool, error) { return true, nil })
	}
	return tag
}

// notes describes the versions that a cluster has despite a rule, and the tags that cannot be
// looked up.
func (p *pass) notes(out *Resolution) []string {
	var notes []string
	for _, s := range out.Selected {
		ref := s.Pin.Ref
		ref.Digest = s.Pin.Digest
		if e := p.cfg.Rules.Excluded(ref); e != nil {
			notes = append(notes, fmt.Sprintf("%s %s is %s; it stays, since %s has it: `gitopsd lock --update=%s` chooses another version",
				ref.Repository, s.Pin.Ref.Version(), e, sources.LockFile, ref.Repository))
			continue
		}
		if reason := p.avoided[s.Pin.Ref]; reason != "" {
			notes = append(notes, fmt.Sprintf("%s %s is %s; no other version satisfies all packages that depend on it", ref.Repository, s.Pin.Ref.Version(), reason))
		}
		if err := p.use(s.Pin.Ref).stays; err != nil && !errors.Is(err, sources.ErrUnasked) {
			why, _, _ := strings.Cut(err.Error(), "\n")
			notes = append(notes, fmt.Sprintf("%s stays at %s, since the registry does not tell whether the tag has moved: %s", s.Pin.Ref, s.Pin.Digest, why))
		}
	}
	return notes
}
