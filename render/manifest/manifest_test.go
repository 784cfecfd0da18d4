package manifest_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

func object(t *testing.T, doc string) *manifest.Object {
	t.Helper()
	o, err := manifest.New(manifesttest.Tree(t, doc), manifest.Origin{File: "a.yaml", Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestNew(t *testing.T) {
	for _, tt := range []struct{ name, doc, id, err string }{
		{name: "core", doc: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b}}", id: "configmap/b/a"},
		{name: "group", doc: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a.b.c}}", id: "customresourcedefinition.apiextensions.k8s.io/a.b.c"},
		{name: "colons", doc: "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: 'system:x'}}", id: "clusterrole.rbac.authorization.k8s.io/system:x"},
		{name: "null metadata", doc: "{apiVersion: v1, kind: A, metadata: {name: a, namespace: null, labels: null}}", id: "a/a"},
		{name: "no apiVersion", doc: "{kind: A, metadata: {name: a}}", err: "a.yaml:7: apiVersion: is missing"},
		{name: "number", doc: "{apiVersion: 1, kind: A, metadata: {name: a}}", err: "a.yaml:7: apiVersion: want a string, have 1; quote it"},
		{name: "odd apiVersion", doc: "{apiVersion: a/b/c, kind: A, metadata: {name: a}}", err: `"a/b/c" is neither <version> nor <group>/<version>`},
		{name: "no kind", doc: "{apiVersion: v1, metadata: {name: a}}", err: "kind: is missing"},
		{name: "odd kind", doc: "{apiVersion: v1, kind: a/b, metadata: {name: a}}", err: `kind: "a/b" is not a kind`},
		{name: "no metadata", doc: "{apiVersion: v1, kind: A}", err: "metadata: is missing, or not a mapping"},
		{name: "no name", doc: "{apiVersion: v1, kind: A, metadata: {}}", err: "metadata.name: is missing"},
		{name: "generated name", doc: "{apiVersion: v1, kind: A, metadata: {generateName: a}}", err: "write metadata.name"},
		{name: "path as name", doc: "{apiVersion: v1, kind: A, metadata: {name: ../b}}", err: `"../b" is not a name`},
		{name: "dots as name", doc: "{apiVersion: v1, kind: A, metadata: {name: ..}}", err: `".." is not a name`},
		{name: "long name", doc: "{apiVersion: v1, kind: A, metadata: {name: " + strings.Repeat("a", 254) + "}}", err: "at most 253"},
		{name: "odd namespace", doc: "{apiVersion: v1, kind: A, metadata: {name: a, namespace: b/c}}", err: `metadata.namespace: "b/c" is not a name`},
		{name: "label", doc: "{apiVersion: v1, kind: A, metadata: {name: a, labels: {b: 1}}}", err: "a.yaml:7: a/a: metadata.labels: b: want a string, have 1; quote it"},
		{name: "several labels", doc: "{apiVersion: v1, kind: A, metadata: {name: a, labels: {d: 1, c: 2, b: {x: hunter2}, e: 3}}}", err: "a.yaml:7: a/a: metadata.labels: b: want a string, have a mapping"},
		{name: "list as an annotation", doc: "{apiVersion: v1, kind: A, metadata: {name: a, annotations: {b: [hunter2]}}}", err: "a.yaml:7: a/a: metadata.annotations: b: want a string, have a list"},
		{name: "null as an annotation", doc: "{apiVersion: v1, kind: A, metadata: {name: a, annotations: {b: null}}}", err: "a.yaml:7: a/a: metadata.annotations: b: want a string, have null"},
		{name: "mapping as apiVersion", doc: "{apiVersion: {x: hunter2}, kind: A, metadata: {name: a}}", err: "a.yaml:7: apiVersion: want a string, have a mapping"},
		{name: "annotations", doc: "{apiVersion: v1, kind: A, metadata: {name: a, annotations: [b]}}", err: "metadata.annotations: want a mapping of strings"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o, err := manifest.New(manifesttest.Tree(t, tt.doc), manifest.Origin{File: "a.yaml", Line: 7})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hunter") {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				for range 20 { // the order of a map's keys is random
					if _, again := manifest.New(manifesttest.Tree(t, tt.doc), manifest.Origin{File: "a.yaml", Line: 7}); again.Error() != err.Error() {
						t.Fatalf("then %v, now %v", err, again)
					}
				}
				return
			}
			if err != nil || o.ID().String() != tt.id {
				t.Fatalf("have %v, %v, want %s", o, err, tt.id)
			}
		})
	}
}

