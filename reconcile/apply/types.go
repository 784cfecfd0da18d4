package apply

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
)

// checkTypes refuses breaking changes of types, conversion rules with a counterexample,
// objects that could not be completed, objects that are pinned to other types or
// behaviours, and objects that their new types would not accept.
func (a *Applier) checkTypes(ctx context.Context, p *plan.Plan, seen *view, opts PlanOptions) error {
	if err := a.compareTypes(ctx, p, seen, opts); err != nil {
		return err
	}
	if err := plan.CheckConversions(ctx, p, opts.Conversions, opts.Proofs); err != nil {
		return err
	}
	if err := a.tryConversions(ctx, p, seen, opts); err != nil {
		return err
	}
	plan.RefuseIncomplete(p, opts.Refused)
	if err := a.refuseDying(ctx, p, seen); err != nil {
		return err
	}
	live, err := a.pinnedTo(ctx, p)
	if err != nil {
		return err
	}
	var find plan.FindType
	if opts.FindType != nil {
		find = func(gvk schema.GroupVersionKind, digest string) (map[string]any, string) {
			return opts.FindType(ctx, gvk, digest)
		}
	}
	plan.CheckPins(ctx, p, live, find, opts.ReportDrift)
	controllers := plan.Controllers{Of: opts.Behaviour}
	if opts.FindBehaviour != nil {
		controllers.Find = func(gk schema.GroupKind, digest string) (*behaviour.Identity, string) {
			return opts.FindBehaviour(ctx, gk, digest)
		}
	}
	plan.CheckControllers(p, controllers)
	return a.checkObjects(ctx, p, opts)
}

// refuseDying refuses the CRDs of packages that are being deleted and still have objects,
// unless somebody allowed that.
func (a *Applier) refuseDying(ctx context.Context, p *plan.Plan, seen *view) error {
	contents, look := make(map[manifest.ID]string), a.newLook()
	for i := range p.Steps {
		s := &p.Steps[i]
		meta := seen.live.Objects[s.ID]
		if s.Object == nil || s.Package == "" || !s.ID.Is(manifest.CRD) || meta == nil || meta.DeletionTimestamp == nil ||
			meta.Annotations[manifest.AllowPruneAnnotation] == "true" {
			continue
		}
		var err error
		if contents[s.ID], err = look.text(ctx, s.ID); err != nil {
			return err
		}
	}
	plan.RefuseDying(p, contents)
	return nil
}

// pinned is a live definition that pins were checked against, and when it was read.
type pinned struct {
	plan.LiveDefinition
	read time.Time
}

// pinnedTo returns the live definitions that the pins of a plan are checked against. Those
// of kinds that the plan does not write are read again at definitionAge, as others may
// change them, and not in each pass.
func (a *Applier) pinnedTo(ctx context.Context, p *plan.Plan) (map[schema.GroupKind]plan.LiveDefinition, error) {
	written := make(map[schema.GroupKind]bool)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action.Writes() {
			written[kindOf(s.ID)] = true
		}
	}
	live := make(map[schema.GroupKind]plan.LiveDefinition)
	now := make(map[schema.GroupKind]pinned)
	for _, gk := range plan.PinnedKinds(p) {
		d, known := a.pinned[gk]
		known = known && d.Err == nil && !written[gk]
		if !known || time.Since(d.read) >= definitionAge {
			tree, err := a.cluster.Definition(ctx, gk.Group, gk.Kind)
			switch {
			case kube.IsClusterWide(err):
				return nil, err
			case kube.ClassOf(err) == kube.NoSuchType:
				continue // the plan installs it, or has the reason why it cannot be applied
			case err == nil || !known: // otherwise the known one stays until it can be read again
				d = pinned{plan.LiveDefinition{Tree: tree, Err: err}, time.Now()}
			}
		}
		live[gk], now[gk] = d.LiveDefinition, d
	}
	a.pinned = now
	return live, nil
}

