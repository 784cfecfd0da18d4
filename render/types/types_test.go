package types

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// crd returns a CustomResourceDefinition with one version with a schema.
func crd(schema string) string {
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.example.org}
spec:
  group: example.org
  names: {kind: Bucket, plural: buckets}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        ` + strings.ReplaceAll(strings.TrimSpace(schema), "\n", "\n        ") + "\n"
}

// only returns the digest of the one type that text defines.
func only(t testing.TB, text string) string {
	t.Helper()
	all, err := All(manifesttest.Documents(t, text))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 {
		t.Fatalf("%d types, want one: %v", len(all), all)
	}
	return all[0].Digest
}

// form returns the canonical forms of an object's types, in the order of Of.
func forms(t testing.TB, object map[string]any) []string {
	t.Helper()
	var lines []string
	f := former{each: func(_ Type, form []byte) { lines = append(lines, string(form)) }}
	if err := f.object(object); err != nil {
		t.Fatal(err)
	}
	return lines
}

// Pairs of schemas.
type pair struct{ name, a, b string }

// Definitions with the same digest.
var same = []pair{
	{"order of keys", `{type: object, properties: {a: {type: string, maxLength: 3}, b: {type: string}}}`, `{properties: {b: {type: string}, a: {maxLength: 3, type: string}}, type: object}`},
	{"style", `{type: object, properties: {a: {type: "string"}}}`, "# a comment\ntype: 'object'\nproperties:\n  a:\n    type: |-\n      string"},
	{"documentation", `{type: object}`, `{type: object, description: d, title: t, example: {a: 1}, externalDocs: {url: u, description: e}}`},
	{"unknown keywords", `{type: object}`, `{type: object, examples: [1], x-kubernetes-future: true, $comment: c}`},
	{"null keywords", `{type: object}`, `{type: object, default: null, properties: null, not: null, items: null, required: null, maxLength: null, x-kubernetes-validations: null}`},
	{"empty keywords", `{type: object}`, `{type: object, format: "", pattern: "", nullable: false, required: [], enum: [], allOf: [], anyOf: [], oneOf: [], properties: {}, x-kubernetes-validations: [], x-kubernetes-list-map-keys: [], uniqueItems: false, exclusiveMinimum: false, x-kubernetes-preserve-unknown-fields: false, x-kubernetes-int-or-string: false, dependencies: {}, definitions: {}}`},
	{"order of required", `{type: object, required: [a, b, c]}`, `{type: object, required: [c, a, b, a]}`},
	{"order of enum", `{type: object, properties: {a: {enum: [x, 1, null, {b: [1, 2]}]}}}`, `{type: object, properties: {a: {enum: [{b: [1, 2]}, null, 1, x, 1.0]}}}`},
	{"order of map keys", `{type: object, properties: {a: {type: array, x-kubernetes-list-map-keys: [b, c]}}}`, `{type: object, properties: {a: {type: array, x-kubernetes-list-map-keys: [c, b]}}}`},
	{"order of branches", `{type: object, anyOf: [{required: [a]}, {required: [b]}], allOf: [{not: {required: [c]}}, {required: [d]}], oneOf: [{required: [e]}, {}]}`, `{type: object, anyOf: [{required: [b]}, {required: [a]}], allOf: [{required: [d]}, {not: {required: [c]}}], oneOf: [{}, {required: [e]}]}`},
	{"order of rules", `{type: object, x-kubernetes-validations: [{rule: a, message: b}, {rule: c}]}`, `{type: object, x-kubernetes-validations: [{rule: c}, {message: b, rule: a}]}`},
	{"numbers", `{type: object, properties: {a: {maximum: 10, minimum: 9223372036854775807, multipleOf: 0.5, maxLength: 100, default: 1.0}}}`, `{type: object, properties: {a: {maximum: 1e1, minimum: 9223372036854776000, multipleOf: 5e-1, maxLength: 1e2, default: 1}}}`},
	{"minus zero", `{type: object, properties: {a: {minimum: -0.0}}}`, `{type: object, properties: {a: {minimum: 0}}}`},
	{"null schema", `{type: object, allOf: [{properties: {a: null}}, null]}`, `{type: object, allOf: [{properties: {a: {}}}, {}]}`},
}

func TestSame(t *testing.T) {
	for _, tt := range same {
		t.Run(tt.name, func(t *testing.T) {
			if a, b := only(t, crd(tt.a)), only(t, crd(tt.b)); a != b {
				t.Errorf("%s\n%s\n%s\n%s", a, forms(t, manifesttest.Documents(t, crd(tt.a))[0].Tree), b, forms(t, manifesttest.Documents(t, crd(tt.b))[0].Tree))
			}
		})
	}
}

// Similar definitions with different digests. TestFields checks each field.
var different = []pair{
	{"a property called description", `{type: object, properties: {description: {type: string}}}`, `{type: object}`},
	{"documentation in a default", `{type: object, properties: {a: {default: {description: x}}}}`, `{type: object, properties: {a: {default: {}}}}`},
	{"empty in a default", `{type: object, properties: {a: {default: {x: "", y: [], z: null, w: false}}}}`, `{type: object, properties: {a: {default: {}}}}`},
	{"order in a default", `{type: object, properties: {a: {default: {required: [a, b]}}}}`, `{type: object, properties: {a: {default: {required: [b, a]}}}}`},
	{"documentation in an enum", `{type: object, properties: {a: {enum: [{title: x}]}}}`, `{type: object, properties: {a: {enum: [{}]}}}`},
	{"false is no absent default", `{type: object, properties: {a: {default: false}}}`, `{type: object, properties: {a: {}}}`},
	{"zero is no absent limit", `{type: object, properties: {a: {maxLength: 0}}}`, `{type: object, properties: {a: {}}}`},
	{"null in an enum", `{type: object, properties: {a: {enum: [x, null]}}}`, `{type: object, properties: {a: {enum: [x]}}}`},
	{"a string is no number", `{type: object, properties: {a: {default: "1"}}}`, `{type: object, properties: {a: {default: 1}}}`},
	{"an empty schema", `{type: object, not: {}}`, `{type: object}`},
	{"additionalProperties: false", `{type: object, additionalProperties: false}`, `{type: object}`},
	{"additionalProperties: true", `{type: object, additionalProperties: true}`, `{type: object, additionalProperties: false}`},
	{"two equal branches of oneOf", `{type: object, oneOf: [{required: [a]}, {required: [a]}]}`, `{type: object, oneOf: [{required: [a]}]}`},
	{"large integers of a default", `{type: object, properties: {a: {default: 9007199254740993}}}`, `{type: object, properties: {a: {default: 9007199254740992}}}`},
	{"where a keyword is", `{type: object, properties: {a: {type: object, required: [x]}}}`, `{type: object, required: [x], properties: {a: {type: object}}}`},
	{"a property called properties", `{type: object, properties: {properties: {type: object}}}`, `{type: object, properties: {type: {type: object}}}`},
}

func TestDifferent(t *testing.T) {
	for _, tt := range different {
		t.Run(tt.name, func(t *testing.T) {
			if a, b := only(t, crd(tt.a)), only(t, crd(tt.b)); a == b {
				t.Errorf("both have %s", a)
			}
		})
	}
}

// Other programs and committed locks depend on the digest and the form, so they must not
// change by accident.
func TestForm(t *testing.T) {
	const text = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: buckets.example.org, annotations: {a: b}}
spec:
  conversion:
    strategy: Webhook
    webhook:
      clientConfig: {caBundle: AAAA, service: {name: s, namespace: n, port: 9443}}
      conversionReviewVersions: [v1, v1beta1]
  group: example.org
  names: {kind: Bucket, plural: buckets, shortNames: [bu, b], categories: [all]}
  scope: Namespaced
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        description: A bucket.
        type: object
        properties:
          spec:
            type: object
            required: [size, name]
            x-kubernetes-validations: [{rule: "self.size > 0", message: "tab\tand \"quotes\"", optionalOldSelf: false}]
            properties:
              name: {type: string, maxLength: 63, description: Its name., default: ü}
              size: {type: number, maximum: 1500, exclusiveMaximum: true, minimum: 0.25}
    subresources: {status: {}, scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
    selectableFields: [{jsonPath: .spec.size}, {jsonPath: .spec.name}]
  - name: v1alpha1
    served: false
    storage: false
    deprecated: true
    deprecationWarning: use v1
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    additionalPrinterColumns:
    - {name: Z, type: string, jsonPath: .z, description: d, priority: 0}
    - {name: A, type: integer, format: int32, jsonPath: .a, priority: 1}
status: {storedVersions: [v1]}
`
	tree := manifesttest.Documents(t, text)[0].Tree
	const shared = `"conversion":{"conversionReviewVersions":["v1","v1beta1"],"strategy":"Webhook"},"group":"example.org","names":{"categories":["all"],"kind":"Bucket","listKind":"BucketList","plural":"buckets","shortNames":["b","bu"],"singular":"bucket"},"scope":"Namespaced","storage":"v1"`
	want := []string{
		`{` + shared + `,"version":{"additionalPrinterColumns":[{"jsonPath":".metadata.creationTimestamp","name":"Age","type":"date"}],"name":"v1","schema":{"properties":{"spec":{"properties":{"name":{"default":"ü","maxLength":63,"type":"string"},"size":{"exclusiveMaximum":true,"maximum":15e2,"minimum":25e-2,"type":"number"}},"required":["name","size"],"type":"object","x-kubernetes-validations":[{"message":"tab\tand \"quotes\"","rule":"self.size > 0"}]}},"type":"object"},"selectableFields":[".spec.name",".spec.size"],"served":true,"subresources":{"scale":{"specReplicasPath":".spec.size","statusReplicasPath":".status.size"},"status":{}}}}`,
		`{` + shared + `,"version":{"additionalPrinterColumns":[{"jsonPath":".z","name":"Z","type":"string"},{"format":"int32","jsonPath":".a","name":"A","priority":1,"type":"integer"}],"deprecated":true,"deprecationWarning":"use v1","name":"v1alpha1","schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`,
	}
	have := forms(t, tree)
	if len(have) != len(want) {
		t.Fatalf("%d forms, want %d", len(have), len(want))
	}
	for i := range want {
		if have[i] != want[i] {
			t.Errorf("form %d:\n%s\nwant\n%s", i, have[i], want[i])
		}
	}
	all, err := All(manifesttest.Documents(t, text))
	if err != nil {
		t.Fatal(err)
	}
	wantTypes := []Type{
		{"example.org", "v1", "Bucket", "h1:C+3995IuNLnpp0j1GQJmgLuAQyFOzwz0NEGw0SnR6vA="},
		{"example.org", "v1alpha1", "Bucket", "h1:2PTnPTjBv5fgBHFQiJRplt9P/8ALKXs4EtPG1695lhI="},
	}
	for i := range wantTypes {
		if all[i] != wantTypes[i] {
			t.Errorf("%v, want %v", all[i], wantTypes[i])
		}
	}
	if sum := Sum(all); sum != "h1:v9X2OpzyXYYnKqP9PrMMxam1vON+VVjqH95//nWEAWo=" {
		t.Errorf("sum %s", sum)
	}
}

