package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/render/validate"
)

// objectsOptions are the flags of `gitopsd types diff` about objects.
type objectsOptions struct {
	source string
	live   liveOptions
}

// survey judges the objects of a source by the breaking changes, and adds the results.
func (o *objectsOptions) survey(ctx context.Context, t *typesOptions, all []comparedTypes, before, after compat.Set) error {
	look, done, err := o.open(ctx, t)
	if err != nil {
		return err
	}
	defer done()
	for i := range all {
		c := &all[i]
		if !slices.ContainsFunc(c.Findings, harm.Tells) {
			continue
		}
		key := compat.SetKey{Kind: c.Kind, Name: c.Name}
		if c.Objects, err = look(before[key], after[key], c.Findings); err != nil {
			return err
		}
	}
	return nil
}

// looker judges the objects of a definition by its change from before to after. The error is
// about the source as a whole.
type looker func(before, after map[string]any, findings []compat.Finding) (*harm.Survey, error)

// open opens the source. The caller must call done.
func (o *objectsOptions) open(ctx context.Context, t *typesOptions) (look looker, done func(), err error) {
	if _, err := os.Stat(o.source); err == nil {
		objects, err := objectsOf(o.source)
		if err != nil {
			return nil, nil, err
		}
		return func(before, after map[string]any, findings []compat.Finding) (*harm.Survey, error) {
			judges, err := harm.New(before, after, findings, harm.Options{Now: time.Now()})
			if err != nil {
				return &harm.Survey{Unknown: err.Error()}, nil
			}
			var all []*harm.Survey
			for _, judge := range judges {
				for _, object := range objects[schema.GroupKind{Group: judge.Group(), Kind: judge.Kind()}] {
					tree, err := validate.Decoded(object.Tree())
					if err != nil {
						return nil, fmt.Errorf("%s: %w", object.Origin(), err)
					}
					judge.Look(ctx, tree, harm.Fate{})
				}
				all = append(all, judge.Done(nil))
			}
			return harm.Sum(all), nil
		}, func() {}, nil
	}
	places := placeOptions{tree: t.tree, live: o.live, clusters: []string{o.source}}
	list, err := places.places(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("--objects %s: it is no file or directory, and as a registered cluster: %w", o.source, err)
	}
	cluster, err := list[0].connect(ctx)
	if err != nil {
		return nil, nil, problem.In(o.source, err)
	}
	return func(before, after map[string]any, findings []compat.Finding) (*harm.Survey, error) {
		judges, err := apply.Judges(ctx, cluster, before, after, findings, nil, false)
		switch {
		case kube.IsClusterWide(err):
			return nil, err
		case err != nil:
			return &harm.Survey{Unknown: problem.Message(err)}, nil
		}
		return apply.Survey(ctx, cluster, judges, nil)
	}, cluster.Close, nil
}

// objectsOf reads the objects in a file or directory, by kind.
func objectsOf(name string) (map[schema.GroupKind][]*manifest.Object, error) {
	objects, err := readObjects(nil, name)
	if err != nil {
		return nil, err
	}
	all := make(map[schema.GroupKind][]*manifest.Object)
	for _, o := range objects {
		kind := schema.GroupKind{Group: o.ID().Group, Kind: o.ID().Kind}
		all[kind] = append(all[kind], o)
	}
	return all, nil
}

// shownHarmed is how many harmed objects of a definition are shown.
const shownHarmed = 10

// writeSurvey writes how a change affects objects.
func writeSurvey(t *show.Text, s *harm.Survey) {
	if s == nil {
		return
	}
	if s.Harmed == 0 {
		t.Indented("  ", show.Plain, s.Text(0))
	} else {
		t.Say(show.Red, fmt.Sprintf("  harms %d of %s", s.Harmed, prose.Count(s.Looked, "object")))
		for _, o := range s.Objects[:min(shownHarmed, len(s.Objects))] {
			t.Indented("    ", show.Red, o.String())
		}
		if n := s.Harmed - shownHarmed; n > 0 {
			t.Line("    … and %d more (-o json has %d of them)", n, len(s.Objects))
		}
		if s.Unknown != "" {
			t.Indented("    ", show.Red, "and perhaps others: "+s.Unknown)
		}
	}
	for _, w := range s.Warnings() {
		t.Indented("  ", show.Yellow, w)
	}
}
