package applications

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/kube/kubeconfig"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/target/connection"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	published "gitopsd.dev/render/target"
	"gitopsd.dev/render/target/placement"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// world is a home that all tests share, with a controller, and another cluster. The home
// is a target's cluster, too.
type world struct {
	home, other *kube.Client
	log         await.Log

	mu       sync.Mutex
	problems []problem.Problem // told last
}

func (w *world) tell(problems []problem.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = problems
}

// told returns an error unless a problem with the text is told.
func (w *world) told(text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.ContainsFunc(w.problems, func(p problem.Problem) bool { return strings.Contains(p.String(), text) }) {
		return fmt.Errorf("%q is not told: %v", text, w.problems)
	}
	return nil
}

var shared struct {
	sync.Mutex
	*world
}

// connect is the Config's Connect, as the program has it.
func connect(name string, secret map[string]any, as *kube.ServiceAccount) (*kube.Client, error) {
	c, err := connection.ParseSecret(secret, kubeconfig.Restricted)
	if err != nil {
		return nil, err
	}
	file, err := c.Kubeconfig()
	if err != nil {
		return nil, err
	}
	return kube.New(kube.Config{Name: name, Kubeconfig: file, ServiceAccount: as})
}

func kubeconfigOf(t *testing.T, cluster string) []byte {
	t.Helper()
	text, err := os.ReadFile(devcluster.Start(t, "home", "other").Kubeconfig(cluster))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func start(t *testing.T) *world {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.world != nil {
		return shared.world
	}
	w := new(world)
	client := func(cluster string, wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
		c, err := kube.New(kube.Config{Name: cluster, Kubeconfig: kubeconfigOf(t, cluster), WrapTransport: wrap})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	w.home, w.other = client("home", nil), client("other", nil)
	all, err := published.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []*kube.Client{w.home, w.other} {
		for _, o := range all {
			put(t, c, o.Tree())
		}
	}
	put(t, w.home, manifesttest.Tree(t, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: claims.compute.example.org}
spec:
  group: compute.example.org
  scope: Namespaced
  names: {kind: Claim, plural: claims}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`))
	for _, c := range []*kube.Client{w.home, w.other} {
		serves(t, c, manifest.Target, manifest.Application)
	}
	claims := manifest.GroupKind{Group: "compute.example.org", Kind: "Claim"}
	serves(t, w.home, claims)
	controller, err := New(Config{Connect: connect, Claims: []manifest.GroupKind{claims}, Fleet: apply.Fleet{Name: "fleet"}, Turns: turn.New(16), Mirror: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	h, err := home.New(home.Config{
		Client: client("home", unreadable), Controllers: []home.Controller{controller}, Tell: w.tell,
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		// All tests share this home, which is as busy as they are together.
		Busy: time.Second, Absent: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	go h.Run(context.Background()) // it ends with the process
	shared.world = w
	return w
}

// unreadable refuses to show targets of the name unreadable.
func unreadable(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/kubernetestargets/unreadable") && req.Method == http.MethodGet {
			return nil, errors.New("not for you")
		}
		return next.RoundTrip(req)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// serves waits until a cluster serves kinds.
func serves(t *testing.T, c *kube.Client, kinds ...manifest.GroupKind) {
	t.Helper()
	for _, kind := range kinds {
		eventually(t, func() error {
			c.Forget(kind.Group)
			c.Refresh()
			typ, err := c.Kind(t.Context(), kind.Group, kind.Kind)
			if err == nil {
				_, err = c.List(t.Context(), typ, kube.ListOptions{}, nil)
			}
			return err
		})
	}
}

// put applies an object.
func put(t *testing.T, c *kube.Client, tree map[string]any) {
	t.Helper()
	typ, err := c.Type(t.Context(), tree["apiVersion"].(string), tree["kind"].(string))
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	id := typ.ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name"))
	if _, err := c.Apply(t.Context(), typ, id, body, kube.ApplyOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if tree["status"] != nil && typ.HasStatus {
		if _, err := c.Apply(t.Context(), typ, id, body, kube.ApplyOptions{Force: true, Status: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// patience is how long a test waits for what takes a second or two on a machine that has
// nothing else to do, and a minute where a home looks for a kind that it did not serve.
const patience = 4 * time.Minute

// eventually waits until try returns nil.
func eventually(t *testing.T, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%v later: %v", patience, err)
}

// team is a namespace of the home for one test.
type team struct {
	*world
	t    *testing.T
	name string
}

func newTeam(t *testing.T) *team {
	t.Parallel()
	return teamOf(t)
}

func teamOf(t *testing.T) *team {
	tm := &team{start(t), t, strings.ToLower(t.Name())}
	tm.put(tm.home, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $TEAM}\n")
	return tm
}

// put applies objects; $TEAM in them is the test's namespace.
func (tm *team) put(c *kube.Client, text string) {
	tm.t.Helper()
	for _, d := range manifesttest.Documents(tm.t, strings.ReplaceAll(text, "$TEAM", tm.name)) {
		put(tm.t, c, d.Tree)
	}
}

// target makes a target with its Secret that leads to a cluster, as ready as its
// controller makes it.
func (tm *team) target(name, cluster string) {
	tm.t.Helper()
	put(tm.t, tm.home, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": name, "namespace": tm.name},
		"stringData": map[string]any{"kubeconfig": string(kubeconfigOf(tm.t, cluster))},
	})
	tm.ready(name)
}

// ready makes a target that refers to the Secret of its name.
func (tm *team) ready(name string) {
	tm.t.Helper()
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata: {name: `+name+`, namespace: $TEAM, labels: {name: `+name+`, all: "true"}}
spec: {connectionSecretRef: {name: `+name+`}}
status: {conditions: [{type: Ready, status: "True", reason: Connected, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
`)
}

// app makes an application with one ConfigMap in the namespace of the test's name.
func (tm *team) app(name, spec, annotations string) {
	tm.t.Helper()
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: `+name+`, namespace: $TEAM, annotations: {`+annotations+`}}
spec:
  `+spec+`
  resourceTemplates:
  - metadata: {name: settings}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}, data: {by: `+name+`}}}
