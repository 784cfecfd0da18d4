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

// roleName returns the name of the ClusterRole of a Provider's controller.
func roleName(provider string) string { return "gitopsd:provider:" + provider }

// The suffixes that make the names of the roles for people from the name of a Provider's
// controller role, as in Crossplane.
const (
	editSuffix = ":aggregate-to-edit"
	viewSuffix = ":aggregate-to-view"
)

// aggregateTo is the prefix of the labels that aggregate rights to Crossplane's own
// ClusterRoles (crossplane-admin, crossplane-edit, crossplane-view, and the one that it
// composes with). Kubernetes' built-in edit and view have other labels, so a package gives
// rights only to people that are bound to one of Crossplane's roles.
const aggregateTo = "rbac.crossplane.io/aggregate-to-"

// The verbs that Crossplane grants on a Provider's types.
var (
	controllerVerbs = []string{"get", "list", "watch", "update", "patch", "create"}
	editVerbs       = []string{"*"}
	viewVerbs       = []string{"get", "list", "watch"}
)

// Rights returns the ClusterRoleBinding of a Provider's rights. Providers of one
// family use each other's types, so the controllers of the family's other Providers in
// cluster are bound to the same rights. A package's metadata names the family. Since
// anybody can write a name, only packages of one registry and organization are a family. A
// Provider without a controller has a role and a binding only if its family has a
// controller.
func Rights(c Controller, cluster []Controller) ([]*manifest.Object, error) {
	p := c.Selected
	name := p.Declaration.Name
	var accounts []string
	if c.Image() != "" {
		accounts = append(accounts, c.account())
	}
	for _, other := range cluster {
		if s := other.Selected; other.Image() != "" && s.Declaration.Kind == sources.Provider && related(s, p) {
			accounts = append(accounts, other.account())
		}
	}
	if len(accounts) == 0 || c.Image() == "" && len(c.Types) == 0 {
		return nil, nil
	}
	slices.Sort(accounts)
	var subjects []any
	for _, account := range slices.Compact(accounts) {
		subjects = append(subjects, map[string]any{"kind": manifest.ServiceAccount.Kind, "name": account, "namespace": Namespace})
	}
	trees := []map[string]any{manifest.NewTree(manifest.ClusterRoleBinding.ID("", roleName(name)), map[string]any{
		"roleRef":  map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.ClusterRole.Kind, "name": roleName(name)},
		"subjects": subjects,
	})}
	if c.Image() == "" {
		own, err := resourcesOf(c)
		if err != nil {
			return nil, err
		}
		trees = append(trees, role(c, own))
	}
	objects := make([]*manifest.Object, len(trees))
	for i, tree := range trees {
		o, err := manifest.New(tree, manifest.Origin{Package: p.Pin})
		if err != nil {
			return nil, err
		}
		objects[i] = o.WithMetadata(Labels(p.Declaration), p.Declaration.CommonAnnotations)
	}
	return objects, nil
}

// RightsIDs returns the objects that [Rights] may return for a Provider.
func RightsIDs(provider string) []manifest.ID {
	return []manifest.ID{manifest.ClusterRoleBinding.ID("", roleName(provider)), manifest.ClusterRole.ID("", roleName(provider))}
}

