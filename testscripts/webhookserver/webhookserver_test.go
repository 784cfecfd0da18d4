package webhookserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gitopsd.dev/testscripts/await"
)

// issue writes a new self-signed certificate, and returns a client that trusts it alone
// and keeps no connection.
func issue(t *testing.T, dir string, serial int64) *http.Client {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "webhook"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "tls.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	write(t, dir, "tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool}}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func write(t *testing.T, dir, name string, text []byte) {
	t.Helper()
	temporary := filepath.Join(dir, "."+name)
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// running is a server that runs.
type running struct {
	t              *testing.T
	stop           func()
	code           chan int
	stdout, stderr await.Log
}

func start(t *testing.T, certs string, args ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, stop: cancel, code: make(chan int, 1)}
	args = append([]string{"-addr", "127.0.0.1:0", "-reload", "10ms"}, args...)
	getenv := func(name string) string { return map[string]string{certsDir: certs}[name] }
	go func() { r.code <- run(ctx, args, getenv, &r.stdout, &r.stderr) }()
	t.Cleanup(func() { cancel(); <-r.code; close(r.code) })
	return r
}

// end stops the server and returns its exit status.
func (r *running) end() int {
	r.stop()
	code := <-r.code
	r.code <- code // for the cleanup
	return code
}

var address = regexp.MustCompile(`address=(\S+)`)

// url returns the address of a path, once the server listens.
func (r *running) url(path string) string {
	r.t.Helper()
	await.True(r.t, "the server listens", func() bool { return address.MatchString(r.stderr.String()) })
	return "https://" + address.FindStringSubmatch(r.stderr.String())[1] + path
}

func post(t *testing.T, client *http.Client, url string, body any) (int, []byte) {
	t.Helper()
	text, ok := body.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	response, err := client.Post(url, "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, answer
}

func review(object string) admissionv1.AdmissionReview {
	r := admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{UID: "u1", Object: runtime.RawExtension{Raw: []byte(object)}}}
	r.APIVersion, r.Kind = "admission.k8s.io/v1", "AdmissionReview"
	return r
}