func TestOrigin(t *testing.T) {
	ref, err := sources.ParseRef("example.org/p:v1")
	if err != nil {
		t.Fatal(err)
	}
	pin := sources.Pin{Ref: ref, Digest: sources.DigestOf(nil)}
	for want, o := range map[string]manifest.Origin{
		"an unknown place": {},
		"a/b.yaml":         {File: "a/b.yaml"},
		"a/b.yaml:3":       {File: "a/b.yaml", Line: 3},
		"package " + pin.String() + ", package.yaml:9": {File: "package.yaml", Line: 9, Package: pin},
		"the runtime of package " + pin.String():       {Package: pin},
	} {
		if have := o.String(); have != want {
			t.Errorf("have %q, want %q", have, want)
		}
	}
}

func TestFromDocument(t *testing.T) {
	for _, tt := range []struct {
		name, doc string
		want      []string
		err       string
	}{
		{name: "one", doc: "{apiVersion: v1, kind: A, metadata: {name: a}}", want: []string{"a/a"}},
		{name: "list", doc: "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: A, metadata: {name: a}}, {apiVersion: v1, kind: B, metadata: {name: b}}]}", want: []string{"a/a", "b/b"}},
		{name: "empty list", doc: "{apiVersion: v1, kind: ConfigMapList, items: []}"},
		{name: "no list", doc: "{apiVersion: a/v1, kind: AccessList, metadata: {name: a}}", want: []string{"accesslist.a/a"}},
		{name: "item", doc: "{apiVersion: v1, kind: List, items: [1]}", err: "a.yaml:4: List: items.0: want a mapping"},
		{name: "item's name", doc: "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: A}]}", err: "a.yaml:4: metadata: is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects, err := manifest.FromDocument(sources.Document{Line: 4, Tree: manifesttest.Tree(t, tt.doc)}, manifest.Origin{File: "a.yaml"})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "hunter") {
					t.Fatalf("error %v, want one with %q", err, tt.err)
				}
				return
			}
			var have []string
			for _, o := range objects {
				have = append(have, o.ID().String())
			}
			if err != nil || !reflect.DeepEqual(have, tt.want) {
				t.Fatalf("have %q, %v, want %q", have, err, tt.want)
			}
		})
	}
}

func TestAccessors(t *testing.T) {
	o := object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, labels: {b: c}}}")
	if o.APIVersion() != "apps/v1" || o.Version() != "v1" || o.Label("b") != "c" || o.Annotation("b") != "" {
		t.Errorf("have %q, %q, %q, %q", o.APIVersion(), o.Version(), o.Label("b"), o.Annotation("b"))
	}
	labels := o.Labels()
	labels["b"] = "changed"
	if o.Label("b") != "c" || len(o.Annotations()) != 0 {
		t.Error("Labels is no copy")
	}
}

func TestWith(t *testing.T) {
	tree := manifesttest.Tree(t, "{a: {b: 1, c: {d: 2}}, e: text}")
	before := string(manifest.AppendJSON(nil, tree))
	for _, tt := range []struct {
		name string
		have map[string]any
		want string
	}{
		{"replaced", manifest.With(tree, "x", "a", "b"), `{"a":{"b":"x","c":{"d":2}},"e":"text"}`},
		{"added", manifest.With(tree, "x", "a", "c", "f", "g"), `{"a":{"b":1,"c":{"d":2,"f":{"g":"x"}}},"e":"text"}`},
		{"below a text", manifest.With(tree, "x", "e", "f"), `{"a":{"b":1,"c":{"d":2}},"e":{"f":"x"}}`},
		{"to nothing", manifest.With(nil, "x", "a"), `{"a":"x"}`},
		{"removed", manifest.Without(tree, "a", "c", "d"), `{"a":{"b":1,"c":{}},"e":"text"}`},
		{"removed from the root", manifest.Without(tree, "a"), `{"e":"text"}`},
		{"not there", manifest.Without(tree, "e", "f"), before},
		{"nowhere", manifest.Without(nil, "a"), "null"},
	} {
		if have := string(manifest.AppendJSON(nil, tt.have)); have != tt.want {
			t.Errorf("%s: have %s, want %s", tt.name, have, tt.want)
		}
	}
	if have := string(manifest.AppendJSON(nil, tree)); have != before {
		t.Errorf("the tree changed to %s", have)
	}
}

