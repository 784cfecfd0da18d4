// Package versions chooses among the tags of a repository that are versions: the newest
// that may replace an installed one ([Find]), the one that a person's query selects
// ([Select]), and the highest for a dependency ([Highest]). It is pure: sources/oci
// lists tags, and sources/resolve decides when a dependency gets a version.
package versions

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
)

// Latest is the query for the newest version.
const Latest = "latest"

// ErrNotVersion is in the chain of errors about a tag or digest that cannot be
// compared with versions.
var ErrNotVersion = errors.New("is not a semantic version")

// Need is a package's requirement on another.
type Need struct {
	// From is the dependent, as "repository:tag".
	From string
	// Constraint is a semver range or a digest.
	Constraint string
}

func (n Need) String() string { return fmt.Sprintf("%s (needed by %s)", n.Constraint, n.From) }

// Options restrict a choice.
type Options struct {
	// Needs are the requirements of the dependents.
	Needs []Need
	// Prerelease allows pre-releases even if the current version is a release.
	Prerelease bool
}

// Newer are versions that may replace the current one.
type Newer struct {
	// Update is the newest version with the same major number that satisfies all
	// dependents; empty if there is none newer than the current one.
	Update string
	// Latest is the newest version; empty if there is none newer than the current one.
	Latest string
	// Held are the needs that Latest does not satisfy.
	Held []Need
}

// Find returns the newer versions among tags. Tags that are not full semantic versions
// (three numbers, with or without v) are ignored: "v1" and "stable" move, and a date is
// not a version. The error is [ErrNotVersion] if the current tag is such a tag, or about
// a need that is not a range.
func Find(tags []string, current string, opts Options) (Newer, error) {
	at, err := parse(current)
	if err != nil {
		return Newer{}, fmt.Errorf("%s %w, so that none is known to be newer", current, ErrNotVersion)
	}
	pre := opts.Prerelease || at.Prerelease() != ""
	var n Newer
	for _, v := range sorted(tags, current) {
		if v.Prerelease() != "" && !pre || !v.GreaterThan(at) {
			continue
		}
		unmet, err := unmet(v, opts.Needs)
		if err != nil {
			return Newer{}, err
		}
		if n.Latest == "" {
			n.Latest, n.Held = v.Original(), unmet
		}
		if v.Major() == at.Major() && len(unmet) == 0 {
			n.Update = v.Original()
			return n, nil
		}
	}
	return n, nil
}

// Select returns the tag that a query selects: one of the tags, even if it looks like a
// range, [Latest], or a range, for its highest version. Pre-releases are considered
// if current is one. Of "v1.2.3" and "1.2.3" the one written like current is selected.
// Select fails if the query is neither a tag nor a range, or if no tag in the range
// satisfies the needs.
func Select(query string, tags []string, current string, opts Options) (string, error) {
	if query != Latest && slices.Contains(tags, query) {
		return query, nil
	}
	at, err := parse(current)
	pre := opts.Prerelease || err == nil && at.Prerelease() != ""
	accepts := func(v *semver.Version) bool { return pre || v.Prerelease() == "" }
	if query != Latest {
		c, err := semver.NewConstraint(query)
		if err != nil {
			return "", fmt.Errorf("%q is none of its tags, and not a range of versions (\"^1.2\", \">=1.2 <3\"); the registry has %s", query, List(tags))
		}
		c.IncludePrerelease = pre
		accepts = c.Check
	}
	var refused []Need
	for _, v := range sorted(tags, current) {
		if !accepts(v) {
			continue
		}
		unmet, err := unmet(v, opts.Needs)
		if err != nil {
			return "", err
		}
		if len(unmet) == 0 {
			return v.Original(), nil
		}
		if refused == nil {
			refused = unmet
		}
	}
	if refused != nil {
		return "", fmt.Errorf("no version that is %s satisfies %s too; the registry has %s", query, join(refused), List(tags))
	}
	return "", fmt.Errorf("no version is %s; the registry has %s", query, List(tags))
}

