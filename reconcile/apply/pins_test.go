package apply_test

import (
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

const gadgets = `
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
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}
`

// digest is the digest of the type that a definition has.
func (b *bed) digest(definition string) string {
	b.t.Helper()
	all, err := types.Of(b.set(definition).All()[0].Tree())
	if err != nil {
		b.t.Fatal(err)
	}
	return all[0].Digest
}

// The type may be somebody else's: then the live one counts. It is asked for when
// the object is to be written, and not again while nothing changes.
func TestPinsToLiveTypes(t *testing.T) {
	b := newBed(t)
	b.as("somebody", gadgets)
	b.serves("$NAME.example.org", "Gadget")
	gadget := func(pin string) string {
		return `{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g, annotations: {gitopsd.dev/type: "` + pin + `"}}, spec: {size: 1}}`
	}
	right, wrong := b.digest(gadgets), b.digest(strings.Replace(gadgets, "size", "weight", 1))
	steps, _ := b.apply(b.set(gadget(wrong) + "\n---\n" + two))
	refused := "refused gadget.$NAME.example.org/g pinned to $NAME.example.org/v1 Gadget " + wrong + ", which is " + right +
		" here; how they differ is not known, since no cluster and no package of the repository has the pinned type; bring the cluster to that type, or renew the pin with `gitopsd types pin --update`"
	if len(steps) < 2 || steps[len(steps)-1] != refused {
		t.Fatalf("have\n%s\nwant last\n%s", strings.Join(steps, "\n"), refused)
	}
	if b.get(gadget(wrong)) != nil {
		t.Error("it was applied all the same")
	}
	set := b.set(gadget(right) + "\n---\n" + two)
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "create gadget.$NAME.example.org/g")
	b.settled(set)
	b.apply(set)
	b.requests.take()
	b.apply(set)
	for _, r := range b.requests.take() {
		if strings.Contains(r, "customresourcedefinitions") {
			t.Errorf("nothing has changed, and yet it was asked: %s", r)
		}
	}
	// Built-in kinds have no type of that sort.
	steps, _ = b.apply(b.set(gadget(right) + "\n---\n" + strings.Replace(two, "metadata: {name: a, ", `metadata: {annotations: {gitopsd.dev/type: "`+right+`"}, name: a, `, 1)))
	if len(steps) != 1 || !strings.Contains(steps[0], "which no CRD defines in this cluster") {
		t.Errorf("a pinned ConfigMap: %q", steps)
	}
}

// A definition of others that changes later is noticed, unless it cannot be read at the
// moment.
func TestPinsToChangedTypes(t *testing.T) {
	b := newBed(t)
	b.as("somebody", gadgets)
	b.serves("$NAME.example.org", "Gadget")
	set := b.set(`{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g, annotations: {gitopsd.dev/type: "` + b.digest(gadgets) + `"}}, spec: {size: 1}}`)
	b.applied(set)
	f := newFaulty(b, 0)
	b.wantNothing("steps", b.steps(b.plan(set, apply.PlanOptions{})))
	changed := strings.Replace(gadgets, "size: {type: integer}", "size: {type: integer}, weight: {type: integer}", 1)
	b.as("somebody", changed)
	b.wantNothing("steps at once", b.steps(b.plan(set, apply.PlanOptions{})))
	for _, code := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		f.breaks(func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/customresourcedefinitions/") },
			answers(code, http.Header{"Content-Type": {"application/json"}}, `{"kind":"Status","apiVersion":"v1","status":"Failure"}`))
		b.applier.ForgetDefinitions()
		b.wantNothing("steps while it cannot be read", b.steps(b.plan(set, apply.PlanOptions{})))
		f.heals()
	}
	steps := b.steps(b.plan(set, apply.PlanOptions{}))
	if len(steps) != 1 || !strings.HasPrefix(steps[0], "refused gadget.$NAME.example.org/g pinned to") || !strings.Contains(steps[0], "which is "+b.digest(changed)+" here") {
		t.Errorf("after the change: %q", steps)
	}
}

// A refused member stays a member: it is pruned when it leaves the repository, even if
// another process has looked at the cluster in between.
func TestRefusedMembersStayMembers(t *testing.T) {
	b := newBed(t)
	gadget := func(crd string) string {
		return crd + `
---
{apiVersion: $NAME.example.org/v1, kind: Gadget, metadata: {name: g, annotations: {gitopsd.dev/type: "` + b.digest(gadgets) + `"}}, spec: {size: 1}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: $NAME}}
`
	}
	_, results := b.apply(b.set(gadget(gadgets)))
	b.wantNothing("results", results)
	grown := strings.Replace(gadgets, "size: {type: integer}", "size: {type: integer}, weight: {type: integer}", 1)
	steps, results := b.apply(b.set(gadget(grown)))
	b.wantNothing("results", results)
	if len(steps) != 2 || !strings.HasPrefix(steps[1], "refused gadget") || !strings.Contains(steps[1], "(this cluster until now)") || !strings.Contains(steps[1], ": field-added .spec.weight; ") {
		t.Fatalf("%q", steps)
	}
	if have := b.parent()[kinds]; !strings.Contains(have, "Gadget.") {
		t.Errorf("the inventory holds %s", have)
	}
	b.restart()
	rest := b.set(grown + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: $NAME}}\n")
	steps, results = b.apply(rest)
	b.wantNothing("results", results)
	b.want("steps", steps, "prune gadget.$NAME.example.org/g")
	b.settled(rest)
}

