package applications

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/target/placement"
	"gitopsd.dev/sources"
)

// requests are those that clients sent, but for watches.
type requests struct {
	mu   sync.Mutex
	sent []string
}

func (r *requests) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = nil
	return sent
}

// An application at rest costs no request, neither at home nor in its target's cluster.
func TestAtRest(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.put(tm.home, "{apiVersion: v1, kind: Secret, metadata: {name: sql, namespace: $TEAM}, stringData: {password: hunter2}}")
	// The controller leaves it alone, since it has no target there; this test's worker has.
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM, finalizers: [gitopsd.dev/remote-objects]}
spec:
  targetSelector: {matchLabels: {name: none}}
  resourceTemplates:
  - metadata: {name: web}
    spec:
      secrets: [{name: sql}]
      template:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: web, namespace: $TEAM-in}
        spec:
          selector: {matchLabels: {app: web}}
          template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: registry.example.org/web}]}}
`)
	tree := tm.is("web", "Pending", "", "")
	app, err := application.Read(tree)
	if err != nil {
		t.Fatal(err)
	}
	sent := new(requests)
	wrap := func(next http.RoundTripper) http.RoundTripper {
		return &requestsOf{next, sent}
	}
	at, err := kube.New(kube.Config{Name: "home", Kubeconfig: kubeconfigOf(t, "home"), WrapTransport: wrap})
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	remote := func(name string, _ map[string]any, _ *kube.ServiceAccount) (*kube.Client, error) {
		return kube.New(kube.Config{Name: name, Kubeconfig: kubeconfigOf(t, "other"), WrapTransport: wrap})
	}
	secret, err := tm.get(tm.home, manifest.Secret, tm.name, "one")
	if err != nil {
		t.Fatal(err)
	}
	meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: app.Name, Namespace: app.Namespace}}
	w := newWorker(Config{Connect: remote, Fleet: apply.Fleet{Name: "fleet"}, Turns: turn.New(1), Timeout: defaultTimeout, Mirror: time.Second},
		&home.View{Cluster: "home", Client: at, Log: slog.New(slog.DiscardHandler)}, &known{meta: meta, app: app, status: manifest.Mapping(tree, "status")})
	defer w.disconnect()
	j := &job{app: app, finalized: true, placed: app.PlacedOn("one"), decisions: true, decision: placement.Decision{Target: "one", Why: "of the test"}, targets: map[string]*target{
		"one": {name: "one", uid: "1", secret: "one", secretVersion: manifest.Text(secret, "metadata", "resourceVersion")},
	}}
	eventually(t, func() error {
		sent.take()
		w.work(t.Context(), j)
		if manifest.Text(w.status.tree(), "state") != submitted || !strings.Contains(fmt.Sprint(w.status.tree()), "readyReplicas:1") {
			return fmt.Errorf("status %v", w.status.tree())
		}
		if sent := sent.take(); len(sent) > 0 {
			return fmt.Errorf("it sends %q", sent)
		}
		return nil
	})
	// What is wrong is found all the same.
	tm.remove(tm.other, manifest.Namespace, "", tm.name+"-in")
	tm.gone(tm.other, manifest.Namespace, "", tm.name+"-in")
	eventually(t, func() error {
		select {
		case <-w.woken:
			w.rest = nil
		default:
		}
		w.work(t.Context(), j)
		_, err := tm.get(tm.other, manifest.Secret, tm.name+"-in", "web-sql")
		return err
	})
}

// requestsOf notes what goes through one transport.
type requestsOf struct {
	next http.RoundTripper
	to   *requests
}

func (r *requestsOf) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("watch") == "" {
		r.to.mu.Lock()
		r.to.sent = append(r.to.sent, req.Method+" "+req.URL.Path)
		r.to.mu.Unlock()
	}
	return r.next.RoundTrip(req)
}

// A cluster that an application has left and that is dead is asked more and more seldom while nothing
// changes, and at once for a new job. Meanwhile it is told why objects stay there.
func TestLeavesDeadCluster(t *testing.T) {
	tm := newTeam(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := redirected(kubeconfigOf(t, "other"), "https://"+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	j := &job{finalized: true, decision: placement.Decision{Target: "one", Why: "of the test"}, targets: make(map[string]*target)}
	for _, name := range []string{"one", "two"} {
		tm.target(name, "other")
		secret, err := tm.get(tm.home, manifest.Secret, tm.name, name)
		if err != nil {
			t.Fatal(err)
		}
		j.targets[name] = &target{name: name, uid: name, secret: name, secretVersion: manifest.Text(secret, "metadata", "resourceVersion")}
	}
	// The controller leaves it alone, since it has no target there; this test's worker has.
	tm.app("web", "targetSelector: {matchLabels: {name: none}}", "")
	tree := tm.is("web", "Pending", "", "")
	if j.app, err = application.Read(tree); err != nil {
		t.Fatal(err)
	}
	reach := func(name string, secret map[string]any, as *kube.ServiceAccount) (*kube.Client, error) {
		if strings.HasSuffix(name, "/two") {
			return kube.New(kube.Config{Name: name, Kubeconfig: []byte(dead)})
		}
		return connect(name, secret, as)
	}
	meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: j.app.Name, Namespace: j.app.Namespace}}
	w := newWorker(Config{Connect: reach, Fleet: apply.Fleet{Name: "fleet"}, Turns: turn.New(1), Timeout: defaultTimeout, Mirror: time.Hour},
		&home.View{Cluster: "home", Client: tm.home, Log: slog.New(slog.DiscardHandler)}, &known{meta: meta, app: j.app, status: manifest.Mapping(tree, "status")})
	defer w.disconnect()
	work := func(failures int) (again time.Duration) {
		t.Helper()
		again = w.work(t.Context(), j)
		if w.retreat.failures != failures {
			t.Fatalf("%d failures, want %d", w.retreat.failures, failures)
		}
		if told := fmt.Sprint(w.troubles()); strings.Contains(told, "target two, which it has left") != (failures > 0) {
			t.Errorf("it tells %s", told)
		}
		return again
	}
	eventually(t, func() error {
		if w.work(t.Context(), j); w.rest == nil {
			return fmt.Errorf("status %v", w.status.tree())
		}
		return nil
	})
	w.status.left = []site{{target: "two"}}
	for n := range 3 {
		w.retreat.due = time.Time{}
		if again := work(n + 1); again > pause(n+1) {
			t.Errorf("after %d failures again in %s", n+1, again)
		}
		w.retreat.due = time.Now().Add(time.Hour)
		if again := work(n + 1); again <= longestPause {
			t.Errorf("it is not due, and tried again in %s", again)
		}
	}
	w.rest = nil // as by a change in a cluster
	work(4)
	other := *j
	j = &other
	work(1)
	j = &job{app: j.app, finalized: true, decision: j.decision, targets: map[string]*target{"one": j.targets["one"]}}
	work(0)
	if len(w.status.left) > 0 {
		t.Errorf("it is still leaving %v", w.status.left)
	}
}

// An object of somebody else is in conflict, with the advice to annotate the application, which
// takes it over then.
func TestAdopt(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.put(tm.other, "{apiVersion: v1, kind: Namespace, metadata: {name: $TEAM-in}}")
	tm.put(tm.other, "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: $TEAM-in, labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: settings}}, data: {by: helm}}")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Failed", "one", "or KubernetesApplication "+tm.name+"/web with gitopsd.dev/adopt: helm/settings for all that is")
	tm.app("web", "targetRef: {name: one}", "gitopsd.dev/adopt: settings")
	tm.is("web", "Failed", "one", `KubernetesApplication `+tm.name+`/web: annotation gitopsd.dev/adopt: \"settings\" is not a source to adopt from`)
	if by := tm.settings(tm.other); by != "helm" {
		t.Errorf("without adoption, the settings are by %q", by)
	}
	tm.app("web", "targetRef: {name: one}", "gitopsd.dev/adopt: helm/settings")
	tm.is("web", "Submitted", "one", "")
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the settings are by %q", by)
	}
}