const xrd = `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xnetworks.example.org}
spec:
  group: example.org
  names: {kind: XNetwork, plural: xnetworks}
  claimNames: {kind: Network, plural: networks}
  connectionSecretKeys: [b, a]
  defaultCompositionRef: {name: small}
  versions:
  - name: v1alpha1
    served: true
    referenceable: true
    schema: {openAPIV3Schema: {type: object, description: d, properties: {spec: {type: object}}}}
`

func TestComposite(t *testing.T) {
	have := forms(t, manifesttest.Documents(t, xrd)[0].Tree)
	const rest = `"connectionSecretKeys":["a","b"],"defaultCompositeDeletePolicy":"Background","defaultCompositionRef":{"name":"small"},"defaultCompositionUpdatePolicy":"Automatic"},"conversion":{"strategy":"None"},"group":"example.org","names":`
	const version = `,"storage":"v1alpha1","version":{"additionalPrinterColumns":[{"jsonPath":".metadata.creationTimestamp","name":"Age","type":"date"}],"name":"v1alpha1","schema":{"properties":{"spec":{"type":"object"}},"type":"object"},"served":true}}`
	want := []string{
		`{"composite":{"claimedBy":"Network",` + rest + `{"kind":"XNetwork","listKind":"XNetworkList","plural":"xnetworks","singular":"xnetwork"},"scope":"LegacyCluster"` + version,
		`{"composite":{"claimOf":"XNetwork",` + rest + `{"kind":"Network","listKind":"NetworkList","plural":"networks","singular":"network"},"scope":"Namespaced"` + version,
	}
	if len(have) != 2 || have[0] != want[0] || have[1] != want[1] {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	for _, change := range [][2]string{
		{"[b, a]", "[b]"}, {"name: small", "name: large"}, {"kind: Network", "kind: Net"}, {"kind: XNetwork", "kind: XNet"},
		{"crossplane.io/v1", "crossplane.io/v2"}, {"served: true", "served: false"}, {"referenceable: true", "referenceable: false"},
		{"  group", "  defaultCompositeDeletePolicy: Foreground\n  group"}, {"  group", "  defaultCompositionUpdatePolicy: Manual\n  group"},
		{"  group", "  enforcedCompositionRef: {name: x}\n  group"}, {"  group", "  scope: Cluster\n  group"},
		{"spec: {type: object}", "spec: {type: object, maxProperties: 1}"},
	} {
		changed := forms(t, manifesttest.Documents(t, strings.Replace(xrd, change[0], change[1], 1))[0].Tree)
		if changed[0] == want[0] {
			t.Errorf("%s is not in the form", change[1])
		}
	}
	same := strings.Replace(xrd, "  group", "  scope: LegacyCluster\n  defaultCompositeDeletePolicy: Background\n  defaultCompositionUpdatePolicy: Automatic\n  conversion: {strategy: None}\n  group", 1)
	if changed := forms(t, manifesttest.Documents(t, same)[0].Tree); changed[0] != want[0] || changed[1] != want[1] {
		t.Errorf("Crossplane's defaults make another form:\n%s", changed)
	}
}

func TestErrors(t *testing.T) {
	const prefix = "CustomResourceDefinition buckets.example.org: spec.versions[0].schema.openAPIV3Schema"
	replace := func(old, with string) string { return strings.Replace(crd(`{type: object}`), old, with, 1) }
	for _, tt := range []struct{ name, in, want string }{
		{"a number for a string", crd(`{type: object, properties: {a: {type: 1}}}`), prefix + ".properties.a.type: want a string, have a number"},
		{"a string for a number", crd(`{type: object, properties: {a: {maximum: "1"}}}`), prefix + ".properties.a.maximum: want a number, have a string"},
		{"a fraction", crd(`{maxLength: 1.5}`), prefix + ".maxLength: want an integer, have a fraction"},
		{"a huge integer", crd(`{maxLength: 1e300}`), prefix + ".maxLength: want an integer, have a fraction"},
		{"a string for a boolean", crd(`{nullable: "yes"}`), prefix + ".nullable: want a boolean, have a string"},
		{"a list of schemas", crd(`{anyOf: [{}, 1]}`), prefix + ".anyOf[1]: want a schema, have a number"},
		{"a mapping for a list", crd(`{required: {a: true}}`), prefix + ".required: want a list, have a mapping"},
		{"a rule", crd(`{x-kubernetes-validations: [{rule: {}}]}`), prefix + ".x-kubernetes-validations[0].rule: want a string, have a mapping"},
		{"a list for properties", crd(`{properties: [a]}`), prefix + ".properties: want a mapping, have a list"},
		{"required elements", crd(`{items: {required: [1]}}`), prefix + ".items.required[0]: want a string, have a number"},
		{"no spec", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x}\n", "CustomResourceDefinition x: spec: want a mapping, have null"},
		{"no versions", replace("versions:", "version:"), "CustomResourceDefinition buckets.example.org: spec.versions: want a list, have null"},
		{"no kind", replace("kind: Bucket, ", ""), "CustomResourceDefinition buckets.example.org: spec.names.kind: want a string, have null"},
		{"no group", replace("group:", "grp:"), "CustomResourceDefinition buckets.example.org: spec.group: want a string, have null"},
		{"no scope", replace("scope:", "scp:"), "CustomResourceDefinition buckets.example.org: spec.scope: want a string, have null"},
		{"v1beta1", replace("k8s.io/v1", "k8s.io/v1beta1"), "CustomResourceDefinition buckets.example.org: no API server serves apiVersion apiextensions.k8s.io/v1beta1 since Kubernetes 1.22: convert it to apiextensions.k8s.io/v1"},
		{"a column", replace("served: true", "served: true\n    additionalPrinterColumns: [{name: a}, {priority: x}]"), "CustomResourceDefinition buckets.example.org: spec.versions[0].additionalPrinterColumns[1].priority: want an integer, have a string"},
		{"defined twice", crd(`{type: object}`) + "---" + crd(`{type: object}`), "example.org/v1 Bucket is defined twice: a type must have one definition"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all, err := All(manifesttest.Documents(t, tt.in))
			if err == nil || err.Error() != tt.want {
				t.Errorf("have %v, %v\nwant %s", all, err, tt.want)
			}
		})
	}
}

