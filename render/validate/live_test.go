package validate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// A real API server returns the same results, for new objects and for changes of existing
// ones, with the same schema and with another one.
func TestLive(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts a control plane")
	}
	planes := devcluster.Start(t, "validate")
	cfg, err := clientcmd.BuildConfigFromFlags("", planes.Kubeconfig("validate"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: manifest.CRD.Group, Version: "v1", Resource: "customresourcedefinitions"})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := definition(t, c.name, c.schema, c.root, c.version)
			install(t, crds, d)
			typ, err := Compile(d, "Widget", "v1")
			if err != nil {
				t.Fatal(err)
			}
			widgets := client.Resource(schema.GroupVersionResource{Group: group(c.name), Version: "v1", Resource: "widgets"}).Namespace("default")
			served(t, widgets)
			var before *unstructured.Unstructured
			for _, s := range c.steps {
				o := s.tree(t, group(c.name))
				live := before
				if !s.keep && s.want == "" {
					live = nil
				}
				var ours error
				if live != nil {
					ours = typ.Update(t.Context(), live.Object, o)
				} else {
					ours = typ.Create(t.Context(), o)
				}
				if live == nil && !s.keep {
					o = runtime.DeepCopyJSON(o)
					meta := o["metadata"].(map[string]any)
					if meta["name"] == "w" {
						meta["name"] = "new"
					}
				}
				applied, theirs := apply(t.Context(), widgets, o, !s.keep)
				agree(t, s.object, ours, theirs)
				if s.keep && theirs == nil {
					before = applied
				}
			}
			// Neighbours of these objects, too.
			chance := rand.New(rand.NewPCG(uint64(len(c.name)), 1))
			for i := range 30 {
				o := runtime.DeepCopyJSON(c.steps[i%len(c.steps)].tree(t, group(c.name)))
				mutate(chance, o)
				ours := typ.Create(t.Context(), o)
				if before != nil {
					ours = typ.Update(t.Context(), before.Object, o)
				}
				if name, _ := o["metadata"].(map[string]any)["name"].(string); before != nil && name != "w" {
					continue
				}
				_, theirs := apply(t.Context(), widgets, o, true)
				agree(t, text(t, o), ours, theirs)
			}
		})
	}
	t.Run("another schema", func(t *testing.T) {
		t.Parallel()
		another(t, client, crds)
	})
}

// another changes the type of existing objects.
func another(t *testing.T, client dynamic.Interface, crds dynamic.ResourceInterface) {
	schemaOf := func(spec string) map[string]any {
		return definition(t, "another", `{type: object, properties: `+spec+`}`, "", "")
	}
	const items = `items: {type: object, properties: {k: {type: string}, v: {type: string}}}`
	old := schemaOf(`{a: {type: integer}, b: {type: integer}, gone: {type: string}, list: {type: array, items: {type: string}},
		text: {type: string}, set: {type: array, items: {type: string}}, keyed: {type: array, ` + items + `}}`)
	now := schemaOf(`{a: {type: integer, maximum: 3}, b: {type: integer, maximum: 3}, c: {type: integer, default: 1}, list: {type: array, maxItems: 1, items: {type: string}},
		text: {type: integer}, set: {type: array, x-kubernetes-list-type: set, items: {type: string}},
		keyed: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [k], ` + strings.Replace(items, "{type: object,", "{type: object, required: [k],", 1) + `}}`)
	install(t, crds, old)
	widgets := client.Resource(schema.GroupVersionResource{Group: group("another"), Version: "v1", Resource: "widgets"}).Namespace("default")
	served(t, widgets)
	typ, err := Compile(now, "Widget", "v1")
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		first string
		then  []string
	}{
		{`spec: {a: 5, b: 1, gone: x, list: [a, b]}`, []string{
			`spec: {a: 5, b: 1, list: [a, b]}`,         // what was wrong stays
			`spec: {a: 5, b: 2, list: [a, b]}`,         // and something else changes
			`spec: {a: 6, b: 1, list: [a, b]}`,         // it gets another wrong value
			`spec: {a: 5, b: 4, list: [a, b]}`,         // something else gets wrong
			`spec: {a: 5, b: 1, list: [a, b, c]}`,      // a list grows further
			`spec: {a: 5, b: 1, list: [a], c: 2}`,      // it gets better
			`spec: {a: 5, b: 1, gone: x, list: [a,b]}`, // a field is gone
			`spec: {b: 1}`,
			`spec: {}`, // the default stays, since it is nobody's
		}},
		// A field has another type: the live object cannot be read any more.
		{`spec: {text: "5"}`, []string{`spec: {text: 5}`, `spec: {text: "5"}`, `spec: {}`, `spec: {a: 1}`}},
		// Items that were allowed are the same now, or have no key.
		{`spec: {set: [a, a, b]}`, []string{`spec: {set: [a, b]}`, `spec: {set: [c]}`, `spec: {set: [a, a, b]}`}},
		{`spec: {keyed: [{k: a, v: b}, {k: b}]}`, []string{`spec: {keyed: [{k: a, v: c}]}`, `spec: {keyed: [{k: a}, {k: a}]}`}},
		{`spec: {keyed: [{k: a, v: b}, {v: b}]}`, []string{`spec: {keyed: [{k: a, v: c}]}`, `spec: {a: 1}`}},
	}
	named := func(s string, i int) map[string]any {
		o := step{object: s}.tree(t, group("another"))
		o["metadata"].(map[string]any)["name"] = fmt.Sprintf("w%d", i)
		return o
	}
	live := make([]*unstructured.Unstructured, len(cases))
	for i, c := range cases {
		if live[i], err = apply(t.Context(), widgets, named(c.first, i), false); err != nil {
			t.Fatal(err)
		}
	}
	changed := install(t, crds, now)
	// The new schema is served a moment later.
	for wait := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		probe := step{object: `{metadata: {name: probe}, spec: {a: 9}}`}.tree(t, group("another"))
		if _, err := apply(t.Context(), widgets, probe, true); err != nil {
			break
		}
		if time.Since(wait) > 30*time.Second {
			t.Fatalf("%s: the new schema is not served", changed.GetName())
		}
	}
	for i, c := range cases {
		for _, s := range c.then {
			o := named(s, i)
			_, theirs := apply(t.Context(), widgets, o, true)
			agree(t, s+" (update)", typ.Update(t.Context(), live[i].Object, o), theirs)
			agree(t, s+" (succeed)", typ.Succeed(t.Context(), named(c.first, i), o), theirs)
			fresh := runtime.DeepCopyJSON(o)
			fresh["metadata"].(map[string]any)["name"] = "fresh"
			_, theirs = apply(t.Context(), widgets, fresh, true)
			agree(t, s+" (create)", typ.Create(t.Context(), fresh), theirs)
		}
	}
}

