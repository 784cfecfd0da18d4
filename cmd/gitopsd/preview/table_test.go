package preview

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// crd returns a definition of the kind Thing<i> with the given fields.
func crd(t *testing.T, i int, fields ...string) *manifest.Object {
	t.Helper()
	properties := make(map[string]any)
	for _, f := range fields {
		properties[f] = map[string]any{"type": "string"}
	}
	plural := fmt.Sprintf("things%d", i)
	return object(t, map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + ".acme.example", "labels": map[string]any{manifest.PackageLabel: "things"}},
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

// bumped returns a bump in three clusters. The third allows the breaking findings.
func bumped(t *testing.T) *Fleet {
	before := setOf(t, crd(t, 0, "a", "b"), crd(t, 1, "a"), crd(t, 2, "a"), crd(t, 3, "a", "b"))
	after := setOf(t, crd(t, 0, "a"), crd(t, 1, "a", "b"), crd(t, 3, "a", "b"), crd(t, 4, "a"))
	var c plan.Comparer
	allowed := func(_ string, f compat.Finding) (string, bool) { return "nobody uses it", true }
	from, to := map[string]string{"things": "reg.io/things v1.0.0"}, map[string]string{"things": "reg.io/things v2.0.0"}
	return &Fleet{Source: "working tree", Clusters: []ClusterPlan{
		{Name: "dev", Packages: to, Before: from, Plan: between(t, &c, "dev", before, after, nil, nil)},
		{Name: "test", Packages: to, Before: from, Plan: between(t, &c, "test", before, after, nil, nil)},
		{Name: "prod", Packages: to, Before: from, Plan: between(t, &c, "prod", before, after, allowed, nil)},
	}}
}

func TestTypeTables(t *testing.T) { testFormats(t, "types", bumped(t)) }

// A bump of a package with very many types, in many clusters, is shown in a few lines.
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
	var c plan.Comparer
	f := &Fleet{Source: "working tree"}
	for i := range clusters {
		name := fmt.Sprintf("cluster-%d", i)
		f.Clusters = append(f.Clusters, ClusterPlan{Name: name, Packages: map[string]string{"things": "reg.io/things v2.0.0"}, Plan: between(t, &c, name, before, after, nil, nil)})
	}
	tables := f.typeTables()
	if len(tables) != 1 || len(tables[0].Clusters) != clusters || len(tables[0].Rows) != definitions {
		t.Fatalf("%d tables", len(tables))
	}
	text := textOf(t, f, show.Options{})
	for _, want := range []string{
		"Types of package things (reg.io/things v2.0.0) in 20 clusters (cluster-0, cluster-1, cluster-2 …): 100 breaking, refused; 200 compatible\n",
		"\n20 clusters (cluster-0, cluster-1, cluster-2 …): 300 refused\n",
		"\n  ! 100 break: field-removed in 100 (.b in 100)\n", "\n  ! 88 more breaking, refused: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the text does not have %q", want)
		}
	}
	if lines := strings.Count(text, "\n"); lines > 45 {
		t.Errorf("%d lines of text:\n%s", lines, text[:4000])
	}
	markdown := markdownOf(t, f)
	if n := len(markdown); n > show.MaxComment {
		t.Errorf("%d bytes of Markdown", n)
	}
	if !strings.Contains(markdown, "**100** (100 refused) |  | 200 |  |") {
		t.Errorf("no table of types in\n%s", markdown[:3000])
	}
}

// Types that may not be listed are not shown as new.
func TestTypeTablesOfUnreadable(t *testing.T) {
	live := plan.Live{Unreadable: map[schema.GroupKind]string{{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}: "forbidden"}}
	f := Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: plan.Compute("dev", setOf(t, crd(t, 0, "a")), live, plan.Inventory{}, plan.Options{})}}}
	if len(f.Clusters[0].Plan.Steps) != 1 || f.Clusters[0].Plan.Steps[0].Action != plan.Refused {
		t.Fatalf("steps %v", f.Clusters[0].Plan.Steps)
	}
	if tables := f.typeTables(); len(tables) != 0 {
		t.Errorf("tables %+v", tables[0])
	}
}

func between(t *testing.T, c *plan.Comparer, cluster string, before, after *manifest.Set, allowed plan.Allowed, find plan.FindType) *plan.Plan {
	t.Helper()
	p, err := c.Between(t.Context(), cluster, before, after, plan.Options{}, allowed, find)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
