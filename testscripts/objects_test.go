package testscripts

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
)

// object is an object that a script's programs created in a cluster.
type object struct {
	kind     schema.GroupVersionKind
	resource schema.GroupVersionResource
	// namespaced reports whether objects of the kind live in namespaces.
	namespaced bool
	meta       metav1.ObjectMeta
}

// String returns the kind and name.
func (o object) String() string {
	if o.meta.Namespace == "" {
		return o.kind.Kind + " " + o.meta.Name
	}
	return o.kind.Kind + " " + o.meta.Namespace + "/" + o.meta.Name
}

// fingerprint returns a hash that changes with every write to the object, other than to
// its status.
func (o object) fingerprint() string {
	m := o.meta
	version := fmt.Sprint(m.Generation)
	if m.Generation == 0 { // a type without generations
		version = m.ResourceVersion
	}
	text, err := json.Marshal([]any{m.UID, version, m.DeletionTimestamp, m.Labels, m.Annotations, m.OwnerReferences, m.Finalizers, writers(m)})
	if err != nil {
		panic(err) // nothing in it that JSON cannot hold
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))
}

// writers returns the field managers of an object, each with the time of its last write.
func writers(m metav1.ObjectMeta) (all []string) {
	for _, f := range m.ManagedFields {
		if f.Subresource == "" {
			all = append(all, fmt.Sprint(f.Manager, f.Operation, f.Time))
		}
	}
	return all
}

// systemManager is the field manager of the harness's own writes. It starts like the
// managers of devcluster, which [foreign] knows.
const systemManager = "devcluster-testscripts"

// foreign reports whether somebody else than the control plane's own components has
// written to the object.
func foreign(kind schema.GroupVersionKind, m metav1.ObjectMeta) bool {
	if kind.Kind == "Namespace" && m.Name != metav1.NamespaceDefault && !strings.HasPrefix(m.Name, "kube-") {
		return true // an empty object has no managed fields
	}
	return slices.ContainsFunc(m.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		for _, own := range []string{"devcluster", "kube-", "api-priority-and-fairness-", "clusterrole-aggregation-controller"} {
			if strings.HasPrefix(f.Manager, own) {
				return false
			}
		}
		return f.Subresource != "status"
	})
}

// list returns the objects written to the control plane since it was empty.
func (p *plane) list(ctx context.Context) ([]object, error) {
	all, err := p.resources()
	if err != nil {
		return nil, err
	}
	found, _, err := p.listTypes(ctx, all)
	return found, err
}

// listTypes returns the objects of some types written since the control plane was empty,
// and the types of the objects in each namespace, whoever wrote them.
func (p *plane) listTypes(ctx context.Context, all []object) (objects []object, in map[string][]object, err error) {
	var mu sync.Mutex
	in = make(map[string][]object)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, r := range all {
		g.Go(func() error {
			found, err := p.metadata.Resource(r.resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
				return nil // gone since
			}
			if err != nil {
				return fmt.Errorf("listing %s: %w", r.resource.GroupResource(), err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, o := range found.Items {
				if types := in[o.Namespace]; len(types) == 0 || types[len(types)-1].resource != r.resource {
					in[o.Namespace] = append(types, r)
				}
				if foreign(r.kind, o.ObjectMeta) {
					objects = append(objects, object{r.kind, r.resource, r.namespaced, o.ObjectMeta})
				}
			}
			return nil
		})
	}
	return objects, in, g.Wait()
}

// resources returns the types whose objects can be listed and deleted, each in
// one version.
func (p *plane) resources() (all []object, err error) {
	lists, err := discovery.ServerPreferredResources(p.discovery)
	if err != nil {
		if _, partly := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); !partly {
			return nil, fmt.Errorf("discovery: %w", err)
		}
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			// Events are listed under two groups, and are not state.
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "delete") && r.Name != "events" {
				all = append(all, object{kind: gv.WithKind(r.Kind), resource: gv.WithResource(r.Name), namespaced: r.Namespaced})
			}
		}
	}
	return all, nil
}

