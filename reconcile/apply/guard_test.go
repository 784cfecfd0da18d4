package apply_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// Namespaces and CRDs that still hold objects of others stay, and go when those
// are gone.
func TestContents(t *testing.T) {
	b := newBed(t)
	parts := strings.Split(everything, "---")
	set := b.set(parts[0] + "---" + parts[6])
	b.apply(set)
	widget := "{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: theirs}}"
	b.as("somebody", widget)
	b.as("somebody", cm("theirs"))
	nothing := b.set("{apiVersion: v1, kind: Namespace, metadata: {name: $NAME-2}}")
	steps, results := b.apply(nothing)
	b.wantNothing("results", results)
	b.want("steps", steps,
		"create namespace/$NAME-2",
		`held customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org kept: it holds widget.$NAME.example.org/theirs, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`,
		`held namespace/$NAME kept: it holds configmap/$NAME/theirs, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`,
	)
	b.delete(widget)
	b.edit("somebody", parts[0], `{"metadata":{"annotations":{"gitopsd.dev/allow-prune":"true"}}}`)
	steps, results = b.apply(nothing)
	b.want("steps", steps, "prune customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org", "prune namespace/$NAME")
	if len(results) > 0 { // a namespace can take its time
		b.want("results", results, "pending namespace/$NAME: is being deleted")
	}
	eventually(t, "the namespace is gone", func(ctx context.Context) bool {
		b.apply(nothing)
		return b.parent()[kinds] == "Namespace" && b.get(parts[0]) == nil
	})
	b.settled(nothing)
}

// A namespace with objects of somebody's own type stays, also if that is named like one
// that is of no consequence; real Leases do not keep it.
func TestContentsNamesakes(t *testing.T) {
	b := newBed(t)
	space := strings.Split(two, "---")[0]
	b.apply(b.set(space))
	b.as("somebody", "{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: plain, namespace: $NAME}}")
	nothing := b.set("{apiVersion: v1, kind: Namespace, metadata: {name: $NAME-2}}")
	b.want("steps", b.steps(b.plan(nothing, apply.PlanOptions{})), "create namespace/$NAME-2", "prune namespace/$NAME")
	b.as("somebody", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: leases.$NAME.example.org}, spec: {group: $NAME.example.org, scope: Namespaced, names: {kind: Lease, plural: leases}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	b.serves("$NAME.example.org", "Lease")
	b.as("somebody", "{apiVersion: $NAME.example.org/v1, kind: Lease, metadata: {name: flat, namespace: $NAME}}")
	b.want("steps", b.steps(b.plan(nothing, apply.PlanOptions{})), "create namespace/$NAME-2",
		`held namespace/$NAME kept: it holds lease.$NAME.example.org/$NAME/flat, which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`)
}

func TestGuards(t *testing.T) {
	many := strings.Split(two, "---")[0]
	for i := range 30 {
		many += fmt.Sprintf("---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c%d, namespace: $NAME, labels: {gitopsd.dev/package: p}}}\n", i)
	}
	rest := strings.Join(strings.Split(many, "---")[:3], "---")
	for _, tt := range []struct {
		name string
		set  string
		opts plan.Options
		want string // of the reason; "" when the objects are pruned
	}{
		{"render failed", rest, plan.Options{RenderFailed: "no kustomization"}, "kept: the cluster could not be rendered: no kustomization"},
		{"nothing rendered", "", plan.Options{}, "kept: the cluster's directory renders no objects"},
		{"packages have errors", "", plan.Options{Broken: []string{"p"}}, "kept: packages of the cluster have errors, and its directory renders no other objects"},
		{"package failed", rest, plan.Options{Keeps: func(_ manifest.ID, pkg string) bool { return pkg == "p" }, Broken: []string{"o", "p"}}, "kept: errors in the repository or in package p leave open whether it is wanted"},
		{"too many", rest, plan.Options{AllowPrune: 27}, `kept: this would prune 28 of the 31 objects in this cluster; to allow that, annotate the Cluster in the registry with gitopsd.dev/allow-prune: "28"`},
		{"allowed", rest, plan.Options{AllowPrune: 28}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(b.set(many))
			p := b.plan(b.set(tt.set), apply.PlanOptions{Options: tt.opts})
			if tt.want == "" {
				if p.Count(plan.Prune) != 28 {
					t.Fatal(b.steps(p))
				}
				return
			}
			if p.Count(plan.Prune) != 0 || p.Count(plan.Held) < 28 {
				t.Fatal(b.steps(p))
			}
			for _, s := range p.Steps {
				if s.Action == plan.Held && !strings.HasPrefix(s.Reason, tt.want) {
					t.Errorf("%s: %s", s.ID, s.Reason)
				}
			}
			b.requests.take()
			b.execute(p)
			b.wantNothing("writes", b.writes())
		})
	}
}

