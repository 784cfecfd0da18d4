package plan

import (
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
)

// Needs decides which prunes of a plan must wait. An object that should be gone may stay for
// good, held by a finalizer that nobody removes, and one that should be there may fail for
// good. Neither may keep what it has nothing to do with, least of all a revoked right. A
// prune waits for an object
//
//   - that is still there and may need it ([Needs.Of]): the pruned object holds it, is named
//     by its dependencies, or is of its package or of the package that defines its type. If
//     its type is to go too, or is a composite's, it may need any package. A custom resource
//     of plain manifests may need any other one of these, such as the Secret that its
//     controller logs in with. Any other object may need what is cluster-wide, in its
//     namespace, or in that of a plain workload that goes too and may remove its finalizer.
//   - that is missing and may replace it ([Needs.Replaced]): one of the same package, or
//     another plain manifest, or one of a package that takes over from it ([Successors]).
//
// RoleBindings and ClusterRoleBindings of plain manifests are judged by their subjects. A
// controller is a ServiceAccount, so a binding that has none as a subject is needed by
// nothing that is still there. A binding waits while RBAC is missing in a place where it may
// replace the binding, and while something is missing where its accounts are. All others
// go, so that revoking people's rights waits for nothing else.
type Needs struct {
	// definers are the packages that define types, by group; "" is for plain manifests.
	definers map[string]map[string]bool
	// composites are the groups that XRDs define, and leaving those with types that are to go.
	composites, leaving map[string]bool
	// workloads are the namespaces with plain workloads that are to go.
	workloads map[string]bool
	// successors are the plan's.
	successors Successors
}

// AnyAccount in Step.Accounts is for the ServiceAccounts of all namespaces.
const AnyAccount = "*"

// NewNeeds returns the Needs of the steps of a plan with these successors.
func NewNeeds(steps []Step, successors Successors) *Needs {
	n := &Needs{definers: make(map[string]map[string]bool), composites: make(map[string]bool), leaving: make(map[string]bool), workloads: make(map[string]bool), successors: successors}
	for i := range steps {
		s := &steps[i]
		switch {
		case s.ID.Is(manifest.Definitions...):
			_, group, _ := strings.Cut(s.ID.Name, ".")
			if n.definers[group] == nil {
				n.definers[group] = make(map[string]bool)
			}
			n.definers[group][s.Package] = true
			n.composites[group] = n.composites[group] || s.ID.Is(manifest.XRD)
			n.leaving[group] = n.leaving[group] || s.Object == nil
		case s.Object == nil && s.Package == "" && s.Stage == Workloads:
			n.workloads[s.ID.Namespace] = true
		}
	}
	return n
}

// Of reports whether an object that is still there may need the object that s prunes.
func (n *Needs) Of(there, s *Step) bool {
	definers := n.definers[there.ID.Group]
	switch {
	case s.ID.Is(manifest.Namespace) && s.ID.Name == there.ID.Namespace,
		s.ID.Is(manifest.Packages...) && there.Stage == Custom,
		slices.ContainsFunc(there.Needs, func(name string) bool {
			return name == s.ID.String() || s.Package != "" && name == packagePrefix+s.Package
		}):
		return true
	case s.Package != "":
		return s.Package == there.Package || definers[s.Package] || n.composites[there.ID.Group] || n.leaving[there.ID.Group]
	case there.Package != "" && !definers[""]:
		return false
	case there.Stage == Custom:
		return !binds(s.ID) || len(s.Accounts) > 0
	}
	return n.near(s, there.ID.Namespace)
}

// Replaced reports whether a desired object that is missing may replace the object that s
// prunes, or may be needed before that goes.
func (n *Needs) Replaced(missing, s *Step) bool {
	switch {
	case s.Package != missing.Package && !slices.Contains(n.successors[s.Package], missing.Package):
		return false
	case s.ID.Is(manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding) && pins.Policy(s.ID.Name):
		// Otherwise it could refuse an object that it waits for.
		return missing.ID.Is(manifest.Definitions...) || pins.Policy(missing.ID.Name)
	case s.Package != "" || !binds(s.ID):
		return true
	case missing.Package == "" && missing.ID.Group == manifest.GroupRBAC && (missing.ID.Namespace == s.ID.Namespace || missing.ID.Namespace == "" || s.ID.Namespace == ""):
		return true
	}
	return n.near(s, missing.ID.Namespace)
}

// Replacers returns the packages that may have what replaces an object of a package: itself,
// and its successors.
func (n *Needs) Replacers(pkg string) []string {
	return append([]string{pkg}, n.successors[pkg]...)
}

// near reports whether a plain object may be needed by something in a namespace, or by a
// workload that is to go.
func (n *Needs) near(s *Step, namespace string) bool {
	in := func(ns string) bool { return ns == AnyAccount || ns == namespace || n.workloads[ns] }
	if binds(s.ID) {
		return slices.ContainsFunc(s.Accounts, in)
	}
	return s.ID.Namespace == "" || in(s.ID.Namespace)
}

// binds reports whether an object gives rights to subjects.
func binds(id manifest.ID) bool { return id.Is(manifest.RoleBinding, manifest.ClusterRoleBinding) }

// WantsAccounts reports whether [Live.Accounts] should have the step's object.
func (s *Step) WantsAccounts() bool {
	return s.Object == nil && s.Package == "" && s.Action == Prune && binds(s.ID)
}

// AccountsOf returns the namespaces of the ServiceAccounts that a live RoleBinding or
// ClusterRoleBinding gives rights to, in whatever form its subjects name them.
func AccountsOf(binding map[string]any) []string {
	// The names that the API server gives to ServiceAccounts as users and groups.
	const user, group = "system:serviceaccount:", "system:serviceaccounts"
	accounts := []string{}
	for _, e := range manifest.List(binding, "subjects") {
		subject, _ := e.(map[string]any)
		name := manifest.Text(subject, "name")
		switch kind := manifest.Text(subject, "kind"); {
		case kind == manifest.ServiceAccount.Kind:
			accounts = append(accounts, manifest.Text(subject, "namespace"))
		case kind == "Group" && name == group:
			accounts = append(accounts, AnyAccount)
		case kind == "Group" && strings.HasPrefix(name, group+":"):
			accounts = append(accounts, strings.TrimPrefix(name, group+":"))
		case kind == "User" && strings.HasPrefix(name, user):
			namespace, _, _ := strings.Cut(strings.TrimPrefix(name, user), ":")
			accounts = append(accounts, namespace)
		}
	}
	return accounts
}