func TestAdmission(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := issue(t, dir, 1)
	s := start(t, dir, "-deny-label", "a.b/danger=yes", "-deny-field", "spec.size=13", "-annotate", "acme.example/seen=by~it")
	for _, tt := range []struct{ path, object, want string }{
		{"/validate-widgets", `{"metadata": {"name": "w"}}`, `"uid":"u1","allowed":true}`},
		{"/validate-widgets", `{"metadata": {"labels": {"a.b/danger": "yes"}}}`, `"allowed":false,"status":{"metadata":{},"status":"Failure","message":"webhookserver denies metadata.labels.a.b/danger=yes","reason":"Forbidden","code":403}`},
		{"/validate-widgets", `{"spec": {"size": 13}}`, `"message":"webhookserver denies spec.size=13"`},
		{"/validate-widgets", `{"spec": "text"}`, `"allowed":true`},
	} {
		code, answer := post(t, client, s.url(tt.path), review(tt.object))
		if code != 200 || !strings.Contains(string(answer), tt.want) || !strings.Contains(string(answer), `"apiVersion":"admission.k8s.io/v1"`) {
			t.Errorf("%s %s: %d %s, want %s", tt.path, tt.object, code, answer, tt.want)
		}
	}
	for object, want := range map[string]string{
		`{"metadata": {}}`:                          `[{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/acme.example~1seen","value":"by~it"}]`,
		`{"metadata": {"annotations": {"a": "b"}}}`: `[{"op":"add","path":"/metadata/annotations/acme.example~1seen","value":"by~it"}]`,
	} {
		_, answer := post(t, client, s.url("/mutate-widgets"), review(object))
		var have admissionv1.AdmissionReview
		if err := json.Unmarshal(answer, &have); err != nil || !have.Response.Allowed || string(have.Response.Patch) != want || *have.Response.PatchType != admissionv1.PatchTypeJSONPatch {
			t.Errorf("%s: %s, %v", object, answer, err)
		}
	}
	deleted := review("")
	deleted.Request.Object, deleted.Request.OldObject = runtime.RawExtension{}, runtime.RawExtension{Raw: []byte(`{"spec": {"size": 13}}`)}
	if _, answer := post(t, client, s.url("/validate-widgets"), deleted); !strings.Contains(string(answer), `"allowed":false`) {
		t.Errorf("the deletion is answered by %s", answer)
	}
	for body, want := range map[string]int{"{": 400, `{"request": null}`: 400, `{"request": {"object": []}}`: 400, strings.Repeat(" ", maxBody+1): 413} {
		if code, answer := post(t, client, s.url("/validate-widgets"), []byte(body)); code != want {
			t.Errorf("%.20s: %d %s, want %d", body, code, answer, want)
		}
	}
	if code, _ := post(t, client, s.url("/other"), review("{}")); code != 404 {
		t.Errorf("another path is answered by %d", code)
	}
	const want = `webhookserver_requests_pending 0
webhookserver_requests_total{path="/mutate-widgets",result="mutated"} 2
webhookserver_requests_total{path="/validate-widgets",result="allowed"} 2
webhookserver_requests_total{path="/validate-widgets",result="denied"} 3
webhookserver_requests_total{path="/validate-widgets",result="invalid"} 3
webhookserver_requests_total{path="/validate-widgets",result="unreadable"} 1
`
	response, err := client.Get(s.url("/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || string(text) != want {
		t.Errorf("the metrics are\n%s%v", text, err)
	}
	if code := s.end(); code != 0 || s.stdout.String() != want {
		t.Errorf("it exits with %d and prints\n%s", code, s.stdout.String())
	}
}

func TestConversion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := issue(t, dir, 1)
	s := start(t, dir, "-rename", "spec.size=spec.box.count", "-rename", "spec.a=spec.b")
	for _, tt := range []struct{ object, to, want string }{
		{`{"apiVersion":"acme.example/v1","kind":"W","spec":{"size":9007199254740993}}`, "acme.example/v2", `{"apiVersion":"acme.example/v2","kind":"W","spec":{"box":{"count":9007199254740993}}}`},
		{`{"apiVersion":"acme.example/v2","kind":"W","spec":{"b":null,"box":{"count":1}}}`, "acme.example/v1", `{"apiVersion":"acme.example/v1","kind":"W","spec":{"a":null,"box":{},"size":1}}`},
		{`{"apiVersion":"acme.example/v1","kind":"W"}`, "acme.example/v1", `{"apiVersion":"acme.example/v1","kind":"W"}`},
		{`{"apiVersion":"acme.example/v1","kind":"W"}`, "acme.example/v2", `{"apiVersion":"acme.example/v2","kind":"W"}`},
		{`{"apiVersion":"acme.example/v1","spec":{"size":1,"box":5}}`, "acme.example/v2", "box is not an object"},
		{`{"apiVersion":"acme.example/v3"}`, "acme.example/v1", "acme.example/v3 cannot be converted to acme.example/v1: want v1 and v2"},
		{`{"apiVersion":"other.example/v2"}`, "acme.example/v1", "other.example/v2 cannot be converted to acme.example/v1: another group"},
	} {
		r := apiextensionsv1.ConversionReview{Request: &apiextensionsv1.ConversionRequest{UID: "u1", DesiredAPIVersion: tt.to, Objects: []runtime.RawExtension{{Raw: []byte(tt.object)}}}}
		_, answer := post(t, client, s.url("/convert"), r)
		var have apiextensionsv1.ConversionReview
		if err := json.Unmarshal(answer, &have); err != nil || have.Response.UID != "u1" {
			t.Fatalf("%s: %s, %v", tt.object, answer, err)
		}
		text := have.Response.Result.Message
		if have.Response.Result.Status == "Success" {
			text = string(have.Response.ConvertedObjects[0].Raw)
		}
		if text != tt.want {
			t.Errorf("%s to %s: %s\nwant %s", tt.object, tt.to, text, tt.want)
		}
	}
}

