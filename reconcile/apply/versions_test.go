package apply_test

import (
	"context"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
)

// versioned is the CRD of a kind in versions, of which the last is stored. An "-" before a
// version means that it is not served.
func versioned(kind string, versions ...string) string {
	var list []string
	for i, v := range versions {
		name, unserved := strings.CutPrefix(v, "-")
		served, stored := "true", "false"
		if unserved {
			served = "false"
		}
		if i == len(versions)-1 {
			stored = "true"
		}
		list = append(list, "{name: "+name+", served: "+served+", storage: "+stored+", schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}")
	}
	return strings.NewReplacer("KIND", kind, "PLURAL", strings.ToLower(kind)+"s", "VERSIONS", strings.Join(list, ", ")).Replace(
		"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: PLURAL.$NAME.example.org}, " +
			"spec: {group: $NAME.example.org, scope: Namespaced, names: {kind: KIND, plural: PLURAL}, versions: [VERSIONS]}}")
}

// flat is an object of the kind in a version. more is what it has besides its name.
func flat(kind, version, more string) string {
	return "{apiVersion: $NAME.example.org/" + version + ", kind: " + kind + ", metadata: {name: flat, namespace: $NAME" + more + "}"
}

// serving waits until a version of a kind is served, or no longer. The bed's client does not
// learn of it.
func (b *bed) serving(kind, version string, want bool) {
	b.t.Helper()
	other := b.connect(b.name, nil)
	eventually(b.t, kind+" "+version, func(ctx context.Context) bool {
		other.Forget(b.name + ".example.org")
		_, err := other.Type(ctx, b.name+".example.org/"+version, kind)
		if err != nil && kube.ClassOf(err) != kube.NoSuchType {
			b.t.Fatal(err)
		}
		return (err == nil) == want
	})
}

// An object whose version comes with its type's next one is looked for in the versions
// that are there: it may be somebody else's, or changed by somebody else.
func TestVersionOfTheSameCommit(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0] + "\n---\n"
	before, after := versioned("Lease", "v1beta1")+"\n---\n", versioned("Lease", "v1", "v1beta1")+"\n---\n"
	ours := flat("Lease", "v1", "") + ", spec: {size: 1}}"
	b.applied(b.set(space + before))

	b.as("helm", flat("Lease", "v1beta1", ", labels: {app.kubernetes.io/managed-by: Helm}")+", spec: {size: 2}}")
	const definition = "configure customresourcedefinition.apiextensions.k8s.io/leases.$NAME.example.org changed in the repository"
	p := b.plan(b.set(space+after+ours), apply.PlanOptions{DryRun: true})
	b.want("somebody else's", b.steps(p), definition,
		`conflict lease.$NAME.example.org/$NAME/flat it is managed by Helm; annotate it with gitopsd.dev/adopt: "true" to take it over, or the Cluster with gitopsd.dev/adopt: helm for all that is`)
	b.delete(flat("Lease", "v1beta1", "}"))

	// Ours, and then changed by a controller.
	b.applied(b.set(space + before + flat("Lease", "v1beta1", "") + ", spec: {size: 3}}"))
	b.as("controller", flat("Lease", "v1beta1", "")+", spec: {size: 4}}")
	p = b.plan(b.set(space+after+ours), apply.PlanOptions{DryRun: true})
	b.want("ours", b.steps(p), definition, "configure lease.$NAME.example.org/$NAME/flat changed in the repository")
	s := p.Steps[len(p.Steps)-1]
	if len(s.Changes) > 0 || s.Rejected != "" ||
		b.short(s.NotValidated) != "its changes are not known before v1 is served: its type is installed by customresourcedefinition.apiextensions.k8s.io/leases.$NAME.example.org, by which it would be accepted" {
		t.Errorf("not validated: %s; rejected: %s; changes: %v", s.NotValidated, s.Rejected, s.Changes)
	}
	b.wantNothing("results", b.results(b.execute(b.plan(b.set(space+after+ours), apply.PlanOptions{}))))
	if spec, _ := b.get(flat("Lease", "v1", "}"))["spec"].(map[string]any); spec["size"] != float64(1) {
		t.Errorf("it has spec %v", spec)
	}
	b.settled(b.set(space + after + ours))
}