// If a connection Secret is replaced by another cluster's, the status says that the former
// cluster has objects, and nothing takes its application for deleted.
func TestClusterReplaced(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	system, err := tm.get(tm.other, manifest.Namespace, "", "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	uid := manifest.Text(system, "metadata", "uid")
	tm.target("one", "home")
	tm.is("web", "Submitted", "one", `"leftClusters":["`+uid+`"]`)
	tm.is("web", "Submitted", "one", `"type":"LeftBehind"`)
	tm.target("one", "other")
	eventually(t, func() error {
		tree, err := tm.get(tm.home, manifest.Application, tm.name, "web")
		if left := manifest.List(tree, "status", "leftClusters"); err == nil && (len(left) != 1 || left[0] == uid) {
			err = fmt.Errorf("left %v", left)
		}
		return err
	})
	// An application with errors is not applied anywhere, but it may be deleted.
	tm.put(tm.home, "{apiVersion: workload.crossplane.io/v1alpha2, kind: KubernetesApplication, metadata: {name: web, namespace: $TEAM}, spec: {targetRef: {name: one}, resourceTemplates: [{metadata: {name: A}, spec: {template: {}}}]}}")
	tm.is("web", "Failed", "one", "is not a name")
	tm.target("one", "home")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.is("web", "Deleting", "one", "target one leads to another cluster than the one that has its objects")
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the object is %q's", by)
	}
	tm.target("one", "other")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	if by := tm.settings(tm.other); by != "" {
		t.Errorf("the object outlived its application")
	}
}

