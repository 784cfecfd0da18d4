package composition

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Templates finds the composed objects in every form of a Composition.
func TestTemplates(t *testing.T) {
	const resources = `resources: [
  {name: b, base: {apiVersion: acme.example/v1, kind: Bucket, spec: {a: 1}}, patches: [
    {fromFieldPath: spec.size},
    {type: ToCompositeFieldPath, fromFieldPath: status.x, toFieldPath: status.y},
    {type: CombineFromComposite, combine: {variables: [{fromFieldPath: spec.p}, {fromFieldPath: spec.q}]}, toFieldPath: spec.r},
    {type: FromEnvironmentFieldPath, fromFieldPath: region, toFieldPath: spec.region},
    {type: PatchSet, patchSetName: common}],
   connectionDetails: [{name: c, fromFieldPath: status.c}], readinessChecks: [{type: NonEmpty, fieldPath: status.d}]},
  {name: o, base: {apiVersion: kubernetes.crossplane.io/v1, kind: Object, spec: {manifest: {apiVersion: acme.example/v1, kind: Inner, metadata: {name: x}}, references: [{apiVersion: acme.example/v1, kind: NotMade, name: y}]}}}]`
	const sets = `patchSets: [{name: common, patches: [{fromFieldPath: metadata.labels, toFieldPath: spec.labels}]}]`
	want := func(at string) string {
		return fmt.Sprintf(`%[1]s.resources[0].base acme.example/v1 Bucket
  %[1]s.resources[0].patches[0].fromFieldPath composite spec.size
  %[1]s.resources[0].patches[0].fromFieldPath spec.size
  %[1]s.resources[0].patches[1].fromFieldPath status.x
  %[1]s.resources[0].patches[1].toFieldPath composite status.y
  %[1]s.resources[0].patches[2].combine.variables[0].fromFieldPath composite spec.p
  %[1]s.resources[0].patches[2].combine.variables[1].fromFieldPath composite spec.q
  %[1]s.resources[0].patches[2].toFieldPath spec.r
  %[1]s.resources[0].patches[3].toFieldPath spec.region
  %[1]s.resources[0].patches[4] (patch set common, patches[0]).fromFieldPath composite metadata.labels
  %[1]s.resources[0].patches[4] (patch set common, patches[0]).toFieldPath spec.labels
  %[1]s.resources[0].connectionDetails[0].fromFieldPath status.c
  %[1]s.resources[0].readinessChecks[0].fieldPath status.d
%[1]s.resources[1].base kubernetes.crossplane.io/v1 Object
%[1]s.resources[1].base.spec.manifest acme.example/v1 Inner (fields not known)
`, at)
	}
	for _, tt := range []struct{ name, spec, want string }{
		{"mode Resources", "{" + resources + ", " + sets + "}", want("spec")},
		{"mode Resources by name", "{mode: Resources, pipeline: [{step: x}], " + resources + ", " + sets + "}", want("spec")},
		{"patch and transform", "{mode: Pipeline, pipeline: [{step: p, input: {apiVersion: pt.fn.crossplane.io/v1beta1, kind: Resources, " + resources + ", " + sets + "}}]}", want("spec.pipeline[0].input")},
		{
			"another function", `{mode: Pipeline, pipeline: [{step: none}, {step: p, input: {apiVersion: x.fn.crossplane.io/v1, kind: Input, metadata: {}, spec: {target: Resources, template: {apiVersion: acme.example/v1, kind: Bucket, spec: {}}}, ref: {apiVersion: a/v1, kind: B, name: c}}}]}`,
			"spec.pipeline[1].input.spec.template acme.example/v1 Bucket (fields not known)\n",
		},
		{
			"a text", "{mode: Pipeline, pipeline: [{step: p, input: {apiVersion: gotemplating.fn.crossplane.io/v1beta1, kind: GoTemplate, source: Inline, inline: {template: \"" + strings.ReplaceAll(`{{- range $i, $e := until 3 }}
---
apiVersion: acme.example/v1 # a comment
kind: \"Bucket\"
metadata:
  annotations: {{ toYaml .x }}
spec:
  manifest:
    apiVersion: acme.example/v2
    kind: Inner
    metadata: {name: x}
  ref:
    apiVersion: acme.example/v1
    kind: NotMade
    name: x
  other:
    metadata: {}
{{- end }}
---
kind: {{ $kind }}
apiVersion: acme.example/v1
metadata: {}
---
apiVersion: v1
kind: List
items:
- apiVersion: acme.example/v1
  kind: First
  metadata:
    name: x
- apiVersion: acme.example/v1
  kind: Second
  metadata:
    name: x
---
apiVersion: acme.example/v1
kind: Bucket
spec:
`, "\n", `\n`) + "\"}}}]}",
			`spec.pipeline[0].input.inline.template acme.example/v1 Bucket (fields not known)
spec.pipeline[0].input.inline.template acme.example/v2 Inner (fields not known)
spec.pipeline[0].input.inline.template acme.example/v1 First (fields not known)
spec.pipeline[0].input.inline.template acme.example/v1 Second (fields not known)
`,
		},
		{"nothing", "{}", ""},
		{"garbage", "{mode: 1, resources: [1, {base: 2, patches: [3, {type: PatchSet}]}], pipeline: 4}", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var have strings.Builder
			for _, tmpl := range Templates(manifesttest.Tree(t, "{spec: "+tt.spec+"}")) {
				fmt.Fprintf(&have, "%s %s %s", tmpl.Path, tmpl.APIVersion, tmpl.Kind)
				if tmpl.Base == nil {
					have.WriteString(" (fields not known)")
				}
				have.WriteString("\n")
				for _, f := range tmpl.Fields {
					composite := ""
					if f.Composite {
						composite = "composite "
					}
					fmt.Fprintf(&have, "  %s %s%s\n", f.Path, composite, f.Name)
				}
			}
			if have.String() != strings.ReplaceAll(tt.want, "\t", "") {
				t.Errorf("have\n%s\nwant\n%s", have.String(), tt.want)
			}
		})
	}
}