// An object that leaves the inventory between the plan and its deletion stays; one that is
// only written to goes all the same.
func TestPruneChanged(t *testing.T) {
	for _, follow := range []bool{false, true} {
		t.Run(fmt.Sprintf("followed %t", follow), func(t *testing.T) {
			b := newBed(t)
			space := b.set(strings.Split(two, "---")[0])
			all := b.set(strings.Split(two, "---")[0] + "---\n" + strings.Join([]string{cm("moved"), cm("freed"), cm("anew"), cm("written"), cm("still")}, "\n---\n"))
			if follow {
				b.followed(all)
			} else {
				b.applied(all)
			}
			p := b.plan(space, apply.PlanOptions{})
			b.edit("other", cm("moved"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":"applyset-other"}}}`)
			b.edit("kubectl-label", cm("freed"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":null}}}`)
			b.delete(cm("anew"))
			b.as("helm", cm("anew"))
			b.edit("kubectl-edit", cm("written"), `{"data":{"k":"v"}}`)
			b.requests.take()
			b.want("results", b.results(b.execute(p)),
				"skipped configmap/$NAME/freed: kept: it left the inventory after the plan was made",
				"skipped configmap/$NAME/moved: kept: it left the inventory after the plan was made")
			if !follow { // memory is as old as the plan
				b.want("requests", slices.DeleteFunc(b.requests.take(), func(r string) bool { return !strings.HasSuffix(r, "/still") }),
					"DELETE /api/v1/namespaces/"+b.name+"/configmaps/still")
			}
			for name, want := range map[string]bool{"moved": true, "freed": true, "anew": true, "written": false, "still": false} {
				if have := b.get(cm(name)) != nil; have != want {
					t.Errorf("%s exists: %t", name, have)
				}
			}
			if !follow {
				b.apply(space) // what has left is no member
				b.settled(space)
			}
		})
	}
}

// An object that somebody else created, or created again, after the plan is left to the next
// plan, and so is one whose watch told that another inventory has it. One that has no owner
// is joined.
func TestApplyChanged(t *testing.T) {
	for _, follow := range []bool{false, true} {
		t.Run(fmt.Sprintf("followed %t", follow), func(t *testing.T) {
			b := newBed(t)
			helms := func(name string) string {
				return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: $NAME, labels: {app.kubernetes.io/managed-by: Helm}}}"
			}
			set := func(value string, names ...string) *manifest.Set {
				text := strings.Split(two, "---")[0]
				for _, name := range names {
					text += "\n---\n" + strings.TrimSuffix(cm(name), "}") + ", data: {k: " + value + "}}"
				}
				return b.set(text)
			}
			before, after := set("a", "again", "moved", "mine"), set("b", "again", "moved", "mine", "new", "shared", "adopted")
			if follow {
				b.followed(before)
			} else {
				b.applied(before)
			}
			b.as("helm", helms("adopted"))
			p := b.plan(after, apply.PlanOptions{Options: plan.Options{Adopt: []string{"helm"}}})
			for _, name := range []string{"again", "adopted"} {
				b.delete(cm(name))
				b.as("helm", helms(name))
			}
			b.as("helm", helms("new"))
			b.as("somebody", cm("shared"))
			left, data := []string{"adopted", "again", "new"}, map[string]string{"adopted": "", "again": "", "moved": "b", "mine": "b", "new": "", "shared": "b"}
			if follow {
				b.edit("other", cm("moved"), `{"metadata":{"labels":{"applyset.kubernetes.io/part-of":"applyset-other"}}}`)
				eventually(t, "the watch tells of it", func(ctx context.Context) bool {
					now, err := b.applier.Plan(ctx, before, apply.PlanOptions{})
					return err == nil && now.Count(plan.Conflict) == 2
				})
				left, data["moved"] = []string{"adopted", "again", "moved", "new"}, "a"
			}
			var want []string
			for _, name := range left {
				want = append(want, "pending configmap/$NAME/"+name+": it changed after the plan was made; the next pass looks at it again")
			}
			have := b.results(b.execute(p))
			for i, r := range have { // without the API server's words
				before, _, _ := strings.Cut(r, "looks at it again")
				have[i] = before + "looks at it again"
			}
			b.want("results", have, want...)
			for name, want := range data {
				if have := manifest.Text(b.get(cm(name)), "data", "k"); have != want {
					t.Errorf("%s: %q, want %q", name, have, want)
				}
			}
			if p := b.plan(after, apply.PlanOptions{}); p.Count(plan.Conflict) != len(left) {
				t.Error(b.steps(p))
			}
		})
	}
}

// An object with a finalizer stays in the inventory, and the finalizer's controller stays
// until the object is gone.
func TestFinalizer(t *testing.T) {
	b := newBed(t)
	set := b.set(strings.Replace(everything, "name: one,", "name: one, finalizers: [example.org/clean],", 1))
	b.apply(set)
	namespace := b.set(strings.Split(everything, "---")[0])
	steps, results := b.apply(namespace)
	b.want("first steps", steps[:1], "prune widget.$NAME.example.org/one")
	b.want("first results", results[:2],
		"pending widget.$NAME.example.org/one: is being deleted, held by finalizer example.org/clean",
		"pending deployment.apps/$NAME/web: waits until widget.$NAME.example.org/one is gone, which is being deleted, held by finalizer example.org/clean")
	steps, _ = b.apply(namespace)
	b.want("next steps", steps[:1], "wait widget.$NAME.example.org/one it is being deleted, held by finalizer example.org/clean")
	if !strings.Contains(b.parent()[kinds], "Widget."+b.name+".example.org") {
		t.Errorf("the inventory has %s", b.parent()[kinds])
	}
	// Wanted again while it is going.
	steps, _ = b.apply(set)
	b.want("wanted again", steps, "wait widget.$NAME.example.org/one it is being deleted, held by finalizer example.org/clean; it is created again when it is gone")
	b.edit("controller", "{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: one}}", `{"metadata":{"finalizers":null}}`)
	steps, results = b.apply(namespace)
	b.wantNothing("results", results)
	if len(steps) != 6 {
		t.Errorf("steps: %s", strings.Join(steps, "\n"))
	}
	b.settled(namespace)
}

// A type of a package that is allowed to go with its objects goes first: their finalizers may
// need the rest of the package.
func TestFinalizerOfOthers(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	allowed := strings.Replace(widgets, "metadata: {", "metadata: {annotations: {gitopsd.dev/allow-prune: 'true'}, ", 1)
	b.apply(b.set(space + "\n---\n" + allowed + "\n---\n" + strings.Replace(cm("controller"), "metadata: {", "metadata: {labels: {gitopsd.dev/package: p}, ", 1)))
	b.as("somebody", widget("theirs", ", finalizers: [example.org/clean]"))
	namespace := b.set(space)
	const definition = "customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org"
	const finalizer = "is being deleted, held by finalizer customresourcecleanup.apiextensions.k8s.io"
	_, results := b.apply(namespace)
	b.want("results", results, "pending "+definition+": "+finalizer,
		"pending configmap/$NAME/controller: waits until "+definition+" is gone, which "+finalizer)
	_, results = b.apply(namespace)
	b.want("next results", results, "pending configmap/$NAME/controller: waits until "+definition+" is gone, which is still there: it "+finalizer)
	b.edit("controller", widget("theirs", ""), `{"metadata":{"finalizers":null}}`)
	eventually(t, "all is gone", func(context.Context) bool {
		_, results := b.apply(namespace)
		return len(results) == 0
	})
	b.settled(namespace)
}

// grant is a RoleBinding in the bed's namespace.
func grant(name, subject string) string {
	return "\n---\n{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: " + name + ", namespace: $NAME}, " +
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}, subjects: [" + subject + "]}\n"
}

