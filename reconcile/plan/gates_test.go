package plan

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

func TestGates(t *testing.T) {
	deployment := manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: "widgets"}
	crd := manifest.CRD.ID("", "widgets.acme.example")
	service := manifest.ID{Kind: "Service", Namespace: "gitopsd-system", Name: "widgets"}
	all := []manifest.ID{deployment, crd, service}
	for _, tt := range []struct {
		text string
		want []manifest.ID
		idle string
		err  string // a part
	}{
		{text: "deployment.apps", want: []manifest.ID{deployment}},
		{text: "deployment.apps/gitopsd-system/widgets, service", want: []manifest.ID{deployment, service}},
		{text: "none"},
		{text: " deployment.apps ,", want: []manifest.ID{deployment}},
		{text: "deployment.apps, statefulset.apps", want: []manifest.ID{deployment}, idle: "statefulset.apps"},
		{text: "deployment", idle: "deployment"},
		{text: "none, deployment.apps", err: `"none" stands alone`},
		{text: "*.apps", err: `"*.apps": want a kind, as in deployment.apps`},
		{text: "a/b/c/d", err: "want a kind"},
		{text: " , ", err: "names nothing"},
	} {
		gates, err := ParseGates(tt.text)
		if tt.err != "" || err != nil {
			if err == nil || tt.err == "" || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: error %v, want %q", tt.text, err, tt.err)
			}
			continue
		}
		g := Gating{Gates: map[string]Gates{"widgets": gates}}
		var have []manifest.ID
		for _, id := range all {
			if g.Waits(id, "widgets") {
				have = append(have, id)
			}
			if !g.Waits(id, "gadgets") || !g.Waits(id, "") {
				t.Errorf("%q: it concerns others", tt.text)
			}
		}
		if !slices.Equal(have, tt.want) || strings.Join(gates.Idle(all), " ") != tt.idle {
			t.Errorf("%q: waits for %v, want %v; idle are %v, want %q", tt.text, have, tt.want, gates.Idle(all), tt.idle)
		}
	}
}

func FuzzParseGates(f *testing.F) {
	f.Add("deployment.apps, service/a/b")
	f.Add("none")
	f.Fuzz(func(t *testing.T, text string) {
		gates, err := ParseGates(text)
		if err == nil && len(gates) == 0 && strings.TrimSpace(text) != "none" {
			t.Errorf("%q opens every gate", text)
		}
	})
}
