// Package rules is about versions of packages that should not be used, or that
// somebody chose: what a fleet says in its Packages document ([Rules]), and what
// publishers say in later versions ([ParseRetractions]). go.mod has the same with
// exclude, replace and retract.
//
// The package is pure. sources/clusters reads the document, sources/resolve and
// reconcile/upgrade apply it, and sources/xpkg checks a publisher's annotation.
package rules

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"gitopsd.dev/sources"
)

// Rules are a fleet's own. The zero value has none. They are immutable.
type Rules struct {
	// Excludes are versions that are not used.
	Excludes []Exclude
	// Selects are the versions of undeclared dependencies, one for each
	// repository.
	Selects []Select
	// Replaces are used in place of packages: at most one for each version of a
	// repository, and one for all its other versions.
	Replaces []Replace
}

// Exclude is versions of a package that are not used.
type Exclude struct {
	Repository string
	Versions   Range
	// Reason is a person's, and is not empty.
	Reason string
	// Place is the file and line of the entry.
	Place string
}

// String returns the reason and where it is written.
func (e *Exclude) String() string { return fmt.Sprintf("excluded: %s (%s)", e.Reason, e.Place) }

// Select is the version of a dependency, in every cluster that does not declare
// the package.
type Select struct {
	Ref   sources.Ref
	Place string
}

// Replace is something that is used in place of a package. The package keeps its
// own version where others depend on it.
type Replace struct {
	Repository string
	// Version is the one that is replaced, a tag; empty for all.
	Version string
	// With is another repository; without a tag and a digest it has the same
	// version. Directory is one of the fleet repository, to build a package from.
	// Exactly one is set.
	With      sources.Ref
	Directory string
	// Local reports whether Directory is a person's, for a plan. Nothing about it
	// enters the lock.
	Local bool
	Place string
}

// fixed reports whether the replacement is the same for all versions.
func (r *Replace) fixed() bool { return r.Directory != "" || r.With.Version() != "" }

// Fixed returns the entry that is used in place of all versions of a package,
// whatever they are; nil if there is none.
func (r *Rules) Fixed(repository string) *Replace {
	if by := r.Replaced(sources.Ref{Repository: repository}); by != nil && by.fixed() {
		return by
	}
	return nil
}

// VersionsOf returns the repository among whose versions one of the package is
// chosen: its own, or that of a replacement with the same versions.
func (r *Rules) VersionsOf(repository string) string {
	if by := r.Replaced(sources.Ref{Repository: repository}); by != nil && !by.fixed() {
		return by.With.Repository
	}
	return repository
}

// Replaced returns the entry that replaces a version of a package, nil if there is
// none. A reference without a version has the entry for all versions.
func (r *Rules) Replaced(ref sources.Ref) *Replace {
	var all *Replace
	for i, by := range r.Replaces {
		switch {
		case by.Repository != ref.Repository:
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
		if e.Repository == ref.Repository && (ref.Tag != "" && e.Versions.Contains(ref.Tag) || ref.Digest != "" && e.Versions.Contains(string(ref.Digest))) {
			return &r.Excludes[i]
		}
	}
	return nil
}

// Selected returns the chosen version of a dependency, nil if there is none.
func (r *Rules) Selected(repository string) *Select {
	i := slices.IndexFunc(r.Selects, func(s Select) bool { return s.Ref.Repository == repository })
	if i < 0 {
		return nil
	}
	return &r.Selects[i]
}

// Idle describes the rules that concern no package, one line for each. Has reports
// whether some cluster has a repository's package, depends whether the version of one
// is chosen for some cluster, and replaced whether some cluster has the replacement.
func (r *Rules) Idle(has, depends func(repository string) bool, replaced func(Replace) bool) []string {
	var idle []string
	for _, e := range r.Excludes {
		if !has(e.Repository) {
			idle = append(idle, fmt.Sprintf("%s: no cluster has %s, of which %s is excluded", e.Place, e.Repository, e.Versions))
		}
	}
	for _, s := range r.Selects {
		if !depends(s.Ref.Repository) {
			idle = append(idle, fmt.Sprintf("%s: no package depends on %s, for which a version is selected", s.Place, s.Ref.Repository))
		}
	}
	for _, by := range r.Replaces {
		if !replaced(by) {
			idle = append(idle, fmt.Sprintf("%s: no cluster has %s, which is replaced", by.Place, strings.TrimSuffix(by.Repository+" "+by.Version, " ")))
		}
	}
	return idle
}

// RetractAnnotation, on a package's meta object, names versions of the package
// that its publisher takes back: lines of "VERSIONS: reason". Later versions
// repeat it, since the highest one counts.
const RetractAnnotation = "meta.gitopsd.dev/retract"

// Retraction is versions of a package that its publisher takes back.
type Retraction struct {
	Versions Range
	// Reason is the publisher's, on one line, without control characters.
	Reason string
}

// String returns the reason.
func (r Retraction) String() string { return "retracted: " + r.Reason }

// Bounds of an annotation, which is not the fleet's own.
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

// oneLine returns text that a terminal shows as it is, of a bounded length.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) { // nor what changes the direction of text
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	if len(text) > maxReason {
		text = strings.ToValidUTF8(text[:maxReason], "") + "…"
	}
	return text
}

// Retracted returns the retraction of a version, the first of several. Ref is as
// for [Rules.Excluded].
func Retracted(all []Retraction, ref sources.Ref) (Retraction, bool) {
	for _, r := range all {
		if ref.Tag != "" && r.Versions.Contains(ref.Tag) || ref.Digest != "" && r.Versions.Contains(string(ref.Digest)) {
			return r, true
		}
	}
	return Retraction{}, false
}

// Retractions returns what a package says about versions of itself. Invalid
// entries are left out.
func Retractions(pkg *sources.Package) []Retraction {
	metadata, _ := pkg.Meta.Document.Tree["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations[RetractAnnotation].(string)
	all, _ := ParseRetractions(text) // it is checked when the package is built
	return all
}
