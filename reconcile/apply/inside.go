package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources/errgroup"
)

// fewContents is how many objects inside a Namespace or a CRD are named.
const fewContents = 4

// lookInside finds the contents of the Namespaces, CRDs, XRDs and Crossplane
// packages that a plan would prune.
func (a *Applier) lookInside(ctx context.Context, p *plan.Plan, v *view) error {
	going := make(map[string]bool)
	var full []*plan.Step
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Object == nil && (s.Action == plan.Prune || s.Action == plan.Wait) {
			going[s.UID] = true
		}
		if s.Object == nil && s.Action == plan.Prune && plan.Holds(s.ID) {
			full = append(full, s)
		}
	}
	look := a.newLook()
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for _, s := range full {
		g.Go(func() error {
			staying, allowed := 0, v.live.Objects[s.ID].Annotations[manifest.AllowPruneAnnotation] == "true"
			found, err := look.inside(gctx, s.ID, func(c plan.Content) bool {
				if len(c.Owners) == 0 && !going[c.UID] && !allowed {
					staying++
				}
				return staying < fewContents
			})
			if kube.IsClusterWide(err) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				v.live.ContentsUnknown[s.ID] = err.Error()
			}
			if len(found) > 0 {
				v.live.Contents[s.ID] = found
			}
			return nil
		})
	}
	return g.Wait()
}

// readAccounts reads the accounts of the bindings that a plan would prune. One that cannot
// be read counts as any account's.
func (a *Applier) readAccounts(ctx context.Context, p *plan.Plan, v *view) error {
	var mu sync.Mutex
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range p.Steps {
		s := &p.Steps[i]
		if !s.WantsAccounts() {
			continue
		}
		g.Go(func() error {
			tree, _, err := get(gctx, a.cluster, s.ID)
			if kube.IsClusterWide(err) {
				return err
			}
			accounts := []string{plan.AnyAccount}
			if err == nil {
				accounts = plan.AccountsOf(tree)
			}
			mu.Lock()
			defer mu.Unlock()
			v.live.Accounts[s.ID] = accounts
			return nil
		})
	}
	return g.Wait()
}

// contentsLook looks into objects that hold others, all at about the same time.
type contentsLook struct {
	*Applier
	// everything that the cluster serves: read once, and only for Namespaces.
	everything func(context.Context) (*kube.Everything, error)
	// owned is readOwned: read once, and only for packages.
	owned func(context.Context) (map[string][]manifest.ID, error)
}

func (a *Applier) newLook() *contentsLook {
	return &contentsLook{a, once(a.cluster.All), once(a.readOwned)}
}

// once returns a function that reads until there is no error.
func once[T any](read func(context.Context) (T, error)) func(context.Context) (T, error) {
	var mu sync.Mutex
	var value T
	var known bool
	return func(ctx context.Context) (T, error) {
		mu.Lock()
		defer mu.Unlock()
		var err error
		if !known {
			value, err = read(ctx)
			known = err == nil
		}
		return value, err
	}
}

// inside lists the contents of an object, until yield returns false. With an error it
// returns the contents found so far.
func (l *contentsLook) inside(ctx context.Context, id manifest.ID, yield func(plan.Content) bool) ([]plan.Content, error) {
	f := &finding{yield: yield}
	var err error
	switch {
	case id.Is(manifest.CRD):
		err = l.instances(ctx, id.Name, f)
	case id.Is(manifest.XRD):
		err = l.composites(ctx, id, f)
	case id.Is(manifest.Packages...):
		err = l.packageContents(ctx, id, f)
	case id.Is(manifest.Namespace):
		err = l.inhabitants(ctx, id.Name, f)
	}
	return f.found, err
}

// finding collects contents.
type finding struct {
	found []plan.Content
	yield func(plan.Content) bool
	full  bool // yield wants no more
}

