package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

var policy = rotation.Policy{Authority: DefaultAuthority, Leaf: DefaultLeaf, Settle: time.Minute}

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// bed is a unit of a test's own, in a control plane that all tests share, with a clock
// of its own.
type bed struct {
	t    *testing.T
	name string
	now  time.Time
	log  bytes.Buffer
	// logger writes to log; connections share it, since it locks.
	logger *slog.Logger
	// sent counts requests.
	sent atomic.Int64
	// breaks has requests for some paths fail; nil for none.
	breaks func(path string) bool
	conn   *unit.Connection
	want   *desired.Unit
	cfg    Config
}

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Parallel()
	b := &bed{t: t, name: strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")), now: time.Now()}
	b.cfg = Config{Policy: policy, Now: func() time.Time { return b.now }}
	b.logger = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	b.conn = b.connect()
	b.wants(hooks + webhooks)
	return b
}

func kubeconfig(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile(devcluster.Start(t, "certs").Kubeconfig("certs"))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// connect connects anew, as another process does.
func (b *bed) connect() *unit.Connection {
	b.t.Helper()
	return b.connectAs(b.name)
}

// watched is a transport that counts what it sends, and breaks some of it.
type watched struct {
	http.RoundTripper
	b *bed
}

func (w watched) RoundTrip(r *http.Request) (*http.Response, error) {
	w.b.sent.Add(1)
	if w.b.breaks != nil && w.b.breaks(r.URL.Path) {
		body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`
		return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	}
	return w.RoundTripper.RoundTrip(r)
}

// connectAs connects to the cluster as one that is registered under a name.
func (b *bed) connectAs(name string) *unit.Connection {
	b.t.Helper()
	client, err := kube.New(kube.Config{Name: name, Kubeconfig: kubeconfig(b.t), WrapTransport: func(t http.RoundTripper) http.RoundTripper { return watched{t, b} }})
	if err != nil {
		b.t.Fatal(err)
	}
	completer, err := New(b.cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	conn, err := unit.New(unit.Config{
		Unit: desired.ID{Cluster: name}, Client: client, Fleet: apply.Fleet{Name: "fleet"}, Completers: []unit.Completer{completer},
		Log: b.logger,
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	return conn
}

const hooks = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: Service
metadata: {name: hooks, namespace: $NAME, annotations: {gitopsd.dev/serving-cert: hooks-tls}}
spec: {ports: [{port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hooks, namespace: $NAME, labels: {kubernetes.io/service-name: hooks}}
addressType: IPv4
endpoints: [{addresses: [10.9.8.7], conditions: {ready: true}}]
ports: [{port: 9443}]
`

const webhooks = `
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: $NAME, annotations: {gitopsd.dev/inject-ca: Service/$NAME/hooks}}
webhooks:
- name: a.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: hooks, namespace: $NAME, path: /a}}
  rules: [{apiGroups: [none.example.org], apiVersions: [v1], resources: [nothing], operations: [CREATE]}]
- name: b.example.org
  admissionReviewVersions: [v1]
  sideEffects: None
  clientConfig: {service: {name: hooks, namespace: $NAME, path: /b}}
  rules: [{apiGroups: [none.example.org], apiVersions: [v1], resources: [nothing], operations: [CREATE]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.$NAME.example.org, annotations: {gitopsd.dev/inject-ca: $NAME/hooks}}
spec:
  group: $NAME.example.org
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: hooks, namespace: $NAME, path: /convert}}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`

func (b *bed) yaml(text string) string { return strings.ReplaceAll(text, "$NAME", b.name) }

// wants has the unit have these objects; $NAME in them is the bed's name.
func (b *bed) wants(text string) {
	b.t.Helper()
	b.want = desired.Registered(clusters.Cluster{Name: b.name}, "")
	b.want.Objects = manifesttest.Set(b.t, b.yaml(text))
}

// apply applies, checks the phase, and returns what was done.
func (b *bed) apply(phase status.Phase) unit.Outcome {
	b.t.Helper()
	o := b.conn.Apply(b.t.Context(), b.want)
	if o.Phase != phase {
		b.t.Fatalf("%s: %s %v; want %s", o.Phase, o.Message, o.Problems, phase)
	}
	return o
}

// rests checks that nothing is left to do, for this process and another.
func (b *bed) rests() {
	b.t.Helper()
	for _, conn := range []*unit.Connection{b.conn, b.connect()} {
		o := conn.Apply(b.t.Context(), b.want)
		if o.Changed != 0 || o.Phase != status.Ready || o.Checkpoint == nil {
			b.t.Errorf("at rest: %s, %d changed, checkpoint %v: %s", o.Phase, o.Changed, o.Checkpoint != nil, b.log.String())
		}
	}
}

// later lets time pass, for a process that remembers nothing.
func (b *bed) later(d time.Duration) {
	b.t.Helper()
	b.now = b.now.Add(d)
	b.conn = b.connect()
}

func (b *bed) secret() manifest.ID { return manifest.Secret.ID(b.name, "hooks-tls") }
func (b *bed) journal() manifest.ID {
	return manifest.Secret.ID(apply.Namespace, "serving-ca."+b.name+".hooks")
}

func (b *bed) crd() manifest.ID { return manifest.CRD.ID("", "things."+b.name+".example.org") }

// send sends a request past everything that is tested here; nil answers "not found".
func (b *bed) send(method string, id manifest.ID, body string) map[string]any {
	b.t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig(b.t))
	if err != nil {
		b.t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		b.t.Fatal(err)
	}
	path := map[manifest.GroupKind]string{
		manifest.Secret:             "/api/v1/namespaces/" + id.Namespace + "/secrets/",
		manifest.ValidatingWebhooks: "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/",
		manifest.CRD:                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/",
	}[id.GroupKind()] + id.Name
	if method == http.MethodPost {
		path = strings.TrimSuffix(path, "/"+id.Name)
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, config.Host+path+"?fieldManager=somebody", strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", map[string]string{http.MethodPatch: "application/merge-patch+json"}[method])
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/yaml")
	}
	resp, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	switch err := json.NewDecoder(resp.Body).Decode(&answer); {
	case resp.StatusCode == http.StatusNotFound:
		return nil
	case resp.StatusCode >= 300 || err != nil:
		b.t.Fatalf("%s %s: %d %v %v", method, id, resp.StatusCode, answer["message"], err)
	}
	return answer
}

func (b *bed) contents(id manifest.ID) map[string]string {
	b.t.Helper()
	data := make(map[string]string)
	for key, value := range contents(b.send(http.MethodGet, id, "")) {
		data[key] = string(value)
	}
	return data
}

// bundles returns those in force, which must agree.
func (b *bed) bundle() []*x509.Certificate {
	b.t.Helper()
	values := make(map[string]bool)
	for _, id := range []manifest.ID{manifest.ValidatingWebhooks.ID("", b.name), b.crd()} {
		for _, s := range slots(b.send(http.MethodGet, id, "")) {
			text, _ := base64.StdEncoding.DecodeString(s.value)
			values[string(text)] = true
		}
	}
	if len(values) != 1 {
		b.t.Fatalf("the bundles differ: %d", len(values))
	}
	for text := range values {
		certs, err := rotation.Parse([]byte(text))
		if err != nil {
			b.t.Fatal(err)
		}
		if b.contents(b.secret())["ca.crt"] != text && b.contents(b.secret())["ca.crt"] != "" {
			b.t.Error("ca.crt in the Secret is not the bundle")
		}
		return certs
	}
	return nil
}

// trusted checks that live objects trust the certificate, whatever else is in their bundles.
func (b *bed) trusted(ids ...manifest.ID) {
	b.t.Helper()
	chain, err := rotation.Parse([]byte(b.contents(b.secret())["tls.crt"]))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, id := range ids {
		for _, held := range inForce(id, b.send(http.MethodGet, id, "")) {
			if err := profileOf(manifest.Service.ID(b.name, "hooks")).Accepted(chain, held.PEM, b.now); err != nil {
				b.t.Errorf("%s does not trust the certificate: %v", id, err)
			}
		}
	}
}

// handshake serves with the Secret, and connects as an API server does.
func (b *bed) handshake() {
	b.t.Helper()
	roots := x509.NewCertPool()
	for _, cert := range b.bundle() {
		roots.AddCert(cert)
	}
	data := b.contents(b.secret())
	pair, err := tls.X509KeyPair([]byte(data["tls.crt"]), []byte(data["tls.key"]))
	if err != nil {
		b.t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		b.t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // the client checks
				defer conn.Close()
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	for _, name := range []string{"hooks." + b.name + ".svc", "hooks." + b.name, "hooks." + b.name + ".svc.cluster.local"} {
		d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: name, Time: func() time.Time { return b.now }}}
		conn, err := d.DialContext(b.t.Context(), "tcp", listener.Addr().(*net.TCPAddr).String())
		if err != nil {
			b.t.Errorf("%s: %v", name, err)
			continue
		}
		conn.Close()
	}
}

// A Service gets a certificate and its consumers the CA, in one pass; a restart changes
// nothing; what is not wanted any more is gone; and no key is shown.
func TestIssue(t *testing.T) {
	b := newBed(t)
	p, err := b.conn.Plan(t.Context(), b.want)
	if err != nil || p.Failing() > 0 {
		t.Fatalf("plan: %v, %d fail", err, p.Failing())
	}
	if b.send(http.MethodGet, b.journal(), "") != nil {
		t.Error("a plan has made a CA")
	}
	for _, s := range p.Steps {
		if s.Object.Annotation(manifest.InjectCAAnnotation) != "" && len(s.Object.Unknown()) == 0 {
			t.Errorf("%s is known before it is made", s.ID)
		}
	}
	o := b.apply(status.Ready)
	b.handshake()
	var uses []string
	for _, c := range o.Certificates {
		uses = append(uses, c.Use+" "+c.Secret)
	}
	if want := []string{"serving " + b.name + "/hooks-tls", "authority gitopsd-system/serving-ca." + b.name + ".hooks"}; !slices.Equal(uses, want) {
		t.Errorf("certificates %q, want %q", uses, want)
	}
	if due := o.Again.Sub(b.now); due <= 0 || due > policy.Leaf*2/3 {
		t.Errorf("looks again in %s", due)
	}
	before, ca := b.contents(b.secret()), b.contents(b.journal())
	b.rests()
	if after := b.contents(b.secret()); after["tls.crt"] != before["tls.crt"] || b.contents(b.journal())["tls.crt"] != ca["tls.crt"] {
		t.Error("a restart has made certificates anew")
	}
	if strings.Contains(before["ca.crt"], before["tls.crt"]) || len(b.bundle()) != 1 || !rotation.IsCA(b.bundle()[0]) {
		t.Error("the bundle is not the CA")
	}
	for _, key := range []string{before["tls.key"], ca["tls.key"]} {
		line := strings.Split(key, "\n")[1]
		p, err := b.connect().Plan(t.Context(), b.want)
		if text := fmt.Sprint(p, err, o) + b.log.String(); strings.Contains(text, line) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(key))[:60]) {
			t.Error("a key is shown")
		}
	}
	b.wants(hooks[:strings.Index(hooks, "---")])
	b.want.Annotations = map[string]string{manifest.AllowPruneAnnotation: "100"}
	b.apply(status.Ready) // a CRD needs a permission of its own; the rest goes
	if b.send(http.MethodGet, b.secret(), "") != nil || b.send(http.MethodGet, b.journal(), "") != nil {
		t.Error("Secrets stay behind")
	}
}

