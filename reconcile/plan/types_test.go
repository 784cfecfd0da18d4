package plan

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
)

// A breaking change is refused with its whole package, and nothing else is.
func TestRefuseBreaking(t *testing.T) {
	crd := func(name string) manifest.ID { return manifest.CRD.ID("", name) }
	configmap := func(name string) manifest.ID {
		return manifest.ID{Kind: "ConfigMap", Namespace: "default", Name: name}
	}
	breaking := func(names ...string) []compat.Finding {
		var all []compat.Finding
		for _, n := range names {
			all = append(all, compat.Finding{Name: n, Severity: compat.Breaking}, compat.Finding{Name: n, Severity: compat.Breaking})
		}
		return append(all, compat.Finding{Name: "field-added", Severity: compat.Compatible})
	}
	plan := func() *Plan {
		return &Plan{Steps: []Step{
			{ID: crd("a"), Action: Configure, Package: "db", Compatibility: compat.Breaking, Findings: breaking("f1", "f2", "f3", "f4")},
			{ID: crd("b"), Action: Create, Package: "db"},
			{ID: crd("c"), Action: Configure, Package: "db", Drift: true},
			{ID: crd("d"), Action: Unchanged, Package: "db"},
			{ID: crd("e"), Action: Configure, Package: "other", Compatibility: compat.Compatible, Findings: breaking()},
			{ID: crd("plain"), Action: Configure, Compatibility: compat.Breaking, Findings: breaking("f1")},
			{ID: configmap("plain"), Action: Configure},
			{ID: crd("edited"), Action: Configure, Package: "third", Drift: true, Reason: "drift: spec changed by kubectl-edit", Compatibility: compat.Breaking, Findings: breaking("f1")},
			{ID: configmap("third"), Action: Configure, Package: "third"},
			{ID: configmap("renewed"), Action: Configure, Package: "db", Refilled: true},
		}}
	}
	for _, tt := range []struct {
		name    string
		allowed Allowed
		want    []Action
		reason  string // of the first step
	}{
		{name: "nothing is allowed", want: []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure, Refused, Configure, Configure},
			reason: "breaking: f1, f2, f3 and 1 more; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "a part is allowed", allowed: func(pkg string, f compat.Finding) (string, bool) { return "", pkg == "db" && f.Name != "f4" },
			want:   []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure, Refused, Configure, Configure},
			reason: "breaking: f4; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "all is allowed", allowed: func(string, compat.Finding) (string, bool) { return "because", true },
			want: []Action{Configure, Create, Configure, Unchanged, Configure, Configure, Configure, Configure, Configure, Configure}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := plan()
			RefuseBreaking(p, tt.allowed, false)
			for i, want := range tt.want {
				if have := p.Steps[i].Action; have != want {
					t.Errorf("%s of %q: %s, want %s", p.Steps[i].ID, p.Steps[i].Package, have, want)
				}
			}
			if p.Steps[0].Reason != tt.reason {
				t.Errorf("reason %q, want %q", p.Steps[0].Reason, tt.reason)
			}
			const put = "drift: spec changed by kubectl-edit; correcting it is a breaking change: f1; the package's annotation gitopsd.dev/allow-breaking can allow it, or make the change in the repository"
			if edited := p.Steps[7]; edited.Action == Refused && edited.Reason != put {
				t.Errorf("reason %q, want %q", edited.Reason, put)
			}
		})
	}
}

