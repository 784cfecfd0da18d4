package apply_test

import (
	"context"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
)

const everything = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: $NAME}
data: {color: green}
---
apiVersion: v1
kind: Secret
metadata: {name: password, namespace: $NAME}
stringData: {password: hunter2}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: $NAME}
spec:
  selector: {app: web}
  ports: [{port: 80, name: http}, {port: 53, name: dns}, {port: 53, protocol: UDP, name: dns-udp}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NAME}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - name: web
        image: example.org/web:1
        args: []
        env: [{name: A, value: "1"}, {name: B, value: ""}]
        ports: [{containerPort: 80}]
        resources: {limits: {cpu: "0.5", memory: 1024Mi}}
        volumeMounts: [{name: tmp, mountPath: /tmp}]
      volumes: [{name: tmp, emptyDir: {}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "$NAME:reader"}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer}, color: {type: string, default: red}}}
---
apiVersion: $NAME.example.org/v1
kind: Widget
metadata: {name: one, namespace: dropped-by-scope}
spec: {size: 1}
`

// Everything is applied in one pass, types before their objects, and a second
// pass changes nothing.
func TestEverything(t *testing.T) {
	b := newBed(t)
	set := b.set(everything)
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps,
		"create namespace/$NAME",
		"create customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org",
		"create configmap/$NAME/settings",
		"create secret/$NAME/password",
		"create service/$NAME/web",
		"create clusterrole.rbac.authorization.k8s.io/$NAME:reader",
		"create deployment.apps/$NAME/web",
		"create widget.$NAME.example.org/one",
	)
	b.settled(set)
	p := b.plan(set, apply.PlanOptions{})
	eventually(t, "the deployment is ready", func(ctx context.Context) bool {
		health, err := b.applier.Health(ctx, p)
		return err == nil && len(health) == 0
	})
	b.settled(set)
}

const two = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME}
data: {color: green, size: "1"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b, namespace: $NAME}
data: {color: blue}
`

// A changed object costs one request, and one that left the repository goes.
func TestChangeAndPrune(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(two))
	b.requests.take()

	changed := b.set(strings.Replace(two, "green", "red", 1))
	steps, results := b.apply(changed)
	b.wantNothing("results", results)
	b.want("steps", steps, "configure configmap/$NAME/a changed in the repository")
	b.want("writes", b.writes(), "PATCH configmaps/a")
	if data := b.get(cm("a"))["data"].(map[string]any); data["color"] != "red" || data["size"] != "1" {
		t.Errorf("data is %v", data)
	}
	b.settled(changed)

	// A field that is not rendered any more is removed.
	fewer := b.set(strings.Replace(two, `green, size: "1"`, "red", 1))
	b.apply(fewer)
	if data := b.get(cm("a"))["data"].(map[string]any); len(data) != 1 {
		t.Errorf("data is %v", data)
	}
	b.settled(fewer)

	namespaceOnly := b.set(strings.Split(two, "---")[0])
	b.requests.take()
	steps, results = b.apply(namespaceOnly)
	b.wantNothing("results", results)
	b.want("steps", steps, "prune configmap/$NAME/a", "prune configmap/$NAME/b")
	// The kind leaves the inventory with the last object.
	b.want("writes", b.writes(), "DELETE configmaps/a", "DELETE configmaps/b", "PATCH configmaps/inventory-$NAME")
	if parent := b.parent(); parent[kinds] != "Namespace" || parent[namespaces] != "" {
		t.Errorf("the inventory says %v", parent)
	}
	b.settled(namespaceOnly)
}

// The inventory is an ApplySet that other tools recognise.
func TestInventory(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(everything))
	want := map[string]string{
		"applyset.kubernetes.io/tooling": "gitopsd/v3",
		namespaces:                       b.name,
		kinds: "ClusterRole.rbac.authorization.k8s.io,ConfigMap,CustomResourceDefinition.apiextensions.k8s.io," +
			"Deployment.apps,Namespace,Secret,Service,Widget." + b.name + ".example.org",
	}
	parent := b.parent()
	for k, v := range want {
		if parent[k] != v {
			t.Errorf("%s: have %q, want %q", k, parent[k], v)
		}
	}
}

