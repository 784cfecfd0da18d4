package certs

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// consumer is an object with manifest.InjectCAAnnotation.
type consumer struct {
	object *manifest.Object
	// from is the Service or Secret with the CA that it trusts.
	from manifest.ID
}

var dnsName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// readConsumer reads the annotation of an object.
func readConsumer(o *manifest.Object) (consumer, error) {
	if !o.ID().Is(manifest.CRD, manifest.APIService) && !o.ID().Is(manifest.Webhooks...) {
		return consumer{}, fmt.Errorf("%s: a %s holds no CA bundle; remove the annotation", manifest.InjectCAAnnotation, o.ID().Kind)
	}
	if o.ID().Is(manifest.CRD) && len(slots(o.Tree())) == 0 {
		return consumer{}, fmt.Errorf("%s: the definition does not convert by webhook (spec.conversion.webhook.clientConfig); remove the annotation", manifest.InjectCAAnnotation)
	}
	from, err := webhook.ParseSource(o.Annotation(manifest.InjectCAAnnotation))
	if err != nil {
		return consumer{}, err
	}
	return consumer{o, from.Object}, nil
}

// slot is a field of an object for a CA bundle.
type slot struct {
	// path is as in plan.Change.
	path string
	// value is the bundle in base64.
	value string
	// with returns a copy of the object with another bundle.
	with func(tree map[string]any, value string) map[string]any
}

// slots returns the fields for CA bundles in a webhook configuration, a CRD or an APIService that
// are filled in.
func slots(tree map[string]any) []slot {
	const field = "caBundle"
	switch kind := manifest.KindOf(tree); {
	case slices.Contains(manifest.Webhooks, kind):
		var all []slot
		takes := webhook.Takes(tree)
		for i, h := range manifest.List(tree, "webhooks") {
			hook, ok := h.(map[string]any)
			if !ok || !takes(manifest.Mapping(hook, "clientConfig")) {
				continue // the API server refuses it, or its server is another
			}
			all = append(all, slot{
				path:  fmt.Sprintf("webhooks[name=%v].clientConfig.caBundle", hook["name"]),
				value: manifest.Text(hook, "clientConfig", field),
				with: func(tree map[string]any, value string) map[string]any {
					list := slices.Clone(manifest.List(tree, "webhooks"))
					list[i] = manifest.With(list[i].(map[string]any), value, "clientConfig", field)
					return manifest.With(tree, list, "webhooks")
				},
			})
		}
		return all
	case kind == manifest.CRD && manifest.Text(tree, "spec", "conversion", "strategy") == "Webhook":
		return []slot{at(tree, "spec", "conversion", "webhook", "clientConfig", field)}
	case kind == manifest.APIService:
		return []slot{at(tree, "spec", field)}
	}
	return nil
}

func at(tree map[string]any, path ...string) slot {
	with := func(tree map[string]any, value string) map[string]any { return manifest.With(tree, value, path...) }
	return slot{strings.Join(path, "."), manifest.Text(tree, path...), with}
}

// fill returns the object with a bundle, in PEM, in each slot. If the bundle is nil, the slots
// are unknown.
func fill(o *manifest.Object, bundle []byte) (*manifest.Object, error) {
	tree := o.Tree()
	var unknown []string
	for _, s := range slots(o.Tree()) {
		if bundle == nil {
			unknown = append(unknown, s.path)
		} else {
			tree = s.with(tree, base64.StdEncoding.EncodeToString(bundle))
		}
	}
	return o.Complete(tree, unknown...)
}

// holders are the kinds that hold CA bundles.
var holders = slices.Concat([]manifest.GroupKind{manifest.CRD, manifest.APIService}, manifest.Webhooks)

// versionOf returns the version in which bundles are read.
func versionOf(holder manifest.GroupKind) string { return holder.Group + "/v1" }

// trusting returns the live objects of the inventory that have their bundles from a Service or
// Secret, by that. They need not be desired in this form: one that is refused or kept stays as
// it is, and a rotation must wait for it all the same.
func (w *work) trusting(ctx context.Context) (map[manifest.ID][]manifest.ID, error) {
	if w.live != nil {
		return w.live, nil
	}
	live := make(map[manifest.ID][]manifest.ID)
	for _, kind := range holders {
		from := make(map[manifest.ID]manifest.ID)
		t, err := w.Client.Type(ctx, versionOf(kind), kind.Kind)
		if err == nil {
			opts := kube.ListOptions{Selector: plan.PartOfLabel, Again: func() { clear(from) }}
			_, err = w.Client.List(ctx, t, opts, func(meta *metav1.PartialObjectMetadata) bool {
				id := kind.ID("", meta.Name)
				source, err := webhook.ParseSource(meta.Annotations[manifest.InjectCAAnnotation])
				if err == nil && w.Owns(id, &meta.ObjectMeta) {
					from[id] = source.Object
				}
				return true
			})
		}
		switch kube.ClassOf(err) {
		case "":
			if err != nil {
				return nil, err
			}
		case kube.NoSuchType: // then there are none of the inventory
		case kube.Forbidden:
			if w.Lists(kind) {
				w.unlisted = append(w.unlisted, rotation.Held{Holder: fmt.Sprintf("every %s (%s)", kind.Kind, problem.Message(err)), Unread: true})
			}
		default:
			return nil, err
		}
		for id, source := range from {
			live[source] = append(live[source], id)
		}
	}
	w.live = live
	return live, nil
}

// inForce returns the bundles of a live object.
func inForce(holder manifest.ID, live map[string]any) []rotation.Held {
	var all []rotation.Held
	for _, s := range slots(live) {
		text, _ := base64.StdEncoding.DecodeString(s.value)
		all = append(all, rotation.Held{Holder: holder.String(), PEM: text})
	}
	return all
}