// Objects are looked at if a change of their type, or of an XRD's, breaks something that
// is not allowed and that objects can tell about.
func TestMayDecide(t *testing.T) {
	t.Parallel()
	field := []compat.Finding{{Name: "field-removed", Severity: compat.Breaking}}
	yes := func(string, compat.Finding) (string, bool) { return "nobody uses it", true }
	for _, tt := range []struct {
		name    string
		step    Step
		allowed Allowed
		want    bool
	}{
		{"a field of a CRD", Step{ID: manifest.CRD.ID("", "a"), Action: Configure, Package: "p", Compatibility: compat.Breaking, Findings: field}, nil, true},
		{"a field of an XRD", Step{ID: manifest.XRD.ID("", "a"), Action: Configure, Package: "p", Compatibility: compat.Breaking, Findings: field}, nil, true},
		{"it is allowed", Step{ID: manifest.CRD.ID("", "a"), Action: Configure, Package: "p", Compatibility: compat.Breaking, Findings: field}, yes, false},
		{"it is refused for another reason", Step{ID: manifest.CRD.ID("", "a"), Action: Refused, Package: "p", Compatibility: compat.Breaking, Findings: field}, nil, false},
		{"no object could tell", Step{ID: manifest.CRD.ID("", "a"), Action: Configure, Package: "p", Compatibility: compat.Breaking, Findings: []compat.Finding{{Name: compat.StoredVersionRemoved, Severity: compat.Breaking}}}, nil, false},
		{"compatible", Step{ID: manifest.CRD.ID("", "a"), Action: Configure, Package: "p", Compatibility: compat.Compatible}, nil, false},
	} {
		if have := MayDecide(&tt.step, tt.allowed); have != tt.want {
			t.Errorf("%s: %v", tt.name, have)
		}
	}
}

// No annotation makes an API server remove a version that may be stored, or change a scope.
func TestWayOut(t *testing.T) {
	t.Parallel()
	const migrate = "the API server removes no version that status.storedVersions lists: run `gitopsd migrate --yes` before"
	const scope = "the API server changes no scope: publish a new kind, or delete this one by hand, with its objects"
	const goesOn = "the API server removes no version that status.storedVersions lists: `gitopsd run` stores the objects again (gitopsd.dev/migrate-storage), and goes on when that is done"
	for _, tt := range []struct {
		refused  []string
		migrates bool
		want     string
	}{
		{[]string{"f1", "f2"}, true, "the annotation can allow it, with a line"},
		{[]string{"stored-version-removed"}, false, migrate},
		{[]string{"stored-version-removed"}, true, goesOn},
		{[]string{"f1", "stored-version-removed"}, false, migrate + "; the annotation can allow the rest, with a line"},
		{[]string{"scope-changed"}, false, scope},
		{[]string{"f1", "scope-changed"}, false, scope + "; the annotation can allow the rest, with a line"},
		{[]string{"scope-changed", "stored-version-removed"}, false, migrate + "; " + scope},
	} {
		if got := joined(storedAgain(tt.refused, manifest.CRD.ID("", "a"), tt.migrates), otherScope(tt.refused), wayOut(tt.refused, "the annotation", ", with a line")); got != tt.want {
			t.Errorf("%q: %q, want %q", tt.refused, got, tt.want)
		}
	}
}

