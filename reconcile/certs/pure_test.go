package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// What an annotation asks for that cannot be had is an error of the object that carries
// it, and says what to write. No cluster is asked.
func TestNamesNothing(t *testing.T) {
	t.Parallel()
	completer, err := New(Config{Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, object, want string }{
		{"no Service", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: Service/acme/gone}}}`,
			"gitopsd.dev/inject-ca: the repository has no service/acme/gone for this cluster; correct the name, or name a Secret (Secret/<namespace>/<name>)"},
		{"no certificate", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: acme/plain}}}`,
			"gitopsd.dev/inject-ca: service/acme/plain has no certificate of gitopsd's; annotate it with gitopsd.dev/serving-cert: <name of a Secret>"},
		{"no name", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: plain}}}`,
			`gitopsd.dev/inject-ca: "plain": want Service/<namespace>/<name> or Secret/<namespace>/<name>`},
		{"a path", `{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a, annotations: {gitopsd.dev/inject-ca: Secret/a/b/c}}}`,
			`gitopsd.dev/inject-ca: "Secret/a/b/c": want Service/<namespace>/<name> or Secret/<namespace>/<name>`},
		{"no bundle", `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/inject-ca: acme/plain}}}`,
			"gitopsd.dev/inject-ca: a ConfigMap holds no CA bundle; remove the annotation"},
		{"no conversion", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a.b, annotations: {gitopsd.dev/inject-ca: acme/plain}}, spec: {conversion: {strategy: None}}}`,
			"gitopsd.dev/inject-ca: the definition does not convert by webhook (spec.conversion.webhook.clientConfig); remove the annotation"},
		{"no Service at all", `{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/serving-cert: b}}}`,
			"gitopsd.dev/serving-cert: only Services have serving certificates; remove the annotation"},
		{"gitopsd's own", `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: gitopsd-system, annotations: {gitopsd.dev/serving-cert: serving-ca.gitopsd-system.a}}}`,
			"gitopsd.dev/serving-cert: names that begin with serving-ca. are those of gitopsd's own CAs; name another"},
		{"no Secret", `{apiVersion: v1, kind: Service, metadata: {name: a, namespace: acme, annotations: {gitopsd.dev/serving-cert: a/b}}}`,
			`gitopsd.dev/serving-cert: "a/b" is no name of a Secret`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := desired.Registered(clusters.Cluster{Name: "dev"}, "")
			u.Objects = manifesttest.Set(t, "{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: acme}}\n---\n"+tt.object)
			done, err := completer.Complete(t.Context(), unit.Request{Unit: u, Objects: u.Objects})
			if err != nil {
				t.Fatal(err)
			}
			for id, why := range done.Refused {
				if why != tt.want {
					t.Errorf("%s: %s\nwant %s", id, why, tt.want)
				}
			}
			if len(done.Refused) != 1 {
				t.Errorf("refused: %v", done.Refused)
			}
		})
	}
}

// Only bundles are filled in; what was rendered stays as it is.
func TestFill(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ object, want, unknown string }{
		{"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.a}, spec: {service: {name: s}}}",
			`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.a"},"spec":{"caBundle":"Q0E=","service":{"name":"s"}}}`, "spec.caBundle"},
		{"{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: a}, webhooks: [{name: w, clientConfig: {url: u}}, {name: v}]}",
			`{"apiVersion":"admissionregistration.k8s.io/v1","kind":"MutatingWebhookConfiguration","metadata":{"name":"a"},"webhooks":[{"clientConfig":{"caBundle":"Q0E=","url":"u"},"name":"w"},{"clientConfig":{"caBundle":"Q0E="},"name":"v"}]}`,
			"webhooks[name=w].clientConfig.caBundle webhooks[name=v].clientConfig.caBundle"},
		{"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a.b}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {url: u}}}}}",
			`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a.b"},"spec":{"conversion":{"strategy":"Webhook","webhook":{"clientConfig":{"caBundle":"Q0E=","url":"u"}}}}}`,
			"spec.conversion.webhook.clientConfig.caBundle"},
	} {
		o := manifesttest.Objects(t, tt.object)[0]
		before := string(o.AppendJSON(nil))
		filled, err := fill(o, []byte("CA"))
		if err != nil {
			t.Fatal(err)
		}
		if have := string(filled.AppendJSON(nil)); have != tt.want {
			t.Errorf("have %s\nwant %s", have, tt.want)
		}
		if string(o.AppendJSON(nil)) != before {
			t.Errorf("the rendered object was changed")
		}
		empty, err := fill(o, nil)
		if err != nil || strings.Join(empty.Unknown(), " ") != tt.unknown || string(empty.AppendJSON(nil)) != before {
			t.Errorf("unknown %q, %v", empty.Unknown(), err)
		}
	}
}

