package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	deployment := manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "n", Name: "a"}
	secret := manifest.ID{Kind: "Secret", Namespace: "n", Name: "a"}
	long := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name          string
		id            manifest.ID
		before, after string // without apiVersion, kind and name
		want          string
	}{
		{name: "equal", before: "a: 1", after: "a: 1"},
		{name: "scalar", before: "a: 1", after: "a: 2", want: "a: 1 -> 2"},
		{name: "type", before: "a: 1", after: "a: '1'", want: `a: 1 -> "1"`},
		{name: "added", before: "a: {}", after: "a: {b: {c: [1]}}", want: `a.b: + {"c":[1]}`},
		{name: "removed", before: "a: {b: true}", after: "a: {}", want: "a.b: - true"},
		{name: "null", before: "a: null", after: "{}", want: "a: - null"},
		{name: "maintained", before: "status: {a: 1}", after: "status: {a: 2}"},
		{name: "keys that need quotes", before: "a: {b.c/d: 1, 'x y': 1, e-f: 1}", after: "a: {b.c/d: 2, 'x y': 2, e-f: 2}", want: `a["b.c/d"]: 1 -> 2|a.e-f: 1 -> 2|a["x y"]: 1 -> 2`},
		{name: "by name", before: "l: [{name: a, v: 1}, {name: b, v: 1}]", after: "l: [{name: b, v: 2}, {name: c}]", want: `l[name=a]: - {"name":"a","v":1}|l[name=b].v: 1 -> 2|l[name=c]: + {"name":"c"}`},
		{name: "by port", before: "l: [{port: 1}, {port: 1, protocol: UDP}]", after: "l: [{port: 1, x: y1}, {port: 1, protocol: UDP}]", want: `l[port=1].x: + "y1"`},
		{name: "order", before: "l: [{name: a}, {name: b}]", after: "l: [{name: b}, {name: a}]", want: `l (order): "[name=a] [name=b]" -> "[name=b] [name=a]"`},
		{name: "by index", before: "l: [1, 2]", after: "l: [1, 3, 4]", want: "l[1]: 2 -> 3|l[2]: + 4"},
		{name: "names that repeat", before: "l: [{name: a, v: 1}, {name: a, v: 2}]", after: "l: [{name: a, v: 1}]", want: `l[1]: - {"name":"a","v":2}`},
		{name: "list to map", before: "l: [1]", after: "l: {a: 1}", want: `l: [1] -> {"a":1}`},
		{name: "long", before: "a: " + long, after: "a: " + long + "y", want: `a: "` + long[:79] + `…" (200 characters) -> "` + long[:79] + `…" (201 characters)`},
		{name: "long map", before: "{}", after: "a: {b: " + long + ", c: 1}", want: "a: + {b, c}"},
		{name: "long list", before: "{}", after: "a: [" + long + "]", want: "a: + [1 element]"},
		{name: "markup", before: "a: <b>", after: "a: '&'", want: `a: "<b>" -> "&"`},
		{name: "secret", id: secret, before: "data: {a: hunter1, b: hunter2}\ntype: Opaque", after: "data: {a: hunter3, c: hunter4}\ntype: other", want: `data.a: (changed)|data.b: (removed)|data.c: (added)|type: "Opaque" -> "other"`},
		{name: "whole secret", id: secret, before: "{}", after: "data: {a: hunter1}", want: "data.a: (added)"},
		{name: "secret goes", id: secret, before: "data: {a: hunter1}", after: "{}", want: "data.a: (removed)"},
		{name: "odd secret", id: secret, before: "data: hunter1", after: "data: hunter2\nother: [hunter3]", want: "data: (changed)|other: (added)"},
		{
			name: "last applied", before: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter1}}",
			after: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter2}}",
			want:  `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: (changed)`,
		},
		{
			name: "all annotations", before: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter1, a: b}}",
			after: "metadata: {}", want: `metadata.annotations: - {"a":"b"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			id := tt.id
			if id == (manifest.ID{}) {
				id = deployment
			}
			var trees []map[string]any
			for _, body := range []string{tt.before, tt.after} {
				name := "metadata: {name: a}\n"
				if strings.HasPrefix(body, "metadata: {") {
					name, body = "", strings.Replace(body, "metadata: {", "metadata: {name: a, ", 1)
				}
				if body == "{}" {
					body = ""
				}
				trees = append(trees, manifesttest.Objects(t, "apiVersion: apps/v1\nkind: Deployment\n"+name+body)[0].Tree())
			}
			var lines []string
			for _, c := range plan.Diff(id, trees[0], trees[1]) {
				lines = append(lines, c.String())
				if strings.Contains(fmt.Sprintf("%v", c), "hunter") || strings.Contains(fmt.Sprintf("%+v", struct{ Old, New any }{c.Old, c.New}), "hunter") {
					t.Errorf("a value is shown: %+v", c)
				}
			}
			if have := strings.Join(lines, "|"); have != tt.want {
				t.Errorf("have %s\nwant %s", have, tt.want)
			}
		})
	}
}

// An unknown field replaces all changes in it, but not those of a field with a longer
// name, or of the mapping that it is in.
func TestReveal(t *testing.T) {
	changes := []plan.Change{
		{Path: "data.a", Removed: true, Old: "x"}, {Path: "data.ab", Added: true, New: "y"}, {Path: "spec.tls.ca", Added: true, New: "z"},
		{Path: "spec.tls[0]", Removed: true},
		{Path: "status", Removed: true, Old: map[string]any{"a": "x", "b": map[string]any{"c": "y", "d.e": "z"}}},
	}
	var have []string
	for _, c := range plan.Reveal(changes, []string{"spec.tls", "data.a", "spec.tls", `status.b["d.e"]`}) {
		have = append(have, c.String())
	}
	want := []string{"data.a: (known after apply)", `data.ab: + "y"`, "spec.tls: (known after apply)",
		`status.a: - "x"`, `status.b.c: - "y"`, `status.b["d.e"]: (known after apply)`}
	if !slices.Equal(have, want) {
		t.Errorf("have %q, want %q", have, want)
	}
}
