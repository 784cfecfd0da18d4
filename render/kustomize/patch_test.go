package kustomize

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

func apply(t *testing.T, all []*manifest.Object, patches ...Patch) ([]*manifest.Object, error) {
	t.Helper()
	p, err := NewPatches(patches)
	if err != nil {
		return nil, err
	}
	return p.Apply(t.Context(), all)
}

// A patch of a label changes no other value of the object, or is refused.
func TestPatchesKeepTheRest(t *testing.T) {
	t.Parallel()
	const rounds, merges = "patches: widget.acme.example/w: spec.v: JSON 6902 operations would round this number", "patches: widget.acme.example/w: spec.v.<<: kustomize reads this key as a merge"
	operations := Patch{Target: &Selector{Kind: "Widget"}, Patch: "- {op: add, path: /metadata/labels, value: {a: b}}"}
	merge := Patch{Target: &Selector{Kind: "Widget"}, Patch: "kind: Widget\nmetadata: {name: w, labels: {a: b}}"}
	for _, tt := range []struct {
		value any
		errs  [2]string // of operations, of a strategic merge patch
	}{
		{value: int64(9007199254740993), errs: [2]string{rounds, ""}},
		{value: int64(math.MaxInt64), errs: [2]string{rounds, ""}},
		{value: map[string]any{"<<": "m"}, errs: [2]string{merges, merges}},
		{value: int64(-9007199254740992)},
		{value: []any{1.5, 1e21, 1e-7, true, nil, map[string]any{}, []any{}}},
		{value: map[string]any{"2024-01-01": "x", "yes": "y", "1": "2", "null": nil, "~": "t", "a: b": "c"}},
		{value: []any{"2012-10-17", "yes", "1e3", "0x10", "null", "~", "<<", ".inf", "1_000", "\ufeffx", " a ", "a\r\nb", "# c", "- x", "*a", "!x", "", "\x7f", "\u0085", "\na\n\n", "---\nx", "..."}},
	} {
		for i, patch := range []Patch{operations, merge} {
			o, err := manifest.New(map[string]any{"apiVersion": "acme.example/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"}, "spec": map[string]any{"v": tt.value}}, manifest.Origin{})
			if err != nil {
				t.Fatal(err)
			}
			after, err := apply(t, []*manifest.Object{o}, patch)
			if want := tt.errs[i]; want != "" || err != nil {
				if want == "" || err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%#v: have %v, want %q", tt.value, err, want)
				}
				continue
			}
			have, want := manifest.AppendJSON(nil, manifest.Mapping(after[0].Tree(), "spec")), manifest.AppendJSON(nil, manifest.Mapping(o.Tree(), "spec"))
			if string(have) != string(want) {
				t.Errorf("have %s\nwant %s", have, want)
			}
		}
	}
}

const patchObjects = `apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: x, labels: {app: web}}
data: {k: v}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: ab, namespace: x}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: z, annotations: {note: m}}
spec: {template: {spec: {containers: [{name: c, image: i, envFrom: [{configMapRef: {name: ab}}]}]}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: as.example.org}
spec: {group: example.org}
`