// An application that moves away from a target whose Secret was replaced by another cluster's
// says that the former cluster has objects, also if it runs in that other cluster.
func TestLeftReplaced(t *testing.T) {
	tm := newTeam(t)
	system, err := tm.get(tm.other, manifest.Namespace, "", "kube-system")
	if err != nil {
		t.Fatal(err)
	}
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.put(tm.home, "{apiVersion: v1, kind: Secret, metadata: {name: one, namespace: $TEAM}, stringData: {kubeconfig: garbled}}")
	tm.is("web", "Submitted", "one", "the connection Secret one of target one")
	tm.target("two", "home")
	tm.app("web", "targetRef: {name: two}", "")
	tm.is("web", "Submitted", "two", `"leftTargetRefs":[{"cluster":"`)
	tm.target("one", "home")
	tm.is("web", "Submitted", "two", `"leftClusters":["`+manifest.Text(system, "metadata", "uid")+`"]`)
	tree := tm.is("web", "Submitted", "two", `"type":"LeftBehind"`)
	if left := manifest.List(tree, "status", "leftTargetRefs"); left != nil {
		t.Errorf("it is still leaving %v", left)
	}
	if there, here := tm.settings(tm.other), tm.settings(tm.home); there != "web" || here != "web" {
		t.Errorf("the objects are %q's and %q's", there, here)
	}
	// The target leads there again, and the application comes back.
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	eventually(t, func() error {
		tree, err := tm.get(tm.home, manifest.Application, tm.name, "web")
		if text, _ := json.Marshal(manifest.Mapping(tree, "status")); err == nil && strings.Contains(string(text), leftCondition) {
			err = fmt.Errorf("status %s", text)
		}
		return err
	})
}

