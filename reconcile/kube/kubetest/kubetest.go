// Package kubetest has clients of API servers that a test answers for.
package kubetest

import (
	"encoding/base64"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"testing"

	"gitopsd.dev/reconcile/kube"
)

// Client returns a client of a cluster of the name dev, whose API server answers with a handler.
// The answers are JSON.
func Client(t testing.TB, answer http.HandlerFunc) *kube.Client {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	client, err := kube.New(kube.Config{Name: "dev", Kubeconfig: []byte(`{apiVersion: v1, kind: Config, current-context: x,
 contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: "` + server.URL + `", certificate-authority-data: ` + ca + `}}], users: [{name: x, user: {token: t}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