func TestPatches(t *testing.T) {
	t.Parallel()
	label := "- {op: add, path: /metadata/labels, value: {patched: 'yes'}}"
	for _, tt := range []struct {
		name    string
		patches []Patch
		// changed and gone are names of objects.
		changed, gone string
		err           string
	}{
		{name: "none"},
		{name: "kind", patches: []Patch{{Target: &Selector{Kind: "ConfigMap"}, Patch: label}}, changed: "a ab"},
		{name: "name is anchored", patches: []Patch{{Target: &Selector{Kind: "ConfigMap", Name: "a"}, Patch: label}}, changed: "a"},
		{name: "name is a regular expression", patches: []Patch{{Target: &Selector{Kind: "ConfigMap", Name: "a|x"}, Patch: label}}, changed: "a"},
		{name: "group and version", patches: []Patch{{Target: &Selector{Group: "apiextensions.*", Version: "v1"}, Patch: label}}, changed: "as.example.org"},
		{name: "namespace", patches: []Patch{{Target: &Selector{Namespace: "z"}, Patch: label}}, changed: "a"},
		{name: "label", patches: []Patch{{Target: &Selector{LabelSelector: "app in (web)"}, Patch: label}}, changed: "a"},
		{name: "annotation", patches: []Patch{{Target: &Selector{AnnotationSelector: "note"}, Patch: label}}, changed: "a"},
		{name: "nothing", patches: []Patch{{Target: &Selector{Kind: "X"}, Patch: label}}},
		{name: "no change", patches: []Patch{{Target: &Selector{Kind: "ConfigMap", Name: "a"}, Patch: "- {op: replace, path: /data/k, value: v}"}}},
		{name: "one after the other", patches: []Patch{
			{Target: &Selector{Kind: "ConfigMap"}, Patch: label},
			{Target: &Selector{LabelSelector: "patched"}, Patch: "- {op: add, path: /data, value: {x: y}}"},
		}, changed: "a ab"},
		{name: "merge", patches: []Patch{{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x}\ndata: {k: w}"}}, changed: "a"},
		{name: "merge two", patches: []Patch{{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x}\ndata: {k: w}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: ab, namespace: x}\ndata: {k: w}"}}, changed: "a ab"},
		{name: "delete", patches: []Patch{{Target: &Selector{Kind: "ConfigMap"}, Patch: "$patch: delete\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}"}}, gone: "a ab"},
		{name: "rename mends references", patches: []Patch{{Target: &Selector{Kind: "ConfigMap", Name: "ab"}, Patch: "- {op: replace, path: /metadata/name, value: abc}\n- {op: remove, path: /metadata/namespace}"}}, changed: "ab"},

		{name: "by its new name", patches: []Patch{
			{Target: &Selector{Kind: "ConfigMap", Name: "a"}, Patch: "- {op: replace, path: /metadata/name, value: new}"},
			{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: new, namespace: x}\ndata: {k: w}"},
		}, changed: "a"},

		{name: "empty", patches: []Patch{{Patch: " "}}, err: "patches.0: the patch is empty"},
		{name: "operations without a target", patches: []Patch{{Patch: label}}, err: "patches.0: a list of JSON 6902 operations needs a target"},
		{name: "merge for nothing", patches: []Patch{{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}"}}, err: "patches.0: there is no ConfigMap a; give the patch a target"},
		{name: "date", patches: []Patch{{Target: &Selector{Kind: "ConfigMap"}, Patch: "kind: ConfigMap\nmetadata: {name: a}\ndata: {k: 2012-10-17}"}}, err: "patches.0: data.k: is a date without quotes, which kustomize would write as a time; quote it"},
		{name: "long number", patches: []Patch{{Target: &Selector{Kind: "ConfigMap"}, Patch: "- {op: add, path: /x, value: 9007199254740993}"}}, err: "patches.0: 0.value: JSON 6902 operations would round this number"},
		{name: "malformed", patches: []Patch{{Target: &Selector{}, Patch: "x: y"}}, err: "patches.0: is neither a list of JSON 6902 operations nor a strategic merge patch"},
		{name: "duplicate key", patches: []Patch{{Target: &Selector{}, Patch: "x: y\nx: y"}}, err: `patches.0: patch, line 2: duplicate key "x"`},
		{name: "several with a target", patches: []Patch{{Target: &Selector{}, Patch: "kind: A\nmetadata: {name: a}\n---\nkind: A\nmetadata: {name: b}"}}, err: "patches.0: a strategic merge patch with a target is one document, not 2"},
		{name: "regular expression", patches: []Patch{{Target: &Selector{Name: "("}, Patch: label}}, err: "patches.0: target: error parsing regexp"},
		{name: "label selector", patches: []Patch{{Target: &Selector{LabelSelector: "a in"}, Patch: label}}, err: "patches.0: target.labelSelector"},
		{name: "annotation selector", patches: []Patch{{Target: &Selector{AnnotationSelector: "a in"}, Patch: label}}, err: "patches.0: target.annotationSelector"},
		{name: "merge for nothing by its new name", patches: []Patch{
			{Target: &Selector{Kind: "ConfigMap", Name: "a"}, Patch: "- {op: replace, path: /metadata/name, value: new}"},
			{Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: newer, namespace: x}\ndata: {k: w}"},
		}, err: "patches.1: a patch is for ConfigMap newer, which is not among the resources"},
		{name: "two of one name", patches: []Patch{{Target: &Selector{Kind: "ConfigMap"}, Patch: "- {op: replace, path: /metadata/name, value: new}"}}, err: "patches.0: more than one object would be ConfigMap new"},
		{name: "does not apply", patches: []Patch{
			{Target: &Selector{Kind: "ConfigMap"}, Patch: label},
			{Target: &Selector{Kind: "Deployment"}, Patch: "- {op: remove, path: /spec/x}"},
		}, err: "patches.1: error in remove for path: '/spec/x'"},
		{name: "makes no object", patches: []Patch{{Target: &Selector{Kind: "ConfigMap", Name: "a"}, Patch: "- {op: replace, path: /metadata/labels, value: {x: 1}}"}}, err: "metadata.labels: x: want a string"},
		{name: "growing", patches: []Patch{{Target: &Selector{}, Patch: strings.Repeat("- {op: copy, from: /a, path: /a/b}\n", 12)}}, err: "more than 1000 times as large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := manifesttest.Objects(t, patchObjects)
			before := stream(t, all)
			after, err := apply(t, all, tt.patches...)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("have %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var changed, gone []string
			i := 0
			for _, o := range all {
				switch {
				case i < len(after) && after[i] == o:
					i++
				case i < len(after) && after[i].ID().Kind == o.ID().Kind && after[i].Origin() == o.Origin():
					changed = append(changed, o.ID().Name)
					i++
				default:
					gone = append(gone, o.ID().Name)
				}
			}
			if have := strings.Join(changed, " "); have != tt.changed {
				t.Errorf("changed %q, want %q:\n%s", have, tt.changed, stream(t, after))
			}
			if have := strings.Join(gone, " "); have != tt.gone {
				t.Errorf("gone %q, want %q", have, tt.gone)
			}
			if i != len(after) || stream(t, all) != before {
				t.Errorf("%d objects too many, or the input changed", len(after)-i)
			}
			want := everything(t, all, tt.patches)
			if have := sortedStream(t, after); have != want {
				t.Errorf("have\n%s\nwant\n%s", have, want)
			}
		})
	}
}

// An object that kustomize could not patch in bounded time is an error, even if it is of a
// package.
func TestPatchesEnd(t *testing.T) {
	t.Parallel()
	data := make(map[string]any)
	for i := range 32_000 {
		data[fmt.Sprint("k", i)] = "v"
	}
	o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"}, "data": data}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	label := "- {op: add, path: /metadata/labels, value: {a: b}}"
	for _, patch := range []Patch{{Target: &Selector{}, Patch: label}, {Patch: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}"}} {
		_, err := apply(t, []*manifest.Object{o}, patch, patch)
		if want := "patches: configmap/a: mappings or lists have too many entries for kustomize"; !errors.Is(err, sources.ErrLimit) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("have %v, want %q", err, want)
		}
	}
}

// everything returns kustomize's result for all objects and patches at once.
func everything(t *testing.T, all []*manifest.Object, patches []Patch) string {
	t.Helper()
	dir := t.TempDir()
	var k strings.Builder
	k.WriteString("resources: [objects.yaml]\npatches:\n")
	for i, p := range patches {
		fmt.Fprintf(&k, "- path: p%d.yaml\n", i)
		if c := p.Target; c != nil {
			fmt.Fprintf(&k, "  target: {group: %q, version: %q, kind: %q, name: %q, namespace: %q, labelSelector: %q, annotationSelector: %q}\n",
				c.Group, c.Version, c.Kind, c.Name, c.Namespace, c.LabelSelector, c.AnnotationSelector)
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("p%d.yaml", i)), []byte(p.Patch), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{"kustomization.yaml": k.String(), "objects.yaml": stream(t, all)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	schema.Lock()
	defer schema.Unlock()
	return sortedStream(t, manifesttest.Objects(t, krustyRun(t, dir)))
}

func sortedStream(t *testing.T, all []*manifest.Object) string {
	t.Helper()
	set, duplicates := manifest.NewSet(all)
	if len(duplicates) > 0 {
		t.Fatal(duplicates)
	}
	return stream(t, set.All())
}

// For generated patches and objects that refer to each other, the result is kustomize's for
// all of them at once.
func TestPatchesAreKustomizes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 1))
			all, patches, after := generateCase(t, r)
			if have, want := sortedStream(t, after), everything(t, all, patches); have != want {
				t.Errorf("patches %+v\nof\n%s\nhave\n%s\nwant\n%s", patches, stream(t, all), have, want)
			}
		})
	}
}

