package live

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

var (
	widgets = manifest.CRD.ID("", "widgets.acme.example")
	shelves = manifest.CRD.ID("", "shelves.acme.example")
	compare = targets{"acme.example": {"widgets": {widgets, true}, "shelves": {shelves, false}}}
)

// What rules allow to write, as RBAC reads them.
func TestRightOf(t *testing.T) {
	for _, tt := range []struct{ groups, resources, verbs, want string }{
		{"acme.example", "widgets", "update", "widgets"},
		{"acme.example", "widgets", "get list watch", ""},
		{"acme.example", "widgets", "*", "widgets"},
		{"acme.example", "widgets", "get delete", "widgets"},
		{"acme.example", "widgets/status", "patch", "widgets"},
		{"acme.example", "widgets/finalizers", "update", ""},
		{"acme.example", "*/status", "patch", "shelves widgets"},
		{"acme.example", "*/scale", "patch", ""},
		{"acme.example", "*", "create", "shelves widgets"},
		{"acme.example", "gadgets", "create", ""},
		{"other.example", "*", "*", ""},
		{"", "widgets", "*", ""},
		{"*", "widgets", "patch", "widgets"},
		{"* acme.example", "*", "patch", "all"},
		{"*", "*", "get list watch", ""},
		{"*", "*", "deletecollection", "all"},
		{"*", "*/scale", "update", ""},
	} {
		fields := func(s string) []string {
			if s == "" {
				return []string{""}
			}
			return strings.Fields(s)
		}
		r := rightOf([]rule{{fields(tt.groups), fields(tt.resources), fields(tt.verbs)}}, compare)
		have := []string{}
		for _, id := range r.types {
			have = append(have, strings.TrimSuffix(id.Name, ".acme.example"))
		}
		if r.all {
			have = append(have, "all")
		}
		if text := strings.Join(have, " "); text != tt.want {
			t.Errorf("%s %s %s: may write %q, want %q", tt.groups, tt.resources, tt.verbs, text, tt.want)
		}
	}
	if r := rightOf([]rule{{nil, []string{"*"}, []string{"*"}}, {[]string{"*"}, nil, []string{"*"}}, {[]string{"*"}, []string{"*"}, nil}}, compare); r.all || len(r.types) > 0 {
		t.Errorf("rules that name nothing allow %v", r)
	}
}

func TestSubjects(t *testing.T) {
	for _, tt := range []struct {
		subject
		account, group string
	}{
		{subject{"ServiceAccount", "a", "ns"}, "ns/a", ""},
		{subject{"User", "system:serviceaccount:ns:a", ""}, "ns/a", ""},
		{subject{"User", "alice", ""}, "", ""},
		{subject{"Group", "system:serviceaccounts", ""}, "", "system:serviceaccounts"},
		{subject{"Group", "system:serviceaccounts:ns", ""}, "", "system:serviceaccounts:ns"},
		{subject{"Group", "system:authenticated", ""}, "", "system:authenticated"},
		{subject{"Group", "system:masters", ""}, "", ""},
		{subject{"Group", "system:serviceaccountsx", ""}, "", ""},
	} {
		account, group, ok := tt.subject.account()
		if account != tt.account || group != tt.group || ok != (tt.account+tt.group != "") {
			t.Errorf("%v: account %q, group %q, %t", tt.subject, account, group, ok)
		}
	}
}

