package convert

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/upstream"
)

var all = flag.Bool("all", false, "run Kubernetes' own tests of conversions, too, which takes minutes")

// kubernetesRules are for the types of Kubernetes' tests, by the definition's name.
var kubernetesRules = map[string]string{
	// v1alpha1 has the fields of v1beta1, and v1alpha2 is not served.
	"multiversion.stable.example.com": `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: multiversion.stable.example.com}
spec:
  hub: v1beta1
  conversions:
  - from: v1beta1
    to: v1beta2
    rules: [{from: v1beta1.content, to: contentv2}, {from: v1beta1.num, to: numv2}]
  - from: v1beta2
    to: v1beta1
    rules: [{from: v1beta2.contentv2, to: content}, {from: v1beta2.numv2, to: num}]
`,
	"testcrds.stable.example.com": `
apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: testcrds.stable.example.com}
spec:
  hub: v2
  conversions:
  - from: v1
    to: v2
    rules: [{from: "self.hostPort.split(':')[0]", to: host}, {from: "self.hostPort.split(':')[1]", to: port}]
  - from: v2
    to: v1
    rules: [{from: "self.host + ':' + self.port", to: hostPort}]
`,
}

// kubernetesTests are the tests of [upstream.APIExtensionsModule] that have a webhook
// convert: with and without a watch cache; what is stored, served, listed, pruned and
// defaulted. The others of that file try webhooks that answer wrongly, and v1beta1 of
// ConversionReview, which the Handler does not speak.
const kubernetesTests = "^TestWebhookConverterWith(out)?WatchCache$/^(noop|nontrivial)-converter-v1$"

// Kubernetes' own tests of conversion pass with conversion rules in the place of their
// webhook.
func TestKubernetes(t *testing.T) {
	if !*all {
		t.Skip("takes minutes: see make conformance")
	}
	root := t.TempDir()
	dir := filepath.Join(root, "module", upstream.APIExtensionsModule.Path)
	if err := upstream.APIExtensionsModule.Copy(t.Context(), dir, os.Stderr); err != nil {
		t.Fatal(err)
	}
	tests := filepath.Join(dir, "test/integration/conversion")
	useRules(t, tests, "conversion")
	var edits []edit
	for _, converter := range []string{"noopConverter", "nontrivialConverter"} {
		const versions = "\n\t\t\treviewVersions: []string{\"v1\", \"v1beta1\"},"
		edits = append(edits, edit{
			"handler:        NewObjectConverterWebhookHandler(t, " + converter + ")," + versions,
			"handler: rulesHandler(t, multiVersionFixture)," + versions,
		})
	}
	change(t, filepath.Join(tests, "conversion_test.go"), edits...)
	served, asked := serveRules(t)

	passed := goTest(t, tests, kubernetesTests, "GOFLAGS=-trimpath", "TEST_SRCDIR="+root, "TEST_WORKSPACE=module", "GITOPSD_RULES="+served)
	for _, name := range []string{
		"TestWebhookConverterWithWatchCache/noop-converter-v1/check-2",
		"TestWebhookConverterWithWatchCache/nontrivial-converter-v1/check-6",
		"TestWebhookConverterWithoutWatchCache/nontrivial-converter-v1/check-6",
	} {
		if !passed[name] {
			t.Errorf("%s was not run", name)
		}
	}
	if asked.Load() == 0 {
		t.Error("no review reached the handler")
	}
	t.Logf("%d reviews", asked.Load())
}

// migratorTest is the test of Kubernetes' migrator of stored versions that has a webhook
// convert. Of the others of its package one is about encrypted Secrets, and one about a
// definition with a single version, for which nothing converts.
const migratorTest = "TestStorageVersionMigrationWithCRD"

// Kubernetes' own test of its migrator passes with conversion rules in the place of its
// webhook, and the objects come out with their fields. The test is of the release that
// devcluster runs, compiled as devcluster is.
func TestKubernetesMigrator(t *testing.T) {
	if !*all {
		t.Skip("takes minutes: see make conformance")
	}
	const devcluster = "../../cmd/devcluster"
	cmd := upstream.Command(t, "go", "mod", "download", "-json", "k8s.io/kubernetes")
	cmd.Dir = devcluster
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download k8s.io/kubernetes: %v\n%s", err, out)
	}
	var module struct{ Dir, Path, Version string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	tests := t.TempDir()
	if err := os.CopyFS(tests, os.DirFS(filepath.Join(module.Dir, "test/integration/storageversionmigrator"))); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		copyFile(t, filepath.Join(devcluster, file), filepath.Join(tests, file))
	}
	useRules(t, tests, "storageversionmigrator")
	copyFile(t, "testdata/migrator.go", filepath.Join(tests, "migrator.go"))
	const create = "\tcrdUnstructured, err := svm.dynamicClient."
	change(t, filepath.Join(tests, "util.go"),
		edit{"\t\"k8s.io/kubernetes/test/images/agnhost/crd-conversion-webhook/converter\"\n", ""},
		edit{`mux.HandleFunc(fmt.Sprintf("/%s", webhookHandler), converter.ServeExampleConvert)`, `mux.Handle("/"+webhookHandler, rulesHandler(t, definition()))`},
		edit{"int32(9443)", fmt.Sprintf("int32(%d)", freePort(t))},
		// The test's objects have no fields.
		edit{create, "\tfill(crdUnstructured, version)\n" + create},
		edit{"svm.getCR(ctx, t, crName, getCRVersion).", "filled(t, svm.getCR(ctx, t, crName, getCRVersion), getCRVersion)."},
	)
	served, asked := serveRules(t)

	cache := strings.TrimSuffix(module.Dir, filepath.FromSlash(module.Path+"@"+module.Version))
	passed := goTest(t, tests, "^"+migratorTest+"$", "GOFLAGS=-trimpath -mod=mod", "TEST_SRCDIR="+cache, "TEST_WORKSPACE=.", "GITOPSD_RULES="+served)
	if !passed[migratorTest] {
		t.Errorf("%s was not run", migratorTest)
	}
	if asked.Load() == 0 {
		t.Error("no review reached the handler")
	}
	t.Logf("%d reviews", asked.Load())
}

