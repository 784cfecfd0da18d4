package plan

import (
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/types/compat"
)

// TypesAnnotation is on every CRD that is applied: the digest of the types that
// it defines as they were rendered. It tells whether a CRD that changed changes
// any type.
const TypesAnnotation = "gitopsd.dev/types"

// Allowed says whether a package's declaration allows a breaking finding, and
// for what reason. pkg is the value of PackageLabel, "" for plain manifests.
type Allowed func(pkg string, f compat.Finding) (reason string, ok bool)

// maxShownFindings is how many findings a reason names before it only counts.
const maxShownFindings = 3

// RefuseBreaking refuses the steps of every package that would replace or remove
// types in a way that breaks somebody, unless that is allowed. All steps of such
// a package are refused, since half a package is none: a new controller would
// meet old types. A plain manifest is refused alone.
func RefuseBreaking(p *Plan, allowed Allowed) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Compatibility != compat.Breaking || !s.Action.Writes() {
			continue
		}
		names := notAllowed(s, allowed)
		if names == "" {
			continue
		}
		s.Action, s.Reason = Refused, fmt.Sprintf("breaking: %s; the package's annotation %s can allow it", names, compat.AllowAnnotation)
		if s.Package != "" && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package is breaking: %s: %s", s.ID.Name, names)
		}
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if reason := why[s.Package]; reason != "" && s.Action.Writes() && !s.Drift {
			s.Action, s.Reason = Refused, reason
		}
	}
}

// notAllowed names the breaking findings of a step that nothing allows, and notes
// why the others are.
func notAllowed(s *Step, allowed Allowed) string {
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
	return prose.Some(names, maxShownFindings)
}
