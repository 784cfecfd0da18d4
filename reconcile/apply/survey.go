package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// Bounds on the look at the objects of types that a plan would change in a breaking way.
// Beyond them the verdict on the schemas stands.
const (
	// surveyTime is for all types of a plan.
	surveyTime = 2 * time.Minute
	// mostSurveyed is how many objects of a type are looked at.
	mostSurveyed = 100_000
	// surveyPage is how many objects are read at a time.
	surveyPage = 250
	// surveyAge is how long a survey stands, since a refused step comes again in every
	// plan. One that lets a step through is never used again: the next write may be the
	// one that counts.
	surveyAge = 2 * time.Minute
	// surveyStands is how long a step may be executed that a survey lets through. If it
	// waited longer, the next pass looks again.
	surveyStands = 5 * time.Minute
)

// surveyed is a survey that may serve again while its step stays refused.
type surveyed struct {
	of     comparand
	survey *harm.Survey
}

// surveyTypes looks at the objects of the types that a plan would change in a way that the
// schemas call breaking and that nothing allows; in a dry run, also of those that are
// allowed. One type is looked at after the other, a page at a time.
func (a *Applier) surveyTypes(ctx context.Context, p *plan.Plan, seen *view, lives *sync.Map, opts PlanOptions) error {
	a.findBack(p, seen)
	allowed := opts.Allowed
	if opts.DryRun {
		allowed = func(string, compat.Finding) (string, bool) { return "", false }
	}
	before := a.surveyed
	a.surveyed = make(map[manifest.ID]surveyed)
	fates := make(map[manifest.ID]harm.Fate)
	within, cancel := context.WithTimeoutCause(ctx, surveyTime, fmt.Errorf("looking at the objects took longer than %s", surveyTime))
	defer cancel()
	for i := range p.Steps {
		s := &p.Steps[i]
		if !plan.MayDecide(s, allowed) {
			continue
		}
		meta := seen.live.Objects[s.ID]
		if meta == nil {
			continue
		}
		of := newComparand(meta, s)
		if known, ok := before[s.ID]; ok && !opts.DryRun && known.of == of && time.Since(known.survey.At) < surveyAge {
			if s.Survey = known.survey; !plan.LetsThrough(s, opts.Allowed, opts.BreakingByData) {
				a.surveyed[s.ID] = known
				continue
			}
		}
		if len(fates) == 0 {
			fatesOf(p, fates)
		}
		begun := time.Now()
		survey, err := a.survey(within, s, lives, fates)
		if kube.IsClusterWide(err) || ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		survey.At = begun
		s.Survey = survey
		a.surveyed[s.ID] = surveyed{of: of, survey: survey}
	}
	return nil
}

// fatesOf notes the objects that a plan changes or deletes.
func fatesOf(p *plan.Plan, fates map[manifest.ID]harm.Fate) {
	for i := range p.Steps {
		switch s := &p.Steps[i]; s.Action {
		case plan.Configure:
			fates[s.ID] = harm.Changes
		case plan.Prune:
			fates[s.ID] = harm.Goes
		}
	}
}

// survey judges the objects of the type that a step changes or removes. The error is
// about the cluster as a whole.
func (a *Applier) survey(ctx context.Context, s *plan.Step, lives *sync.Map, fates map[manifest.ID]harm.Fate) (*harm.Survey, error) {
	unknown := func(err error) (*harm.Survey, error) {
		if kube.IsClusterWide(err) && ctx.Err() == nil {
			return nil, err
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return &harm.Survey{Unknown: reasonOf(err)}, nil
	}
	live, err := a.liveDefinition(ctx, s.ID, lives)
	if err != nil {
		return unknown(err)
	}
	var wanted map[string]any
	if s.Object != nil {
		wanted = s.Object.Tree()
	}
	judge, err := harm.New(live, wanted, s.Findings)
	if err != nil {
		return unknown(err)
	}
	return Survey(ctx, a.cluster, live, judge, fates)
}

// liveDefinition returns a live definition that was just read, or reads it.
func (a *Applier) liveDefinition(ctx context.Context, id manifest.ID, lives *sync.Map) (map[string]any, error) {
	if known, ok := lives.Load(id); ok {
		return known.(map[string]any), nil
	}
	t, err := a.cluster.Kind(ctx, id.Group, id.Kind)
	if err != nil {
		return nil, err
	}
	tree, _, err := a.cluster.Get(ctx, t, id)
	return tree, err
}

// Survey has a judge look at all objects of the type that a live definition defines. What
// keeps it from that is in the survey. The error is about the cluster as a whole. fates
// are what else happens to the objects.
func Survey(ctx context.Context, cluster *kube.Client, live map[string]any, judge *harm.Judge, fates map[manifest.ID]harm.Fate) (*harm.Survey, error) {
	d := types.Read(live)
	t := kube.Type{Group: d.Group, Version: judge.Version(), Kind: d.Names.Kind, Resource: d.Names.Plural, Namespaced: d.Scope == "Namespaced"}
	looked := 0
	var stop error
	opts := kube.ListOptions{Page: surveyPage, Again: func() {
		looked = 0
		judge.Restart()
	}}
	err := cluster.ListRaw(ctx, t, opts, func(item []byte) bool {
		var tree map[string]any
		if json.Unmarshal(item, &tree) != nil || tree == nil {
			stop = errors.New("the list has an item that is no object")
			return false
		}
		if looked++; looked > mostSurveyed {
			stop = fmt.Errorf("there are more than %d objects", mostSurveyed)
			return false
		}
		id := t.ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
		judge.Look(ctx, tree, fates[id])
		return ctx.Err() == nil
	})
	switch {
	case ctx.Err() != nil:
		stop = context.Cause(ctx)
	case kube.IsClusterWide(err):
		return nil, err
	case kube.ClassOf(err) == kube.Forbidden:
		stop = fmt.Errorf("the account may not list the objects (%s)", reasonOf(err))
	case err != nil:
		stop = errors.New(reasonOf(err))
	}
	return judge.Done(stop), nil
}

// outdated returns why a step that a survey lets through must not be executed any more; ""
// if it may: what it waited for took so long that there may be many other objects.
func outdated(s *plan.Step) string {
	if len(s.LetThrough) == 0 || time.Since(s.Survey.At) < surveyStands {
		return ""
	}
	return "its objects are looked at again, since it waited long"
}

// reasonOf returns an error without the cluster and the request.
func reasonOf(err error) string {
	if e, ok := errors.AsType[*kube.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
