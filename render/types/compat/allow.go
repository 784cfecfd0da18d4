package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Allowance allows one finding in one version of a package. It does not apply to the next
// version.
type Allowance struct {
	// Version is the package's version as in its reference, a tag or a digest. For a
	// definition without a package it is a prefix of its types' digest.
	Version string `json:"version"`
	// Finding is the name of a finding.
	Finding string `json:"finding"`
	// Reason is documentation for readers of the history.
	Reason string `json:"reason"`
}

// ParseAllowances reads the annotation's value: lines of
// "<version>:<finding>=<reason>". Every part is required, and the finding must be one of
// [Names].
func ParseAllowances(value string) ([]Allowance, error) { return ParseAllowancesOf(value, Names()) }

// ParseAllowancesOf is like [ParseAllowances], but the finding must be one of names.
func ParseAllowancesOf(value string, names []string) ([]Allowance, error) {
	var all []Allowance
	for line := range strings.Lines(value) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		what, reason, _ := strings.Cut(line, "=")
		// A digest contains a colon, too.
		i := strings.LastIndexByte(what, ':')
		a := Allowance{Reason: strings.TrimSpace(reason)}
		if i >= 0 {
			a.Version, a.Finding = strings.TrimSpace(what[:i]), strings.TrimSpace(what[i+1:])
		}
		switch {
		case a.Version == "" || a.Finding == "":
			return nil, fmt.Errorf("annotation %s: %q: want <version>:<finding>=<reason>", manifest.AllowBreakingAnnotation, line)
		case a.Reason == "":
			return nil, fmt.Errorf("annotation %s: %q gives no reason: add one after %q", manifest.AllowBreakingAnnotation, line, "=")
		case strings.HasPrefix(a.Reason, "<") && strings.HasSuffix(a.Reason, ">"):
			return nil, fmt.Errorf("annotation %s: %q still has the placeholder: write your reason in the place of %s", manifest.AllowBreakingAnnotation, line, a.Reason)
		case !slices.Contains(names, a.Finding):
			advice := cmp.Or(sources.Meant(a.Finding, names), ": take the name from the plan")
			return nil, fmt.Errorf("annotation %s: there is no finding %q%s", manifest.AllowBreakingAnnotation, a.Finding, advice)
		}
		all = append(all, a)
	}
	return all, nil
}

// Allowed returns the allowance for a finding in a version of the package, if there is
// one. Only breaking findings need one.
func Allowed(all []Allowance, version string, f Finding) (Allowance, bool) {
	for _, a := range all {
		if a.Version == version && a.Finding == f.Name {
			return a, true
		}
	}
	return Allowance{}, false
}