// A definition that belongs to no package allows for itself, and for its types as
// they are alone.
func TestAllowForItself(t *testing.T) {
	definition := func(field, allow string) *manifest.Object {
		o, err := manifest.New(map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": "widgets.acme.example", "annotations": map[string]any{manifest.AllowBreakingAnnotation: allow}},
			"spec": map[string]any{
				"group": "acme.example", "scope": "Namespaced", "names": map[string]any{"kind": "Widget", "plural": "widgets"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
					"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{field: map[string]any{"type": "string"}}}}}},
			},
		}, manifest.Origin{})
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	refused := func(o *manifest.Object) string {
		p := &Plan{Steps: []Step{{ID: o.ID(), Object: o, Action: Configure, Compatibility: compat.Breaking,
			Findings: []compat.Finding{{Name: "field-removed", Severity: compat.Breaking}}}}}
		RefuseBreaking(p, func(string, compat.Finding) (string, bool) { return "of a package", true }, false)
		if s := p.Steps[0]; s.Action == Refused {
			return s.Reason
		} else if s.Allowed["field-removed"] != "nobody has one" {
			t.Errorf("allowed because %q", s.Allowed["field-removed"])
		}
		return ""
	}
	const marker = `with a line "`
	reason := refused(definition("size", ""))
	_, line, ok := strings.Cut(reason, marker)
	version, _, _ := strings.Cut(line, ":<finding>")
	if !ok || !strings.HasPrefix(version, "h1:") || len(version) != len("h1:")+12 {
		t.Fatalf("refused: %q", reason)
	}
	for _, tt := range []struct{ name, field, allow, refused string }{
		{"this", "size", version + ":field-removed=nobody has one", ""},
		{"another finding", "size", version + ":enum-value-removed=nobody has one", "breaking: field-removed; its annotation"},
		{"another change", "weight", version + ":field-removed=nobody has one", "breaking: field-removed; its annotation"},
		{"no reason", "size", version + ":field-removed=", "gives no reason"},
	} {
		if have := refused(definition(tt.field, tt.allow)); (tt.refused == "") != (have == "") || !strings.Contains(have, tt.refused) {
			t.Errorf("%s: %q", tt.name, have)
		}
	}
}

// A change that harms no object is let through if it goes back, or if objects decide.
func TestRefuseBreakingByObjects(t *testing.T) {
	crd := func(properties string) *manifest.Object {
		return manifesttest.Set(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: things.example.org, labels: {gitopsd.dev/package: things}}, spec: {
			group: example.org, scope: Namespaced, names: {kind: Thing, plural: things}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {
			type: object, properties: {spec: {type: object, properties: {`+properties+`}}}}}}]}}`).All()[0]
	}
	old, now := crd("a: {type: string}, b: {type: string}"), crd("a: {type: string, maxLength: 3}")
	report, err := compat.Compare(t.Context(), old.Tree(), now.Tree(), compat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	survey := func(unknown error, specs ...string) *harm.Survey {
		judges, err := harm.New(old.Tree(), now.Tree(), report.Findings, harm.Options{})
		if err != nil {
			t.Fatal(err)
		}
		judge := judges[0]
		for _, spec := range specs {
			judge.Look(t.Context(), manifesttest.Tree(t, "{apiVersion: example.org/v1, kind: Thing, metadata: {name: x, namespace: default}, spec: "+spec+"}"), harm.Fate{})
		}
		return judge.Done(unknown)
	}
	field := func(_ string, f compat.Finding) (string, bool) { return "tested", f.Name == "field-removed" }
	for _, tt := range []struct {
		name         string
		survey       *harm.Survey
		allowed      Allowed
		back, byData bool
		want         Action
		reason       string
	}{
		{name: "nobody looked", back: true, byData: true, want: Refused, reason: "breaking: max-length-added, field-removed; the package's annotation"},
		{name: "the schema decides", survey: survey(nil, "{a: abc}"), want: Refused, reason: "breaking: max-length-added, field-removed; harms nobody today (1 object looked at), so that spec.breaking: data on the Cluster would let it through; the package's"},
		{name: "the objects decide", survey: survey(nil, "{a: abc}"), byData: true, want: Configure, reason: "why; breaking (max-length-added, field-removed), but spec.breaking: data: harms nobody today (1 object looked at)"},
		{name: "it goes back", survey: survey(nil, "{a: abc}"), back: true, want: Configure, reason: "but it goes back to types that were there before"},
		{name: "it goes back and harms", survey: survey(nil, "{a: abcd}"), back: true, byData: true, want: Refused, reason: "breaking: max-length-added; harms 1 of 1 object: default/x .spec.a is not valid any more: "},
		{name: "the harm is allowed", survey: survey(nil, "{b: x}"), allowed: field, byData: true, want: Configure, reason: "breaking (max-length-added), but spec.breaking: data: harms 1 of 1 object"},
		{name: "another harm is allowed", survey: survey(nil, "{a: abcd}"), allowed: field, byData: true, want: Refused, reason: "breaking: max-length-added; harms"},
		{name: "not all were looked at", survey: survey(errors.New("it took too long"), "{a: abc}"), back: true, byData: true, want: Refused, reason: "its effect on the objects is not known: it took too long; the package's"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Plan{Steps: []Step{{ID: now.ID(), Object: now, Action: Configure, Reason: "why", Package: "things", Compatibility: compat.Breaking, Findings: report.Findings, Survey: tt.survey, Back: tt.back}}}
			if !MayDecide(&p.Steps[0], tt.allowed) {
				t.Error("the objects have no say")
			}
			RefuseBreaking(p, tt.allowed, tt.byData)
			if s := p.Steps[0]; s.Action != tt.want || !strings.Contains(s.Reason, tt.reason) {
				t.Errorf("%s: %s\nwant %s: %s", s.Action, s.Reason, tt.want, tt.reason)
			}
		})
	}
	own := manifesttest.Set(t, strings.ReplaceAll(string(now.AppendJSON(nil)), `"gitopsd.dev/package":"things"`, "")).All()[0].WithOrigin(manifest.Origin{For: "things"})
	for _, tt := range []struct {
		name, object string
		drift        bool
		want         Action
		reason       string
	}{
		{name: "nothing is harmed", object: "{a: abc}", want: Configure, reason: "breaking (max-length-added, field-removed), but gitopsd makes this definition: harms nobody today"},
		{name: "a value is harmed", object: "{a: abcd}", want: Refused, reason: "; gitopsd makes this definition: correct the objects, or run the version of gitopsd that applied it"},
		{name: "a value is harmed by a correction", object: "{a: abcd}", drift: true, want: Refused, reason: "; gitopsd makes this definition: correct the objects"},
	} {
		p := &Plan{Steps: []Step{{ID: own.ID(), Object: own, Action: Configure, Drift: tt.drift, Compatibility: compat.Breaking, Findings: report.Findings, Survey: survey(nil, tt.object)}}}
		let := LetsThrough(&p.Steps[0], nil, false)
		RefuseBreaking(p, nil, false)
		if s := p.Steps[0]; s.Action != tt.want || let != (tt.want == Configure) || !strings.Contains(s.Reason, tt.reason) || strings.Contains(s.Reason, "annotation") || s.Allow != nil {
			t.Errorf("gitopsd's own definition, %s: %s: %s", tt.name, s.Action, s.Reason)
		}
	}
	all := func(string, compat.Finding) (string, bool) { return "tested", true }
	if MayDecide(&Step{ID: now.ID(), Object: now, Action: Configure, Package: "things", Compatibility: compat.Breaking, Findings: report.Findings}, all) {
		t.Error("the objects have a say in what is allowed")
	}
}

// While a type is being deleted with its objects, the controllers of its package are not
// started, neither for the first time nor again; those of others are.
func TestRefuseDying(t *testing.T) {
	t.Parallel()
	object := manifesttest.Set(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: any, namespace: default}}").All()[0]
	step := func(id manifest.ID, a Action, pkg string) Step {
		return Step{ID: id, Object: object, Stage: StageOf(id), Action: a, Package: pkg}
	}
	crd, empty := manifest.CRD.ID("", "a.example.org"), manifest.CRD.ID("", "b.example.org")
	workload := func(name string) manifest.ID { return manifest.Deployment.ID("default", name) }
	p := &Plan{Steps: []Step{
		step(crd, Wait, "db"), step(empty, Wait, "other"), step(manifest.ServiceAccount.ID("default", "a"), Create, "db"),
		step(workload("new"), Create, "db"), step(workload("stopped"), Configure, "db"), step(workload("runs"), Unchanged, "db"),
		step(workload("other"), Create, "other"), step(workload("plain"), Create, ""),
	}}
	p.Steps[4].Drift = true
	RefuseDying(p, map[manifest.ID]string{crd: "1 object (1 A)", empty: ""})
	var have []Action
	for _, s := range p.Steps {
		have = append(have, s.Action)
	}
	if want := []Action{Refused, Wait, Create, Held, Held, Unchanged, Create, Create}; !slices.Equal(have, want) {
		t.Errorf("have %v, want %v", have, want)
	}
	if want := "it is being deleted with 1 object (1 A), which cannot be undone"; !strings.HasPrefix(p.Steps[0].Reason, want) {
		t.Errorf("have %s", p.Steps[0].Reason)
	}
}
