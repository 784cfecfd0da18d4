package live

import (
	"encoding/json"
	"testing"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
)

// An owner's name alone hides no definition: the owner is there, and is there for
// that definition.
func TestComposed(t *testing.T) {
	read := func(text string) *envelope {
		var e envelope
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Fatal(err)
		}
		return &e
	}
	xrd := read(`{"metadata":{"name":"xnetworks.example.org","uid":"1"},"spec":{"group":"example.org","names":{"plural":"xnetworks"},"claimNames":{"plural":"networks"}}}`)
	offered := map[string][]string{xrd.Metadata.UID: xrd.offers(), "2": read(`{"metadata":{"name":"bad","uid":"2"},"spec":{"group":1}}`).offers()}
	owned := func(name, apiVersion, kind, uid string) string {
		return `{"metadata":{"name":"` + name + `","ownerReferences":[{"apiVersion":"` + apiVersion + `","kind":"` + kind + `","uid":"` + uid + `"}]}}`
	}
	const v1 = "apiextensions.crossplane.io/v1"
	for _, tt := range []struct {
		name, crd string
		want      bool
	}{
		{"the composites", owned("xnetworks.example.org", v1, manifest.XRD.Kind, "1"), true},
		{"the claims", owned("networks.example.org", v1, manifest.XRD.Kind, "1"), true},
		{"something else", owned("widgets.acme.example", v1, manifest.XRD.Kind, "1"), false},
		{"of an XRD that is not there", owned("xnetworks.example.org", v1, manifest.XRD.Kind, "9"), false},
		{"of one that cannot be read", owned("xnetworks.example.org", v1, manifest.XRD.Kind, "2"), false},
		{"of another kind", owned("xnetworks.example.org", v1, "Composition", "1"), false},
		{"of another group", owned("xnetworks.example.org", "v1", manifest.XRD.Kind, "1"), false},
		{"of nobody", `{"metadata":{"name":"xnetworks.example.org"}}`, false},
	} {
		if have := read(tt.crd).composed(offered); have != tt.want {
			t.Errorf("%s: %t", tt.name, have)
		}
	}
}

// What an API server asks for conversions is what it is told, whatever an annotation says.
func TestConverted(t *testing.T) {
	const one, two = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "h1:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	const name = "as.example.org"
	asks := func(address string) string {
		return `{"strategy":"Webhook","webhook":{"clientConfig":{"url":"https://example.org` + address + `"},"conversionReviewVersions":["v1"]}}`
	}
	for _, tt := range []struct{ title, rendered, live, want string }{
		{"no rules", "", `{"strategy":"None"}`, ""},
		{"the webhook of a package", "", asks("/convert"), ""},
		{"the rules", one, asks(conversion.Path("dev", name, one)), ""},
		{"older rules", one, asks(conversion.Path("dev", name, two)), "other conversion rules (h1:AQECAwQFBgcI)"},
		{"rules that are not declared", "", asks(conversion.Path("dev", name, two)), "other conversion rules (h1:AQECAwQFBgcI)"},
		{"another cluster's", one, asks(conversion.Path("prod", name, one)), "conversion rules of cluster prod"},
		{"another webhook", one, asks("/convert"), "another webhook"},
		{"nothing", one, `{"strategy":"None"}`, "nothing"},
		{"no strategy", one, `{}`, "nothing"},
	} {
		t.Run(tt.title, func(t *testing.T) {
			r := &Reader{known: make(map[content]*known)}
			e := &envelope{Spec: json.RawMessage(`{"group":"example.org","scope":"Cluster","names":{"kind":"A","plural":"as"},"conversion":` + tt.live + `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}`)}
			e.Metadata.Name = name
			k, err := r.read(kube.Type{Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind}, e)
			if err != nil {
				t.Fatal(err)
			}
			if have := k.converted(&verify.Definition{Conversion: tt.rendered}, "dev"); have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}
