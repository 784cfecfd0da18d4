package runtime

import (
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

// Binding returns the ClusterRoleBinding of a Provider's rights. Providers of one
// family (their metadata names it) use each other's types: the cluster's other
// Providers of the family are bound to the same rights.
func Binding(c Controller, cluster []Controller) (*manifest.Object, error) {
	p := c.Selected
	name := p.Declaration.Name
	accounts := []string{c.account()}
	for _, other := range cluster {
		if s := other.Selected; s.Declaration.Kind == sources.Provider && family(s) != "" && family(s) == family(p) {
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

var (
	plural = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$`)
	group  = regexp.MustCompile(`^[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)+$`)
)

// rules returns a controller's rights: all verbs on its own types, and those that
// Crossplane grants every provider for credentials, connection details, leader
// election and events.
func rules(c Controller) ([]any, error) {
	byGroup := make(map[string][]string)
	for _, crd := range c.Types {
		g, p, err := resource(crd)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", crd.ID(), err)
		}
		byGroup[g] = append(byGroup[g], p, p+"/finalizers", p+"/status")
	}
	groups := make([]string, 0, len(byGroup))
	for g := range byGroup {
		groups = append(groups, g)
	}
	slices.Sort(groups)
	var rules []any
	for _, g := range groups {
		slices.Sort(byGroup[g])
		rules = append(rules, rule([]string{g}, slices.Compact(byGroup[g]), "*"))
	}
	rules = append(rules, rule([]string{"", manifest.GroupCoordination}, []string{"configmaps", "events", "leases", "secrets"}, "*"))
	if SafeStart(c.Selected.Package.Meta) {
		rules = append(rules, rule([]string{manifest.CRD.Group}, []string{"customresourcedefinitions"}, "get", "list", "watch"))
	}
	return rules, nil
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
