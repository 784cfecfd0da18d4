package plan_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest/manifesttest"
)

func TestDiff(t *testing.T) {
	t.Parallel()
	deployment, secret := "apiVersion: apps/v1\nkind: Deployment\n", "apiVersion: v1\nkind: Secret\n"
	inner := func(rest string) string { return "spec: {templates: [{apiVersion: v1, kind: Secret, " + rest + "}]}" }
	long := strings.Repeat("x", 200)
	for _, tt := range []struct {
		name          string
		kind          string
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
		{name: "secret", kind: secret, before: "data: {a: hunter1, b: hunter2}\ntype: Opaque", after: "data: {a: hunter3, c: hunter4}\ntype: other", want: `data.a: (changed)|data.b: (removed)|data.c: (added)|type: "Opaque" -> "other"`},
		{name: "whole secret", kind: secret, before: "{}", after: "data: {a: hunter1}", want: "data.a: (added)"},
		{name: "secret goes", kind: secret, before: "data: {a: hunter1}", after: "{}", want: "data.a: (removed)"},
		{name: "odd secret", kind: secret, before: "data: hunter1", after: "data: hunter2\nother: [hunter3]", want: "data: (changed)|other: (added)"},
		{
			name: "last applied", before: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter1}}",
			after: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter2}}",
			want:  `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]: (changed)`,
		},
		{
			name: "all annotations", before: "metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter1, a: b}}",
			after: "metadata: {}", want: `metadata.annotations: - {"a":"b","kubectl.kubernetes.io/last-applied-configuration":"(hidden)"}`,
		},
		{name: "list of a secret", kind: secret, before: "data: [{name: hunter1}]", after: "data: [{name: hunter2}, {name: hunter1}]", want: "data: (changed)"},
		{name: "secret inside", before: inner("stringData: {a: hunter1}"), after: inner("stringData: {a: hunter2, b: hunter3}"), want: "spec.templates[0].stringData.a: (changed)|spec.templates[0].stringData.b: (added)"},
		{name: "secret inside, whole data", before: inner("immutable: true"), after: inner("immutable: false, data: {a: hunter2}"), want: "spec.templates[0].data.a: (added)|spec.templates[0].immutable: true -> false"},
		{name: "whole secret inside", before: "spec: {}", after: inner("data: {a: hunter2}"), want: `spec.templates: + [{"apiVersion":"v1","data":{"a":"(hidden)"},"kind":"Secret"}]`},
		{name: "secret inside for another object", before: "spec: {t: {apiVersion: v1, kind: ConfigMap, data: {a: b}}}", after: "spec: {t: {apiVersion: v1, kind: Secret, data: {a: hunter2}}}", want: `spec.t.data.a: (changed)|spec.t.kind: "ConfigMap" -> "Secret"`},
		{name: "object inside for a secret", before: "spec: {t: {apiVersion: v1, kind: Secret, data: {a: hunter2}}}", after: "spec: {t: {apiVersion: v1, kind: ConfigMap, data: {a: b}}}", want: `spec.t.data.a: (changed)|spec.t.kind: "Secret" -> "ConfigMap"`},
		{name: "secrets in a list", before: "spec: {l: [{apiVersion: v1, kind: Secret, key: hunter1}]}", after: "spec: {l: [{apiVersion: v1, kind: Secret, key: hunter2}]}", want: "spec.l[0].key: (changed)"},
		{
			name: "last applied inside", before: "spec: {t: {metadata: {}}}", after: "spec: {t: {metadata: {annotations: {kubectl.kubernetes.io/last-applied-configuration: hunter1, a: b}}}}",
			want: `spec.t.metadata.annotations: + {"a":"b","kubectl.kubernetes.io/last-applied-configuration":"(hidden)"}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kind := cmp.Or(tt.kind, deployment)
			var trees []map[string]any
			for _, body := range []string{tt.before, tt.after} {
				name := "metadata: {name: a}\n"
				if strings.HasPrefix(body, "metadata: {") {
					name, body = "", strings.Replace(body, "metadata: {", "metadata: {name: a, ", 1)
				}
				if body == "{}" {
					body = ""
				}
				trees = append(trees, manifesttest.Objects(t, kind+name+body)[0].Tree())
			}
			var lines []string
			for _, c := range plan.Diff(trees[0], trees[1]) {
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