// The policy leaves time for each step.
func TestPolicy(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, tt := range []struct {
		config Config
		want   string
	}{
		{Config{Policy: Policy{365 * day, 90 * day, time.Minute}}, ""},
		{Config{Policy: Policy{9 * time.Second, 3 * time.Second, time.Second}}, ""},
		{Config{Policy: Policy{365 * day, 0, 0}}, "certificates that are valid for 0s: use at least 3s"},
		{Config{Policy: Policy{200 * day, 90 * day, 0}}, "CAs that are valid for 4800h0m0s: use at least three times the lifetime of certificates, 6480h0m0s"},
		{Config{Policy: Policy{365 * day, 90 * day, 31 * day}}, "settling for 744h0m0s: use at most a third of the lifetime of certificates, 720h0m0s"},
		{Config{Policy: Policy{365 * day, 90 * day, 0}, Authority: "a/b"}, `"a/b" is no name of a Secret`},
	} {
		text := ""
		if _, err := New(tt.config); err != nil {
			text = err.Error()
		}
		if text != tt.want {
			t.Errorf("error %q, want %q", text, tt.want)
		}
	}
}

// A hint in the journal that is wrong takes no CA away that is needed.
func TestHints(t *testing.T) {
	t.Parallel()
	old := CA{ID: "old", NotBefore: noon.Add(-300 * 24 * time.Hour), NotAfter: noon.Add(65 * 24 * time.Hour)}
	signer := CA{ID: "signer", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(365 * 24 * time.Hour), Key: true}
	next := CA{ID: "next", NotBefore: noon.Add(-10 * time.Minute), NotAfter: noon.Add(365 * 24 * time.Hour), Key: true}
	leaf := Leaf{Issuer: "old", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(30 * 24 * time.Hour)}
	lacking := []Bundle{{"webhook", []string{"old"}}}
	for _, tt := range []struct {
		name  string
		state State
		trust []string
		by    string
	}{
		{"a former CA that is said to have expired", State{Journal: &Journal{Signer: signer, Former: []Former{{old, noon.Add(-time.Hour)}}}, Leaf: leaf, Looked: true, Bundles: lacking},
			[]string{"signer", "old"}, ""},
		{"a CA that is said to be everywhere", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(-5 * time.Minute)}, Leaf: leaf, Looked: true, Bundles: lacking},
			[]string{"old", "next"}, ""},
		{"a CA that is said to have signed nothing", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(-5 * time.Minute)}, Leaf: leaf, Looked: true},
			[]string{"next", "old"}, "next"},
		{"a CA that will be everywhere", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(time.Hour)}, Leaf: leaf, Looked: true},
			[]string{"old", "next"}, ""},
	} {
		d := Decide(tt.state, noon, policy)
		if have := d.Journal.Trust(); !slices.Equal(have, tt.trust) || d.Issue.By != tt.by {
			t.Errorf("%s: trusts %q, issues by %q; want %q, %q", tt.name, have, d.Issue.By, tt.trust, tt.by)
		}
	}
}

