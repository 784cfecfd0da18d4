package apply_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
)

// Objects of others stay as they are, unless the repository adopts them.
func TestOwnership(t *testing.T) {
	for _, tt := range []struct {
		name    string
		manager string
		object  string // metadata besides name and namespace, and data
		want    string // "" when it is taken without asking
		source  string // as a Cluster's annotation names it
	}{
		{"manager", "kubectl-create", ``, "managed by kubectl-create", "kubectl"},
		{"managers", "helm", ``, "managed by helm", "helm"},
		{"controller", "some-controller", `"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"$NAME","uid":"$UID","controller":true}]`, "controlled by Namespace $NAME", "controller/Namespace/$NAME"},
		{"applyset", "kubectl", `"labels":{"applyset.kubernetes.io/part-of":"applyset-theirs-v1"}`, "a member of another ApplySet, applyset-theirs-v1", "applyset/applyset-theirs-v1"},
		{"flux", "kustomize-controller", `"labels":{"kustomize.toolkit.fluxcd.io/name":"apps"}`, `managed by Flux Kustomization "apps"`, "flux/apps"},
		{"argo", "argocd-controller", `"annotations":{"argocd.argoproj.io/tracking-id":"app:x"}`, `managed by Argo CD application "app:x"`, "argocd/app"},
		{"helm", "helm", `"labels":{"app.kubernetes.io/managed-by":"Helm"}`, "managed by Helm", "helm"},
		{"release", "helm", `"labels":{"app.kubernetes.io/managed-by":"Helm"},"annotations":{"meta.helm.sh/release-name":"r"}`, `managed by Helm release "r"`, "helm/r"},
		{"system", "kube-controller-manager", ``, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(b.set(strings.Split(two, "---")[0]))
			uid := b.get(strings.Split(two, "---")[0])["metadata"].(map[string]any)["uid"].(string)
			meta := strings.Trim(`"name":"a","namespace":"$NAME",`+strings.ReplaceAll(tt.object, "$UID", uid), ",")
			theirs := b.set(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{` + meta + `},"data":{"color":"theirs","other":"x"}}`).All()[0]
			b.raw(http.MethodPatch, theirs, "fieldManager="+tt.manager+"&force=true", "application/apply-patch+yaml", theirs.AppendJSON(nil))

			set := b.set(strings.Replace(two, "name: a,", "name: a, annotations: {},", 1))
			steps, results := b.apply(set)
			if tt.want == "" {
				b.want("steps", steps, "configure configmap/$NAME/a exists without an owner; adding it to the inventory", "create configmap/$NAME/b")
				b.want("results", results, "failed configmap/$NAME/a: cluster $NAME: apply configmap/$NAME/a: kube-controller-manager owns .data.color")
				return
			}
			b.wantNothing("results", results)
			b.want("steps", steps, fmt.Sprintf(`conflict configmap/$NAME/a it is %s; annotate it with gitopsd.dev/adopt: "true" to take it over, or the Cluster with gitopsd.dev/adopt: %s for all that is`, tt.want, tt.source), "create configmap/$NAME/b")
			if b.get(cm("a"))["data"].(map[string]any)["color"] != "theirs" {
				t.Fatal("it was changed")
			}
			b.requests.take()
			b.apply(set)
			b.wantNothing("writes", b.writes())

			// Everything of the source, by the Cluster's annotation.
			for _, adopt := range []string{tt.source, "fleet, " + strings.Split(tt.source, "/")[0]} {
				from, err := plan.ParseAdopt(strings.ReplaceAll(adopt, "$NAME", b.name))
				if _, _, named := strings.Cut(tt.source, "/"); err != nil && named {
					continue // this source has to be named
				} else if err != nil {
					t.Fatal(err)
				}
				p := b.plan(set, apply.PlanOptions{Options: plan.Options{Adopt: from}})
				b.want("steps with adopt "+adopt, b.steps(p), "configure configmap/$NAME/a adopted: until now it was "+tt.want)
			}

			adopted := b.set(strings.Replace(two, "name: a,", "name: a, annotations: {gitopsd.dev/adopt: 'true'},", 1))
			steps, results = b.apply(adopted)
			b.wantNothing("results", results)
			b.want("steps", steps, "configure configmap/$NAME/a adopted: until now it was "+tt.want)
			if b.get(cm("a"))["data"].(map[string]any)["color"] != "green" {
				t.Error("it was not taken over")
			}
			b.settled(adopted)
		})
	}
}

// Two fleets that register one cluster do not take each other's objects.
func TestTwoInventories(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	other, err := apply.New(apply.Config{Cluster: b.connect(b.name+"-other", nil), Fleet: testFleet, Log: discard})
	if err != nil {
		t.Fatal(err)
	}
	p, err := other.Plan(t.Context(), set, apply.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if steps := b.steps(p); len(steps) != 3 || !strings.Contains(steps[0], "conflict namespace/$NAME it is a member of another ApplySet") {
		t.Errorf("steps: %s", strings.Join(steps, "\n"))
	}
	if _, err := other.Apply(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	p, err = other.Plan(t.Context(), b.set(cm("c")), apply.PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.want("nothing of the other's is pruned", b.steps(p), "create configmap/$NAME/c")
}

// Requests have the rights of the service account, never the daemon's own.
func TestImpersonation(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(two))
	b.cluster = b.connectAs(b.name, &kube.ServiceAccount{Namespace: b.name, Name: "deployer"}, b.requests.wrap)
	b.restart()
	_, err := b.applier.Plan(t.Context(), b.set(two), apply.PlanOptions{})
	if kube.ClassOf(err) != kube.Forbidden || !strings.Contains(err.Error(), `User "system:serviceaccount:`+b.name+`:deployer" cannot get resource "configmaps"`) {
		t.Errorf("error %v", err)
	}
}

// A kind that may not be read is reported, and the rest goes on.
func TestUnreadable(t *testing.T) {
	b := newBed(t)
	b.apply(b.set(two + `
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME}, rules: [{apiGroups: [""], resources: [configmaps, namespaces], verbs: ["*"]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: $NAME}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: $NAME}, subjects: [{kind: ServiceAccount, name: deployer, namespace: $NAME}]}
---
{apiVersion: v1, kind: Secret, metadata: {name: old, namespace: $NAME}}
`))
	b.cluster = b.connectAs(b.name, &kube.ServiceAccount{Namespace: b.name, Name: "deployer"}, b.requests.wrap)
	b.restart()
	eventually(t, "the account has its rights", func(ctx context.Context) bool {
		_, err := b.applier.Plan(ctx, b.set(two), apply.PlanOptions{})
		return kube.ClassOf(err) != kube.Forbidden
	})
	b.restart()
	set := b.set(strings.Replace(two, "green", "red", 1) + "---\n{apiVersion: v1, kind: Secret, metadata: {name: new, namespace: $NAME}}")
	steps, results := b.apply(set)
	b.wantNothing("results", results)
	if len(steps) != 2 || steps[0] != "configure configmap/$NAME/a changed in the repository" || !strings.HasPrefix(steps[1], "refused secret/$NAME/new cannot tell what is there: ") {
		t.Errorf("steps: %s", strings.Join(steps, "\n"))
	}
	// What could not be seen is not forgotten.
	if k := b.parent()[kinds]; !strings.Contains(k, "Secret") || !strings.Contains(k, "ClusterRole.rbac") {
		t.Errorf("the inventory has %s", k)
	}
}
