package plan_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/harm"
)

// Between two renderings there is a step for each object, without a look at any
// cluster.
func TestBetween(t *testing.T) {
	before := manifesttest.Set(t, `
{apiVersion: v1, kind: ConfigMap, metadata: {name: same, namespace: a}, data: {k: "1"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: changed, namespace: a}, data: {k: "1"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: gone, namespace: a}}
`)
	after := manifesttest.Set(t, `
{apiVersion: v1, kind: ConfigMap, metadata: {name: same, namespace: a}, data: {k: "1"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: changed, namespace: a}, data: {k: "2"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: new, namespace: a}}
`)
	p := between(t, new(plan.Comparer), "dev", before, after, nil, nil)
	have := make(map[string]plan.Action)
	for _, s := range p.Steps {
		have[s.ID.Name] = s.Action
	}
	for name, want := range map[string]plan.Action{"same": plan.Unchanged, "changed": plan.Configure, "gone": plan.Prune, "new": plan.Create} {
		if have[name] != want {
			t.Errorf("%s: %s, want %s", name, have[name], want)
		}
	}
	if len(have) != 4 {
		t.Errorf("steps %v", have)
	}
	if p := between(t, new(plan.Comparer), "dev", after, after, nil, nil); p.HasChanges() {
		t.Errorf("a cluster that stays as it is has changes: %s", steps(p))
	}
	p = betweenWith(t, new(plan.Comparer), "dev", before, after, plan.Options{Keeps: func(id manifest.ID, pkg string) bool { return id.Name != "new" }}, nil, nil)
	for _, s := range p.Steps {
		if held := s.Action == plan.Held; held != (s.ID.Name == "gone") || held && s.Reason == "" {
			t.Errorf("%s: %s %s", s.ID, s.Action, s.Reason)
		}
	}
}

// Dependencies that can never be met, and digests that are none, are refused without a
// cluster, too. A Secret of a Service is not rendered, and yet there is one.
func TestBetweenOrder(t *testing.T) {
	t.Parallel()
	cm := func(name, annotation string) string {
		return fmt.Sprintf("---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: %s, namespace: a, annotations: {gitopsd.dev/%s}}}\n", name, annotation)
	}
	service := "---\n{apiVersion: v1, kind: Service, metadata: {name: s, namespace: a, annotations: {gitopsd.dev/serving-cert: s-tls}}}\n"
	before := manifesttest.Set(t, service+cm("old", "depends-on: nosuch"))
	p := between(t, new(plan.Comparer), "dev", before, manifesttest.Set(t, service+cm("old", "depends-on: nosuch")+
		cm("object", "depends-on: configmap/a/gone")+cm("package", "depends-on: package/gone")+cm("path", "depends-on: path/gone")+
		cm("self", "depends-on: configmap/a/self")+cm("pin", "type: 'h1:zz'")+
		cm("fine", "depends-on: 'configmap/a/old, secret/a/s-tls, issuer.example.org/wide'")+
		"---\n{apiVersion: example.org/v1, kind: Issuer, metadata: {name: wide, namespace: a}}\n"), nil, nil)
	names := ", which the cluster does not get"
	for name, want := range map[string]string{
		"s": "", "old": "", "fine": "",
		"object":  "gitopsd.dev/depends-on names configmap/a/gone" + names,
		"package": "gitopsd.dev/depends-on names package/gone" + names,
		"path":    "gitopsd.dev/depends-on names path/gone" + names,
		"self":    "gitopsd.dev/depends-on has a cycle: configmap/a/self after configmap/a/self",
		"pin":     `gitopsd.dev/type: "h1:zz" is no type digest`,
	} {
		i := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.ID.Name == name })
		if s := p.Steps[i]; (s.Action == plan.Refused) != (want != "") || !strings.HasPrefix(s.Reason, want) {
			t.Errorf("%s: %s %s, want %q", name, s.Action, s.Reason, want)
		}
	}
}

// Prunes that a cluster would hold are held between renderings, too: too many at once, and all
// if nothing is rendered.
func TestBetweenGuards(t *testing.T) {
	var many strings.Builder
	for i := range 30 {
		fmt.Fprintf(&many, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d, namespace: a}}\n---\n", i)
	}
	before, few := manifesttest.Set(t, many.String()), manifesttest.Set(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: c0, namespace: a}}")
	none, _ := manifest.NewSet(nil)
	for _, tt := range []struct {
		name  string
		after *manifest.Set
		opts  plan.Options
		held  int
	}{
		{"most", few, plan.Options{}, 29},
		{"most, allowed", few, plan.Options{AllowPrune: 29}, 0},
		{"all", none, plan.Options{}, 30},
		{"all, to be removed", none, plan.Options{RemoveAll: true}, 0},
	} {
		p := betweenWith(t, new(plan.Comparer), "dev", before, tt.after, tt.opts, nil, nil)
		if have, prunes := p.Count(plan.Held), p.Count(plan.Prune); have != tt.held || have+prunes != 30-tt.after.Len() {
			t.Errorf("%s: %d held, %d to prune, want %d held", tt.name, have, prunes, tt.held)
		}
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Action == plan.Held && !s.Lasts() {
				t.Errorf("%s: %s passes by itself: %s", tt.name, s.ID, s.Reason)
			}
		}
	}
}

