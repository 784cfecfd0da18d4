package plan

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
)

// CheckConversions tries the conversion rules of the definitions that a plan creates or
// changes, and refuses definitions with a counterexample that the rules do not allow. It
// refuses all steps of their packages, since a new controller must not meet an old type.
// Drift and a new CA bundle do not change the rules, which are a part of what is rendered:
// they are in force, and API servers must go on reaching their server. rules are by the definition's name. The error is that ctx has ended.
func CheckConversions(ctx context.Context, p *Plan, rules map[string]*render.Conversion, proofs *prove.Cache) error {
	if len(rules) == 0 {
		return nil
	}
	var g errgroup.Group
	untried := make([]bool, len(p.Steps))
	for i := range p.Steps {
		s := &p.Steps[i]
		of := rules[s.ID.Name]
		// What is refused for another reason is tried, too: people see all reasons at once.
		changes := s.Action.Writes() || s.Action == Refused && s.Compatibility == compat.Breaking
		if !s.ID.Is(manifest.CRD) || s.Object == nil || of == nil || !changes || s.Drift || s.Refilled {
			continue
		}
		g.Go(func() error {
			proof, err := proofs.Prove(ctx, of)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			why := ""
			if err != nil {
				why, untried[i] = fmt.Sprintf("its conversion rules cannot be tried: %v", err), true
			} else {
				s.Proof, why = proof, proof.Why()
			}
			if why != "" && s.Action == Refused {
				s.Reason += "; " + why
				if s.Allow != nil {
					s.Allow.Cause += "; " + why
				}
			} else if why != "" {
				s.Action, s.Reason = Refused, why
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	why := make(map[string]string)
	for i := range p.Steps {
		switch s := &p.Steps[i]; {
		case s.Package == "" || why[s.Package] != "":
		case untried[i]:
			why[s.Package] = fmt.Sprintf("its package has conversion rules that cannot be tried: %s", s.ID.Name)
		case s.Proof != nil && len(s.Proof.Refused) > 0:
			why[s.Package] = fmt.Sprintf("its package has conversion rules with a counterexample: %s", s.ID.Name)
		}
	}
	refusePackages(p, why)
	return nil
}

// StoredVersions are the versions that a cluster's objects of a definition may be stored
// in; the zero value means unknown.
type StoredVersions struct {
	// All is the live definition's status.storedVersions.
	All []string
	// Now is the live definition's storage version.
	Now string
}

// RefuseUnconverted refuses the changed definitions, with their packages, if their
// conversion rules leave out a version that objects may be stored in: the API server
// could not convert such an object, and would fail every list with one. stored and rules
// are by definition.
func RefuseUnconverted(p *Plan, rules map[string]*render.Conversion, stored map[manifest.ID]StoredVersions) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		of := rules[s.ID.Name]
		if of == nil || !s.ID.Is(manifest.CRD) || !s.Action.Writes() {
			continue
		}
		in := stored[s.ID]
		lost := slices.DeleteFunc(slices.Clone(in.All), func(v string) bool { return slices.Contains(of.Set.Versions(), v) })
		if len(lost) == 0 {
			continue
		}
		versions := strings.Join(lost, ", ")
		s.Action, s.Reason = Refused, fmt.Sprintf("objects may be stored in %s (status.storedVersions), which its conversion rules do not convert: no list of the objects would succeed; %s, or keep the rules for %s",
			versions, migration(Migrates(s.Object), slices.Contains(lost, in.Now)), versions)
		if s.Package != "" && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package has conversion rules that leave out a stored version of %s", s.ID.Name)
		}
	}
	refusePackages(p, why)
}

// migration returns how to get objects out of old versions. migrates reports whether the
// daemon stores them again, and now whether one of the versions is still the storage
// version.
func migration(migrates, now bool) string {
	switch {
	case now:
		return "make another version the storage version before, and run `gitopsd migrate --yes`"
	case migrates:
		return "`gitopsd run` stores the objects again (" + manifest.MigrateStorageAnnotation + "), and goes on when that is done"
	}
	return "run `gitopsd migrate --yes` before"
}

// RefuseTried refuses the changed definitions, with their packages, if their conversion
// rules harm objects of the cluster ([Step.Tried]) and do not allow that.
func RefuseTried(p *Plan) {
	why := make(map[string]string)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Tried == nil || !s.Action.Writes() || !s.Tried.Failed() {
			continue
		}
		s.Action, s.Reason = Refused, s.Tried.Why()+"; "+s.Proof.WayOut(s.Tried.Laws())
		if s.Package != "" && why[s.Package] == "" {
			why[s.Package] = fmt.Sprintf("its package has conversion rules that are wrong for objects of %s", s.ID.Name)
		}
	}
	refusePackages(p, why)
}