`)
}

func (tm *team) get(c *kube.Client, kind manifest.GroupKind, namespace, name string) (map[string]any, error) {
	typ, err := c.Kind(tm.t.Context(), kind.Group, kind.Kind)
	if err != nil {
		return nil, err
	}
	tree, _, err := c.Get(tm.t.Context(), typ, kind.ID(namespace, name))
	return tree, err
}

// remove deletes an object.
func (tm *team) remove(c *kube.Client, kind manifest.GroupKind, namespace, name string) {
	tm.t.Helper()
	tree, err := tm.get(c, kind, namespace, name)
	if err != nil {
		tm.t.Fatal(err)
	}
	typ, err := c.Kind(tm.t.Context(), kind.Group, kind.Kind)
	if err == nil {
		_, _, err = c.Delete(tm.t.Context(), typ, kind.ID(namespace, name), manifest.Text(tree, "metadata", "uid"))
	}
	if err != nil {
		tm.t.Fatal(err)
	}
}

// is waits until an application has a state, a target, and a message in one of its
// conditions.
func (tm *team) is(name, state, on, message string) map[string]any {
	tm.t.Helper()
	var tree map[string]any
	eventually(tm.t, func() (err error) {
		if tree, err = tm.get(tm.home, manifest.Application, tm.name, name); err != nil {
			return err
		}
		text, _ := json.Marshal(manifest.Mapping(tree, "status"))
		if manifest.Text(tree, "status", "state") != state || manifest.Text(tree, "status", "targetRef", "name") != on || !strings.Contains(string(text), message) {
			return fmt.Errorf("want %s on %q with %q, have %s", state, on, message, text)
		}
		return nil
	})
	return tree
}

// settings returns who made the ConfigMap in a cluster; empty if it is not there.
func (tm *team) settings(c *kube.Client) (by string) {
	tm.t.Helper()
	tree, err := tm.get(c, manifest.ConfigMap, tm.name+"-in", "settings")
	if err != nil && !kube.IsMissing(err) {
		tm.t.Fatal(err)
	}
	return manifest.Text(tree, "data", "by")
}

// gone waits until an object is gone.
func (tm *team) gone(c *kube.Client, kind manifest.GroupKind, namespace, name string) {
	tm.t.Helper()
	eventually(tm.t, func() error {
		tree, err := tm.get(c, kind, namespace, name)
		if kube.ClassOf(err) == kube.NotFound {
			return nil
		}
		text, _ := json.Marshal(tree)
		return fmt.Errorf("%s is still there: %v %s", name, err, text)
	})
}

// An application gets its objects, with Secrets, in a namespace that is made for it, and
// their status comes back. When it goes, they go, and the namespace stays.
func TestSubmit(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.put(tm.home, `
apiVersion: v1
kind: Secret
metadata: {name: sql, namespace: $TEAM}
type: acme.example/sql
stringData: {password: hunter2}
---
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  clusterSelector: {matchLabels: {name: one}}
  resourceTemplates:
  - metadata: {name: web-deployment}
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
	tree := tm.is("web", "Submitted", "one", `"readyReplicas":1`)
	if n, _ := manifest.Mapping(tree, "status")["submittedResources"].(int64); n != 1 {
		t.Errorf("status %v", tree["status"])
	}
	secret, err := tm.get(tm.other, manifest.Secret, tm.name+"-in", "web-deployment-sql")
	if err != nil || manifest.Text(secret, "type") != "acme.example/sql" || manifest.Text(secret, "data", "password") != "aHVudGVyMg==" {
		t.Errorf("the Secret is %v: %v", secret, err)
	}
	tm.put(tm.home, "{apiVersion: v1, kind: Secret, metadata: {name: sql, namespace: $TEAM}, type: acme.example/sql, stringData: {password: hunter3}}")
	eventually(t, func() error {
		secret, err := tm.get(tm.other, manifest.Secret, tm.name+"-in", "web-deployment-sql")
		if err == nil && manifest.Text(secret, "data", "password") != "aHVudGVyMw==" {
			err = fmt.Errorf("the Secret is the old one")
		}
		return err
	})
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	for _, kind := range []manifest.GroupKind{manifest.Deployment, manifest.Secret} {
		name := map[manifest.GroupKind]string{manifest.Deployment: "web", manifest.Secret: "web-deployment-sql"}[kind]
		if _, err := tm.get(tm.other, kind, tm.name+"-in", name); kube.ClassOf(err) != kube.NotFound {
			t.Errorf("%s outlived the application: %v", name, err)
		}
	}
	if _, err := tm.get(tm.other, manifest.Namespace, "", tm.name+"-in"); err != nil {
		t.Errorf("the namespace went with the application: %v", err)
	}
	if strings.Contains(tm.log.String(), "hunter") {
		t.Error("the log has a password")
	}
}

