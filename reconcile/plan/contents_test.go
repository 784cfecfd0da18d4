package plan_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// A container with objects that stay is kept, whoever owns them.
func TestContents(t *testing.T) {
	t.Parallel()
	const (
		ns     = "{apiVersion: v1, kind: Namespace, metadata: {name: ns}}\n---\n"
		crd    = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: ws.e.org, labels: {gitopsd.dev/package: p}}, spec: {group: e.org, names: {kind: W}}}\n---\n"
		xrds   = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: compositeresourcedefinitions.apiextensions.crossplane.io}}\n---\n"
		xrd    = "{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: xs.e.org}}\n---\n"
		run    = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: ns, labels: {gitopsd.dev/package: p}}}\n---\n"
		other  = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: q, namespace: ns, labels: {gitopsd.dev/package: q}}}\n---\n"
		more   = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: vs.e.org, labels: {gitopsd.dev/package: p}}, spec: {group: e.org, names: {kind: V}}}\n---\n"
		role   = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: p, labels: {gitopsd.dev/package: p}}}\n---\n"
		parent = "{apiVersion: e.org/v1, kind: W, metadata: {name: mine}}\n---\n"
		rest   = "{apiVersion: v1, kind: ServiceAccount, metadata: {name: rest, namespace: other}}\n---\n"
		pruned = "prune customresourcedefinition.apiextensions.k8s.io/ws.e.org"
		with   = `, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`
		held   = "held customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: it holds "
		need   = ` kept: objects of customresourcedefinition.apiextensions.k8s.io/ws.e.org may need it; remove them, or annotate their definition with gitopsd.dev/allow-prune: "true"`
	)
	id := func(kind, name string) manifest.ID { return manifest.ID{Group: "e.org", Kind: kind, Name: name} }
	content := func(name string, owners ...string) plan.Content {
		return plan.Content{ID: id("W", name), UID: "uid-" + name, Owners: owners}
	}
	deployment := manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "ns", Name: "p"}
	def := manifest.ID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "ws.e.org"}
	for _, tt := range []struct {
		name, desired, live string
		contents            map[manifest.ID][]plan.Content
		unknown             map[manifest.ID]string
		change              func(*metav1.ObjectMeta)
		want                string
		passes              bool // what is held may go by itself
	}{
		{name: "owned by what stays", live: crd, contents: map[manifest.ID][]plan.Content{def: {content("theirs", "elsewhere")}},
			want: held + "w.e.org/theirs" + with},
		{name: "owned by what goes", live: crd + parent, contents: map[manifest.ID][]plan.Content{def: {content("mine"), content("its", "uid-mine")}},
			want: "prune w.e.org/mine\n" + pruned},
		{name: "a chain to what goes", live: crd + parent,
			contents: map[manifest.ID][]plan.Content{def: {content("its-own", "uid-its"), content("its", "uid-mine"), content("mine")}},
			want:     "prune w.e.org/mine\n" + pruned},
		{name: "a chain to what stays", live: crd, contents: map[manifest.ID][]plan.Content{def: {content("its-own", "uid-theirs"), content("theirs", "elsewhere")}},
			want: held + "w.e.org/theirs" + with},
		{name: "two owners", live: crd + parent, contents: map[manifest.ID][]plan.Content{def: {content("mine"), content("both", "uid-mine", "elsewhere")}},
			want: "prune w.e.org/mine\n" + held + "w.e.org/both" + with},
		{name: "an owner of a later life", live: crd + parent, contents: map[manifest.ID][]plan.Content{def: {content("mine"), content("old", "uid-mine-before")}},
			want: "prune w.e.org/mine\n" + held + "w.e.org/old" + with},
		{name: "owning each other", live: crd, contents: map[manifest.ID][]plan.Content{def: {content("a", "uid-b"), content("b", "uid-a"), content("c")}},
			want: held + "w.e.org/c" + with},
		{name: "what is held is held by what holds it", live: xrds + xrd,
			contents: map[manifest.ID][]plan.Content{
				{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "compositeresourcedefinitions.apiextensions.crossplane.io"}: {
					{ID: manifest.ID{Group: "apiextensions.crossplane.io", Kind: "CompositeResourceDefinition", Name: "xs.e.org"}, UID: "uid-xs.e.org"},
				},
				{Group: "apiextensions.crossplane.io", Kind: "CompositeResourceDefinition", Name: "xs.e.org"}: {{ID: id("X", "theirs"), UID: "1"}},
			},
			want: "held compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org kept: it holds x.e.org/theirs" + with + "\n" +
				"held customresourcedefinition.apiextensions.k8s.io/compositeresourcedefinitions.apiextensions.crossplane.io kept: it holds compositeresourcedefinition.apiextensions.crossplane.io/xs.e.org, which must go first; the reason given there says what that needs"},
		{name: "wanted, whatever is allowed", desired: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ns}}\n---\n", live: ns,
			contents: map[manifest.ID][]plan.Content{{Kind: "Namespace", Name: "ns"}: {
				{ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "a"}, UID: "1"}, {ID: manifest.ID{Kind: "ConfigMap", Namespace: "ns", Name: "theirs"}, UID: "2"}}},
			change: func(m *metav1.ObjectMeta) { m.Annotations[manifest.AllowPruneAnnotation] = "true" },
			want:   "create configmap/ns/a\nheld namespace/ns kept: it holds configmap/ns/a (declared in test.yaml:1), which is wanted; remove it too"},
		{name: "others', which is allowed", live: crd, contents: map[manifest.ID][]plan.Content{def: {content("theirs")}},
			change: func(m *metav1.ObjectMeta) { m.Annotations[manifest.AllowPruneAnnotation] = "true" }, want: pruned},
		{name: "its owner's deletion leaves it behind", live: crd + parent, contents: map[manifest.ID][]plan.Content{def: {content("its", "uid-mine")}},
			change: func(m *metav1.ObjectMeta) {
				if m.Name == "mine" {
					m.DeletionTimestamp, m.Finalizers = &metav1.Time{}, []string{"orphan"}
				}
			},
			want: "wait w.e.org/mine it is being deleted, held by finalizer orphan\n" + held + "w.e.org/its" + with},
		{name: "on its way, and its controller with it", live: crd + run + other,
			contents: map[manifest.ID][]plan.Content{def: {{ID: id("W", "theirs"), UID: "1", Deleting: "is being deleted, held by finalizer e.org/clean"}}},
			want: "held deployment.apps/ns/p kept: w.e.org/theirs (is being deleted, held by finalizer e.org/clean) needs it until it is gone\n" +
				"prune deployment.apps/ns/q\n" + held + "w.e.org/theirs (is being deleted, held by finalizer e.org/clean)" + with, passes: true},
		{name: "its package leaves, and stays with it", live: crd + more + run + role + other + ns,
			contents: map[manifest.ID][]plan.Content{def: {content("theirs")}, {Kind: "Namespace", Name: "ns"}: {{ID: deployment, UID: "uid-p"}}},
			want: "held deployment.apps/ns/p" + need + "\nprune deployment.apps/ns/q\nheld clusterrole.rbac.authorization.k8s.io/p" + need +
				"\nheld customresourcedefinition.apiextensions.k8s.io/vs.e.org" + need + "\n" + held + "w.e.org/theirs" + with +
				"\nheld namespace/ns kept: it holds deployment.apps/ns/p, which must go first; the reason given there says what that needs"},
		{name: "its package leaves, and what it holds is unknown", live: crd + run, unknown: map[manifest.ID]string{def: "forbidden"}, passes: true,
			want: "held deployment.apps/ns/p" + need + "\nheld customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: its contents are not known: forbidden; to prune it all the same, annotate it with gitopsd.dev/allow-prune: \"true\""},
		{name: "its package stays without it", desired: run, live: crd + run + role, contents: map[manifest.ID][]plan.Content{def: {content("theirs")}},
			want: "unchanged deployment.apps/ns/p\nprune clusterrole.rbac.authorization.k8s.io/p\nheld customresourcedefinition.apiextensions.k8s.io/ws.e.org kept: package p does not have it any more, but it holds w.e.org/theirs, which would be deleted with it; delete these, or annotate it with gitopsd.dev/allow-prune: \"true\""},
		{name: "its package leaves with what it holds", live: crd + run + parent, contents: map[manifest.ID][]plan.Content{def: {content("mine")}},
			want: "prune w.e.org/mine\nprune deployment.apps/ns/p\n" + pruned},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := live(t, tt.live+rest, tt.change)
			l.Contents, l.ContentsUnknown = tt.contents, tt.unknown
			p := plan.Compute("prod", manifesttest.Set(t, tt.desired+rest), l, inventory, plan.Options{})
			for i := range p.Steps {
				if s := &p.Steps[i]; s.Action == plan.Held && s.Lasts() == tt.passes {
					t.Errorf("%s lasts: %t", s.ID, s.Lasts())
				}
			}
			have := steps(p)
			want := "unchanged serviceaccount/other/rest\n" + tt.want + "\n"
			if strings.HasPrefix(tt.want, "create configmap") {
				create, then, _ := strings.Cut(tt.want, "\n")
				want = create + "\nunchanged serviceaccount/other/rest\n" + then + "\n"
			}
			if have != want {
				t.Errorf("have\n%s\nwant\n%s", have, want)
			}
		})
	}
}

// An object that holds others is not replaced, whatever its annotation says.
func TestReplaceable(t *testing.T) {
	t.Parallel()
	annotated := "metadata: {name: a, annotations: {gitopsd.dev/replace: 'true'}}}"
	for _, tt := range []struct {
		object string
		want   bool
		advice string
	}{
		{"{apiVersion: v1, kind: ConfigMap, " + annotated, true, `to have it deleted and created anew, annotate it with gitopsd.dev/replace: "true"`},
		{"{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, " + annotated, false, "gitopsd replaces nothing that holds other objects: publish a new kind, or delete this one by hand, with its objects"},
		{"{apiVersion: v1, kind: Namespace, " + annotated, false, "gitopsd replaces nothing that holds other objects: declare another one, or delete this one by hand, with what it holds"},
	} {
		o := manifesttest.Set(t, tt.object).All()[0]
		s := plan.Step{ID: o.ID(), Object: o}
		if have, advice := s.Replaceable(), plan.Anew(s.ID); have != tt.want || advice != tt.advice {
			t.Errorf("%s: %t, %q", s.ID, have, advice)
		}
	}
}
