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
		tree["metadata"].(map[string]any)["annotations"] = map[string]any{manifest.DependsOnAnnotation: dependsOn}
	}
	origin := manifest.Origin{File: file, Line: 1}
	if pkg != "" {
		tree["metadata"].(map[string]any)["labels"] = map[string]any{manifest.PackageLabel: pkg}
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
			refused: "gitopsd.dev/depends-on names package/q, which the cluster does not get",
		},
		{
			name:    "itself",
			objects: []object{{name: "it", file: "infra/x.yaml", dependsOn: "path/infra"}},
			after:   map[string]string{"path/infra": "it"},
			refused: "gitopsd.dev/depends-on has a cycle: configmap/n/it after configmap/n/it",
		},
		{
			name:    "a circle",
			objects: []object{{name: "it", dependsOn: "package/p"}, {name: "a", pkg: "p"}, {name: "b", pkg: "q", dependsOn: "configmap/n/it"}},
			order:   map[string]Order{"p": {DependsOn: "package/q"}},
			after:   map[string]string{"package/p": "a"},
			refused: "gitopsd.dev/depends-on has a cycle: configmap/n/a after configmap/n/b after configmap/n/it after configmap/n/a",
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

// Dependents are pruned first, whatever their stages, and containers after the objects in
// them.
func TestPruneOrder(t *testing.T) {
	t.Parallel()
	parse := func(text string) manifest.ID {
		kind, name, _ := strings.Cut(text, "/")
		kind, group, _ := strings.Cut(kind, ".")
		return manifest.ID{Group: group, Kind: kind, Name: name}
	}
	for _, tt := range []struct {
		name string
		// needs are the names that an object depends on; "" for none.
		needs map[string]string
		want  string // rounds are separated by a bar
	}{
		{"by stages", map[string]string{"Thing.example.org/a": "", "ConfigMap/b": "", "Deployment.apps/c": "", "Namespace/d": ""}, "a | c | b | d"},
		{"within a stage", map[string]string{"ConfigMap/a": "", "ConfigMap/b": "configmap/a", "ConfigMap/c": "configmap/b", "ConfigMap/d": ""}, "c | b | a d"},
		{"across stages", map[string]string{"Thing.example.org/a": "", "ConfigMap/b": "thing.example.org/a", "Deployment.apps/c": "configmap/b"}, "c | b | a"},
		{"with the stages", map[string]string{"Thing.example.org/a": "deployment.apps/b", "Deployment.apps/b": ""}, "a | b"},
		{"a CRD", map[string]string{"CustomResourceDefinition.apiextensions.k8s.io/crd": "deployment.apps/b", "Deployment.apps/b": "", "Thing.example.org/a": ""}, "a | b | crd"},
		{"a CRD that goes with its objects", map[string]string{"CustomResourceDefinition.apiextensions.k8s.io/full": "", "Deployment.apps/b": "", "Thing.example.org/a": "", "CompositeResourceDefinition.apiextensions.crossplane.io/xrd": ""}, "a | xrd | full | b"},
		{"a package", map[string]string{"ConfigMap/a": "package/p", "Deployment.apps/b": ""}, "a | b"},
		{"a circle", map[string]string{"ConfigMap/a": "configmap/b", "ConfigMap/b": "configmap/a"}, "a | b"},
		{"itself", map[string]string{"ConfigMap/a": "configmap/a", "ConfigMap/b": ""}, "a b"},
		{"what is not there", map[string]string{"ConfigMap/a": "configmap/x, path/y", "ConfigMap/b": ""}, "a b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var steps []Step
			for text, needs := range tt.needs {
				id := parse(text)
				s := Step{Action: Prune, ID: id, Stage: StageOf(id), Needs: dependencies(needs, Order{})}
				if id.Kind == "Deployment" {
					s.Package = "p"
				}
				if id.Name == "full" {
					s.Package, s.WithContents = "p", true
				}
				steps = append(steps, s)
			}
			sortPruned(steps)
			var have strings.Builder
			for i, s := range steps {
				switch {
				case i > 0 && s.Round != steps[i-1].Round:
					have.WriteString(" | ")
				case i > 0:
					have.WriteString(" ")
				}
				have.WriteString(s.ID.Name)
			}
			if have.String() != tt.want {
				t.Errorf("the order is %s, want %s", &have, tt.want)
			}
		})
	}
}
