package live

import (
	"encoding/json"
	"testing"

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
