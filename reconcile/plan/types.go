package plan

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// Allowed reports whether a package's declaration allows a breaking finding, and the
// reason. pkg is the value of manifest.PackageLabel. Plain manifests have their own
// allowances.
type Allowed func(pkg string, f compat.Finding) (reason string, ok bool)

// maxShownFindings is how many findings a reason names before it only counts.
const maxShownFindings = 3

// maxShownObjects is how many objects a reason names before it only counts.
const maxShownObjects = 3

// RefuseBreaking refuses breaking changes of types that are not allowed. All steps of a
// package with such a change are refused, since a new controller must not meet old types.
// A plain manifest is refused alone; the same annotation on it allows findings, with a
// prefix of its types' digest as the version. If the step would correct a change in the
// cluster, it is refused alone: the package itself has not changed.
//
// A change that harms no object ([Step.Survey]) is let through if it goes back to types
// that were there before ([Step.Back]), and in any case if byData is set or the definition
// is gitopsd's own ([Step.OwnDefinition]).
func RefuseBreaking(p *Plan, allowed Allowed, byData bool) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Compatibility != compat.Breaking || !s.Action.Writes() {
			continue
		}
		by := allowed
		where, note, version := fmt.Sprintf("the package's annotation %s", manifest.AllowBreakingAnnotation), "", ""
		if s.Package == "" && s.Object != nil {
			by, where, note, version = ownAllowances(s.Object)
		}
		refused := notAllowed(s, by, byData)
		if len(refused) == 0 {
			s.passed(byData)
			continue
		}
		names := prose.Some(refused, maxShownFindings)
		cause, before, how := "breaking: "+names, storedAgain(refused, s.ID, Migrates(s.Object)), wayOut(refused, where, note)
		if s.Drift {
			cause = s.Reason + "; correcting it is a breaking change: " + names
		}
		cause = joined(cause, s.harms(refused), before, otherScope(refused))
		if s.OwnDefinition() {
			// No file has it that could be annotated.
			s.Action, s.Reason, s.Allow = Refused, joined(cause, s.ownWayOut()), nil
			continue
		}
		s.Action, s.Reason, s.Allow = Refused, joined(cause, how), nil
		if s.Drift {
			s.Reason += ", or make the change in the repository"
		}
		if how != "" && (s.Package != "" || version != "") {
			s.Allow = allowBreaking(refused, version, cause)
		}
		if s.Drift {
			continue
		}
		if s.Package != "" && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package has a breaking change: %s: %s", s.ID.Name, names)
		}
	}
	refusePackages(p, why)
}

// RefuseIncomplete refuses objects that could not be completed, for a reason each, and the
// packages of changed definitions among them.
func RefuseIncomplete(p *Plan, incomplete map[manifest.ID]string) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		reason := incomplete[s.ID]
		if reason == "" || s.Object == nil {
			continue
		}
		if s.ID.Is(manifest.Definitions...) && s.Package != "" && s.Action.Writes() && !s.Drift && !s.Refilled && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package has a definition that is refused: %s", s.ID.Name)
		}
		s.Action, s.Reason, s.Drift = Refused, reason, false
	}
	refusePackages(p, why)
}

// RefuseDying refuses the CRDs of packages that are being deleted with objects, which
// contents describes, and holds the writes to their controllers, which would delete what the
// objects stand for. One that somebody stopped stays so, although that is drift.
func RefuseDying(p *Plan, contents map[manifest.ID]string) {
	dying := make(map[string]manifest.ID)
	for i := range p.Steps {
		s := &p.Steps[i]
		text := contents[s.ID]
		if text == "" {
			continue
		}
		dying[s.Package] = s.ID
		s.Action = Refused
		s.Reason = fmt.Sprintf("it is being deleted with %s, which cannot be undone: only finalizers keep these, and a controller would delete what they stand for; "+
			"stop every controller of theirs, save them (kubectl get %s -A -o yaml), and remove their finalizers; create them again when gitopsd has created the type again; "+
			"to have all deleted instead, annotate the CRD with %s: \"true\"", text, s.ID.Name, manifest.AllowPruneAnnotation)
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		if crd, ok := dying[s.Package]; ok && s.Object != nil && s.Stage == Workloads && s.Action.Writes() {
			s.Action, s.Follows = Held, true
			s.Reason = fmt.Sprintf("%s of its package is being deleted with objects, and it would delete what they stand for", crd)
		}
	}
}

