package converter

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/webhook"
)

// set returns compiled rules of a definition with a name.
func set(t *testing.T, name string) *conversion.Set {
	t.Helper()
	tree := manifesttest.Tree(t, strings.ReplaceAll(`
metadata: {name: $NAME.example.io}
spec:
  group: example.io
  names: {kind: A, plural: $NAME}
  versions:
  - {name: v1, schema: {openAPIV3Schema: {type: object, properties: {a: {type: string}}}}}
  - {name: v2, schema: {openAPIV3Schema: {type: object, properties: {b: {type: string}}}}}
`, "$NAME", name))
	rules := manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: a}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.a, to: b}]}
  - {from: v2, to: v1, rules: [{from: v2.b, to: a}]}
`)
	s, err := conversion.Compile(tree, []conversion.Document{{Tree: rules}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The Service selects the pods of the Deployment and refers to a port that they have, and
// every object is a Part.
func TestObjects(t *testing.T) {
	t.Parallel()
	objects, err := Objects(Config{Image: "registry.example.org/gitopsd:v1", Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if !Part(o.ID()) {
			t.Errorf("%s is no part", o.ID())
		}
	}
	for id, want := range map[manifest.ID]bool{
		manifest.Secret.ID("gitopsd-system", "gitopsd-conversion-tls"):                       true,
		manifest.Secret.ID("gitopsd-system", "serving-ca.gitopsd-system.gitopsd-conversion"): true, bundle.ID("a.b", "h1:"): true,
		manifest.Secret.ID("gitopsd-system", "conversion.a"): false, manifest.ConfigMap.ID("default", "conversion.a"): false, manifest.Deployment.ID("gitopsd-system", "other"): false,
	} {
		if Part(id) != want {
			t.Errorf("%s: part %v", id, !want)
		}
	}
	if servers, known := webhook.Servers(objects, Service()); !known || len(servers) != 1 || servers[0].ID() != Workload() {
		t.Errorf("served by %v", servers)
	}
	i := slices.IndexFunc(objects, func(o *manifest.Object) bool { return o.ID() == Workload() })
	if n := manifest.Mapping(objects[i].Tree(), "spec")["replicas"]; n != int64(3) {
		t.Errorf("%v replicas", n)
	}
}

// The arguments of the pods depend on the rules but not on their order, and patches of the
// Deployment stay.
func TestRequire(t *testing.T) {
	t.Parallel()
	objects, err := Objects(Config{Image: "registry.example.org/gitopsd:v1"})
	if err != nil {
		t.Fatal(err)
	}
	deployment := objects[slices.IndexFunc(objects, func(o *manifest.Object) bool { return o.ID() == Workload() })]
	before := deployment.Hash()
	a, b := set(t, "as"), set(t, "bs")
	one, err := Require(deployment, []*conversion.Set{a, b})
	if err != nil {
		t.Fatal(err)
	}
	other, err := Require(deployment, []*conversion.Set{b, a})
	if err != nil {
		t.Fatal(err)
	}
	text := string(one.AppendJSON(nil))
	if one.Hash() != other.Hash() || !strings.Contains(text, `"--require=as.example.io/`) || !strings.Contains(text, `"--require=bs.example.io/`) {
		t.Errorf("%s", text)
	}
	if string(deployment.AppendJSON(nil)) == text || manifesttest.Objects(t, string(deployment.AppendJSON(nil)))[0].Hash() != before {
		t.Error("the Deployment itself was changed")
	}
	bare := manifesttest.Objects(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: gitopsd-conversion, namespace: gitopsd-system}}")[0]
	if _, err := Require(bare, []*conversion.Set{a}); err == nil || !strings.Contains(err.Error(), "has no container gitopsd after spec.patches") {
		t.Errorf("without a container: %v", err)
	}
}
