package validate

import (
	"encoding/json"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// No schema and no object causes a panic or an unbounded text.
func FuzzVerdicts(f *testing.F) {
	for _, c := range cases {
		d := definition(f, c.name, c.schema, c.root, c.version)
		schema := d["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)["schema"].(map[string]any)["openAPIV3Schema"]
		for _, s := range c.steps {
			f.Add(text(f, schema), text(f, s.tree(f, group(c.name))), text(f, c.steps[0].tree(f, group(c.name))), false)
		}
		f.Add(text(f, schema), `{}`, `[]`, true)
	}
	f.Add(`{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-validations":[{"rule":"self.matches('(')"}]}}}`, `{"spec":{}}`, `{}`, true)
	f.Add(`{"$ref":"#/a","type":"object"}`, `null`, `1`, false)
	f.Fuzz(func(t *testing.T, schema, object, before string, composite bool) {
		var s, o, b map[string]any
		for text, into := range map[string]*map[string]any{schema: &s, object: &o, before: &b} {
			if utiljson.Unmarshal([]byte(text), into) != nil {
				return
			}
		}
		d := definition(t, "fuzz", `{type: object}`, "", "")
		version := d["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		version["schema"] = map[string]any{"openAPIV3Schema": s}
		if composite {
			d["apiVersion"], d["kind"] = "apiextensions.crossplane.io/v1", "CompositeResourceDefinition"
			version["referenceable"] = true
		}
		typ, err := Compile(d, "Widget", "v1")
		if err != nil {
			return
		}
		for _, err := range []error{typ.Create(t.Context(), o), typ.Update(t.Context(), b, o), typ.Succeed(t.Context(), b, o)} {
			if err != nil && len(err.Error()) > (MostCauses+1)*(longestCause+50) {
				t.Errorf("%d bytes: %v", len(err.Error()), err)
			}
		}
	})
}

func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
