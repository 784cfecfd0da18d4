package desired

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// definition is a CRD whose objects have one field.
func definition(t *testing.T, field string) sources.Document {
	t.Helper()
	return manifesttest.Documents(t, fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.acme.example}
spec:
  group: acme.example
  scope: Cluster
  names: {kind: Thing, plural: things}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {%s: {type: string}}}}}
`, field))[0]
}

// A type is found wherever the repository knows it from, and said to be unknown
// where it does not.
func TestFindType(t *testing.T) {
	digests := make(map[string]string) // field to type
	packages := make(map[sources.Digest]sources.Document)
	for tag, field := range map[string]string{"v1": "a", "v2": "b", "v3": "c"} {
		doc := definition(t, field)
		all, err := types.Of(doc.Tree)
		if err != nil {
			t.Fatal(err)
		}
		digests[field] = all[0].Digest
		packages[sources.DigestOf([]byte("reg.io/things:"+tag))] = doc
	}
	var mu sync.Mutex
	fetched := make(map[sources.Digest]int)
	down := false
	cfg := resolve.Config{
		Digest: func(_ context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			ref := sources.Ref{Repository: from.Repository, Tag: tag}
			return sources.DigestOf([]byte(ref.String())), nil
		},
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			repository := from.Repository
			mu.Lock()
			defer mu.Unlock()
			fetched[d]++
			if down {
				return nil, errors.New("registry reg.io is down")
			}
			return &sources.Package{Repository: repository, Digest: d, Content: d,
				Meta: sources.PackageMeta{Kind: sources.Provider, Name: "things"}, Documents: []sources.Document{packages[d]}}, nil
		},
		Types: func(pkg *sources.Package) (string, error) { return types.Package(pkg.Documents) },
	}
	provider := func(version string) string {
		return "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: things}\nspec: {package: 'reg.io/things:" + version + "'}\n"
	}
	old := sources.DigestOf([]byte("reg.io/things:v1"))
	patched := strings.Replace(cluster("patched"), "spec: {", `spec: {patches: [{target: {kind: CustomResourceDefinition}, patch: '[{"op": "add", "path": "/spec/versions/0/deprecated", "value": true}]'}], `, 1)
	f := files{
		"clusters.yaml": cluster("dev") + patched,
		"c/dev/p.yaml":  provider("v2"), "c/dev/kustomization.yaml": "resources: [p.yaml]\n",
		"c/patched/p.yaml": provider("v3"), "c/patched/kustomization.yaml": "resources: [p.yaml]\n",
		"clusters.lock": "reg.io/things v1 " + string(old) + "\n",
	}
	s, err := New(Config{Resolve: cfg}).Compute(t.Context(), f.commit(), Earlier{})
	if err != nil || s.Err() != nil {
		t.Fatal(err, s.Err())
	}
	gvk := schema.GroupVersionKind{Group: "acme.example", Version: "v1", Kind: "Thing"}
	find := s.Get("dev").FindType
	// While the registry is down nobody waits for it twice.
	down = true
	stopped, stop := context.WithCancel(t.Context())
	stop()
	find(stopped, gvk, "h1:elsewhere") // counts for nothing
	for range 2 {
		if found, _ := find(t.Context(), gvk, "h1:elsewhere"); found != nil {
			t.Error("a type was found that is nowhere")
		}
	}
	if fetched[old] != 2 {
		t.Errorf("a registry that is down was asked %d times, want once by the one who gave up and once more", fetched[old])
	}
	down, fetched[old] = false, 0
	for _, tt := range []struct{ digest, where string }{
		{digests["b"], "cluster dev"},
		{digests["c"], "reg.io/things v3 as published"},
		{digests["a"], "reg.io/things v1"},
		{"h1:nowhere", ""},
		{digests["a"], "reg.io/things v1"},
		{"h1:nowhere", ""},
	} {
		found, where := find(t.Context(), gvk, tt.digest)
		if where != tt.where || (found == nil) != (where == "") {
			t.Errorf("%s: found %q, want %q", tt.digest, where, tt.where)
		}
	}
	if fetched[old] != 2 {
		t.Errorf("the old version was fetched %d times, want once for each type that only it could have", fetched[old])
	}
	live, err := types.Of(s.Get("patched").Definition(gvk).Tree())
	if err != nil || live[0].Digest == digests["c"] {
		t.Errorf("the patched type is %v, %v", live, err)
	}
	if found, where := find(t.Context(), gvk, live[0].Digest); found == nil || where != "cluster patched" {
		t.Errorf("the patched type is found in %q", where)
	}
}
