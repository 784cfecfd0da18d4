package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

const (
	// triedPage is how many objects are read at a time, and triedEvery the shortest time
	// between two pages, so that reading them is no load for an API server.
	triedPage  = 100
	triedEvery = 50 * time.Millisecond
)

// tried is a trial of conversion rules on the cluster's objects. It is reused for a
// while: a CRD may wait long for the server of its rules, and comes again in every plan.
type tried struct {
	of    comparand
	rules *render.Conversion
	live  *prove.Live
	// stored are the versions that objects may be stored in.
	stored plan.StoredVersions
	at     time.Time
}

// tryConversions converts the existing objects by the conversion rules of definitions,
// before an API server gets the rules or the definition. It refuses definitions with
// objects that would come back changed, or not be valid. It skips rules that generated
// objects have already shown to be wrong. For objects that could not be tried, it notes
// why, and the result of generated objects stands. It always refuses definitions whose
// rules leave out a version that objects may be stored in.
func (a *Applier) tryConversions(ctx context.Context, p *plan.Plan, seen *view, opts PlanOptions) error {
	before := a.tried
	a.tried = make(map[manifest.ID]tried)
	within, cancel := context.WithTimeoutCause(ctx, surveyTime, fmt.Errorf("looking at the objects took longer than %s", surveyTime))
	defer cancel()
	stored := make(map[manifest.ID]plan.StoredVersions)
	for i := range p.Steps {
		s := &p.Steps[i]
		meta := seen.live.Objects[s.ID]
		if s.Proof == nil || !s.Action.Writes() || meta == nil {
			continue
		}
		known, of, rules := before[s.ID], newComparand(meta, s), opts.Conversions[s.ID.Name]
		if known.of != of || known.rules != rules || time.Since(known.at) >= surveyAge || opts.DryRun {
			known = tried{of: of, rules: rules, at: time.Now()}
			var err error
			if known.live, known.stored, err = a.tryOn(within, s.ID, rules); kube.IsClusterWide(err) || ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
		}
		a.tried[s.ID] = known
		s.Tried, stored[s.ID] = known.live, known.stored
	}
	plan.RefuseUnconverted(p, opts.Conversions, stored)
	plan.RefuseTried(p)
	return nil
}

// tryOn tries rules on the objects of a live definition, and returns the versions that
// these may be stored in. The error is about the cluster as a whole.
func (a *Applier) tryOn(ctx context.Context, id manifest.ID, rules *render.Conversion) (*prove.Live, plan.StoredVersions, error) {
	var none sync.Map
	var stored plan.StoredVersions
	tree, err := a.liveDefinition(ctx, id, &none)
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		return &prove.Live{}, stored, nil // deleted meanwhile, and its objects with it
	case kube.IsClusterWide(err) && ctx.Err() == nil:
		return nil, stored, err
	case err != nil:
		return &prove.Live{Stopped: "none was read: " + kube.MessageOf(err)}, stored, nil
	}
	d := types.Read(tree)
	stored.All = d.StoredVersions()
	var served []string
	for _, v := range d.Versions() {
		switch {
		case v.Served && v.Storage:
			served = append([]string{v.Name}, served...)
		case v.Served:
			served = append(served, v.Name)
		}
		if v.Storage {
			stored.Now = v.Name
		}
	}
	t := kube.Type{Group: d.Group, Kind: d.Names.Kind, Resource: d.Names.Plural, Namespaced: d.Scope == "Namespaced"}
	live, err := Try(ctx, a.cluster, t, served, rules)
	return live, stored, err
}

// Try tries conversion rules on all objects of a type, read in the first served version
// that the rules know: the storage version, so that objects have what they keep for other
// versions. If it cannot try them all, the result has the reason. The error is about the
// cluster as a whole.
func Try(ctx context.Context, cluster *kube.Client, t kube.Type, served []string, rules *render.Conversion) (*prove.Live, error) {
	i := slices.IndexFunc(served, func(v string) bool { return slices.Contains(rules.Set.Versions(), v) })
	if i < 0 {
		return &prove.Live{Stopped: fmt.Sprintf("none was read: the cluster serves %s, and the rules know none of it", strings.Join(served, ", "))}, nil
	}
	t.Version = served[i]
	trial, err := prove.NewTrial(rules, t.Version)
	if err != nil {
		return &prove.Live{Version: t.Version, Stopped: err.Error()}, nil
	}
	next := time.Now().Add(triedEvery)
	var stop, unread error
	err = cluster.ListFull(ctx, t, kube.ListOptions{Page: triedPage, Again: trial.Again}, func(tree map[string]any) bool {
		stop = trial.Try(ctx, tree, func(ctx context.Context, version string) (map[string]any, error) {
			other, err := readAs(ctx, cluster, t, served, tree, version)
			if err == nil || ctx.Err() != nil || kube.IsClusterWide(err) {
				return other, err
			}
			unread = cmp.Or(unread, err)
			return nil, nil
		})
		if stop != nil {
			return false
		}
		switch n := trial.Result().Objects; {
		case n == mostSurveyed:
			stop = fmt.Errorf("there are more than %d", mostSurveyed)
		case n%triedPage == 0:
			stop = kube.Sleep(ctx, time.Until(next))
			next = time.Now().Add(triedEvery)
		}
		return stop == nil
	})
	result := trial.Result()
	switch {
	case ctx.Err() != nil:
		stop = context.Cause(ctx)
	case kube.IsClusterWide(cmp.Or(err, stop)):
		return nil, cmp.Or(err, stop)
	case cmp.Or(err, stop, unread) != nil:
		stop = errors.New(kube.MessageOf(cmp.Or(err, stop, unread)))
	}
	if stop != nil {
		result.Stopped = "not all were tried: " + stop.Error()
	}
	return result, nil
}

// readAs reads an object in another version, as the cluster converts it now; nil if it
// does not serve that.
func readAs(ctx context.Context, cluster *kube.Client, t kube.Type, served []string, tree map[string]any, version string) (map[string]any, error) {
	if !slices.Contains(served, version) {
		return nil, nil
	}
	if err := kube.Sleep(ctx, triedEvery/10); err != nil {
		return nil, err
	}
	t.Version = version
	id := manifest.KindOf(tree).ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
	other, _, err := cluster.Get(ctx, t, id)
	if kube.IsMissing(err) {
		return nil, nil
	}
	return other, err
}
