package apply_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/render/manifest"
)

const resting = `
apiVersion: v1
kind: Namespace
metadata: {name: $NAME}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, namespace: $NAME, labels: {team: blue}}
data: {color: green}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: b, namespace: $NAME}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {kind: Gadget, plural: gadgets}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: $NAME.example.org/v1
kind: Gadget
metadata: {name: $NAME}
spec: {size: 1}
`

const restingGadget = "{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: $NAME}}"

// checkpoint makes a pass, and returns its checkpoint.
func (b *bed) checkpoint(set *manifest.Set, opts apply.PlanOptions) *apply.Checkpoint {
	b.t.Helper()
	p := b.plan(set, opts)
	b.execute(p)
	unhealthy, err := b.applier.Health(b.t.Context(), p)
	if err != nil || len(unhealthy) > 0 {
		b.t.Fatal(unhealthy, err)
	}
	return b.applier.Checkpoint(p)
}

// rest brings the cluster to rest, and returns the checkpoint as another process
// reads it.
func (b *bed) rest(set *manifest.Set) *apply.Checkpoint {
	b.t.Helper()
	b.checkpoint(set, apply.PlanOptions{})
	// What controllers add is looked at.
	c := b.checkpoint(set, apply.PlanOptions{})
	if c == nil {
		b.t.Fatal("no checkpoint of a cluster that is at rest")
	}
	text, err := json.Marshal(c)
	if err != nil {
		b.t.Fatal(err)
	}
	read := new(apply.Checkpoint)
	if err := json.Unmarshal(text, read); err != nil {
		b.t.Fatal(err)
	}
	if !reflect.DeepEqual(c, read) {
		b.t.Fatalf("%s is not what was written", text)
	}
	return read
}

func (b *bed) atRest(c *apply.Checkpoint) bool {
	b.t.Helper()
	at, err := b.applier.AtRest(b.t.Context(), c)
	if err != nil {
		b.t.Fatal(err)
	}
	return at
}

// condition gives the gadget a Ready condition.
func (b *bed) condition(status string) {
	b.t.Helper()
	b.rawAt(http.MethodPatch, b.set(restingGadget).All()[0], "/status", "fieldManager=controller", "application/merge-patch+json",
		[]byte(`{"status":{"conditions":[{"type":"Ready","status":"`+status+`"}]}}`))
}