// Who is named beside a declared controller, and who is not.
func TestActors(t *testing.T) {
	controller := manifest.Deployment.ID("widgets", "widgets")
	both := &right{types: []manifest.ID{shelves, widgets}}
	all := &right{all: true}
	everywhere := grant{right: both, by: "ClusterRoleBinding b"}
	local := grant{right: both, by: "RoleBinding b in namespace x", namespace: "x"}
	sleeper := workload{manifest.Deployment.ID("x", "sleeper"), "x/default"}
	for _, tt := range []struct {
		name             string
		accounts, groups map[string][]grant
		runs             []workload
		known            []string
		want             string
	}{
		{name: "the controller itself", accounts: map[string][]grant{"widgets/widgets": {everywhere}}},
		{
			name: "somebody's workload", accounts: map[string][]grant{"x/default": {everywhere, everywhere}}, runs: []workload{sleeper},
			want: "shelves: Deployment x/sleeper as ServiceAccount x/default by ClusterRoleBinding b; widgets: Deployment x/sleeper as ServiceAccount x/default by ClusterRoleBinding b",
		},
		{
			name: "in one namespace", accounts: map[string][]grant{"x/default": {local}}, runs: []workload{sleeper},
			want: "widgets: Deployment x/sleeper as ServiceAccount x/default by RoleBinding b in namespace x",
		},
		{
			name: "two bindings", accounts: map[string][]grant{"x/default": {local, everywhere}}, runs: []workload{sleeper},
			want: "shelves: Deployment x/sleeper as ServiceAccount x/default by ClusterRoleBinding b; widgets: Deployment x/sleeper as ServiceAccount x/default by ClusterRoleBinding b, RoleBinding b in namespace x",
		},
		{
			name: "with the controller's own account", accounts: map[string][]grant{"widgets/widgets": {local}}, runs: []workload{{manifest.Pod.ID("widgets", "debug"), "widgets/widgets"}},
			want: "widgets: Pod widgets/debug as ServiceAccount widgets/widgets by RoleBinding b in namespace x",
		},
		{
			name: "everything", accounts: map[string][]grant{"x/default": {{right: all}, everywhere}}, runs: []workload{sleeper},
			want: "everything: Deployment x/sleeper",
		},
		{
			name: "everything in one namespace, and one type everywhere", runs: []workload{sleeper},
			accounts: map[string][]grant{"x/default": {{right: all, by: "RoleBinding a in namespace x", namespace: "x"}, {right: &right{types: []manifest.ID{shelves}}, by: "ClusterRoleBinding b"}}},
			want:     "shelves: Deployment x/sleeper as ServiceAccount x/default by ClusterRoleBinding b; everything: Deployment x/sleeper in namespace x",
		},
		{
			name: "declared", accounts: map[string][]grant{"x/default": {everywhere}}, runs: []workload{{manifest.Deployment.ID("x", "declared"), "x/default"}},
			want: "known: Deployment x/declared 2",
		},
		{
			name: "declared with another account", accounts: map[string][]grant{"x/evil": {local}}, runs: []workload{{manifest.CronJob.ID("x", "declared"), "x/evil"}},
			want: "widgets: CronJob x/declared as ServiceAccount x/evil by RoleBinding b in namespace x",
		},
		{
			name: "of an object that has no pods", accounts: map[string][]grant{"x/evil": {local}}, runs: []workload{{manifest.ConfigMap.ID("x", "settings"), "x/evil"}},
			want: "widgets: ConfigMap x/settings as ServiceAccount x/evil by RoleBinding b in namespace x",
		},
		{
			name: "named by the Cluster", accounts: map[string][]grant{"x/default": {everywhere}}, runs: []workload{sleeper}, known: []string{"x/default", "x/gone"},
			want: "known: Deployment x/sleeper 2; idle: x/gone",
		},
		{name: "gitopsd", accounts: map[string][]grant{own: {everywhere}}, runs: []workload{{manifest.Deployment.ID("gitopsd-system", "gitopsd"), own}}},
		{name: "nobody runs as it", accounts: map[string][]grant{"x/idle": {everywhere}}, runs: []workload{sleeper}},
		{
			name: "a group", groups: map[string][]grant{allAccounts: {local}}, runs: []workload{sleeper},
			want: "widgets: every workload (group system:serviceaccounts) by RoleBinding b in namespace x",
		},
		{
			name: "a namespace", groups: map[string][]grant{allAccounts + ":x": {local}, allAccounts + ":empty": {local}}, runs: []workload{sleeper},
			want: "widgets: every workload of namespace x (group system:serviceaccounts:x) by RoleBinding b in namespace x",
		},
		{
			name: "a group that may do everything", groups: map[string][]grant{allAuthenticated: {{right: all}}}, runs: []workload{sleeper},
			want: "everything: every workload (group system:authenticated)",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := &access{
				targets: compare, accounts: tt.accounts, groups: tt.groups, known: tt.known, silent: []string{own},
				workloads:   map[workload]bool{{controller, "widgets/widgets"}: true},
				controllers: map[manifest.ID]manifest.ID{widgets: controller, shelves: controller},
				declared: func(id manifest.ID) *declaration {
					switch {
					case id == controller:
						return &declaration{account: "widgets/widgets"}
					case id.Name == "declared":
						return &declaration{account: "x/default"}
					case id.Is(manifest.ConfigMap):
						return &declaration{}
					}
					return nil
				},
			}
			for _, w := range tt.runs {
				a.workloads[w] = true
			}
			if have := told(a.actors()); have != tt.want {
				t.Errorf("have %s\nwant %s", have, tt.want)
			}
		})
	}
}

