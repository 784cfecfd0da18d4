package target

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd/api"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// bed is a home with its controller, and a published cluster. Each test has a namespace of
// its own, and a registry. Only one runs at a time: a controller takes care of the whole
// home.
type bed struct {
	*testing.T
	hub, prod *kube.Client
	team      string
	home      *home.Home

	log   await.Log
	mu    sync.Mutex
	told  string
	clock atomic.Int64 // added to the time, in nanoseconds
	// frozen is the time without clock; nil for the machine's.
	frozen atomic.Pointer[time.Time]
	phase  atomic.Value
	// suspended reports whether the registry suspends prod.
	suspended bool
	// requests counts those that the controller sent to the home.
	requests atomic.Int64
	// refuses has connections to published clusters fail. refused counts them, and unbounded those that might
	// have taken longer than renewLimit.
	refuses            atomic.Bool
	refused, unbounded atomic.Int64
	server             atomic.Value
	// entered, if not nil, is called once after a registration was read.
	entered atomic.Pointer[func()]
	// reach are the addresses that connections may name.
	reach []string
	stop  func()
}

var definitions = sync.OnceValue(func() error {
	all, err := target.Definitions()
	if err != nil {
		return err
	}
	c, err := connect("hub")
	if err != nil {
		return err
	}
	defer c.Close()
	for _, o := range all {
		if err := apply(context.Background(), c, o); err != nil {
			return err
		}
	}
	for range 300 { // until the kinds are served
		if _, err = c.Kind(context.Background(), target.Group, target.Target.Kind); err == nil {
			return nil
		}
		c.Forget(target.Group)
		<-time.After(100 * time.Millisecond)
	}
	return err
})

var planes *devcluster.ControlPlanes

func connect(name string) (*kube.Client, error) {
	file, err := os.ReadFile(planes.Kubeconfig(name))
	if err != nil {
		return nil, err
	}
	return kube.New(kube.Config{Name: name, Kubeconfig: file})
}

func apply(ctx context.Context, c *kube.Client, o *manifest.Object) error {
	t, err := c.Type(ctx, o.APIVersion(), o.ID().Kind)
	if err == nil {
		_, err = c.Apply(ctx, t, o.ID(), o.AppendJSON(nil), kube.ApplyOptions{})
	}
	return err
}

func newBed(t *testing.T) *bed {
	t.Helper()
	planes = devcluster.Start(t, "hub", "prod")
	if err := definitions(); err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, team: strings.ToLower(t.Name()), reach: []string{"127.0.0.0/8"}}
	var err error
	if b.hub, err = connect("hub"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.hub.Close)
	if b.prod, err = connect("prod"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.prod.Close)
	b.phase.Store(status.Ready)
	b.apply(b.hub, "{apiVersion: v1, kind: Namespace, metadata: {name: TEAM}}")
	b.apply(b.prod, "{apiVersion: v1, kind: Namespace, metadata: {name: gitopsd-system}}")
	return b
}

// run runs the controller with a registry in which prod has these publications.
func (b *bed) run(publish string) {
	b.Helper()
	reach, err := kubeconfig.ParseReach(b.reach)
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Config{Clusters: b, Reach: reach, Now: b.now})
	if err != nil {
		b.Fatal(err)
	}
	file, err := os.ReadFile(planes.Kubeconfig("hub"))
	if err != nil {
		b.Fatal(err)
	}
	client, err := kube.New(kube.Config{Name: "hub", Kubeconfig: file, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return &counter{next, &b.requests}
	}})
	if err != nil {
		b.Fatal(err)
	}
	b.home, err = home.New(home.Config{Client: client, Controllers: []home.Controller{c}, Tell: b.tell, Log: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		b.Fatal(err)
	}
	b.publish(publish)
	ctx, cancel := context.WithCancel(b.Context())
	var ran sync.WaitGroup
	ran.Go(func() { b.home.Run(ctx) })
	b.stop = func() {
		cancel()
		ran.Wait()
	}
	b.Cleanup(b.stop)
}

func (b *bed) now() time.Time {
	now := time.Now()
	if at := b.frozen.Load(); at != nil {
		now = *at
	}
	return now.Add(time.Duration(b.clock.Load()))
}

// counter counts requests but for watches.
type counter struct {
	next     http.RoundTripper
	requests *atomic.Int64
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Get("watch") == "" {
		c.requests.Add(1)
	}
	return c.next.RoundTrip(r)
}