// compareTypes compares the types that the plan would replace or remove with the live
// ones, and refuses breaking steps unless the package's declaration allows them. The
// correction of drift counts as a change like any other: objects may need the drifted
// types by now. A CRD that is as it was applied, with the digests of the same types and
// conversion rules in its annotations, is not compared.
func (a *Applier) compareTypes(ctx context.Context, p *plan.Plan, seen *view, opts PlanOptions) error {
	wanted := make(map[string]bool)
	for i := range p.Steps {
		if p.Steps[i].Object != nil {
			wanted[p.Steps[i].Package] = true
		}
	}
	// A deactivated type is removed only if it has no objects.
	dormant := make(map[manifest.ID]bool, len(opts.Inactive))
	for _, t := range opts.Inactive {
		dormant[t.Definition] = true
	}
	var lives sync.Map // of the compared definitions that break, by ID
	before := a.compared
	a.compared = make(map[manifest.ID]compared)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range p.Steps {
		s := &p.Steps[i]
		// Drift that is only reported is not corrected.
		replaced := s.Action == plan.Configure && !(s.Drift && opts.ReportDrift)
		// Removing a package, or a CRD without a package, is deliberate, and its
		// objects are looked at elsewhere; whoever bumps a package may not know
		// that it drops a type.
		dropped := s.Action == plan.Prune && s.Package != "" && wanted[s.Package] && !dormant[s.ID]
		if !s.ID.Is(manifest.Definitions...) || !replaced && !dropped {
			continue
		}
		meta := seen.live.Objects[s.ID]
		if replaced && meta != nil && s.ID.Is(manifest.CRD) && a.undisturbed(s.ID) {
			digest, err := typesDigest(s.Object)
			sameRules := meta.Annotations[manifest.ConversionAnnotation] == s.Object.Annotation(manifest.ConversionAnnotation)
			if err == nil && digest == meta.Annotations[manifest.TypesAnnotation] && sameRules {
				s.Compatibility = compat.Documentation
				continue
			}
		}
		// Where the objects of an XRD are stored is known by other objects, which change by themselves.
		c, ok := before[s.ID]
		elsewhere := s.ID.Is(manifest.XRD) && c.report.Severity == compat.Breaking
		if ok && !elsewhere && meta != nil && c.of == newComparand(meta, s) {
			a.remember(s, c)
			continue
		}
		g.Go(func() error {
			err := a.compareStep(gctx, s, &lives)
			if err == nil || kube.IsClusterWide(err) || gctx.Err() != nil {
				return err
			}
			// What it would break is unknown; the others go on.
			s.Action, s.Reason = plan.Refused, err.Error()
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := a.surveyTypes(ctx, p, seen, &lives, opts); err != nil {
		return err
	}
	plan.RefuseBreaking(p, opts.Allowed, opts.BreakingByData)
	return nil
}

// compareStep compares the types of one step, and keeps the live definition if they break.
func (a *Applier) compareStep(ctx context.Context, s *plan.Step, lives *sync.Map) error {
	live, meta, err := get(ctx, a.cluster, s.ID)
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		return nil // deleted meanwhile: nothing breaks
	case err != nil:
		return err
	}
	var wanted map[string]any
	if s.Object != nil {
		wanted = s.Object.Tree()
	}
	d := types.Read(live)
	opts := compat.Options{StoredVersions: d.StoredVersions()}
	if d.XRD {
		stored, _, err := storedVersions(ctx, a.cluster, d)
		if err != nil {
			return err
		}
		for _, versions := range stored {
			opts.StoredVersions = append(opts.StoredVersions, versions...)
		}
	}
	report, err := compat.Compare(ctx, live, wanted, opts)
	if err != nil {
		return fmt.Errorf("comparing the types of %s: %w", s.ID, err)
	}
	before, err := types.Of(live)
	if err != nil {
		return err
	}
	if report.Severity == compat.Breaking {
		lives.Store(s.ID, live)
	}
	a.remember(s, compared{of: newComparand(&meta.ObjectMeta, s), report: report, before: before})
	return nil
}

// compared is the result of a comparison. A refused step comes again in every plan,
// and needs no requests while neither side has changed.
type compared struct {
	of     comparand
	report compat.Report
	before []types.Type
}

// comparand identifies both sides of a comparison. It is comparable.
type comparand struct{ uid, version, wanted string }

func newComparand(live *metav1.ObjectMeta, s *plan.Step) comparand {
	c := comparand{uid: string(live.UID), version: live.ResourceVersion}
	if s.Object != nil {
		c.wanted = string(s.Object.Hash())
	}
	return c
}

// remember copies a comparison into a step, and keeps it for the next plan.
func (a *Applier) remember(s *plan.Step, c compared) {
	s.Compatibility, s.Findings, s.Before = c.report.Severity, c.report.Findings, c.before
	a.mu.Lock()
	defer a.mu.Unlock()
	a.compared[s.ID] = c
}

// undisturbed reports whether an object is known to be as it was applied, so that
// its annotations can be trusted.
func (a *Applier) undisturbed(id manifest.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.known(id)
	return m != nil && m.fine
}

// typesDigest returns the digest of all types that a CRD defines.
func typesDigest(crd *manifest.Object) (string, error) {
	all, err := types.Of(crd.Tree())
	if err != nil {
		return "", err
	}
	return types.Sum(all), nil
}
