package namespaces

import (
	"context"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/etcd"
)

// empty is an etcd without namespaces. It provisions none.
type empty struct{ Admin }

func (empty) Overview(context.Context) (admin.Overview, error) { return admin.Overview{}, nil }

// connect returns a client of an API server that answers with a handler.
func connect(t *testing.T, answer http.HandlerFunc) *kube.Client {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	ca := base64.StdEncoding.EncodeToString(rotation.Encode(server.Certificate()))
	client, err := kube.New(kube.Config{Name: "dev", Kubeconfig: []byte(`{apiVersion: v1, kind: Config, current-context: x,
 contexts: [{name: x, context: {cluster: x, user: x}}], clusters: [{name: x, cluster: {server: "` + server.URL + `", certificate-authority-data: ` + ca + `}}], users: [{name: x, user: {token: t}}]}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// If an object may not get the finalizer, that is told, and tried again at growing intervals; nothing is
// made for it. If it only changed meanwhile, it is read again at once.
func TestFinalizerRefused(t *testing.T) {
	t.Parallel()
	const object = `{"apiVersion": "gitopsd.dev/v1alpha1", "kind": "EtcdNamespace", "metadata": {"name": "sample", "namespace": "default", "uid": "1"}}`
	var code int
	var reason, shown string
	client := connect(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/status"):
			body, _ := io.ReadAll(r.Body)
			shown = string(body)
			io.WriteString(w, object)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/etcdnamespaces/sample"):
			io.WriteString(w, object)
		case r.Method == http.MethodPatch:
			w.WriteHeader(code)
			io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the finalizer is not allowed", "reason": "`+reason+`"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	c := New(Config{Etcd: &Etcd{Admin: empty{}}})
	k := &known{meta: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sample", Namespace: "default", UID: "1", ResourceVersion: "1"}}}
	work := func() *pass {
		p := &pass{Controller: c, View: &home.View{Cluster: "dev", Client: client, Log: slog.New(slog.DiscardHandler)}, now: now}
		if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: subject{declared: true, declaration: new(etcd.Declaration), etcd: true}}}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	code, reason = http.StatusConflict, "Conflict"
	if p := work(); k.failures != 0 || shown != "" || !p.again.Equal(now.Add(time.Second)) {
		t.Errorf("after a change: %d failures, status %q, again at %s", k.failures, shown, p.again)
	}
	code, reason = http.StatusForbidden, "Forbidden"
	for n := range 3 {
		p := work()
		if wait := firstRetry << n; k.failures != n+1 || !k.retry.Equal(now.Add(wait)) || !p.again.Equal(now.Add(wait)) {
			t.Errorf("%d failures, again at %s and %s", k.failures, k.retry, p.again)
		}
		if !strings.Contains(k.failure, "the finalizer is not allowed") || !strings.Contains(shown, "the finalizer is not allowed") || !strings.Contains(shown, notProvisioned) {
			t.Errorf("the problem is %q, and the status %q", k.failure, shown)
		}
	}
}