// An application that moves is there before it is gone here. It moves once for each
// text of the annotation, and never because labels change.
func TestMove(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetSelector: {matchLabels: {all: 'true'}}", "")
	tm.is("web", "Submitted", "one", "on target one: the only ready target that its selector selects")
	tm.target("two", "home")
	tm.put(tm.home, "{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: one, namespace: $TEAM, labels: {all: 'false'}}, spec: {connectionSecretRef: {name: one}}}")
	tm.app("web", "targetSelector: {matchLabels: {all: 'true'}}", "gitopsd.dev/reschedule: now")
	tm.is("web", "Submitted", "two", `"rescheduled":"now"`)
	eventually(t, func() error {
		if by := tm.settings(tm.other); by != "" {
			return fmt.Errorf("it is still where it was")
		}
		return nil
	})
	if by := tm.settings(tm.home); by != "web" {
		t.Errorf("it is not where it went: %q", by)
	}
	tm.app("web", "targetRef: {name: one}", "gitopsd.dev/reschedule: now")
	tm.is("web", "Submitted", "one", "on target one: it asks for this target")
}

// Two targets may lead to one cluster: what moves between them stays.
func TestMoveInPlace(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.target("two", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	before, err := tm.get(tm.other, manifest.ConfigMap, tm.name+"-in", "settings")
	if err != nil {
		t.Fatal(err)
	}
	tm.app("web", "targetRef: {name: two}", "")
	eventually(t, func() error {
		tree := tm.is("web", "Submitted", "two", "")
		if left := manifest.List(tree, "status", "leftTargetRefs"); left != nil {
			return fmt.Errorf("it is still leaving %v", left)
		}
		return nil
	})
	after, err := tm.get(tm.other, manifest.ConfigMap, tm.name+"-in", "settings")
	if err != nil || manifest.Text(before, "metadata", "uid") != manifest.Text(after, "metadata", "uid") {
		t.Errorf("the object was made anew: %v %v", after, err)
	}
}

// An object belongs to one application. Another one gets an error with that, and takes nothing with
// it when it goes.
func TestTwoWantOne(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("first", "targetRef: {name: one}", "")
	tm.is("first", "Submitted", "one", "")
	tm.app("second", "targetRef: {name: one}", "")
	tm.is("second", "Failed", "one", "of KubernetesApplication "+tm.name+"/first")
	tm.remove(tm.home, manifest.Application, tm.name, "second")
	tm.gone(tm.home, manifest.Application, tm.name, "second")
	if by := tm.settings(tm.other); by != "first" {
		t.Errorf("the object is %q's", by)
	}
	// One that is made again under the same name does not own what was left behind.
	first, err := tm.get(tm.other, manifest.ConfigMap, tm.name+"-in", "settings")
	if err != nil {
		t.Fatal(err)
	}
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.is("first", "Failed", "one", "KubernetesTarget one does not exist")
	tm.remove(tm.home, manifest.Secret, tm.name, "one")
	tm.remove(tm.other, manifest.ConfigMap, tm.name+"-in", "settings")
	delete(first["metadata"].(map[string]any), "managedFields")
	delete(first["metadata"].(map[string]any), "resourceVersion")
	delete(first["metadata"].(map[string]any), "uid")
	tm.remove(tm.home, manifest.Application, tm.name, "first")
	tm.gone(tm.home, manifest.Application, tm.name, "first")
	put(t, tm.other, first)
	tm.target("one", "other")
	tm.app("first", "targetRef: {name: one}", "")
	tm.is("first", "Failed", "one", "of KubernetesApplication "+tm.name+"/first")
}

// What has no way to its cluster is said to have none, keeps its objects, and lets its
// application go.
func TestTargetGone(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.put(tm.home, "{apiVersion: v1, kind: Secret, metadata: {name: one, namespace: $TEAM}, stringData: {kubeconfig: garbled}}")
	tm.is("web", "Submitted", "one", "the connection Secret one of target one")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.is("web", "Deleting", "one", "to leave its objects in that cluster, delete the target")
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the object is %q's", by)
	}
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
}

