package conversion_test

import (
	"fmt"

	"gitopsd.dev/render/conversion"
)

// One field moves, and one that the other version lacks is kept.
func ExampleSet_Convert() {
	schema := func(properties map[string]any) map[string]any {
		return map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
			"spec": map[string]any{"type": "object", "properties": properties}}}}
	}
	text := map[string]any{"type": "string"}
	crd := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.io"},
		"spec": map[string]any{
			"group": "example.io", "names": map[string]any{"kind": "Widget", "plural": "widgets"},
			"versions": []any{
				map[string]any{"name": "v1", "schema": schema(map[string]any{"firstName": text, "note": text})},
				map[string]any{"name": "v2", "schema": schema(map[string]any{"name": map[string]any{"type": "object", "properties": map[string]any{"first": text}}})},
			},
		},
	}
	rules := map[string]any{
		"apiVersion": "apis.kcp.dev/v1alpha1", "kind": "APIConversionRules",
		"metadata": map[string]any{"name": "widgets.example.io"},
		"spec": map[string]any{"conversions": []any{
			map[string]any{"from": "v1", "to": "v2", "preserve": []any{"spec.note"},
				"rules": []any{map[string]any{"from": "v1.spec.firstName", "to": "spec.name.first"}}},
			map[string]any{"from": "v2", "to": "v1",
				"rules": []any{map[string]any{"from": "v2.spec.name.first", "to": "spec.firstName"}}},
		}},
	}
	set, err := conversion.Compile(crd, []conversion.Document{{Tree: rules}})
	if err != nil {
		fmt.Println(err)
		return
	}
	object, err := conversion.Decode([]byte(`{"apiVersion":"example.io/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"firstName":"bob","note":"n"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	v2, report, err := set.Convert(object, "v2")
	fmt.Println(v2["spec"], report.Stashed[0].Path, err)
	v1, _, err := set.Convert(v2, "v1")
	fmt.Println(v1["spec"], err)
	// Output:
	// map[name:map[first:bob]] spec.note <nil>
	// map[firstName:bob note:n] <nil>
}
