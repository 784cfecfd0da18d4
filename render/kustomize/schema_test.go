package kustomize

import (
	"gitopsd.dev/render/remote"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// A schema that one build sets changes no other, before, after or beside it.
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
	for i := range 8 {
		wg.Go(func() {
			for j := range 2 * len(dirs) {
				dir := dirs[(i+j)%len(dirs)]
				objects, err := new(Builder).Build(t.Context(), files, dir, remote.Bases{})
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