// Unclear returns the cluster's packages with a controller that may be of c's family, since
// their content is missing, and their registry and organization are the same.
func Unclear(c Controller, cluster []Controller) []string {
	var names []string
	for _, other := range cluster {
		s := other.Selected
		if s.Package == nil && other.Image() != "" && family(c.Selected) != "" && organization(s) == organization(c.Selected) {
			names = append(names, s.Declaration.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
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

// organization returns the registry and the first part of the path after it, as in
// xpkg.upbound.io/upbound.
func organization(p sources.Selected) string {
	registry, path, _ := strings.Cut(cmp.Or(p.Pin.Ref.Repository, p.Declaration.Ref.Repository), "/")
	first, _, _ := strings.Cut(path, "/")
	return registry + "/" + first
}

// Strangers returns the cluster's other Providers that name c's family and are not in
// it, since their registry or organization differs.
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

// resources are the types of a package: plurals, sorted, by group.
type resources map[string][]string

// resourcesOf returns the types of a package. It fails if the package must not define
// one of them.
func resourcesOf(c Controller) (resources, error) {
	r := make(resources)
	for _, crd := range c.Types {
		g, p, err := resource(crd)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.ID(), err)
		}
		r[g] = append(r[g], p)
	}
	for g := range r {
		slices.Sort(r[g])
		r[g] = slices.Compact(r[g])
	}
	return r, nil
}

func (r resources) groups() []string { return slices.Sorted(maps.Keys(r)) }

// rules returns a rule for each group, for the objects and their status.
func (r resources) rules(verbs []string) []any {
	var rules []any
	for _, g := range r.groups() {
		rules = append(rules, rule([]string{g}, with(r[g], "", "/status"), verbs...))
	}
	return rules
}

// role returns the ClusterRole of a Provider's controller.
func role(c Controller, own resources) map[string]any {
	return manifest.NewTree(manifest.ClusterRole.ID("", roleName(c.Selected.Declaration.Name)), map[string]any{"rules": controllerRules(c, own)})
}

// roles returns the ClusterRoles of a Provider: its controller's, if it has one, and
// those for the people who use its types.
func roles(c Controller) ([]map[string]any, error) {
	name := roleName(c.Selected.Declaration.Name)
	own, err := resourcesOf(c)
	if err != nil {
		return nil, err
	}
	var list []map[string]any
	if c.Image() != "" {
		list = append(list, role(c, own))
	}
	if len(own) == 0 {
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
		role := manifest.NewTree(manifest.ClusterRole.ID("", name+people.suffix), map[string]any{"rules": own.rules(people.verbs)})
		labels := make(map[string]string, len(people.to))
		for _, to := range people.to {
			labels[aggregateTo+to] = "true"
		}
		list = append(list, Template{Labels: labels}.apply(role))
	}
	return list, nil
}

// controllerRules returns a controller's rights: on its types, to update their finalizers,
// and those that Crossplane grants every provider for credentials, connection details,
// leader election and events. A provider with safe-start may also read CRDs.
func controllerRules(c Controller, own resources) []any {
	rules := own.rules(controllerVerbs)
	for _, g := range own.groups() {
		rules = append(rules, rule([]string{g}, with(own[g], "/finalizers"), "update"))
	}
	if c.Image() == "" {
		return rules // for others of the family
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

// resource returns the group and plural of a CRD's kind. It fails for "*" and built-in
// types, which would grant a controller far more than its own types.
func resource(crd *manifest.Object) (g, p string, err error) {
	d := types.Read(crd.Tree())
	g, p = d.Group, d.Names.Plural
	switch {
	case !group.MatchString(g):
		return "", "", fmt.Errorf("spec.group: %q is not a group that a package may define: want a DNS name with a dot", g)
	case manifest.BuiltIn(g), g == manifest.Group: // its controller would get rights over types of others
		return "", "", fmt.Errorf("spec.group: %q is not a package's to define types in", g)
	case !plural.MatchString(p):
		return "", "", fmt.Errorf("spec.names.plural: %q is not the name of a resource", p)
	case crd.ID().Name != p+"."+g:
		return "", "", errors.New("metadata.name: want " + p + "." + g + ", the plural and the group")
	}
	return g, p, nil
}

func rule(groups, resources []string, verbs ...string) map[string]any {
	return map[string]any{"apiGroups": manifest.FromTexts(groups), "resources": manifest.FromTexts(resources), "verbs": manifest.FromTexts(verbs)}
}

// SafeStart reports whether a provider starts a controller for a type only once the
// type is installed. Capabilities are matched without regard to case and separators,
// as in Crossplane.
func SafeStart(meta sources.PackageMeta) bool {
	return slices.ContainsFunc(manifest.Texts(meta.Document.Tree, "spec", "capabilities"), func(s string) bool {
		return strings.NewReplacer("-", "", "_", "", " ", "").Replace(strings.ToLower(s)) == "safestart"
	})
}
