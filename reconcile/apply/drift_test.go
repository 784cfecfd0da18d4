package apply_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

const drifting = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME, labels: {team: blue}}
data: {color: green, size: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.org/web:1
        env: [{name: A, value: "1"}, {name: B, value: "2"}]
        ports: [{containerPort: 80}, {containerPort: 53, protocol: UDP}]
`

const deploymentWeb = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: $NAME}}"

// Drift is corrected with at most three requests, by the process that applied the object
// and by a new one.
func TestDrift(t *testing.T) {
	for _, tt := range []struct {
		name   string
		drift  func(b *bed)
		reason string // "" when it is none
		object string
	}{
		{
			name: "value", object: "configmap/$NAME/a", reason: "drift: data.color changed by kubectl-edit",
			drift: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`) },
		},
		{
			name: "removed field", object: "configmap/$NAME/a", reason: "drift: data.size removed",
			drift: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"size":null}}`) },
		},
		{
			name: "label", object: "configmap/$NAME/a", reason: "drift: metadata.labels.team changed by kubectl-label",
			drift: func(b *bed) { b.edit("kubectl-label", cm("a"), `{"metadata":{"labels":{"team":"red"}}}`) },
		},
		{
			name: "applied by force", object: "configmap/$NAME/a", reason: "drift: data.color changed by kubectl",
			drift: func(b *bed) { b.as("kubectl", strings.Replace(cm("a"), "}}", "}, data: {color: red}}", 1)) },
		},
		{
			name: "list element", object: "deployment.apps/$NAME/web", reason: `drift: spec.template.spec.containers[name=web].env removed`,
			drift: func(b *bed) {
				b.patch("kubectl-edit", deploymentWeb, "application/strategic-merge-patch+json",
					`{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","$patch":"delete"}]}]}}}}`)
			},
		},
		{
			name: "scaled", object: "deployment.apps/$NAME/web", reason: "drift: spec.replicas changed by kubectl-scale",
			drift: func(b *bed) { b.edit("kubectl-scale", deploymentWeb, `{"spec":{"replicas":3}}`) },
		},
		{
			name: "owned by nobody", object: "configmap/$NAME/a", reason: "drift: the record of our fields is gone from metadata.managedFields",
			drift: func(b *bed) { b.edit("x", cm("a"), `{"metadata":{"managedFields":[{}]}}`) },
		},
		{
			name: "something added", object: "configmap/$NAME/a", reason: "drift: data.more, metadata.labels.x added by kubectl-edit",
			drift: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"more":"x"},"metadata":{"labels":{"x":"y"}}}`) },
		},
		{
			name: "changed and added", object: "configmap/$NAME/a", reason: "drift: data.color changed by kubectl-edit; data.more added by kubectl-edit",
			drift: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red","more":"x"}}`) },
		},
		{
			name: "added by a controller", object: "configmap/$NAME/a",
			drift: func(b *bed) { b.edit("injector", cm("a"), `{"data":{"more":"x"},"metadata":{"labels":{"x":"y"}}}`) },
		},
		{
			name: "same value", object: "configmap/$NAME/a",
			drift: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"color":"green"}}`) },
		},
		{
			name: "status", object: "deployment.apps/$NAME/web",
			drift: func(b *bed) {
				o := b.set(deploymentWeb).All()[0]
				b.rawAt("PATCH", o, "/status", "fieldManager=somebody", "application/merge-patch+json", []byte(`{"status":{"observedGeneration":7}}`))
			},
		},
	} {
		for _, restarted := range []bool{false, true} {
			name := tt.name
			if restarted {
				name += " after a restart"
			}
			t.Run(name, func(t *testing.T) {
				b := newBed(t)
				set := b.set(drifting)
				b.apply(set)
				b.apply(set) // what controllers add is looked at
				tt.drift(b)
				if restarted {
					b.restart()
				}
				b.requests.take()
				steps, results := b.apply(set)
				b.wantNothing("results", results)
				if tt.reason == "" {
					b.wantNothing("steps", steps)
					b.settled(set)
					return
				}
				sent := 0
				for _, r := range b.requests.take() {
					if !strings.HasPrefix(r, "GET ") {
						sent++
					}
				}
				if sent > 3 {
					t.Errorf("%d requests to verify and correct", sent)
				}
				b.want("steps", steps, "configure "+tt.object+" "+tt.reason)
				b.settled(set)
			})
		}
	}
}

// Drift that is left as it is, since it is to be reported only or has to wait, is
// looked at once.
func TestDriftIsVerifiedOnce(t *testing.T) {
	b := newBed(t)
	set := b.set(drifting)
	b.apply(set)
	b.apply(set) // what controllers add is looked at
	for i, tt := range []struct {
		edit, want string
		dryRuns    int
	}{
		{`{"data":{"color":"red"}}`, "configure configmap/$NAME/a drift: data.color changed by kubectl-edit", 1},
		{"", "configure configmap/$NAME/a drift: data.color changed by kubectl-edit", 0},
		{`{"data":{"size":"2"}}`, "configure configmap/$NAME/a drift: data changed by kubectl-edit", 1},
		{`{"data":{"color":"green","size":"1"}}`, "configure configmap/$NAME/a drift: data changed by kubectl-edit", 1},
		{"", "configure configmap/$NAME/a drift: data changed by kubectl-edit", 0},
	} {
		if tt.edit != "" {
			b.edit("kubectl-edit", cm("a"), tt.edit)
		}
		b.requests.take()
		b.want(fmt.Sprintf("steps of look %d", i), b.steps(b.plan(set, apply.PlanOptions{})), tt.want)
		dryRuns := 0
		for _, r := range b.requests.take() {
			if strings.HasPrefix(r, "PATCH ") {
				dryRuns++
			}
		}
		if dryRuns != tt.dryRuns {
			t.Errorf("look %d: %d dry runs, want %d", i, dryRuns, tt.dryRuns)
		}
	}
	b.apply(set)
	b.settled(set)
}

// An object that somebody deletes comes back.
func TestDeleted(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	b.delete(cm("a"))
	steps, _ := b.apply(set)
	b.want("steps", steps, "create configmap/$NAME/a drift: somebody deleted it")
	b.settled(set)
}

// A CRD that somebody deletes takes its objects along; both come back.
func TestVanishedDefinition(t *testing.T) {
	b := newBed(t)
	set := b.set(everything)
	b.apply(set)
	b.delete(strings.Split(everything, "---")[6])
	eventually(t, "the type is gone", func(ctx context.Context) bool {
		b.cluster.Forget(b.name + ".example.org")
		_, err := b.cluster.Type(ctx, b.name+".example.org/v1", "Widget")
		return kube.ClassOf(err) == kube.NoSuchType
	})
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps,
		"create customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org drift: somebody deleted it",
		"create widget.$NAME.example.org/one")
	b.settled(set)

	// Once more, and now neither is wanted.
	b.delete(strings.Split(everything, "---")[6])
	eventually(t, "the type is gone", func(ctx context.Context) bool {
		b.cluster.Forget(b.name + ".example.org")
		_, err := b.cluster.Type(ctx, b.name+".example.org/v1", "Widget")
		return kube.ClassOf(err) == kube.NoSuchType
	})
	rest := b.set(strings.Join(strings.Split(everything, "---")[:6], "---"))
	steps, results = b.apply(rest)
	b.wantNothing("steps", steps)
	b.wantNothing("results", results)
	if strings.Contains(b.parent()[kinds], "Widget") {
		t.Errorf("the inventory still has %s", b.parent()[kinds])
	}
}

// An empty list that merges with others' elements is applied and not owned. It
// looks like drift once after each start, and costs one dry run then.
func TestPhantomDrift(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.Replace(drifting, `{name: B, value: "2"}]`, `{name: B, value: "2"}]
        volumeMounts: []`, 1))
	b.apply(set)
	eventually(t, "the deployment controller's annotation", func(context.Context) bool {
		meta := b.get(deploymentWeb)["metadata"].(map[string]any)
		_, ok := meta["annotations"].(map[string]any)["deployment.kubernetes.io/revision"]
		return ok
	})
	for range 2 {
		b.restart()
		b.requests.take()
		steps, _ := b.apply(set)
		b.wantNothing("steps", steps)
		dry := 0
		for _, r := range b.requests.take() {
			if strings.HasSuffix(r, "(dry run)") {
				dry++
			}
		}
		if dry != 1 {
			t.Errorf("%d dry runs, want 1", dry)
		}
		b.apply(set)
		for _, r := range b.requests.take() {
			if !strings.HasPrefix(r, "GET ") {
				t.Errorf("the second look sent %s", r)
			}
		}
	}
}

// Empty and odd fields that we own are not taken for drift.
func TestEmptyFields(t *testing.T) {
	b := newBed(t)
	set := b.set(`