// Whatever others do to Secrets and bundles is repaired, and what serves goes on serving
// where that is possible.
func TestRepair(t *testing.T) {
	garbage := base64.StdEncoding.EncodeToString([]byte("garbage"))
	webhook := func(b *bed) manifest.ID { return manifest.ValidatingWebhooks.ID("", b.name) }
	for _, tt := range []struct {
		name string
		do   func(b *bed)
		// keeps: the certificate stays at first. replaces: another CA replaces it later.
		keeps, replaces bool
	}{
		{name: "leaf-deleted", do: func(b *bed) { b.send(http.MethodDelete, b.secret(), "") }},
		{name: "leaf-garbled", do: func(b *bed) { b.send(http.MethodPatch, b.secret(), `{"data":{"tls.crt":"`+garbage+`"}}`) }},
		{name: "key-of-another", do: func(b *bed) {
			a, _ := profileOf(manifest.Service.ID("x", "y")).Mint(b.now, b.now.Add(time.Hour))
			_, key, _ := profileOf(manifest.Service.ID("x", "y")).Issue(a, b.now, b.now.Add(time.Hour))
			b.send(http.MethodPatch, b.secret(), `{"data":{"tls.key":"`+base64.StdEncoding.EncodeToString(key)+`"}}`)
		}},
		{name: "ca-garbled", keeps: true, do: func(b *bed) { b.send(http.MethodPatch, b.secret(), `{"data":{"ca.crt":"`+garbage+`"}}`) }},
		{name: "bundle-garbled", keeps: true, do: func(b *bed) {
			live := b.send(http.MethodGet, webhook(b), "")
			for _, s := range slots(live) {
				live = s.with(live, "")
			}
			text, _ := json.Marshal(map[string]any{"webhooks": live["webhooks"]})
			b.send(http.MethodPatch, webhook(b), string(text))
		}},
		{name: "bundle-deleted", keeps: true, do: func(b *bed) { b.send(http.MethodDelete, webhook(b), "") }},
		{name: "journal-deleted", keeps: true, replaces: true, do: func(b *bed) { b.send(http.MethodDelete, b.journal(), "") }},
		{name: "journal-garbled", keeps: true, replaces: true, do: func(b *bed) {
			b.send(http.MethodPatch, b.journal(), `{"data":{"tls.crt":"`+garbage+`","times.json":"`+garbage+`","other":"`+garbage+`"}}`)
		}},
		{name: "authority-key-lost", keeps: true, replaces: true, do: func(b *bed) { b.send(http.MethodPatch, b.journal(), `{"data":{"tls.key":null}}`) }},
		{name: "journal-of-another", keeps: true, replaces: true, do: func(b *bed) {
			a, _ := profileOf(manifest.Service.ID("x", "y")).Mint(b.now, b.now.Add(time.Hour))
			key, _ := rotation.EncodeKey(a.Key)
			b.send(http.MethodPatch, b.journal(), fmt.Sprintf(`{"data":{"tls.crt":%q,"tls.key":%q}}`, base64.StdEncoding.EncodeToString(rotation.Encode(a.Cert)), base64.StdEncoding.EncodeToString(key)))
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(status.Ready)
			before := b.contents(b.secret())
			tt.do(b)
			b.apply(status.Ready)
			b.handshake()
			after := b.contents(b.secret())
			if kept := after["tls.crt"] == before["tls.crt"] && after["tls.key"] == before["tls.key"]; kept != tt.keeps {
				t.Errorf("the certificate stayed: %v, want %v", kept, tt.keeps)
			}
			if cas := len(b.bundle()); (cas == 2) != tt.replaces {
				t.Errorf("%d CAs in the bundle", cas)
			}
			if tt.replaces {
				b.apply(status.Ready) // sees the new CA in every bundle
				b.now = b.now.Add(policy.Settle + time.Second)
				b.apply(status.Ready)
				b.handshake()
				if b.contents(b.secret())["tls.crt"] == before["tls.crt"] {
					t.Error("the certificate was not replaced")
				}
			}
			b.rests()
			if data := b.contents(b.journal()); data["other"] != "" {
				t.Error("what others put into the journal stays")
			}
		})
	}
}