// add records an object, except those that are about to go anyway.
func (f *finding) add(id manifest.ID, m *metav1.ObjectMeta) {
	if m.DeletionTimestamp != nil && len(m.Finalizers) == 0 {
		return
	}
	c := plan.Content{ID: id, UID: string(m.UID)}
	for i := range m.OwnerReferences {
		c.Owners = append(c.Owners, string(m.OwnerReferences[i].UID))
	}
	for i := range m.ManagedFields {
		if who := m.ManagedFields[i].Manager; who != kube.FieldManager && !slices.Contains(c.Writers, who) {
			c.Writers = append(c.Writers, who)
		}
	}
	if m.DeletionTimestamp != nil {
		c.Deleting = going(m)
	}
	f.found = append(f.found, c)
	f.full = f.full || !f.yield(c)
}

// instances lists the objects of the type that a CRD of that name defines.
func (l *contentsLook) instances(ctx context.Context, crd string, f *finding) error {
	resource, group, _ := strings.Cut(crd, ".")
	t, err := l.cluster.Resource(ctx, group, resource)
	if err == nil {
		err = l.list(ctx, t, "", f)
	}
	if kube.ClassOf(err) != kube.NoSuchType {
		return err
	}
	return l.unlisted(ctx, crd)
}

// unlisted returns why a CRD that is not served may still have objects. A CRD that
// never served its type has none.
func (l *contentsLook) unlisted(ctx context.Context, crd string) error {
	id := manifest.CRD.ID("", crd)
	tree, err := l.definition(ctx, id)
	if tree == nil || err != nil {
		return err
	}
	if conditionOf(&unstructured.Unstructured{Object: tree}, "Established").status != "True" {
		return nil
	}
	return fmt.Errorf("%s was established, and the cluster serves no version of it now: objects of it that are stored cannot be seen", id)
}

// definition reads a CRD or XRD; nil if it does not exist.
func (l *contentsLook) definition(ctx context.Context, id manifest.ID) (map[string]any, error) {
	tree, _, err := get(ctx, l.cluster, id)
	if kube.ClassOf(err) == kube.NotFound {
		return nil, nil
	}
	return tree, err
}

// composites lists the objects of the types that an XRD defines.
func (l *contentsLook) composites(ctx context.Context, xrd manifest.ID, f *finding) error {
	tree, err := l.definition(ctx, xrd)
	if tree == nil || err != nil {
		return err
	}
	if d := types.Read(tree); d.Claims.Plural != "" {
		if err := l.instances(ctx, d.Claims.Plural+"."+d.Group, f); err != nil || f.full {
			return err
		}
	}
	return l.instances(ctx, xrd.Name, f)
}

// packageContents lists objects of the types that Crossplane would delete with a
// package.
func (l *contentsLook) packageContents(ctx context.Context, id manifest.ID, f *finding) error {
	definitions, err := l.installed(ctx, id)
	if err != nil {
		return err
	}
	for _, d := range definitions {
		if d.Is(manifest.XRD) {
			err = l.composites(ctx, d, f)
		} else {
			err = l.instances(ctx, d.Name, f)
		}
		if err != nil || f.full {
			return err
		}
	}
	return nil
}

