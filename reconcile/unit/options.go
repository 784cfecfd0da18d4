package unit

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// options are those of a plan for a unit. The error is about an annotation of the
// cluster's registration.
func options(want *desired.Unit) (apply.PlanOptions, error) {
	opts := apply.PlanOptions{
		Options: plan.Options{
			Keeps: want.Keeps, Order: want.Order(), ReportDrift: want.ReportDrift, RemoveAll: want.Remove,
			Inactive: packageTypes(want.Inactive), Delegated: packageTypes(want.Delegated),
		},
		Commit: want.Commit, Allowed: want.Allows, FindType: want.FindType,
	}
	if want.Err != nil {
		opts.RenderFailed = want.Err.Error()
	}
	fail := func(annotation string, err error) error {
		return fmt.Errorf("%s: %s on cluster %s: %w", sources.RegistryFile, annotation, want.Name, err)
	}
	if v := want.Annotations[manifest.AllowPruneAnnotation]; v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return opts, fail(manifest.AllowPruneAnnotation, fmt.Errorf("%q is not a number of objects", v))
		}
		opts.AllowPrune = n
	}
	if v := want.Annotations[manifest.AdoptAnnotation]; v != "" {
		var err error
		if opts.Adopt, err = plan.ParseAdopt(v); err != nil {
			return opts, fail(manifest.AdoptAnnotation, err)
		}
	}
	return opts, nil
}

func packageTypes(rendered []render.PackageType) []plan.PackageType {
	list := make([]plan.PackageType, len(rendered))
	for i, t := range rendered {
		list[i] = plan.PackageType{Definition: t.Definition, Kind: schema.GroupKind{Group: t.Group, Kind: t.Kind}, Package: t.Package}
	}
	return list
}

// executed is a plan as it is executed. Where drift is reported, corrections are
// held. Objects with fields that are still unknown wait, but for a preview.
func executed(p *plan.Plan, reportDrift, preview bool) *plan.Plan {
	for i := range p.Steps {
		s := &p.Steps[i]
		switch {
		case reportDrift && s.Drift:
			s.Action = plan.Held
			s.Reason = "reported, not corrected (spec.drift: report): " + s.Reason
		case !preview && s.Action.Writes() && s.Object != nil && len(s.Object.Unknown()) > 0:
			s.Action = plan.Wait
			s.Reason = "not known yet: " + prose.Some(s.Object.Unknown(), 3)
		}
	}
	return p
}