const (
	eve    = "{kind: User, name: eve, apiGroup: rbac.authorization.k8s.io}"
	worker = "{kind: ServiceAccount, name: web, namespace: $NAME}"
	far    = "{kind: ServiceAccount, name: ci, namespace: $NAME-ci}"
)

// An object that does not go, and one that cannot be applied, keep the rights that a
// workload may need, and no others.
func TestRevoked(t *testing.T) {
	space := strings.Split(everything, "---")[0]
	rights := grant("eve", eve) + grant("worker", worker) + grant("far", far)
	t.Run("stuck", func(t *testing.T) {
		b := newBed(t)
		b.apply(b.set(strings.Replace(everything, "name: one,", "name: one, finalizers: [example.org/clean],", 1) + rights))
		for i, state := range []string{"which is being deleted", "which is still there: it is being deleted"} {
			want := "rolebinding.rbac.authorization.k8s.io/$NAME/worker: waits until widget.$NAME.example.org/one is gone, " + state
			_, results := b.apply(b.set(space))
			if !slices.ContainsFunc(results, func(r string) bool { return strings.HasPrefix(r, "pending "+want) }) {
				t.Errorf("pass %d: want %s, have\n%s", i, want, strings.Join(results, "\n"))
			}
			if slices.ContainsFunc(results, func(r string) bool { return strings.Contains(r, "/eve:") }) {
				t.Errorf("pass %d: eve's right stays:\n%s", i, strings.Join(results, "\n"))
			}
		}
		b.edit("controller", "{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: one}}", `{"metadata":{"finalizers":null}}`)
		_, results := b.apply(b.set(space))
		b.wantNothing("results", results)
	})
	t.Run("missing", func(t *testing.T) {
		b := newBed(t)
		b.apply(b.set(space + rights))
		bad := "\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: Bad, namespace: $NAME}}"
		_, results := b.apply(b.set(space + bad))
		b.wantPrefixes("results", results, "failed configmap/$NAME/Bad: ",
			"skipped rolebinding.rbac.authorization.k8s.io/$NAME/worker: kept until the rest is applied: configmap/$NAME/Bad: ")
		_, results = b.apply(b.set(space + grant("eve", eve)))
		b.wantNothing("results", results)
		_, results = b.apply(b.set(space + grant("renamed", "{kind: Person, name: eve}")))
		b.wantPrefixes("results", results, "failed rolebinding.rbac.authorization.k8s.io/$NAME/renamed: ",
			"skipped rolebinding.rbac.authorization.k8s.io/$NAME/eve: kept until the rest is applied: ")
	})
}