func told(a *verify.Actors) string {
	var all []string
	for _, id := range slices.SortedFunc(maps.Keys(a.Second), manifest.ID.Compare) {
		for _, actor := range a.Second[id] {
			all = append(all, fmt.Sprintf("%s: %s by %s", strings.TrimSuffix(id.Name, ".acme.example"), actor.What, actor.By))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Known)) {
		all = append(all, fmt.Sprintf("known: %s %d", name, a.Known[name]))
	}
	for _, name := range a.Everything {
		all = append(all, "everything: "+name)
	}
	for _, name := range a.Idle {
		all = append(all, "idle: "+name)
	}
	return strings.Join(all, "; ")
}

// However many there are, the report stays short.
func TestManyActors(t *testing.T) {
	a := &access{targets: compare, accounts: make(map[string][]grant), workloads: make(map[workload]bool), declared: func(manifest.ID) *declaration { return nil }}
	for i := range 1000 {
		account := fmt.Sprintf("ns/%d", i)
		a.accounts[account] = []grant{{right: &right{types: []manifest.ID{widgets}}, by: "ClusterRoleBinding b"}}
		a.workloads[workload{manifest.Pod.ID("ns", fmt.Sprint(i)), account}] = true
	}
	all := a.actors().Second[widgets]
	if len(all) != mostActors+1 || all[mostActors].What != "950 more workloads" {
		t.Errorf("%d actors, last %v", len(all), all[len(all)-1])
	}
}

// A pod is told by the workload that a person knows.
func TestOwner(t *testing.T) {
	known := map[workload]bool{{manifest.CronJob.ID("ns", "nightly"), "ns/default"}: true}
	for _, tt := range []struct{ owner, name, hash, want string }{
		{"", "", "", "pod/ns/p"},
		{"ReplicaSet", "web-5d4f", "5d4f", "deployment.apps/ns/web"},
		{"ReplicaSet", "web", "", "replicaset.apps/ns/web"},
		{"StatefulSet", "db", "", "statefulset.apps/ns/db"},
		{"Job", "nightly-123", "", "cronjob.batch/ns/nightly"},
		{"Job", "once-123", "", "job.batch/ns/once-123"},
		{"Rollout", "web", "", "rollout.argoproj.io/ns/web"},
		{"Deployment", "web", "", "pod/ns/p"},
		{"CronJob", "nightly", "", "pod/ns/p"},
	} {
		var p ownedPod
		p.Metadata.Name, p.Metadata.Namespace = "p", "ns"
		p.Metadata.Labels = map[string]string{"pod-template-hash": tt.hash}
		if tt.owner != "" {
			p.Metadata.Owners = append(p.Metadata.Owners, struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				Name       string `json:"name"`
				Controller bool   `json:"controller"`
			}{map[string]string{"Job": "batch/v1", "CronJob": "batch/v1", "Rollout": "argoproj.io/v1"}[tt.owner], tt.owner, tt.name, true})
			if p.Metadata.Owners[0].APIVersion == "" {
				p.Metadata.Owners[0].APIVersion = "apps/v1"
			}
		}
		if have := p.owner(known).String(); have != tt.want {
			t.Errorf("%s %s: %s, want %s", tt.owner, tt.name, have, tt.want)
		}
	}
}

