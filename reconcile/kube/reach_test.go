package kube

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
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

// A proxy that the daemon's environment names could reach what is refused. A process reads its
// environment once, so that another one is needed.
func TestMayReachPastProxy(t *testing.T) {
	if os.Getenv("HTTPS_PROXY") == "" {
		var asked sync.Map // the hosts
		proxy := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked.Store(r.Host, true) }))
		defer proxy.Close()
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMayReachPastProxy$")
		child.Env = append(os.Environ(), "HTTPS_PROXY="+proxy.URL)
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		for host, want := range map[string]bool{"any.invalid:443": true, "checked.invalid:443": false} {
			if _, is := asked.Load(host); is != want {
				t.Errorf("the proxy was asked for %s: %t", host, is)
			}
		}
		return
	}
	for host, may := range map[string]func(netip.Addr) error{"any": nil, "checked": kubeconfig.Reach(nil).Check} {
		c, err := New(Config{Name: "target", MayReach: may, Kubeconfig: []byte(`{apiVersion: v1, kind: Config, current-context: x,
 contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: "https://` + host + `.invalid"}}], users: [{name: x, user: {token: t}}]}`)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, _, err := c.Get(t.Context(), configMapType, configMapType.ID("a", "b")); err == nil {
			t.Errorf("%s.invalid answers", host)
		}
	}
}

var configMapType = Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}
