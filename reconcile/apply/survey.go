package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/render/validate"
)

// Bounds on the look at the objects of types that a plan would change in a breaking way.
// Beyond them the verdict on the schemas stands.
const (
	// surveyTime is for all types of a plan.
	surveyTime = 2 * time.Minute
	// surveyPage is how many objects are read at a time.
	surveyPage = 250
	// surveyAge is how long a survey is reused, since a refused step comes again in every
	// plan. A survey that lets a step through is not reused: the next write may be the
	// one that counts.
	surveyAge = 2 * time.Minute
)

// mostSurveyed is how many objects of a type are looked at for a plan. Tests change it.
var mostSurveyed = 100_000

// surveyed is a survey that may serve again while its step stays refused.
type surveyed struct {
	of     comparand
	survey *harm.Survey
}

// surveyTypes surveys the objects of the types that a plan would change in a breaking way
// that nothing allows; in a dry run, also in an allowed way. It looks at one type after
// the other, a page at a time.
func (a *Applier) surveyTypes(ctx context.Context, p *plan.Plan, seen *view, lives *sync.Map, opts PlanOptions) error {
	a.findBack(p, seen)
	a.rules = opts.Conversions
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
		if len(fates) == 0 {
			fatesOf(p, fates)
		}
		of := newComparand(meta, s)
		if known, ok := before[s.ID]; ok && !opts.DryRun && known.of == of && !changesObjects(s.ID, fates) && time.Since(known.survey.At) < surveyAge {
			if s.Survey = known.survey; !plan.LetsThrough(s, opts.Allowed, opts.BreakingByData) {
				a.surveyed[s.ID] = known
				continue
			}
		}
		survey, err := a.survey(within, s, lives, fates)
		if kube.IsClusterWide(err) || ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
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
			if len(s.Object.Unknown()) == 0 {
				fates[s.ID] = harm.Fate{Applied: s.Object, Force: s.Force}
			}
		case plan.Prune:
			fates[s.ID] = harm.Fate{Goes: true}
		}
	}
}

// changesObjects reports whether a plan changes or deletes objects of a definition's group.
// A survey that was made for another plan does not count for these.
func changesObjects(definition manifest.ID, fates map[manifest.ID]harm.Fate) bool {
	_, group, _ := strings.Cut(definition.Name, ".")
	for id := range fates {
		if id.Group == group {
			return true
		}
	}
	return false
}

