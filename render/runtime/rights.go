package runtime

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// RoleName returns the name of the ClusterRole of a Provider's controller.
func RoleName(provider string) string { return "gitopsd:provider:" + provider }

// What is behind the name of a Provider's controller role in those of the roles for
// people, as in Crossplane.
const (
	editSuffix = ":aggregate-to-edit"
	viewSuffix = ":aggregate-to-view"
)

// aggregateTo is the prefix of the labels by which Crossplane's own ClusterRoles
// (crossplane-admin, crossplane-edit, crossplane-view, and the one that it composes
// with) collect rights. Kubernetes' own edit and view have other labels: a package
// adds nothing to what people may do whom nobody bound to such a role.
const aggregateTo = "rbac.crossplane.io/aggregate-to-"

// The verbs that Crossplane grants on a Provider's types.
var (
	controllerVerbs = []string{"get", "list", "watch", "update", "patch", "create"}
	editVerbs       = []string{"*"}
	viewVerbs       = []string{"get", "list", "watch"}
)

// Binding returns the ClusterRoleBinding of a Provider's rights. Providers of one
// family use each other's types: the cluster's other Providers of the family are
// bound to the same rights. A family is what a package's metadata names, within one
// registry and organization: everybody can write a name.
func Binding(c Controller, cluster []Controller) (*manifest.Object, error) {
	p := c.Selected
	name := p.Declaration.Name
	accounts := []string{c.account()}
	for _, other := range cluster {
		if s := other.Selected; s.Declaration.Kind == sources.Provider && related(s, p) {
			accounts = append(accounts, other.account())
		}
	}
	slices.Sort(accounts)
	var subjects []any
	for _, account := range slices.Compact(accounts) {
		subjects = append(subjects, map[string]any{"kind": manifest.ServiceAccount.Kind, "name": account, "namespace": Namespace})
	}
	o, err := manifest.New(object(manifest.ClusterRoleBinding, RoleName(name), "", map[string]any{
		"roleRef":  map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.ClusterRole.Kind, "name": RoleName(name)},
		"subjects": subjects,
	}), manifest.Origin{Package: p.Pin})
	if err != nil {
		return nil, err
	}
	labels := maps.Clone(p.Declaration.CommonLabels)
	if labels == nil {
		labels = make(map[string]string, 1)
	}
	labels[manifest.PackageLabel] = name
	return o.WithMetadata(labels, p.Declaration.CommonAnnotations), nil
}

func family(p sources.Selected) string {
	if p.Package == nil {
		return ""
	}
	return manifest.Text(p.Package.Meta.Document.Tree, "metadata", "labels", familyLabel)
}

func related(a, b sources.Selected) bool {
	return family(a) != "" && family(a) == family(b) && organization(a) == organization(b)
}

// organization returns the registry and the first part of the path behind it, as in
// xpkg.upbound.io/upbound.
func organization(p sources.Selected) string {
	registry, path, _ := strings.Cut(cmp.Or(p.Pin.Ref.Repository, p.Declaration.Ref.Repository), "/")
	first, _, _ := strings.Cut(path, "/")
	return registry + "/" + first
}

