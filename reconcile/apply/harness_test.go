package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) {
	os.Setenv("KUBECTL_APPLYSET", "true") // kubectl's switch for what TestKubectl… tries
	os.Exit(devcluster.Main(m))
}

// requests records the requests to the API server.
type requests struct {
	mu   sync.Mutex
	list []string
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		r.mu.Lock()
		line := req.Method + " " + req.URL.Path
		if req.URL.Query().Get("watch") != "" {
			line = "WATCH " + req.URL.Path
		}
		if req.URL.Query().Has("dryRun") {
			line += " (dry run)"
		}
		r.list = append(r.list, line)
		r.mu.Unlock()
		return next.RoundTrip(req)
	})
}

// take returns the requests since the last call.
func (r *requests) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.list
	r.list = nil
	return list
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// bed is a registered cluster of a test's own: an inventory of its own, in a
// control plane that all tests share.
type bed struct {
	t        *testing.T
	name     string
	cluster  *kube.Client
	applier  *apply.Applier
	poll     time.Duration // of the applier
	requests requests
}

func newBed(t *testing.T) *bed {
	t.Helper()
	t.Parallel()
	return newBedSerial(t)
}

func newBedSerial(t *testing.T) *bed {
	t.Helper()
	b := &bed{t: t, name: strings.ToLower(strings.NewReplacer("/", "-", "_", "-", ",", "").Replace(t.Name()))}
	b.cluster = b.connect(b.name, b.requests.wrap)
	b.restart()
	return b
}

var discard = slog.New(slog.DiscardHandler)

func (b *bed) connect(name string, wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
	b.t.Helper()
	return b.connectAs(name, nil, wrap)
}

func (b *bed) connectAs(name string, sa *kube.ServiceAccount, wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
	b.t.Helper()
	return b.connectWith(kube.Config{Name: name, ServiceAccount: sa, WrapTransport: wrap})
}

func (b *bed) connectWith(config kube.Config) *kube.Client {
	b.t.Helper()
	planes := devcluster.Start(b.t, "apply")
	var err error
	if config.Kubeconfig, err = os.ReadFile(planes.Kubeconfig("apply")); err != nil {
		b.t.Fatal(err)
	}
	c, err := kube.New(config)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(c.Close)
	return c
}

var testFleet = apply.Fleet{Name: "git.example.org/fleet#main"}

// restart replaces the applier by a new one, which remembers nothing.
func (b *bed) restart() {
	a, err := apply.New(apply.Config{Cluster: b.cluster, Fleet: testFleet, Log: discard, Poll: b.poll})
	if err != nil {
		b.t.Fatal(err)
	}
	b.applier = a
}

// set decodes manifests; $NAME in them is the bed's name.
func (b *bed) set(text string) *manifest.Set {
	b.t.Helper()
	return manifesttest.Set(b.t, strings.ReplaceAll(text, "$NAME", b.name))
}

