package plan_test

import (
	"slices"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// A prune waits only for objects that may need or replace its object.
func TestNeeds(t *testing.T) {
	t.Parallel()
	step := func(group, kind, namespace, name, pkg string) *plan.Step {
		id := manifest.ID{Group: group, Kind: kind, Namespace: namespace, Name: name}
		return &plan.Step{Action: plan.Prune, ID: id, Stage: plan.StageOf(id), Package: pkg}
	}
	binding := func(namespace string, accounts ...string) *plan.Step {
		kind := "RoleBinding"
		if namespace == "" {
			kind = "ClusterRoleBinding"
		}
		s := step(manifest.GroupRBAC, kind, namespace, "b", "")
		s.Accounts = accounts
		return s
	}
	crd := func(group, pkg string) *plan.Step {
		return step("apiextensions.k8s.io", "CustomResourceDefinition", "", "ws."+group, pkg)
	}
	configMap := func(namespace, pkg string) *plan.Step { return step("", "ConfigMap", namespace, "c", pkg) }
	named := step("e.org", "W", "a", "w", "p")
	named.Needs = []string{"package/q", "configmap/z/c"}
	desired := func(s *plan.Step) plan.Step {
		s.Action, s.Object = plan.Unchanged, new(manifest.Object)
		return *s
	}
	steps := []plan.Step{
		desired(crd("e.org", "p")), desired(crd("plain.org", "")), *crd("gone.org", "g"), *step("apiextensions.crossplane.io", "CompositeResourceDefinition", "", "xs.x.org", "x"),
		*step("apps", "Deployment", "run", "d", ""), *step("apps", "Deployment", "packaged", "d", "q"),
	}
	typed, plain, composite := step("e.org", "W", "a", "w", ""), step("plain.org", "W", "a", "w", ""), step("x.org", "X", "a", "x", "")
	gone, volume := step("gone.org", "W", "", "w", ""), step("", "PersistentVolumeClaim", "a", "v", "")
	successors := plan.Successors{"old": {"new"}, "": {"new"}}
	for _, tt := range []struct {
		name     string
		other, s *plan.Step
		of, repl bool
	}{
		{"of its package", step("e.org", "W", "a", "w", "p"), configMap("z", "p"), true, true},
		{"of another package", configMap("a", "p"), configMap("a", "q"), false, false},
		{"of the package of its type", typed, configMap("z", "p"), true, false},
		{"its type goes too", gone, configMap("z", "q"), true, false},
		{"what its controller logs in with", gone, step("", "Secret", "z", "s", ""), true, true},
		{"plain, of a package's", configMap("a", "p"), configMap("a", ""), false, false},
		{"of a package, of a plain one", plain, configMap("a", "p"), false, false},
		{"its type", plain, crd("plain.org", ""), true, true},
		{"its namespace", typed, step("", "Namespace", "", "a", "q"), true, false},
		{"another namespace", typed, step("", "Namespace", "", "b", "q"), false, false},
		{"a package of a composite", composite, configMap("z", "q"), true, false},
		{"named", named, configMap("z", ""), true, false},
		{"of a named package", named, configMap("x", "q"), true, false},
		{"beside it", volume, configMap("a", ""), true, true},
		{"cluster-wide", volume, step("storage.k8s.io", "StorageClass", "", "s", ""), true, true},
		{"beside a workload that goes", volume, configMap("run", ""), true, true},
		{"beside a package's workload", volume, configMap("packaged", ""), false, true},
		{"elsewhere", volume, configMap("z", ""), false, true},
		{"people's right", plain, binding("a"), false, false},
		{"people's right everywhere", plain, binding(""), false, false},
		{"a right of an account beside it", plain, binding("z", "a"), true, true},
		{"a right of a workload that goes", plain, binding("", "run"), true, true},
		{"a right of an account elsewhere", volume, binding("a", "z"), false, false},
		{"a right of a controller elsewhere", plain, binding("a", "z"), true, false},
		{"a right of all accounts", plain, binding("a", plan.AnyAccount), true, true},
		{"a right, and another one there", step(manifest.GroupRBAC, "RoleBinding", "a", "n", ""), binding("a"), false, true},
		{"a right, and another one elsewhere", step(manifest.GroupRBAC, "RoleBinding", "z", "n", ""), binding("a"), false, false},
		{"a right, and one for everywhere", step(manifest.GroupRBAC, "ClusterRole", "", "n", ""), binding("a"), false, true},
		{"a right everywhere, and one somewhere", step(manifest.GroupRBAC, "RoleBinding", "z", "n", ""), binding(""), false, true},
		{"of a package that takes over from its own", configMap("z", "new"), configMap("a", "old"), false, true},
		{"of a package that its own takes over from", configMap("z", "old"), configMap("a", "new"), false, false},
		{"of a package that takes over from plain manifests", configMap("z", "new"), configMap("a", ""), false, true},
		{"people's right, and a package's right that takes over from plain manifests", step(manifest.GroupRBAC, "ClusterRole", "", "n", "new"), binding("a"), false, false},
		{"a right of a workload that goes, and a package that takes over", configMap("z", "new"), binding("", "run"), false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			needs := plan.NewNeeds(steps, successors)
			if of, repl := needs.Of(tt.other, tt.s), needs.Replaced(tt.other, tt.s); of != tt.of || repl != tt.repl {
				t.Errorf("needs it: %t, want %t; may replace it: %t, want %t", of, tt.of, repl, tt.repl)
			}
		})
	}
}

func TestAccountsOf(t *testing.T) {
	t.Parallel()
	o := manifesttest.Set(t, `{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: b}, subjects: [
		{kind: User, name: eve}, {kind: Group, name: system:authenticated}, {kind: ServiceAccount, name: x, namespace: a},
		{kind: User, name: "system:serviceaccount:b:x"}, {kind: Group, name: "system:serviceaccounts:c"}, {kind: Group, name: system:serviceaccounts}]}`).All()[0]
	if have := plan.AccountsOf(o.Tree()); !slices.Equal(have, []string{"a", "b", "c", plan.AnyAccount}) {
		t.Errorf("have %q", have)
	}
}
