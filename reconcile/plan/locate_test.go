package plan

import (
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// A step with a wrong field has the field's line, if that is known.
func TestLocate(t *testing.T) {
	t.Parallel()
	object := func(origin manifest.Origin) *manifest.Object {
		o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "namespace": "b"}}, origin)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	plain := object(manifest.Origin{File: "a.yaml", Line: 3})
	packaged := object(manifest.Origin{File: "package.yaml", Line: 3, Package: sources.Pin{Ref: sources.Ref{Repository: "reg.io/a"}}})
	for _, tt := range []struct {
		name  string
		step  Step
		line  int
		place string
	}{
		{"known", Step{Object: plain, Wrong: []string{"data.x"}}, 7, "a.yaml:7"},
		{"not known", Step{Object: plain, Wrong: []string{"data.x"}}, 0, "a.yaml:3"},
		{"nothing wrong with a field", Step{Object: plain}, 7, "a.yaml:3"},
		{"of a package", Step{Object: packaged, Wrong: []string{"data.x"}}, 7, ""},
		{"to prune", Step{Wrong: []string{"data.x"}}, 7, ""},
	} {
		p := Plan{Steps: []Step{tt.step}}
		p.Locate(func(*manifest.Object, string) int { return tt.line })
		if s := &p.Steps[0]; s.Place() != tt.place {
			t.Errorf("%s: %q", tt.name, s.Place())
		}
	}
}
