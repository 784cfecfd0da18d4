package serve

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubetest"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

// byURL is a unit whose cluster reaches the daemon by URL.
func byURL(t *testing.T, set *conversion.Set, address string) unit.Request {
	t.Helper()
	objects := manifesttest.Set(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+set.Name()+`}
spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {url: 'https://gitopsd.example.org/convert'}}}}
`)
	u := &desired.Unit{ID: desired.ID{Cluster: "dev"}, Objects: objects, Conversions: map[string]*render.Conversion{set.Name(): {Set: set}}}
	u.Spec.Conversion = &clusters.Conversion{URL: address}
	return unit.Request{Unit: u, Objects: objects}
}

// A plan does not know the CA. A daemon that serves nothing does not let a definition
// name it.
func TestNotServing(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "example.io"}
	_, set := b.compile(liveRules)
	r := byURL(t, set, "https://gitopsd.example.org")
	d := &Daemon{}
	id := manifest.CRD.ID("", set.Name())
	refused, err := d.Complete(t.Context(), r)
	if err != nil || !strings.Contains(refused.Refused[id], "--conversion-listen") {
		t.Errorf("%+v %v", refused, err)
	}
	r.Preview = true
	done, err := d.Complete(t.Context(), r)
	if err != nil || len(done.Refused) > 0 || !done.Serving || !slices.Equal(done.Objects[0].Unknown(), []string{"spec.conversion.webhook.clientConfig.caBundle"}) {
		t.Errorf("%+v %v", done, err)
	}
	r.Unit.Spec.Conversion = nil
	if done, err = d.Complete(t.Context(), r); err != nil || done.Serving || len(done.Objects) > 0 || done.Relied == nil {
		t.Errorf("another cluster: %+v %v", done, err)
	}
}

// The CA is filled in, and a URL that the certificate does not go with is noted.
func TestFills(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "example.io"}
	_, set := b.compile(liveRules)
	dir := t.TempDir()
	writeCertificate(t, dir, newAuthority(t), "gitopsd.example.org")
	certificates, err := LoadCertificates(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Table: &convert.Table{}, Certificates: certificates, Log: slog.New(slog.DiscardHandler)}
	for host, notes := range map[string]int{"gitopsd.example.org": 0, "other.example.org:8443": 1} {
		r := byURL(t, set, (&url.URL{Scheme: "https", Host: host}).String())
		r.Preview = true
		done, err := d.Complete(t.Context(), r)
		if err != nil || len(done.Notes) != notes || len(done.Objects) != 1 {
			t.Fatalf("%s: %+v %v", host, done, err)
		}
		o := done.Objects[0]
		if manifest.Text(o.Tree(), "spec", "conversion", "webhook", "clientConfig", "caBundle") == "" || manifest.Text(o.Rendered().Tree(), "spec", "conversion", "webhook", "clientConfig", "caBundle") != "" {
			t.Errorf("%v, rendered %v", o.Tree(), o.Rendered().Tree())
		}
	}
}

// A unit that is served is completed again when the CA is another, and no unit is when
// only the certificate is.
func TestAnotherAuthority(t *testing.T) {
	t.Parallel()
	dir, first := t.TempDir(), newAuthority(t)
	writeCertificate(t, dir, first, "gitopsd.example.org")
	certificates, err := LoadCertificates(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Table: &convert.Table{}, Certificates: certificates, kept: map[string]map[string]read{"served": nil, "other": nil}}
	b := &bed{T: t, group: "authority.example.io"}
	_, set := b.compile(liveRules)
	d.Table.Hold(holdsApplied+"served", []*conversion.Set{set})
	notified := make(chan string, 10)
	var followers sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, name := range []string{"served", "other"} {
		follow := d.Follow(name) // what is read until it runs is not missed
		followers.Go(func() { follow(ctx, func() { notified <- name }) })
	}
	reload := func(by *authority) {
		t.Helper()
		writeCertificate(t, dir, by, "gitopsd.example.org")
		if changed, err := certificates.reload(); err != nil || !changed {
			t.Fatal(changed, err)
		}
	}
	reload(first)
	for range 2 {
		reload(newAuthority(t))
		select {
		case name := <-notified:
			if name != "served" {
				t.Errorf("%s is notified", name)
			}
		case <-time.After(time.Minute):
			t.Fatal("nobody is notified")
		}
	}
	cancel()
	followers.Wait()
	if len(notified) > 0 {
		t.Errorf("%s is notified once more", <-notified)
	}
}

// What is wanted is served as long as it is wanted of a unit that may be in the fleet.
func TestWant(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "example.io"}
	_, set := b.compile(liveRules)
	d := &Daemon{Table: &convert.Table{}, Log: slog.New(slog.DiscardHandler)}
	held := func(want ...string) {
		t.Helper()
		have := d.Table.Holders()
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("held by %q, want %q", have, want)
		}
		if d.Table.Find(converter.Argument(set)) == nil {
			t.Error("not served")
		}
	}
	d.Want(map[string][]*conversion.Set{"dev": {set}, "prod": {set}, "other": nil})
	held("wanted dev", "wanted prod")
	d.Want(map[string][]*conversion.Set{"dev": {set}}) // the other's document has errors
	held("wanted dev", "wanted prod")
	d.Leave("prod")
	held("wanted dev")
	d.Want(map[string][]*conversion.Set{"dev": nil})
	held() // for some time more
}

