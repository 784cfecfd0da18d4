package plan

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
)

// withRules returns a definition with conversion rules: one that renames a field, by the
// expression that reads it.
func withRules(t *testing.T, name, read string) (*manifest.Object, *render.Conversion) {
	t.Helper()
	o, err := manifest.New(manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+name+`.example.io}
spec:
  group: example.io
  names: {kind: Widget, plural: `+name+`}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {title: {type: string, maxLength: 20}}}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {name: {type: string, maxLength: 20}}}}}}}
`), manifest.Origin{File: "crd.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	documents := []conversion.Document{{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: `+name+`.example.io}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: "`+read+`", to: spec.name}]}
  - {from: v2, to: v1, rules: [{from: v2.spec.name, to: spec.title}]}
`)}}
	set, err := conversion.Compile(o.Tree(), documents)
	if err != nil {
		t.Fatal(err)
	}
	return o, &render.Conversion{Set: set, Documents: documents, Definition: o}
}

// Rules with a counterexample refuse their definition, with the package that it is of.
// Steps that do not change the rules are left alone.
func TestCheckConversions(t *testing.T) {
	t.Parallel()
	const renames, lengthens = "v1.spec.title", "v1.spec.title + '!'"
	good, goodRules := withRules(t, "good", renames)
	bad, badRules := withRules(t, "bad", lengthens)
	rules := map[string]*render.Conversion{"good.example.io": goodRules, "bad.example.io": badRules}
	other := manifest.ConfigMap.ID("default", "settings")
	var proofs prove.Cache
	for _, tt := range []struct {
		name  string
		steps []Step
		want  []string // the action of each, and what is in its reason
	}{
		{"new", []Step{{Action: Create, ID: good.ID(), Object: good}, {Action: Create, ID: bad.ID(), Object: bad}},
			[]string{"create", "refused its conversion rules have a counterexample: v1 -> v2: the result is not valid: spec.name: Too long"}},
		{"changed", []Step{{Action: Configure, ID: bad.ID(), Object: bad}, {Action: Create, ID: other}}, []string{"refused counterexample", "create"}},
		{"of a package", []Step{{Action: Configure, ID: bad.ID(), Object: bad, Package: "p"}, {Action: Create, ID: other, Package: "p"}, {Action: Prune, ID: other, Package: "p"}, {Action: Create, ID: good.ID(), Object: good, Package: "q"}},
			[]string{"refused counterexample", "refused its package has conversion rules with a counterexample: bad.example.io", "refused its package has", "create"}},
		{"breaking, too", []Step{{Action: Refused, ID: bad.ID(), Object: bad, Compatibility: compat.Breaking, Reason: "breaking: f1"}}, []string{"refused breaking: f1; its conversion rules have a counterexample"}},
		{"refused for another reason", []Step{{Action: Refused, ID: bad.ID(), Object: bad, Reason: "no"}}, []string{"refused no"}},
		{"drift", []Step{{Action: Configure, ID: bad.ID(), Object: bad, Drift: true}}, []string{"configure"}},
		{"a new CA bundle", []Step{{Action: Configure, ID: bad.ID(), Object: bad, Package: "p", Refilled: true}, {Action: Create, ID: other, Package: "p"}}, []string{"configure", "create"}},
		{"unchanged", []Step{{Action: Unchanged, ID: bad.ID(), Object: bad}}, []string{"unchanged"}},
		{"removed", []Step{{Action: Prune, ID: bad.ID()}}, []string{"prune"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := &Plan{Steps: tt.steps}
			if err := CheckConversions(t.Context(), p, rules, &proofs); err != nil {
				t.Fatal(err)
			}
			for i, want := range tt.want {
				action, reason, _ := strings.Cut(want, " ")
				if s := p.Steps[i]; string(s.Action) != action || !strings.Contains(s.Reason, reason) || reason == "" && s.Reason != "" {
					t.Errorf("step %d: %s %q, want %s", i, s.Action, s.Reason, want)
				}
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	slow, slowRules := withRules(t, "slow", renames)
	p := &Plan{Steps: []Step{{Action: Create, ID: slow.ID(), Object: slow}}}
	if err := CheckConversions(gone, p, map[string]*render.Conversion{"slow.example.io": slowRules}, &proofs); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// Rules that are wrong for an object of the cluster refuse their definition with its
// package, name the object and show no value of it.
func TestRefuseTried(t *testing.T) {
	t.Parallel()
	bad, rules := withRules(t, "bad", "v1.spec.title + '!'")
	other := manifest.ConfigMap.ID("default", "settings")
	var proofs prove.Cache
	proof, err := proofs.Prove(t.Context(), rules)
	if err != nil {
		t.Fatal(err)
	}
	trial, err := prove.NewTrial(rules, "v1")
	if err != nil {
		t.Fatal(err)
	}
	for name, title := range map[string]string{"short": "short", "long": "hunter2hunter2hunter"} {
		if err := trial.Try(t.Context(), manifesttest.Tree(t, "{apiVersion: example.io/v1, kind: Widget, metadata: {namespace: default, name: "+name+"}, spec: {title: "+title+"}}"), nil); err != nil {
			t.Fatal(err)
		}
	}
	const reason = "its conversion rules are wrong for objects of this cluster: v1 -> v2: the result is not valid (spec.name): widget.example.io/default/long; Correct the rules"
	p := &Plan{Steps: []Step{
		{Action: Configure, ID: bad.ID(), Object: bad, Package: "p", Proof: proof, Tried: trial.Result()},
		{Action: Create, ID: other, Package: "p"}, {Action: Create, ID: other, Package: "q"},
		{Action: Unchanged, ID: bad.ID(), Object: bad, Proof: proof, Tried: trial.Result()},
	}}
	RefuseTried(p)
	for i, want := range []string{"refused " + reason, "refused its package has conversion rules that are wrong for objects of bad.example.io", "create ", "unchanged "} {
		if have := string(p.Steps[i].Action) + " " + p.Steps[i].Reason; !strings.HasPrefix(have, want) || strings.Contains(have, "hunter") {
			t.Errorf("step %d: %s", i, have)
		}
	}
	if way := p.Steps[0].Reason; !strings.HasSuffix(way, ":admitted=<reason>\"") {
		t.Errorf("%s", way)
	}
	// Objects that fit are no reason.
	trial.Again()
	p.Steps[0] = Step{Action: Configure, ID: bad.ID(), Proof: proof, Tried: trial.Result()}
	if RefuseTried(p); p.Steps[0].Action != Configure {
		t.Errorf("%s: %s", p.Steps[0].Action, p.Steps[0].Reason)
	}
}

// A definition is refused with its package while objects may be stored in a version that
// its rules leave out. The reason has the first step to take.
func TestRefuseUnconverted(t *testing.T) {
	t.Parallel()
	of, rules := withRules(t, "stored", "v1.spec.title")
	migrates := of.WithMetadata(nil, map[string]string{manifest.MigrateStorageAnnotation: "true"})
	other := manifest.ConfigMap.ID("default", "settings")
	const lost = "refused objects may be stored in v0 (status.storedVersions), which its conversion rules do not convert: no list of the objects would succeed; "
	for _, tt := range []struct {
		name   string
		object *manifest.Object
		action Action
		stored StoredVersions
		want   string
	}{
		{"all are converted", of, Configure, StoredVersions{[]string{"v1", "v2"}, "v2"}, "configure "},
		{"not known", of, Configure, StoredVersions{}, "configure "},
		{"one is not", of, Configure, StoredVersions{[]string{"v0", "v1"}, "v1"}, lost + "run `gitopsd migrate --yes` before, or keep the rules for v0"},
		{"one that the daemon migrates", migrates, Configure, StoredVersions{[]string{"v0", "v1"}, "v1"}, lost + "`gitopsd run` stores the objects again (gitopsd.dev/migrate-storage), and goes on when that is done, or keep the rules for v0"},
		{"the storage version", migrates, Configure, StoredVersions{[]string{"v0"}, "v0"}, lost + "make another version the storage version before, and run `gitopsd migrate --yes`, or keep the rules for v0"},
		{"nothing changes", of, Unchanged, StoredVersions{[]string{"v0"}, "v0"}, "unchanged "},
	} {
		p := &Plan{Steps: []Step{{Action: tt.action, ID: of.ID(), Object: tt.object, Package: "p"}, {Action: Create, ID: other, Package: "p"}, {Action: Create, ID: other, Package: "q"}}}
		RefuseUnconverted(p, map[string]*render.Conversion{of.ID().Name: rules}, map[manifest.ID]StoredVersions{of.ID(): tt.stored})
		if have := string(p.Steps[0].Action) + " " + p.Steps[0].Reason; have != tt.want {
			t.Errorf("%s: %s", tt.name, have)
		}
		with := "create "
		if strings.HasPrefix(tt.want, "refused") {
			with = "refused its package has conversion rules that leave out a stored version of " + of.ID().Name
		}
		if have := string(p.Steps[1].Action) + " " + p.Steps[1].Reason; have != with {
			t.Errorf("%s: the package's other step: %s", tt.name, have)
		}
		if have := p.Steps[2].Action; have != Create {
			t.Errorf("%s: another package's step: %s", tt.name, have)
		}
	}
}

// Rules that cannot be tried refuse their definition, with the package that it is of, and
// hide no other reason.
func TestConversionsNotTried(t *testing.T) {
	t.Parallel()
	o, rules := withRules(t, "odd", "v1.spec.title")
	tree := manifesttest.Tree(t, string(o.AppendJSON(nil)))
	tree["spec"].(map[string]any)["versions"].([]any)[1].(map[string]any)["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{}}}}
	var err error
	if rules.Definition, err = manifest.New(tree, manifest.Origin{File: "crd.yaml"}); err != nil {
		t.Fatal(err)
	}
	controller := manifest.Deployment.ID("gitopsd-system", "odd")
	p := &Plan{Steps: []Step{
		{Action: Refused, Reason: "breaking", Compatibility: compat.Breaking, ID: o.ID(), Object: o, Package: "p"},
		{Action: Configure, ID: controller, Package: "p"}, {Action: Configure, ID: controller, Package: "q"},
	}}
	if err := CheckConversions(t.Context(), p, map[string]*render.Conversion{"odd.example.io": rules}, new(prove.Cache)); err != nil {
		t.Fatal(err)
	}
	if s := p.Steps[0]; s.Action != Refused || !strings.HasPrefix(s.Reason, "breaking; its conversion rules cannot be tried: ") {
		t.Errorf("the definition: %s %s", s.Action, s.Reason)
	}
	if s := p.Steps[1]; s.Action != Refused || s.Reason != "its package has conversion rules that cannot be tried: odd.example.io" {
		t.Errorf("the controller: %s %s", s.Action, s.Reason)
	}
	if s := p.Steps[2]; s.Action != Configure {
		t.Errorf("another package: %s %s", s.Action, s.Reason)
	}
}
