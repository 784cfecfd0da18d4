package kube

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"gitopsd.dev/reconcile/kube/kubeconfig"
)

// The resolved address decides, through any name and proxy.
func TestMayReach(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	for _, cluster := range []string{
		`server: "https://127.0.0.1` + port + `"`,
		`server: "https://localhost` + port + `"`,
		`server: "https://a.example", proxy-url: "` + server.URL + `"`,
	} {
		c, err := New(Config{Name: "target", MayReach: kubeconfig.Reach(nil).Check, Kubeconfig: []byte(`{apiVersion: v1, kind: Config, current-context: x,
 contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {` + cluster + `}}], users: [{name: x, user: {token: t}}]}`)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, _, err = c.Get(t.Context(), configMapType, configMapType.ID("a", "b")); err == nil || !strings.Contains(err.Error(), "--allow-addresses") {
			t.Errorf("%s: %v", cluster, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d requests arrived", n)
	}
}

var configMapType = Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}
