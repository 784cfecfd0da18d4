package managed

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

func object(t testing.TB, text string) *manifest.Object {
	t.Helper()
	return manifesttest.Object(t, "apiVersion: apps/v1\nkind: Deployment\n"+text)
}

// entries are "manager: fields", one a line; a manager with a slash has a
// subresource, one with a plus applies.
func entries(lines ...string) *metav1.ObjectMeta {
	m := &metav1.ObjectMeta{}
	for _, line := range lines {
		manager, fields, _ := strings.Cut(line, ": ")
		manager, subresource, _ := strings.Cut(manager, "/")
		e := metav1.ManagedFieldsEntry{Operation: metav1.ManagedFieldsOperationUpdate, Subresource: subresource, FieldsV1: metav1.NewFieldsV1(fields)}
		if name, applies := strings.CutPrefix(manager, "+"); applies {
			manager, e.Operation = name, metav1.ManagedFieldsOperationApply
		}
		e.Manager = manager
		m.ManagedFields = append(m.ManagedFields, e)
	}
	return m
}

// Our own fields, and fields of others in a pod template.
func TestOwnsAndForeign(t *testing.T) {
	t.Parallel()
	const ours = `+gitopsd: {"f:metadata":{"f:annotations":{"f:a":{}}},"f:spec":{"f:template":{"f:spec":{"f:x":{}}}}}`
	for _, tt := range []struct {
		name          string
		entries       []string
		owns, foreign bool
	}{
		{name: "nothing"},
		{name: "all ours", entries: []string{ours}, owns: true},
		{name: "another's status", entries: []string{ours, `kube-controller-manager/status: {"f:status":{}}`}, owns: true},
		{name: "another field", entries: []string{ours, `kubectl-scale/scale: {"f:spec":{"f:replicas":{}}}`}, owns: true},
		{name: "a restart", entries: []string{ours, `kubectl-rollout: {"f:spec":{"f:template":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`}, owns: true},
		{name: "another's variable", entries: []string{ours, `kubectl-set: {"f:spec":{"f:template":{"f:spec":{"f:y":{}}}}}`}, owns: true, foreign: true},
		{name: "record of an adoption", entries: []string{`kubectl-annotate: {"f:metadata":{"f:annotations":{"f:gitopsd.dev/adopted":{}}}}`}},
		{name: "malformed", entries: []string{ours, `x: {"x":1}`}, owns: true, foreign: true},
		{name: "another's record", entries: []string{`+gitopsd: {"f:spec":{}}`, `kubectl-annotate: {"f:metadata":{"f:annotations":{"f:a":{}}}}`}},
		{name: "admission", entries: []string{ours, `gitopsd: {"f:spec":{"f:template":{"f:spec":{"f:y":{}}}}}`}, owns: true},
	} {
		m := entries(tt.entries...)
		if owns, foreign := Owns(m, "metadata", "annotations", "a"), Foreign(m, "spec", "template"); owns != tt.owns || foreign != tt.foreign {
			t.Errorf("%s: owns %v, foreign %v", tt.name, owns, foreign)
		}
	}
}