func TestForeignParent(t *testing.T) {
	for _, tt := range []struct{ name, patch, want string }{
		{"tool", `{"metadata":{"annotations":{"applyset.kubernetes.io/tooling":"kubectl/v1.36"}}}`, "belongs to kubectl: delete it with that tool"},
		{"none", `{"metadata":{"annotations":{"applyset.kubernetes.io/tooling":null}}}`, "so that it is not gitopsd's"},
		{"id", `{"metadata":{"labels":{"applyset.kubernetes.io/id":"applyset-x-v1"}}}`, "somebody changed it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(b.set(two))
			b.edit("kubectl", parentOf(b), tt.patch)
			b.restart()
			b.requests.take()
			_, err := b.applier.Plan(t.Context(), b.set(two), apply.PlanOptions{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			b.wantNothing("writes", b.writes())
		})
	}
}

// An object that fails stops the objects that depend on it, and no others.
func TestFailures(t *testing.T) {
	b := newBed(t)
	good := b.set(two)
	b.apply(good)
	set := b.set(two + `
---
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: $NAME}
spec: {ports: [{port: 99999}], unknown: true}
---
apiVersion: v1
kind: Namespace
metadata: {name: Not-A-Name}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: lost, namespace: Not-A-Name}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: homeless, namespace: $NAME-nowhere}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: nowhere}
---
apiVersion: example.org/v1
kind: Unheard
metadata: {name: of}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: fine, namespace: $NAME}
---
apiVersion: v1
kind: Secret
metadata: {name: secret, namespace: $NAME}
data: {password: hunter2-is-not-base64}
---
apiVersion: authorization.k8s.io/v1
kind: SubjectAccessReview
metadata: {name: review}
`)
	steps, results := b.apply(set)
	b.want("steps", steps,
		"create namespace/Not-A-Name",
		"refused configmap/nowhere its kind is namespaced, and it has no namespace; set metadata.namespace",
		"create configmap/Not-A-Name/lost",
		"create configmap/$NAME/fine",
		"create configmap/$NAME-nowhere/homeless",
		"create secret/$NAME/secret",
		"create service/$NAME/bad",
		"refused subjectaccessreview.authorization.k8s.io/review cannot tell what is there: objects of this kind cannot be listed, patched and deleted",
		"refused unheard.example.org/of the cluster serves no kind Unheard in group example.org; is its CRD or package missing?",
	)
	b.want("results", results,
		`failed namespace/Not-A-Name: cluster $NAME: apply namespace/Not-A-Name: metadata.name: Invalid value: "Not-A-Name": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`,
		`skipped configmap/Not-A-Name/lost: its namespace is not there: metadata.name: Invalid value: "Not-A-Name": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`,
		`failed configmap/$NAME-nowhere/homeless: cluster $NAME: apply configmap/$NAME-nowhere/homeless: namespace "$NAME-nowhere" not found`,
		`failed secret/$NAME/secret: cluster $NAME: apply secret/$NAME/secret: not valid (the API server's message is withheld: it may quote the Secret)`,
		`failed service/$NAME/bad: cluster $NAME: apply service/$NAME/bad: spec.unknown: field not declared in schema`,
	)
	// Nothing is pruned while what may replace it is not there.
	steps, results = b.apply(b.set(strings.Split(two, "---")[0] + `
---
apiVersion: v1
kind: ConfigMap
metadata: {name: homeless, namespace: $NAME-nowhere}
`))
	b.want("steps", steps, "create configmap/$NAME-nowhere/homeless",
		"prune configmap/$NAME/a", "prune configmap/$NAME/b", "prune configmap/$NAME/fine")
	if len(results) != 4 || !strings.Contains(results[1], "skipped configmap/$NAME/a: kept until the rest is applied: configmap/$NAME-nowhere/homeless") {
		t.Errorf("results: %s", strings.Join(results, "\n"))
	}
}

func TestBadDefinition(t *testing.T) {
	b := newBed(t)
	crd := strings.Split(everything, "---")[6]
	b.apply(b.set(crd))
	// A second CRD that claims the same kind is never established.
	twin := strings.ReplaceAll(strings.Replace(crd, "name: widgets.", "name: others.", 1), "plural: widgets", "plural: others")
	steps, results := b.apply(b.set(crd + "---" + twin))
	b.want("steps", steps, "create customresourcedefinition.apiextensions.k8s.io/others.$NAME.example.org")
	if len(results) != 1 || !strings.Contains(results[0], "NamesAccepted is False") {
		t.Errorf("results: %v", results)
	}
}