// A journal of before a rotation, from a backup, takes the CA of the present certificate out of no bundle. The
// recorded CA signs again once it has settled.
func TestRestored(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	backup := map[string]any{"next.crt": nil, "next.key": nil, "former.crt": nil}
	maps.Copy(backup, b.send(http.MethodGet, b.journal(), "")["data"].(map[string]any))
	b.send(http.MethodDelete, b.journal(), "")
	for range 3 { // another CA takes over
		b.apply(status.Ready)
		b.now = b.now.Add(policy.Settle + time.Second)
	}
	b.now = b.now.Add(policy.Leaf)
	b.apply(status.Ready)
	if len(b.bundle()) != 1 {
		t.Fatal("the recorded CA is still in the bundles")
	}
	before := b.contents(b.secret())["tls.crt"]
	text, _ := json.Marshal(map[string]any{"data": backup})
	b.send(http.MethodPatch, b.journal(), string(text))
	o := b.apply(status.Ready)
	if !strings.Contains(strings.Join(o.Notes, "\n"), b.journal().Name+" lacked the CA of the present certificate") {
		t.Errorf("notes %q", o.Notes)
	}
	if b.contents(b.secret())["tls.crt"] != before || len(b.bundle()) != 2 {
		t.Errorf("the certificate was replaced at once, or one CA is missing of %d", len(b.bundle()))
	}
	b.handshake()
	b.apply(status.Ready) // sees the recorded CA in every bundle
	b.now = b.now.Add(policy.Settle + time.Second)
	b.apply(status.Ready)
	b.handshake()
	if b.contents(b.secret())["tls.crt"] == before {
		t.Error("the recorded CA does not sign")
	}
	b.rests()
}

