package kustomize

import (
	"gitopsd.dev/render/remote"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
)

// Any kustomization, with any file that it names, gives a result or an error. Kustomize
// ends the process in places (log.Fatal), which fails this test too.
func FuzzBuild(f *testing.F) {
	archives, err := filepath.Glob("testdata/build/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, a := range archive.Files {
			for _, b := range archive.Files {
				f.Add(a.Data, b.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, kustomization, file []byte) {
		files := fstest.MapFS{
			"a/kustomization.yaml": {Data: kustomization}, "a/cm.yaml": {Data: []byte(configMap)},
			"base/kustomization.yaml": {Data: file},
		}
		for _, name := range []string{"app.yaml", "patch.yaml", "config.json", "settings.env", "generator.yaml", "schema.json"} {
			files["a/"+name] = &fstest.MapFile{Data: file}
			files[name] = files["a/"+name]
		}
		_, _, _ = new(Builder).Build(t.Context(), files, "a", remote.Bases{})
	})
}
