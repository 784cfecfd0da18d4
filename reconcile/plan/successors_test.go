package plan_test

import (
	"slices"
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
		{name: "one with errors, of plain manifests", desired: middleless, live: with(crd, "labels: {gitopsd.dev/package: middle}") + middle + with(run, "labels: {a: b}"), recorded: "=middle", broken: []string{"other", "middle"}, successors: "=middle",
			want: "held deployment.apps/gitopsd-system/old kept: errors in package middle leave open what replaces it"},
		{name: "one that leaves with objects", desired: middleless, live: with(crd, "labels: {gitopsd.dev/package: middle}") + middle + with(run, old), recorded: "old=middle", in: "ws.e.org", successors: "old=middle",
			want: `held deployment.apps/gitopsd-system/old kept: objects of customresourcedefinition.apiextensions.k8s.io/ws.e.org may need it; remove them, or annotate their definition with gitopsd.dev/allow-prune: "true"`},
		{name: "in a circle", desired: succ, live: succ + with(run, old), recorded: "old=other,other=old", want: "prune deployment.apps/gitopsd-system/old"},
		{name: "the former one again", desired: with(crd+run, old), live: with(crd, next) + succ + with(run, old), recorded: "old=new", successors: "new=old",
			want: "unchanged deployment.apps/gitopsd-system/oldprune deployment.apps/gitopsd-system/new pruned once deployment.apps/gitopsd-system/old is ready"},
		{name: "in a later commit", desired: with(crd, next) + succ + middleless, live: with(crd, next) + succ + middleless, recorded: "=new", successors: "=new"},
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
				opts.Keeps = func(id manifest.ID, pkg string) bool { return pkg != "" || id.Is(manifest.Definitions...) }
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

// While packages with errors may take over a plain definition, the plain manifests that would go
// stay, but for rights of people. A plan without the cluster says so, too.
func TestReplaced(t *testing.T) {
	t.Parallel()
	const (
		other    = "{apiVersion: v1, kind: ConfigMap, metadata: {name: other, namespace: default}}\n---\n"
		crd      = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org, labels: {PACKAGE}}, spec: {group: e.org, names: {kind: W}}}\n---\n"
		operator = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: operator, namespace: default}}\n---\n"
		account  = "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: account, namespace: default}, subjects: [{kind: ServiceAccount, name: x, namespace: default}]}\n---\n"
		people   = "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: people, namespace: default}, subjects: [{kind: User, name: eve}]}\n---\n"
	)
	const held = " kept: errors in packages p, q leave open what replaces it"
	plain, packaged := strings.Replace(crd, "PACKAGE", "a: b", 1), strings.Replace(crd, "PACKAGE", "gitopsd.dev/package: gone", 1)
	for _, tt := range []struct {
		name, before string
		broken       []string
		want         []string
	}{
		{"a definition that may move", plain + operator + account + people, []string{"p", "q"}, []string{
			"held deployment.apps/default/operator" + held, "held rolebinding.rbac.authorization.k8s.io/default/account" + held, "prune rolebinding.rbac.authorization.k8s.io/default/people",
		}},
		{"no definition", operator + account, []string{"p", "q"}, []string{"prune deployment.apps/default/operator", "prune rolebinding.rbac.authorization.k8s.io/default/account"}},
		{"another package's definition", packaged + operator, []string{"p", "q"}, []string{"prune deployment.apps/default/operator"}},
		{"no errors", plain + operator, nil, []string{"prune deployment.apps/default/operator", "prune customresourcedefinition.apiextensions.k8s.io/ws.e.org"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			opts := plan.Options{Broken: tt.broken, Keeps: func(id manifest.ID, pkg string) bool { return tt.broken != nil && id.Is(manifest.Definitions...) }}
			before, after := manifesttest.Set(t, other+tt.before), manifesttest.Set(t, other)
			l := live(t, other+tt.before, nil)
			l.Accounts = make(map[manifest.ID][]string)
			for _, o := range before.All() {
				if o.ID().Is(manifest.RoleBinding) {
					l.Accounts[o.ID()] = plan.AccountsOf(o.Tree())
				}
			}
			for how, p := range map[string]*plan.Plan{
				"computed": plan.Compute("prod", after, l, inventory, opts),
				"between":  betweenWith(t, new(plan.Comparer), "prod", before, after, opts, nil, nil),
			} {
				var have []string
				for line := range strings.Lines(steps(p)) {
					if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "unchanged") && !strings.Contains(line, "leave open whether it is wanted") {
						have = append(have, line)
					}
				}
				if !slices.Equal(have, tt.want) {
					t.Errorf("%s: have\n%s\nwant\n%s", how, strings.Join(have, "\n"), strings.Join(tt.want, "\n"))
				}
			}
		})
	}
}
