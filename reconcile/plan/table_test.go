package plan

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
)

// crd is a definition of the kind Thing<i>, whose objects have the given fields.
func crd(t *testing.T, i int, fields ...string) *manifest.Object {
	t.Helper()
	properties := make(map[string]any)
	for _, f := range fields {
		properties[f] = map[string]any{"type": "string"}
	}
	plural := fmt.Sprintf("things%d", i)
	return object(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".acme.example", "labels": map[string]any{PackageLabel: "things"}},
		"spec": map[string]any{
			"group": "acme.example", "scope": "Namespaced", "names": map[string]any{"kind": fmt.Sprintf("Thing%d", i), "plural": plural},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": properties}}}},
		},
	})
}

func setOf(t *testing.T, objects ...*manifest.Object) *manifest.Set {
	t.Helper()
	s, duplicates := manifest.NewSet(objects)
	if len(duplicates) > 0 {
		t.Fatal(duplicates[0])
	}
	return s
}

// A bump, in three clusters of which two had the same before. The third allows
// what breaks.
func bumped(t *testing.T) *Fleet {
	before := setOf(t, crd(t, 0, "a", "b"), crd(t, 1, "a"), crd(t, 2, "a"), crd(t, 3, "a", "b"))
	after := setOf(t, crd(t, 0, "a"), crd(t, 1, "a", "b"), crd(t, 3, "a", "b"), crd(t, 4, "a"))
	var c Comparer
	allowed := func(_ string, f compat.Finding) (string, bool) { return "nobody uses it", true }
	from, to := map[string]string{"things": "reg.io/things v1.0.0"}, map[string]string{"things": "reg.io/things v2.0.0"}
	return &Fleet{Source: "working tree", Clusters: []ClusterPlan{
		{Name: "dev", Packages: to, Before: from, Plan: c.Between("dev", before, after, nil, nil)},
		{Name: "test", Packages: to, Before: from, Plan: c.Between("test", before, after, nil, nil)},
		{Name: "prod", Packages: to, Before: from, Plan: c.Between("prod", before, after, allowed, nil)},
	}}
}

func TestTypeTables(t *testing.T) {
	for name, write := range map[string]func(*Fleet, *strings.Builder) error{
		"types.txt":     func(f *Fleet, b *strings.Builder) error { return f.WriteText(b, TextOptions{}) },
		"types-all.txt": func(f *Fleet, b *strings.Builder) error { return f.WriteText(b, TextOptions{All: true}) },
		"types.json":    func(f *Fleet, b *strings.Builder) error { return f.WriteJSON(b) },
		"types.md":      func(f *Fleet, b *strings.Builder) error { return f.WriteMarkdown(b) },
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := write(bumped(t), &b); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("%s differs (go test -update writes it); have\n%s", golden, b.String())
			}
		})
	}
}

// A bump of a package with very many types, in many clusters, is a few lines to
// read, and every definition is compared once.
func TestTypeTablesOfLargePackages(t *testing.T) {
	const definitions, clusters = 300, 20
	var old, now []*manifest.Object
	for i := range definitions {
		old = append(old, crd(t, i, "a", "b"))
		if i%3 == 0 {
			now = append(now, crd(t, i, "a"))
		} else {
			now = append(now, crd(t, i, "a", "b", "c"))
		}
	}
	before, after := setOf(t, old...), setOf(t, now...)
	var c Comparer
	f := &Fleet{Source: "working tree"}
	for i := range clusters {
		name := fmt.Sprintf("cluster-%d", i)
		f.Clusters = append(f.Clusters, ClusterPlan{Name: name, Packages: map[string]string{"things": "reg.io/things v2.0.0"}, Plan: c.Between(name, before, after, nil, nil)})
	}
	if len(c.done) != definitions {
		t.Errorf("%d comparisons, want %d", len(c.done), definitions)
	}
	tables := f.TypeTables()
	if len(tables) != 1 || len(tables[0].Clusters) != clusters || len(tables[0].Rows) != definitions {
		t.Fatalf("%d tables", len(tables))
	}
	var text, markdown strings.Builder
	if err := f.WriteText(&text, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Types of package things (reg.io/things v2.0.0) in 20 clusters: cluster-0, ",
		": 100 breaking, refused; 200 compatible\n", "\n  ! 100 break: field-removed in 100 (.b in 100)\n", "\n  ! 88 more breaking, refused: ",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the text does not have %q", want)
		}
	}
	if lines := strings.Count(text.String(), "\n"); lines > 40+clusters*6 {
		t.Errorf("%d lines of text:\n%s", lines, text.String()[:4000])
	}
	if err := f.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	if n := markdown.Len(); n > MaxMarkdown {
		t.Errorf("%d bytes of Markdown", n)
	}
	if !strings.Contains(markdown.String(), "**100** (100 refused) | 0 | 200 | 0 |") {
		t.Errorf("no table of types in\n%s", markdown.String()[:3000])
	}
}