// mutate changes a value somewhere in an object, except for its identity.
func mutate(r *rand.Rand, m map[string]any) {
	values := []any{nil, true, int64(-1), int64(3), int64(1 << 40), 1.5, "", "abc", "2024-01-02", []any{}, []any{int64(1), int64(1)}, []any{"a", "a"}, map[string]any{}, map[string]any{"num": int64(1)}}
	value := func() any { return runtime.DeepCopyJSONValue(values[r.IntN(len(values))]) }
	keys := slices.DeleteFunc(slices.Sorted(maps.Keys(m)), func(k string) bool {
		return k == "apiVersion" || k == "kind" && m["apiVersion"] != nil || k == "metadata" && m["apiVersion"] != nil || k == "namespace" || k == "name"
	})
	if len(keys) == 0 || r.IntN(8) == 0 {
		m["spec"] = value()
		return
	}
	k := keys[r.IntN(len(keys))]
	switch v := m[k].(type) {
	case map[string]any:
		if r.IntN(4) > 0 {
			mutate(r, v)
			return
		}
	case []any:
		if len(v) > 0 && r.IntN(2) == 0 {
			m[k] = append(v, v[0])
			return
		}
	}
	if r.IntN(3) == 0 {
		delete(m, k)
	} else {
		m[k] = value()
	}
}

func install(t *testing.T, crds dynamic.ResourceInterface, d map[string]any) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(d)}
	live, err := crds.Apply(t.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func served(t *testing.T, widgets dynamic.ResourceInterface) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		_, err := widgets.List(t.Context(), metav1.ListOptions{})
		if err == nil {
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatal(err)
		}
	}
}

func apply(ctx context.Context, widgets dynamic.ResourceInterface, o map[string]any, dry bool) (*unstructured.Unstructured, error) {
	opts := metav1.ApplyOptions{FieldManager: manager, Force: true}
	if dry {
		opts.DryRun = []string{metav1.DryRunAll}
	}
	u := &unstructured.Unstructured{Object: maps.Clone(o)}
	return widgets.Apply(ctx, u.GetName(), u, opts)
}

// agree compares our result with the API server's, and the fields and reasons that both
// name.
func agree(t *testing.T, object string, ours, theirs error) {
	t.Helper()
	refusal, _ := errors.AsType[*Refusal](ours)
	if (theirs != nil) != (refusal != nil) || ours != nil && refusal == nil {
		t.Errorf("%s\nours   %v\ntheirs %v", object, ours, theirs)
		return
	}
	status, _ := errors.AsType[*apierrors.StatusError](theirs)
	if theirs == nil || refusal.Early || status == nil || status.ErrStatus.Details == nil {
		return
	}
	for _, c := range status.ErrStatus.Details.Causes {
		if !strings.Contains(refusal.Error(), c.Field+": ") && c.Field != "<nil>" {
			t.Errorf("%s\nours   %v\ntheirs %v", object, ours, theirs)
			return
		}
	}
}