const fleet = `
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: buckets.acme.example, labels: {gitopsd.dev/package: widgets}}, spec: {
  group: acme.example, scope: Cluster, names: {kind: Bucket, plural: buckets}, versions: [
  {name: v1alpha1, served: false, storage: false},
  {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {
    spec: {type: object, properties: {size: {type: integer}, tags: {type: object, additionalProperties: {type: string}},
      rules: {type: array, items: {type: object, properties: {port: {type: integer}}}},
      free: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {known: {type: object, properties: {a: {type: string}}}}}}},
    status: {type: object, properties: {url: {type: string}}}}}}}]}}
---
{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: databases.acme.example}, spec: {
  group: acme.example, names: {kind: Database, plural: databases}, versions: [
  {name: v1beta1, served: true, referenceable: false, schema: {openAPIV3Schema: {type: object}}},
  {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}]}}
`

// Check finds errors, and accepts valid Compositions.
func TestCheck(t *testing.T) {
	resource := func(base, more string) string {
		return "mode: Resources, resources: [{base: " + base + more + "}]"
	}
	const bucket = "{apiVersion: acme.example/v1, kind: Bucket, spec: "
	patch := func(p string) string {
		return resource(bucket+"{}}", ", patches: [{"+p+"}]")
	}
	for _, tt := range []struct {
		name, spec string
		want       []string // parts of the findings
	}{
		{"all is there", resource(bucket+"{size: 1, tags: {a.b/c: d}, rules: [{port: 1}], free: {any: {thing: 1}, known: {a: b}}}}", ""), nil},
		{"a version that is not served", resource("{apiVersion: acme.example/v1alpha1, kind: Bucket}", ""), []string{"spec.resources[0].base.apiVersion: Bucket.acme.example is not served in version v1alpha1; use v1"}},
		{"a version that does not exist", resource("{apiVersion: acme.example/v9, kind: Bucket, spec: {no: 1}}", ""), []string{"not served in version v9"}},
		{"a kind of nobody", resource("{apiVersion: other.example/v1, kind: Queue}", ""), []string{"spec.resources[0].base: no package or manifest of the cluster defines Queue.other.example; declare the package that has it"}},
		{"a kind of another group", resource("{apiVersion: other.example/v1, kind: bucket}", ""), []string{"(there is Bucket.acme.example)"}},
		{"a kind that waits", resource("{apiVersion: other.example/v1, kind: Inactive}", ""), []string{"the type Inactive.other.example is not activated; name it"}},
		{"a kind that Crossplane installs", resource("{apiVersion: other.example/v1, kind: Delegated}", ""), nil},
		{"a kind of the API server", resource("{apiVersion: v1, kind: ConfigMap, nothing: 1}", ""), nil},
		{"Crossplane's own", resource("{apiVersion: protection.crossplane.io/v1beta1, kind: Usage}", ""), nil},
		{
			"fields that the type lacks", resource(bucket+"{colour: {red: 1}, rules: [{port: 1}, {prot: 2}], free: {known: {b: c}}}, sttaus: {}}", ""),
			[]string{
				"spec.resources[0].base.spec.colour: Bucket.acme.example has no field spec.colour in v1; correct the field's name, or use a version of package widgets that has it",
				"spec.free.known.b", "spec.rules[1].prot", "sttaus",
			},
		},
		{"metadata", patch("fromFieldPath: 'metadata.labels[a.b/c]', toFieldPath: 'metadata.annotations[\"x/y\"]'"), nil},
		{"a field of both", patch("fromFieldPath: spec.size"), nil},
		{"a field that the template lacks", patch("fromFieldPath: spec.size, toFieldPath: spec.colour"), []string{"patches[0].toFieldPath: Bucket.acme.example has no field spec.colour"}},
		{"a field that the composite lacks", patch("fromFieldPath: spec.colour, toFieldPath: spec.size"), []string{"patches[0].fromFieldPath: Database.acme.example has no field spec.colour in v1; correct the field's name"}},
		{"into the status", patch("type: ToCompositeFieldPath, fromFieldPath: status.url, toFieldPath: status.url"), []string{"toFieldPath: Database.acme.example has no field status.url"}},
		{"what Crossplane adds", patch("type: ToCompositeFieldPath, fromFieldPath: status.url, toFieldPath: 'status.conditions[0].message'"), nil},
		{"elements", patch("fromFieldPath: spec.size, toFieldPath: 'spec.rules[*].port'"), nil},
		{"elements that have no such field", patch("fromFieldPath: spec.size, toFieldPath: 'spec.rules[0].prot'"), []string{"spec.rules[0].prot"}},
		{"a key of a map", patch("fromFieldPath: spec.size, toFieldPath: 'spec.tags[a.b/c]'"), nil},
		{"below a scalar", patch("fromFieldPath: spec.size.unit, toFieldPath: spec.size"), []string{"Database.acme.example has no field spec.size.unit"}},
		{"a path that is none", patch("fromFieldPath: 'spec[', toFieldPath: spec.size"), []string{`"spec[" is not a path of a field`}},
		{"composites that nobody defines", "compositeTypeRef: {apiVersion: acme.example/v1, kind: Databse}, resources: []", []string{"spec.compositeTypeRef: no package or manifest of the cluster defines Databse.acme.example"}},
		{"composites in another version", "compositeTypeRef: {apiVersion: acme.example/v2, kind: Database}, resources: []", []string{"spec.compositeTypeRef.apiVersion: Database.acme.example is not served in version v2; use v1"}},
		{"composites in a version that Compositions cannot name", "compositeTypeRef: {apiVersion: acme.example/v1beta1, kind: Database}, resources: []", []string{"spec.compositeTypeRef.apiVersion: Crossplane looks for Compositions of Database.acme.example in its referenceable version v1, and does not find this one; make another Composition with v1"}},
		{"a composed composite", resource("{apiVersion: acme.example/v1, kind: Database, spec: {size: 1, crossplane: {compositionSelector: {}}, nope: 1}}", ""), []string{"spec.resources[0].base.spec.nope"}},
		{"many", resource(bucket+"{"+strings.Join(manyFields(30), ", ")+"}}", ""), append(slices.Repeat([]string{"has no field"}, most), "10 more findings like these")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := tt.spec
			if !strings.Contains(spec, "compositeTypeRef") {
				spec = "compositeTypeRef: {apiVersion: acme.example/v1, kind: Database}, " + spec
			}
			var objects []*manifest.Object
			for _, text := range strings.Split(fleet+"---\n{apiVersion: apiextensions.crossplane.io/v1, kind: Composition, metadata: {name: small}, spec: {"+spec+"}}", "---\n") {
				o, err := manifest.New(manifesttest.Tree(t, text), manifest.Origin{File: "db.yaml", Line: 7})
				if err != nil {
					t.Fatal(err)
				}
				objects = append(objects, o)
			}
			set, _ := manifest.NewSet(objects)
			found := Check(set, Known{
				Delegated: func(gk manifest.GroupKind) bool { return gk.Kind == "Delegated" },
				Inactive: func(gk manifest.GroupKind) string {
					if gk.Kind == "Inactive" {
						return "name it"
					}
					return ""
				},
			})
			ok := len(found) == len(tt.want)
			var have []string
			for i := range found {
				have = append(have, found[i].String())
				ok = ok && strings.Contains(have[i], tt.want[i]) && strings.HasPrefix(have[i], "composition.apiextensions.crossplane.io/small (db.yaml:7): ")
			}
			if !ok {
				t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func manyFields(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("no%02d: 1", i)
	}
	return all
}

// No Composition causes a panic, and every path is parsed or refused.
func FuzzTemplates(f *testing.F) {
	f.Add("spec.a[0].b", "apiVersion: a/v1\nkind: B\nspec:\n")
	f.Add("metadata.labels[a.b/c]", "- kind: B\n  apiVersion: a/v1\n---\nmetadata:\n")
	f.Add("a['b'][\"c\"][*]", "apiVersion: \"\nkind:")
	f.Fuzz(func(t *testing.T, path, text string) {
		steps, err := split(path)
		if err == nil && path != "" && len(steps) == 0 {
			t.Errorf("%q has no steps", path)
		}
		if err == nil {
			s := &shape{schema: map[string]any{"properties": map[string]any{"spec": map[string]any{"items": map[string]any{"additionalProperties": true}}}}, composite: true}
			s.has(steps)
		}
		for _, tmpl := range inText(nil, text, "at") {
			if tmpl.APIVersion == "" || tmpl.Kind == "" {
				t.Errorf("%q: %+v", text, tmpl)
			}
		}
	})
}