// generateCase generates patches until they can be applied. TestPatches has patches that
// cannot, for which kustomize is not a reference: it accepts some duplicates.
func generateCase(t *testing.T, r *rand.Rand) (all []*manifest.Object, patches []Patch, after []*manifest.Object) {
	t.Helper()
	for range 20 {
		all, patches = generateObjects(t, r), nil
		for range 1 + r.IntN(4) {
			patches = append(patches, generatePatch(r, all))
		}
		var err error
		if after, err = apply(t, all, patches...); err != nil {
			continue
		}
		if _, duplicates := manifest.NewSet(after); len(duplicates) == 0 {
			return all, patches, after
		}
	}
	t.Fatal("20 cases in a row cannot be applied")
	return nil, nil, nil
}

func pick[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

func generateObjects(t *testing.T, r *rand.Rand) []*manifest.Object {
	names, namespaces := []string{"a", "b", "ab"}, []string{"", "x", "z"}
	seen := make(map[string]bool)
	var docs []string
	for range 4 + r.IntN(12) {
		name, namespace, other := pick(r, names...), pick(r, namespaces...), pick(r, names...)
		apiVersion, kind := "v1", ""
		rest := ""
		switch r.IntN(9) {
		case 0:
			kind, rest = "ConfigMap", "data: {k: v}"
		case 1:
			kind, rest = "Secret", "stringData: {k: v}"
		case 2:
			apiVersion, kind, rest = "apps/v1", "Deployment", "spec: {template: {spec: {serviceAccountName: "+other+", containers: [{name: c, image: i, envFrom: [{configMapRef: {name: "+other+"}}, {secretRef: {name: "+other+"}}]}]}}}"
		case 3:
			kind, rest = "Service", "spec: {selector: {app: "+other+"}}"
		case 4:
			kind = "ServiceAccount"
		case 5:
			apiVersion, kind, rest = "rbac.authorization.k8s.io/v1", "RoleBinding", "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: "+other+"}\nsubjects: [{kind: ServiceAccount, name: "+other+"}, {kind: ServiceAccount, name: a, namespace: x}]"
		case 6:
			apiVersion, kind, rest = "rbac.authorization.k8s.io/v1", "Role", "rules: []"
		case 7:
			apiVersion, kind, namespace, rest = "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "webhooks: [{name: w, clientConfig: {service: {name: "+other+", namespace: x, path: /p}}}]"
		case 8:
			apiVersion, kind, namespace, rest = "apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "spec: {group: example.org, conversion: {webhook: {clientConfig: {service: {name: "+other+"}}}}}"
		}
		// Kustomize takes no namespace for the namespace default.
		key := kind + "/" + namespace + "/" + name
		if seen[key] {
			continue
		}
		seen[key] = true
		meta := "name: " + name
		if namespace != "" {
			meta += ", namespace: " + namespace
		}
		if r.IntN(2) == 0 {
			meta += ", labels: {app: " + other + "}"
		}
		if r.IntN(3) == 0 {
			meta += ", annotations: {note: " + other + "}"
		}
		docs = append(docs, "apiVersion: "+apiVersion+"\nkind: "+kind+"\nmetadata: {"+meta+"}\n"+rest+"\n")
	}
	return manifesttest.Objects(t, strings.Join(docs, "---\n"))
}

func generatePatch(r *rand.Rand, all []*manifest.Object) Patch {
	o := pick(r, all...)
	if r.IntN(4) == 0 {
		namespace := ""
		if o.ID().Namespace != "" {
			namespace = ", namespace: " + o.ID().Namespace
		}
		return Patch{Patch: fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s%s, labels: {app: %s}}\n%s", o.APIVersion(), o.ID().Kind, o.ID().Name, namespace, pick(r, "a", "b"), pick(r, "", "$patch: delete\n", "data: {k: w}\n"))}
	}
	target := &Selector{
		Kind: pick(r, "", o.ID().Kind, o.ID().Kind, ".*Account|Service"), Name: pick(r, "", o.ID().Name, "a.*", "a|b"),
		Namespace: pick(r, "", "", o.ID().Namespace, "x|default"), Group: pick(r, "", "", o.ID().Group), Version: pick(r, "", "v1"),
		LabelSelector: pick(r, "", "", "app=a", "app notin (b)", "!app"), AnnotationSelector: pick(r, "", "", "", "note"),
	}
	return Patch{Target: target, Patch: pick(r,
		"- {op: add, path: /metadata/labels, value: {app: b, new: 'true'}}",
		"- {op: add, path: /metadata/annotations, value: {note: a}}",
		"- {op: replace, path: /metadata/name, value: renamed}",
		"- {op: add, path: /metadata/namespace, value: x}",
		"- {op: copy, from: /metadata/name, path: /copied}",
		"apiVersion: v1\nkind: X\nmetadata: {name: x, labels: {app: a}}\nextra: {list: [1, 1.5, null, 'yes']}",
		"apiVersion: v1\nkind: X\nmetadata: {name: x, annotations: {note: null}}\nsubjects: null",
		"$patch: delete\nkind: X\nmetadata: {name: x}",
	)}
}

// Clusters with the same patches share patched objects, until they are swept.
func TestPatchedObjectsAreShared(t *testing.T) {
	t.Parallel()
	all := manifesttest.Objects(t, patchObjects)
	p, err := NewPatches([]Patch{{Target: &Selector{Kind: "CustomResourceDefinition"}, Patch: "- {op: add, path: /x, value: y}"}})
	if err != nil {
		t.Fatal(err)
	}
	apply := func() []*manifest.Object {
		after, err := p.Apply(t.Context(), all)
		if err != nil {
			t.Fatal(err)
		}
		return after
	}
	first := apply()
	if first[3] == all[3] || !slices.Equal(first[:3], all[:3]) {
		t.Fatal("it is not the type alone that was patched")
	}
	if !slices.Equal(apply(), first) {
		t.Error("a second cluster gets other objects")
	}
	p.Sweep()
	if !slices.Equal(apply(), first) {
		t.Error("objects that were asked for are forgotten")
	}
	p.Sweep()
	p.Sweep()
	if len(p.made) != 0 {
		t.Errorf("%d objects are remembered that nobody asked for", len(p.made))
	}
}

// JSON allows characters in strings that YAML requires escapes for.
func TestPatchOddCharacters(t *testing.T) {
	t.Parallel()
	const odd = "a\x00\x1b\x7f\u0080\u0085\u00a0\u2028\ufeff\uffff\U0001f600<<: *x\n---\n\t\"\\"
	o, err := manifest.New(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a"},
		"data": map[string]any{odd: odd, "yes": "no", "1": "0x10", "null": "~"}, "n": int64(9007199254740992), "f": 1e100, "e": []any{}, "z": nil,
	}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := apply(t, []*manifest.Object{o}, Patch{Target: &Selector{}, Patch: "- {op: add, path: /metadata/labels, value: {a: b}}"})
	if err != nil {
		t.Fatal(err)
	}
	if have, want := string(after[0].AppendJSON(nil)), string(o.WithMetadata(map[string]string{"a": "b"}, nil).AppendJSON(nil)); have != want {
		t.Errorf("have %q\nwant %q", have, want)
	}
}

// A patch is idle if its target matches nothing, unless an earlier patch may have renamed
// its object.
func TestIdlePatches(t *testing.T) {
	t.Parallel()
	all := manifesttest.Objects(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: a}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: login, namespace: a}}")
	const add = "- {op: add, path: /data, value: {a: b}}"
	of := func(kind, name string) Patch { return Patch{Target: &Selector{Kind: kind, Name: name}, Patch: add} }
	for _, tt := range []struct {
		name    string
		patches []Patch
		want    string
	}{
		{"all match", []Patch{of("ConfigMap", "s.*"), of("", "login")}, "[]"},
		{"kind", []Patch{of("ConfigMpa", "")}, "[{0 kind: ConfigMpa ; did you mean ConfigMap?}]"},
		{"name", []Patch{of("ConfigMap", "setings"), of("Secret", "elsewhere")}, "[{0 kind: ConfigMap, name: setings ; did you mean settings?} {1 kind: Secret, name: elsewhere }]"},
		{"after a rename", []Patch{of("Secret", "login"), of("Secret", "renamed")}, "[]"},
	} {
		p, err := NewPatches(tt.patches)
		if err != nil {
			t.Fatal(err)
		}
		if have := fmt.Sprint(p.Idle(all)); have != tt.want {
			t.Errorf("%s: have %s, want %s", tt.name, have, tt.want)
		}
	}
}