// tell takes what is reported.
func (b *bed) tell(all []problem.Problem) {
	var lines []string
	for _, p := range all {
		lines = append(lines, p.String())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = strings.Join(lines, "\n")
}

func (b *bed) reported() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.told
}

// publish gives the home a registry, and prod the accounts that it asks for.
func (b *bed) publish(publish string) {
	b.Helper()
	text := strings.ReplaceAll(`
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: hub}
spec: {path: hub, kubeconfig: {file: hub}}
---
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: prod}
spec: {path: prod, kubeconfig: {file: prod}, publish: [`+publish+`]}
`, "TEAM", b.team)
	if b.suspended {
		text = strings.Replace(text, "path: prod", "suspend: true, path: prod", 1)
	}
	r, err := clusters.Parse("clusters.yaml", []byte(text))
	if err != nil {
		b.Fatal(err)
	}
	prod, _ := r.Get("prod")
	for _, p := range prod.Spec.Publish {
		objects, err := target.Grant(target.Publication{Home: p.Cluster, Cluster: "prod", Namespace: p.Namespace, Role: p.Role})
		if err != nil {
			b.Fatal(err)
		}
		for _, o := range objects {
			if err := apply(b.Context(), b.prod, o); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.home.Set(home.Fleet{Registry: r, State: func(string) (status.Phase, string) { return b.phase.Load().(status.Phase), "" }})
}

func (b *bed) Connect(ctx context.Context, c clusters.Cluster) (*kube.Client, error) {
	if b.refuses.Load() {
		b.refused.Add(1)
		if until, ok := ctx.Deadline(); !ok || time.Until(until) > renewLimit {
			b.unbounded.Add(1)
		}
		return nil, errors.New("no credentials today")
	}
	return connect(c.Name)
}

func (b *bed) Entry(_ context.Context, c clusters.Cluster) (*kubeconfig.Entry, error) {
	file, err := os.ReadFile(planes.Kubeconfig(c.Name))
	if err != nil {
		return nil, err
	}
	entry, err := kubeconfig.Parse(file, "", kubeconfig.Restricted)
	if server := b.moved(); server != "" && err == nil {
		entry.Cluster.Server = server
	}
	if entered := b.entered.Swap(nil); entered != nil {
		(*entered)()
	}
	return entry, err
}

func (b *bed) Version(clusters.Cluster) (string, bool) { return "1" + b.moved(), true }

// moved is another address of the published clusters, empty for none.
func (b *bed) moved() string {
	server, _ := b.server.Load().(string)
	return server
}

// apply applies an object; TEAM in it is the test's namespace.
func (b *bed) apply(c *kube.Client, text string) {
	b.Helper()
	o := manifesttest.Object(b.T, strings.ReplaceAll(text, "TEAM", b.team))
	if err := apply(b.Context(), c, o); err != nil {
		b.Fatal(err)
	}
}

// makes makes a target with this spec.
func (b *bed) makes(name, spec string) {
	b.Helper()
	b.apply(b.hub, fmt.Sprintf("{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: %s, namespace: TEAM}, spec: %s}", name, spec))
}

// eventually waits until something is so.
func (b *bed) eventually(what string, so func() bool) {
	b.Helper()
	if !await.Soon(so) {
		b.Fatalf("%s: not after a minute; %q is reported, and the log is\n%s", what, b.reported(), &b.log)
	}
}

// shows waits until a target has a condition with this reason, and returns the target.
func (b *bed) shows(name, reason string) map[string]any {
	b.Helper()
	var found map[string]any
	b.eventually(name+" is "+reason, func() bool {
		var err error
		if found, _, err = b.hub.Get(b.Context(), targetType, targets.ID(b.team, name)); err != nil {
			b.Fatal(err)
		}
		return shown(found).reason == reason
	})
	return found
}

// secret returns a Secret of the team's, nil if there is none.
func (b *bed) secret(name string) map[string]any {
	b.Helper()
	found, _, err := b.hub.Get(b.Context(), secretType, manifest.Secret.ID(b.team, name))
	if err != nil && kube.ClassOf(err) != kube.NotFound {
		b.Fatal(err)
	}
	return found
}

// uses connects with a Secret of the team's.
func (b *bed) uses(name string) *kube.Client {
	b.Helper()
	c, err := connection.ParseSecret(b.secret(name), kubeconfig.Restricted)
	if err != nil {
		b.Fatal(err)
	}
	file, err := c.Kubeconfig()
	if err != nil {
		b.Fatal(err)
	}
	client, err := kube.New(kube.Config{Name: "target", Kubeconfig: file})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(client.Close)
	return client
}

const view = "{cluster: hub, namespace: TEAM, role: view}"

// A team gets a connection with the rights that were granted to it, and no others. What
// happens to the Secret is put right; what was withdrawn is gone.
func TestConnection(t *testing.T) {
	b := newBed(t)
	b.run(view)
	b.makes("prod", "{clusterRef: {kind: GKECluster, apiVersion: compute.gcp.crossplane.io/v1alpha3, name: prod}}")
	made := b.shows("prod", available)
	if ref := manifest.Text(made, "status", "connectionSecretRef", "name"); ref != "prod-connection" {
		t.Errorf("the status refers to Secret %q", ref)
	}
	b.eventually("the reference", func() bool {
		return manifest.Text(b.shows("prod", available), "spec", "connectionSecretRef", "name") == "prod-connection"
	})
	c := b.uses("prod-connection")
	if _, err := c.GetMetadata(t.Context(), kube.Type{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true}, manifest.ConfigMap.ID("default", "kube-root-ca.crt")); err != nil {
		t.Errorf("the role allows to read ConfigMaps: %v", err)
	}
	if _, err := c.GetMetadata(t.Context(), secretType, manifest.Secret.ID("default", "x")); kube.ClassOf(err) != kube.Forbidden {
		t.Errorf("the role does not allow to read Secrets: %v", err)
	}
	first := b.secret("prod-connection")

	// Somebody deletes it, and somebody garbles it.
	if _, _, err := b.hub.Delete(t.Context(), secretType, manifest.Secret.ID(b.team, "prod-connection"), manifest.Text(first, "metadata", "uid")); err != nil {
		t.Fatal(err)
	}
	b.eventually("the Secret is back", func() bool { return b.secret("prod-connection") != nil })
	garbled := b.secret("prod-connection")
	if err := b.hub.Patch(t.Context(), secretType, manifest.Secret.ID(b.team, "prod-connection"), map[string]any{"data": map[string]any{"endpoint": "aHR0cHM6Ly9ldmls", "more": "eA=="}}, manifest.Text(garbled, "metadata", "resourceVersion")); err != nil {
		t.Fatal(err)
	}
	b.eventually("the Secret is right again", func() bool {
		s := b.secret("prod-connection")
		return manifest.Text(s, "data", "endpoint") == manifest.Text(first, "data", "endpoint") && manifest.Text(s, "data", "more") == ""
	})

	// What is no token does not stay.
	garbled = b.secret("prod-connection")
	if err := b.hub.Patch(t.Context(), secretType, manifest.Secret.ID(b.team, "prod-connection"), map[string]any{"data": map[string]any{"token": "eA=="}}, manifest.Text(garbled, "metadata", "resourceVersion")); err != nil {
		t.Fatal(err)
	}
	b.eventually("a token again", func() bool { return manifest.Text(b.secret("prod-connection"), "data", "token") != "eA==" })
	b.uses("prod-connection")

	// The publication goes, and with it the connection.
	b.publish("")
	b.shows("prod", clusterNotPublished)
	if b.secret("prod-connection") != nil {
		t.Error("the connection is still there")
	}
	b.stop()
	if strings.Contains(b.log.String(), manifest.Text(first, "data", "token")) {
		t.Error("the log has a token")
	}
}

// A token is replaced when a third of its time is left, and one that is there is kept by
// the next process.
func TestRotation(t *testing.T) {
	b := newBed(t)
	b.run(view)
	b.makes("prod", "{clusterRef: {name: prod}}")
	b.shows("prod", available)
	token := func() string { return manifest.Text(b.secret("prod-connection"), "data", "token") }
	first := token()
	b.stop()

	b.phase.Store(status.Pending) // as after a start
	b.run(view)
	b.makes("late", "{clusterRef: {name: prod}}")
	b.shows("late", clusterNotReady)
	if token() != first {
		t.Error("the next process has replaced the token")
	}
	b.phase.Store(status.Ready)
	b.clock.Store(int64(41 * time.Minute))
	b.publish(view)
	b.eventually("a new token", func() bool { return token() != first })
	b.uses("prod-connection")
	b.shows("late", available)

	// So is that of a suspended cluster.
	first, b.suspended = token(), true
	b.phase.Store(status.Suspended)
	b.publish(view)
	b.shows("prod", clusterSuspended)
	b.makes("later", "{clusterRef: {name: prod}}")
	b.shows("later", clusterSuspended)
	b.clock.Store(int64(55 * time.Minute))
	b.publish(view)
	b.eventually("a new token of a suspended cluster", func() bool { return token() != first })
	b.uses("prod-connection")
	b.shows("prod", clusterSuspended)
	if b.secret("later-connection") != nil {
		t.Error("a suspended cluster is published anew")
	}
	b.suspended = false
	b.phase.Store(status.Ready)
	b.publish(view)
	b.shows("later", available)

	// The cluster is registered at another address: it may be another cluster, which gets
	// no token of the first. Soon after that address was read there is yet another.
	second := token()
	last := "https://yet-another.example:6443"
	moves := func() { b.server.Store(last) }
	b.entered.Store(&moves)
	b.server.Store("https://another.example:6443")
	b.publish(view)
	for _, name := range []string{"prod", "late", "later"} {
		b.eventually("the last address of "+name, func() bool {
			return manifest.Text(b.secret(name+"-connection"), "data", "endpoint") == base64.StdEncoding.EncodeToString([]byte(last))
		})
	}
	if token() == second {
		t.Error("the token of the first cluster is sent to the second")
	}
}

// A token is replaced early enough by either clock, and a connection hands out no more of
// the registration than it needs.
func TestGrant(t *testing.T) {
	now := time.Unix(1e9, 0)
	p := &pass{Controller: &Controller{cfg: Config{Lifetime: time.Hour}}, now: now}
	for _, tt := range []struct{ from, until, want time.Duration }{
		{0, time.Hour, 40 * time.Minute},
		{0, 15 * time.Minute, 10 * time.Minute},
		{0, 4 * time.Hour, 40 * time.Minute}, // this machine is three hours behind
		{-30 * time.Minute, 30 * time.Minute, 10 * time.Minute},
	} {
		if have := p.renewal(now.Add(tt.from), now.Add(tt.until)).Sub(now); have != tt.want {
			t.Errorf("from %s until %s: renewed after %s, want %s", tt.from, tt.until, have, tt.want)
		}
	}
	for _, text := range []string{"", "x", "a.b.c", "a.e30.c"} {
		if expires, renew := p.validity(text); expires.After(now) || renew.After(now) || renew.IsZero() {
			t.Errorf("token %q: until %s, renewed %s", text, expires, renew)
		}
	}
	c := &api.Cluster{Server: "https://x", ProxyURL: "http://daemon:hunter2@proxy"}
	if err := withoutCredentials(c); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("credentials of a proxy: %v", err)
	}
	c.ProxyURL = "http://proxy"
	if err := withoutCredentials(c); err != nil {
		t.Error(err)
	}
	c.Extensions = map[string]runtime.Object{"x": &runtime.Unknown{Raw: []byte(`"hunter2"`)}}
	if file, err := connection.New(c, &api.AuthInfo{Token: "t"}).Kubeconfig(); err != nil || strings.Contains(string(file), "hunter2") {
		t.Errorf("extensions: %s %v", file, err)
	}
}

// A target that cannot be connected says why, and is tried again; one that is keeps what it
// has until that expires.
func TestFailure(t *testing.T) {
	b := newBed(t)
	b.run(view)
	b.makes("early", "{clusterRef: {name: prod}}")
	b.shows("early", available)
	b.refuses.Store(true)
	b.makes("late", "{clusterRef: {name: prod}}")
	if message := shown(b.shows("late", connectionFailed)).message; message != "cluster prod: no credentials today" {
		t.Errorf("the message is %q", message)
	}
	b.clock.Store(int64(41 * time.Minute)) // to be replaced, and good for some time
	b.publish(view)
	b.eventually("a failure is told", func() bool {
		return strings.Contains(b.reported(), "kubernetestarget.workload.crossplane.io/testfailure/early: cluster prod: no credentials today")
	})
	b.shows("early", available)
	b.refuses.Store(false)
	b.shows("late", available)
	b.eventually("all is well", func() bool { return !strings.Contains(b.reported(), "testfailure") })
}

// A suspended cluster may be switched off. It is asked for new tokens rarely and briefly, and the condition stays.
func TestSuspendedFailure(t *testing.T) {
	b := newBed(t)
	begun := time.Now().Truncate(time.Minute)
	b.frozen.Store(&begun)
	b.run(view)
	b.makes("prod", "{clusterRef: {name: prod}}")
	b.shows("prod", available)
	b.suspended = true
	b.phase.Store(status.Suspended)
	b.publish(view)
	b.shows("prod", clusterSuspended)
	passes := 0
	// at has some passes at a time, and checks how often the cluster was asked until then.
	at := func(after time.Duration, want int64) {
		t.Helper()
		b.clock.Store(int64(after))
		b.publish(view)
		for range 2 { // the first may be new in a pass that began before
			passes++
			name := fmt.Sprint("other-", passes)
			b.makes(name, "{clusterRef: {name: other}}")
			b.shows(name, clusterNotRegistered)
		}
		if have := b.refused.Load(); have != want {
			t.Errorf("after %s it was asked %d times, want %d", after, have, want)
		}
		b.shows("prod", clusterSuspended)
	}
	b.refuses.Store(true)
	b.clock.Store(int64(41 * time.Minute)) // to be replaced, and good for some time
	b.publish(view)
	told := "/" + b.team + "/prod: cluster prod: no credentials today"
	b.eventually("the failure is told", func() bool { return strings.Contains(b.reported(), told) })
	if reason := b.shows("prod", clusterSuspended); shown(reason).ready {
		t.Error("a suspended cluster is available")
	}
	at(41*time.Minute+renewPause, 1)
	if !strings.Contains(b.reported(), told) {
		t.Errorf("the failure is told no more: %s", b.reported())
	}
	at(45*time.Minute, 2)
	at(50*time.Minute, 3)
	if b.unbounded.Load() > 0 {
		t.Error("the cluster is waited for as long as it takes")
	}
	if strings.Contains(b.log.String(), connectionFailed) {
		t.Error("the target was shown as failed")
	}

	// As soon as it is not suspended it is asked again.
	b.refuses.Store(false)
	b.suspended = false
	b.phase.Store(status.Ready)
	before := manifest.Text(b.secret("prod-connection"), "data", "token")
	b.publish(view)
	b.shows("prod", available)
	b.eventually("a new token", func() bool { return manifest.Text(b.secret("prod-connection"), "data", "token") != before })
	b.eventually("all is well", func() bool { return !strings.Contains(b.reported(), told) })
}

// What a target names itself takes precedence, and is only used.
func TestBrought(t *testing.T) {
	b := newBed(t)
	b.run(view)
	file, err := os.ReadFile(planes.Kubeconfig("prod"))
	if err != nil {
		t.Fatal(err)
	}
	b.makes("mine", "{clusterRef: {name: prod}, connectionSecretRef: {name: mine}}")
	b.shows("mine", secretNotFound)
	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: mine, namespace: TEAM}, data: {kubeconfig: "+base64.StdEncoding.EncodeToString(file)+"}}")
	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: bad, namespace: TEAM}, stringData: {endpoint: https://x.example, token: hunter2, clientCert: hunter2}}")
	b.makes("bad", "{connectionSecretRef: {name: bad}}")
	message := shown(b.shows("bad", secretRefused)).message
	if !strings.Contains(message, "it has client-certificate-data but no client-key-data") || strings.Contains(message, "hunter2") {
		t.Errorf("the message is %q", message)
	}
	b.shows("mine", available)
	if b.secret("mine-connection") != nil {
		t.Error("a connection was written beside the one that was brought")
	}
	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: metadata, namespace: TEAM}, stringData: {endpoint: https://169.254.169.254, token: hunter2}}")
	b.makes("metadata", "{connectionSecretRef: {name: metadata}}")
	if message := shown(b.shows("metadata", secretRefused)).message; !strings.Contains(message, "address 169.254.169.254 is refused") {
		t.Errorf("the message is %q", message)
	}

	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: ours, namespace: TEAM, labels: {gitopsd.dev/cluster: prod}}, stringData: {endpoint: https://x.example, token: hunter2}}")
	b.makes("ours", "{connectionSecretRef: {name: ours}}")
	if message := shown(b.shows("ours", secretRefused)).message; !strings.Contains(message, "the daemon's own") {
		t.Errorf("the message is %q", message)
	}

	// Secrets that do not change are not read, however often their targets are looked at.
	b.clock.Store(int64(10 * time.Minute))
	before := b.requests.Load()
	b.publish(strings.Replace(view, "TEAM", "another", 1))
	b.makes("again", "{connectionSecretRef: {name: bad}}")
	b.shows("again", secretRefused)
	if sent := b.requests.Load() - before; sent > 3 { // to read the new target and its Secret, and to write its condition
		t.Errorf("%d requests were sent for one new target", sent)
	}
	// One that is replaced by another, or goes, is noticed by itself.
	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: bad, namespace: TEAM}, stringData: {endpoint: https://x.example, token: hunter2, clientCert: hunter2, clientKey: hunter2}}")
	b.shows("bad", available)
	b.shows("again", available)
	if _, _, err := b.hub.Delete(t.Context(), secretType, manifest.Secret.ID(b.team, "bad"), manifest.Text(b.secret("bad"), "metadata", "uid")); err != nil {
		t.Fatal(err)
	}
	b.shows("bad", secretNotFound)
	b.publish(view)

	// The name of our Secret is somebody else's.
	b.apply(b.hub, "{apiVersion: v1, kind: Secret, metadata: {name: prod-connection, namespace: TEAM}, stringData: {mine: something}}")
	b.makes("prod", "{clusterRef: {name: prod}}")
	b.shows("prod", secretTaken)
	before = b.requests.Load()
	b.makes("bring", "{connectionSecretRef: {name: bad}}")
	b.shows("bring", secretNotFound)
	if sent := b.requests.Load() - before; sent > 2 { // to read the new target, and to write its condition
		t.Errorf("%d requests were sent for one new target beside one that waits", sent)
	}
	if manifest.Text(b.secret("prod-connection"), "data", "mine") == "" {
		t.Error("somebody else's Secret was overwritten")
	}
}

