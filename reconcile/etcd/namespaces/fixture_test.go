package namespaces

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubetest"
)

// sample is a cluster with the EtcdNamespace default/sample.
type sample struct {
	client *kube.Client
	uid    string // of the cluster
	status string // as it was last written
}

// newSample starts the API server of a sample, whose UID is "uid" at first. What it does not answer
// itself is for rest.
func newSample(t *testing.T, rest http.HandlerFunc) *sample {
	t.Helper()
	const object = `{"apiVersion": "gitopsd.dev/v1alpha1", "kind": "EtcdNamespace", "metadata": {"name": "sample", "namespace": "default", "uid": "1"}}`
	s := &sample{uid: "uid"}
	s.client = kubetest.Client(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/etcdnamespaces/sample/status"):
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			s.status = string(body)
			io.WriteString(w, object)
		case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/etcdnamespaces/sample"):
			io.WriteString(w, object)
		case r.URL.Path == "/api/v1/namespaces/kube-system":
			io.WriteString(w, `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "kube-system", "uid": "`+s.uid+`"}}`)
		default:
			rest(w, r)
		}
	})
	return s
}

// pass returns a pass over the sample.
func (s *sample) pass(c *Controller, now time.Time) *pass {
	return &pass{Controller: c, View: &home.View{Cluster: "dev", Client: s.client, Log: slog.New(slog.DiscardHandler)}, now: now, url: "https://gitopsd:2379"}
}

// newKnown returns the EtcdNamespace as a controller knows it.
func newKnown(finalizers ...string) *known {
	return &known{meta: &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: "sample", Namespace: "default", UID: "1", ResourceVersion: "1", Finalizers: finalizers,
	}}}
}