// If a cluster's directory renders no objects, those that were in it stay, although the
// cluster still has objects that are made from the registry. What the registry no longer
// asks for goes.
func TestBetweenBare(t *testing.T) {
	account := manifesttest.Set(t, "{apiVersion: v1, kind: ServiceAccount, metadata: {name: target.hub.team, namespace: gitopsd-system}}")
	before := manifesttest.Set(t, `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: target.hub.team, namespace: gitopsd-system}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: target.hub.left, namespace: gitopsd-system}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: gitopsd-target.hub.left}}
---
{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: left, namespace: team, labels: {workload.crossplane.io/autotarget: "true"}}}
---
{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: own, namespace: team}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: target.hub.team, namespace: team}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: own, namespace: team}}
`)
	for _, tt := range []struct {
		name string
		opts plan.Options
		held []string
	}{
		{"the directory renders others", plan.Options{}, nil},
		{"it renders none", plan.Options{Bare: true}, []string{
			"configmap/team/own", "kubernetestarget.workload.crossplane.io/team/own", "serviceaccount/team/target.hub.team",
		}},
		{"to be removed", plan.Options{Bare: true, RemoveAll: true}, nil},
	} {
		p := betweenWith(t, new(plan.Comparer), "dev", before, account, tt.opts, nil, nil)
		var held []string
		for _, s := range p.Steps {
			if s.Action == plan.Held {
				held = append(held, s.ID.String())
			}
		}
		slices.Sort(held)
		if !slices.Equal(held, tt.held) || p.Count(plan.Prune) != 6-len(held) {
			t.Errorf("%s: %d to prune, held %q, want %q", tt.name, p.Count(plan.Prune), held, tt.held)
		}
	}
}

// The same change of a definition in many clusters is compared once, and refused in each
// if it breaks.
func TestBetweenClusters(t *testing.T) {
	sets := func(o *manifest.Object) *manifest.Set {
		s, _ := manifest.NewSet([]*manifest.Object{o})
		return s
	}
	before, after := sets(crd(t, "a", "b")), sets(crd(t, "a"))
	var c plan.Comparer
	dev, prod := between(t, &c, "dev", before, after, nil, nil).Steps[0], between(t, &c, "prod", before, after, nil, nil).Steps[0]
	if dev.Action != plan.Refused || prod.Action != plan.Refused || len(dev.Findings) == 0 || len(prod.Findings) == 0 {
		t.Fatalf("dev: %s: %s; prod: %s: %s", dev.Action, dev.Reason, prod.Action, prod.Reason)
	}
	if &dev.Findings[0] != &prod.Findings[0] {
		t.Error("each cluster has findings of its own")
	}
}

// A comparison that was cancelled is made again for the next plan.
func TestBetweenCancelled(t *testing.T) {
	sets := func(o *manifest.Object) *manifest.Set {
		s, _ := manifest.NewSet([]*manifest.Object{o})
		return s
	}
	before, after := sets(crd(t, "a", "b")), sets(crd(t, "a"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	var c plan.Comparer
	if _, err := c.Between(ended, "dev", before, after, plan.Options{}, nil, nil); !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want the context's", err)
	}
	if s := between(t, &c, "dev", before, after, nil, nil).Steps[0]; s.Action != plan.Refused || len(s.Findings) == 0 || strings.Contains(s.Reason, "cancel") {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
}

func between(t *testing.T, c *plan.Comparer, cluster string, before, after *manifest.Set, allowed plan.Allowed, find plan.FindType) *plan.Plan {
	t.Helper()
	return betweenWith(t, c, cluster, before, after, plan.Options{}, allowed, find)
}

func betweenWith(t *testing.T, c *plan.Comparer, cluster string, before, after *manifest.Set, opts plan.Options, allowed plan.Allowed, find plan.FindType) *plan.Plan {
	t.Helper()
	p, err := c.Between(t.Context(), cluster, before, after, opts, allowed, find)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A refusal lasts until somebody allows it, unless it is for want of knowledge.
func TestLasts(t *testing.T) {
	allow := &plan.Allow{Annotation: manifest.AllowBreakingAnnotation}
	for _, tt := range []struct {
		step plan.Step
		want bool
	}{
		{plan.Step{Action: plan.Refused}, false},
		{plan.Step{Action: plan.Refused, Allow: allow}, true},
		{plan.Step{Action: plan.Refused, Allow: allow, Survey: &harm.Survey{Looked: 3, Harmed: 1}}, true},
		{plan.Step{Action: plan.Refused, Allow: allow, Survey: &harm.Survey{Unknown: "the list timed out"}}, false},
		{plan.Step{Action: plan.Held}, false},
		{plan.Step{Action: plan.Held, Lasting: true}, true},
		{plan.Step{Action: plan.Create}, false},
	} {
		if have := tt.step.Lasts(); have != tt.want {
			t.Errorf("%+v lasts: %t", tt.step, have)
		}
	}
}