// The objects of an application stay if its target is gone, as its status says, also when it
// is deleted or moves.
func TestTargetGoneFirst(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.is("web", "Failed", "one", "the objects in its cluster stay as they are")
	tm.is("web", "Failed", "one", `"submittedResources":0`)
	tm.target("two", "home")
	tm.app("web", "targetRef: {name: two}", "")
	tm.is("web", "Submitted", "two", `"type":"LeftBehind"`)
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the object is %q's", by)
	}
	tm.remove(tm.home, manifest.Target, tm.name, "two")
	tm.is("web", "Failed", "two", "the objects in its cluster stay as they are")
	time.Sleep(moment + 2*time.Second) // otherwise it may count as deleted with the application
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	if by := tm.settings(tm.home); by != "web" {
		t.Errorf("the object is %q's", by)
	}
}

// A target and its application that are deleted together, in whatever order, take the objects along.
func TestBothGone(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	if by := tm.settings(tm.other); by != "" {
		t.Errorf("the object is still %q's", by)
	}
}

// If the cluster no longer lets the connection delete them, they stay, and the status of the home
// says so.
func TestBothGoneDenied(t *testing.T) {
	tm := newTeam(t)
	tm.deployer(tm.other, "{apiGroups: [\"*\"], resources: [\"*\"], verbs: [get, list, watch]}")
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}\n  serviceAccount: $TEAM-in/deployer", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.other, manifest.ClusterRoleBinding, "", tm.name+"-look")
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.Application, tm.name, "web")
	left, err := tm.get(tm.other, manifest.ConfigMap, tm.name+"-in", "settings")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return tm.told(tm.name + "/web: it was deleted together with target one, and its objects in that cluster may be left")
	})
	// The command that is told finds them.
	command := "kubectl get ConfigMap -A -l applyset.kubernetes.io/part-of=" + manifest.Text(left, "metadata", "labels", "applyset.kubernetes.io/part-of") + ";"
	if err := tm.told(command); err != nil {
		t.Error(err)
	}
	_, inventory, logged := strings.Cut(tm.log.String(), command+" all kinds are in the annotations of configmap/gitopsd-system/")
	if !logged {
		t.Errorf("the log has no %q", command)
	}
	inventory, _, _ = strings.Cut(inventory, `"`)
	if _, err := tm.get(tm.other, manifest.ConfigMap, "gitopsd-system", inventory); err != nil {
		t.Errorf("the inventory that is told: %v", err)
	}
}

// Whether they were deleted together does not depend on what was wrong with the application before.
func TestTogether(t *testing.T) {
	tm := newTeam(t)
	v := &home.View{Cluster: "home", Client: tm.home, Log: slog.New(slog.DiscardHandler)}
	app := &application.Application{Namespace: tm.name, Name: "web", UID: "1"}
	const before = "{targetRef: {name: one}, conditions: [{type: Synced, status: 'False', reason: NotSubmitted, lastTransitionTime: '2026-01-01T00:00:00Z'}]}"
	w := newWorker(Config{}, v, &known{app: app, status: manifesttest.Tree(t, before)})
	j := &job{app: app, decision: placement.Decision{Target: "one"}, deleting: true}
	together := func(after time.Duration) bool {
		t.Helper()
		j.deleted = time.Now().Add(after)
		together, err := w.together(t.Context(), j, "one")
		if err != nil {
			t.Fatal(err)
		}
		return together
	}
	if !together(time.Hour) {
		t.Error("the status has not said that the target is missing")
	}
	for range 2 { // the time is that of the first
		s := w.status.next(app)
		w.submit(t.Context(), j, s)
		w.stands(s, "1")
	}
	if !together(0) || together(time.Hour) {
		t.Errorf("together at once: %t, after an hour: %t", together(0), together(time.Hour))
	}
}