// So it is noticed with an account that may read no Namespace.
func TestClusterReplacedRestricted(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	for _, c := range []*kube.Client{tm.other, tm.home} {
		tm.deployer(c, "{apiGroups: [\"\"], resources: [configmaps], verbs: [get, list, watch]}")
	}
	tm.app("web", "targetRef: {name: one}\n  serviceAccount: $TEAM-in/deployer", "")
	tree := tm.is("web", "Submitted", "one", `"inventory":"`)
	if system := manifest.Text(tree, "status", "cluster"); system != "" {
		t.Fatalf("the account may read kube-system: %s", system)
	}
	uid := manifest.Text(tree, "status", "inventory")
	tm.target("one", "home")
	tree = tm.is("web", "Submitted", "one", `"leftClusters":["`+uid+`"]`)
	if manifest.Condition(tree, leftCondition) == nil {
		t.Errorf("status %v", tree["status"])
	}
	if by := tm.settings(tm.home); by != "web" {
		t.Errorf("the object is %q's", by)
	}
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	if there, here := tm.settings(tm.other), tm.settings(tm.home); there != "web" || here != "" {
		t.Errorf("the objects are %q's and %q's", there, here)
	}
}

// Clusters are compared by what both accounts may read.
func TestIdentityDiffers(t *testing.T) {
	for _, tt := range []struct {
		was, now identity
		want     bool
	}{
		{identity{}, identity{"a", "x"}, false},
		{identity{"a", "x"}, identity{"a", "x"}, false},
		{identity{"a", "x"}, identity{"a", "y"}, false}, // the inventory was deleted, and made again
		{identity{"a", "x"}, identity{"b", "x"}, true},
		{identity{"a", "x"}, identity{"", "x"}, false},
		{identity{"a", "x"}, identity{"", "y"}, true},
		{identity{"", "x"}, identity{"b", ""}, true},
		{identity{"a", ""}, identity{"", "y"}, false}, // not known
	} {
		if differs := tt.was.differs(tt.now); differs != tt.want {
			t.Errorf("%v and %v: differs %t", tt.was, tt.now, differs)
		}
	}
}

// Who may write applications, but read no Secret, does not get at a connection by sending
// it to a cluster.
func TestConnectionSecretStays(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.target("two", "home")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetRef: {name: one}
  resourceTemplates:
  - metadata: {name: settings}
    spec:
      secrets: [{name: two}]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}}
`)
	tm.is("web", "Failed", "one", "secret/"+tm.name+"/two is the connection to target two")
	if _, err := tm.get(tm.other, manifest.Secret, tm.name+"-in", "settings-two"); err == nil {
		t.Error("the connection was copied")
	}
}

// The Secret of a cluster that is not there yet is as safe. A copy stays if its Secret becomes a
// connection, and the application says so.
func TestSecretBecomesConnection(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.put(tm.home, `
apiVersion: compute.example.org/v1
kind: Claim
metadata: {name: later, namespace: $TEAM}
spec: {writeConnectionSecretToRef: {name: claimed}}
---
{apiVersion: v1, kind: Secret, metadata: {name: claimed, namespace: $TEAM}}
---
{apiVersion: v1, kind: Secret, metadata: {name: edge-kubeconfig, namespace: $TEAM}, type: cluster.x-k8s.io/secret}
---
{apiVersion: v1, kind: Secret, metadata: {name: profile, namespace: $TEAM, labels: {x-k8s.io/cluster-profile: edge}}}
---
{apiVersion: v1, kind: Secret, metadata: {name: plain, namespace: $TEAM}}
---
{apiVersion: v1, kind: Secret, metadata: {name: sql, namespace: $TEAM}}
`)
	app := func(secret string) {
		tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: of-`+secret+`, namespace: $TEAM}
spec:
  targetRef: {name: one}
  resourceTemplates:
  - metadata: {name: of-`+secret+`}
    spec:
      secrets: [{name: sql}, {name: `+secret+`}]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: of-`+secret+`}}
`)
	}
	for secret, why := range map[string]string{"claimed": "is the connection to the cluster of claim.compute.example.org/" + tm.name + "/later", "edge-kubeconfig": "holds credentials", "profile": "holds credentials"} {
		app(secret)
		tm.is("of-"+secret, "Failed", "one", "secret/"+tm.name+"/"+secret+" "+why)
	}
	app("plain")
	tm.is("of-plain", "Submitted", "one", "")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: edge, namespace: $TEAM}