// While the clock is behind, nothing is replaced by what may be of no use, and the Service says why.
func TestClockBehind(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	b.rests()
	const renewal = 61 * 24 * time.Hour
	for _, tt := range []struct {
		renewals int
		behind   time.Duration
		early    string
	}{{0, 48 * time.Hour, "CA"}, {2, 2*renewal - time.Hour, "certificate of the CA"}} {
		for range tt.renewals {
			b.later(renewal)
			b.apply(status.Ready)
		}
		before, record := b.contents(b.secret()), b.contents(b.journal())
		b.later(-tt.behind)
		if o := b.apply(status.Failed); len(o.Problems) != 1 || !strings.Contains(o.Problems[0].Reason, "the "+tt.early+" in Secret "+b.journal().Namespace+"/"+b.journal().Name+" is valid only from ") {
			t.Errorf("problems %+v", o.Problems)
		}
		if !maps.Equal(b.contents(b.secret()), before) || !maps.Equal(b.contents(b.journal()), record) {
			t.Error("something was replaced")
		}
		b.later(tt.behind)
		b.apply(status.Ready)
		b.handshake()
	}
	b.rests()
}

// A rotation goes step by step, whoever takes the steps.
func TestRotate(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	first := b.bundle()[0]
	crt := func() string { return b.contents(b.secret())["tls.crt"] }
	leaf := crt()
	step := func(what string, advance time.Duration, cas int, replaced bool) {
		t.Helper()
		b.later(advance) // killed after each
		b.apply(status.Ready)
		b.handshake()
		if n := len(b.bundle()); n != cas || crt() != leaf != replaced {
			t.Errorf("%s: %d CAs in the bundle, want %d; certificate replaced: %v, want %v", what, n, cas, crt() != leaf, replaced)
		}
		leaf = crt()
	}
	day := 24 * time.Hour
	step("nothing is due", time.Hour, 1, false)
	step("a certificate is due", 60*day, 1, true)
	step("again", 61*day, 1, true)
	step("again", 61*day, 1, true)
	step("the CA and a certificate are due", 62*day, 2, true)
	step("the CA is seen everywhere", 10*time.Second, 2, false)
	step("it settles", policy.Settle/2, 2, false)
	step("it signs", policy.Settle, 2, true)
	step("it is used", time.Minute, 2, false)
	step("the next is due", 61*day, 2, true)
	step("the last of the former CA has expired", 30*day, 1, false)
	if b.bundle()[0].Equal(first) {
		t.Error("the first CA is still trusted")
	}
	b.rests()

	b.now = b.now.Add(3 * 365 * day) // nobody looked
	b.apply(status.Ready)
	b.handshake()
	b.apply(status.Ready)
	b.rests()
}

