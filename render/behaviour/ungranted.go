package behaviour

import (
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Ungranted returns those of some rules that objects of a cluster do not grant an account.
// Rights in one namespace are enough. If the account has a role whose rules are unknown, it may
// have all rights. Rules with more than mostRights rights together are not looked up.
func Ungranted(a Account, objects *manifest.Set, rules []any) []map[string]any {
	var granted []policyRule
	for _, o := range objects.All() {
		if !o.ID().Is(manifest.RoleBinding, manifest.ClusterRoleBinding) {
			continue
		}
		b := ReadBinding(o.Tree())
		direct, group := b.Grants(a)
		if !direct && !group {
			continue
		}
		has, ok := rulesOf(objects.Get(b.Role))
		if !ok && direct {
			return nil
		}
		for _, item := range has {
			granted = append(granted, readRule(item))
		}
	}
	var missing []map[string]any
	left := mostRights
	for _, item := range rules {
		wanted := readRule(item)
		if left -= wanted.size(); left < 0 || !wanted.grantedBy(granted) {
			rule, _ := item.(map[string]any)
			missing = append(missing, rule)
		}
	}
	return missing
}

// policyRule is a rule of a Role or ClusterRole.
type policyRule struct{ verbs, groups, resources, objects, urls []string }

func readRule(item any) policyRule {
	rule, _ := item.(map[string]any)
	return policyRule{
		verbs: manifest.Texts(rule, "verbs"), groups: manifest.Texts(rule, "apiGroups"), resources: manifest.Texts(rule, "resources"),
		objects: manifest.Texts(rule, "resourceNames"), urls: manifest.Texts(rule, "nonResourceURLs"),
	}
}

// size returns the number of the rule's rights; more than mostRights if there are too many.
func (r policyRule) size() int {
	product := func(lists ...[]string) int {
		n := 1
		for _, l := range lists {
			if n *= len(l); n > mostRights {
				return mostRights + 1
			}
		}
		return n
	}
	return product(r.verbs, r.urls) + product(r.verbs, r.groups, r.resources, r.everyObject())
}

// everyObject returns the names of the rule's objects, one empty name if it is for all.
func (r policyRule) everyObject() []string {
	if len(r.objects) == 0 {
		return []string{""}
	}
	return r.objects
}

// grantedBy reports whether other rules grant everything that the rule does.
func (r policyRule) grantedBy(granted []policyRule) bool {
	for _, verb := range r.verbs {
		for _, url := range r.urls {
			if !slices.ContainsFunc(granted, func(g policyRule) bool { return holds(g.verbs, verb) && g.url(url) }) {
				return false
			}
		}
		for _, group := range r.groups {
			for _, resource := range r.resources {
				for _, object := range r.everyObject() {
					if !slices.ContainsFunc(granted, func(g policyRule) bool {
						return holds(g.verbs, verb) && holds(g.groups, group) && g.resource(resource) && (len(g.objects) == 0 || slices.Contains(g.objects, object))
					}) {
						return false
					}
				}
			}
		}
	}
	return true
}

// holds reports whether a list has a value, or "*".
func holds(list []string, value string) bool {
	return slices.Contains(list, value) || slices.Contains(list, "*")
}

// resource reports whether the rule is for a resource: "deployments" or "deployments/scale".
func (r policyRule) resource(name string) bool {
	_, sub, ok := strings.Cut(name, "/")
	return holds(r.resources, name) || ok && slices.Contains(r.resources, "*/"+sub)
}

func (r policyRule) url(path string) bool {
	return slices.ContainsFunc(r.urls, func(u string) bool {
		prefix, ok := strings.CutSuffix(u, "*")
		return u == path || ok && strings.HasPrefix(path, prefix)
	})
}
