package plan

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// wantedAt is an object as the tests of the order of things want it.
func wantedAt(t *testing.T, name, file, pkg, dependsOn string) *manifest.Object {
	t.Helper()
	tree := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "n"}}
	if dependsOn != "" {
		tree["metadata"].(map[string]any)["annotations"] = map[string]any{DependsOnAnnotation: dependsOn}
	}
	origin := manifest.Origin{File: file, Line: 1}
	if pkg != "" {
		tree["metadata"].(map[string]any)["labels"] = map[string]any{PackageLabel: pkg}
		origin.Package = sources.Pin{Ref: sources.Ref{Repository: "reg.example.com/" + pkg, Tag: "v1"}}
	}
	o, err := manifest.New(tree, origin)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOrder(t *testing.T) {
	t.Parallel()
	type object struct{ name, file, pkg, dependsOn string }
	for _, tt := range []struct {
		name    string
		objects []object
		order   map[string]Order
		// after are the names that "it" waits for, and what they stand for.
		after   map[string]string
		refused string // of "it"
	}{
		{
			name:    "an object",
			objects: []object{{name: "it", dependsOn: "configmap/n/a, configmap/n/b,"}, {name: "a"}, {name: "b"}},
			after:   map[string]string{"configmap/n/a": "a", "configmap/n/b": "b"},
		},
		{
			name:    "a package",
			objects: []object{{name: "it", dependsOn: "package/p"}, {name: "a", pkg: "p"}, {name: "b", pkg: "q"}, {name: "c", pkg: "p"}},
			after:   map[string]string{"package/p": "a c"},
		},
		{
			name:    "a path, with the packages that are declared there",
			objects: []object{{name: "it", file: "apps/x.yaml", dependsOn: "path/infra/"}, {name: "a", file: "infra/sub/a.yaml"}, {name: "b", file: "infrastructure/b.yaml"}, {name: "c", pkg: "p", file: "package.yaml"}, {name: "d", pkg: "q", file: "infra/package.yaml"}},
			order:   map[string]Order{"p": {File: "infra/p.yaml"}, "q": {File: "apps/q.yaml"}},
			after:   map[string]string{"path/infra": "a c"},
		},
		{
			name:    "of a package as a whole",
			objects: []object{{name: "it", pkg: "p"}, {name: "a", pkg: "q"}},
			order:   map[string]Order{"p": {DependsOn: "package/q"}},
			after:   map[string]string{"package/q": "a"},
		},
		{
			name:    "nothing of the name",
			objects: []object{{name: "it", dependsOn: "package/q"}},
			after:   map[string]string{"package/q": ""},
			refused: "gitopsd.dev/depends-on names package/q, of which the cluster is to have nothing",
		},
		{
			name:    "itself",
			objects: []object{{name: "it", file: "infra/x.yaml", dependsOn: "path/infra"}},
			after:   map[string]string{"path/infra": "it"},
			refused: "gitopsd.dev/depends-on goes in a circle: configmap/n/it after configmap/n/it",
		},
		{
			name:    "a circle",
			objects: []object{{name: "it", dependsOn: "package/p"}, {name: "a", pkg: "p"}, {name: "b", pkg: "q", dependsOn: "configmap/n/it"}},
			order:   map[string]Order{"p": {DependsOn: "package/q"}},
			after:   map[string]string{"package/p": "a"},
			refused: "gitopsd.dev/depends-on goes in a circle: configmap/n/a after configmap/n/b after configmap/n/it after configmap/n/a",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var objects []*manifest.Object
			for _, o := range tt.objects {
				objects = append(objects, wantedAt(t, o.name, o.file, o.pkg, o.dependsOn))
			}
			set, _ := manifest.NewSet(objects)
			p := Compute("c", set, Live{}, Inventory{}, Options{Order: tt.order})
			for _, s := range p.Steps {
				if s.ID.Name != "it" {
					continue
				}
				if len(s.After) != len(tt.after) {
					t.Errorf("it waits for %q, want %q", s.After, tt.after)
				}
				for _, name := range s.After {
					var behind []string
					for _, i := range p.Behind(name) {
						behind = append(behind, p.Steps[i].ID.Name)
					}
					if have := strings.Join(behind, " "); have != tt.after[name] {
						t.Errorf("behind %s are %q, want %q", name, have, tt.after[name])
					}
				}
				if refused := s.Action == Refused; refused != (tt.refused != "") || !strings.HasPrefix(s.Reason, tt.refused) {
					t.Errorf("it is to be %s: %s; want %q", s.Action, s.Reason, tt.refused)
				}
			}
		})
	}
}
