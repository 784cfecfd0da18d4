package validate

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
)

// TestDefinition checks definitions that an API server refuses.
func TestDefinition(t *testing.T) {
	t.Parallel()
	const (
		head = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
		meta = "metadata: {name: things.acme.example}\n"
		spec = "spec:\n  group: acme.example\n  scope: Namespaced\n  names: {kind: Thing, plural: things}\n"
		v1   = "  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]\n"
	)
	version := func(schema string) string {
		return head + meta + spec + "  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: " + schema + "}}]\n"
	}
	for _, tt := range []struct{ text, want string }{
		{head + meta + spec + v1, ""},
		{head + meta + spec + v1 + "  conversion: {strategy: Webhook}\n", ""},
		{head + meta + spec + v1 + "  conversion: {strategy: Other}\n", "spec.conversion.strategy: supported values: \"None\", \"Webhook\""},
		{head + meta + spec + v1 + "status: {conditions: [], storedVersions: []}\n", ""},
		{head + "metadata: {name: things.example.org}\n" + spec + v1, "metadata.name: must be spec.names.plural+\".\"+spec.group"},
		{head + meta + spec, "spec.versions: must have exactly one version marked as storage version"},
		{head + meta + spec + v1 + "  colour: red\n", ": unknown field \"spec.colour\""},
		{head + meta + "spec: 3\n", ": cannot unmarshal number into Go struct field CustomResourceDefinition.spec of type v1.CustomResourceDefinitionSpec"},
		{version("{type: object, properties: {spec: {properties: {}}}}"), "spec.versions[0].schema.openAPIV3Schema.properties[spec].type: must not be empty for specified object fields"},
		{version("{type: object, properties: {a: {type: integer, default: x}}}"), "spec.versions[0].schema.openAPIV3Schema.properties[a].default: must be of type integer"},
		{version("{type: object, x-kubernetes-validations: [{rule: 'self.none == 1'}]}"), "spec.versions[0].schema.openAPIV3Schema.x-kubernetes-validations[0].rule: compilation failed: ERROR: <input>:1:5: undefined field 'none' | self.none == 1 | ....^"},
		{head + meta + spec + `  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {a: {type: array}}}}}
`, "spec.versions[1].schema.openAPIV3Schema.properties[a].items: must be specified"},
	} {
		causes, err := Definition(manifesttest.Tree(t, tt.text))
		var texts []string
		for _, c := range causes {
			texts = append(texts, fmt.Sprintf("%s: %s", c.Path, c.Why))
		}
		if have := strings.Join(texts, "; "); err != nil || have != tt.want {
			t.Errorf("have %s, %v, want %s:\n%s", have, err, tt.want, tt.text)
		}
	}
}
