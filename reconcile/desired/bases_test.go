package desired

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// A cluster gets its remote bases, and those that these name in turn; what cannot
// be fetched is the trouble of the clusters that want it. Clusters that are built
// alike share the objects.
func TestRemoteBases(t *testing.T) {
	t.Parallel()
	one, two := strings.Repeat("1", 40), strings.Repeat("2", 40)
	repositories := map[sources.Tree]files{
		{Repository: "https://git.example.org/one", Commit: one}: {"x/kustomization.yaml": "resources: [../y.yaml, 'https://git.example.org/two.git?ref=" + two + "']\n", "y.yaml": configMap},
		{Repository: "https://git.example.org/two.git", Commit: two}: {"kustomization.yaml": "resources: [z.yaml]\n",
			"z.yaml": strings.Replace(configMap, "cm", "z", 1)},
	}
	var mu sync.Mutex
	asked := make(map[sources.Tree]int)
	prefixes, err := remote.ParsePrefixes([]string{"https://git.example.org/"})
	if err != nil {
		t.Fatal(err)
	}
	var fetched int
	c := New(Config{Resolve: shelf(&fetched), Remote: prefixes, FetchTree: func(_ context.Context, of sources.Tree) (fs.FS, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[of]++
		if f := repositories[of]; f != nil {
			return f.commit().Files, nil
		}
		return nil, errors.New("is gone")
	}})
	based := "resources:\n- https://git.example.org/one//x?ref=" + one + "\n"
	f := files{
		"clusters.yaml":               cluster("a") + cluster("b") + cluster("plain") + cluster("bad"),
		"c/a/kustomization.yaml":      based,
		"c/b/kustomization.yaml":      "resources: [../common]\n",
		"c/common/kustomization.yaml": based,
		"c/plain/cm.yaml":             configMap,
		"c/bad/kustomization.yaml":    based + "- https://git.example.org/gone.git?ref=" + one + "\n- https://git.example.org/gone.git?ref=" + two + "\n",
	}
	for range 2 {
		s, err := c.Compute(t.Context(), f.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			cl := s.Get(name)
			if !cl.Complete() || cl.Objects.Len() != 2 || len(cl.bases.Trees) != 2 {
				t.Errorf("%s: %v, with %v", name, cl.Err, cl.bases.Trees)
			}
		}
		if plain := s.Get("plain"); !plain.Complete() || plain.bases.Trees != nil {
			t.Errorf("plain: %v", plain.Err)
		}
		want := "c/bad/kustomization.yaml:3: resources: \"https://git.example.org/gone.git?ref=" + one + "\": is gone\n" +
			"c/bad/kustomization.yaml:4: resources: \"https://git.example.org/gone.git?ref=" + two + "\": is gone"
		if bad := s.Get("bad"); bad.Err == nil || bad.Err.Error() != want || bad.Objects != nil {
			t.Errorf("have %v\nwant %s", bad.Err, want)
		}
	}
	if len(asked) != 4 {
		t.Errorf("asked for %v", asked)
	}
}

// A fleet without remote bases is rendered once, and nothing is asked for.
func TestNoRemoteBases(t *testing.T) {
	t.Parallel()
	prefixes, err := remote.ParsePrefixes([]string{"https://git.example.org/"})
	if err != nil {
		t.Fatal(err)
	}
	var fetched int
	c := New(Config{Resolve: shelf(&fetched), Remote: prefixes, FetchTree: func(context.Context, sources.Tree) (fs.FS, error) {
		t.Error("a tree is fetched")
		return nil, errors.New("no")
	}})
	f := files{
		"clusters.yaml":          cluster("a") + cluster("b"),
		"c/a/kustomization.yaml": "resources: [cm.yaml]\n", "c/a/cm.yaml": configMap,
		"c/b/kustomization.yaml": "resources: ['https://other.example.org/bases.git?ref=" + strings.Repeat("1", 40) + "']\n",
	}
	s, err := c.Compute(t.Context(), f.commit(), Earlier{})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Get("a").Complete() || s.Get("b").Err == nil || !strings.Contains(s.Get("b").Err.Error(), "is not below what --allow-remote-bases allows (https://git.example.org/)") {
		t.Errorf("have %v, %v", s.Get("a").Err, s.Get("b").Err)
	}
}
