package applications

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/render/manifest"
)

// keysOf returns the connection to a cluster in the layout that has a key for each part.
func keysOf(t *testing.T, cluster string) map[string][]byte {
	t.Helper()
	c, err := connection.Parse(map[string][]byte{"kubeconfig": kubeconfigOf(t, cluster)}, kubeconfig.Restricted)
	if err != nil {
		t.Fatal(err)
	}
	data, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	delete(data, "kubeconfig")
	return data
}

// brings makes a target with a Secret of these keys.
func (tm *team) brings(name string, data map[string][]byte) {
	tm.t.Helper()
	values := make(map[string]any)
	for key, value := range data {
		values[key] = string(value)
	}
	put(tm.t, tm.home, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": tm.name}, "stringData": values})
	tm.ready(name)
}

// A client certificate and a password are as good as a token, each part under a key of its
// own.
func TestLayouts(t *testing.T) {
	tm := newTeam(t)
	data := keysOf(t, "other")
	if len(data["clientCert"]) == 0 || len(data["clientKey"]) == 0 {
		t.Fatal("the kubeconfig has no client certificate")
	}
	tm.brings("certificate", data)
	tm.app("web", "targetRef: {name: certificate}", "")
	tm.is("web", "Submitted", "certificate", "")

	// No API server takes passwords any more; a proxy in front of one does.
	certificate, err := tls.X509KeyPair(data["clientCert"], data["clientKey"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data["clusterCA"])
	to, err := url.Parse(string(data["endpoint"]))
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Authorization")
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{certificate}}, ForceAttemptHTTP2: true},
	}
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "ada" || password != "hunter2" {
			http.Error(w, "who is this?", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.CloseClientConnections) // watches would go on
	tm.brings("password", map[string][]byte{
		"endpoint": []byte(front.URL), "clusterCA": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw}),
		"username": []byte("ada"), "password": []byte("hunter2"),
	})
	tm.app("web", "targetRef: {name: password}", "")
	tm.is("web", "Submitted", "password", "")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
}

// Templates may be of any kind, also of these kinds themselves; a template that could mean
// more than one object, or none, is refused by itself.
func TestTemplates(t *testing.T) {
	tm := newTeam(t)
	tm.target("hub", "home")
	tm.target("one", "other")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: outer, namespace: $TEAM}
spec:
  targetRef: {name: hub}
  resourceTemplates:
  - metadata: {name: inner}
    spec:
      template:
        apiVersion: workload.crossplane.io/v1alpha2
        kind: KubernetesApplication
        metadata: {name: inner, namespace: $TEAM}
        spec:
          targetRef: {name: one}
          resourceTemplates:
          - metadata: {name: settings}
            spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}, data: {by: inner}}}
  - metadata: {name: itself}
    spec:
      template:
        apiVersion: workload.crossplane.io/v1alpha2
        kind: KubernetesApplication
        metadata: {name: outer, namespace: $TEAM}
        spec: {resourceTemplates: []}
  - metadata: {name: nowhere}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: nowhere}}}
  - metadata: {name: secret}
    spec: {template: {apiVersion: v1, kind: Secret, metadata: {name: secret, namespace: $TEAM-in}, stringData: {password: hunter2}}}
  - metadata: {name: garbled}
    spec: {template: {apiVersion: v1, kind: Secret, metadata: {name: garbled, namespace: $TEAM-in}, data: {password: hunter2}}}
`)
	tree := tm.is("outer", "PartiallySubmitted", "hub", "its kind is namespaced, and it has no namespace")
	tm.is("inner", "Submitted", "one", "")
	if by := tm.settings(tm.other); by != "inner" {
		t.Errorf("the inner application's object is %q's", by)
	}
	states := make(map[string]string)
	for _, item := range manifest.List(tree, "status", "resources") {
		m := item.(map[string]any)
		states[manifest.Text(m, "name")] = manifest.Text(m, "state")
	}
	for name, want := range map[string]string{"inner": submitted, "itself": failed, "nowhere": failed, "secret": submitted, "garbled": failed} {
		if states[name] != want {
			t.Errorf("%s is %s, want %s", name, states[name], want)
		}
	}
	if text := string(manifest.AppendJSON(nil, manifest.Mapping(tree, "status"))); strings.Contains(text, "hunter2") || strings.Contains(tm.log.String(), "hunter2") {
		t.Errorf("the status or the log quotes a Secret: %s", text)
	}
	tm.remove(tm.home, manifest.Application, tm.name, "outer")
	tm.gone(tm.home, manifest.Application, tm.name, "outer")
	if _, err := tm.get(tm.home, manifest.Application, tm.name, "inner"); kube.ClassOf(err) != kube.NotFound {
		t.Errorf("the inner application outlived the outer one: %v", err)
	}
	if by := tm.settings(tm.other); by != "" {
		t.Errorf("its object outlived both: %q", by)
	}
}