// empty removes the objects written to the control plane, in an order without waits:
// empty types and namespaces are gone at once. It retries after errors, since the API
// server enforces deleted webhooks, policies and APIs for a moment. All types are listed
// first and last, and in between those that had such objects.
func (p *plane) empty(ctx context.Context) error {
	pause := 25 * time.Millisecond
	var some []object // types
	var in map[string][]object
	for {
		left, err := func() ([]object, error) {
			all := some
			if some == nil {
				if err := p.dropInterceptors(ctx); err != nil {
					return nil, err
				}
				var err error
				if all, err = p.resources(); err != nil {
					return nil, err
				}
			}
			found, types, err := p.listTypes(ctx, all)
			if err != nil {
				return nil, err
			}
			if some == nil {
				in = types
			}
			return found, p.removeFirst(ctx, found, in)
		}()
		if err == nil && left == nil {
			if some == nil {
				return nil
			}
			some = nil
			continue
		}
		some = nil
		if err == nil {
			for _, o := range left {
				if !slices.ContainsFunc(some, func(t object) bool { return t.resource == o.resource }) {
					some = append(some, object{kind: o.kind, resource: o.resource, namespaced: o.namespaced})
				}
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d objects are left, such as %v: %w", len(left), left[:min(len(left), 3)], errors.Join(err, ctx.Err()))
		case <-time.After(pause):
		}
		pause = min(pause*3/2, 250*time.Millisecond)
	}
}

// removeFirst removes those of the objects that go first. in has the types of the objects
// in each namespace.
func (p *plane) removeFirst(ctx context.Context, objects []object, in map[string][]object) (err error) {
	slices.SortStableFunc(objects, func(a, b object) int { return rank(a) - rank(b) })
	for _, o := range objects {
		if rank(o) > rank(objects[0]) {
			break
		}
		if removal := p.remove(ctx, o, in[o.meta.Name]); removal != nil && err == nil {
			err = fmt.Errorf("removing %s: %w", o, removal)
		}
	}
	return err
}

// dropInterceptors removes what may forbid or answer requests: policies, webhooks and the
// servers of APIs. Policies go first: they may forbid removing webhooks, while neither
// policies nor webhooks apply to the removal of policies.
func (p *plane) dropInterceptors(ctx context.Context) error {
	err := p.deleteAdmission(ctx, "validatingadmissionpolicybindings", "validatingadmissionpolicies",
		"validatingwebhookconfigurations", "mutatingwebhookconfigurations")
	if err != nil {
		return fmt.Errorf("removing policies and webhooks: %w", err)
	}
	if err := p.dropServers(ctx); err != nil {
		return fmt.Errorf("removing APIs and conversion webhooks: %w", err)
	}
	return nil
}

// deleteAdmission deletes all objects of resources in admissionregistration.k8s.io.
func (p *plane) deleteAdmission(ctx context.Context, resources ...string) error {
	for _, r := range resources {
		all := p.metadata.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: r})
		if err := all.DeleteCollection(ctx, atOnce(), metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// dropServers removes the aggregated APIs, and the conversion webhooks of types: the
// objects of a type are unreadable once its webhook's server is gone.
func (p *plane) dropServers(ctx context.Context) error {
	const apis = "/apis/apiregistration.k8s.io/v1/apiservices"
	found, err := p.interceptors(ctx, apis)
	if err != nil {
		return err
	}
	for _, api := range found {
		if api.Spec.Service == nil {
			continue // the API server itself serves it
		}
		err := p.discovery.RESTClient().Delete().AbsPath(apis, api.Metadata.Name).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	crds, err := p.interceptors(ctx, path)
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if crd.Spec.Conversion.Strategy != "Webhook" {
			continue
		}
		err := p.discovery.RESTClient().Patch(types.MergePatchType).AbsPath(path, crd.Metadata.Name).
			Body([]byte(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`)).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// interceptor has the fields of an APIService or a CRD that name its server.
type interceptor struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Service    *struct{}
		Conversion struct{ Strategy string }
	}
}

// interceptors lists the objects at a path.
func (p *plane) interceptors(ctx context.Context, path string) ([]interceptor, error) {
	text, err := p.discovery.RESTClient().Get().AbsPath(path).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list struct{ Items []interceptor }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list.Items, nil
}

// rank orders the removal of objects: first those that intercept requests, last those
// that contain others.
func rank(o object) int {
	switch {
	case o.kind.Group == "admissionregistration.k8s.io" || o.kind.Kind == "APIService":
		return 0
	case o.kind.Kind == "CustomResourceDefinition" || o.kind.Kind == "Namespace":
		return 2
	}
	return 1
}

// atOnce returns options that delete an object without a grace period, and its
// dependents in the background.
func atOnce() metav1.DeleteOptions {
	return metav1.DeleteOptions{GracePeriodSeconds: new(int64), PropagationPolicy: new(metav1.DeletePropagationBackground)}
}

// remove deletes an object, and removes its finalizers. A namespace has objects of the
// types in it.
func (p *plane) remove(ctx context.Context, o object, in []object) error {
	var client metadata.ResourceInterface = p.metadata.Resource(o.resource)
	if o.meta.Namespace != "" {
		client = p.metadata.Resource(o.resource).Namespace(o.meta.Namespace)
	}
	var err error
	// A pod may have been given a long time to end.
	if o.meta.DeletionTimestamp == nil || o.kind.Kind == "Pod" {
		err = client.Delete(ctx, o.meta.Name, atOnce())
	}
	if err == nil && o.kind.Kind == "Namespace" {
		return p.finalize(ctx, o.meta.Name, in)
	}
	if err == nil && len(o.meta.Finalizers) > 0 && o.kind.Kind != "CustomResourceDefinition" {
		_, err = client.Patch(ctx, o.meta.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or looked at again
	}
	return err
}

// finalize empties a deleted namespace, which has objects of some types, and removes its
// finalizer at once. The namespace controller would take five seconds.
func (p *plane) finalize(ctx context.Context, namespace string, types []object) error {
	// What controllers put into every namespace may have come after the list.
	resources := map[schema.GroupVersionResource]bool{
		{Version: "v1", Resource: "configmaps"}:      true,
		{Version: "v1", Resource: "serviceaccounts"}: true,
	}
	for _, t := range types {
		resources[t.resource] = true
	}
	for r := range resources {
		err := p.metadata.Resource(r).Namespace(namespace).DeleteCollection(ctx, atOnce(), metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsMethodNotSupported(err) {
			return fmt.Errorf("%s: %w", r.GroupResource(), err)
		}
	}
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q},"spec":{"finalizers":[]}}`, namespace)
	err := p.discovery.RESTClient().Put().AbsPath("/api/v1/namespaces", namespace, "finalize").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
