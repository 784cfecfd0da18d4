package types

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// stored returns a definition as the API server's Go types change it: decoded, defaulted,
// and converted to the internal version and back. It is nil if the API server cannot
// decode the definition, or refuses a keyword.
func stored(t *testing.T, scheme *runtime.Scheme, tree map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	object, _, err := serializer.NewCodecFactory(scheme).UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil
	}
	scheme.Default(object)
	internal, err := scheme.ConvertToVersion(object, apiextensions.SchemeGroupVersion)
	if err != nil {
		return nil
	}
	if _, err := structural.NewStructural(internal.(*apiextensions.CustomResourceDefinition).Spec.Validation.OpenAPIV3Schema); err != nil {
		return nil
	}
	external, err := scheme.ConvertToVersion(internal, v1.SchemeGroupVersion)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = json.Marshal(external); err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := utiljson.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// A definition has the same digest before and after the API server stores it. This runs
// the API server's code on fuzzed definitions; TestLive uses a real API server.
func FuzzNormalised(f *testing.F) {
	for _, seed := range []string{
		`{type: object, properties: {a: {type: string, default: null, enum: [null, "", 1.0, 1e20], maximum: 9223372036854775807}}}`,
		`{type: object, required: [], properties: {}, allOf: [null, {not: {}}], items: {}, additionalProperties: {}, nullable: false}`,
		`{type: object, default: {a: [1.50, -0.0, 1e-9, 9223372036854775807, 18446744073709551616, 1234567890123456789.0, "\u007f"]}}`,
		`{type: object, x-kubernetes-validations: [{rule: "", message: "", optionalOldSelf: false, reason: ""}], dependencies: {}}`,
		`{x-kubernetes-preserve-unknown-fields: false, x-kubernetes-list-type: "", minLength: 0, items: [], unknown: {a: b}}`,
		`{definitions: {}, patternProperties: null, $ref: "", id: "", additionalItems: null, externalDocs: {url: x}, example: {a: b}}`,
	} {
		f.Add(seed)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	f.Fuzz(func(t *testing.T, schema string) {
		docs, err := sources.DecodeYAML(strings.NewReader(schema), sources.Limits{Bytes: 1 << 14, Nodes: 1 << 10, Depth: 50})
		if err != nil || len(docs) != 1 {
			return
		}
		tree := manifesttest.Documents(t, crd("{}"))[0].Tree
		version := tree["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		version["schema"].(map[string]any)["openAPIV3Schema"] = docs[0].Tree
		server := stored(t, scheme, tree)
		if server == nil {
			return
		}
		want := forms(t, server)[0]
		if have := forms(t, tree)[0]; have != want {
			t.Errorf("published:\n%s\nlive:\n%s", have, want)
		}
	})
}