// A team can hold up the deletion of its target, and does not keep the connection by that;
// and it can write the target's status, which is put right.
func TestHeld(t *testing.T) {
	b := newBed(t)
	b.run(view)
	b.apply(b.hub, "{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: prod, namespace: TEAM, finalizers: [team.example/keep]}, spec: {clusterRef: {name: prod}}}")
	uid := manifest.Text(b.shows("prod", available), "metadata", "uid")
	b.makes("other", "{clusterRef: {name: other}}")
	b.shows("other", clusterNotRegistered)
	lie := `{"apiVersion":"workload.crossplane.io/v1alpha1","kind":"KubernetesTarget","metadata":{"name":"other","namespace":"` + b.team + `"},
		"status":{"conditions":[{"type":"Ready","status":"True","reason":"Lie","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`
	if _, err := b.hub.Apply(t.Context(), targetType, targets.ID(b.team, "other"), []byte(lie), kube.ApplyOptions{Status: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	b.shows("other", clusterNotRegistered)

	if _, _, err := b.hub.Delete(t.Context(), targetType, targets.ID(b.team, "prod"), uid); err != nil {
		t.Fatal(err)
	}
	b.publish("")
	b.eventually("the connection is gone", func() bool { return b.secret("prod-connection") == nil })
	b.apply(b.hub, "{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: prod, namespace: TEAM, finalizers: []}, spec: {clusterRef: {name: prod}}}")
}

// A published cluster at an address that the daemon must not use on behalf of teams is not
// available to their applications, also after a restart. The connection is there for others.
func TestAddressRefused(t *testing.T) {
	b := newBed(t)
	b.reach = nil
	b.run(view)
	b.makes("prod", "{clusterRef: {name: prod}}")
	const want = "the connection in Secret prod-connection is not for applications: address 127.0.0.1 is refused: it is one of the machine that gitopsd runs on, or of services for it (--allow-addresses)"
	if c := shown(b.shows("prod", addressRefused)); c.ready || c.message != want || c.secret != "" {
		t.Errorf("the condition is %+v", c)
	}
	b.eventually("the report", func() bool { return strings.Contains(b.reported(), want) })
	b.uses("prod-connection")
	b.stop()

	b.reach = []string{"127.0.0.1"}
	b.run(view)
	b.shows("prod", available)
	b.stop()

	b.reach = nil
	b.run(view)
	b.shows("prod", addressRefused)
}

// The credentials of the registration are handed out where it says so.
func TestRegistered(t *testing.T) {
	b := newBed(t)
	b.run("{cluster: hub, namespace: TEAM, credentials: connection}")
	b.makes("prod", "{clusterRef: {name: prod}}")
	b.shows("prod", available)
	if _, err := b.uses("prod-connection").GetMetadata(t.Context(), secretType, manifest.Secret.ID("default", "x")); kube.ClassOf(err) != kube.NotFound {
		t.Errorf("they allow to read Secrets: %v", err)
	}
	// Another kind of credentials replaces them.
	b.publish(view)
	b.eventually("another connection", func() bool {
		return manifest.Text(b.secret("prod-connection"), "data", "clientKey") == "" && manifest.Text(b.secret("prod-connection"), "data", "token") != ""
	})
}
