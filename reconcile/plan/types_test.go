package plan

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// What breaks is refused with its whole package, and nothing else is.
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
		}}
	}
	for _, tt := range []struct {
		name    string
		allowed Allowed
		want    []Action
		reason  string // of the first step
	}{
		{name: "nothing is allowed", want: []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure, Refused, Configure},
			reason: "breaking: f1, f2, f3 and 1 more; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "a part is allowed", allowed: func(pkg string, f compat.Finding) (string, bool) { return "", pkg == "db" && f.Name != "f4" },
			want:   []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure, Refused, Configure},
			reason: "breaking: f4; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "all is allowed", allowed: func(string, compat.Finding) (string, bool) { return "because", true },
			want: []Action{Configure, Create, Configure, Unchanged, Configure, Configure, Configure, Configure, Configure}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := plan()
			RefuseBreaking(p, tt.allowed)
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

// No annotation makes an API server remove a version that may be stored.
func TestWayOut(t *testing.T) {
	t.Parallel()
	const migrate = "the API server removes no version that status.storedVersions lists: run `gitopsd migrate` before"
	for _, tt := range []struct {
		refused []string
		want    string
	}{
		{[]string{"f1", "f2"}, "the annotation can allow it, with a line"},
		{[]string{"stored-version-removed"}, migrate},
		{[]string{"f1", "stored-version-removed"}, migrate + "; the annotation can allow the rest, with a line"},
	} {
		if got := wayOut(tt.refused, "the annotation", ", with a line"); got != tt.want {
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
		RefuseBreaking(p, func(string, compat.Finding) (string, bool) { return "of a package", true })
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