func TestCondition(t *testing.T) {
	tree := manifesttest.Tree(t, "{status: {conditions: [null, {type: A, status: 'False', reason: R}, {type: B, status: 'True'}]}}")
	for kind, want := range map[string]bool{"A": false, "B": true, "C": false, "": false} {
		if have := manifest.ConditionTrue(tree, kind); have != want {
			t.Errorf("%q: have %t", kind, have)
		}
	}
	if have := manifest.Text(manifest.Condition(tree, "A"), "reason"); have != "R" {
		t.Errorf("the reason of A is %q", have)
	}
	if have := manifest.Condition(tree, "C"); have != nil {
		t.Errorf("C is %v", have)
	}
}

func TestWithMetadata(t *testing.T) {
	o := object(t, "{apiVersion: v1, kind: A, metadata: {name: a, labels: {b: c, d: e}}, spec: {x: [1]}}")
	before := string(o.AppendJSON(nil))
	with := o.WithMetadata(map[string]string{"b": "new"}, map[string]string{"f": "g"})
	if have := string(o.AppendJSON(nil)); have != before {
		t.Errorf("the object changed to %s", have)
	}
	const want = `{"apiVersion":"v1","kind":"A","metadata":{"annotations":{"f":"g"},"labels":{"b":"new","d":"e"},"name":"a"},"spec":{"x":[1]}}`
	if have := string(with.AppendJSON(nil)); have != want {
		t.Errorf("have %s\nwant %s", have, want)
	}
	pointer := func(o *manifest.Object) uintptr { return reflect.ValueOf(o.Tree()["spec"]).Pointer() }
	if pointer(o) != pointer(with) {
		t.Error("spec is not shared")
	}
	if o.WithMetadata(nil, nil) != o {
		t.Error("nothing added makes another object")
	}
	if with.ID() != o.ID() || with.Origin() != o.Origin() {
		t.Error("ID or origin differ")
	}
}

func TestHash(t *testing.T) {
	a := object(t, "{apiVersion: v1, kind: A, metadata: {name: a}, x: 1, y: [z]}")
	b := object(t, "y: ['z']\nx: 1\nmetadata:\n  name: a\nkind: A\napiVersion: v1\n")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if a.Hash() != b.Hash() || a.Hash() != sources.DigestOf(a.AppendJSON(nil)) {
				t.Error("equal objects have different hashes")
			}
		})
	}
	wg.Wait()
	if a.WithMetadata(map[string]string{"a": "b"}, nil).Hash() == a.Hash() {
		t.Error("different objects have one hash")
	}
}

// YAML returns the format of sigs.k8s.io/yaml, which `kustomize build` prints.
func TestYAML(t *testing.T) {
	o := object(t, "{metadata: {name: a}, kind: A, apiVersion: v1, data: {'yes': 'yes', n1: 9007199254740993, f: 1.5, s: \"a\\nb\\n\", h: '<&>'}, list: [{b: 1, a: null}]}")
	out, err := o.YAML()
	if err != nil {
		t.Fatal(err)
	}
	const want = `apiVersion: v1
data:
  f: 1.5
  h: <&>
  n1: 9007199254740993
  s: |
    a
    b
  "yes": "yes"
kind: A
list:
- a: null
  b: 1
metadata:
  name: a
`
	if string(out) != want {
		t.Errorf("have\n%s\nwant\n%s", out, want)
	}
}

func TestSet(t *testing.T) {
	a := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: x}}")
	a2, err := manifest.New(a.Tree(), manifest.Origin{File: "b.yaml", Line: 5})
	if err != nil {
		t.Fatal(err)
	}
	b := object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: x}}")
	c := object(t, "{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: x}}")
	other := object(t, "{apiVersion: apps/v1beta1, kind: Deployment, metadata: {name: b, namespace: w}}")

	set, duplicates := manifest.NewSet([]*manifest.Object{c, b, other, a})
	if len(duplicates) != 0 || set.Len() != 4 || !reflect.DeepEqual(set.All(), []*manifest.Object{a, b, other, c}) {
		t.Errorf("have %v, %v", set.All(), duplicates)
	}
	for _, o := range set.All() {
		if set.Get(o.ID()) != o {
			t.Errorf("Get(%s) finds another", o.ID())
		}
	}
	if set.Get(manifest.ID{Kind: "ConfigMap", Name: "a"}) != nil {
		t.Error("Get finds what is not there")
	}
	var buf bytes.Buffer
	if err := set.WriteYAML(&buf, nil); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(buf.String(), "---\n"); n != 3 || strings.HasPrefix(buf.String(), "---") {
		t.Errorf("%d separators in\n%s", n, buf.String())
	}

	set, duplicates = manifest.NewSet([]*manifest.Object{a2, b, a})
	if set.Len() != 1 || set.Get(b.ID()) != b {
		t.Errorf("have %v, want b alone", set.All())
	}
	const want = "configmap/x/a is defined 2 times: by a.yaml:1 and by b.yaml:5; keep one definition"
	if len(duplicates) != 1 || duplicates[0].Error() != want {
		t.Errorf("have %v, want %s", duplicates, want)
	}
}