// goTest runs tests of the package in a directory with an etcd, and returns the names of
// those that passed. Compiled with -trimpath, they look for their files below TEST_SRCDIR
// and TEST_WORKSPACE, as for Bazel.
func goTest(t *testing.T, dir, pattern string, env ...string) (passed map[string]bool) {
	t.Helper()
	cmd := upstream.Command(t, "go", "test", "-vet", "off", "-count", "1", "-timeout", "20m", "-json", "-run", pattern, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "KUBE_INTEGRATION_ETCD_URL="+runEtcd(t))
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	passed = make(map[string]bool)
	var said strings.Builder
	for line := range strings.Lines(string(out)) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal([]byte(line), &e) != nil {
			e.Output = line
		}
		said.WriteString(e.Output)
		passed[e.Test] = passed[e.Test] || e.Action == "pass"
	}
	if err != nil {
		t.Fatalf("go test -run %s: %v\n%s", pattern, err, said.String())
	}
	return passed
}

// useRules adds rulesHandler to the tests of a package.
func useRules(t *testing.T, dir, name string) {
	t.Helper()
	file := filepath.Join(dir, "rules_handler.go")
	copyFile(t, "testdata/rules_handler.go", file)
	change(t, file, edit{"package conversion\n", "package " + name + "\n"})
}

// edit replaces a text that a file has once.
type edit struct{ old, new string }

func change(t *testing.T, file string, edits ...edit) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for _, e := range edits {
		if n := strings.Count(text, e.old); n != 1 {
			t.Fatalf("%s has %d times, not once, %q", file, n, e.old)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// freePort returns a port that nobody listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serveRules returns an address that takes a definition, and answers with the address
// at which objects of it are converted.
func serveRules(t *testing.T) (url string, asked *atomic.Int64) {
	t.Helper()
	asked = new(atomic.Int64)
	table := &Table{}
	handler, err := New(Config{Table: table, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/convert/", func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		handler.ServeHTTP(w, r)
	})
	mux.HandleFunc("POST /{$}", func(w http.ResponseWriter, r *http.Request) {
		set, err := compileFor(t, r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		table.Hold("tests", []*conversion.Set{set})
		io.WriteString(w, server.URL+conversion.Path("tests", set.Name(), set.Digest()))
	})
	return server.URL, asked
}

func compileFor(t *testing.T, body io.Reader) (*conversion.Set, error) {
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	crd, err := conversion.Decode(text)
	if err != nil {
		return nil, err
	}
	var named struct{ Metadata struct{ Name string } }
	if err := json.Unmarshal(text, &named); err != nil {
		return nil, err
	}
	rules, ok := kubernetesRules[named.Metadata.Name]
	if !ok {
		return nil, fmt.Errorf("no rules for %q", named.Metadata.Name)
	}
	doc := conversion.Document{Origin: manifest.Origin{File: "rules.yaml", Line: 1}, Tree: manifesttest.Tree(t, rules)}
	return conversion.Compile(crd, []conversion.Document{doc})
}

// etcdServes is where etcd says which port it got.
var etcdServes = regexp.MustCompile(`"serving client traffic insecurely.*"address":"([^"]+)"`)

// runEtcd runs the etcd that devcluster has, without TLS, and returns its address.
func runEtcd(t *testing.T) (url string) {
	t.Helper()
	dir := t.TempDir()
	build := upstream.Command(t, "go", "build", "-o", dir+"/etcd", "go.etcd.io/etcd/server/v3")
	build.Dir = "../../cmd/devcluster"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	log, err := os.Create(dir + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := upstream.Command(t, dir+"/etcd", "--data-dir", dir+"/data", "--listen-client-urls", "http://127.0.0.1:0",
		"--advertise-client-urls", "http://127.0.0.111:0", "--listen-peer-urls", "http://127.0.0.1:0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { <-ended }) // with the test
	for deadline := time.After(time.Minute); ; {
		text, err := os.ReadFile(log.Name())
		if err != nil {
			t.Fatal(err)
		}
		if m := etcdServes.FindSubmatch(text); m != nil {
			return "http://" + string(m[1])
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("etcd ended: %v\n%s", err, text)
		case <-deadline:
			t.Fatal("etcd does not listen")
		case <-time.After(50 * time.Millisecond):
		}
	}
}
