package applications

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// schedulerName is the scheduler in PlacementDecisions.
const schedulerName = "gitopsd"

// announced is a PlacementDecision: the ClusterProfile that it names, empty for none, and its
// resourceVersion.
type announced struct{ profile, version string }

// stands reports whether the decision names the profile and has not changed, as far as the job
// knows.
func (p *announced) stands(profile string, j *job) bool {
	return p != nil && p.profile == profile && (!j.follows || p.version == j.decided)
}

// profiles reports whether a target is made from a ClusterProfile.
func (c *Controller) profiles() bool {
	for _, t := range c.targets {
		if t.profile != "" {
			return true
		}
	}
	return false
}

// decide publishes where the application runs in a PlacementDecision (KEP-5313) of its name,
// if that API is installed and the target is made from a ClusterProfile. After a move to any
// other target the decision names no cluster. If others change or delete it, it is written
// again. The garbage collector deletes it with the application.
func (w *worker) decide(ctx context.Context, j *job) error {
	profile := ""
	if t := j.targets[j.decision.Target]; t != nil {
		profile = t.profile
	}
	if !j.decisions {
		w.published = nil // decisions go with their API
		return nil
	}
	if w.published.stands(profile, j) {
		return nil
	}
	kind := manifest.PlacementDecision
	t, err := w.home.Kind(ctx, kind.Group, kind.Kind)
	if kube.ClassOf(err) == kube.NoSuchType {
		return nil // it was just removed; another job follows
	} else if err != nil {
		return err
	}
	id := kind.ID(w.app.Namespace, w.app.Name)
	meta, err := w.home.GetMetadata(ctx, t, id)
	switch {
	case kube.ClassOf(err) == kube.NotFound && profile == "":
		w.published = new(announced)
		return nil
	case kube.ClassOf(err) == kube.NotFound:
	case err != nil:
		return err
	case !slices.ContainsFunc(meta.OwnerReferences, func(o metav1.OwnerReference) bool { return string(o.UID) == w.uid }):
		if profile == "" {
			w.published = &announced{version: meta.ResourceVersion}
			return nil
		}
		return fmt.Errorf("%s is somebody else's, so that the placement is not published; delete it, or rename the application", id)
	}
	app, err := w.home.Kind(ctx, w.app.Group, w.app.Kind)
	if err != nil {
		return err
	}
	decisions := []any{}
	if profile != "" {
		decisions = append(decisions, map[string]any{
			"clusterProfileRef": map[string]any{"name": profile, "namespace": w.app.Namespace}, "reason": j.decision.Why,
		})
	}
	body := manifest.AppendJSON(nil, map[string]any{
		"apiVersion": t.APIVersion(), "kind": kind.Kind, "schedulerName": schedulerName, "decisions": decisions,
		"metadata": map[string]any{
			"name": id.Name, "namespace": id.Namespace,
			"ownerReferences": []any{map[string]any{"apiVersion": app.APIVersion(), "kind": w.app.Kind, "name": w.app.Name, "uid": w.uid, "controller": true}},
		},
	})
	answer, err := w.home.Apply(ctx, t, id, body, kube.ApplyOptions{Force: true})
	if err != nil {
		return err
	}
	w.published = &announced{profile, answer.Meta.ResourceVersion}
	return nil
}
