package kustomize

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"gitopsd.dev/render/remote"
)

// A schema that one build sets does not affect earlier, later or concurrent builds.
func TestSchemasDoNotLeak(t *testing.T) {
	t.Parallel()
	archive, err := txtar.ParseFile("testdata/build/schemas.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root, dirs := repository(t, archive)
	want := make(map[string]string)
	for _, dir := range dirs {
		want[dir] = krustyBuild(t, filepath.Join(root, dir))
	}
	if trim := func(s string) string { return strings.ReplaceAll(s, "-x", "") }; want["openapi"] == want["plain"] || trim(want["nested"]) != want["openapi"] {
		t.Fatal("the schema makes no difference: this test shows nothing")
	}
	files := os.DirFS(root)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range dirs {
				dir := dirs[(i+j)%len(dirs)]
				objects, _, err := new(Builder).Build(t.Context(), files, dir, remote.Bases{})
				if err != nil {
					t.Errorf("%s: %v", dir, err)
				} else if have := stream(t, objects); have != want[dir] {
					t.Errorf("%s: have\n%s\nwant\n%s", dir, have, want[dir])
				}
			}
		})
	}
	wg.Wait()
}

// merged has the lists that kustomize's schema of Kubernetes' types merges.
func TestMergedLists(t *testing.T) {
	t.Parallel()
	schema.Lock()
	defer schema.Unlock()
	openapi.ResetOpenAPI()
	defer openapi.ResetOpenAPI()
	found := make(map[string]bool)
	for _, definition := range openapi.Schema().Definitions {
		for name, property := range definition.Properties {
			strategy, _ := property.Extensions.GetString("x-kubernetes-patch-strategy")
			_, keyed := property.Extensions.GetString("x-kubernetes-patch-merge-key")
			if keyed && slices.Contains(strings.Split(strategy, ","), "merge") {
				found[name] = true
			}
		}
	}
	if !maps.Equal(found, merged) {
		t.Errorf("kustomize merges %v, here are %v", slices.Sorted(maps.Keys(found)), slices.Sorted(maps.Keys(merged)))
	}
}
