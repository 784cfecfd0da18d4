package resolve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
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
		out.Errors = append(out.Errors, &PackageError{Name: d.Name, Ref: d.Ref, Err: decided{p.cfg.Refuse}})
	}
	return out, p.lines[req.Cluster]
}

// excluded returns an error if a declared version is excluded and not replaced.
func (p *pass) excluded(ref sources.Ref) error {
	if p.cfg.Rules.Replaced(ref) != nil {
		return nil
	}
	if e := p.exclusion(ref); e != nil {
		return decidedf("%s is %s; declare another version", ref, e)
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
		if e := p.exclusion(ref); e != nil && by == nil {
			why = append(why, fmt.Sprintf("%s is %s", tag, e))
			continue
		}
		allowed = append(allowed, tag)
	}
	slices.Sort(why)
	return allowed, why
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

// replaced returns the repository that a load replaces, or "" if there is none.
func replaced(l *load) string {
	if l.by == nil {
		return ""
	}
	return l.asked.Repository
}

// notes describes the versions that a cluster has despite a rule, and the tags that cannot be
// looked up.
func (p *pass) notes(out *Resolution) []string {
	var notes []string
	for _, s := range out.Selected {
		ref := s.Pin.Ref
		ref.Digest = s.Pin.Digest
		if e := p.exclusion(ref); e != nil {
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
