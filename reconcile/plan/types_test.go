package plan

import (
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// What breaks is refused with its whole package, and nothing else is.
func TestRefuseBreaking(t *testing.T) {
	crd := func(name string) manifest.ID { return manifest.ID{Group: crdGroup, Kind: crdKind, Name: name} }
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
		}}
	}
	for _, tt := range []struct {
		name    string
		allowed Allowed
		want    []Action
		reason  string // of the first step
	}{
		{name: "nothing is allowed", want: []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure},
			reason: "breaking: f1, f2, f3 and 1 more; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "a part is allowed", allowed: func(pkg string, f compat.Finding) (string, bool) { return "", pkg == "db" && f.Name != "f4" },
			want:   []Action{Refused, Refused, Configure, Unchanged, Configure, Refused, Configure},
			reason: "breaking: f4; the package's annotation gitopsd.dev/allow-breaking can allow it"},
		{name: "all is allowed", allowed: func(string, compat.Finding) (string, bool) { return "because", true },
			want: []Action{Configure, Create, Configure, Unchanged, Configure, Configure, Configure}},
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
		})
	}
}
