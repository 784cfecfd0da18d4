package plan

import (
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// Allowed reports whether a package's declaration allows a breaking finding, and
// the reason. pkg is the value of manifest.PackageLabel. Plain manifests carry their
// own allowances.
type Allowed func(pkg string, f compat.Finding) (reason string, ok bool)

// maxShownFindings is how many findings a reason names before it only counts.
const maxShownFindings = 3

// RefuseBreaking refuses the steps of every package that would replace or remove
// types in a way that breaks somebody, unless that is allowed. All steps of such a
// package are refused, since a new controller must not meet old types. A plain
// manifest is refused alone; the same annotation on it allows findings, with a prefix
// of its types' digest as the version. If a change in the cluster is not corrected,
// only that step is refused: the package itself has not changed.
func RefuseBreaking(p *Plan, allowed Allowed) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Compatibility != compat.Breaking || !s.Action.Writes() {
			continue
		}
		by := allowed
		where, note := fmt.Sprintf("the package's annotation %s", manifest.AllowBreakingAnnotation), ""
		if s.Package == "" && s.Object != nil {
			by, where, note = ownAllowances(s.Object)
		}
		refused := notAllowed(s, by)
		if len(refused) == 0 {
			continue
		}
		names, how := prose.Some(refused, maxShownFindings), wayOut(refused, where, note)
		if s.Drift {
			s.Action, s.Reason = Refused, fmt.Sprintf("%s; correcting it is a breaking change: %s; %s, or make the change in the repository", s.Reason, names, how)
			continue
		}
		s.Action, s.Reason = Refused, fmt.Sprintf("breaking: %s; %s", names, how)
		if s.Package != "" && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package has a breaking change: %s: %s", s.ID.Name, names)
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if reason := why[s.Package]; reason != "" && s.Action.Writes() && !s.Drift {
			s.Action, s.Reason = Refused, reason
		}
	}
}

// wayOut says what can be done about findings that are refused. where is what can allow
// them, and how.
func wayOut(refused []string, where, how string) string {
	it, first := "it", ""
	if slices.Contains(refused, compat.StoredVersionRemoved) {
		first = "the API server removes no version that status.storedVersions lists: run `gitopsd migrate` before"
		if len(refused) == 1 {
			return first
		}
		it, first = "the rest", first+"; "
	}
	return first + where + " can allow " + it + how
}

// ownAllowances returns what a plain manifest allows for itself, where it does so and how.
func ownAllowances(o *manifest.Object) (by Allowed, where, how string) {
	where = "its annotation " + manifest.AllowBreakingAnnotation
	defined, err := types.Of(o.Tree())
	if err != nil {
		return nil, where, "; " + err.Error()
	}
	// Enough digits of the digest that an allowance does not outlive the change.
	const digits = 12
	version := types.Sum(defined)[:len("h1:")+digits]
	how = fmt.Sprintf(", with a line \"%s:<finding>=<reason>\" for each", version)
	all, err := compat.ParseAllowances(o.Annotation(manifest.AllowBreakingAnnotation))
	if err != nil {
		return nil, where, how + "; " + err.Error()
	}
	return func(_ string, f compat.Finding) (string, bool) {
		a, ok := compat.Allowed(all, version, f)
		return a.Reason, ok
	}, where, how
}

// notAllowed names the breaking findings of a step that nothing allows, and records
// the reasons for which the others are allowed.
func notAllowed(s *Step, allowed Allowed) []string {
	var names []string
	for _, f := range s.Findings {
		if f.Severity != compat.Breaking || slices.Contains(names, f.Name) {
			continue
		}
		if allowed != nil {
			if reason, ok := allowed(s.Package, f); ok {
				if s.Allowed == nil {
					s.Allowed = make(map[string]string)
				}
				s.Allowed[f.Name] = reason
				continue
			}
		}
		names = append(names, f.Name)
	}
	return names
}
