package apply

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Namespace is where gitopsd keeps its own objects in each cluster.
const Namespace = "gitopsd-system"

// The labels and annotations of an ApplySet's parent, from KEP-3659 ("ApplySet
// specification"). Members carry plan.PartOfLabel.
const (
	idLabel              = "applyset.kubernetes.io/id"
	toolingAnnotation    = "applyset.kubernetes.io/tooling"
	kindsAnnotation      = "applyset.kubernetes.io/contains-group-kinds"
	namespacesAnnotation = "applyset.kubernetes.io/additional-namespaces"

	// tooling is this tool, as "name/semver": the version is that of how the
	// inventory is kept, not the program's.
	tooling     = "gitopsd/v1"
	toolingName = "gitopsd"
)

// applySet identifies an inventory: a ConfigMap in Namespace, one for each
// registered cluster, so that two fleets which register one cluster under
// different names do not prune each other's objects.
type applySet struct {
	parent manifest.ID
	id     string
}

func newApplySet(cluster string) applySet {
	p := manifest.ID{Kind: "ConfigMap", Namespace: Namespace, Name: "inventory-" + cluster}
	sum := sha256.Sum256([]byte(p.Name + "." + p.Namespace + "." + p.Kind + "." + p.Group))
	return applySet{parent: p, id: "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"}
}

// selector selects the members.
func (s applySet) selector() string { return plan.PartOfLabel + "=" + s.id }

// parent is what the parent object says: the kinds that members may be of, and
// the namespaces that they may be in.
type parent struct {
	exists     bool
	kinds      map[schema.GroupKind]bool
	namespaces map[string]bool
}

// These two kinds need no discovery: every API server has them.
var (
	configMaps = kube.Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}
	namespaces = kube.Type{Version: "v1", Kind: "Namespace", Resource: "namespaces", HasStatus: true}
)

// readParent reads the parent, unless this process knows it. One that belongs to
// another tool is an error, as the specification asks for.
func (a *Applier) readParent(ctx context.Context) (*parent, error) {
	if a.parent != nil {
		return a.parent, nil
	}
	p := &parent{kinds: make(map[schema.GroupKind]bool), namespaces: make(map[string]bool)}
	meta, err := a.cluster.GetMetadata(ctx, configMaps, a.set.parent)
	if kube.ClassOf(err) == kube.NotFound || kube.ClassOf(err) == kube.NoNamespace {
		a.parent = p
		return p, nil
	}
	if err != nil {
		return nil, err
	}
	if err := a.checkParent(meta); err != nil {
		return nil, err
	}
	p.exists = true
	for _, gk := range splitList(meta.Annotations[kindsAnnotation]) {
		p.kinds[schema.ParseGroupKind(gk)] = true
	}
	for _, ns := range splitList(meta.Annotations[namespacesAnnotation]) {
		p.namespaces[ns] = true
	}
	a.parent = p
	return p, nil
}

func (a *Applier) checkParent(meta *metav1.PartialObjectMetadata) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("cluster %s: the inventory %s %s; gitopsd touches nothing while that is so",
			a.cluster.Name(), a.set.parent, fmt.Sprintf(format, args...))
	}
	tool, _, _ := strings.Cut(meta.Annotations[toolingAnnotation], "/")
	switch {
	case tool == "":
		return fail("has no annotation %s, so that it is not gitopsd's: delete it, or rename the cluster", toolingAnnotation)
	case tool != toolingName:
		return fail("belongs to %s: delete it with that tool, or rename the cluster", tool)
	case meta.Labels[idLabel] != a.set.id:
		return fail("has label %s: %q where %q belongs: somebody changed it; restore the label", idLabel, meta.Labels[idLabel], a.set.id)
	}
	return nil
}

// widen makes the parent cover kinds and namespaces, before the first object of
// them is applied.
func (a *Applier) widen(ctx context.Context, kinds map[schema.GroupKind]bool, in map[string]bool) error {
	p, err := a.readParent(ctx)
	if err != nil {
		return err
	}
	wider := &parent{kinds: union(p.kinds, kinds), namespaces: union(p.namespaces, in)}
	delete(wider.namespaces, Namespace)
	if p.exists && len(wider.kinds) == len(p.kinds) && len(wider.namespaces) == len(p.namespaces) {
		return nil
	}
	return a.writeParent(ctx, wider)
}

// narrow makes the parent cover just these, after everything else is gone.
func (a *Applier) narrow(ctx context.Context, kinds map[schema.GroupKind]bool, in map[string]bool) error {
	delete(in, Namespace)
	if a.parent.exists && equalKeys(a.parent.kinds, kinds) && equalKeys(a.parent.namespaces, in) {
		return nil
	}
	return a.writeParent(ctx, &parent{kinds: kinds, namespaces: in})
}

// removeParent deletes the parent of an inventory that holds nothing, if there is
// one.
func (a *Applier) removeParent(ctx context.Context) error {
	if !a.parent.exists {
		return nil
	}
	a.parent = nil
	meta, err := a.cluster.GetMetadata(ctx, configMaps, a.set.parent)
	if err == nil {
		if err = a.checkParent(meta); err == nil {
			_, _, err = a.cluster.Delete(ctx, configMaps, a.set.parent, string(meta.UID))
		}
	}
	if kube.ClassOf(err) == kube.NotFound {
		return nil
	}
	return err
}

// writeParent applies the parent, with its namespace when that is missing.
func (a *Applier) writeParent(ctx context.Context, p *parent) error {
	var kinds, in []string
	for gk := range p.kinds {
		kinds = append(kinds, gk.String())
	}
	for ns := range p.namespaces {
		in = append(in, ns)
	}
	slices.Sort(kinds)
	slices.Sort(in)
	body := manifest.AppendJSON(nil, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": a.set.parent.Name, "namespace": a.set.parent.Namespace,
			"labels": map[string]any{idLabel: a.set.id},
			"annotations": map[string]any{
				toolingAnnotation:    tooling,
				kindsAnnotation:      strings.Join(kinds, ","),
				namespacesAnnotation: strings.Join(in, ","),
			},
		},
	})
	force := kube.ApplyOptions{Force: true}
	_, err := a.cluster.Apply(ctx, configMaps, a.set.parent, body, force)
	if kube.ClassOf(err) == kube.NoNamespace {
		id := manifest.ID{Kind: "Namespace", Name: Namespace}
		ns := manifest.AppendJSON(nil, map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": Namespace},
		})
		if _, err = a.cluster.Apply(ctx, namespaces, id, ns, force); err == nil {
			_, err = a.cluster.Apply(ctx, configMaps, a.set.parent, body, force)
		}
	}
	if err != nil {
		// What is there now is not known.
		a.parent = nil
		return fmt.Errorf("the inventory could not be written, so that nothing was done: %w", err)
	}
	p.exists = true
	a.parent = p
	return nil
}

func splitList(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func union[K comparable](a, b map[K]bool) map[K]bool {
	u := make(map[K]bool, len(a)+len(b))
	for k := range a {
		u[k] = true
	}
	for k := range b {
		u[k] = true
	}
	return u
}

func equalKeys[K comparable](a, b map[K]bool) bool {
	if len(a) != len(b) {
		return false
	}
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return true
}