// An inventory with a deleted parent object is found again, including kinds without
// desired objects.
func TestLostParent(t *testing.T) {
	b := newBed(t)
	set := b.set(two + "---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: old, namespace: $NAME}}\n")
	b.apply(set)
	b.delete(parentOf(b))
	b.restart()
	steps, results := b.apply(b.set(two))
	b.wantNothing("results", results)
	b.want("steps", steps, "prune serviceaccount/$NAME/old")
	if have := b.parent()[kinds]; have != "ConfigMap,Namespace" {
		t.Errorf("the inventory has %s", have)
	}
	b.settled(b.set(two))

	// Nothing else is to be done: it comes back all the same.
	b.delete(parentOf(b))
	b.restart()
	b.apply(b.set(two))
	if have := b.parent()[kinds]; have != "ConfigMap,Namespace" {
		t.Errorf("the inventory has %s", have)
	}
	b.settled(b.set(two))
}

// Somebody edits the list of kinds in the inventory: the members of other kinds are found
// again, and the list is mended.
func TestEditedKinds(t *testing.T) {
	const old = "---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: old, namespace: $NAME}}\n"
	for _, tt := range []struct{ name, edit string }{
		{"shortened", `"` + kinds + `":"ConfigMap"`},
		{"removed", `"` + kinds + `":null`},
		{"with its digest", `"` + kinds + `":"ConfigMap","gitopsd.dev/kinds":null`},
		{"the digest alone", `"gitopsd.dev/kinds":"x"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.apply(b.set(two + old))
			edit := `{"metadata":{"annotations":{` + tt.edit + `}}}`
			b.edit("somebody", parentOf(b), edit)
			b.restart()
			b.settledBut(b.set(two+old), "ConfigMap,Namespace,ServiceAccount")
			b.edit("somebody", parentOf(b), edit)
			b.restart()
			steps, results := b.apply(b.set(two))
			b.wantNothing("results", results)
			b.want("steps", steps, "prune serviceaccount/$NAME/old")
			b.settledBut(b.set(two), "ConfigMap,Namespace")

			// While this process runs.
			b.apply(b.set(two + old))
			b.edit("somebody", parentOf(b), edit)
			b.apply(b.set(strings.Replace(two, "green", "red", 1) + old))
			b.settledBut(b.set(strings.Replace(two, "green", "red", 1)+old), "ConfigMap,Namespace,ServiceAccount")
		})
	}
}

// settledBut checks that a pass changes nothing but the inventory, which has these kinds
// then, and a later pass nothing at all.
func (b *bed) settledBut(set *manifest.Set, want string) {
	b.t.Helper()
	steps, results := b.apply(set)
	b.wantNothing("steps", steps)
	b.wantNothing("results", results)
	if have := b.parent()[kinds]; have != want {
		b.t.Errorf("the inventory has %s, want %s", have, want)
	}
	b.settled(set)
}

// A list of namespaces that does not fit into the inventory is left out.
func TestManyNamespaces(t *testing.T) {
	b := newBedSerial(t)
	listed := func() bool { return b.parent()[namespaces] != "" }
	b.applied(b.set(two))
	if !listed() {
		t.Error("the inventory has no namespaces")
	}
	apply.ListNamespaces(t, 5)
	b.restart()
	b.applied(b.set(strings.Replace(two, "green", "red", 1)))
	if listed() {
		t.Errorf("the inventory has namespaces %s", b.parent()[namespaces])
	}
	b.apply(b.set(strings.Split(two, "---")[0]))
	b.settled(b.set(strings.Split(two, "---")[0]))
}