// A process that knows a checkpoint sees with a list for each kind, and one more
// for each kind with a status, that a cluster is at rest, or that it is not.
func TestCheckpoint(t *testing.T) {
	for _, tt := range []struct {
		name    string
		disturb func(b *bed)
		rests   bool
	}{
		{name: "nothing", disturb: func(b *bed) {}, rests: true},
		{name: "status", disturb: func(b *bed) { b.condition("True") }, rests: true},
		{name: "an object of somebody else", disturb: func(b *bed) { b.as("kubectl", cm("c")) }, rests: true},
		{name: "unhealthy", disturb: func(b *bed) { b.condition("False") }},
		{name: "value", disturb: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`) }},
		{name: "value of a custom resource", disturb: func(b *bed) { b.edit("kubectl-edit", restingGadget, `{"spec":{"size":2}}`) }},
		{name: "value, without a trace of who", disturb: func(b *bed) {
			b.edit("gitopsd", cm("a"), `{"data":{"color":"red"},"metadata":{"managedFields":[{}]}}`)
		}},
		{name: "label", disturb: func(b *bed) { b.edit("kubectl-edit", cm("a"), `{"metadata":{"labels":{"team":"red"}}}`) }},
		{name: "membership", disturb: func(b *bed) {
			b.edit("kubectl-edit", cm("a"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":null}}}`)
		}},
		{name: "an object that shares a label", rests: true, disturb: func(b *bed) {
			part := b.get(cm("a"))["metadata"].(map[string]any)["labels"].(map[string]any)["applyset.kubernetes.io/part-of"].(string)
			b.as("kubectl", strings.Replace(cm("c"), "}}", `, labels: {applyset.kubernetes.io/part-of: "`+part+`"}}}`, 1))
		}},
		{name: "a copy that is not healthy", rests: true, disturb: func(b *bed) {
			meta := b.get(restingGadget)["metadata"].(map[string]any)
			text, err := json.Marshal(map[string]any{
				"apiVersion": b.name + ".example.org/v1", "kind": "Gadget",
				"metadata": map[string]any{"name": "copy", "labels": meta["labels"], "annotations": meta["annotations"]},
			})
			if err != nil {
				b.t.Fatal(err)
			}
			b.as("kubectl", string(text))
			b.rawAt(http.MethodPatch, b.set(string(text)).All()[0], "/status", "fieldManager=controller", "application/merge-patch+json",
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`))
		}},
		{name: "owner", disturb: func(b *bed) {
			uid := b.get(cm("b"))["metadata"].(map[string]any)["uid"].(string)
			b.edit("kubectl-edit", cm("a"), `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"b","uid":"`+uid+`"}]}}`)
		}},
		{name: "deleted", disturb: func(b *bed) { b.delete(cm("a")) }},
		{name: "deleted and made anew", disturb: func(b *bed) {
			labels := b.get(cm("b"))["metadata"].(map[string]any)["labels"]
			text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": "b", "namespace": b.name, "labels": labels}})
			if err != nil {
				b.t.Fatal(err)
			}
			b.delete(cm("b"))
			b.as("kubectl", string(text))
		}},
		{name: "being deleted", disturb: func(b *bed) {
			b.edit("kubectl-edit", restingGadget, `{"metadata":{"finalizers":["example.org/never"]}}`)
			b.delete(restingGadget)
		}},
		{name: "definition", disturb: func(b *bed) {
			b.patch("kubectl-edit", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: gadgets.$NAME.example.org}}",
				"application/json-patch+json", `[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/description","value":"x"}]`)
		}},
		{name: "kinds of the inventory", disturb: func(b *bed) {
			b.edit("kubectl-edit", "{apiVersion: v1, kind: ConfigMap, metadata: {name: inventory-$NAME, namespace: gitopsd-system}}",
				`{"metadata":{"annotations":{"applyset.kubernetes.io/contains-group-kinds":"ConfigMap,Namespace"}}}`)
		}},
		{name: "the inventory", disturb: func(b *bed) {
			b.delete("{apiVersion: v1, kind: ConfigMap, metadata: {name: inventory-$NAME, namespace: gitopsd-system}}")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			set := b.set(resting)
			c := b.rest(set)
			tt.disturb(b)
			defer func() {
				if b.get(restingGadget) != nil {
					b.edit("kubectl-edit", restingGadget, `{"metadata":{"finalizers":null}}`)
				}
			}()
			b.restart()
			b.requests.take()
			if b.atRest(c) != tt.rests {
				t.Fatalf("at rest: %v", !tt.rests)
			}
			asked := b.requests.take()
			slices.Sort(asked)
			group := "/apis/" + b.name + ".example.org/v1/gadgets"
			if tt.rests {
				b.want("requests", asked, "GET /api/v1/configmaps", "GET /api/v1/namespaces",
					"GET /api/v1/namespaces/gitopsd-system/configmaps/inventory-"+b.name,
					"GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions", "GET "+group, "GET "+group)
				b.wantNothing("steps", b.steps(b.plan(set, apply.PlanOptions{})))
				return
			}
			for _, r := range asked {
				if !strings.HasPrefix(r, "GET ") {
					t.Errorf("looking sent %s", r)
				}
			}
		})
	}
}