func TestAppendJSON(t *testing.T) {
	for _, tt := range []struct {
		value any
		want  string
	}{
		{nil, "null"}, {map[string]any(nil), "null"}, {[]any(nil), "null"},
		{map[string]any{}, "{}"}, {[]any{}, "[]"}, {true, "true"},
		{int64(math.MaxInt64), "9223372036854775807"}, {int64(math.MinInt64), "-9223372036854775808"},
		{math.NaN(), "null"}, {math.Inf(-1), "null"},
		{"<&>\u2028\xff\x00\b\"", `"<&>\u2028\ufffd\u0000\b\""`},
	} {
		if have := string(manifest.AppendJSON([]byte("x"), tt.value)); have != "x"+tt.want {
			t.Errorf("have %s, want %s", have[1:], tt.want)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an int is no value of a tree")
		}
	}()
	manifest.AppendJSON(nil, []any{1})
}

// The canonical form is that of encoding/json without HTML escapes.
func FuzzAppendJSON(f *testing.F) {
	for _, seed := range []string{
		`{"b":[1,2.5,-0,1e21,1e-7,123456789012345678,0.1],"a":{"":null,"x":true}}`,
		`"\u2028\u2029<&>\ud83d\ude00\u0000\u001f\u007f\\\""`, `[[],{},[{"a":[{}]}]]`, `1e-9`, `5e-324`, `1.7976931348623157e308`, `-0.0`,
		"\"\xff\xc0\xaf\"", `{"a":1,"a":2}`, `9223372036854775807`, `9223372036854775808`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		dec := json.NewDecoder(bytes.NewReader(in))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) != nil {
			return
		}
		v, ok := exact(v)
		if !ok {
			return
		}
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(v); err != nil {
			return // text that JSON has no form for, such as NaN
		}
		if have := manifest.AppendJSON(nil, v); string(have) != strings.TrimSuffix(want.String(), "\n") {
			t.Errorf("have %s\nwant %s", have, want.Bytes())
		}
	})
}

// exact turns numbers into int64 or float64, as sources.DecodeYAML does.
func exact(v any) (any, bool) {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i, true
		}
		f, err := v.Float64()
		return f, err == nil
	case []any:
		for i := range v {
			var ok bool
			if v[i], ok = exact(v[i]); !ok {
				return nil, false
			}
		}
	case map[string]any:
		for k := range v {
			var ok bool
			if v[k], ok = exact(v[k]); !ok {
				return nil, false
			}
		}
	}
	return v, true
}

// A completed object keeps the rendered one through all operations.
func TestComplete(t *testing.T) {
	rendered := object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}`)
	tree := object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v, ca: x}}`).Tree()
	o, err := rendered.Complete(tree, "data.b")
	if err != nil {
		t.Fatal(err)
	}
	if o, err = o.Complete(tree, "data.c"); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*manifest.Object{o, o.WithMetadata(map[string]string{"a": "b"}, nil).WithOrigin(manifest.Origin{File: "x"})} {
		if o.Rendered() != rendered || !slices.Equal(o.Unknown(), []string{"data.b", "data.c"}) || o.Hash() == rendered.Hash() {
			t.Errorf("rendered %v, unknown %v", o.Rendered(), o.Unknown())
		}
	}
	if rendered.Rendered() != rendered || rendered.Unknown() != nil {
		t.Error("the rendered object was changed")
	}
	other, err := o.Rewrite(func(o *manifest.Object) map[string]any {
		tree := maps.Clone(o.Tree())
		tree["immutable"] = true
		return tree
	})
	if err != nil {
		t.Fatal(err)
	}
	want := object(t, `{apiVersion: v1, kind: ConfigMap, immutable: true, metadata: {name: a}, data: {k: v}}`)
	if other.Rendered().Hash() != want.Hash() || !slices.Equal(other.Unknown(), o.Unknown()) || other.Hash() == want.Hash() {
		t.Errorf("rendered %v, unknown %v", other.Rendered(), other.Unknown())
	}
	tree = object(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}`).Tree()
	if _, err := rendered.Complete(tree); err == nil || !strings.Contains(err.Error(), "configmap/a cannot be completed to configmap/b") {
		t.Errorf("error: %v", err)
	}
}

// A tree of other types has no hash: each call panics.
func TestHashPanics(t *testing.T) {
	o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": struct{}{}}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the object has a hash")
				}
			}()
			o.Hash()
		}()
	}
}
