package bundle

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

func example(t testing.TB) (definition map[string]any, documents []conversion.Document, set *conversion.Set) {
	t.Helper()
	read := func(name string) map[string]any {
		text, err := os.ReadFile("../../../examples/conversion/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return manifesttest.Tree(t, string(text))
	}
	definition = read("crd.yaml")
	documents = []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 7}, Tree: read("rules.yaml")}}
	set, err := conversion.Compile(definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	return definition, documents, set
}

// A set read from its bundle has the same digest.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	definition, documents, set := example(t)
	o, err := Object(set, definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	if o.ID() != ID(set.Name(), set.Digest()) || o.Label(manifest.ConversionLabel) != "true" {
		t.Errorf("the ConfigMap is %s, labels %v", o.ID(), o.Labels())
	}
	again, err := Read(o.Tree())
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != set.Digest() || again.Name() != set.Name() {
		t.Errorf("%s %s, want %s %s", again.Name(), again.Digest(), set.Name(), set.Digest())
	}
}

// The origin of rules, and parts of a definition that do not matter to conversions, do not
// change the bundle.
func TestOnlyWhatMatters(t *testing.T) {
	t.Parallel()
	definition, documents, set := example(t)
	first, err := Pack(set, definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	other, moved, _ := example(t)
	moved[0].Origin = manifest.Origin{File: "elsewhere.yaml", Line: 1}
	manifest.Mapping(moved[0].Tree, "metadata")["labels"] = map[string]any{"team": "a"}
	manifest.Mapping(other, "metadata")["annotations"] = map[string]any{"note": "changed"}
	for _, v := range manifest.List(other, "spec", "versions") {
		v.(map[string]any)["served"] = false
	}
	changed, err := conversion.Compile(other, moved)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Pack(changed, other, moved)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("the bundles differ")
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 240) + ".example.io"
	for _, crd := range []string{"widgets.example.io", long} {
		id := ID(crd, "h1:AAAA")
		if len(id.Name) > 253 || !strings.HasPrefix(id.Name, Prefix) || id == ID(crd, "h1:AAAB") {
			t.Errorf("%s: %s", crd, id)
		}
	}
	if ID(long+"a", "h1:AAAA") == ID(long+"b", "h1:AAAA") {
		t.Error("two long names give one ConfigMap")
	}
}

func pressed(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text)) // a Buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

// Errors explain the fault without quoting the data.
func TestGarbage(t *testing.T) {
	t.Parallel()
	definition, documents, set := example(t)
	whole, err := Pack(set, definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		data []byte
		want string
	}{
		{"nothing", nil, "has no binaryData"},
		{"text", []byte("secret"), "not compressed by gzip"},
		{"cut", whole[:len(whole)/2], "cut short"},
		{"no JSON", pressed("secret"), "is not a JSON object"},
		{"another format", pressed(`{"format":2}`), "its format is not 1"},
		{"empty", pressed(`{"format":1}`), "lacks the definition or the rules"},
		{"rules of another kind", pressed(`{"format":1,"definition":{"a":1},"rules":["secret"]}`), "rules.0 is not a mapping"},
		{"a definition without versions", pressed(`{"format":1,"definition":{"metadata":{"name":"x.y"}},"rules":[{}]}`), "has no versions"},
		{"too much", pressed(strings.Repeat(" ", maxUnpacked+1)), "more than 16 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Read(map[string]any{"binaryData": map[string]any{dataKey: base64.StdEncoding.EncodeToString(tt.data)}})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v; want %q", err, tt.want)
			}
		})
	}
}

// If the rules do not fit into a ConfigMap, the error advises to shorten the descriptions.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	definition, documents, set := example(t)
	noise := make([]byte, 2<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(noise) // never fails
	version := manifest.List(definition, "spec", "versions")[0].(map[string]any)
	manifest.Mapping(version, "schema", "openAPIV3Schema")["description"] = base64.StdEncoding.EncodeToString(noise)
	if _, err := Pack(set, definition, documents); err == nil || !strings.Contains(err.Error(), "shorten the descriptions") {
		t.Errorf("%v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	definition, documents, set := example(f)
	whole, err := Pack(set, definition, documents)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(pressed(`{"format":1,"definition":{"metadata":{"name":"x.y"}},"rules":[{"kind":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		definition, documents, err := Unpack(data)
		if err == nil && (len(definition) == 0 || len(documents) == 0) {
			t.Error("no error and nothing read")
		}
	})
}

// Pack refuses data that Unpack would refuse.
func TestPackBounded(t *testing.T) {
	t.Parallel()
	_, _, set := example(t)
	rules := map[string]any{"spec": map[string]any{"a": strings.Repeat("a", maxUnpacked)}}
	if _, err := Pack(set, map[string]any{}, []conversion.Document{{Tree: rules}}); err == nil || !strings.Contains(err.Error(), "have 16 MiB, and the server reads 16 MiB") {
		t.Errorf("error %v", err)
	}
}

// A version that no rule names, since its schema is that of the hub, is served, too.
func TestUnnamedVersion(t *testing.T) {
	definition := manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.io}
spec:
  group: example.io
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {title: {type: string, maxLength: 20}}}}}}}
  - {name: v2beta1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string, maxLength: 20}}}}}}}
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string, maxLength: 20}}}}}}}
`)
	documents := []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 3}, Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: widgets.example.io}
spec:
  hub: v2
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.spec.title, to: spec.name}]}
  - {from: v2, to: v1, rules: [{from: v2.spec.name, to: spec.title}]}
`)}}
	set, err := conversion.Compile(definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	o, err := Object(set, definition, documents)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Read(o.Tree())
	if err != nil {
		t.Fatal(err)
	}
	if again.Digest() != set.Digest() {
		t.Errorf("the server has versions %v by %s, the definition names %v by %s", again.Versions(), again.Digest(), set.Versions(), set.Digest())
	}
}
