package unit

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// PlanOptions returns the options of a unit's plan that do not depend on its cluster. The error
// is about an annotation of the cluster's registration.
func PlanOptions(want *desired.Unit) (plan.Options, error) {
	opts, err := options(want)
	return opts.Options, err
}

// options returns the options of a unit's plan. The error is about an annotation of
// the unit's declaration.
func options(want *desired.Unit) (apply.PlanOptions, error) {
	opts := apply.PlanOptions{
		Options: plan.Options{
			Keeps: want.Keeps, Order: want.Order(), ReportDrift: want.ReportDrift, RemoveAll: want.Remove, Bare: want.Bare, Broken: want.Incomplete,
			Inactive: packageTypes(want.Inactive), Delegated: packageTypes(want.Delegated),
			Gating: want.Gating(), Declaration: want.Declaration,
		},
		Clusters:    names(want.Beside),
		Conversions: want.Conversions, Proofs: want.Proofs,
		Commit: want.Commit, Allowed: want.Allows, FindType: want.FindType, Types: want.Types,
		BreakingByData: want.Spec.Breaking == clusters.Data,
		Behaviour:      want.Behaviour, FindBehaviour: want.FindBehaviour,
	}
	if want.Err != nil {
		opts.RenderFailed = want.Err.Error()
	}
	fail := func(annotation string, err error) error {
		if want.Declaration != "" {
			return fmt.Errorf("%s: annotation %s: %w", want.Declaration, annotation, err)
		}
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

// hold holds corrections if drift is only reported.
func hold(p *plan.Plan) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Drift {
			s.Action, s.Lasting = plan.Held, true
			s.Reason = "reported, not corrected (spec.drift: report): " + s.Reason
		}
	}
}

func names(registered []clusters.Cluster) []string {
	all := make([]string, len(registered))
	for i, c := range registered {
		all[i] = c.Name
	}
	return all
}
