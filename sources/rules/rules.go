// Package rules has rules for versions of packages, like exclude, replace and retract in
// go.mod: a fleet's own ([Rules]), from its Packages document, and the retractions that
// publishers declare in later versions ([ParseRetractions]). range.go has sets of
// versions.
//
// The package is pure. sources/clusters reads the document, sources/resolve and
// reconcile/upgrade apply the rules, and sources/xpkg checks a publisher's annotation.
package rules

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gitopsd.dev/sources"
)

// Rules are a fleet's rules. The zero value has none. They are immutable. A repository is
// the same under all names of its registry ([sources.SameRepository]).
type Rules struct {
	// Excludes are versions that are not used.
	Excludes []Exclude
	// Selects are the versions of dependencies that are not declared, one for each
	// repository.
	Selects []Select
	// Replaces are the replacements of packages: for each repository at most one for
	// each version, and one for all other versions.
	Replaces []Replace
}

// Exclude excludes versions of a package.
type Exclude struct {
	Repository string
	Versions   Range
	// Reason is for people, and is not empty.
	Reason string
	// Place is the file and line of the entry.
	Place string
}

// String returns the reason and the place.
func (e *Exclude) String() string { return fmt.Sprintf("excluded: %s (%s)", e.Reason, e.Place) }

// Select selects the version of a dependency in every cluster that does not declare the
// package.
type Select struct {
	Ref sources.Ref
	// Place is the file and line of the entry.
	Place string
}

// Replace replaces a package by another repository or a directory. Packages that depend
// on it still see its own version.
type Replace struct {
	Repository string
	// Version that is replaced, a tag; empty for all.
	Version string
	// With is another repository. Without a tag and a digest it replaces a version by
	// the same version. Directory is a directory in the fleet repository that the
	// package is built from. Exactly one of the two is set.
	With      sources.Ref
	Directory string
	// Local reports whether Directory is on a person's machine, for a plan. Nothing
	// about it enters the lock.
	Local bool
	// Place is the file and line of the entry.
	Place string
}

// fixed reports whether the replacement is the same for all versions.
func (r *Replace) fixed() bool { return r.Directory != "" || r.With.Version() != "" }

// Fixed returns the entry that replaces all versions of a package by the same content,
// or nil if there is none.
func (r *Rules) Fixed(repository string) *Replace {
	if by := r.Replaced(sources.Ref{Repository: repository}); by != nil && by.fixed() {
		return by
	}
	return nil
}

// VersionsOf returns the repository to choose a version of a package from: its own, or
// the repository that replaces it version by version.
func (r *Rules) VersionsOf(repository string) string {
	if by := r.Replaced(sources.Ref{Repository: repository}); by != nil && !by.fixed() {
		return by.With.Repository
	}
	return repository
}

// Replaced returns the entry that replaces a version of a package, or nil if there is
// none. For a reference without a version it is the entry for all versions.
func (r *Rules) Replaced(ref sources.Ref) *Replace {
	var all *Replace
	for i, by := range r.Replaces {
		switch {
		case !sources.SameRepository(by.Repository, ref.Repository):
		case by.Version == "" && all == nil:
			all = &r.Replaces[i]
		case by.Version != "" && by.Version == ref.Tag:
			return &r.Replaces[i]
		}
	}
	return all
}

// Excluded returns the entry that excludes a version of a package: a tag, a
// digest, or both. It returns nil if there is none.
func (r *Rules) Excluded(ref sources.Ref) *Exclude {
	for i, e := range r.Excludes {
		if sources.SameRepository(e.Repository, ref.Repository) && e.Versions.contains(ref) {
			return &r.Excludes[i]
		}
	}
	return nil
}

// Selected returns the entry that selects a version of a dependency, or nil.
func (r *Rules) Selected(repository string) *Select {
	i := slices.IndexFunc(r.Selects, func(s Select) bool { return sources.SameRepository(s.Ref.Repository, repository) })
	if i < 0 {
		return nil
	}
	return &r.Selects[i]
}

