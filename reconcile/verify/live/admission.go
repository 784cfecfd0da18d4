package live

import (
	"context"
	"slices"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
)

// admission reads webhook configurations, and policies with their bindings where they are
// served, and compares the rendered ones with the live ones.
func (in *reading) admission(ctx context.Context) error {
	live := make(map[manifest.ID]map[string]any)
	keep := func(tree map[string]any) manifest.ID {
		id := manifest.KindOf(tree).ID("", manifest.Text(tree, "metadata", "name"))
		if slices.ContainsFunc(in.rendered, func(w verify.Webhook) bool { return w.ID == id }) {
			live[id] = tree
		}
		return id
	}
	for _, kind := range manifest.Webhooks {
		err := in.all(ctx, kind, func(tree map[string]any) {
			keep(tree)
			in.facts.Admission = append(in.facts.Admission, verify.Hooks(tree)...)
		})
		if err != nil {
			return err
		}
	}
	in.asRendered(live, manifest.Webhooks)
	for _, kinds := range [][2]manifest.GroupKind{
		{manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding},
		{manifest.MutatingPolicy, manifest.MutatingPolicyBinding},
	} {
		var policies, bindings []map[string]any
		// Policies that enforce pins are a setting of each cluster, and refuse no other object.
		add := func(to *[]map[string]any) func(map[string]any) {
			return func(tree map[string]any) {
				if o := in.wanted.Objects.Get(keep(tree)); o == nil || !pins.Of(o) {
					*to = append(*to, tree)
				}
			}
		}
		err := in.all(ctx, kinds[0], add(&policies))
		if err == nil {
			err = in.all(ctx, kinds[1], add(&bindings))
		}
		if kube.ClassOf(err) == kube.NoSuchType {
			continue // older clusters, and newer ones where it is switched off
		}
		if err != nil {
			return err
		}
		in.facts.Admission = append(in.facts.Admission, verify.Policies(policies, bindings)...)
	}
	in.asRendered(live, manifest.AdmissionPolicies)
	in.facts.AdmissionRead = true
	return nil
}

// asRendered compares the rendered objects of some kinds with the live ones.
func (in *reading) asRendered(live map[manifest.ID]map[string]any, kinds []manifest.GroupKind) {
	for _, w := range in.rendered {
		if w.ID.Is(kinds...) {
			w.Compare(in.wanted.Objects.Get(w.ID), live[w.ID])
			in.facts.Webhooks = append(in.facts.Webhooks, w)
		}
	}
}

// all reads all objects of a cluster-scoped kind.
func (in *reading) all(ctx context.Context, kind manifest.GroupKind, yield func(tree map[string]any)) error {
	t, err := in.kube.Kind(ctx, kind.Group, kind.Kind)
	if err != nil {
		return err
	}
	return in.kube.ListFull(ctx, t, kube.ListOptions{Page: definitionPage}, func(tree map[string]any) bool {
		yield(tree)
		return true
	})
}