// A cluster that leaves for another server is served until what its definitions name is
// pruned, also by a daemon that starts in between.
func TestLeaves(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "leaves.example.io"}
	b.connect()
	text, err := os.ReadFile(devcluster.Start(t, "convert").Kubeconfig("convert"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := kube.New(kube.Config{Name: "dev", Kubeconfig: text})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	tree, set := b.compile(liveRules)
	named := strings.NewReplacer("$NAME", set.Name(), "$GROUP", b.group).Replace(liveRules)
	configMap, err := bundle.Object(set, tree, []conversion.Document{{Tree: manifesttest.Tree(t, named)}})
	if err != nil {
		t.Fatal(err)
	}
	b.send(http.MethodPost, "/api/v1/namespaces", "application/json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"gitopsd-system"}}`)
	path := "/api/v1/namespaces/gitopsd-system/configmaps/" + configMap.ID().Name
	b.must(b.apply(path, "test", true, configMap.Tree()))

	d := &Daemon{Table: &convert.Table{}, Log: slog.New(slog.DiscardHandler)}
	complete := func(r unit.Request, want int) {
		t.Helper()
		r.Client, r.Owns = client, func(id manifest.ID, _ *metav1.ObjectMeta) bool { return id == configMap.ID() }
		if _, err := d.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if have := d.Table.Holders(); len(have) != want {
			t.Errorf("held by %q, want %d", have, want)
		}
	}
	toService := byURL(t, set, "")
	toService.Unit.Spec.Conversion = &clusters.Conversion{Service: &clusters.ConversionService{Image: "example.org/gitopsd:v1"}}
	removed := byURL(t, set, "")
	removed.Unit.Spec.Conversion, removed.Unit.Conversions = nil, nil
	complete(toService, 1)
	d = &Daemon{Table: &convert.Table{}, Log: slog.New(slog.DiscardHandler)}
	complete(byURL(t, set, "https://gitopsd.example.org"), 1)
	complete(toService, 1)
	complete(removed, 1)
	d = &Daemon{Table: &convert.Table{}, Log: slog.New(slog.DiscardHandler)}
	complete(removed, 1)
	b.must(b.send(http.MethodDelete, path, "", nil))
	complete(removed, 0)
}

// Bundles that can be read are served while others cannot, and are not read again. A unit
// without conversions is looked at until all were read.
func TestSomeUnreadable(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "some.example.io"}
	tree, set := b.compile(liveRules)
	named := strings.NewReplacer("$NAME", set.Name(), "$GROUP", b.group).Replace(liveRules)
	good, err := bundle.Object(set, tree, []conversion.Document{{Tree: manifesttest.Tree(t, named)}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	gets, broken := make(map[string]int), true
	client := kubetest.Client(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := path.Base(r.URL.Path)
		if name == "configmaps" {
			var items []any
			for _, name := range []string{"conversion.a", good.ID().Name, "conversion.z"} {
				items = append(items, map[string]any{"metadata": map[string]any{"name": name, "namespace": "gitopsd-system", "uid": name, "resourceVersion": "1"}})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": map[string]any{"resourceVersion": "1"}, "items": items})
			return
		}
		gets[name]++
		o := good.Tree()
		if name != good.ID().Name {
			o = map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name, "namespace": "gitopsd-system", "resourceVersion": "1"}}
			if broken {
				w.WriteHeader(http.StatusForbidden)
				o = map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": http.StatusForbidden, "message": "no " + name}
			}
		}
		_ = json.NewEncoder(w).Encode(o)
	})
	d := &Daemon{Table: &convert.Table{}, Log: slog.New(slog.DiscardHandler)}
	r := unit.Request{Unit: &desired.Unit{ID: desired.ID{Cluster: "dev"}}, Client: client, Owns: func(manifest.ID, *metav1.ObjectMeta) bool { return true }}
	for range 2 {
		if err := d.Serve(t.Context(), r); err == nil || !strings.Contains(err.Error(), "conversion.a") {
			t.Errorf("while two bundles cannot be read: %v", err)
		}
		if d.Table.Find(converter.Argument(set)) == nil || d.looked("dev") {
			t.Errorf("the bundle that can be read is not served, or all count as read: %t", d.looked("dev"))
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Serve(ended, r); err == nil || d.Table.Find(converter.Argument(set)) == nil {
		t.Errorf("after its time: %v", err)
	}
	mu.Lock()
	broken = false
	mu.Unlock()
	for range 2 {
		if err := d.Serve(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	if !d.looked("dev") {
		t.Error("not all count as read")
	}
	if want := map[string]int{"conversion.a": 3, good.ID().Name: 1, "conversion.z": 3}; !maps.Equal(gets, want) {
		t.Errorf("requests: %v, want %v", gets, want)
	}
}