// Idle describes the rules that apply to no package, one line for each. Has reports
// whether any cluster has a package, depends whether its version is chosen for any
// cluster, and replaced whether any cluster has a replacement.
func (r *Rules) Idle(has, depends func(repository string) bool, replaced func(Replace) bool) []string {
	var idle []string
	for _, e := range r.Excludes {
		if !has(e.Repository) {
			idle = append(idle, fmt.Sprintf("%s: excludes %s of %s, which no cluster has", e.Place, e.Versions, e.Repository))
		}
	}
	for _, s := range r.Selects {
		if !depends(s.Ref.Repository) {
			idle = append(idle, fmt.Sprintf("%s: selects a version of %s, but no package depends on it", s.Place, s.Ref.Repository))
		}
	}
	for _, by := range r.Replaces {
		if !replaced(by) {
			idle = append(idle, fmt.Sprintf("%s: replaces %s, which no cluster has", by.Place, strings.TrimSuffix(by.Repository+" "+by.Version, " ")))
		}
	}
	return idle
}

// RetractAnnotation, on a package's meta object, lists versions of the package that its
// publisher retracts, in lines of "VERSIONS: reason". The highest version's annotation
// counts, so later versions must repeat it.
const RetractAnnotation = "meta.gitopsd.dev/retract"

// Retraction retracts versions of a package.
type Retraction struct {
	Versions Range
	// Reason is the publisher's, on one line, without control characters.
	Reason string
}

// String returns the reason.
func (r Retraction) String() string { return "retracted: " + r.Reason }

// Bounds of an annotation, which is untrusted.
const (
	maxRetractions = 1000
	maxReason      = 300
)

// ParseRetractions reads the text of [RetractAnnotation]: entries of the form
// "VERSIONS: reason", on lines of their own or separated by ";". VERSIONS is a
// [Range]. The valid entries are returned even with an error, which is about the
// first invalid one.
func ParseRetractions(text string) ([]Retraction, error) {
	var all []Retraction
	var first error
	fail := func(format string, args ...any) {
		if first == nil {
			first = fmt.Errorf(format, args...)
		}
	}
	for entry := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		if len(all) == maxRetractions {
			fail("more than %d entries; use intervals, as in [v1.3.0, v1.3.4]", maxRetractions)
			break
		}
		versions, reason, ok := cut(entry)
		if reason = oneLine(reason); !ok || reason == "" {
			fail(`%q: want VERSIONS: reason, as in "[v1.3.0, v1.3.4]: loses data"; a reason cannot contain ";"`, entry)
			continue
		}
		r, err := ParseRange(versions)
		if err != nil {
			fail("%w", err)
			continue
		}
		all = append(all, Retraction{Versions: r, Reason: reason})
	}
	return all, first
}

// cut splits an entry at the colon after the versions, which may be a digest.
func cut(entry string) (versions, reason string, ok bool) {
	prefix := ""
	if rest, digest := strings.CutPrefix(entry, "sha256:"); digest {
		prefix, entry = "sha256:", rest
	}
	versions, reason, ok = strings.Cut(entry, ":")
	return prefix + strings.TrimSpace(versions), strings.TrimSpace(reason), ok
}

// oneLine makes untrusted text fit for a line on a terminal, of a bounded length.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) { // removes changes of the direction of text, too
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// Retracted returns the first retraction of a version, given as for [Rules.Excluded], and
// reports whether there is one.
func Retracted(all []Retraction, ref sources.Ref) (Retraction, bool) {
	for _, r := range all {
		if r.Versions.contains(ref) {
			return r, true
		}
	}
	return Retraction{}, false
}

// Retractions returns the retractions in a package's metadata. Invalid entries are left
// out.
func Retractions(pkg *sources.Package) []Retraction {
	metadata, _ := pkg.Meta.Document.Tree["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations[RetractAnnotation].(string)
	all, _ := ParseRetractions(text) // checked when the package is built
	return all
}
