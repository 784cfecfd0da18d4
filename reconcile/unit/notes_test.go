package unit

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
)

// An annotation that does nothing where it is, or as it is, is noted.
func TestMisplaced(t *testing.T) {
	t.Parallel()
	note := func(text string) []string {
		o, err := manifest.New(manifesttest.Tree(t, text), manifest.Origin{File: "crd.yaml", Line: 3})
		if err != nil {
			t.Fatal(err)
		}
		set, _ := manifest.NewSet([]*manifest.Object{o})
		return Notes(&desired.Unit{Objects: set}, nil, EtcdUnknown)
	}
	const crd = "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.acme.example, annotations: {gitopsd.dev/migrate-storage: '%s'}}}"
	for text, want := range map[string]string{
		strings.Replace(crd, "%s", "true", 1): "",
		strings.Replace(crd, "%s", "yes", 1):  `customresourcedefinition.apiextensions.k8s.io/widgets.acme.example: gitopsd.dev/migrate-storage: "yes" does nothing; it has to be "true" (crd.yaml:3)`,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: d, annotations: {gitopsd.dev/migrate-storage: 'true'}}}": "configmap/d/c: gitopsd.dev/migrate-storage does nothing here; it belongs on a CustomResourceDefinition (crd.yaml:3)",
	} {
		if notes := note(text); strings.Join(notes, "\n") != want {
			t.Errorf("%s: notes %q, want %q", text, notes, want)
		}
	}
}

// The notes on a Composition depend on what else may define its kinds.
func TestNotes(t *testing.T) {
	unit := func() *desired.Unit {
		var objects []*manifest.Object
		for _, text := range []string{
			"{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: databases.acme.example}, spec: {group: acme.example, names: {kind: Database, plural: databases}, versions: [{name: v1, served: true, referenceable: true}]}}",
			`{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: small}, spec: {compositeTypeRef: {apiVersion: acme.example/v1, kind: Database}, mode: Resources, resources: [
			 {base: {apiVersion: acme.example/v2, kind: Database}}, {base: {apiVersion: acme.example/v1, kind: Queue}}]}}`,
		} {
			o, err := manifest.New(manifesttest.Tree(t, strings.ReplaceAll(text, "\t", "")), manifest.Origin{File: "db.yaml"})
			if err != nil {
				t.Fatal(err)
			}
			objects = append(objects, o)
		}
		set, _ := manifest.NewSet(objects)
		return &desired.Unit{Objects: set}
	}
	const version, kind = "Database.acme.example is not served in version v2", "no package or manifest of the cluster defines Queue.acme.example"
	queue := []render.PackageType{{Definition: manifest.MRD.ID("", "queues.acme.example"), Group: "acme.example", Kind: "Queue", Package: "queues"}}
	for _, tt := range []struct {
		name   string
		change func(*desired.Unit)
		serves func(string, string) bool
		want   []string
	}{
		{name: "without a cluster", want: []string{version, kind}},
		{name: "the cluster has it", serves: func(string, string) bool { return true }, want: []string{version}},
		{name: "the cluster has it not", serves: func(string, string) bool { return false }, want: []string{version, kind}},
		{name: "Crossplane installs it", change: func(u *desired.Unit) { u.Delegated = queue }, want: []string{version}},
		{name: "it is not activated", change: func(u *desired.Unit) { u.Inactive = queue }, want: []string{version, "name queues.acme.example in spec.activate of a ManagedResourceActivationPolicy (package queues is installed by type)"}},
		{name: "a package could not be read", change: func(u *desired.Unit) { u.Incomplete = []string{"queues"} }, want: []string{version}},
		{name: "the cluster is emptied", change: func(u *desired.Unit) { u.Remove = true }},
		{name: "it could not be rendered", change: func(u *desired.Unit) { u.Objects = nil }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := unit()
			if tt.change != nil {
				tt.change(u)
			}
			notes := Notes(u, tt.serves, EtcdUnknown)
			if !slices.EqualFunc(notes, tt.want, strings.Contains) {
				t.Errorf("have\n%s\nwant\n%s", strings.Join(notes, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// A need of the daemon for etcd namespaces is noted unless it is known to be met.
func TestEtcdNotes(t *testing.T) {
	const namespace = "{apiVersion: gitopsd.dev/v1alpha1, kind: EtcdNamespace, metadata: {name: a, namespace: b}"
	declared := &desired.Unit{Objects: manifesttest.Set(t, namespace+"}")}
	own := &desired.Unit{Objects: manifesttest.Set(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b}}")}
	none := &desired.Unit{Objects: own.Objects}
	own.Spec.Etcd = &clusters.Etcd{Namespace: "/own/"}
	const unknown = "the daemon must have an etcd, by --etcd-servers or --etcd-embedded; whether it has one is not known here"
	for _, tt := range []struct {
		name string
		want *desired.Unit
		live string // the status of an EtcdNamespace
		note string
	}{
		{"not provisioned yet", declared, "", "1 etcd namespace: " + unknown},
		{"provisioned", declared, "conditions: [{type: Provisioned, status: 'True', reason: Available}]", ""},
		{"provisioned, and not served", declared, "conditions: [{type: Provisioned, status: 'True'}, {type: Ready, status: 'False', reason: NotServed}]", ""},
		{"the etcd is down", declared, "conditions: [{type: Provisioned, status: 'False', reason: EtcdUnavailable}]", "1 etcd namespace: " + unknown},
		{"no etcd", declared, "conditions: [{type: Ready, status: 'False', reason: EtcdMissing}]", "1 etcd namespace: the daemon has no etcd; start it with --etcd-servers or --etcd-embedded"},
		{"garbled", declared, "conditions: [x, {type: 1}]", "1 etcd namespace: " + unknown},
		{"garbled whole", declared, "x", "1 etcd namespace: " + unknown},
		{"the cluster's own", own, "", "spec.etcd.namespace: " + unknown},
		{"nothing that needs it", none, "", ""},
	} {
		live := manifesttest.Tree(t, namespace+", status: {"+tt.live+"}}")
		if notes := strings.Join(Notes(tt.want, nil, daemonEtcd(live)), "\n"); notes != tt.note {
			t.Errorf("%s: %q, want %q", tt.name, notes, tt.note)
		}
	}
}