// So does an object whose prune is refused with its package, and one whose apiVersion is
// not served: each is the only one of its kind, and is pruned once it may be.
func TestRefusedStepsKeepTheirKinds(t *testing.T) {
	t.Run("package", func(t *testing.T) {
		b := newBed(t)
		crd := strings.Replace(gadgets, "metadata: {", "metadata: {labels: {gitopsd.dev/package: p}, ", 1)
		role := "---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME, labels: {gitopsd.dev/package: p}}}\n"
		b.applied(b.set(crd + role))
		steps, results := b.apply(b.set(strings.Replace(crd, "size", "weight", 1)))
		b.wantNothing("results", results)
		if len(steps) != 2 || !strings.HasPrefix(steps[0], "refused ") || !strings.HasPrefix(steps[1], "refused clusterrole") {
			t.Fatalf("%q", steps)
		}
		b.restart()
		steps, results = b.apply(b.set(crd))
		b.wantNothing("results", results)
		b.want("steps", steps, "prune clusterrole.rbac.authorization.k8s.io/$NAME")
		b.settled(b.set(crd))
	})
	t.Run("apiVersion", func(t *testing.T) {
		b := newBed(t)
		b.as("somebody", gadgets)
		b.serves("$NAME.example.org", "Gadget")
		gadget := func(version string) *manifest.Set {
			return b.set("{apiVersion: $NAME.example.org/" + version + ", kind: Gadget, metadata: {name: g}, spec: {size: 1}}\n---\n" + two)
		}
		b.applied(gadget("v1"))
		steps, _ := b.apply(gadget("v9"))
		if len(steps) != 1 || !strings.HasPrefix(steps[0], "refused gadget") {
			t.Fatalf("%q", steps)
		}
		b.restart()
		steps, results := b.apply(b.set(two))
		b.wantNothing("results", results)
		b.want("steps", steps, "prune gadget.$NAME.example.org/g")
		b.settled(b.set(two))
	})
}

const (
	// xrds is Crossplane's type of composite types, as far as it matters here.
	xrds = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: compositeresourcedefinitions.apiextensions.crossplane.io}
spec:
  group: apiextensions.crossplane.io
  scope: Cluster
  names: {kind: CompositeResourceDefinition, plural: compositeresourcedefinitions}
  versions:
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`
	databases = `
apiVersion: apiextensions.crossplane.io/v1
kind: CompositeResourceDefinition
metadata: {name: xdatabases.$NAME.example.org}
spec:
  group: $NAME.example.org
  scope: LegacyCluster
  names: {kind: XDatabase, plural: xdatabases}
  claimNames: {kind: Database, plural: databases}
  versions:
  - {name: v1, served: true, referenceable: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}}}}}
`
)

// The XRD defines the type of a claim, without the additions of Crossplane's CRD.
func TestPinsToLiveClaims(t *testing.T) {
	b := newBed(t)
	b.as("crossplane", xrds)
	b.serves("apiextensions.crossplane.io", "CompositeResourceDefinition")
	b.as("crossplane", databases)
	uid := b.get(databases)["metadata"].(map[string]any)["uid"].(string)
	b.as("crossplane", `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: databases.$NAME.example.org
  ownerReferences:
  - {apiVersion: apiextensions.crossplane.io/v1, kind: CompositeResourceDefinition, name: xdatabases.$NAME.example.org, uid: `+uid+`, controller: true, blockOwnerDeletion: true}
spec:
  group: $NAME.example.org
  scope: Namespaced
  names: {kind: Database, plural: databases, categories: [claim]}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}, compositionRef: {type: object, properties: {name: {type: string}}}}}}}}}
`)
	b.serves("$NAME.example.org", "Database")
	all, err := types.Of(b.set(databases).All()[0].Tree())
	if err != nil || len(all) != 2 || all[1].Kind != "Database" {
		t.Fatal(all, err)
	}
	claim := func(pin string) string {
		return `{apiVersion: $NAME.example.org/v1, kind: Database, metadata: {name: d, namespace: $NAME, annotations: {gitopsd.dev/type: "` + pin + `"}}, spec: {size: 1}}`
	}
	steps, _ := b.apply(b.set(claim(all[0].Digest) + "\n---\n" + two))
	if last := steps[len(steps)-1]; !strings.HasPrefix(last, "refused database.$NAME.example.org/$NAME/d pinned to $NAME.example.org/v1 Database "+all[0].Digest+", which is "+all[1].Digest+" here") {
		t.Errorf("pinned to the composite's type: %s", last)
	}
	set := b.set(claim(all[1].Digest) + "\n---\n" + two)
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	b.want("steps", steps, "create database.$NAME.example.org/$NAME/d")
	b.settled(set)
}