// survey judges the objects of the types that a step changes or removes. The error is
// about the cluster as a whole.
func (a *Applier) survey(ctx context.Context, s *plan.Step, lives *sync.Map, fates map[manifest.ID]harm.Fate) (*harm.Survey, error) {
	begun := time.Now()
	unknown := func(err error) (*harm.Survey, error) {
		if kube.IsClusterWide(err) && ctx.Err() == nil {
			return nil, err
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return &harm.Survey{Unknown: kube.MessageOf(err), At: begun}, nil
	}
	live, err := a.liveDefinition(ctx, s.ID, lives)
	if err != nil {
		return unknown(err)
	}
	var wanted map[string]any
	if s.Object != nil {
		wanted = s.Object.Tree()
	}
	judges, err := Judges(ctx, a.cluster, live, wanted, s.Findings, a.rules[s.ID.Name], s.OwnDefinition())
	if err != nil {
		return unknown(err)
	}
	survey, err := Survey(ctx, a.cluster, judges, fates)
	if err != nil {
		return nil, err
	}
	survey.At = begun
	return survey, nil
}

// liveDefinition returns a live definition that was just read, or reads it.
func (a *Applier) liveDefinition(ctx context.Context, id manifest.ID, lives *sync.Map) (map[string]any, error) {
	if known, ok := lives.Load(id); ok {
		return known.(map[string]any), nil
	}
	tree, _, err := get(ctx, a.cluster, id)
	return tree, err
}

// Judges returns the judges of a cluster's objects for the change of a definition. rules
// are the conversion rules of the new one; nil for none. ourStatus is that of
// [harm.Options]. The error is why the objects cannot be judged, or about the cluster as a
// whole.
func Judges(ctx context.Context, cluster *kube.Client, live, wanted map[string]any, findings []compat.Finding, rules *render.Conversion, ourStatus bool) ([]*harm.Judge, error) {
	opts := harm.Options{Now: time.Now(), OurStatus: ourStatus}
	if rules != nil {
		opts.Convert = func(object map[string]any, to string) (map[string]any, error) {
			converted, _, err := rules.Set.Convert(object, to)
			if err != nil {
				return nil, err
			}
			return validate.Decoded(converted) // as an API server reads it
		}
	}
	if d := types.Read(live); d.XRD {
		var missing string
		var err error
		if opts.Stored, missing, err = storedVersions(ctx, cluster, d); err != nil {
			return nil, err
		}
		if missing != "" {
			return nil, fmt.Errorf("the CRD %s is not there: Crossplane has not made it", missing)
		}
	}
	return harm.New(live, wanted, findings, opts)
}

// storedVersions returns the status.storedVersions of the CRDs that Crossplane makes of an XRD, by their plural name.
// missing is the name of the first that is not there.
func storedVersions(ctx context.Context, cluster *kube.Client, d types.Definition) (stored map[string][]string, missing string, err error) {
	stored = make(map[string][]string)
	for _, plural := range []string{d.Names.Plural, d.Claims.Plural} {
		if plural == "" {
			continue
		}
		name := plural + "." + d.Group
		tree, _, err := get(ctx, cluster, manifest.CRD.ID("", name))
		switch {
		case kube.ClassOf(err) == kube.NotFound:
			missing = cmp.Or(missing, name)
		case err != nil:
			return nil, "", err
		default:
			stored[plural] = types.Read(tree).StoredVersions()
		}
	}
	return stored, missing, nil
}

// Survey has judges look at all objects of their kinds. fates are other changes to the
// objects. If something keeps the judges from looking, or there are too many objects, the
// survey has the reason. The error is about the cluster as a whole.
func Survey(ctx context.Context, cluster *kube.Client, judges []*harm.Judge, fates map[manifest.ID]harm.Fate) (*harm.Survey, error) {
	return surveyUpTo(ctx, cluster, judges, fates, mostSurveyed)
}

// SurveyAll is like Survey, however many objects there are.
func SurveyAll(ctx context.Context, cluster *kube.Client, judges []*harm.Judge) (*harm.Survey, error) {
	return surveyUpTo(ctx, cluster, judges, nil, math.MaxInt)
}

func surveyUpTo(ctx context.Context, cluster *kube.Client, judges []*harm.Judge, fates map[manifest.ID]harm.Fate, most int) (*harm.Survey, error) {
	var all []*harm.Survey
	for _, judge := range judges {
		var stop error
		for _, version := range judge.Versions() {
			var err error
			if stop, err = look(ctx, cluster, judge, version, fates, most); err != nil {
				return nil, err
			}
			if stop != nil {
				break
			}
		}
		all = append(all, judge.Done(stop))
	}
	return harm.Sum(all), nil
}

// look has a judge look at all objects in one version, at most most. stop is why it could
// not, and the error is about the cluster as a whole.
func look(ctx context.Context, cluster *kube.Client, judge *harm.Judge, version string, fates map[manifest.ID]harm.Fate, most int) (stop, err error) {
	t := kube.Type{Group: judge.Group(), Version: version, Kind: judge.Kind(), Resource: judge.Plural(), Namespaced: judge.Namespaced()}
	looked := 0
	judge.Begin(version)
	opts := kube.ListOptions{Page: surveyPage, Again: func() {
		looked = 0
		judge.Restart()
	}}
	err = cluster.ListRaw(ctx, t, opts, func(item []byte) bool {
		var tree map[string]any
		if json.Unmarshal(item, &tree) != nil || tree == nil {
			stop = errors.New("the list has an item that is no object")
			return false
		}
		if looked++; looked > most {
			stop = fmt.Errorf("there are more than %d objects", most)
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
		stop = fmt.Errorf("the account may not list the objects (%s)", kube.MessageOf(err))
	case err != nil:
		stop = errors.New(kube.MessageOf(err))
	}
	return stop, nil
}

// again surveys the objects once more for steps that only their surveys let through,
// right before they are executed: other objects may have been written since the plan was
// made. A step that no longer passes waits for the next pass with its whole package,
// since a new controller must not meet old types. again returns the other steps.
func (x *execution) again(ctx context.Context, batch []*Result) ([]*Result, error) {
	let := func(r *Result) bool { return len(r.Step.LetThrough) > 0 }
	if !slices.ContainsFunc(batch, let) {
		return batch, nil
	}
	fates := make(map[manifest.ID]harm.Fate)
	fatesOf(x.plan, fates)
	within, cancel := context.WithTimeoutCause(ctx, surveyTime, fmt.Errorf("looking at the objects again took longer than %s", surveyTime))
	defer cancel()
	kept := make(map[*Result]bool)
	for _, r := range batch {
		if !let(r) {
			continue
		}
		survey, err := x.survey(within, r.Step, new(sync.Map), fates)
		if err != nil || ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		if r.Step.StillPasses(survey) {
			continue
		}
		kept[r] = true
		r.Outcome, r.Reason = Pending, "its objects were looked at again, and it "+survey.Text(1)
		if s := r.Step; s.Package != "" && !s.Drift {
			x.held[s.Package] = fmt.Sprintf("%s waits: %s", s.ID, r.Reason)
		}
	}
	return slices.DeleteFunc(slices.Clone(batch), func(r *Result) bool { return kept[r] }), nil
}