apiVersion: v1
kind: Namespace
metadata: {name: $NAME, labels: {}, annotations: {}, creationTimestamp: null}
spec: {}
status: {}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME}
spec:
  strategy: {}
  selector: {matchLabels: {app: web}, matchExpressions: []}
  template:
    metadata: {labels: {app: web}, creationTimestamp: null}
    spec:
      securityContext: {}
      nodeSelector: {}
      tolerations: []
      hostAliases: [{ip: 127.0.0.1, hostnames: [a]}]
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}]
      containers:
      - name: web
        image: example.org/web:1
        command: []
        resources: {}
        ports: [{containerPort: 53, protocol: UDP}, {containerPort: 53}]
        livenessProbe: {httpGet: {port: 80, httpHeaders: []}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME, finalizers: [example.org/a]}
data: {}
binaryData: null
immutable: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a, namespace: $NAME}
rules: []
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: $NAME}
spec: {selector: {}, externalIPs: [], ports: [{port: 1}], sessionAffinityConfig: null}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: $NAME}
spec: {podSelector: {}, ingress: [{}], policyTypes: [Ingress]}
`)
	_, results := b.apply(set)
	b.wantNothing("results", results)
	b.restart()
	b.requests.take()
	steps, _ := b.apply(set)
	b.wantNothing("steps", steps)
	for _, r := range b.requests.take() {
		if strings.HasSuffix(r, "(dry run)") {
			t.Error(r)
		}
	}
	b.edit("cleanup", cm("a"), `{"metadata":{"finalizers":null}}`)
}

// A Secret written with stringData is kept by its data: changes of others are drift, and
// a removed key is removed.
func TestStringData(t *testing.T) {
	b := newBed(t)
	secret := "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: $NAME}, data: {x: eA==}, stringData: {a: '1', b: '2', x: 'y'}}"
	set := b.set(strings.Split(two, "---")[0] + "---\n" + secret)
	b.apply(set)
	b.edit("kubectl-edit", secret, `{"data":{"a":"Mw=="}}`)
	steps, _ := b.apply(set)
	b.want("steps", steps, "configure secret/$NAME/s drift: data.a changed by kubectl-edit")
	b.settled(set)
	b.apply(b.set(strings.Split(two, "---")[0] + "---\n" + strings.Replace(secret, "b: '2', ", "", 1)))
	if data := b.get(secret)["data"].(map[string]any); len(data) != 2 || data["a"] != "MQ==" || data["x"] != "eQ==" {
		t.Errorf("data is %v", data)
	}
}

// A tool that takes an object into its own set gets it: it is a conflict, and is
// not pruned.
func TestRelabelled(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(two))
	b.edit("kubectl-applyset", cm("a"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":"applyset-theirs-v1"}}}`)
	steps, _ := b.apply(b.set(two))
	b.want("steps", steps, `conflict configmap/$NAME/a it is a member of another ApplySet, applyset-theirs-v1; annotate it with gitopsd.dev/adopt: "true" to take it over, or the Cluster with gitopsd.dev/adopt: applyset/applyset-theirs-v1 for all that is`)
	steps, _ = b.apply(b.set(strings.Split(two, "---")[0]))
	b.want("steps", steps, "prune configmap/$NAME/b")
	if b.get(cm("a")) == nil {
		t.Error("what is in another set was pruned")
	}
}