// Two processes that begin at once agree on one CA and one certificate.
func TestTwo(t *testing.T) {
	b := newBed(t)
	conns := make([]*unit.Connection, 4)
	for i := range conns {
		conns[i] = b.connect()
	}
	var all sync.WaitGroup
	for _, conn := range conns {
		all.Go(func() { conn.Apply(t.Context(), b.want) })
	}
	all.Wait()
	b.apply(status.Ready)
	b.handshake()
	if n := len(b.bundle()); n != 1 {
		t.Errorf("%d CAs", n)
	}
	b.rests()
}

// A unit at rest costs no request while its cluster is watched, and a change there is
// looked at and repaired.
func TestAtRest(t *testing.T) {
	b := newBed(t)
	b.conn = b.connect()
	following, cancel := context.WithCancel(t.Context())
	var followed sync.WaitGroup
	followed.Go(func() { b.conn.Follow(following, func() {}) })
	defer followed.Wait()
	defer cancel()
	// rest makes attempts until one sends nothing.
	rest := func() {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			before := b.sent.Load()
			b.apply(status.Ready)
			if b.sent.Load() == before {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("an attempt at rest sends %d requests", b.sent.Load()-before)
			}
		}
	}
	rest()
	for method, body := range map[string]string{http.MethodPatch: `{"data":{"tls.crt":"eA=="}}`, http.MethodDelete: ""} {
		b.send(method, b.secret(), body)
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			b.apply(status.Ready)
			// The same certificate comes back if the change is seen after the completion.
			if now := b.contents(b.secret())["tls.crt"]; len(now) > 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("it is not repaired")
			}
		}
		b.handshake()
	}
	rest()
}

// Secrets are not pruned because one cannot be read, or an annotation has an error.
func TestLosesNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(b *bed)
	}{
		{"record-unreadable", func(b *bed) {
			b.breaks = func(path string) bool { return strings.HasSuffix(path, b.journal().Name) }
		}},
		{"certificate-unreadable", func(b *bed) { b.breaks = func(path string) bool { return strings.HasSuffix(path, "/hooks-tls") } }},
		{"annotation", func(b *bed) { b.wants(strings.Replace(hooks, "hooks-tls", "hooks_tls", 1) + webhooks) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(status.Ready)
			before, record := b.contents(b.secret()), b.contents(b.journal())
			tt.do(b)
			b.conn = b.connect()
			b.want.Annotations = map[string]string{manifest.AllowPruneAnnotation: "100"}
			b.apply(status.Failed)
			if after := b.contents(b.secret()); after["tls.crt"] != before["tls.crt"] || b.contents(b.journal())["tls.key"] != record["tls.key"] {
				t.Error("Secrets are gone")
			}
			b.breaks = nil
			b.wants(hooks + webhooks)
			b.later(othersPause)
			b.apply(status.Ready)
			b.rests()
		})
	}
}

// Another cluster of the registry that is the same one in truth, or another fleet's, does
// not write what this one keeps; if it adopts it, it does. A copy of a Secret is somebody
// else's.
func TestAnotherInventory(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	record, leaf := b.send(http.MethodGet, b.journal(), ""), b.send(http.MethodGet, b.secret(), "")
	b.cfg.Policy.Leaf /= 3 // it would renew it
	b.now = b.now.Add(80 * 24 * time.Hour)
	b.conn = b.connectAs(b.name + "-again")
	o := b.apply(status.Failed)
	for id, before := range map[manifest.ID]map[string]any{b.journal(): record, b.secret(): leaf} {
		if now := b.send(http.MethodGet, id, ""); manifest.Text(now, "metadata", "resourceVersion") != manifest.Text(before, "metadata", "resourceVersion") {
			t.Errorf("%s was written: %+v", id, o.Problems)
		}
	}
	b.want.Annotations = map[string]string{manifest.AdoptAnnotation: "applyset/" + manifest.Text(leaf, "metadata", "labels", plan.PartOfLabel)}
	b.apply(status.Ready)
	b.handshake()

	service := manifest.Service.ID(b.name, "copied")
	id := manifest.Secret.ID(b.name, "copied-tls")
	leaf = b.send(http.MethodGet, b.secret(), "")
	meta := manifest.Mapping(leaf, "metadata")
	leaf["metadata"] = map[string]any{"name": id.Name, "namespace": id.Namespace, "labels": meta["labels"], "annotations": meta["annotations"]}
	text, _ := json.Marshal(leaf)
	b.send(http.MethodPost, id, string(text))
	b.wants(hooks + webhooks + "\n---\n{apiVersion: v1, kind: Service, metadata: {name: copied, namespace: $NAME, annotations: {gitopsd.dev/serving-cert: copied-tls}}, spec: {ports: [{port: 443}]}}")
	o = b.apply(status.Failed)
	if len(o.Problems) != 1 || o.Problems[0].Object != service.String() || !strings.Contains(o.Problems[0].Reason, "Secret "+b.name+"/copied-tls is not gitopsd's and cannot serve: its certificate is not for copied."+b.name) {
		t.Errorf("problems %+v", o.Problems)
	}
}