// refusePackages refuses the other steps of packages, for a reason each. Values that were
// filled in anew are applied: the live controller needs its renewed certificate.
func refusePackages(p *Plan, why map[string]string) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if reason := why[s.Package]; reason != "" && s.Action.Writes() && !s.Drift && !s.Refilled {
			s.Action, s.Reason, s.Follows = Refused, reason, true
		}
	}
}

// RefuseUnkept refuses the steps that were let through because the plan changes or deletes
// the objects that they would harm, if the plan does not do that after all.
func RefuseUnkept(p *Plan) {
	if !slices.ContainsFunc(p.Steps, func(s Step) bool { return len(s.LetThrough) > 0 }) {
		return
	}
	stays := make(map[manifest.ID]bool)
	for i := range p.Steps {
		if s := &p.Steps[i]; !s.Action.Writes() {
			stays[s.ID] = true
		}
	}
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		if len(s.LetThrough) == 0 || !s.Action.Writes() {
			continue
		}
		for _, id := range s.Survey.Relies {
			if !stays[id] {
				continue
			}
			s.Action = Refused
			s.Reason = fmt.Sprintf("breaking: %s; it would harm %s, whose own change is not made", prose.Some(s.LetThrough, maxShownFindings), id)
			if s.Package != "" && !s.Drift {
				why[s.Package] = fmt.Sprintf("its package has a breaking change: %s: it would harm %s", s.ID.Name, id)
			}
			break
		}
	}
	refusePackages(p, why)
}

// joined joins the parts of a reason that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "; ")
}

// storedAgain returns what must be done before a stored version can be removed; empty if
// that is not among the refused findings. migrates reports whether the daemon stores the
// objects again; it does not for those of a CRD that Crossplane made.
func storedAgain(refused []string, id manifest.ID, migrates bool) string {
	if !slices.Contains(refused, compat.StoredVersionRemoved) {
		return ""
	}
	how := migration(migrates, false)
	if id.Is(manifest.XRD) {
		how = "run `gitopsd migrate --yes " + id.Name + "` before"
	}
	return "the API server removes no version that status.storedVersions lists: " + how
}

// OwnDefinition reports whether a step is about a definition that gitopsd itself makes, of
// KubernetesApplications for instance. Another version of gitopsd makes another one.
func (s *Step) OwnDefinition() bool {
	return s.Package == "" && s.Object != nil && s.ID.Is(manifest.Definitions...) && s.Object.Origin().For != ""
}

// ownWayOut returns the way out for a definition that gitopsd itself makes.
func (s *Step) ownWayOut() string {
	if s.Drift {
		return "gitopsd makes this definition: correct the objects"
	}
	return "gitopsd makes this definition: correct the objects, or run the version of gitopsd that applied it"
}

// otherScope returns the way out for a changed scope; empty if that is not refused.
func otherScope(refused []string) string {
	if !slices.Contains(refused, compat.ScopeChanged) {
		return ""
	}
	return "the API server changes no scope: " + otherKind
}

// allowable returns the findings that an annotation can allow. The API server refuses the others.
func allowable(refused []string) []string {
	return slices.DeleteFunc(slices.Clone(refused), func(name string) bool {
		return name == compat.StoredVersionRemoved || name == compat.ScopeChanged
	})
}

// wayOut returns where and how refused findings can be allowed; empty if they cannot.
func wayOut(refused []string, where, how string) string {
	switch len(allowable(refused)) {
	case 0:
		return ""
	case len(refused):
		return where + " can allow it" + how
	}
	return where + " can allow the rest" + how
}

