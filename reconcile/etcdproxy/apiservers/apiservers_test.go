// Package apiservers runs API servers on namespaces of one etcd: two kube-apiservers
// side by side, and Kubernetes' sample-apiserver, aggregated by one of them, in a third
// namespace. All use the same keys, and see only their own.
package apiservers

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/testscripts/devcluster"
)

// The types that are written.
var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	crds       = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets    = schema.GroupVersionResource{Group: "acme.example", Version: "v1", Resource: "widgets"}
	flunders   = schema.GroupVersionResource{Group: "wardle.example.com", Version: "v1alpha1", Resource: "flunders"}
)

// API servers that share an etcd through the proxy work as with an etcd of their own, and do not see each
// other's objects.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	f := start(t, "alpha", "beta", "sample")
	alpha, beta := f.controlPlanes(t)

	t.Run("each lists its own", func(t *testing.T) {
		for _, c := range []*cluster{alpha, beta} {
			c.create(t, configMaps, fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "same"}, "data": {"of": %q}}`, c.name))
		}
		for _, c := range []*cluster{alpha, beta} {
			if of := field(c.get(t, configMaps, "same"), "data", "of"); of != c.name {
				t.Errorf("%s has the object of %s", c.name, of)
			}
		}
		alpha.create(t, configMaps, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more"}}`)
		if _, err := beta.resource(configMaps).Get(t.Context(), "more", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("beta: %v", err)
		}
	})
	t.Run("definitions and watches", func(t *testing.T) { f.widgets(t, alpha, beta) })
	t.Run("consistent lists come from the cache", func(t *testing.T) { alpha.consistent(t) })
	t.Run("each compacts its own", func(t *testing.T) { f.compact(t, alpha) })
	t.Run("sample-apiserver", func(t *testing.T) { f.sample(t, alpha) })
	f.apart(t)
}

// widgets defines a type in one cluster alone, and follows its objects.
func (f *fixture) widgets(t *testing.T, with, without *cluster) {
	with.create(t, crds, `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.acme.example"},
		"spec": {"group": "acme.example", "scope": "Namespaced", "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
		"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`)
	eventually(t, "widgets are served", func() error {
		_, err := with.resource(widgets).List(t.Context(), metav1.ListOptions{})
		return err
	})
	events := with.watch(t, widgets)
	const object = `{"apiVersion": "acme.example/v1", "kind": "Widget", "metadata": {"name": %q}, "spec": {"size": %d}}`
	for i := range 20 {
		with.create(t, widgets, fmt.Sprintf(object, fmt.Sprintf("widget-%02d", i), i))
	}
	if err := with.resource(widgets).Delete(t.Context(), "widget-07", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		expect(t, events, watch.Added, fmt.Sprintf("widget-%02d", i))
	}
	expect(t, events, watch.Deleted, "widget-07")
	list, err := with.resource(widgets).List(t.Context(), metav1.ListOptions{Limit: 7})
	check(t, err)
	seen := len(list.Items)
	for list.GetContinue() != "" {
		list, err = with.resource(widgets).List(t.Context(), metav1.ListOptions{Limit: 7, Continue: list.GetContinue()})
		check(t, err)
		seen += len(list.Items)
	}
	if seen != 19 {
		t.Errorf("pages have %d widgets, want 19", seen)
	}
	if _, err := without.resource(widgets).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("%s has no widgets, but: %v", without.name, err)
	}
	if all, err := without.resource(crds).List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) != 0 {
		t.Errorf("%s has %d definitions, %v", without.name, len(all.Items), err)
	}
}