// Nothing is left behind if another target leads to the same cluster.
func TestTargetReplaced(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.home, manifest.Target, tm.name, "one")
	tm.is("web", "Failed", "one", "TargetMissing")
	tm.target("two", "other")
	tm.app("web", "targetRef: {name: two}", "")
	tm.is("web", "Submitted", "two", `"type":"Ready"`)
	eventually(t, func() error {
		tree, err := tm.get(tm.home, manifest.Application, tm.name, "web")
		if left := manifest.List(tree, "status", "leftTargetRefs"); err == nil && left != nil {
			return fmt.Errorf("it is still leaving %v", left)
		}
		if err == nil && (manifest.Condition(tree, leftCondition) != nil || manifest.Condition(tree, missingCondition) != nil) {
			t.Errorf("status %v", tree["status"])
		}
		return err
	})
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the object is %q's", by)
	}
	for line := range strings.Lines(tm.log.String()) { // all tests share it
		if strings.Contains(line, tm.name+"/web") && strings.Contains(line, "may be left") {
			t.Error(line)
		}
	}
}

// A namespace that is deleted takes targets and Secrets before the applications, whose
// objects are deleted all the same.
func TestNamespaceGone(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}", "")
	tm.is("web", "Submitted", "one", "")
	tm.remove(tm.home, manifest.Namespace, "", tm.name)
	tm.gone(tm.home, manifest.Namespace, "", tm.name)
	if by := tm.settings(tm.other); by != "" {
		t.Error("the object outlived its application")
	}
}

// An application waits for a target, then for a Secret; what it has stays meanwhile.
func TestWaits(t *testing.T) {
	tm := newTeam(t)
	tm.app("web", "targetSelector: {matchLabels: {name: one}}", "")
	tm.is("web", "Pending", "", "namespace "+tm.name+" has no KubernetesTarget")
	tm.target("one", "other")
	tm.is("web", "Submitted", "one", "")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetSelector: {matchLabels: {name: one}}
  resourceTemplates:
  - metadata: {name: other}
    spec:
      secrets: [{name: sql}]
      template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: other}}
`)
	tm.is("web", "Failed", "one", "secret/"+tm.name+"/sql does not exist")
	if by := tm.settings(tm.other); by != "web" {
		t.Error("what it had was pruned while its Secret is missing")
	}
	tm.put(tm.home, "{apiVersion: v1, kind: Secret, metadata: {name: sql, namespace: $TEAM}, stringData: {a: b}}")
	tm.is("web", "Submitted", "one", "")
	eventually(t, func() error {
		if by := tm.settings(tm.other); by != "" {
			return fmt.Errorf("what it no longer declares is still there")
		}
		return nil
	})
}

// deployer makes the ServiceAccount deployer in the namespace of the test's name. It looks at
// what a rule says, and writes ConfigMaps into two namespaces: its own, and that of
// inventories.
func (tm *team) deployer(c *kube.Client, look string) {
	tm.t.Helper()
	tm.put(c, `
apiVersion: v1
kind: Namespace
metadata: {name: $TEAM-in}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: $TEAM-in}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: $TEAM-look}
rules: [`+look+`]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: $TEAM-look}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $TEAM-look}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $TEAM-in}]
---
apiVersion: v1
kind: Namespace
metadata: {name: gitopsd-system}
`)
	for _, namespace := range []string{tm.name + "-in", "gitopsd-system"} {
		tm.put(c, `
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: $TEAM-write, namespace: `+namespace+`}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: $TEAM-write, namespace: `+namespace+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: $TEAM-write}
subjects: [{kind: ServiceAccount, name: deployer, namespace: $TEAM-in}]
`)
	}
}

