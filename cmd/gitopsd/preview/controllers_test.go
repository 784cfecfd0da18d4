package preview

import (
	"strings"
	"testing"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// rebuilt returns a fleet in which a package's controller and other objects change.
func rebuilt(t *testing.T, more ...plan.Step) *Fleet {
	old, now := "reg.io/things@sha256:"+strings.Repeat("a", 64), "reg.io/things@sha256:"+strings.Repeat("b", 64)
	some := object(t, map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "things", "namespace": "gitopsd-system"}})
	const c = "spec.template.spec.containers[name=package-runtime]"
	steps := append([]plan.Step{
		{Action: plan.Configure, ID: manifest.ClusterRole.ID("", "gitopsd:provider:things"), Object: some, Package: "things", Changes: []plan.Change{{Path: "rules[4]", Added: true}}},
		{Action: plan.Configure, ID: some.ID(), Object: some, Package: "things", Changes: []plan.Change{
			{Path: `spec.template.metadata.labels["pkg.crossplane.io/revision"]`, Old: "a", New: "b"},
			{Path: c + ".args[0]", Old: "--token=hunter2", New: "--token=swordfish"},
			{Path: c + ".args[1]", Added: true, New: "--debug"},
			{Path: c + ".env[name=PASSWORD].value", Old: "hunter2", New: "swordfish"},
			{Path: c + ".image", Old: old, New: now},
			{Path: "spec.template.spec.containers[name=sidecar]", Added: true, New: map[string]any{"image": "reg.io/sidecar:v1"}},
			{Path: "spec.template.spec.initContainers", Added: true, New: []any{map[string]any{"name": "migrate", "image": "reg.io/migrate:v1"}}},
			{Path: "spec.template.spec.serviceAccountName", Old: "a", New: "b"},
		}},
		{Action: plan.Unchanged, ID: crdID("things.acme.example"), Object: some, Package: "things"},
	}, more...)
	cp := func(name string) ClusterPlan {
		return ClusterPlan{Name: name, Before: map[string]string{"things": "reg.io/things v1.0.0"}, Packages: map[string]string{"things": "reg.io/things v1.0.1"}, Plan: &plan.Plan{Cluster: name, Steps: steps}}
	}
	return &Fleet{Clusters: []ClusterPlan{cp("dev"), cp("prod")}}
}

// A bump that changes only the controller is shown before the steps, once for all clusters, and
// without the values of settings.
func TestControllers(t *testing.T) {
	tables := rebuilt(t).controllerTables()
	have := show.Sprint(func(text *show.Text) { textWriter{Text: text}.controllers(tables) })
	want := `Controller of package things (reg.io/things v1.0.0 -> v1.0.1) in dev, prod: types unchanged, controller changed
  ~ image package-runtime: sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb
  ~ image sidecar added: reg.io/sidecar:v1
  ~ image migrate added: reg.io/migrate:v1
  ~ argument of package-runtime
  ~ variable package-runtime PASSWORD
  ~ rights ClusterRole gitopsd:provider:things
  ~ rights service account
`
	if have != want {
		t.Errorf("have\n%swant\n%s", have, want)
	}
	f := rebuilt(t)
	text, markdown, data := textOf(t, f, show.Options{}), markdownOf(t, f), jsonOf(t, f)
	for _, part := range []struct{ in, want string }{
		{text, "types unchanged, controller changed"},
		{markdown, "| package things (reg.io/things v1.0.0 -> v1.0.1) | dev, prod | unchanged | image package-runtime: sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb, "},
		{data, `"typesUnchanged": true`},
	} {
		if !strings.Contains(part.in, part.want) {
			t.Errorf("no %q in\n%s", part.want, part.in)
		}
	}
}

// If types change too, text shows only their table. JSON has both.
func TestControllersWithTypes(t *testing.T) {
	definition := object(t, map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "others.acme.example"}})
	f := rebuilt(t, plan.Step{Action: plan.Configure, ID: definition.ID(), Object: definition, Package: "things", Compatibility: compat.Compatible})
	tables := f.controllerTables()
	if len(tables) != 1 || tables[0].TypesUnchanged || len(alone(tables)) != 0 {
		t.Errorf("%+v", tables)
	}
	documented := rebuilt(t, plan.Step{Action: plan.Configure, ID: definition.ID(), Object: definition, Package: "things", Compatibility: compat.Documentation})
	if tables := documented.controllerTables(); len(alone(tables)) != 1 {
		t.Errorf("descriptions count as types: %+v", tables)
	}
}

// Types that were not compared are not called unchanged.
func TestControllersWithUnknownTypes(t *testing.T) {
	definition := object(t, map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "others.acme.example"}})
	for _, s := range []plan.Step{
		{Action: plan.Refused, UID: "u", Reason: "customresourcedefinitions is forbidden"},
		{Action: plan.Conflict, UID: "u", Reason: "it is Helm's"},
	} {
		s.ID, s.Object, s.Package = definition.ID(), definition, "things"
		if tables := rebuilt(t, s).controllerTables(); len(tables) != 1 || tables[0].TypesUnchanged {
			t.Errorf("%s: %+v", s.Action, tables)
		}
	}
}

// An image with the same digest and another name is the same image.
func TestRenamedImage(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	if d, ok := workloadChange(plan.Change{Path: "spec.template.spec.containers[name=c].image", Old: "reg.io/a:v1" + digest, New: "reg.io/b:v2" + digest}); ok {
		t.Errorf("told as %s", d)
	}
}

// A Function is part of what acts on composite types.
func TestFunctionBump(t *testing.T) {
	o := object(t, map[string]any{"apiVersion": "pkg.crossplane.io/v1", "kind": "Function", "metadata": map[string]any{"name": "patch"}})
	step := func(old, now string) plan.Step {
		return plan.Step{Action: plan.Configure, ID: o.ID(), Object: o, Package: "patch", Changes: []plan.Change{{Path: "spec.package", Old: old, New: now}}}
	}
	a, b := "@sha256:"+strings.Repeat("a", 64), "@sha256:"+strings.Repeat("b", 64)
	for _, tt := range []struct{ old, now, want string }{
		{"reg.io/patch:v1" + a, "reg.io/patch:v2" + b, "Controller of package patch in dev: controller changed\n  ~ function patch: sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb\n"},
		{"reg.io/patch:v1" + a, "reg.io/patch:v1.0" + a, ""},
	} {
		f := &Fleet{Clusters: []ClusterPlan{{Name: "dev", Plan: &plan.Plan{Steps: []plan.Step{step(tt.old, tt.now)}}}}}
		have := show.Sprint(func(text *show.Text) { textWriter{Text: text}.controllers(alone(f.controllerTables())) })
		if have != tt.want {
			t.Errorf("have %q, want %q", have, tt.want)
		}
	}
}