// A Service that names the Secret of another does not take it over, whatever their order, even if the
// certificate is gone.
func TestSecretOfAnother(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	record := b.contents(b.journal())
	b.wants(hooks + "---\n{apiVersion: v1, kind: Service, metadata: {name: a-new, namespace: $NAME, annotations: {gitopsd.dev/serving-cert: hooks-tls}}, spec: {ports: [{port: 443}]}}\n" + webhooks)
	for _, lost := range []bool{false, true} {
		before := b.contents(b.secret())["tls.crt"]
		if lost {
			b.send(http.MethodDelete, b.secret(), "")
			b.conn = b.connect()
		}
		o := b.apply(status.Failed)
		if want := b.yaml("refused: gitopsd.dev/serving-cert: Secret hooks-tls is for service/$NAME/hooks already; name another"); len(o.Problems) != 1 || o.Problems[0].Object != b.yaml("service/$NAME/a-new") || o.Problems[0].Reason != want {
			t.Errorf("problems %v", o.Problems)
		}
		if replaced := b.contents(b.secret())["tls.crt"] != before; replaced != lost || !maps.Equal(b.contents(b.journal()), record) {
			t.Errorf("lost %v: the certificate was replaced: %v", lost, replaced)
		}
		b.handshake()
	}
}

// Another fleet's cluster gets nothing.
func TestAnotherFleet(t *testing.T) {
	b := newBed(t)
	b.wants(hooks[:strings.Index(hooks, "---")])
	b.apply(status.Ready)
	client, err := kube.New(kube.Config{Name: b.name, Kubeconfig: kubeconfig(t)})
	if err != nil {
		t.Fatal(err)
	}
	completer, err := New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.conn, err = unit.New(unit.Config{
		Unit: desired.ID{Cluster: b.name}, Client: client, Fleet: apply.Fleet{Name: "another"}, Completers: []unit.Completer{completer},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.conn.Close)
	b.wants(hooks + webhooks)
	b.apply(status.Failed)
	if b.send(http.MethodGet, b.journal(), "") != nil {
		t.Error("a CA was made in the cluster of another fleet")
	}
}

// tlsSecret returns a Secret's manifest.
func tlsSecret(id manifest.ID, data map[string][]byte) string {
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
		"metadata": map[string]any{"name": id.Name, "namespace": id.Namespace}, "data": data,
	})
	return string(text)
}

func secretOf(t *testing.T, a rotation.Authority) map[string][]byte {
	t.Helper()
	key, err := rotation.EncodeKey(a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"tls.crt": rotation.Encode(a.Cert), "tls.key": key}
}

