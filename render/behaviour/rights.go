package behaviour

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Account is a ServiceAccount. Accounts are comparable.
type Account struct{ Namespace, Name string }

// Binding is a RoleBinding or ClusterRoleBinding.
type Binding struct {
	ID manifest.ID
	// Namespace is the namespace in which it grants rights; empty for all.
	Namespace string
	// Role is the Role or ClusterRole that it refers to.
	Role manifest.ID
	// Package is the package that it is rendered from; empty if there is none.
	Package string

	subjects []any
}

// ReadBinding returns a decoded RoleBinding or ClusterRoleBinding.
func ReadBinding(tree map[string]any) Binding {
	b := Binding{ID: manifest.KindOf(tree).ID(manifest.Text(tree, "metadata", "namespace"), manifest.Text(tree, "metadata", "name")), Package: manifest.Text(tree, "metadata", "labels", manifest.PackageLabel), subjects: manifest.List(tree, "subjects")}
	if b.ID.Is(manifest.RoleBinding) {
		b.Namespace = b.ID.Namespace
	}
	ref := manifest.Mapping(tree, "roleRef")
	b.Role = manifest.ClusterRole.ID("", manifest.Text(ref, "name"))
	if manifest.Text(ref, "kind") == manifest.Role.Kind {
		b.Role = manifest.Role.ID(b.Namespace, b.Role.Name)
	}
	return b
}

// Grants reports whether the binding names the account itself, and whether it names a
// group of the account.
func (b Binding) Grants(a Account) (direct, group bool) {
	for _, item := range b.subjects {
		s, _ := item.(map[string]any)
		name := manifest.Text(s, "name")
		switch manifest.Text(s, "kind") {
		case manifest.ServiceAccount.Kind:
			direct = direct || name == a.Name && manifest.Text(s, "namespace") == a.Namespace
		case "User":
			direct = direct || name == "system:serviceaccount:"+a.Namespace+":"+a.Name
		case "Group":
			group = group || name == "system:authenticated" || name == "system:serviceaccounts" || name == "system:serviceaccounts:"+a.Namespace
		}
	}
	return direct, group
}

// mostRights limits the rights of an account that are listed one by one; rules beyond
// that are hashed.
const mostRights = 50_000

// Rights returns the rights that bindings grant an account, one part for each resource
// with its verbs: "deployments.apps in namespace team" and "get list". The account's own
// namespace is not named, since it may have another name in each cluster. role returns a
// role's rules, and false for an unknown role.
//
// Rights of groups that Kubernetes grants to everybody are left out: URLs, and reviews of
// the account's own rights.
func Rights(a Account, bindings []Binding, role func(manifest.ID) (rules []any, ok bool)) []Part {
	verbs := make(map[string]map[string]bool)
	add := func(name string, granted []string) {
		if verbs[name] == nil {
			verbs[name] = make(map[string]bool)
		}
		for _, v := range granted {
			verbs[name][v] = true
		}
	}
	for _, b := range bindings {
		direct, group := b.Grants(a)
		if !direct && !group {
			continue
		}
		where := ""
		switch b.Namespace {
		case "":
		case a.Namespace:
			where = " in its own namespace"
		default:
			where = " in namespace " + b.Namespace
		}
		rules, ok := role(b.Role)
		if !ok {
			add(b.Role.Kind+" "+b.Role.Name+where, []string{Elsewhere})
			continue
		}
		for _, item := range rules {
			rule, _ := item.(map[string]any)
			if !direct && everybodys(rule) {
				continue
			}
			names := ruleNames(rule)
			if len(verbs)+len(names) > mostRights {
				add("other rules of "+b.Role.Kind+" "+b.Role.Name+where, []string{hash(manifest.AppendJSON(nil, item))})
				continue
			}
			for _, name := range names {
				add(name+where, manifest.Texts(rule, "verbs"))
			}
		}
	}
	var parts []Part
	for _, name := range slices.Sorted(maps.Keys(verbs)) {
		all := slices.Sorted(maps.Keys(verbs[name]))
		if verbs[name]["*"] {
			all = []string{"*"}
		}
		parts = append(parts, Part{name, strings.Join(all, " ")})
	}
	return parts
}

// everybodys reports whether a rule only grants rights that Kubernetes grants to
// everybody.
func everybodys(rule map[string]any) bool {
	for _, g := range manifest.Texts(rule, "apiGroups") {
		if g != manifest.GroupAuthz && g != manifest.GroupAuthn {
			return false
		}
	}
	return !slices.ContainsFunc(manifest.Texts(rule, "resources"), func(r string) bool { return !strings.HasPrefix(r, "self") })
}

// ruleNames returns the resources of a rule, with the names of objects if it is limited
// to some. A rule with more than mostRights of these has one name.
func ruleNames(rule map[string]any) []string {
	var all []string
	for _, url := range manifest.Texts(rule, "nonResourceURLs") {
		all = append(all, "URL "+url)
	}
	groups, resources, objects := manifest.Texts(rule, "apiGroups"), manifest.Texts(rule, "resources"), manifest.Texts(rule, "resourceNames")
	if len(objects) == 0 {
		objects = []string{""}
	}
	if len(groups)*len(resources) > mostRights || len(groups)*len(resources)*len(objects) > mostRights {
		return []string{fmt.Sprintf("a rule for %d resources (%s)", len(resources), hash(manifest.AppendJSON(nil, rule)))}
	}
	for _, g := range groups {
		for _, r := range resources {
			name := r
			if g != "" {
				name += "." + g
			}
			for _, object := range objects {
				if object == "" {
					all = append(all, name)
				} else {
					all = append(all, name+" named "+object)
				}
			}
		}
	}
	return all
}
