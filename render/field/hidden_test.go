package field_test

import (
	"encoding/json"
	"testing"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest/manifesttest"
)

func TestHidden(t *testing.T) {
	t.Parallel()
	secret, other := map[string]any{"apiVersion": "v1", "kind": "Secret"}, map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}
	inside := map[string]any{"apiVersion": "example.org/v1", "kind": "Thing", "spec": map[string]any{"list": []any{other, secret}, "name": secret}}
	for _, tt := range []struct {
		path          string
		secret, other bool
		inside        bool
	}{
		{path: "data", secret: true}, {path: "data.token", secret: true}, {path: "stringData.token", secret: true}, {path: "unknown", secret: true},
		{path: "metadata.labels.data"}, {path: "type"}, {path: "immutable"}, {path: "kind"},
		{path: "name"}, {path: "namespace"}, {path: "fieldPath"}, // a reference has these
		{path: `metadata.annotations["` + field.LastApplied + `"]`, secret: true, other: true, inside: true},
		{path: "spec.name.stringData.a", secret: true, inside: true},
		{path: "spec.name.metadata.name", secret: true},
		{path: "spec.list[1].data", secret: true, inside: true},
		{path: "spec.list[0].data", secret: true},
		{path: "spec.list[kind=Secret].data.a", secret: true, inside: true},
		{path: "spec.list[7].data", secret: true},
		{path: `spec.list[0].metadata.annotations["` + field.LastApplied + `"]`, secret: true, other: true, inside: true},
	} {
		path, err := field.Parse(tt.path)
		if err != nil {
			t.Fatal(err)
		}
		if path.Hidden(secret) != tt.secret || path.Hidden(other) != tt.other || path.Hidden(inside) != tt.inside {
			t.Errorf("%s: hidden of a Secret: %t, of another object: %t, of one with Secrets inside: %t", tt.path, path.Hidden(secret), path.Hidden(other), path.Hidden(inside))
		}
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, tree, want string }{
		{"a Secret", "{apiVersion: v1, kind: Secret, type: Opaque, data: {a: b}, stringData: {c: d, e: [f]}}", `{"apiVersion":"v1","data":{"a":"-"},"kind":"Secret","stringData":{"c":"-","e":"-"},"type":"Opaque"}`},
		{"an odd Secret", "{apiVersion: v1, kind: Secret, data: b, other: [c]}", `{"apiVersion":"v1","data":"-","kind":"Secret","other":"-"}`},
		{"a Secret of another group", "{apiVersion: example.org/v1, kind: Secret, data: {a: b}}", `{"apiVersion":"example.org/v1","data":{"a":"b"},"kind":"Secret"}`},
		{"annotations", "{apiVersion: v1, kind: A, metadata: {annotations: {" + field.LastApplied + ": b, c: d}}}", `{"apiVersion":"v1","kind":"A","metadata":{"annotations":{"c":"d","` + field.LastApplied + `":"-"}}}`},
		{"a Composition's base", "{apiVersion: v1, kind: A, spec: {resources: [{base: {apiVersion: v1, kind: Secret, stringData: {a: b}}}]}}", `{"apiVersion":"v1","kind":"A","spec":{"resources":[{"base":{"apiVersion":"v1","kind":"Secret","stringData":{"a":"-"}}}]}}`},
		{"a template without an apiVersion", "{apiVersion: v1, kind: A, spec: {kind: Secret, stringData: {a: b}}}", `{"apiVersion":"v1","kind":"A","spec":{"kind":"Secret","stringData":{"a":"-"}}}`},
		{"references", "{apiVersion: v1, kind: A, spec: [{kind: Secret, name: a, key: b}, {apiVersion: v1, kind: Secret, name: a, fieldPath: c}]}", `{"apiVersion":"v1","kind":"A","spec":[{"key":"b","kind":"Secret","name":"a"},{"apiVersion":"v1","fieldPath":"c","kind":"Secret","name":"a"}]}`},
	} {
		tree := manifesttest.Tree(t, tt.tree)
		before, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		have, err := json.Marshal(field.Redact(tree, func(any) any { return "-" }))
		if err != nil || string(have) != tt.want {
			t.Errorf("%s: have %s, %v\nwant %s", tt.name, have, err, tt.want)
		}
		if after, _ := json.Marshal(tree); string(after) != string(before) {
			t.Errorf("%s: the tree has changed to %s", tt.name, after)
		}
	}
	odd := map[any]any{"apiVersion": "v1", "kind": "Secret", "data": map[any]any{1: "a"}}
	if have, err := json.Marshal(field.Redact(odd, func(any) any { return "-" })); err != nil || string(have) != `{"apiVersion":"v1","data":{"1":"-"},"kind":"Secret"}` {
		t.Errorf("have %s, %v", have, err)
	}
}
