package plan_test

import (
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// A plan knows which package takes over from another, and says it of the former one's
// controller.
func TestSuccessors(t *testing.T) {
	t.Parallel()
	const (
		old  = "labels: {gitopsd.dev/package: old}"
		next = "labels: {gitopsd.dev/package: new}"
		crd  = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org, LABELS}, spec: {group: e.org, names: {kind: W}}}\n---\n"
		more = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: vs.e.org, labels: {gitopsd.dev/package: old}}, spec: {group: e.org, names: {kind: V}}}\n---\n"
		run  = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: old, namespace: gitopsd-system, LABELS}}\n---\n"
		succ = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: new, namespace: gitopsd-system, labels: {gitopsd.dev/package: new}}}\n---\n"
	)
	const (
		middle     = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: middle, namespace: gitopsd-system, labels: {gitopsd.dev/package: middle}}}\n---\n"
		middleless = "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: default}}"
	)
	with := func(text, labels string) string { return strings.ReplaceAll(text, "LABELS", labels) }
	const waits = "prune deployment.apps/gitopsd-system/old pruned once deployment.apps/gitopsd-system/new is ready"
	for _, tt := range []struct {
		name, desired, live, recorded string
		in                            string // a definition that holds an object
		broken                        []string
		successors, want              string
	}{
		{name: "by its definition", desired: with(crd, next) + succ, live: with(crd+run, old), successors: "old=new", want: waits},
		{name: "by the record", desired: with(crd, next) + succ, live: with(crd, next) + succ + with(run, old), recorded: "old=new", successors: "old=new", want: waits},
		{name: "from plain manifests", desired: with(crd, next) + succ, live: with(crd+run, "labels: {a: b}"), successors: "=new", want: waits},
		{name: "to plain manifests", desired: with(crd, "labels: {a: b}"), live: with(crd+run, old), successors: "old=", want: "prune deployment.apps/gitopsd-system/old"},
		{name: "one that is not desired any more", desired: succ, live: succ + with(run, old), recorded: "old=other", want: "prune deployment.apps/gitopsd-system/old"},
		{name: "one that left before it was ready", desired: with(crd, next) + succ, live: with(crd, "labels: {gitopsd.dev/package: middle}") + middle + with(run, old), recorded: "old=middle", successors: "middle=new,old=new", want: waits},
		{name: "one that left long ago", desired: with(crd, next) + succ, live: with(crd, next) + succ + with(run, old), recorded: "old=middle,middle=new", successors: "old=new", want: waits},
		{name: "one with errors", desired: middleless, live: with(crd, "labels: {gitopsd.dev/package: middle}") + middle + with(run, old), recorded: "old=middle", broken: []string{"middle"}, successors: "old=middle",
			want: "held deployment.apps/gitopsd-system/old kept: errors in the repository or in package middle leave open whether it is wanted"},
		{name: "one that leaves with objects", desired: middleless, live: with(crd, "labels: {gitopsd.dev/package: middle}") + middle + with(run, old), recorded: "old=middle", in: "ws.e.org", successors: "old=middle",
			want: `held deployment.apps/gitopsd-system/old kept: objects of customresourcedefinition.apiextensions.k8s.io/ws.e.org may need it; remove them, or annotate their definition with gitopsd.dev/allow-prune: "true"`},
		{name: "in a circle", desired: succ, live: succ + with(run, old), recorded: "old=other,other=old", want: "prune deployment.apps/gitopsd-system/old"},
		{name: "nothing is left", desired: with(crd, next) + succ, live: with(crd, old) + succ, recorded: "old=new"},
		{name: "another type stays", desired: with(crd, next) + succ, live: with(crd+run, old) + more, in: "vs.e.org", successors: "old=new",
			want: `held deployment.apps/gitopsd-system/old kept: objects of customresourcedefinition.apiextensions.k8s.io/vs.e.org may need it; remove them, or annotate their definition with gitopsd.dev/allow-prune: "true"; until it goes, it may act on the same objects as deployment.apps/gitopsd-system/new`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := live(t, tt.live, nil)
			l.Successors = plan.ParseSuccessors(tt.recorded)
			if tt.in != "" {
				l.Contents = map[manifest.ID][]plan.Content{manifest.CRD.ID("", tt.in): {{ID: manifest.ID{Group: "e.org", Kind: "V", Name: "v"}, UID: "v"}}}
			}
			opts := plan.Options{Broken: tt.broken}
			if tt.broken != nil {
				opts.Keeps = func(manifest.ID, string) bool { return true }
			}
			p := plan.Compute("prod", manifesttest.Set(t, tt.desired), l, inventory, opts)
			if have := p.Successors.String(); have != tt.successors {
				t.Errorf("have %q, want %q", have, tt.successors)
			}
			have := ""
			for line := range strings.Lines(steps(p)) {
				if strings.Contains(line, "deployment.apps/gitopsd-system/old ") || strings.HasSuffix(line, "/old\n") {
					have += strings.TrimSuffix(line, "\n")
				}
			}
			if have != tt.want {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
		})
	}
}

// Plain manifests go while a package has errors, except with a plain definition: then the
// package may take over from them all, and only people's rights go.
func TestPlainBesideErrors(t *testing.T) {
	t.Parallel()
	const (
		stays   = "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: default}}\n---\n"
		crd     = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org}, spec: {group: e.org, names: {kind: W}}}\n---\n"
		leaving = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: operator, namespace: default}}\n---\n" +
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: operator}}\n---\n" +
			"{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: people}}\n"
	)
	const why = " kept: errors in the repository or in package p leave open whether it is wanted\n"
	for _, tt := range []struct{ name, live, want string }{
		{"without a definition", stays + leaving, "prune deployment.apps/default/operator\nprune clusterrolebinding.rbac.authorization.k8s.io/operator\nprune clusterrolebinding.rbac.authorization.k8s.io/people\n"},
		{"with one", stays + crd + leaving, "held deployment.apps/default/operator" + why + "held clusterrolebinding.rbac.authorization.k8s.io/operator" + why +
			"prune clusterrolebinding.rbac.authorization.k8s.io/people\nheld customresourcedefinition.apiextensions.k8s.io/ws.e.org" + why},
	} {
		l := live(t, tt.live, nil)
		l.Accounts = map[manifest.ID][]string{
			manifest.ClusterRoleBinding.ID("", "operator"): {"default"},
			manifest.ClusterRoleBinding.ID("", "people"):   {},
		}
		opts := plan.Options{Broken: []string{"p"}, Keeps: func(id manifest.ID, pkg string) bool { return id.Is(manifest.CRD) }}
		have := ""
		for line := range strings.Lines(steps(plan.Compute("prod", manifesttest.Set(t, stays), l, inventory, opts))) {
			if !strings.HasPrefix(line, "unchanged") && !strings.Contains(line, "/x") {
				have += line
			}
		}
		if have != tt.want {
			t.Errorf("%s: have\n%swant\n%s", tt.name, have, tt.want)
		}
	}
}