// A kind that somebody else installs in a new version of a known group has health, and
// its objects are pruned.
func TestNewVersionOfAGroup(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0] + "\n---\n"
	foo, bar := flat("Foo", "v1", "}")+"\n---\n", flat("Bar", "v2", "}")
	b.as("operator", versioned("Foo", "v1"))
	b.serves("$NAME.example.org", "Foo")
	healthy := func(text string) {
		t.Helper()
		p := b.plan(b.set(space+text), apply.PlanOptions{})
		b.wantNothing("results", b.results(b.execute(p)))
		list, err := b.applier.Health(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range list {
			if !h.Passes {
				t.Errorf("%s is %s: %s", h.ID, h.State, h.Reason)
			}
		}
	}
	healthy(foo)
	b.as("operator", versioned("Bar", "v2"))
	b.serving("Bar", "v2", true)
	healthy(foo + bar)
	healthy(foo + bar)
	steps, results := b.apply(b.set(space + foo))
	b.want("steps", steps, "prune bar.$NAME.example.org/$NAME/flat")
	b.wantNothing("results", results)
}

// An object is pruned in whatever version its type is served by then. Somebody replaces the
// version before the look at the cluster, or between that and the pruning.
func TestVersionReplaced(t *testing.T) {
	for _, planned := range []bool{false, true} {
		t.Run(map[bool]string{false: "before the plan", true: "after the plan"}[planned], func(t *testing.T) {
			b := newBed(t)
			space := b.set(strings.Split(everything, "---")[0])
			b.as("operator", versioned("Lease", "v1beta1"))
			b.serves("$NAME.example.org", "Lease")
			b.applied(b.set(strings.Split(everything, "---")[0] + "\n---\n" + flat("Lease", "v1beta1", "}")))
			p := b.plan(space, apply.PlanOptions{}) // which knows the type

			b.as("operator", versioned("Lease", "-v1beta1", "v1"))
			b.serving("Lease", "v1beta1", false)
			b.serving("Lease", "v1", true)
			if !planned { // the API server lists a new version in /apis a moment later
				eventually(t, "a step", func(context.Context) bool {
					p = b.plan(space, apply.PlanOptions{})
					return len(b.steps(p)) > 0
				})
			}
			b.want("steps", b.steps(p), "prune lease.$NAME.example.org/$NAME/flat")
			b.wantNothing("results", b.results(b.execute(p)))
			if b.get(flat("Lease", "v1", "}")) != nil {
				t.Error("it is still there")
			}
			if b.parent()[kinds] != "Namespace" {
				t.Errorf("the inventory has %s", b.parent()[kinds])
			}
		})
	}
}

// An object is taken over once Crossplane has made the version of its type.
func TestVersionFromCrossplane(t *testing.T) {
	b := newBed(t)
	b.as("crossplane", xrds)
	b.serves("apiextensions.crossplane.io", "CompositeResourceDefinition")
	b.as("crossplane", versioned("Lease", "v1beta1"))
	b.serves("$NAME.example.org", "Lease")
	space := strings.Split(everything, "---")[0] + "\n---\n"
	b.applied(b.set(space))
	b.as("helm", flat("Lease", "v1beta1", ", labels: {app.kubernetes.io/managed-by: Helm}")+", spec: {size: 2}}")
	set := b.set(space + "{apiVersion: apiextensions.crossplane.io/v2, kind: CompositeResourceDefinition, metadata: {name: leases.$NAME.example.org}, " +
		"spec: {group: $NAME.example.org, scope: Namespaced, names: {kind: Lease, plural: leases}, versions: [{name: v1, served: true, referenceable: true}]}}\n---\n" +
		flat("Lease", "v1", ", annotations: {gitopsd.dev/adopt: 'true'}}"))
	p := b.plan(set, apply.PlanOptions{})
	b.want("steps", b.steps(p), "create compositeresourcedefinition.apiextensions.crossplane.io/leases.$NAME.example.org",
		"configure lease.$NAME.example.org/$NAME/flat adopted: until now it was managed by Helm")
	b.want("results", b.results(b.execute(p)),
		"pending lease.$NAME.example.org/$NAME/flat: its type is not there yet: Crossplane makes it from compositeresourcedefinition.apiextensions.crossplane.io/leases.$NAME.example.org")
	b.as("crossplane", versioned("Lease", "v1beta1", "v1"))
	b.serving("Lease", "v1", true)
	_, results := b.apply(set)
	b.wantNothing("results", results)
	if spec, _ := b.get(flat("Lease", "v1", "}"))["spec"].(map[string]any); spec != nil {
		t.Errorf("what Helm wrote is left: %v", spec)
	}
}