// The certificate is read again when it changes; while its files are no pair the one
// before is served.
func TestRotation(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, dir)
	await.True(t, "it says that it waits", func() bool { return strings.Contains(s.stderr.String(), "waiting for the certificate") })
	if address.MatchString(s.stderr.String()) {
		t.Error("it listens without a certificate")
	}
	first := issue(t, dir, 1)
	healthy := func(client *http.Client) bool {
		response, err := client.Get(s.url("/healthz"))
		if err != nil {
			return false
		}
		defer response.Body.Close()
		return response.StatusCode == 200
	}
	if !healthy(first) {
		t.Error("the first certificate is not served")
	}
	write(t, dir, "tls.crt", []byte("garbage"))
	await.True(t, "garbage is noticed", func() bool { return strings.Contains(s.stderr.String(), "certificate not read") })
	if !healthy(first) {
		t.Error("garbage took the place of the first certificate")
	}
	second := issue(t, dir, 2)
	await.True(t, "the second certificate is served", func() bool { return healthy(second) })
	if healthy(first) {
		t.Error("the first certificate is still served")
	}
}

// What was asked before the end is answered.
func TestShutdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := issue(t, dir, 1)
	s := start(t, dir, "-delay", "1s")
	url := s.url("/validate-x")
	answered := make(chan error, 1)
	body, err := json.Marshal(review("{}"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		response, err := client.Post(url, "application/json", bytes.NewReader(body))
		if err == nil {
			response.Body.Close()
			if response.StatusCode != 200 {
				err = fmt.Errorf("status %s", response.Status)
			}
		}
		answered <- err
	}()
	await.True(t, "the request arrives", func() bool {
		response, err := client.Get(s.url("/metrics"))
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && strings.Contains(string(text), "webhookserver_requests_pending 1\n")
	})
	if code := s.end(); code != 0 {
		t.Errorf("it exits with %d: %s", code, s.stderr.String())
	}
	if err := <-answered; err != nil {
		t.Errorf("the request under way failed: %v", err)
	}
	if !strings.Contains(s.stdout.String(), `result="allowed"} 1`) {
		t.Errorf("it prints %s", s.stdout.String())
	}
}

func TestExits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := issue(t, dir, 1)
	crash := start(t, dir, "-exit-after", "1ms")
	if code := <-crash.code; code != 1 {
		t.Errorf("-exit-after exits with %d", code)
	}
	crash.code <- 1
	never := start(t, dir, "-never-ready", "-addr", "127.0.0.1:1")
	if code := never.end(); code != 0 || address.MatchString(never.stderr.String()) {
		t.Errorf("-never-ready exits with %d: %s", code, never.stderr.String())
	}
	ready := start(t, dir)
	if response, err := client.Get(ready.url("/healthz")); err != nil || response.StatusCode != 200 {
		t.Errorf("it is not healthy: %v, %v", response, err)
	} else {
		response.Body.Close()
	}
	for _, args := range [][]string{{"-rename", "a"}, {"-deny-label", "=b"}, {"more"}, {"-reload", "0s"}, {"-unknown"}} {
		var stderr bytes.Buffer
		if code := run(t.Context(), args, func(string) string { return dir }, io.Discard, &stderr); code != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exits with %d: %s", args, code, stderr.String())
		}
	}
	var stderr bytes.Buffer
	if code := run(t.Context(), nil, func(string) string { return "" }, io.Discard, &stderr); code != 2 || stderr.String() != "webhookserver: TLS_SERVER_CERTS_DIR is not set\n" {
		t.Errorf("without certificates it exits with %d: %s", code, stderr.String())
	}
}