// A label that is lost is put back: the object is still ours. So is what was edited with it. It
// is drift as any other, also if it is removed again and again.
func TestLostLabel(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	id := b.get(cm("a"))["metadata"].(map[string]any)["labels"].(map[string]any)[plan.PartOfLabel].(string)
	lost := "drift: somebody removed its label applyset.kubernetes.io/part-of: " + id
	for range 3 {
		b.edit("kubectl-label", cm("a"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":null}},"data":{"color":"red"}}`)
		steps, results := b.apply(set)
		b.wantNothing("results", results)
		b.want("steps", steps, "configure configmap/$NAME/a "+lost+"; data.color changed by kubectl-label")
	}
	b.edit("kubectl-label", cm("a"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":null}}}`)
	steps, _ := b.apply(set)
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "held configmap/$NAME/a "+lost+"; gitopsd corrected it 3 times in ") {
		t.Errorf("the steps are %q", steps)
	}
	b.restart() // which forgets that it is disputed
	b.apply(set)
	b.settled(set)
}

// Ours by a copied label alone is not ours to prune: a Service's labels are
// copied to its EndpointSlices.
func TestCopiedLabel(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	slice := "\n---\n{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: own, namespace: $NAME}, addressType: IPv4, endpoints: []}"
	set := b.set(parts[0] + "---" + parts[3] + slice)
	b.apply(set)
	eventually(t, "the service has a slice with its labels", func(ctx context.Context) bool {
		typ, err := b.cluster.Type(ctx, "discovery.k8s.io/v1", "EndpointSlice")
		if err != nil {
			return false
		}
		found := 0
		b.cluster.List(ctx, typ, kube.ListOptions{Namespace: b.name}, func(m *metav1.PartialObjectMetadata) bool {
			if m.Labels["applyset.kubernetes.io/part-of"] != "" {
				found++
			}
			return true
		})
		return found == 2
	})
	b.settled(set)
	if p := b.plan(set, apply.PlanOptions{}); p.HasChanges() {
		t.Error(b.steps(p))
	}
}