// An application that names a ServiceAccount has that account's rights, however many the
// connection has.
func TestServiceAccount(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.app("web", "targetRef: {name: one}\n  serviceAccount: $TEAM-in/deployer", "")
	tm.is("web", "Scheduled", "one", "system:serviceaccount:"+tm.name+"-in:deployer")
	if by := tm.settings(tm.other); by != "" {
		t.Errorf("%s was written for an account without rights", by)
	}

	tm.deployer(tm.other, "{apiGroups: [\"*\"], resources: [\"*\"], verbs: [get, list, watch]}")
	tm.app("web", "targetRef: {name: one}\n  serviceAccount: $TEAM-in/deployer", "")
	tm.is("web", "Submitted", "one", "")
	if by := tm.settings(tm.other); by != "web" {
		t.Errorf("the object is %q's", by)
	}

	// What it may not do is refused, and nobody else does it.
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetRef: {name: one}
  serviceAccount: $TEAM-in/deployer
  resourceTemplates:
  - metadata: {name: settings}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}, data: {by: web}}}
  - metadata: {name: reach}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: default, name: $TEAM}}}
`)
	tm.is("web", "PartiallySubmitted", "one", "configmap/default/"+tm.name)
	if _, err := tm.get(tm.other, manifest.ConfigMap, "default", tm.name); kube.ClassOf(err) != kube.NotFound {
		t.Errorf("the account reached further than it may: %v", err)
	}

	// If it may not write the inventory, nothing is tried, and that is the reason.
	tm.remove(tm.other, manifest.RoleBinding, "gitopsd-system", tm.name+"-write")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: next, namespace: $TEAM}
spec:
  targetRef: {name: one}
  serviceAccount: $TEAM-in/deployer
  resourceTemplates:
  - metadata: {name: next}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: next}}}
`)
	c := manifest.Condition(tm.is("next", "Failed", "one", "NotSubmitted"), syncedCondition)
	if why := manifest.Text(c, "message"); !strings.Contains(why, "forbidden") || !strings.Contains(why, "inventory-") {
		t.Errorf("it is not synced because of %q", why)
	}
}

// multicluster installs the API of ClusterProfiles and placements.
func multicluster(tm *team, c *kube.Client) {
	tm.t.Helper()
	definition := func(plural, kind, schema string) {
		tm.put(c, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: `+plural+`.multicluster.x-k8s.io, annotations: {api-approved.kubernetes.io: "https://github.com/kubernetes/enhancements"}}
spec:
  group: multicluster.x-k8s.io
  names: {kind: `+kind+`, plural: `+plural+`}
  scope: Namespaced
  versions: [{name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: `+schema+`}}}]
`)
	}
	definition("clusterprofiles", "ClusterProfile", "{spec: {type: object}}")
	definition("placementdecisions", "PlacementDecision", "{schedulerName: {type: string}, decisions: {type: array, items: {type: object, properties: {reason: {type: string}, clusterProfileRef: {type: object, properties: {name: {type: string}, namespace: {type: string}}}}}}}")
	serves(tm.t, c, manifest.ClusterProfile, manifest.PlacementDecision)
}

// An account that may not follow placements is told so, and writes them all the same.
//
// This runs before the tests that are parallel: its home looks at the applications of all
// namespaces of the other cluster, and would leave its finalizers on those of other tests.
func TestPlacementRights(t *testing.T) {
	tm := teamOf(t)
	multicluster(tm, tm.other)
	tm.put(tm.other, `
apiVersion: v1
kind: Namespace
metadata: {name: $TEAM}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: limited, namespace: $TEAM}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: $TEAM}
rules:
- {apiGroups: [workload.crossplane.io, ""], resources: ["*"], verbs: ["*"]}
- {apiGroups: [multicluster.x-k8s.io], resources: [clusterprofiles], verbs: ["*"]}
- {apiGroups: [multicluster.x-k8s.io], resources: [placementdecisions], verbs: [get, create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: $TEAM}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $TEAM}
subjects: [{kind: ServiceAccount, name: limited, namespace: $TEAM}]
---
apiVersion: multicluster.x-k8s.io/v1alpha1
kind: ClusterProfile
metadata: {name: east, namespace: $TEAM}
`)
	profile, err := tm.get(tm.other, manifest.ClusterProfile, tm.name, "east")
	if err != nil {
		t.Fatal(err)
	}
	put(t, tm.other, map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "east", "namespace": tm.name},
		"stringData": map[string]any{"kubeconfig": string(kubeconfigOf(t, "home"))},
	})
	tm.put(tm.other, `
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata:
  name: east
  namespace: $TEAM
  ownerReferences: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, name: east, uid: `+manifest.Text(profile, "metadata", "uid")+`, controller: true}]
