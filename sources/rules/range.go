package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/versions"
)

// Range is a set of versions of one package. The zero value contains none.
type Range struct {
	text string
	// Either constraint or both low and high are set. If none is, the range contains
	// only text itself.
	constraint *semver.Constraints
	low, high  *semver.Version
}

// ParseRange reads a range: a version or other tag ("v1.2.0"), a digest, a constraint
// as in dependencies (">=1.2.0 <1.2.4"), or a closed interval as in go.mod
// ("[v1.3.0, v1.3.4]"). A range contains the pre-releases between its ends.
func ParseRange(text string) (Range, error) {
	r := Range{text: strings.TrimSpace(text)}
	if r.text == "" {
		return r, errors.New("no version is named")
	}
	if strings.HasPrefix(r.text, "sha256:") {
		_, err := sources.ParseDigest(r.text)
		return r, err
	}
	if inside, ok := strings.CutPrefix(r.text, "["); ok {
		return r.interval(inside)
	}
	if v, err := versions.Parse(r.text); err == nil && full(r.text) {
		r.low, r.high = v, v // with or without v
		return r, nil
	}
	c, err := semver.NewConstraint(r.text)
	if err == nil {
		c.IncludePrerelease = true
		if empty(c, r.text) {
			return Range{}, fmt.Errorf(`%q contains no version; all its conditions hold together. An interval with both ends is written "[v1.3.0, v1.3.4]", and || separates alternatives`, r.text)
		}
		r.constraint = c
		return r, nil
	}
	if _, tagErr := sources.ParseRef("registry.invalid/tag:" + r.text); tagErr != nil {
		return Range{}, fmt.Errorf(`%q is no version; want a version or tag ("v1.2.0"), a digest, a range (">=1.2.0 <1.2.4") or an interval ("[v1.3.0, v1.3.4]")`, r.text)
	}
	return r, nil
}

func (r Range) interval(inside string) (Range, error) {
	low, high, comma := strings.Cut(inside, ",")
	high, closed := strings.CutSuffix(high, "]")
	var err error
	if r.low, err = versions.Parse(strings.TrimSpace(low)); err == nil {
		r.high, err = versions.Parse(strings.TrimSpace(high))
	}
	switch {
	case !comma || !closed || err != nil:
		return Range{}, fmt.Errorf(`%q is no interval; want two versions, as in "[v1.3.0, v1.3.4]"`, r.text)
	case r.low.GreaterThan(r.high):
		return Range{}, fmt.Errorf("%s contains no version: write the lower one first", r.text)
	}
	return r, nil
}

var literal = regexp.MustCompile(`\d+(?:\.\d+){0,2}(?:-[0-9A-Za-z.-]+)?`)

// empty reports whether no version satisfies a constraint. It tries each version in the
// text and its neighbours. Other versions satisfy it only if one of these does.
func empty(c *semver.Constraints, text string) bool {
	tries := []semver.Version{*semver.New(0, 0, 0, "", "")}
	for _, s := range literal.FindAllString(text, 1000) {
		v, err := semver.NewVersion(s)
		if err != nil {
			continue
		}
		first := *semver.New(v.Major(), v.Minor(), v.Patch(), "0", "")
		tries = append(tries, *v, first, v.IncPatch(), v.IncMinor(), v.IncMajor())
		if after, err := v.SetPrerelease(strings.TrimPrefix(v.Prerelease()+".0", ".")); err == nil {
			tries = append(tries, after)
		}
	}
	return !slices.ContainsFunc(tries, func(v semver.Version) bool { return c.Check(&v) })
}

// Contains reports whether a tag or digest is in the range.
func (r Range) Contains(version string) bool {
	if version == r.text {
		return version != ""
	}
	// Tags such as v1.2 move.
	if r.constraint == nil && r.low == nil || !full(version) {
		return false
	}
	v, err := versions.Parse(version)
	switch {
	case err != nil:
		return false
	case r.constraint != nil:
		return r.constraint.Check(v)
	}
	return v.Compare(r.low) >= 0 && v.Compare(r.high) <= 0
}

// contains reports whether the tag or the digest of a reference is in the range.
func (r Range) contains(ref sources.Ref) bool {
	return ref.Tag != "" && r.Contains(ref.Tag) || ref.Digest != "" && r.Contains(string(ref.Digest))
}

// full reports whether a tag that is a version has all three numbers.
func full(tag string) bool { return strings.Count(tag, ".") >= 2 }

// String returns the text that it was read from.
func (r Range) String() string { return r.text }
