package conversion

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
)

// widgets is an APIResourceSchema with two versions.
const widgets = `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIResourceSchema
metadata:
  name: rev0002.widgets.example.io
spec:
  group: example.io
  names:
    kind: Widget
    listKind: WidgetList
    plural: widgets
    singular: widget
  scope: Namespaced
  versions:
  - name: v1
    schema:
      description: Widgets do things
      properties:
        apiVersion: {type: string}
        kind: {type: string}
        metadata: {type: object}
        spec:
          properties:
            firstName: {type: string}
            lastName: {type: string}
          type: object
        status:
          properties:
            phase: {type: string}
          type: object
      type: object
    served: true
    storage: false
    subresources:
      status: {}
  - name: v2
    schema:
      description: Widgets do things
      properties:
        apiVersion: {type: string}
        kind: {type: string}
        metadata: {type: object}
        spec:
          type: object
          properties:
            name:
              type: object
              properties:
                first: {type: string}
                last: {type: string}
        status:
          properties:
            phase: {type: string}
          type: object
      type: object
    served: true
    storage: false
    subresources:
      status: {}
`

// TestResourceSchema makes a CRD of a schema, and converts by its rules. The hub is the
// storage version if none is marked.
func TestResourceSchema(t *testing.T) {
	tree := manifesttest.Tree(t, widgets)
	before := text(t, tree)
	definition, err := Definition(tree, "v1")
	if err != nil || !IsResourceSchema(tree) || text(t, tree) != before {
		t.Fatal(err)
	}
	if name := definition["metadata"].(map[string]any)["name"]; name != "widgets.example.io" {
		t.Errorf("the name is %s", name)
	}
	versions := definition["spec"].(map[string]any)["versions"].([]any)
	if versions[0].(map[string]any)["storage"] != true || versions[1].(map[string]any)["storage"] != false {
		t.Errorf("versions: %s", text(t, versions))
	}
	rules := manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata:
  name: rev0002.widgets.example.io
  labels:
    # if we decide to support multiple
    apis.kcp.dev/apiresourceschema: rev0002.widgets.example.io
spec:
  hub: v1
  conversions:
  - version: v2
    fromHub: # v1-to-v2
    - field: spec.name.first
      rule: self.spec.firstName
    - field: spec.name.last
      rule: self.spec.lastName
    toHub: # v2-to-v1
    - field: spec.firstName
      rule: self.spec.name.first
    - field: spec.lastName
      rule: self.spec.name.last
`)
	if !Belongs(rules, "rev0002.widgets.example.io") || Belongs(rules, "rev0001.widgets.example.io") {
		t.Error("the rules belong to another schema")
	}
	s, err := Compile(definition, []Document{{Tree: rules}})
	if err != nil {
		t.Fatal(err)
	}
	out, report := convert(t, s, widget(t, "apiVersion: v1\nspec: {firstName: bob, lastName: ross}\nstatus: {phase: ok}"), "v2")
	want := widget(t, "apiVersion: v2\nspec: {name: {first: bob, last: ross}}\nstatus: {phase: ok}")
	if text(t, out) != text(t, want) || len(report.Stashed) > 0 {
		t.Errorf("have %s", text(t, out))
	}
	if hub := Hub([]Document{{Tree: rules}}); hub != "v1" {
		t.Errorf("the hub is %q", hub)
	}
}

func TestResourceSchemaFaults(t *testing.T) {
	for _, tt := range []struct{ old, replacement, hub, want string }{
		{"kind: Nothing", "", "", "no version has storage: true, and no rules name a hub"},
		{"kind: Nothing", "", "v3", "no version has storage: true, and no rules name a hub"},
		{"storage: false", "storage: true", "v1", "2 versions have storage: true"},
		{"plural: widgets", "plural: ''", "v1", "spec.names.plural or spec.group is missing"},
		{"kind: Widget\n", "short: x\n", "v1", "spec.names.kind is missing"},
		{"v1alpha1", "v1alpha9", "v1", `"apis.kcp.dev/v1alpha9" is not known`},
		{"  scope: Namespaced", "  conversion: {hub: v1}", "v1", "write its rules as a document of kind APIConversionRules named rev0002"},
	} {
		tree := manifesttest.Tree(t, strings.ReplaceAll(widgets, tt.old, tt.replacement))
		if _, err := Definition(tree, tt.hub); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.replacement, err, tt.want)
		}
	}
}