spec: {connectionSecretRef: {name: east}}
status: {conditions: [{type: Ready, status: "True", reason: Connected, message: "", lastTransitionTime: "2026-01-01T00:00:00Z"}]}
---
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetRef: {name: east}
  resourceTemplates:
  - metadata: {name: settings}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}}}
`)
	client, err := kube.New(kube.Config{Name: "other", Kubeconfig: kubeconfigOf(t, "other"), ServiceAccount: &kube.ServiceAccount{Namespace: tm.name, Name: "limited"}})
	if err != nil {
		t.Fatal(err)
	}
	controller, err := New(Config{Connect: connect, Fleet: apply.Fleet{Name: "fleet"}, Turns: turn.New(1), Mirror: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var told string
	h, err := home.New(home.Config{Client: client, Controllers: []home.Controller{controller}, Log: slog.New(slog.DiscardHandler), Absent: time.Second, Tell: func(all []problem.Problem) {
		mu.Lock()
		defer mu.Unlock()
		told = fmt.Sprint(all)
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if !strings.Contains(told, "allow the account to list and watch them") {
			return fmt.Errorf("told %s", told)
		}
		return nil
	})
	eventually(t, func() error {
		tree, err := tm.get(tm.other, manifest.PlacementDecision, tm.name, "web")
		if err == nil && len(manifest.List(tree, "decisions")) != 1 {
			err = fmt.Errorf("decisions %v", tree["decisions"])
		}
		return err
	})
}

// Where the API of placements is installed, others learn where an application runs.
func TestPlacementDecision(t *testing.T) {
	tm := newTeam(t)
	multicluster(tm, tm.home)
	tm.put(tm.home, "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: east, namespace: $TEAM}}")
	profile, err := tm.get(tm.home, manifest.ClusterProfile, tm.name, "east")
	if err != nil {
		t.Fatal(err)
	}
	tm.target("east", "other")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha1
kind: KubernetesTarget
metadata:
  name: east
  namespace: $TEAM
  labels: {name: east}
  ownerReferences: [{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, name: east, uid: `+manifest.Text(profile, "metadata", "uid")+`, controller: true}]
spec: {connectionSecretRef: {name: east}}
`)
	tm.target("west", "home")
	decided := func(want string) {
		t.Helper()
		eventually(t, func() error {
			tree, err := tm.get(tm.home, manifest.PlacementDecision, tm.name, "web")
			if err != nil {
				return err
			}
			if text, _ := json.Marshal(tree["decisions"]); string(text) != strings.ReplaceAll(want, "$TEAM", tm.name) {
				return fmt.Errorf("decisions %s", text)
			}
			return nil
		})
	}
	tm.app("web", "targetSelector: {matchLabels: {name: east}}", "")
	decided(`[{"clusterProfileRef":{"name":"east","namespace":"$TEAM"},"reason":"the only ready target that its selector selects"}]`)
	tm.app("web", "targetRef: {name: west}", "")
	decided(`[]`)
	// One that somebody deletes or changes comes back.
	tm.remove(tm.home, manifest.PlacementDecision, tm.name, "web")
	tm.app("web", "targetSelector: {matchLabels: {name: east}}", "gitopsd.dev/reschedule: now")
	decided(`[{"clusterProfileRef":{"name":"east","namespace":"$TEAM"},"reason":"the only ready target that its selector selects"}]`)
	tm.remove(tm.home, manifest.PlacementDecision, tm.name, "web")
	decided(`[{"clusterProfileRef":{"name":"east","namespace":"$TEAM"},"reason":"the only ready target that its selector selects"}]`)
	typ, err := tm.home.Kind(t.Context(), manifest.PlacementDecision.Group, manifest.PlacementDecision.Kind)
	if err != nil {
		t.Fatal(err)
	}
	id := manifest.PlacementDecision.ID(tm.name, "web")
	meta, err := tm.home.GetMetadata(t.Context(), typ, id)
	if err == nil {
		err = tm.home.Patch(t.Context(), typ, id, map[string]any{"decisions": []any{}}, meta.ResourceVersion)
	}
	if err != nil {
		t.Fatal(err)
	}
	decided(`[{"clusterProfileRef":{"name":"east","namespace":"$TEAM"},"reason":"the only ready target that its selector selects"}]`)
	tm.remove(tm.home, manifest.Application, tm.name, "web")
	tm.gone(tm.home, manifest.PlacementDecision, tm.name, "web")
}