// List returns a few of the highest versions among tags, for an error.
func List(tags []string) string {
	var all []*semver.Version
	for _, t := range tags {
		if v, err := Parse(t); err == nil {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return "no tag that is a semantic version"
	}
	slices.SortFunc(all, higher)
	const most = 5
	var names []string
	for _, v := range all[:min(most, len(all))] {
		names = append(names, v.Original())
	}
	if len(all) > most {
		names = append(names, fmt.Sprintf("and %d older", len(all)-most))
	}
	return strings.Join(names, ", ")
}

// Parse reads a tag that is a version: a full semantic version, with or without v, or
// its first one or two numbers ("v1", "1.2"). The error is [ErrNotVersion] for other
// tags, such as dates (20240102, 2024-01-02) and commits (1234567).
func Parse(tag string) (*semver.Version, error) {
	if v, err := parse(tag); err == nil {
		return v, nil
	}
	if !beginning.MatchString(tag) {
		return nil, fmt.Errorf("%s %w", tag, ErrNotVersion)
	}
	return semver.NewVersion(tag)
}

// beginning matches the first one or two numbers of a version. The first has at most
// three digits, and so is not a year.
var beginning = regexp.MustCompile(`^v?(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]*))?$`)

// parse reads a full semantic version.
func parse(tag string) (*semver.Version, error) {
	if _, err := semver.StrictNewVersion(strings.TrimPrefix(tag, "v")); err != nil {
		return nil, err
	}
	return semver.NewVersion(tag)
}

// Highest returns the tag of the highest version that accept accepts, or "". Of equal
// versions it prefers those with more numbers, which do not move, and then the first by
// name. The error is accept's.
func Highest(tags []string, accept func(*semver.Version) (bool, error)) (string, error) {
	var best *semver.Version
	for _, tag := range tags {
		v, err := Parse(tag)
		if err != nil {
			continue
		}
		ok, err := accept(v)
		if err != nil {
			return "", err
		}
		if ok && (best == nil || higher(v, best) < 0) {
			best = v
		}
	}
	if best == nil {
		return "", nil
	}
	return best.Original(), nil
}

// Lasting returns the tags without the aliases that move: v1 and v1.2 of a repository with v1.2.3.
func Lasting(tags []string) []string {
	full := make(map[string]bool) // the beginnings of full versions
	for _, tag := range tags {
		if v, err := parse(tag); err == nil && v.Prerelease() == "" {
			full[fmt.Sprint(v.Major())], full[fmt.Sprintf("%d.%d", v.Major(), v.Minor())] = true, true
		}
	}
	return slices.DeleteFunc(slices.Clone(tags), func(tag string) bool {
		return beginning.MatchString(tag) && full[strings.TrimPrefix(tag, "v")]
	})
}

// higher compares versions for a list with the highest first.
func higher(a, b *semver.Version) int {
	numbers := func(v *semver.Version) int { return min(strings.Count(v.Original(), "."), 2) }
	return cmp.Or(b.Compare(a), cmp.Compare(numbers(b), numbers(a)), cmp.Compare(a.Original(), b.Original()))
}

// sorted returns the full versions among tags, highest first. Of equal versions, the one
// with or without v like current comes first.
func sorted(tags []string, current string) []*semver.Version {
	var all []*semver.Version
	for _, t := range tags {
		if v, err := parse(t); err == nil {
			all = append(all, v)
		}
	}
	written := func(s string) int {
		if strings.HasPrefix(s, "v") == strings.HasPrefix(current, "v") {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b *semver.Version) int {
		return cmp.Or(b.Compare(a), cmp.Compare(written(a.Original()), written(b.Original())), cmp.Compare(a.Original(), b.Original()))
	})
	return all
}

// unmet returns the needs that a version does not satisfy.
func unmet(v *semver.Version, needs []Need) ([]Need, error) {
	var all []Need
	for _, n := range needs {
		if _, err := sources.ParseDigest(n.Constraint); err == nil {
			all = append(all, n)
			continue
		}
		c, err := semver.NewConstraint(n.Constraint)
		if err != nil {
			return nil, fmt.Errorf("%s needs %q, which is neither a version range nor a digest: %w", n.From, n.Constraint, err)
		}
		if !c.Check(v) {
			all = append(all, n)
		}
	}
	return all, nil
}

func join(needs []Need) string {
	var all []string
	for _, n := range needs {
		all = append(all, n.String())
	}
	return strings.Join(all, " and ")
}
