package serve

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

// The server's process follows the ConfigMaps: it is ready when it has what it needs,
// garbage stops nothing, and what is gone is served for some time.
func TestFollow(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "follow.example.io", table: &convert.Table{}, dir: t.TempDir(), ca: newAuthority(t)}
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
	writeCertificate(t, b.dir, b.ca, "127.0.0.1")
	tree, set := b.compile(liveRules)
	otherRules := strings.Replace(liveRules, "preserve: [spec.note]", "drop: [spec.note]", 1)
	_, other := b.compile(otherRules)

	b.send(http.MethodPost, "/api/v1/namespaces", "application/json", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"gitopsd-system"}}`)
	put := func(set *conversion.Set, rules string) string {
		named := strings.NewReplacer("$NAME", "people."+b.group, "$GROUP", b.group).Replace(rules)
		o, err := bundle.Object(set, tree, []conversion.Document{{Tree: manifesttest.Tree(t, named)}})
		if err != nil {
			t.Fatal(err)
		}
		path := "/api/v1/namespaces/gitopsd-system/configmaps/" + o.ID().Name
		b.must(b.apply(path, "test", true, o.Tree()))
		return path
	}
	garbage := map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "binaryData": map[string]any{"rules.json.gz": "Z2FyYmFnZQ=="},
		"metadata": map[string]any{"name": "conversion.garbage", "namespace": "gitopsd-system", "labels": map[string]any{manifest.ConversionLabel: "true"}},
	}
	b.must(b.apply("/api/v1/namespaces/gitopsd-system/configmaps/conversion.garbage", "test", true, garbage))
	first := put(set, liveRules)

	ports := freePorts(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	follower := &Follower{Client: client, Table: b.table, Required: []string{converter.Argument(set), converter.Argument(other)}, Log: newLogger(b)}
	var running sync.WaitGroup
	running.Go(func() {
		if err := Run(ctx, Config{Bind: "127.0.0.1", Port: ports[0], HealthPort: ports[1], TLSDir: b.dir, Follower: follower, Log: newLogger(b)}); err != nil {
			t.Error(err)
		}
	})
	health := func(path string) (int, string) {
		resp, err := http.Get((&url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", ports[1]), Path: path}).String())
		if err != nil {
			return 0, ""
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	await.True(b, "it is alive, and not ready", func() bool {
		status, why := health("/readyz")
		alive, _ := health("/healthz")
		return alive == http.StatusOK && status == http.StatusServiceUnavailable && strings.Contains(why, converter.Argument(other)) && !strings.Contains(why, converter.Argument(set))
	})
	put(other, otherRules)
	await.True(b, "it is ready", func() bool { status, _ := health("/readyz"); return status == http.StatusOK })
	if !strings.Contains(b.log.String(), "gitopsd-system/conversion.garbage") {
		t.Errorf("nothing is said about garbage: %s", b.log.String())
	}
	b.must(b.send(http.MethodDelete, first, "", nil))
	await.True(b, "it is gone", func() bool { return len(ids(b, "configmaps")) == 2 })
	if status, _ := health("/readyz"); status != http.StatusOK || b.table.Find(converter.Argument(set)) == nil {
		t.Errorf("rules that it needs are not served any more: %d", status)
	}
	if status, text := health("/metrics"); status != http.StatusOK || !strings.Contains(text, "go_goroutines") {
		t.Errorf("metrics: %d", status)
	}
	cancel()
	await.True(b, "it is ending", func() bool {
		status, why := health("/readyz")
		return status == http.StatusServiceUnavailable && strings.Contains(why, "ending")
	})
	running.Wait()
}

// ids are the names of the labelled objects in gitopsd's namespace.
func ids(b *bed, resource string) []string {
	list := b.must(b.send(http.MethodGet, "/api/v1/namespaces/gitopsd-system/"+resource+"?labelSelector="+url.QueryEscape(selector), "", nil))
	var names []string
	for _, item := range manifest.List(list, "items") {
		text, _ := json.Marshal(item)
		names = append(names, string(text))
	}
	return names
}

// freePorts returns ports that nothing listens on.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	var ports []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}