// Applications that have each other among their objects, directly or by a third one, are told
// so, and can be deleted.
func TestContainEachOther(t *testing.T) {
	tm := newTeam(t)
	holder := func(name, target string, of ...string) string {
		text := "\n---\napiVersion: workload.crossplane.io/v1alpha2\nkind: KubernetesApplication\nmetadata: {name: " + name + ", namespace: $TEAM}\nspec:\n  targetRef: {name: " + target + "}\n  resourceTemplates:\n"
		for _, held := range of {
			text += "  - metadata: {name: " + held + "}\n    spec: {template: {apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesApplication, metadata: {name: " + held + ", namespace: $TEAM, annotations: {gitopsd.dev/adopt: 'true'}}, " +
				"spec: {targetRef: {name: " + target + "}, resourceTemplates: [{metadata: {name: a}, spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: " + held + ", namespace: $TEAM-in}}}}]}}}\n"
		}
		return text
	}
	tm.put(tm.home, holder("a", "here", "b")+holder("b", "here", "c")+holder("c", "here", "a"))
	// All are known before there are targets: placed before c is there, a would apply its own
	// b over the one above, and there would be no circle.
	for _, name := range []string{"a", "b", "c"} {
		tm.is(name, "Scheduled", "here", "TargetMissing")
	}
	tm.target("here", "home")
	tm.target("there", "other")
	for name, held := range map[string]string{"a": "b", "b": "c", "c": "a"} {
		tm.is(name, "Failed", "here", "kubernetesapplication.workload.crossplane.io/"+tm.name+"/"+held+" has this application among its own objects")
	}
	// One of them less, and the others are as they should be.
	tm.remove(tm.home, manifest.Application, tm.name, "c")
	tm.gone(tm.home, manifest.Application, tm.name, "c")
	tm.is("a", "Submitted", "here", "")
	tm.is("b", "Submitted", "here", "")
	// In another cluster it is another application.
	tm.put(tm.home, holder("d", "there", "e")+holder("e", "there", "d"))
	tm.is("d", "Submitted", "there", "")
	tm.is("e", "Submitted", "there", "")
	for _, name := range []string{"a", "b", "d", "e"} {
		tm.remove(tm.home, manifest.Application, tm.name, name)
	}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		tm.gone(tm.home, manifest.Application, tm.name, name)
	}
	for _, name := range []string{"here", "there"} { // the next run must find none
		tm.remove(tm.home, manifest.Target, tm.name, name)
		tm.gone(tm.home, manifest.Target, tm.name, name)
	}
}

// While an object is held, an application is not Ready, and leaves no target. Its status says which
// generation it is about.
func TestHeld(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.target("two", "home")
	app := func(target string) {
		tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetRef: {name: `+target+`}
  resourceTemplates:
  - metadata: {name: settings}
    spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {namespace: $TEAM-in, name: settings}, data: {by: web}}}
  - metadata: {name: early}
    spec: {template: {apiVersion: nobody.example.org/v1, kind: Unknown, metadata: {namespace: $TEAM-in, name: early}}}
`)
	}
	app("one")
	first := tm.is("web", "PartiallySubmitted", "one", `"type":"Ready"`)
	app("two")
	second := tm.is("web", "PartiallySubmitted", "two", fmt.Sprintf(`"observedGeneration":%d`, generation(first)+1))
	for _, tree := range []map[string]any{first, second} {
		if c := manifest.Condition(tree, "Ready"); manifest.Text(c, "status") != "False" {
			t.Errorf("Ready is %v", c)
		}
		if have, _ := manifest.Mapping(tree, "status")["observedGeneration"].(int64); have != generation(tree) {
			t.Errorf("the status is about generation %d, not %d", have, generation(tree))
		}
	}
	if len(manifest.List(second, "status", "leftTargetRefs")) != 1 || tm.settings(tm.other) != "web" {
		t.Errorf("it left its former target: %v", manifest.Mapping(second, "status"))
	}
}

func generation(tree map[string]any) int64 {
	n, _ := manifest.Mapping(tree, "metadata")["generation"].(int64)
	return n
}

// A cluster-wide object that names a namespace, as charts print it, creates none.
func TestStrayNamespace(t *testing.T) {
	tm := newTeam(t)
	tm.target("one", "other")
	tm.put(tm.home, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: web, namespace: $TEAM}
spec:
  targetRef: {name: one}
  resourceTemplates:
  - metadata: {name: role}
    spec: {template: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {namespace: $TEAM-stray, name: $TEAM}}}
`)
	tm.is("web", "Submitted", "one", "")
	if _, err := tm.get(tm.other, manifest.Namespace, "", tm.name+"-stray"); kube.ClassOf(err) != kube.NotFound {
		t.Errorf("the namespace: %v", err)
	}
}