// A pod is a declared workload's only if it looks like one of its pods, whatever owner it says
// it has.
func TestDeclaredOwner(t *testing.T) {
	const template = "template: {metadata: {labels: {app: x}}, spec: {serviceAccountName: x, containers: [{name: c, image: i}]}}"
	set := manifesttest.Set(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: x, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, `+template+`}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: db, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, template: {metadata: {labels: {app: x}}, spec: {containers: [{name: c, image: i}]}}}}
---
{apiVersion: batch/v1, kind: Job, metadata: {name: once, namespace: ns}, spec: {`+template+`}}
---
{apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly, namespace: ns}, spec: {jobTemplate: {spec: {`+template+`}}}}
---
{apiVersion: apps.kruise.io/v1alpha1, kind: CloneSet, metadata: {name: clones, namespace: ns}, spec: {selector: {matchLabels: {app: x}}, `+template+`}}
---
{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: alone}, spec: {serviceAccountName: x, containers: [{name: c, image: i}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: ns}}
`)
	in := &reading{wanted: &desired.Unit{Objects: set}}
	a := &access{declared: in.declared(), workloads: map[workload]bool{{manifest.CronJob.ID("ns", "nightly"), "ns/x"}: true}}
	for _, tt := range []struct{ name, labels, account, owner, want string }{
		{"its own", "app: x, pod-template-hash: 5d4f", "x", "apps/v1 ReplicaSet x-5d4f", "deployment.apps/ns/x"},
		{"another account", "app: x, pod-template-hash: 5d4f", "evil", "apps/v1 ReplicaSet x-5d4f", "pod/ns/p"},
		{"other labels", "app: evil, pod-template-hash: 5d4f", "x", "apps/v1 ReplicaSet x-5d4f", "pod/ns/p"},
		{"without a ReplicaSet", "app: x", "x", "apps/v1 Deployment x", "pod/ns/p"},
		{"of a StatefulSet with the default account", "app: x", "", "apps/v1 StatefulSet db", "statefulset.apps/ns/db"},
		{"of a StatefulSet with another account", "app: x", "evil", "apps/v1 StatefulSet db", "pod/ns/p"},
		{"of a Job", "app: x, job-name: once", "x", "batch/v1 Job once", "job.batch/ns/once"},
		{"of a Job with another account", "app: x, job-name: once", "evil", "batch/v1 Job once", "pod/ns/p"},
		{"of a CronJob", "app: x", "x", "batch/v1 Job nightly-1", "cronjob.batch/ns/nightly"},
		{"of a CronJob with other labels", "app: evil", "x", "batch/v1 Job nightly-1", "pod/ns/p"},
		{"of another kind with pods", "app: x", "x", "apps.kruise.io/v1alpha1 CloneSet clones", "cloneset.apps.kruise.io/ns/clones"},
		{"of a kind without pods", "app: x", "x", "v1 ConfigMap settings", "pod/ns/p"},
		{"of a workload that is not declared", "app: evil", "evil", "apps/v1 StatefulSet other", "statefulset.apps/ns/other"},
		{"of nobody", "app: x", "x", "", "pod/ns/p"},
	} {
		text := "{metadata: {name: p, namespace: ns, labels: {" + tt.labels + "}}, spec: {serviceAccountName: '" + tt.account + "'}}"
		tree := manifesttest.Tree(t, text)
		if f := strings.Fields(tt.owner); len(f) == 3 {
			tree["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"apiVersion": f[0], "kind": f[1], "name": f[2], "controller": true}}
		}
		raw, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		var p ownedPod
		if err := json.Unmarshal(raw, &p); err != nil {
			t.Fatal(err)
		}
		if have := a.owner(&p).String(); have != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, have, tt.want)
		}
	}
	if d := in.declared()(manifest.Pod.ID("alone", "p")); d == nil || d.account != "alone/x" {
		t.Errorf("a declared pod: %v", d)
	}
}
