package render

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/sources"
)

// The objects that enforce pins to a type stay while its definition is in conflict or has
// errors. They are removed with the definition, and with the setting.
func TestPinsStayWithErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, plain string
		off, kept   bool
	}{
		{name: "in a package too", plain: crdYAML("shared", ""), kept: true},
		{name: "with errors", plain: crdYAML("errors", ""), kept: true},
		{name: "gone"},
		{name: "gone beside an error", plain: declare("Provider", "bad", ""), kept: true},
		{name: "not enforced", plain: crdYAML("shared", ""), off: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := input(t, plainObject+declare("Provider", "p", "")+tt.plain)
			in.EnforcePins = !tt.off
			rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"p": content(t, sources.Provider, crdYAML("shared", ""))})
			if rendered == nil {
				t.Fatal(err)
			}
			name := "shared.example.org"
			if tt.name == "with errors" {
				name = "errors.example.org"
			}
			for _, id := range pins.OfDefinition(name) {
				if rendered.Objects.Get(id) == nil && rendered.Keeps(id, "") != tt.kept {
					t.Errorf("%s is kept: %t", id, !tt.kept)
				}
			}
			if rendered.Keeps(manifest.ValidatingPolicy.ID("", "other"), "") {
				t.Error("another policy is kept")
			}
		})
	}
}

// A name that is too long for a policy affects nothing else.
func TestPinsToLongNames(t *testing.T) {
	t.Parallel()
	group := strings.Repeat("a.", 116) + "org" // the name of a CRD has at most 253 characters
	in := input(t, plainObject+"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things."+group+"}, spec: {group: "+group+", names: {kind: Thing, plural: things}, versions: [{name: v1, schema: {openAPIV3Schema: {type: object}}}]}}\n---\n"+crdYAML("others", ""))
	in.EnforcePins = true
	rendered, err := expand(t, new(Renderer), in, nil)
	if err != nil || rendered.Objects.Len() != 4 || len(rendered.Notes) != 1 || !strings.Contains(rendered.Notes[0], "means nothing for customresourcedefinition.apiextensions.k8s.io/things.a.a.") {
		t.Fatal(err, rendered)
	}
}
