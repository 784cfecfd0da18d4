package apply

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/errgroup"
)

// dryRun asks the API server about every object that the plan would write: what would
// change, and whether it would be accepted. A step that cannot be validated gets the
// reason; a step that the API server would refuse is marked as rejected. Neither stops
// the others.
func (a *Applier) dryRun(ctx context.Context, p *plan.Plan) error {
	spaces := make(map[string]*plan.Step)             // of the plan's Namespaces
	retyped := make(map[schema.GroupKind]manifest.ID) // kinds whose types the plan changes
	repinned := false
	for i := range p.Steps {
		s := &p.Steps[i]
		repinned = repinned || s.Object != nil && s.Action.Writes() && pins.Of(s.Object)
		if s.ID.Is(manifest.Namespace) {
			spaces[s.ID.Name] = s
		}
		if s.Object == nil || s.Action != plan.Configure || s.Compatibility <= compat.Documentation {
			continue
		}
		for _, gvk := range plan.Defines(s.Object) {
			retyped[gvk.GroupKind()] = s.ID
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object != nil && s.Action == plan.Create {
			s.Changes = plan.Reveal(nil, s.Object.Unknown())
		}
		if s.Object == nil || !s.Action.Writes() || s.NotValidated != "" {
			continue
		}
		if ns := spaces[s.ID.Namespace]; ns != nil && ns.Action == plan.Create {
			s.NotValidated, s.Premature = fmt.Sprintf("its namespace %s is created by this plan", s.ID.Namespace), true
			continue
		}
		g.Go(func() error {
			err := a.dryRunStep(gctx, s)
			if err == nil || kube.IsClusterWide(err) {
				return err
			}
			e, ok := err.(*kube.Error)
			if ok {
				for _, f := range e.Fields {
					s.Wrong = append(s.Wrong, f.Path)
				}
			}
			switch {
			case !ok:
				s.NotValidated = err.Error()
			case e.Class == kube.Invalid && len(s.Object.Unknown()) > 0:
				s.NotValidated = fmt.Sprintf("not all of it is known yet (%s): %s", prose.Some(s.Object.Unknown(), 3), e.Message)
			case replaceable(s, e):
				err := a.acceptable(gctx, s)
				if kube.IsClusterWide(err) {
					return err
				}
				if err != nil {
					s.Rejected = problem.Message(err)
					return nil
				}
				s.CreatedAnew(e.Message)
			case e.Immutable() && s.Force:
				s.Rejected = e.Message + "; " + plan.Anew(s.ID)
			case e.Class == kube.Invalid && retyped[kindOf(s.ID)].Name != "":
				then := ""
				if s.Checked {
					then = " and then would"
				}
				s.NotValidated = fmt.Sprintf("the type as it is would not accept it, but %s changes that%s: %s", retyped[kindOf(s.ID)], then, e.Message)
				s.Premature = true
			case e.Class == kube.Refused && pins.Policy(e.Webhook) && repinned:
				// The plan compared pins with the planned types; the API server has the old ones.
				s.NotValidated, s.Premature = "its pin matches the type that this plan installs, which the API server does not have yet", true
			case e.Class == kube.Invalid || e.Class == kube.Refused || e.Class == kube.Conflict:
				s.Rejected = e.Message
			case e.Class == kube.NoNamespace:
				withoutNamespace(s, spaces[s.ID.Namespace], e)
			case e.Class == kube.NoDryRun:
				s.NotValidated = fmt.Sprintf("webhook %q does not support dry runs", e.Webhook)
			default:
				s.NotValidated = fmt.Sprintf("%s: %s", e.Class, e.Message)
			}
			return nil
		})
	}
	return g.Wait()
}

// withoutNamespace notes that an object's namespace does not exist, or is being deleted.
// ns is the plan's step for the namespace; nil if there is none.
func withoutNamespace(s, ns *plan.Step, e *kube.Error) {
	switch {
	case ns != nil && ns.Action == plan.Wait && ns.Object != nil:
		s.NotValidated, s.Premature = fmt.Sprintf("its namespace is not there yet: %s", ns.Reason), true
	case ns != nil:
		s.Rejected = fmt.Sprintf("its namespace is not there: %s %s: %s", ns.ID, ns.Action, ns.Reason)
	case e.Message == fmt.Sprintf("namespace %q not found", s.ID.Namespace):
		s.Rejected = e.Message + ", and the repository has none of that name: add the Namespace, or correct metadata.namespace"
	default:
		s.Rejected = e.Message
	}
}

// dryRunTries bounds the dry runs of an object that others write to meanwhile.
const dryRunTries = 3

func (a *Applier) dryRunStep(ctx context.Context, s *plan.Step) error {
	t, err := a.cluster.Type(ctx, s.Object.APIVersion(), s.ID.Kind)
	if err != nil {
		return err
	}
	opts := kube.ApplyOptions{Force: s.Force, DryRun: true, Full: s.Action == plan.Configure}
	body := a.member(s.Object).AppendJSON(nil)
	var answer *kube.Applied
	var live map[string]any
	var meta *metav1.PartialObjectMetadata
	for range dryRunTries {
		if answer, err = a.cluster.Apply(ctx, t, s.ID, body, opts); err != nil || s.Action != plan.Configure {
			return err
		}
		if live, meta, err = a.cluster.Get(ctx, t, s.ID); err != nil {
			return err
		}
		if meta.ResourceVersion == answer.Meta.ResourceVersion {
			break // otherwise somebody else's write would be among the changes
		}
	}
	after := answer.Tree
	if s.Adopt || s.Reclaim != plan.ReclaimNothing {
		if after, err = managed.WithoutLeftovers(s.Object, &meta.ObjectMeta, &answer.Meta.ObjectMeta, answer.Tree, from(s)); err != nil {
			return err
		}
		// The API server fills in some fields of the former owners again.
		if after, err = a.cluster.Merged(ctx, t, s.ID, live, after); err != nil {
			return err
		}
	}
	s.Changes = plan.Reveal(plan.Diff(live, after), s.Object.Unknown())
	return nil
}
