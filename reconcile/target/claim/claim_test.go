package claim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

func TestParseKinds(t *testing.T) {
	kinds, err := ParseKinds(DefaultKinds)
	if err != nil || len(kinds) != 2 || kinds[1] != clusterAPI {
		t.Errorf("have %v, %v", kinds, err)
	}
	for _, bad := range [][]string{{"Cluster"}, {"cluster.x-k8s.io"}, {"Cluster.x"}, {""}, {"A.b.c", "A.b.c"}} {
		if kinds, err := ParseKinds(bad); err == nil {
			t.Errorf("%q was read as %v", bad, kinds)
		}
	}
}

func TestStateOf(t *testing.T) {
	const old = "compute.crossplane.io/v1alpha1, kind: KubernetesCluster, metadata: {name: a, namespace: n}"
	for _, tt := range []struct{ name, text, secret, profile, why string }{
		{name: "not bound", text: "{apiVersion: " + old + ", spec: {writeConnectionSecretToRef: {name: s}}}"},
		{name: "bound", text: "{apiVersion: " + old + ", spec: {writeConnectionSecretToRef: {name: s}}, status: {bindingPhase: Bound}}", secret: "s"},
		{name: "ready", text: "{apiVersion: " + old + ", spec: {writeConnectionSecretToRef: {name: s}}, status: {conditions: [{type: Synced, status: 'True'}, {type: Ready, status: 'True'}]}}", secret: "s"},
		{name: "not ready", text: "{apiVersion: " + old + ", spec: {writeConnectionSecretToRef: {name: s}}, status: {conditions: [{type: Ready, status: 'False'}]}}"},
		{name: "no Secret", text: "{apiVersion: " + old + ", status: {bindingPhase: Bound}}", why: "names no Secret"},
		{name: "a Secret of others", text: "{apiVersion: " + old + ", spec: {writeConnectionSecretToRef: {name: s, namespace: m}}, status: {bindingPhase: Bound}}", why: "namespace m"},
		{name: "Cluster API, waiting", text: "{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {name: a, namespace: n}, status: {phase: Provisioned}}"},
		{name: "Cluster API v1beta1", text: "{apiVersion: cluster.x-k8s.io/v1beta1, kind: Cluster, metadata: {name: a, namespace: n}, status: {controlPlaneReady: true}}", secret: "a-kubeconfig"},
		{name: "Cluster API v1beta2", text: "{apiVersion: cluster.x-k8s.io/v1beta2, kind: Cluster, metadata: {name: a, namespace: n}, status: {initialization: {controlPlaneInitialized: true}}}", secret: "a-kubeconfig"},
		{name: "ClusterProfile", text: "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: a, namespace: n}, status: {conditions: [{type: ControlPlaneHealthy, status: 'True'}]}}", profile: "a"},
		{name: "ClusterProfile, unhealthy", text: "{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: a, namespace: n}}"},
	} {
		tree := manifesttest.Tree(t, tt.text)
		if s := stateOf(manifest.KindOf(tree), tree); s.secret != tt.secret || s.profile != tt.profile || (s.why == "") != (tt.why == "") || !strings.Contains(s.why, tt.why) {
			t.Errorf("%s: have %+v", tt.name, s)
		}
	}
}