// A CA that an operator brings signs, by the nearest setting that names one, and is
// replaced in order.
func TestBroughtAuthority(t *testing.T) {
	b := newBed(t)
	b.cfg.Authority = "daemon-ca." + b.name
	b.conn = b.connect()
	service := manifest.Service.ID(b.name, "hooks")
	bring := func(id manifest.ID) rotation.Authority {
		a, err := profileOf(manifest.Service.ID("operator", id.Name[:5])).Mint(b.now.Add(-time.Hour), b.now.Add(1000*24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		b.send(http.MethodPost, id, tlsSecret(id, secretOf(t, a)))
		return a
	}
	rotated := func(by rotation.Authority) {
		t.Helper()
		for range 3 { // in every bundle, seen, settled
			b.apply(status.Ready)
			b.handshake()
			b.now = b.now.Add(policy.Settle)
		}
		chain, err := rotation.Parse([]byte(b.contents(b.secret())["tls.crt"]))
		if err != nil || chain[0].CheckSignatureFrom(by.Cert) != nil {
			t.Errorf("the certificate is not by %s: %v", by.Cert.Subject, err)
		}
		if key := b.contents(b.journal())["tls.key"]; key != "" {
			t.Error("gitopsd has copied the operator's key")
		}
	}
	o := b.apply(status.Failed)
	blamed := 0 // the Service, and the two that need its CA
	for _, p := range o.Problems {
		if strings.Contains(p.Reason, "--certificate-authority: Secret gitopsd-system/daemon-ca."+b.name+" does not exist; create it") {
			blamed++
		}
	}
	if blamed != 3 {
		t.Errorf("problems %+v", o.Problems)
	}
	rotated(bring(manifest.Secret.ID(apply.Namespace, "daemon-ca."+b.name)))
	ofCluster := manifest.Secret.ID(apply.Namespace, "cluster-ca."+b.name)
	a := bring(ofCluster)
	b.want.Spec.Certificates.Authority = ofCluster.Name
	rotated(a)
	ofPackage := manifest.Secret.ID(b.name, "package-ca")
	a = bring(ofPackage)
	b.wants(strings.Replace(hooks, "hooks-tls}", "hooks-tls, gitopsd.dev/certificate-authority: package-ca}", 1) + webhooks)
	rotated(a)
	b.rests()

	leaf := b.contents(b.secret())["tls.crt"]
	old, err := profileOf(service).Mint(b.now.Add(-48*time.Hour), b.now.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	crt, key, err := profileOf(service).Issue(a, b.now.Add(-time.Hour), b.now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		data map[string][]byte
		want string
	}{
		{secretOf(t, old), "holds a CA that expired on "},
		{map[string][]byte{"tls.crt": crt, "tls.key": key}, "holds no CA: "},
		{map[string][]byte{"tls.crt": rotation.Encode(a.Cert), "tls.key": {}}, "cannot sign: tls.key is missing; put "},
		{map[string][]byte{"tls.crt": rotation.Encode(a.Cert), "tls.key": key}, "cannot sign: tls.key is not the key of the first certificate"},
		{map[string][]byte{"tls.crt": []byte("x"), "tls.key": key}, "cannot sign: tls.crt has no certificate in PEM"},
	} {
		text, _ := json.Marshal(map[string]any{"data": tt.data})
		b.send(http.MethodPatch, ofPackage, string(text))
		o := b.apply(status.Failed)
		if want := "refused: gitopsd.dev/certificate-authority: Secret " + b.name + "/package-ca " + tt.want; len(o.Problems) != 1 || !strings.HasPrefix(o.Problems[0].Reason, want) {
			t.Errorf("problems %+v, want %q", o.Problems, want)
		}
		if b.contents(b.secret())["tls.crt"] != leaf {
			t.Error("the certificate was replaced")
		}
	}
}

// A TLS Secret that an operator brings is used as it is, and its expiry is told.
func TestBroughtSecret(t *testing.T) {
	b := newBed(t)
	service := manifest.Service.ID(b.name, "hooks")
	a, err := profileOf(manifest.Service.ID("operator", "ca")).Mint(b.now.Add(-time.Hour), b.now.Add(100*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair := func(notAfter time.Time, service manifest.ID) map[string][]byte {
		crt, key, err := profileOf(service).Issue(a, b.now.Add(-time.Hour), notAfter)
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{"tls.crt": append(crt, rotation.Encode(a.Cert)...), "tls.key": key}
	}
	b.wants(hooks[:strings.Index(hooks, "---")])
	b.apply(status.Ready)
	b.send(http.MethodPost, b.secret(), tlsSecret(b.secret(), pair(b.now.Add(90*24*time.Hour), service)))
	b.wants(hooks + webhooks)
	before := b.contents(b.secret())
	if o := b.apply(status.Ready); len(o.Notes) > 0 || len(o.Certificates) != 1 || !o.Certificates[0].Brought {
		t.Errorf("notes %q, certificates %+v", o.Notes, o.Certificates)
	}
	b.handshake()
	b.later(65 * 24 * time.Hour)
	if o := b.apply(status.Ready); len(o.Notes) != 1 || !strings.Contains(o.Notes[0], "Secret "+b.name+"/hooks-tls expires on ") {
		t.Errorf("notes %q", o.Notes)
	}
	b.later(26 * 24 * time.Hour)
	o := b.apply(status.Failed)
	if !slices.ContainsFunc(o.Problems, func(p problem.Problem) bool {
		return strings.Contains(p.Reason, "is not gitopsd's and holds a certificate that expired on ")
	}) {
		t.Errorf("problems %+v", o.Problems)
	}
	if after := b.contents(b.secret()); after["tls.crt"] != before["tls.crt"] || after["tls.key"] != before["tls.key"] || b.send(http.MethodGet, b.journal(), "") != nil {
		t.Error("gitopsd has written what the operator brought")
	}
	// The CA beside a certificate must be its own, or nothing that trusts it is written.
	webhook := manifest.ValidatingWebhooks.ID("", b.name)
	bundle := slots(b.send(http.MethodGet, webhook, ""))[0].value
	other, err := profileOf(manifest.Service.ID("operator", "other")).Mint(b.now, b.now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	fresh := pair(b.now.Add(time.Hour), service)
	fresh["ca.crt"] = rotation.Encode(other.Cert)
	text, _ := json.Marshal(map[string]any{"data": fresh})
	b.send(http.MethodPatch, b.secret(), string(text))
	b.later(othersPause)
	o = b.apply(status.Failed)
	if !slices.ContainsFunc(o.Problems, func(p problem.Problem) bool {
		return strings.Contains(p.Reason, "its CA would not be trusted for its certificate: x509: certificate signed by unknown authority")
	}) || slots(b.send(http.MethodGet, webhook, ""))[0].value != bundle {
		t.Errorf("problems %+v", o.Problems)
	}
	b.send(http.MethodDelete, b.secret(), "")
	b.later(othersPause)
	b.apply(status.Ready)
	b.handshake()
}

// A consumer that is refused stays in the cluster with its bundle: the rotation waits for it and
// names it, and goes on when it is corrected.
func TestRefusedConsumer(t *testing.T) {
	b := newBed(t)
	b.apply(status.Ready)
	b.wants(hooks + strings.Replace(webhooks, "gitopsd.dev/inject-ca: $NAME/hooks", "gitopsd.dev/inject-ca: $NAME/hoooks", 1))
	crd := b.crd()
	const renewal = 61 * 24 * time.Hour
	var notes []string
	for _, d := range []time.Duration{renewal, renewal, renewal, renewal, policy.Settle, policy.Settle, renewal, policy.Settle} {
		b.later(d)
		notes = b.apply(status.Failed).Notes
		b.trusted(crd)
	}
	if want := fmt.Sprintf("the new CA of service/%s/hooks waits until all of its bundles have it; not yet: %s", b.name, crd); !slices.Equal(notes, []string{want}) {
		t.Errorf("notes %q, want %q", notes, want)
	}
	b.wants(hooks + webhooks)
	for range 3 {
		b.later(policy.Settle)
		b.apply(status.Ready)
	}
	b.handshake()
	b.later(policy.Leaf)
	b.apply(status.Ready)
	if n := len(b.bundle()); n != 1 {
		t.Errorf("%d CAs in the bundle", n)
	}
}

// The package of a webhook has an error and stays as it is. Its certificate is renewed and
// reported all the same, and a new CA waits for the bundles that nobody fills in, even if
// gitopsd may not look for them.
func TestKeptPackage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		breaks func(path string) bool
		waits  string
	}{
		{"listed", nil, "not yet: customresourcedefinition.apiextensions.k8s.io/things."},
		{"forbidden", func(path string) bool {
			// It has no APIService, and waits for none.
			return strings.HasSuffix(path, "/customresourcedefinitions") || strings.HasSuffix(path, "/validatingwebhookconfigurations") || strings.HasSuffix(path, "/apiservices")
		}, "not yet: every CustomResourceDefinition (list customresourcedefinition.apiextensions.k8s.io: no), every ValidatingWebhookConfiguration (list "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			const of = "labels: {gitopsd.dev/package: web}, "
			space, rest, _ := strings.Cut(hooks, "---")
			b.wants(space + "---" + strings.ReplaceAll(rest+webhooks, "annotations: ", of+"annotations: "))
			b.apply(status.Ready)
			whole := b.want
			b.wants(space + strings.NewReplacer("$NAME/hooks", b.name+"/hooks", "$NAME", b.name+"-other").Replace(webhooks))
			b.want.Incomplete = []string{"web"}
			b.want.Keeps = func(_ manifest.ID, pkg string) bool { return pkg == "web" }
			b.breaks = tt.breaks
			holders := []manifest.ID{b.crd(), manifest.ValidatingWebhooks.ID("", b.name)}
			if tt.breaks == nil {
				holders = append(holders, manifest.ValidatingWebhooks.ID("", b.name+"-other"))
			}
			const renewal = 61 * 24 * time.Hour
			for i, d := range []time.Duration{renewal, renewal, renewal, renewal, policy.Settle, policy.Settle} {
				before := b.contents(b.secret())["tls.crt"]
				b.later(d)
				o := b.apply(status.Failed)
				b.trusted(holders...)
				if renewed := b.contents(b.secret())["tls.crt"] != before; renewed != (d == renewal) {
					t.Errorf("round %d: renewed %v", i, renewed)
				}
				if len(o.Certificates) != 2 || !o.Certificates[0].Expires.After(b.now) {
					t.Errorf("round %d: certificates %v", i, o.Certificates)
				}
				if i == 5 && (len(o.Notes) != 1 || !strings.Contains(o.Notes[0], "waits until all of its bundles have it; "+tt.waits)) {
					t.Errorf("notes %q", o.Notes)
				}
			}

			b.want, b.breaks = whole, nil
			for range 3 {
				b.later(policy.Settle)
				b.apply(status.Ready)
			}
			b.handshake()
			b.rests()
		})
	}
}

// Who names the Secret of a certificate of gitopsd's trusts the Service that it is for: a
// rotation waits for both alike.
func TestFromServingSecret(t *testing.T) {
	b := newBed(t)
	b.wants(hooks + strings.ReplaceAll(strings.ReplaceAll(webhooks, "Service/$NAME/hooks", "Secret/$NAME/hooks-tls"), " $NAME/hooks", " Secret/$NAME/hooks-tls"))
	b.apply(status.Ready)
	b.handshake()
	b.later(policy.Authority * 3 / 4)
	b.apply(status.Ready)
	if n := len(b.bundle()); n != 2 {
		t.Errorf("%d CAs in the bundle", n)
	}
}

// A Secret of the cluster can be the source of a bundle.
func TestFromSecret(t *testing.T) {
	b := newBed(t)
	from := manifest.Secret.ID(b.name, "elsewhere")
	b.wants(hooks + strings.ReplaceAll(strings.ReplaceAll(webhooks, "Service/$NAME/hooks", "Secret/$NAME/elsewhere"), " $NAME/hooks", " Secret/$NAME/elsewhere"))
	o := b.apply(status.Failed)
	if p := o.Problems[0]; !strings.Contains(p.Reason, "secret/"+b.name+"/elsewhere: there is no such Secret; create it, or correct the name") || o.Again.IsZero() {
		t.Errorf("problem %+v", p)
	}
	a, err := profileOf(manifest.Service.ID("operator", "ca")).Mint(b.now, b.now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	b.send(http.MethodPost, from, tlsSecret(from, secretOf(t, a)))
	b.apply(status.Ready)
	live := slots(b.send(http.MethodGet, manifest.ValidatingWebhooks.ID("", b.name), ""))
	if text, _ := base64.StdEncoding.DecodeString(live[1].value); string(text) != string(rotation.Encode(a.Cert)) {
		t.Error("the bundle is not the Secret's")
	}
	b.rests()
}
