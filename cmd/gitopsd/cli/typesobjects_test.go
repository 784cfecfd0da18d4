package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// typed has two versions of definitions, and objects.
const (
	typedXRD = `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xthings.example.org}
spec:
  group: example.org
  names: {kind: XThing, plural: xthings}
  claimNames: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: $SPEC}}}}}
`
	typedCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: $SPEC}}}}}
`
	typedWide   = "{size: {type: integer}, colour: {type: string}}"
	typedNarrow = "{size: {type: integer, maximum: 3}}"
)

// `gitopsd types diff --objects` judges the objects in a file or a directory. Composites and
// claims are judged by their XRD.
func TestTypesDiffObjects(t *testing.T) {
	t.Parallel()
	composites := map[string]string{
		"a.yaml":        "{apiVersion: example.org/v1, kind: XThing, metadata: {name: a}, spec: {size: 1, resourceRefs: [{name: r}], claimRef: {name: c}}}",
		"below/b.yaml":  "{apiVersion: example.org/v1, kind: XThing, metadata: {name: b}, spec: {size: 9}}",
		"below/c.yaml":  "{apiVersion: example.org/v1, kind: Thing, metadata: {name: c, namespace: shop}, spec: {size: 2, colour: hunter2}}",
		"unrelated.yml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: shop}}",
	}
	for _, tt := range []struct {
		name, definition string
		objects          map[string]string
		want             string
	}{
		{"composites and claims", typedXRD, composites, `  harms 2 of 3 objects
    XThing b .spec.size is not valid any more: should be less than or equal to 3
    Thing shop/c .spec.colour would be dropped
`},
		{"none harmed", typedXRD, map[string]string{"a.yaml": composites["a.yaml"]}, "  harms nobody today (1 object looked at)\n"},
		{"plain objects", typedCRD, composites, `  harms 1 of 1 object
    shop/c .spec.colour would be dropped
`},
		{"nothing of the kind", typedXRD, map[string]string{"a.yml": composites["unrelated.yml"]}, "  harms nobody: there are no objects\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			old := writeFile(t, dir, "old.yaml", strings.Replace(tt.definition, "$SPEC", typedWide, 1))
			now := writeFile(t, dir, "new.yaml", strings.Replace(tt.definition, "$SPEC", typedNarrow, 1))
			for name, text := range tt.objects {
				writeFile(t, dir, "objects/"+name, text)
			}
			code, stdout, stderr := gitopsd(t, nil, "types", "diff", old, now, "--objects", filepath.Join(dir, "objects"))
			if code != 0 || stderr != "" || strings.Contains(stdout, "hunter2") {
				t.Errorf("%d %s", code, stderr)
			}
			if !strings.Contains(stdout, tt.want+"0 the same") {
				t.Errorf("have\n%s\nwant\n%s", stdout, tt.want)
			}
		})
	}
}