// A certificate that cannot be written is not recorded anew each time, and neither that
// nor a CA made by a clock that was ahead is used.
func TestDecideAgain(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	signer := CA{ID: "signer", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(365 * day), Key: true}
	ahead := CA{ID: "ahead", NotBefore: noon.Add(400 * day), NotAfter: noon.Add(765 * day), Key: true}
	for _, tt := range []struct {
		name   string
		state  State
		signer string
		until  time.Time
		same   bool
	}{
		{"one that was recorded and not written", State{Journal: &Journal{Signer: signer, Issued: noon.Add(89 * day)}}, "signer", noon.Add(89 * day), true},
		{"long ago", State{Journal: &Journal{Signer: signer, Issued: noon.Add(60 * day)}}, "signer", noon.Add(90 * day), false},
		{"a certificate from the future", State{Journal: &Journal{Signer: signer, Issued: noon.Add(90 * day)}, Leaf: Leaf{"signer", noon.Add(time.Hour), noon.Add(90 * day)}},
			"signer", noon.Add(90 * day), true},
		{"a CA from the future", State{Journal: &Journal{Signer: ahead, Issued: noon.Add(490 * day)}, Leaf: Leaf{"ahead", noon.Add(400 * day), noon.Add(490 * day)}},
			Unmade, noon.Add(90 * day), false},
	} {
		d := Decide(tt.state, noon, policy)
		if d.Journal.Signer.ID != tt.signer || d.Issue.By != tt.signer || !d.Issue.NotAfter.Equal(tt.until) || d.Journal.Equal(tt.state.Journal) != tt.same {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
}

// A CA that API servers would not accept for a Service is not tried out on them.
func TestLimitedAuthority(t *testing.T) {
	t.Parallel()
	service := manifest.Service.ID("acme", "hooks")
	for _, tt := range []struct {
		name  string
		limit func(*x509.Certificate)
		want  string
	}{
		{"none", func(*x509.Certificate) {}, ""},
		{"servers", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, ""},
		{"clients", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "incompatible key usage"},
		{"its names", func(c *x509.Certificate) {
			c.PermittedDNSDomains = []string{"acme", "acme.svc", "acme.svc.cluster.local"}
		}, ""},
		{"other names", func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }, "not authorized to sign"},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{Subject: pkix.Name{CommonName: "operator"}, NotBefore: noon, NotAfter: noon.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}
		tt.limit(template)
		cert, err := sign(template, authority{key: key}, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		if err := (authority{cert, key}).try(service, noon); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A CA and what it signs are what they should be.
func TestMint(t *testing.T) {
	t.Parallel()
	service := manifest.Service.ID(strings.Repeat("n", 63), strings.Repeat("s", 63))
	a, err := mint(service, noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	again, err := mint(service, noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if !isCA(a.cert) || a.cert.MaxPathLen != 0 || !a.cert.MaxPathLenZero || len(a.cert.Subject.CommonName) > 64 || a.cert.SerialNumber.Cmp(again.cert.SerialNumber) == 0 {
		t.Errorf("CA %+v", a.cert.Subject)
	}
	crt, key, err := issue(a, service, noon.Add(-time.Hour), noon.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := parsePair(crt, key)
	if err != nil || isCA(chain[0]) || servesFor(chain[0], service) != nil || !signed(a.cert, chain[0]) || signed(again.cert, chain[0]) || chain[0].NotBefore.Before(noon) {
		t.Errorf("certificate %+v, %v", chain, err)
	}
	if servesFor(chain[0], manifest.Service.ID("n", "s")) == nil {
		t.Error("it is for every Service")
	}
}

// Whatever a Secret holds is read without a panic, and what was written is read back.
func FuzzJournal(f *testing.F) {
	service := manifest.Service.ID("acme", "hooks")
	a, err := mint(service, noon, noon.Add(time.Hour))
	if err != nil {
		f.Fatal(err)
	}
	b, err := mint(service, noon, noon.Add(2*time.Hour))
	if err != nil {
		f.Fatal(err)
	}
	m := make(material)
	j := Journal{Signer: m.add(a, true), Issued: noon.Add(time.Minute), Former: []Former{{m.add(authority{cert: b.cert}, false), noon.Add(time.Hour)}}}
	data, err := m.write(&j)
	if err != nil {
		f.Fatal(err)
	}
	if read, _ := make(material).read(data, service); read == nil || !read.Equal(&j) {
		f.Fatalf("read %+v, want %+v", read, j)
	}
	f.Add(data[keyCert], data[keyKey], data[keyFormer], data[keyTimes])
	f.Add([]byte{}, []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, crt, key, former, times []byte) {
		m := make(material)
		j, _ := m.read(map[string][]byte{keyCert: crt, keyKey: key, keyFormer: former, keyTimes: times}, service)
		if j == nil {
			return
		}
		data, err := m.write(j)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := make(material).read(data, service)
		if again == nil || !again.Equal(j) || !bytes.Equal(m.bundle(j.Trust()), m.bundle(again.Trust())) {
			t.Errorf("read %+v, and once written %+v", j, again)
		}
	})
}

// The Secret that records the CA of a conversion server goes and stays with the server.
func TestJournalOfConverter(t *testing.T) {
	if id := journalOf(converter.Service()); !converter.Part(id) {
		t.Errorf("%s is no part of the conversion server", id)
	}
}