spec: {connectionSecretRef: {name: plain}}
`)
	tm.is("of-plain", "Failed", "one", "secret/"+tm.name+"/plain is the connection to target edge")
	if _, err := tm.get(tm.other, manifest.Secret, tm.name+"-in", "of-plain-plain"); err != nil {
		t.Errorf("the copy is gone: %v", err)
	}
}

// If a cluster does not accept a connection that gitopsd wrote, another is asked for, once;
// what somebody brought is left alone.
func TestDenied(t *testing.T) {
	tm := newTeam(t)
	data := keysOf(t, "other")
	denied := func(name, label string) {
		put(t, tm.home, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
				"name": name, "namespace": tm.name, "labels": map[string]any{manifest.ConnectionLabel: label}, "annotations": map[string]any{manifest.ConnectionLabel: "other token"},
			},
			"stringData": map[string]any{"endpoint": string(data["endpoint"]), "clusterCA": string(data["clusterCA"]), "token": "of nobody"},
		})
		tm.ready(name)
	}
	denied("one", "true")
	denied("two", "false")
	annotation := func(name string) string {
		secret, err := tm.get(tm.home, manifest.Secret, tm.name, name)
		if err != nil {
			t.Fatal(err)
		}
		return manifest.Text(secret, "metadata", "annotations", manifest.ConnectionLabel)
	}
	tm.app("first", "targetRef: {name: two}", "")
	tm.is("first", "Scheduled", "two", "does not accept the credentials")
	tm.app("second", "targetRef: {name: one}", "")
	tm.is("second", "Scheduled", "one", "does not accept the credentials")
	eventually(t, func() error {
		if of := annotation("one"); of != "" {
			return fmt.Errorf("it is still taken for %s", of)
		}
		return nil
	})
	if of := annotation("two"); of != "other token" {
		t.Errorf("the one that was brought is changed: %q", of)
	}
}

// A target that cannot be read keeps the applications of its own namespace from being placed, and no
// others.
func TestUnreadableTarget(t *testing.T) {
	tm := newTeam(t)
	tm.target("unreadable", "other")
	tm.target("one", "other")
	tm.app("here", "targetRef: {name: one}", "")
	eventually(t, func() error {
		if log := tm.log.String(); !strings.Contains(log, tm.name+"/unreadable") {
			return errors.New("nobody tried")
		}
		return nil
	})
	elsewhere := &team{tm.world, t, tm.name + "-elsewhere"}
	elsewhere.put(tm.home, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $TEAM}\n")
	elsewhere.target("one", "other")
	elsewhere.app("there", "targetRef: {name: one}", "")
	elsewhere.is("there", "Submitted", "one", "")
	tm.is("here", "", "", "")
	tm.remove(tm.home, manifest.Target, tm.name, "unreadable")
	tm.is("here", "Submitted", "one", "")
}

// A finalizer that somebody removes, as kubectl replace does, is put back; the name of the
// inventory is valid whatever the application's is.
func TestFinalizerPutBack(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	name := strings.Repeat("a", longestName-1) + "-b"
	tm.app(name, "targetRef: {name: one}", "")
	finalizers := func() []any {
		return manifest.List(tm.is(name, "Submitted", "one", ""), "metadata", "finalizers")
	}
	eventually(t, func() error {
		if len(finalizers()) == 0 {
			return errors.New("there is no finalizer")
		}
		return nil
	})
	typ, err := tm.home.Kind(t.Context(), manifest.Application.Group, manifest.Application.Kind)
	if err != nil {
		t.Fatal(err)
	}
	id := manifest.Application.ID(tm.name, name)
	eventually(t, func() error {
		meta, err := tm.home.GetMetadata(t.Context(), typ, id)
		if err != nil {
			return err
		}
		return tm.home.Patch(t.Context(), typ, id, map[string]any{"metadata": map[string]any{"finalizers": nil}}, meta.ResourceVersion)
	})
	eventually(t, func() error {
		if len(finalizers()) == 0 {
			return errors.New("the finalizer is not put back")
		}
		return nil
	})
}

// A status that somebody writes over is written again.
func TestStatusPutBack(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tree := tm.is("web", "Submitted", "one", `"type":"Ready"`)
	uid := manifest.Text(tree, "metadata", "uid")
	if placed := manifest.Text(tree, "metadata", "annotations", manifest.PlacedAnnotation); placed != "one/"+uid {
		t.Errorf("the second record is %q", placed)
	}
	typ, err := tm.home.Kind(t.Context(), manifest.Application.Group, manifest.Application.Kind)
	if err != nil {
		t.Fatal(err)
	}
	body := manifest.AppendJSON(nil, map[string]any{
		"apiVersion": typ.APIVersion(), "kind": typ.Kind, "metadata": map[string]any{"namespace": tm.name, "name": "web", "uid": uid},
		"status": map[string]any{"state": "Pending"},
	})
	// As the daemon, so that nothing of its status stays.
	if _, err := tm.home.Apply(t.Context(), typ, manifest.Application.ID(tm.name, "web"), body, kube.ApplyOptions{Force: true, Status: true}); err != nil {
		t.Fatal(err)
	}
	tm.is("web", "Submitted", "one", `"type":"Ready"`)
}

// A daemon that starts knows where an application has objects, whatever became of its status. A
// copy of the application was never placed.
func TestStatusLost(t *testing.T) {
	for name, tt := range map[string]struct {
		annotation, status string
		placed, at         string
	}{
		"as it was":     {"one/1", "{targetRef: {name: one}, rescheduled: now}", "one", "one"},
		"lost":          {"one/1", "{}", "one", "one"},
		"from a backup": {"one/1", "{targetRef: {name: two}, rescheduled: now}", "two", "one two"},
		"moving":        {"one/1", "{targetRef: {name: two}, leftTargetRefs: [{name: one}], rescheduled: now}", "two", "one two"},
		"older":         {"", "{targetRef: {name: one}, rescheduled: now}", "one", "one"},
		"a copy":        {"one/2", "{}", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(Config{Connect: connect, Fleet: apply.Fleet{Name: "fleet"}, Turns: turn.New(1)})
			if err != nil {
				t.Fatal(err)
			}
			tree := manifesttest.Tree(t, "{metadata: {namespace: team, name: web, uid: '1', annotations: {gitopsd.dev/reschedule: now, gitopsd.dev/placed: '"+tt.annotation+"'}}, status: "+tt.status+"}")
			c.read(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{UID: "1", ResourceVersion: "1"}}, tree, false)
			k := c.apps["1"]
			w := newWorker(c.cfg, &home.View{Log: slog.New(slog.DiscardHandler)}, k)
			if p := k.app.Placement(); p.Placed != tt.placed || p.Moves != (tt.placed == "") {
				t.Errorf("placed on %q, moves: %t", p.Placed, p.Moves)
			}
			if at := strings.Join(slices.Sorted(slices.Values(w.places())), " "); at != tt.at || w.status.target != tt.placed {
				t.Errorf("on %q, objects at %q, want %q", w.status.target, at, tt.at)
			}
		})
	}
}

// What was asked for while an application had errors is done when it has none.
func TestRescheduleWithErrors(t *testing.T) {
	meta := &metav1.PartialObjectMetadata{}
	k := &known{meta: meta, err: errors.New("bad"), app: &application.Application{Namespace: "team", Name: "web", Placed: "one", Reschedule: "now"}}
	place("team", []*known{k}, nil, false)
	if k.app.Rescheduled != "" || k.decision.Target != "one" {
		t.Errorf("it is on %q, rescheduled for %q", k.decision.Target, k.app.Rescheduled)
	}
}

// An application does not act with more rights than it asks for, because what it asks for
// is invalid.
func TestNoAccount(t *testing.T) {
	asked := false
	w := &worker{cfg: Config{Connect: func(string, map[string]any, *kube.ServiceAccount) (*kube.Client, error) {
		asked = true
		return nil, errors.New("no")
	}}}
	for _, account := range []string{"web", "/web", "web/"} {
		_, err := w.connect(context.Background(), &application.Application{Namespace: "team", ServiceAccount: account}, &target{name: "one"})
		if err == nil || asked || !strings.Contains(err.Error(), "is not namespace/name") {
			t.Errorf("%s: %v, connected %v", account, err, asked)
		}
	}
}

// A status can be written whatever is wrong.
func TestStatusIsBounded(t *testing.T) {
	s := new(state)
	s.set(syncedCondition, false, "Invalid", strings.Repeat("é", 1<<20))
	message := clip(strings.Repeat("x", 1<<20), mostReason)
	for i := range 10000 {
		s.resources = append(s.resources, resource{name: fmt.Sprint(i), message: message})
	}
	if n := len(manifest.AppendJSON(nil, s.tree())); n > 1<<19 {
		t.Errorf("it has %d bytes", n)
	}
	// Nor does the status of the home grow with it.
	if p := trouble(&application.Application{Namespace: "team", Name: "web"}, strings.Repeat("x", 1<<20)); len(p.Reason) > 2*mostReason {
		t.Errorf("the problem has %d bytes", len(p.Reason))
	}
}

// A cluster that hangs holds up nobody else, and a new connection or the end of its target
// ends the wait.
func TestHangs(t *testing.T) {
	tm := newTeam(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // connections wait in its queue
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config, err := redirected(kubeconfigOf(t, "other"), "https://"+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tm.target("one", "other")
	tm.target("hung", "other")
	hang := func() {
		put(t, tm.home, map[string]any{
			"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "hung", "namespace": tm.name},
			"stringData": map[string]any{"kubeconfig": config},
		})
	}
	hang()
	tm.app("waits", "targetRef: {name: hung}", "")
	tm.is("waits", "Scheduled", "hung", "")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	tm.target("hung", "other")
	tm.is("waits", "Submitted", "hung", "")
	hang()
	tm.remove(tm.home, manifest.Application, tm.name, "waits")
	tm.is("waits", "Deleting", "hung", "")
	tm.remove(tm.home, manifest.Target, tm.name, "hung")
	tm.gone(tm.home, manifest.Application, tm.name, "waits")
}

// A target is ready as long as its Secret is there. Once its cluster did not answer an application,
// no other is placed there while another target is ready; and again once it answers.
func TestPlacedWhereItAnswers(t *testing.T) {
	tm := newTeam(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	config, err := redirected(kubeconfigOf(t, "other"), "https://"+l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	tm.brings("dead", map[string][]byte{"kubeconfig": []byte(config)})
	tm.target("one", "other")
	app := func(name, spec string) {
		tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: `+name+`, namespace: $TEAM}
spec:
  `+spec+`
  resourceTemplates:
  - metadata: {name: settings}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: `+name+`}}}
`)
	}
	app("busy", "targetRef: {name: one}")
	app("busier", "targetRef: {name: one}") // so that the dead one has fewer
	app("first", "targetRef: {name: dead}")
	tm.is("first", "Scheduled", "dead", l.Addr().String())
	app("second", "targetSelector: {matchLabels: {all: 'true'}}")
	tm.is("second", "Submitted", "one", "the only ready target that its selector selects; left out: dead, whose cluster did not answer application first")

	tm.target("dead", "other")
	tm.is("first", "Submitted", "dead", "")
	app("third", "targetSelector: {matchLabels: {all: 'true'}}")
	tm.is("third", "Submitted", "dead", "chosen from dead, one: ")
}

// redirected returns a kubeconfig that leads to another address.
func redirected(kubeconfig []byte, server string) (string, error) {
	docs, err := sources.DecodeYAML(bytes.NewReader(kubeconfig), sources.Limits{})
	if err != nil {
		return "", err
	}
	for _, c := range manifest.List(docs[0].Tree, "clusters") {
		manifest.Mapping(c.(map[string]any), "cluster")["server"] = server
	}
	text, err := json.Marshal(docs[0].Tree)
	return string(text), err
}