func TestLost(t *testing.T) {
	t.Parallel()
	const meta = "metadata: {name: a, namespace: b}\n"
	for _, tt := range []struct {
		name, object string
		entries      []string
		want         string // what Blame says; "" when nothing is lost
	}{
		{name: "all ours", object: meta + "spec: {a: 1, b: {c: x}}", entries: []string{`+gitopsd: {"f:spec":{"f:a":{},"f:b":{"f:c":{}}}}`}},
		{name: "atomic", object: meta + "spec: {b: {c: x}, l: [1, 2]}", entries: []string{`+gitopsd: {"f:spec":{"f:b":{},"f:l":{}}}`}},
		{name: "null", object: meta + "spec: {a: null}", entries: []string{`+gitopsd: {"f:spec":{}}`}},
		{name: "status", object: meta + "status: {a: 1}", entries: []string{`+gitopsd: {}`}},
		{name: "metadata", object: "metadata: {name: a, labels: {x: 'y'}, creationTimestamp: null}", entries: []string{`+gitopsd: {"f:metadata":{"f:labels":{"f:x":{}}}}`}},
		{name: "no entry", object: meta, entries: []string{"gitopsd: {}", "+other: {}", "+gitopsd/status: {}"}, want: "the record of our fields is gone from metadata.managedFields"},
		{name: "malformed", object: meta, entries: []string{`+gitopsd: {"x":1}`}, want: "the record of our fields is gone from metadata.managedFields"},
		{
			name: "taken", object: meta + "spec: {a: 1, b: 2}", want: "spec.a changed by kubectl-edit",
			entries: []string{`+gitopsd: {"f:spec":{"f:b":{}}}`, `kubectl-edit: {"f:spec":{"f:a":{}}}`, `x/status: {"f:spec":{"f:a":{}}}`},
		},
		{
			name: "taken as a whole", object: meta + "spec: {a: {b: 1}}", want: "spec.a changed by other",
			entries: []string{`+gitopsd: {"f:spec":{"f:z":{}}}`, `+other: {"f:spec":{"f:a":{"f:c":{}}}}`},
		},
		{name: "removed", object: meta + "spec: {a: 1, b: 2}", entries: []string{`+gitopsd: {"f:spec":{"f:b":{}}}`}, want: "spec.a removed"},
		{
			name: "many", object: meta + "spec: {a: 1, b: 2, c: 3, d: 4, e: 5}", want: "spec.a, spec.b, spec.c and 1 more removed; spec.e changed by x",
			entries: []string{`+gitopsd: {"f:spec":{"f:z":{}}}`, `x: {"f:spec":{"f:e":{}}}`},
		},
		{
			name: "list elements", object: meta + "spec: {l: [{name: x1, v: 1}, {name: x2}]}",
			entries: []string{`+gitopsd: {"f:spec":{"f:l":{"k:{\"name\":\"x1\"}":{".":{},"f:name":{},"f:v":{}},"k:{\"name\":\"x2\"}":{".":{},"f:name":{}}}}}`},
		},
		{
			name: "field of a list element", object: meta + "spec: {l: [{name: x1, v: 1}]}", want: `spec.l[name=x1].v changed by x`,
			entries: []string{`+gitopsd: {"f:spec":{"f:l":{"k:{\"name\":\"x1\"}":{".":{},"f:name":{}}}}}`, `x: {"f:spec":{"f:l":{"k:{\"name\":\"x1\"}":{"f:v":{}}}}}`},
		},
		{
			name: "element removed", object: meta + "spec: {l: [{name: x1}, {name: x2}]}", want: "spec.l removed",
			entries: []string{`+gitopsd: {"f:spec":{"f:l":{"k:{\"name\":\"x1\"}":{".":{},"f:name":{}}}}}`},
		},
		{
			name: "defaulted keys", object: meta + "spec: {l: [{port: 53}, {port: 53, protocol: UDP}]}",
			entries: []string{`+gitopsd: {"f:spec":{"f:l":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`},
		},
		{
			name: "set", object: "metadata: {name: a, finalizers: [f1, f2]}", want: "metadata.finalizers removed",
			entries: []string{`+gitopsd: {"f:metadata":{"f:finalizers":{"v:\"f1\"":{}}}}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := entries(tt.entries...)
			lost := Find(object(t, tt.object), m)
			have := ""
			if len(lost) > 0 {
				have = lost.Blame(m)
			}
			if have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}

func TestEdits(t *testing.T) {
	t.Parallel()
	const text = "metadata: {name: a}\nspec: {a: 1, l: [{name: x, v: 1}]}"
	const ours = `+gitopsd: {"f:metadata":{"f:annotations":{"f:gitopsd.dev/applied":{}}},"f:spec":{"f:a":{},"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{},"f:v":{}}}}}`
	for _, tt := range []struct {
		name, kind string
		entries    []string
		want       string
	}{
		{name: "controllers", entries: []string{`cainjector: {"f:spec":{"f:b":{}}}`, `+argocd-controller: {"f:spec":{"f:c":{}}}`}},
		{name: "field", entries: []string{`kubectl-patch: {"f:spec":{"f:hostNetwork":{}}}`}, want: "spec.hostNetwork added by kubectl-patch"},
		{
			name: "item", want: `spec.l[name=y] added by kubectl-set`,
			entries: []string{`kubectl-set: {"f:spec":{"f:l":{"k:{\"name\":\"y\"}":{".":{},"f:name":{},"f:v":{}}}}}`},
		},
		{
			name: "field of an item", want: `spec.l[name=x].w added by kubectl-edit`,
			entries: []string{`kubectl-edit: {"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{"f:w":{}}}}}`},
		},
		{
			name: "several", want: "spec.b, spec.c, spec.d and 1 more added by k9s; spec.z added by kubectl",
			entries: []string{`k9s: {"f:spec":{"f:b":{},"f:c":{},"f:d":{},"f:e":{}}}`, `+kubectl: {"f:spec":{"f:z":{}}}`},
		},
		{
			name: "annotation", want: "metadata.annotations.x added by kubectl-annotate",
			entries: []string{`kubectl-annotate: {"f:metadata":{"f:annotations":{".":{},"f:x":{}}}}`},
		},
		{name: "lost to kubectl", entries: []string{`kubectl-edit: {"f:spec":{"f:a":{}}}`}},
		{name: "a controller's as well", entries: []string{`kubectl-edit: {"f:spec":{"f:b":{}}}`, `operator: {"f:spec":{"f:b":{}}}`}},
		{name: "scaled", entries: []string{`kubectl/scale: {"f:spec":{"f:replicas":{}}}`}},
		{name: "cordoned", kind: "apiVersion: v1\nkind: Node\n", entries: []string{`kubectl: {"f:spec":{"f:unschedulable":{}}}`}},
		{name: "unknown", entries: []string{`before-first-apply: {"f:spec":{"f:clusterIP":{}}}`}},
		{name: "malformed", entries: []string{`kubectl-edit: {"x":1}`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kind := cmp.Or(tt.kind, "apiVersion: apps/v1\nkind: Deployment\n")
			o := manifesttest.Object(t, kind+text)
			own := ours
			if tt.name == "lost to kubectl" {
				own = strings.Replace(ours, `"f:a":{},`, "", 1)
			}
			have := FindEdits(o, entries(append(tt.entries, own)...))
			if have.Text() != tt.want || have.Shared() {
				t.Errorf("have %q, shared: %t, want %q", have.Text(), have.Shared(), tt.want)
			}
		})
	}
	o := manifesttest.Object(t, "apiVersion: apps/v1\nkind: Deployment\n"+text)
	if e := FindEdits(o, entries(ours, `+kubectl: {"f:spec":{"f:a":{}}}`)); !e.Shared() || e.Text() != "" {
		t.Errorf("what kubectl applied as well is %+v", e)
	}
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		entries []string
		from    Owners
		want    string // managers and our fields; "" for nothing to take
	}{
		{name: "controllers keep theirs", entries: []string{`kube-controller-manager: {"f:spec":{"f:a":{}}}`, `cainjector: {"f:spec":{"f:b":{}}}`}},
		{name: "kubectl", entries: []string{`kubectl-client-side-apply: {"f:spec":{"f:a":{}}}`}, want: `gitopsd {"f:spec":{"f:a":{}}}`},
		{
			name: "with ours", entries: []string{`+gitopsd: {"f:spec":{"f:b":{}}}`, `+helm: {"f:spec":{"f:a":{}}}`, `hpa/scale: {"f:spec":{"f:replicas":{}}}`},
			want: `hpa gitopsd {"f:spec":{"f:a":{},"f:b":{}}}`,
		},
		{name: "status", entries: []string{`kubectl/status: {"f:status":{}}`}},
		{
			name: "owner", entries: []string{`some-controller: {"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"1\"}":{}}},"f:spec":{"f:a":{}}}`},
			want: `gitopsd {"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"1\"}":{}}},"f:spec":{"f:a":{}}}`,
		},
		{
			name: "but the record of an adoption", want: `before-first-apply gitopsd {"f:metadata":{"f:annotations":{"f:a":{}}}}`,
			entries: []string{`before-first-apply: {"f:metadata":{"f:annotations":{"f:a":{},"f:gitopsd.dev/adopted":{}}}}`},
		},
		{
			name: "an edit", from: People, want: `helm cainjector gitopsd {"f:spec":{"f:a":{},"f:b":{}}}`,
			entries: []string{`+gitopsd: {"f:spec":{"f:a":{}}}`, `helm: {"f:spec":{"f:c":{}}}`, `kubectl-edit: {"f:spec":{"f:b":{}}}`, `cainjector: {"f:spec":{"f:d":{}}}`},
		},
		{
			name: "people operate", from: People,
			entries: []string{
				`+gitopsd: {"f:spec":{"f:a":{}}}`, `kubectl/scale: {"f:spec":{"f:replicas":{}}}`, `kubectl-argo-rollouts: {"f:spec":{"f:paused":{}}}`,
				`kubectl-rollout: {"f:spec":{"f:template":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`,
				`kubectl-patch: {"f:status":{"f:a":{}}}`, `kubectl-annotate: {"f:metadata":{"f:annotations":{"f:gitopsd.dev/allow-prune":{}}}}`,
			},
		},
		{
			name: "a rollback", from: People, want: `kubectl-rollout gitopsd {"f:spec":{"f:a":{},"f:b":{}}}`,
			entries: []string{
				`+gitopsd: {"f:spec":{"f:a":{}}}`,
				`kubectl-rollout: {"f:spec":{"f:b":{},"f:template":{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/restartedAt":{}}}}}}`,
			},
		},
		{
			name: "what is shared", from: Sharers, want: `kubectl gitopsd {"f:spec":{"f:a":{}}}`,
			entries: []string{`+gitopsd: {"f:spec":{"f:a":{}}}`, `+kubectl: {"f:spec":{"f:a":{},"f:b":{}}}`},
		},
		{
			name: "nobody knows whose", from: People, want: `before-first-apply gitopsd {"f:spec":{"f:a":{},"f:b":{}}}`,
			entries: []string{`+gitopsd: {"f:spec":{"f:a":{},"f:b":{}}}`, `before-first-apply: {"f:spec":{"f:b":{},"f:replicas":{}}}`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			list, err := TakeOver(object(t, "metadata: {name: a}"), entries(tt.entries...), tt.from)
			if err != nil {
				t.Fatal(err)
			}
			var have []string
			for i, e := range list {
				have = append(have, e.Manager)
				if i == len(list)-1 {
					have = append(have, string(e.FieldsV1.GetRawBytes()))
				}
			}
			if strings.Join(have, " ") != tt.want {
				t.Errorf("have %q, want %q", strings.Join(have, " "), tt.want)
			}
		})
	}
	if _, err := TakeOver(object(t, "metadata: {name: a}"), entries(`helm: {"x":1}`), Deployers); err == nil || !strings.Contains(err.Error(), "of helm cannot be read") {
		t.Errorf("error %v", err)
	}
}

func TestWithoutLeftovers(t *testing.T) {
	t.Parallel()
	before := entries(
		`+gitopsd: {"f:spec":{"f:a":{}}}`,
		`+helm: {"f:metadata":{"f:labels":{".":{},"f:h":{}}},"f:spec":{"f:a":{},"f:old":{},"f:l":{"k:{\"name\":\"x1\"}":{".":{},"f:name":{}},"k:{\"name\":\"x2\"}":{".":{},"f:name":{},"f:v":{}}},"f:shared":{}}}`,
		`controller: {"f:spec":{"f:shared":{},"f:theirs":{}}}`,
	)
	applied := entries(`+gitopsd: {"f:spec":{"f:a":{},"f:l":{"k:{\"name\":\"x2\"}":{".":{},"f:name":{}}}}}`)
	have, err := WithoutLeftovers(object(t, "metadata: {name: a}"), before, applied,
		manifesttest.Tree(t, "{metadata: {labels: {h: i}}, spec: {a: 1, old: 2, shared: 3, theirs: 4, l: [{name: x1}, {name: x2, v: 1, w: 2}]}}"), Deployers)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(have)
	const want = `{"metadata":{},"spec":{"a":1,"l":[{"name":"x2","w":2}],"shared":3,"theirs":4}}`
	if err != nil || string(text) != want {
		t.Errorf("have %s, %v\nwant %s", text, err, want)
	}
}

// No answer of an API server causes a panic, and an object whose fields we all own has
// lost none.
func FuzzLost(f *testing.F) {
	f.Add(`{"f:spec":{"f:a":{}}}`, "spec: {a: 1}")
	f.Add(`{"f:spec":{"f:l":{"k:{\"name\":\"x\"}":{".":{},"f:name":{}},"v:1":{},"i:0":{}}}}`, "spec: {l: [{name: x}, 1, [2]]}")
	f.Fuzz(func(t *testing.T, fields, text string) {
		if len(text) > 1000 || len(fields) > 1000 {
			return
		}
		docs, err := sources.DecodeYAML(strings.NewReader("{apiVersion: v1, kind: A, metadata: {name: a}}\n---\n"+text), sources.Limits{Nodes: 1000})
		if err != nil || len(docs) != 2 {
			return
		}
		docs[0].Tree["spec"] = docs[1].Tree
		o, err := manifest.New(docs[0].Tree, manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		m := entries("+gitopsd: "+fields, "helm: "+fields)
		Find(o, m).Blame(m)
		if list, err := TakeOver(o, m, Deployers); err == nil && len(list) > 1 {
			t.Errorf("%d entries", len(list))
		}
		WithoutLeftovers(o, m, m, docs[0].Tree, Deployers)
		edited := entries("+gitopsd: {}", "kubectl-edit: "+fields, "before-first-apply: "+fields)
		text = FindEdits(o, edited).Text()
		if list, err := TakeOver(o, edited, People); err == nil && text != "" && list == nil {
			t.Errorf("%s is not taken over", text)
		}
		if lost := Find(o, entries(`+gitopsd: {"f:spec":{}}`)); len(lost) > 0 {
			t.Errorf("lost %v of an object that is ours as a whole", lost)
		}
	})
}