// An object is held back where its type is not, or will not be, the one that it is
// pinned to, and nothing else is.
func TestCheckPins(t *testing.T) {
	digest := func(o *manifest.Object) string {
		all, err := types.Of(o.Tree())
		if err != nil {
			t.Fatal(err)
		}
		return all[0].Digest
	}
	thing := func(pin string) *manifest.Object {
		meta := map[string]any{"name": "x", "namespace": "default"}
		if pin != "" {
			meta["annotations"] = map[string]any{PinAnnotation: pin}
		}
		return object(t, map[string]any{"apiVersion": "acme.example/v1", "kind": "Thing0", "metadata": meta})
	}
	v1, v2, v3 := crd(t, 0, "a"), crd(t, 0, "a", "b"), crd(t, 0, "a", "c")
	gk := Defines(v1)[0].GroupKind()
	live := func(o *manifest.Object) map[string]any { return o.Tree() }
	type liveMap = map[string]any
	known := func(o *manifest.Object) FindType {
		return func(_ schema.GroupVersionKind, d string) (map[string]any, string) {
			if d == digest(o) {
				return o.Tree(), "cluster dev"
			}
			return nil, ""
		}
	}
	for _, tt := range []struct {
		name string
		pin  string
		// definition is the step of the CRD, if the plan has one.
		definition *Step
		object     Action
		live       liveMap
		liveErr    error
		nothing    bool // is known of the live type
		find       FindType
		drift      bool
		want       string // in the reason; empty where the object goes ahead
	}{
		{name: "no pin", object: Create, live: live(v1)},
		{name: "the live type", pin: digest(v1), object: Create, live: live(v1)},
		{name: "another live type", pin: digest(v2), object: Create, live: live(v1), want: "how they differ is not known"},
		{name: "another live type, and the pinned one is known", pin: digest(v2), object: Create, live: live(v1), find: known(v2), want: digest(v2) + " (cluster dev), which is " + digest(v1) + " here: field-removed .b; "},
		{name: "the type that the plan creates", pin: digest(v2), object: Create, definition: &Step{Action: Create, Object: v2}, nothing: true},
		{name: "the type that the plan installs", pin: digest(v2), object: Create, definition: &Step{Action: Configure, Object: v2}, live: live(v1)},
		{name: "the type that the plan replaces", pin: digest(v1), object: Unchanged, definition: &Step{Action: Configure, Object: v2}, live: live(v1), want: "(this cluster until now), which is " + digest(v2) + " here: field-added .b; "},
		{name: "the type whose replacement is refused", pin: digest(v1), object: Configure, definition: &Step{Action: Refused, Object: v2}, live: live(v1)},
		{name: "drift that is corrected", pin: digest(v2), object: Create, definition: &Step{Action: Configure, Drift: true, Object: v2}, live: live(v3)},
		{name: "drift that is reported", pin: digest(v2), object: Create, definition: &Step{Action: Configure, Drift: true, Object: v2}, live: live(v3), drift: true, want: "which is " + digest(v3)},
		{name: "fields of others in the definition", pin: digest(v2), object: Create, definition: &Step{Action: Unchanged, Object: v2}, live: live(v3), want: "which is " + digest(v3)},
		{name: "nothing changes", pin: digest(v2), object: Unchanged, definition: &Step{Action: Unchanged, Object: v2}, nothing: true},
		{name: "somebody else's object", pin: digest(v2), object: Conflict, live: live(v1)},
		{name: "no CRD", pin: digest(v2), object: Create, want: "which no CRD defines"},
		{name: "unreadable", pin: digest(v2), object: Create, liveErr: fmt.Errorf("forbidden"), want: "cannot be told whether this cluster's is the same: forbidden"},
		{name: "no digest", pin: "h1:short", object: Create, live: live(v1), want: "is no type digest"},
		{name: "without a cluster", pin: digest(v2), object: Create, nothing: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Plan{Steps: []Step{{Action: Create, ID: manifest.ID{Kind: "ConfigMap", Namespace: "default", Name: "beside"}}}}
			if tt.definition != nil {
				tt.definition.ID = tt.definition.Object.ID()
				p.Steps = append(p.Steps, *tt.definition)
			}
			o := thing(tt.pin)
			p.Steps = append(p.Steps, Step{Action: tt.object, ID: o.ID(), Object: o})
			found := make(map[schema.GroupKind]LiveDefinition)
			if !tt.nothing {
				found[gk] = LiveDefinition{Tree: tt.live, Err: tt.liveErr}
			}
			CheckPins(p, found, tt.find, tt.drift)
			last := p.Steps[len(p.Steps)-1]
			switch {
			case tt.want == "" && last.Action != tt.object:
				t.Errorf("%s: %s", last.Action, last.Reason)
			case tt.want != "" && (last.Action != Refused || !strings.Contains(last.Reason, tt.want)):
				t.Errorf("%s: %s\nwant refused: …%s…", last.Action, last.Reason, tt.want)
			}
			if p.Steps[0].Action != Create || tt.definition != nil && p.Steps[1].Action != tt.definition.Action {
				t.Error("something else was held back")
			}
		})
	}
}

// Of types that may not be looked at nobody can say that they are new.
func TestTypeTablesOfUnreadable(t *testing.T) {
	live := Live{Unreadable: map[schema.GroupKind]string{{Group: crdGroup, Kind: crdKind}: "forbidden"}}
	f := Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: Compute("dev", setOf(t, crd(t, 0, "a")), live, Inventory{}, Options{})}}}
	if len(f.Clusters[0].Plan.Steps) != 1 || f.Clusters[0].Plan.Steps[0].Action != Refused {
		t.Fatalf("steps %v", f.Clusters[0].Plan.Steps)
	}
	if tables := f.TypeTables(); len(tables) != 0 {
		t.Errorf("tables %+v", tables[0])
	}
}