// ownAllowances returns the allowances in a plain manifest, with the place and the form
// of such an annotation for advice, and the version that allowances name; empty if its
// types cannot be read.
func ownAllowances(o *manifest.Object) (by Allowed, where, how, version string) {
	where = "its annotation " + manifest.AllowBreakingAnnotation
	defined, err := types.Of(o.Tree())
	if err != nil {
		return nil, where, "; " + err.Error(), ""
	}
	// Enough digits of the digest that an allowance does not outlive the change.
	const digits = 12
	version = types.Sum(defined)[:len("h1:")+digits]
	how = fmt.Sprintf(", with a line \"%s:<finding>=<reason>\" for each", version)
	all, err := compat.ParseAllowances(o.Annotation(manifest.AllowBreakingAnnotation))
	if err != nil {
		return nil, where, how + "; " + err.Error(), version
	}
	return func(_ string, f compat.Finding) (string, bool) {
		a, ok := compat.Allowed(all, version, f)
		return a.Reason, ok
	}, where, how, version
}

// notAllowed returns the names of the breaking findings of a step that are not allowed,
// and records the reasons for the allowed ones.
func notAllowed(s *Step, allowed Allowed, byData bool) []string {
	var names []string
	s.LetThrough = nil
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
		if (s.Back || byData || s.OwnDefinition()) && s.Survey.Clears(f, s.Back) {
			if !slices.Contains(s.LetThrough, f.Name) {
				s.LetThrough = append(s.LetThrough, f.Name)
			}
			continue
		}
		names = append(names, f.Name)
	}
	s.LetThrough = slices.DeleteFunc(s.LetThrough, func(name string) bool { return slices.Contains(names, name) })
	return names
}

// MayDecide reports whether a step is refused or not depending on the objects of the types
// that it changes, given what the package's declaration allows.
func MayDecide(s *Step, allowed Allowed) bool {
	if s.Compatibility != compat.Breaking || !s.Action.Writes() {
		return false
	}
	if s.Package == "" && s.Object != nil {
		allowed, _, _, _ = ownAllowances(s.Object)
	}
	return slices.ContainsFunc(s.Findings, func(f compat.Finding) bool {
		if allowed != nil {
			if _, ok := allowed(s.Package, f); ok {
				return false
			}
		}
		return harm.Tells(f)
	})
}

// LetsThrough reports whether a step's survey lets its breaking change through.
func LetsThrough(s *Step, allowed Allowed, byData bool) bool {
	if s.Package == "" && s.Object != nil {
		allowed, _, _, _ = ownAllowances(s.Object)
	}
	tried := Step{ID: s.ID, Object: s.Object, Package: s.Package, Findings: s.Findings, Survey: s.Survey, Back: s.Back}
	return len(notAllowed(&tried, allowed, byData)) == 0
}

// StillPasses reports whether a newer survey lets through every finding that the step's own
// did. If so, it replaces the step's own.
func (s *Step) StillPasses(survey *harm.Survey) bool {
	for _, f := range s.Findings {
		if f.Severity == compat.Breaking && slices.Contains(s.LetThrough, f.Name) && !survey.Clears(f, s.Back) {
			return false
		}
	}
	s.Survey = survey
	return true
}

// passed adds to the reason of a step that it breaks the schema but harms no object.
func (s *Step) passed(byData bool) {
	if len(s.LetThrough) == 0 {
		return
	}
	why := "spec.breaking: data"
	switch {
	case s.Back:
		why = "it goes back to types that were there before"
	case s.OwnDefinition():
		why = "gitopsd makes this definition"
	}
	text := fmt.Sprintf("breaking (%s), but %s: %s", prose.Some(s.LetThrough, maxShownFindings), why, s.Survey.Text(maxShownObjects))
	s.Reason = joined(s.Reason, text)
}

// harms describes what a refused step would do to objects; empty if it was refused for
// other reasons.
func (s *Step) harms(refused []string) string {
	text := s.Survey.Text(maxShownObjects)
	if s.Survey == nil || s.Survey.Harmed > 0 || s.Survey.Unknown != "" {
		return text
	}
	for _, f := range s.Findings {
		if f.Severity == compat.Breaking && slices.Contains(refused, f.Name) && !s.Survey.Clears(f, false) {
			return strings.Join(append(s.Survey.Doubts(), s.Survey.Warnings()...), "; ")
		}
	}
	return text + ", so that spec.breaking: data on the Cluster would let it through"
}