// Follow notifies when a cluster is not at rest any more, and sends no requests while it
// is.
func TestCheckpointFollowed(t *testing.T) {
	b := newBed(t)
	set := b.set(resting)
	c := b.rest(set)
	b.restart()
	notified := b.follow()
	if !b.atRest(c) {
		t.Fatal("it is not at rest")
	}
	b.requests.take()
	if !b.atRest(c) {
		t.Fatal("it is not at rest any more")
	}
	b.wantNothing("requests", b.withoutWatches())
	b.edit("kubectl-edit", cm("a"), `{"data":{"color":"red"}}`)
	wait(t, notified)
	if b.atRest(c) {
		t.Fatal("it is still at rest")
	}
	b.wantNothing("requests", b.withoutWatches())
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "configure configmap/$NAME/a drift: data changed by kubectl-edit")
	if lists := slices.DeleteFunc(b.withoutWatches(), func(r string) bool {
		return !strings.HasSuffix(r, "/configmaps") && !strings.HasSuffix(r, "/namespaces")
	}); len(lists) > 0 {
		t.Errorf("what was listed is listed again: %s", lists)
	}
}

// A pass after a checkpoint was resumed makes the same checkpoint, although it judges no
// object again. Only a checkpoint shows whether a live definition has a rule of its own.
func TestCheckpointAgain(t *testing.T) {
	parts := strings.Split(resting, "---")
	for _, tt := range []struct {
		name, definition, desired string
		rests                     bool
	}{
		{"definition in the plan", "", resting, true},
		{"definition of others", parts[3], parts[0] + "---" + parts[4], true},
		{"rule of others", strings.Replace(parts[3], "example.org}", `example.org, annotations: {gitopsd.dev/health: "{current: 'true'}"}}`, 1),
			parts[0] + "---" + parts[4], false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			if tt.definition != "" {
				b.as("somebody", tt.definition)
				b.serves("$NAME.example.org", "Gadget")
			}
			set := b.set(tt.desired)
			c := b.rest(set)
			for range 2 {
				b.restart()
				b.follow()
				if b.atRest(c) != tt.rests {
					t.Fatalf("at rest: %v", !tt.rests)
				}
				b.quiet(set)
				if ids := b.applier.Unjudged(); len(ids) > 0 {
					t.Errorf("no rule can judge %v", ids)
				}
				if again := b.checkpoint(set, apply.PlanOptions{}); !reflect.DeepEqual(again, c) {
					t.Errorf("the checkpoint is %+v, and was %+v", again, c)
				}
			}
		})
	}
}

// There is no checkpoint of a cluster where something is left to do, or where that
// depends on more than its members.
func TestNoCheckpoint(t *testing.T) {
	for _, tt := range []struct {
		name    string
		prepare func(b *bed) (*manifest.Set, apply.PlanOptions)
	}{
		{name: "conflict", prepare: func(b *bed) (*manifest.Set, apply.PlanOptions) {
			b.as("kubectl", "{apiVersion: v1, kind: Namespace, metadata: {name: $NAME}}")
			b.as("helm", strings.Replace(cm("a"), "}}", `, labels: {app.kubernetes.io/managed-by: Helm}, annotations: {meta.helm.sh/release-name: x, meta.helm.sh/release-namespace: "y"}}}`, 1))
			return b.set(two), apply.PlanOptions{}
		}},
		{name: "not rendered", prepare: func(b *bed) (*manifest.Set, apply.PlanOptions) {
			set := b.set(two)
			b.apply(set)
			var opts apply.PlanOptions
			opts.RenderFailed = "for a test"
			return b.set(""), opts
		}},
		{name: "pinned", prepare: func(b *bed) (*manifest.Set, apply.PlanOptions) {
			b.as("somebody", gadgets)
			b.serves("$NAME.example.org", "Gadget")
			pinned := `{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: $NAME, annotations: {gitopsd.dev/type: "` + b.digest(gadgets) + `"}}}`
			return b.set(two + "---\n" + pinned), apply.PlanOptions{}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			set, opts := tt.prepare(b)
			p := b.plan(set, opts)
			b.execute(p)
			if c := b.applier.Checkpoint(p); c != nil {
				t.Errorf("a checkpoint: %+v", c)
			}
		})
	}
}