// installed returns the definitions that Crossplane would delete with a package: those
// that the package or a revision of it owns, or that a revision has installed by its
// status. The current revision alone does not tell: it may have installed nothing yet, or
// not have a type that an earlier one had.
func (l *contentsLook) installed(ctx context.Context, id manifest.ID) ([]manifest.ID, error) {
	_, meta, err := get(ctx, l.cluster, id)
	if kube.ClassOf(err) == kube.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	revisions, err := l.packageRevisions(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("its revisions cannot be read: %w", err)
	}
	owned, err := l.owned(ctx)
	if err != nil {
		return nil, fmt.Errorf("the types that it owns cannot be read: %w", err)
	}
	// By name, since a CRD has that of the MRD that it is made from.
	found := make(map[string]manifest.ID)
	for _, d := range owned[string(meta.UID)] {
		found[d.Name] = d
	}
	for _, revision := range revisions {
		for _, d := range owned[manifest.Text(revision, "metadata", "uid")] {
			found[d.Name] = d
		}
		for _, r := range manifest.List(revision, "status", "objectRefs") {
			ref, _ := r.(map[string]any)
			gvk := schema.FromAPIVersionAndKind(manifest.Text(ref, "apiVersion"), manifest.Text(ref, "kind"))
			d := manifest.ID{Group: gvk.Group, Kind: gvk.Kind, Name: manifest.Text(ref, "name")}
			if strings.HasSuffix(d.Kind, "Definition") && strings.Contains(d.Name, ".") {
				found[d.Name] = d
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), manifest.ID.Compare), nil
}

// readOwned reads which definitions the cluster has, by the UIDs of their owners.
func (a *Applier) readOwned(ctx context.Context) (map[string][]manifest.ID, error) {
	owned := make(map[string][]manifest.ID)
	for _, kind := range []manifest.GroupKind{manifest.CRD, manifest.XRD, manifest.MRD} {
		t, err := a.cluster.Kind(ctx, kind.Group, kind.Kind)
		if err == nil {
			_, err = a.cluster.List(ctx, t, kube.ListOptions{}, func(m *metav1.PartialObjectMetadata) bool {
				for _, owner := range m.OwnerReferences {
					owned[string(owner.UID)] = append(owned[string(owner.UID)], t.ID("", m.Name))
				}
				return true
			})
		}
		if kube.ClassOf(err) == kube.NoSuchType {
			err = a.withdrawn(ctx, schema.GroupKind(kind))
		}
		if err != nil {
			return nil, err
		}
	}
	return owned, nil
}

// inhabitants lists objects in a namespace, except those that every namespace has.
// An API that does not answer is an error only if nothing else was found.
func (l *contentsLook) inhabitants(ctx context.Context, namespace string, f *finding) error {
	all, err := l.everything(ctx)
	if err != nil {
		return err
	}
	var unknown error
	for _, t := range all.Types {
		if !t.Namespaced || slices.Contains(ephemeral, groupKind(t)) {
			continue
		}
		err := l.list(ctx, t, namespace, f)
		if kube.ClassOf(err) == kube.NoSuchType {
			// Its CRD was deleted a moment ago, or does not serve it any more.
			err = l.withdrawn(ctx, groupKind(t))
		}
		if kube.IsClusterWide(err) {
			return err
		}
		if unknown == nil {
			unknown = err
		}
		if f.full {
			return unknown
		}
	}
	if unknown == nil && len(all.Stale) > 0 {
		unknown = fmt.Errorf("the API %s does not answer", strings.Join(all.Stale, ", "))
	}
	return unknown
}

// withdrawn returns why objects of a kind that is not served may still exist; nil if
// nothing defines the kind any more.
func (a *Applier) withdrawn(ctx context.Context, gk schema.GroupKind) error {
	hidden, err := a.cluster.Hidden(ctx, []schema.GroupKind{gk})
	if err != nil {
		return err
	}
	if why := hidden[gk]; why != "" {
		return errors.New(why)
	}
	return nil
}

// ephemeral kinds are records about other objects.
var ephemeral = []schema.GroupKind{
	{Kind: "Event"}, {Group: manifest.GroupEvents, Kind: "Event"},
	{Kind: "Endpoints"}, {Group: manifest.GroupDiscovery, Kind: "EndpointSlice"},
	schema.GroupKind(manifest.Lease),
	{Group: "metrics.k8s.io", Kind: "PodMetrics"},
}

// givens are the objects that controllers put into every namespace.
var givens = []manifest.ID{
	manifest.ServiceAccount.ID("", "default"),
	manifest.ConfigMap.ID("", "kube-root-ca.crt"),
	manifest.ConfigMap.ID("", "istio-ca-root-cert"),
	manifest.ConfigMap.ID("", "openshift-service-ca.crt"),
}

func (l *contentsLook) list(ctx context.Context, t kube.Type, namespace string, f *finding) error {
	before := len(f.found)
	opts := kube.ListOptions{Namespace: namespace, Again: func() { f.found = f.found[:before] }}
	_, err := l.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
		id := t.ID(m.Namespace, m.Name)
		given := slices.Contains(givens, manifest.ID{Group: id.Group, Kind: id.Kind, Name: id.Name})
		if !given || namespace == "" {
			f.add(id, &m.ObjectMeta)
		}
		return !f.full
	})
	return err
}