// Objects that define nothing have no types. A package without types still has a record.
func TestNoTypes(t *testing.T) {
	sum, err := Package(manifesttest.Documents(t, "apiVersion: v1\nkind: ConfigMap\n---\napiVersion: example.org/v1\nkind: CustomResourceDefinition\n---\nkind: 1\n"))
	if want := "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="; sum != want || err != nil {
		t.Errorf("%s, %v; want %s", sum, err, want)
	}
}

// An error does not change later forms.
func TestReuse(t *testing.T) {
	var last string
	f := former{each: func(_ Type, form []byte) { last = string(form) }}
	good := manifesttest.Documents(t, crd(`{type: object, properties: {b: {type: string}, a: {enum: [b, a]}}}`))[0].Tree
	if err := f.object(good); err != nil {
		t.Fatal(err)
	}
	want := last
	bad := manifesttest.Documents(t, crd(`{allOf: [{properties: {a: {}, b: {enum: [2, 1]}}}, {anyOf: [{}, {type: 1}]}]}`))[0].Tree
	if err := f.object(bad); err == nil {
		t.Fatal("no error")
	}
	if err := f.object(good); err != nil || last != want {
		t.Errorf("%s, %v; want %s", last, err, want)
	}
}

// The form is JSON, and decoding and writing it again gives the same text: escaping loses
// nothing, keys are sorted, and numbers have one form.
func FuzzForm(f *testing.F) {
	for _, seed := range []string{
		crd(`{type: object, properties: {a: {default: {b: [1, 2.5, null, "\u2028\u007f\\"], c: -1e-7, d: 9007199254740993}}}}`), xrd,
		crd(`{allOf: [{not: {}}, null], x-kubernetes-validations: [{rule: a}, {rule: b}], dependencies: {a: [b], c: {}}}`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: 1 << 16, Nodes: 1 << 12})
		if err != nil {
			return
		}
		f := former{each: func(_ Type, form []byte) {
			dec := json.NewDecoder(bytes.NewReader(form))
			dec.UseNumber()
			var tree map[string]any
			if err := dec.Decode(&tree); err != nil {
				t.Fatalf("%s: %v", form, err)
			}
			var again canon
			if err := again.data(numbers(t, tree)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again.buf, form) {
				t.Errorf("%s\nread and written again is\n%s", form, again.buf)
			}
		}}
		for _, d := range docs {
			if err := f.object(d.Tree); err != nil && len(err.Error()) == 0 {
				t.Error("an error that says nothing")
			}
		}
	})
}

// numbers turns every json.Number in a tree into an int64 or float64.
func numbers(t *testing.T, v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			v[k] = numbers(t, item)
		}
	case []any:
		for i, item := range v {
			v[i] = numbers(t, item)
		}
	case json.Number:
		digits, power, _ := strings.Cut(v.String(), "e")
		if zeros, err := strconv.Atoi(cmp.Or(power, "0")); err == nil && zeros >= 0 && zeros < 20 {
			if i, err := strconv.ParseInt(digits+strings.Repeat("0", zeros), 10, 64); err == nil {
				return i
			}
		}
		f, err := v.Float64()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	return v
}