// consistent lists and gets objects. The API server answers from its cache once progress notifications of
// etcd show that it is up to date, without falling back to etcd.
func (c *cluster) consistent(t *testing.T) {
	for i := range 5 {
		name := fmt.Sprintf("consistent-%d", i)
		c.create(t, configMaps, fmt.Sprintf(`{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": %q}}`, name))
		list, err := c.resource(configMaps).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
		check(t, err)
		if len(list.Items) != 1 {
			t.Errorf("%s is not in a list after it was created", name)
		}
	}
	text := c.metrics(t)
	lines := regexp.MustCompile(`(?m)^apiserver_watch_cache_consistent_read_total\{.*\} .*$`).FindAllString(text, -1)
	good := 0
	for _, line := range lines {
		if !strings.Contains(line, `resource="configmaps"`) {
			continue
		}
		if !strings.Contains(line, `fallback="false"`) || !strings.Contains(line, `success="true"`) {
			t.Errorf("a list did not come from the cache: %s", line)
		}
		good++
	}
	if good == 0 {
		t.Errorf("no consistent list of configmaps was counted:\n%s", strings.Join(lines, "\n"))
	}
}

// compact compacts one cluster's namespace. Its clients cannot read earlier revisions, the neighbour's can,
// and both API servers go on.
func (f *fixture) compact(t *testing.T, alpha *cluster) {
	clients := map[string]*clientv3.Client{"alpha": f.etcdClient(t, "alpha"), "beta": f.etcdClient(t, "beta")}
	const key = "/registry/configmaps/default/same"
	old := make(map[string]int64)
	for name, c := range clients {
		answer, err := c.Get(t.Context(), key)
		check(t, err)
		old[name] = answer.Header.Revision
	}
	alpha.create(t, configMaps, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}}`)
	answer, err := clients["alpha"].Get(t.Context(), key)
	check(t, err)
	_, err = clients["alpha"].Compact(t.Context(), answer.Header.Revision)
	check(t, err)
	if _, err := clients["alpha"].Get(t.Context(), key, clientv3.WithRev(old["alpha"])); !errors.Is(err, rpctypes.ErrCompacted) {
		t.Errorf("alpha reads what it compacted: %v", err)
	}
	if past, err := clients["beta"].Get(t.Context(), key, clientv3.WithRev(old["beta"])); err != nil || len(past.Kvs) != 1 {
		t.Errorf("beta cannot read its past any more: %v", err)
	}
	events := alpha.watch(t, configMaps)
	alpha.create(t, configMaps, `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "after-compaction"}}`)
	expect(t, events, watch.Added, "after-compaction")
}

// sample makes a cluster aggregate the sample-apiserver.
func (f *fixture) sample(t *testing.T, c *cluster) {
	binary, err := devcluster.Binary(t.Context(), io.Discard)
	check(t, err)
	const script = `exec "$0" sample-apiserver --bind-address="$POD_IP" --kubeconfig="$KUBECONFIG" --authentication-kubeconfig="$KUBECONFIG" --authorization-kubeconfig="$KUBECONFIG" "$@"`
	check(t, c.planes.SetImage(t.Context(), c.name, "registry.example.org/sample-apiserver", "/bin/sh", "-c", script, binary))
	serving, err := f.servers.Issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "api"}, DNSNames: []string{"api.wardle.svc"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	check(t, err)
	dir := f.clientFiles(t, "sample")
	check(t, proxytest.WritePair(filepath.Join(dir, "serving"), serving))
	text, err := os.ReadFile("testdata/sample.yaml")
	check(t, err)
	bundle := base64.StdEncoding.EncodeToString(f.servers.PEM())
	manifests := filepath.Join(t.TempDir(), "sample.yaml")
	check(t, os.WriteFile(manifests, append(text, "  caBundle: "+bundle+"\n"...), 0o600))
	c.kubectl(t, "apply", "-f", manifests)
	c.kubectl(t, "create", "secret", "generic", "files", "--namespace", "wardle", "--from-literal=server="+f.url, "--from-file="+dir)
	c.kubectl(t, "wait", "--timeout=2m", "--for=condition=Available", "apiservice/v1alpha1.wardle.example.com")
	// The API server forwards requests a moment later.
	eventually(t, "flunders are served", func() error {
		_, err := c.resource(flunders).List(t.Context(), metav1.ListOptions{})
		return err
	})

	events := c.watch(t, flunders)
	c.create(t, flunders, `{"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {"name": "first"}, "spec": {"reference": "some-fischer"}}`)
	expect(t, events, watch.Added, "first")
	list, err := c.resource(flunders).List(t.Context(), metav1.ListOptions{})
	check(t, err)
	if len(list.Items) != 1 || field(&list.Items[0], "spec", "reference") != "some-fischer" {
		t.Errorf("flunders: %v", list.Items)
	}
	answer, err := f.etcdClient(t, "sample").Get(t.Context(), "/registry/wardle.example.com/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	check(t, err)
	var keys []string
	for _, kv := range answer.Kvs {
		keys = append(keys, string(kv.Key))
	}
	if !slices.ContainsFunc(keys, func(key string) bool { return strings.HasSuffix(key, "/flunders/default/first") }) {
		t.Errorf("the namespace of sample-apiserver has no flunder: %q", keys)
	}
}

// apart checks that etcd has keys of each namespace, and no others.
func (f *fixture) apart(t *testing.T) {
	answer, err := f.etcd.Root().Get(t.Context(), "", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	check(t, err)
	count := make(map[string]int)
	for _, kv := range answer.Kvs {
		of := ""
		for name, ns := range f.namespaces {
			if bytes.HasPrefix(kv.Key, []byte(ns.Prefix)) {
				of = name
			}
		}
		if count[of]++; of == "" {
			t.Errorf("key %q is in no namespace", kv.Key)
		}
	}
	for name := range f.namespaces {
		if count[name] == 0 {
			t.Errorf("etcd has no key of %s", name)
		}
	}
	t.Logf("keys: %v", count)
}

// fixture is an etcd with namespaces, and their proxy.
type fixture struct {
	etcd             *proxytest.Etcd
	clients, servers *proxytest.Authority
	namespaces       map[string]etcd.Namespace
	url              string
}

func start(t *testing.T, names ...string) *fixture {
	t.Helper()
	f := &fixture{namespaces: make(map[string]etcd.Namespace)}
	var err error
	f.etcd, err = proxytest.Start(t.TempDir(), proxytest.NewConfig())
	check(t, err)
	t.Cleanup(func() { f.etcd.Close() })
	f.clients, err = proxytest.NewAuthority("clients")
	check(t, err)
	f.servers, err = proxytest.NewAuthority("servers")
	check(t, err)
	var config proxytest.Config
	for i, name := range names {
		id := etcd.ID{Cluster: name}
		f.namespaces[name] = etcd.Namespace{ID: id, Number: int64(i + 1), Prefix: id.DefaultPrefix()}
		served, err := f.etcd.Serve(t.Context(), f.namespaces[name], f.clients.PEM())
		check(t, err)
		config.Tenants = append(config.Tenants, served)
	}
	certificate, err := f.servers.Server()
	check(t, err)
	config.Certificate, config.Key, err = proxytest.EncodePair(certificate)
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	proxy, err := config.Start(l)
	check(t, err)
	t.Cleanup(func() { proxy.Close() })
	f.url = "https://" + proxy.Address
	return f
}

// clientFiles writes the files for a client of a namespace: ca.crt, client.crt, client.key.
func (f *fixture) clientFiles(t *testing.T, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	client, err := f.clients.Client(name, f.namespaces[name].ID.URI())
	check(t, err)
	check(t, proxytest.WritePair(filepath.Join(dir, "client"), client))
	check(t, os.WriteFile(filepath.Join(dir, "ca.crt"), f.servers.PEM(), 0o600))
	return dir
}

// etcdClient is a client of a namespace.
func (f *fixture) etcdClient(t *testing.T, name string) *clientv3.Client {
	t.Helper()
	config, err := proxytest.ClientTLS(f.namespaces[name].ID, f.clients, f.servers)
	check(t, err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{f.url}, TLS: config, Logger: zap.NewNop()})
	check(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// cluster is a control plane.
type cluster struct {
	name   string
	planes *devcluster.ControlPlanes
	config *rest.Config
	client dynamic.Interface
}

// controlPlanes starts a control plane on each of two namespaces. The second has no controllers.
func (f *fixture) controlPlanes(t *testing.T) (alpha, beta *cluster) {
	t.Helper()
	alpha, beta = &cluster{name: "alpha"}, &cluster{name: "beta"}
	var both sync.WaitGroup
	failed := make(chan error, 2)
	for _, c := range []*cluster{alpha, beta} {
		files := f.clientFiles(t, c.name)
		dir := t.TempDir()
		cfg := devcluster.Config{Dir: dir, Log: t.Output(), NoControllerManager: c == beta, Etcd: &devcluster.Etcd{
			Server: f.url, CAFile: filepath.Join(files, "ca.crt"),
			CertFile: filepath.Join(files, "client.crt"), KeyFile: filepath.Join(files, "client.key"),
		}}
		both.Go(func() {
			var err error
			if c.planes, err = devcluster.Up(context.WithoutCancel(t.Context()), cfg, c.name); err != nil {
				failed <- err
			}
		})
	}
	both.Wait()
	for _, c := range []*cluster{alpha, beta} {
		if c.planes != nil {
			t.Cleanup(func() { c.planes.Close() })
		}
	}
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	for _, c := range []*cluster{alpha, beta} {
		var err error
		c.config, err = clientcmd.BuildConfigFromFlags("", c.planes.Kubeconfig(c.name))
		check(t, err)
		c.config.QPS = -1
		c.client, err = dynamic.NewForConfig(c.config)
		check(t, err)
	}
	return alpha, beta
}

// metrics returns what the API server serves at /metrics.
func (c *cluster) metrics(t *testing.T) string {
	t.Helper()
	client, err := rest.HTTPClientFor(c.config)
	check(t, err)
	r, err := client.Get(c.config.Host + "/metrics")
	check(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	check(t, err)
	if r.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %s\n%s", r.Status, text)
	}
	return string(text)
}

func (c *cluster) resource(r schema.GroupVersionResource) dynamic.ResourceInterface {
	if r == crds {
		return c.client.Resource(r)
	}
	return c.client.Resource(r).Namespace("default")
}

func (c *cluster) create(t *testing.T, r schema.GroupVersionResource, text string) {
	t.Helper()
	object := new(unstructured.Unstructured)
	check(t, object.UnmarshalJSON([]byte(text)))
	_, err := c.resource(r).Create(t.Context(), object, metav1.CreateOptions{})
	check(t, err)
}

func (c *cluster) get(t *testing.T, r schema.GroupVersionResource, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := c.resource(r).Get(t.Context(), name, metav1.GetOptions{})
	check(t, err)
	return object
}

// watch watches from now on.
func (c *cluster) watch(t *testing.T, r schema.GroupVersionResource) <-chan watch.Event {
	t.Helper()
	list, err := c.resource(r).List(t.Context(), metav1.ListOptions{})
	check(t, err)
	w, err := c.resource(r).Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	check(t, err)
	t.Cleanup(w.Stop)
	return w.ResultChan()
}

func (c *cluster) kubectl(t *testing.T, args ...string) {
	t.Helper()
	cmd, err := devcluster.Kubectl(t.Context(), append([]string{"--kubeconfig", c.planes.Kubeconfig(c.name)}, args...)...)
	check(t, err)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// patience bounds each wait.
const patience = 2 * time.Minute

// expect waits for the next event.
func expect(t *testing.T, events <-chan watch.Event, kind watch.EventType, name string) {
	t.Helper()
	select {
	case e := <-events:
		object, ok := e.Object.(*unstructured.Unstructured)
		if !ok || e.Type != kind || object.GetName() != name {
			t.Fatalf("event %s %v; want %s of %s", e.Type, e.Object, kind, name)
		}
	case <-time.After(patience):
		t.Fatalf("no event %s of %s", kind, name)
	}
}

func eventually(t *testing.T, what string, do func() error) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		err := do()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func field(object *unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(object.Object, path...)
	return text
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
