package live

import (
	"encoding/json"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
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

// A definition of gitopsd's that may be wanted is a gap. One of others is not, which gitopsd
// does not keep.
func TestKept(t *testing.T) {
	crd := kube.Type{Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind}
	for _, label := range []string{plan.PartOfLabel, "other"} {
		e := &envelope{Spec: json.RawMessage(`{"group":"example.org","names":{"kind":"A","plural":"as"},"versions":[]}`)}
		e.Metadata.Name, e.Metadata.Labels = "as.example.org", map[string]string{label: "x"}
		facts := &verify.Facts{Definitions: make(map[manifest.ID]*verify.Definition)}
		wanted := &desired.Unit{Keeps: func(manifest.ID, string) bool { return true }}
		in := &reading{Reader: &Reader{known: make(map[content]*known)}, wanted: wanted, facts: facts}
		if err := in.definition(t.Context(), crd, e); err != nil {
			t.Fatal(err)
		}
		if read := len(facts.Definitions) > 0; read == (label == plan.PartOfLabel) {
			t.Errorf("with label %s: read: %t", label, read)
		}
	}
}

// What an API server asks for conversions is what it is told, whatever an annotation says, and
// whatever rules the path of somebody's address names.
func TestConverted(t *testing.T) {
	const one, two = "h1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "h1:AQECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	const name = "as.example.org"
	client := func(config string) string {
		return `{"strategy":"Webhook","webhook":{"clientConfig":{` + config + `},"conversionReviewVersions":["v1"]}}`
	}
	at := func(host, path string) string { return client(`"url":"https://` + host + path + `"`) }
	asks := func(path string) string { return at("example.org", path) }
	service := func(config string) string { return client(`"service":{"namespace":"ns",` + config + `}`) }
	const none = `{"strategy":"None"}`
	rules := asks(conversion.Path("dev", name, one))
	inside := service(`"name":"gitopsd","port":443,"path":"` + conversion.Path("dev", name, one) + `"`)
	widgets := service(`"name":"widgets"`)
	for _, tt := range []struct{ title, digest, rendered, live, want string }{
		{"no rules", "", none, none, ""},
		{"the webhook of a package", "", asks("/convert"), asks("/convert"), ""},
		{"with the defaults of an API server", "", widgets, service(`"name":"widgets","port":443,"path":"/"`), ""},
		{"with a CA bundle that others filled in", "", widgets, client(`"caBundle":"YQ==","service":{"namespace":"ns","name":"widgets","port":443}`), ""},
		{"an address that is left to others", "", client(""), asks("/convert"), ""},
		{"the rules", one, rules, rules, ""},
		{"the rules in the cluster", one, inside, inside, ""},
		{"older rules", one, rules, asks(conversion.Path("dev", name, two)), "other conversion rules (h1:AQECAwQFBgcI)"},
		{"rules that are not declared", "", none, asks(conversion.Path("dev", name, two)), "other conversion rules (h1:AQECAwQFBgcI)"},
		{"another cluster's", one, rules, asks(conversion.Path("prod", name, one)), "conversion rules of cluster prod"},
		{"the rules at somebody else's server", one, rules, at("evil.example.net", conversion.Path("dev", name, one)), "another webhook (https://evil.example.net)"},
		{"the rules by somebody else's Service", one, inside, service(`"name":"evil","port":443,"path":"` + conversion.Path("dev", name, one) + `"`), "another webhook (service ns/evil:443" + conversion.Path("dev", name, one) + ")"},
		{"another webhook than the rules", one, rules, asks("/convert"), "another webhook (https://example.org)"},
		{"another Service", "", widgets, service(`"name":"evil"`), "another webhook (service ns/evil:443/)"},
		{"another namespace", "", widgets, client(`"service":{"namespace":"evil","name":"widgets"}`), "another webhook (service evil/widgets:443/)"},
		{"another port", "", widgets, service(`"name":"widgets","port":9443`), "another webhook (service ns/widgets:9443/)"},
		{"another path", "", widgets, service(`"name":"widgets","path":"/x"`), "another webhook (service ns/widgets:443/x)"},
		{"a URL in place of a Service", "", widgets, at("me:secret@evil.example.net", "/secret"), "another webhook (https://evil.example.net)"},
		{"nothing", one, rules, none, "nothing"},
		{"no strategy", one, rules, `{}`, "nothing"},
	} {
		t.Run(tt.title, func(t *testing.T) {
			r := &Reader{known: make(map[content]*known)}
			spec := func(conversion string) string {
				return `{"group":"example.org","scope":"Cluster","names":{"kind":"A","plural":"as"},"conversion":` + conversion + `,"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}`
			}
			e := &envelope{Spec: json.RawMessage(spec(tt.live))}
			e.Metadata.Name = name
			k, err := r.read(kube.Type{Group: manifest.CRD.Group, Version: "v1", Kind: manifest.CRD.Kind}, e)
			if err != nil {
				t.Fatal(err)
			}
			crd := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"` + name + `","annotations":{"` + manifest.ConversionAnnotation + `":"` + tt.digest + `"}},"spec":` + spec(tt.rendered) + `}`
			set, _ := manifest.NewSet([]*manifest.Object{manifesttest.Object(t, crd)})
			var repository verify.Repository
			facts := repository.Wanted(t.Context(), &desired.Unit{Objects: set})
			if have := k.converted(facts.Definitions[manifest.CRD.ID("", name)], "dev"); have != tt.want {
				t.Errorf("have %q, want %q", have, tt.want)
			}
		})
	}
}