// Strangers returns the cluster's other Providers that name c's family and are not in
// it, since their registry or organization is another.
func Strangers(c Controller, cluster []Controller) []string {
	var names []string
	for _, other := range cluster {
		s := other.Selected
		if s.Declaration.Kind == sources.Provider && family(s) != "" && family(s) == family(c.Selected) && !related(s, c.Selected) {
			names = append(names, s.Declaration.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var (
	plural = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	group  = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+$`)
)

// roles returns the ClusterRoles of a Provider: its controller's, and those for the
// people who use its types.
func roles(c Controller) ([]map[string]any, error) {
	name := RoleName(c.Selected.Declaration.Name)
	byGroup := make(map[string][]string)
	for _, crd := range c.Types {
		g, p, err := resource(crd)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.ID(), err)
		}
		byGroup[g] = append(byGroup[g], p)
	}
	groups := slices.Sorted(maps.Keys(byGroup))
	for _, g := range groups {
		slices.Sort(byGroup[g])
		byGroup[g] = slices.Compact(byGroup[g])
	}
	own := func(verbs []string) []any {
		rules := make([]any, len(groups))
		for i, g := range groups {
			rules[i] = rule([]string{g}, with(byGroup[g], "", "/status"), verbs...)
		}
		return rules
	}
	list := []map[string]any{object(manifest.ClusterRole, name, "", map[string]any{"rules": controllerRules(c, groups, byGroup, own(controllerVerbs))})}
	if len(groups) == 0 {
		return list, nil
	}
	for _, people := range []struct {
		suffix string
		to     []string
		verbs  []string
	}{
		{editSuffix, []string{"admin", "crossplane", "edit"}, editVerbs},
		{viewSuffix, []string{"view"}, viewVerbs},
	} {
		role := object(manifest.ClusterRole, name+people.suffix, "", map[string]any{"rules": own(people.verbs)})
		labels := make(map[string]string, len(people.to))
		for _, to := range people.to {
			labels[aggregateTo+to] = "true"
		}
		list = append(list, Template{Labels: labels}.apply(role))
	}
	return list, nil
}

// controllerRules returns a controller's rights: own, those on its types, update of
// their finalizers, and those that Crossplane grants every provider for credentials,
// connection details, leader election and events. A provider that starts a controller
// once its type is there also sees which are.
func controllerRules(c Controller, groups []string, byGroup map[string][]string, own []any) []any {
	rules := own
	for _, g := range groups {
		rules = append(rules, rule([]string{g}, with(byGroup[g], "/finalizers"), "update"))
	}
	rules = append(rules, rule([]string{"", manifest.GroupCoordination}, []string{"configmaps", "events", "leases", "secrets"}, "*"))
	if SafeStart(c.Selected.Package.Meta) {
		rules = append(rules, rule([]string{manifest.CRD.Group}, []string{"customresourcedefinitions"}, viewVerbs...))
	}
	return rules
}

// with returns every name with every suffix.
func with(names []string, suffixes ...string) []string {
	all := make([]string, 0, len(names)*len(suffixes))
	for _, n := range names {
		for _, s := range suffixes {
			all = append(all, n+s)
		}
	}
	return all
}

// resource returns the group and plural of a CRD's kind. They go into rules, where
// "*" or a built-in type would grant far more than the controller's own.
func resource(crd *manifest.Object) (g, p string, err error) {
	d := types.Read(crd.Tree())
	g, p = d.Group, d.Names.Plural
	switch {
	case !group.MatchString(g):
		return "", "", fmt.Errorf("spec.group: %q is not a group that a package may define: want a DNS name with a dot", g)
	case manifest.BuiltIn(g), g == manifest.Group: // its controller would get rights over what is not its own
		return "", "", fmt.Errorf("spec.group: %q is not a package's to define types in", g)
	case !plural.MatchString(p):
		return "", "", fmt.Errorf("spec.names.plural: %q is not the name of a resource", p)
	case crd.ID().Name != p+"."+g:
		return "", "", errors.New("metadata.name: want " + p + "." + g + ", the plural and the group")
	}
	return g, p, nil
}

func rule(groups, resources []string, verbs ...string) map[string]any {
	return map[string]any{"apiGroups": list(groups), "resources": list(resources), "verbs": list(verbs)}
}

func list(values []string) []any {
	l := make([]any, len(values))
	for i, v := range values {
		l[i] = v
	}
	return l
}

// SafeStart reports whether a provider starts a controller for a type only once the
// type is installed. Capabilities are matched without regard to case and separators,
// as in Crossplane.
func SafeStart(meta sources.PackageMeta) bool {
	return slices.ContainsFunc(manifest.Texts(meta.Document.Tree, "spec", "capabilities"), func(s string) bool {
		return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s)) == "safestart"
	})
}