func (b *bed) plan(set *manifest.Set, opts apply.PlanOptions) *plan.Plan {
	b.t.Helper()
	p, err := b.applier.Plan(b.t.Context(), set, opts)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// apply plans and applies, and returns both as lines.
func (b *bed) apply(set *manifest.Set) (steps, results []string) {
	b.t.Helper()
	p := b.plan(set, apply.PlanOptions{})
	steps = b.steps(p)
	return steps, b.results(b.execute(p))
}

// execute executes a plan.
func (b *bed) execute(p *plan.Plan) *apply.Report {
	b.t.Helper()
	r, err := b.applier.Apply(b.t.Context(), p)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// applied applies objects without a failure; then a second pass changes nothing.
func (b *bed) applied(set *manifest.Set) {
	b.t.Helper()
	_, results := b.apply(set)
	b.wantNothing("results", results)
	b.settled(set)
}

// steps lists a plan's steps but for unchanged ones.
func (b *bed) steps(p *plan.Plan) []string {
	var lines []string
	for _, s := range p.Steps {
		if s.Action != plan.Unchanged {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s", s.Action, b.short(s.ID.String()), b.short(s.Reason))))
		}
	}
	return lines
}

// results lists the results that are not Done or Left.
func (b *bed) results(r *apply.Report) []string {
	var lines []string
	for _, r := range r.Results {
		if r.Outcome == apply.Done || r.Outcome == apply.Left {
			continue
		}
		why := r.Reason
		if r.Err != nil {
			why = r.Err.Error()
		}
		lines = append(lines, fmt.Sprintf("%s %s: %s", r.Outcome, b.short(r.Step.ID.String()), b.short(why)))
	}
	return lines
}

func (b *bed) short(s string) string { return strings.ReplaceAll(s, b.name, "$NAME") }

// as applies an object as another field manager does.
func (b *bed) as(manager, object string) {
	b.t.Helper()
	o := b.set(object).All()[0]
	b.raw(http.MethodPatch, o, "fieldManager="+manager+"&force=true", "application/apply-patch+yaml", o.AppendJSON(nil))
}

// edit changes an object as kubectl edit and kubectl patch do.
func (b *bed) edit(manager, object, patch string) {
	b.t.Helper()
	b.raw(http.MethodPatch, b.set(object).All()[0], "fieldManager="+manager, "application/merge-patch+json", []byte(patch))
}

func (b *bed) patch(manager, object, contentType, patch string) {
	b.t.Helper()
	b.raw(http.MethodPatch, b.set(object).All()[0], "fieldManager="+manager, contentType, []byte(patch))
}

func (b *bed) delete(object string) {
	b.t.Helper()
	b.raw(http.MethodDelete, b.set(object).All()[0], "", "", nil)
}

// raw sends a request past everything that is tested here, and returns the
// object that is answered.
func (b *bed) raw(method string, o *manifest.Object, query, contentType string, body []byte) map[string]any {
	b.t.Helper()
	return b.rawAt(method, o, "", query, contentType, body)
}

// rawAt is raw for a subresource, "/status".
func (b *bed) rawAt(method string, o *manifest.Object, subresource, query, contentType string, body []byte) map[string]any {
	b.t.Helper()
	code, answer := b.send(method, o, subresource, query, contentType, body)
	if code >= 400 {
		b.t.Fatalf("%s %s: %d %v", method, o.ID(), code, answer["message"])
	}
	return answer
}

func (b *bed) send(method string, o *manifest.Object, subresource, query, contentType string, body []byte) (int, map[string]any) {
	b.t.Helper()
	typ, err := b.cluster.Type(b.t.Context(), o.APIVersion(), o.ID().Kind)
	if err != nil {
		b.t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", devcluster.Start(b.t, "apply").Kubeconfig("apply"))
	if err != nil {
		b.t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		b.t.Fatal(err)
	}
	path := "/apis/" + o.APIVersion()
	if typ.Group == "" {
		path = "/api/v1"
	}
	if o.ID().Namespace != "" {
		path += "/namespaces/" + o.ID().Namespace
	}
	path += "/" + typ.Resource
	if method != http.MethodPost || subresource != "" {
		path += "/" + o.ID().Name + subresource
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, config.Host+path+"?"+query, bytes.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// get reads an object, nil if it is not there.
func (b *bed) get(object string) map[string]any {
	b.t.Helper()
	code, answer := b.send(http.MethodGet, b.set(object).All()[0], "", "", "", nil)
	switch {
	case code == http.StatusNotFound:
		return nil
	case code >= 400:
		b.t.Fatalf("get: %d %v", code, answer["message"])
	}
	return answer
}

func (b *bed) wantNothing(what string, lines []string) {
	b.t.Helper()
	if len(lines) > 0 {
		b.t.Fatalf("%s: want nothing, have\n%s", what, strings.Join(lines, "\n"))
	}
}

func (b *bed) want(what string, have []string, want ...string) {
	b.t.Helper()
	if !slices.Equal(have, want) {
		b.t.Fatalf("%s: have\n\t%s\nwant\n\t%s", what, strings.Join(have, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// settled checks that a second pass changes nothing, warm and after a restart,
// and that neither writes.
func (b *bed) settled(set *manifest.Set) {
	b.t.Helper()
	for _, when := range []string{"warm", "after a restart"} {
		b.requests.take()
		steps, results := b.apply(set)
		b.wantNothing(when+", steps", steps)
		b.wantNothing(when+", results", results)
		for _, r := range b.requests.take() {
			if !strings.HasPrefix(r, "GET ") && !strings.HasSuffix(r, "(dry run)") {
				b.t.Errorf("%s: a pass over unchanged objects sent %s", when, r)
			}
		}
		b.restart()
	}
}

// eventually waits for something that a controller does.
func eventually(t *testing.T, what string, done func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// serves waits until the cluster serves a kind; $NAME in the group is the bed's name.
func (b *bed) serves(group, kind string) {
	b.t.Helper()
	eventually(b.t, kind+" is served", func(ctx context.Context) bool {
		b.cluster.Refresh()
		_, err := b.cluster.Kind(ctx, strings.ReplaceAll(group, "$NAME", b.name), kind)
		return err == nil
	})
}

// sent says that a request was sent, and leaves the record as it is.
func (b *bed) sent(request string) bool {
	b.requests.mu.Lock()
	defer b.requests.mu.Unlock()
	return slices.Contains(b.requests.list, request)
}

// The annotations of an inventory.
const (
	kinds      = "applyset.kubernetes.io/contains-group-kinds"
	namespaces = "applyset.kubernetes.io/additional-namespaces"
)

// parent reads the inventory's annotations.
func (b *bed) parent() map[string]string {
	b.t.Helper()
	all := make(map[string]string)
	meta, _ := b.get(parentOf(b))["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	for k, v := range annotations {
		all[k] = v.(string)
	}
	return all
}

func parentOf(b *bed) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: inventory-$NAME, namespace: gitopsd-system}}"
}

// cm is a ConfigMap of the bed's namespace.
func cm(name string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: $NAME}}"
}

// writes lists the requests since the last look that were no reads or dry runs,
// by resource and name.
func (b *bed) writes() []string {
	var lines []string
	for _, r := range b.requests.take() {
		method, path, _ := strings.Cut(r, " ")
		if method == http.MethodGet || strings.HasSuffix(r, "(dry run)") {
			continue
		}
		parts := strings.Split(path, "/")
		lines = append(lines, b.short(method+" "+strings.Join(parts[len(parts)-2:], "/")))
	}
	slices.Sort(lines) // those of one stage are sent together
	return lines
}