func crd(group, version, kind, plural string) string {
	return fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[4]s.%[1]s},
 spec: {group: %[1]s, scope: Namespaced, names: {kind: %[3]s, plural: %[4]s}, versions: [{name: %[2]s, served: true, storage: true,
 schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}`, group, version, kind, plural)
}

type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A claim becomes a target once its cluster is there, follows its labels, and takes nothing
// over.
func TestClaims(t *testing.T) {
	kubeconfig, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	connect := func(wrap func(http.RoundTripper) http.RoundTripper) *kube.Client {
		c, err := kube.New(kube.Config{Name: "hub", Kubeconfig: kubeconfig, WrapTransport: wrap})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	hub := connect(nil)
	t.Cleanup(hub.Close)
	apply := func(o *manifest.Object) {
		t.Helper()
		var err error
		for range 100 { // until a new kind is served
			var typ kube.Type
			if typ, err = hub.Type(t.Context(), o.APIVersion(), o.ID().Kind); err == nil {
				if _, err = hub.Apply(t.Context(), typ, o.ID(), o.AppendJSON(nil), kube.ApplyOptions{Force: true}); err == nil {
					return
				}
			}
			hub.Forget(o.ID().Group)
			select {
			case <-t.Context().Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		t.Fatal(err)
	}
	has := func(text string) {
		t.Helper()
		for _, o := range manifesttest.Objects(t, text) {
			apply(o)
		}
	}
	definitions, err := target.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range definitions {
		apply(o)
	}
	has(crd("compute.crossplane.io", "v1alpha1", "KubernetesCluster", "kubernetesclusters"))
	has(crd("multicluster.x-k8s.io", "v1alpha1", "ClusterProfile", "clusterprofiles"))
	has("{apiVersion: v1, kind: Namespace, metadata: {name: team}}")

	kinds, err := ParseKinds(append(DefaultKinds, clusterProfile.String()))
	if err != nil {
		t.Fatal(err)
	}
	// A kind that cannot be listed stops no other one, wherever it is among them.
	kinds = append([]manifest.GroupKind{manifest.Deployment}, kinds...)
	var broken atomic.Bool
	broken.Store(true)
	breaking := connect(func(next http.RoundTripper) http.RoundTripper {
		return trip(func(r *http.Request) (*http.Response, error) {
			if broken.Load() && strings.HasSuffix(r.URL.Path, "/deployments") {
				return nil, errors.New("the conversion webhook is down")
			}
			return next.RoundTrip(r)
		})
	})
	told := make(chan []problem.Problem, 100)
	h, err := home.New(home.Config{Client: breaking, Controllers: []home.Controller{New(kinds)}, Tell: func(p []problem.Problem) { told <- p }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h.Set(home.Fleet{Registry: new(clusters.Registry)})
	ctx, cancel := context.WithCancel(t.Context())
	var ran sync.WaitGroup
	ran.Go(func() { h.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		ran.Wait()
	})
	// becomes waits until a target refers to a Secret and has just these labels.
	becomes := func(name, secret string, labels map[string]string) {
		t.Helper()
		labels[target.AutomaticLabel] = "true"
		var last string
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			tree, meta, err := hub.Get(t.Context(), targetType, targets.ID("team", name))
			if err == nil && manifest.Text(tree, "spec", "connectionSecretRef", "name") == secret && maps.Equal(meta.Labels, labels) && len(meta.OwnerReferences) == 1 {
				return
			}
			last = fmt.Sprint(tree, err)
			select {
			case <-t.Context().Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		t.Fatalf("target %s: have %s", name, last)
	}
	tells := func(text string) {
		t.Helper()
		for {
			select {
			case list := <-told:
				for _, p := range list {
					if strings.Contains(p.String(), text) {
						return
					}
				}
			case <-time.After(30 * time.Second):
				t.Fatalf("nobody was told %q", text)
			}
		}
	}

	const dev = "{apiVersion: compute.crossplane.io/v1alpha1, kind: KubernetesCluster, metadata: {name: dev, namespace: team, labels: {%s}}, spec: {writeConnectionSecretToRef: {name: dev-secret}}, status: {bindingPhase: Bound}}"
	has(fmt.Sprintf(dev, "env: dev, tier: a"))
	becomes("dev", "dev-secret", map[string]string{"env": "dev", "tier": "a"})
	tells("the conversion webhook is down")
	broken.Store(false)
	has(fmt.Sprintf(dev, "env: test"))
	becomes("dev", "dev-secret", map[string]string{"env": "test"})

	// Whose the claim is, is not said of its target: an inventory would prune it.
	has(fmt.Sprintf(dev, "env: test, applyset.kubernetes.io/part-of: applyset-x-v1, gitopsd.dev/package: x, more: x"))
	becomes("dev", "dev-secret", map[string]string{"env": "test", "more": "x"})

	has("{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: edge, namespace: team}, status: {conditions: [{type: ControlPlaneHealthy, status: 'True'}]}}")
	tells("no Secret of its namespace has the label x-k8s.io/cluster-profile=edge")
	has("{apiVersion: v1, kind: Secret, metadata: {name: another-access, namespace: team, labels: {x-k8s.io/cluster-profile: edge, x-k8s.io/cluster-profile-namespace: fleet}}}")
	has("{apiVersion: v1, kind: Secret, metadata: {name: edge-access, namespace: team, labels: {x-k8s.io/cluster-profile: edge, x-k8s.io/cluster-profile-namespace: team}}}")
	has("{apiVersion: multicluster.x-k8s.io/v1alpha1, kind: ClusterProfile, metadata: {name: edge, namespace: team, labels: {zone: b}}, status: {conditions: [{type: ControlPlaneHealthy, status: 'True'}]}}")
	becomes("edge", "edge-access", map[string]string{"zone": "b"})
	// A Secret that takes its place is noticed by itself.
	has("{apiVersion: v1, kind: Secret, metadata: {name: edge-access, namespace: team, labels: {x-k8s.io/cluster-profile: former}}}")
	tells("no Secret of its namespace has the label x-k8s.io/cluster-profile=edge")
	has("{apiVersion: v1, kind: Secret, metadata: {name: edge-rotated, namespace: team, labels: {x-k8s.io/cluster-profile: edge}}}")
	becomes("edge", "edge-rotated", map[string]string{"zone": "b"})
	// Those of gitopsd's own namespace are for registrations.
	has("{apiVersion: v1, kind: Namespace, metadata: {name: gitopsd-system}}")
	has(strings.NewReplacer("name: dev,", "name: own,", "namespace: team", "namespace: gitopsd-system", "%s", "").Replace(dev))
	has(strings.NewReplacer("name: dev,", "name: after,", "%s", "").Replace(dev))
	becomes("after", "dev-secret", map[string]string{})
	if _, _, err := hub.Get(t.Context(), targetType, targets.ID("gitopsd-system", "own")); kube.ClassOf(err) != kube.NotFound {
		t.Errorf("a target is beside gitopsd's own credentials: %v", err)
	}

	has("{apiVersion: workload.crossplane.io/v1alpha1, kind: KubernetesTarget, metadata: {name: taken, namespace: team}, spec: {connectionSecretRef: {name: mine}}}")
	has(strings.NewReplacer("name: dev,", "name: taken,", "%s", "").Replace(dev))
	tells("kubernetestarget.workload.crossplane.io/team/taken exists and is not its own")
}
