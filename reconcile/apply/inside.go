package apply

import (
	"context"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// fewContents is how many objects are named that would go with a Namespace or a
// CRD: enough for a person to see what it is about.
const fewContents = 4

// lookInside finds what the Namespaces, CRDs, XRDs and packages of Crossplane's
// hold that a plan would prune, apart from what the plan prunes itself.
func (a *Applier) lookInside(ctx context.Context, p *plan.Plan, v *view) error {
	going := make(map[manifest.ID]bool)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Object == nil && (s.Action == plan.Prune || s.Action == plan.Wait) {
			going[s.ID] = true
		}
	}
	types := sync.OnceValues(func() ([]kube.Type, error) { return a.cluster.All(ctx) })
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object != nil || s.Action != plan.Prune {
			continue
		}
		var look func() ([]manifest.ID, error)
		switch {
		case plan.IsCRD(s.ID), plan.IsXRD(s.ID):
			look = func() ([]manifest.ID, error) { return a.instances(gctx, s.ID, going) }
		case isDelegated(s.ID):
			look = func() ([]manifest.ID, error) { return a.packageContents(gctx, s.ID, going) }
		case plan.IsNamespace(s.ID):
			look = func() ([]manifest.ID, error) {
				all, err := types()
				if err != nil {
					return nil, err
				}
				return a.inhabitants(gctx, s.ID.Name, all, going)
			}
		default:
			continue
		}
		g.Go(func() error {
			found, err := look()
			if kube.IsClusterWide(err) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				v.live.ContentsUnknown[s.ID] = err.Error()
			} else if len(found) > 0 {
				v.live.Contents[s.ID] = found
			}
			return nil
		})
	}
	return g.Wait()
}

// instances lists objects of the type that a CRD or XRD defines.
func (a *Applier) instances(ctx context.Context, crd manifest.ID, going map[manifest.ID]bool) ([]manifest.ID, error) {
	resource, group, _ := strings.Cut(crd.Name, ".")
	t, err := a.cluster.Resource(ctx, group, resource)
	if kube.ClassOf(err) == kube.NoSuchType {
		return nil, nil // never established, or served in no version
	}
	if err != nil {
		return nil, err
	}
	return a.staying(ctx, t, kube.ListOptions{}, going)
}

// inhabitants lists objects in a namespace, but for those that each namespace
// has and those that come and go with others.
func (a *Applier) inhabitants(ctx context.Context, namespace string, types []kube.Type, going map[manifest.ID]bool) ([]manifest.ID, error) {
	var found []manifest.ID
	for _, t := range types {
		if !t.Namespaced || slices.Contains(ephemeral, t.Kind) {
			continue
		}
		more, err := a.staying(ctx, t, kube.ListOptions{Namespace: namespace}, going)
		if err != nil && kube.ClassOf(err) != kube.NoSuchType {
			return nil, err
		}
		if found = append(found, more...); len(found) >= fewContents {
			break
		}
	}
	return found, nil
}

// ephemeral kinds are records that something keeps about something else.
var ephemeral = []string{"Event", "Endpoints", "EndpointSlice", "Lease", "PodMetrics"}

// givens are the objects that controllers put into every namespace.
var givens = []manifest.ID{
	{Kind: "ServiceAccount", Name: "default"},
	{Kind: "ConfigMap", Name: "kube-root-ca.crt"},
	{Kind: "ConfigMap", Name: "istio-ca-root-cert"},
	{Kind: "ConfigMap", Name: "openshift-service-ca.crt"},
}

func (a *Applier) staying(ctx context.Context, t kube.Type, opts kube.ListOptions, going map[manifest.ID]bool) ([]manifest.ID, error) {
	var found []manifest.ID
	_, err := a.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
		id := t.ID(m.Namespace, m.Name)
		given := slices.Contains(givens, manifest.ID{Group: id.Group, Kind: id.Kind, Name: id.Name})
		owned := slices.ContainsFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Controller != nil && *o.Controller })
		if !going[id] && !(given && opts.Namespace != "") && !owned && m.DeletionTimestamp == nil {
			found = append(found, id)
		}
		return len(found) < fewContents
	})
	return found, err
}
