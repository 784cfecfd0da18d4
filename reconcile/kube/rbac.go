package kube

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strings"

	"gitopsd.dev/render/manifest"
)

// lacksRight matches the API server's message for a user without a right
// (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters, errors.go). Webhooks and
// aggregated API servers may write such messages too, and people paste the rule, so it
// matches names alone: no "*", and nothing that ends a list in YAML.
var lacksRight = regexp.MustCompile(`forbidden: User "([^"]*)" cannot ([a-z:-]+) (?:path "(/[A-Za-z0-9._~/-]*)"|resource "([a-z0-9.-]+(?:/[A-Za-z0-9./-]+)?)" in API group "([a-z0-9.-]*)"(?: in the namespace "([a-z0-9.-]+)")?)`)

// grantsMore matches its message for a user who would give others more rights than it has
// (k8s.io/kubernetes/pkg/registry/rbac/validation, rule.go).
var grantsMore = regexp.MustCompile(`forbidden: user "([^"]*)" .*is attempting to grant RBAC permissions not currently held`)

// anonymous matches both messages for the user of requests without credentials.
var anonymous = regexp.MustCompile(`forbidden: [Uu]ser "system:anonymous"`)

// missingRule returns the advice for an answer to an operation that a user lacks a right: the
// rule to paste into a role. It returns "" for any other message. A right of the anonymous user
// would be everybody's, so that no rule is advised for it.
func (c *Client) missingRule(ctx context.Context, op operation, message string) string {
	if anonymous.MatchString(message) {
		return "; no credentials were sent, or the API server accepted none: correct the token or the client certificate that gitopsd connects with"
	}
	if m := grantsMore.FindStringSubmatch(message); m != nil {
		resource, verb, ok := grant(op.id)
		if !ok {
			return ""
		}
		return fmt.Sprintf("; to grant more rights than it has, %s needs the rule {apiGroups: [%s], resources: [%s], verbs: [%s]} in a %s",
			c.who(ctx, m[1]), manifest.GroupRBAC, resource, verb, roleIn(op.id.Namespace))
	}
	m := lacksRight.FindStringSubmatch(message)
	if m == nil {
		return ""
	}
	user, verb, path, resource, group, namespace := m[1], m[2], m[3], m[4], m[5], m[6]
	rule := fmt.Sprintf("{apiGroups: [%s], resources: [%s], verbs: [%s]}", cmp.Or(group, `""`), resource, verbs(op, verb, resource))
	role := roleIn(namespace)
	switch account, name, _ := strings.Cut(strings.TrimPrefix(c.actsAs, accountPrefix), ":"); {
	case strings.HasPrefix(verb, "impersonate") && c.actsAs != "":
		// API servers with constrained impersonation (KEP-5284) name the right that they asked
		// for last, which is one of several. This one does for all.
		rule = fmt.Sprintf("{apiGroups: [\"\"], resources: [serviceaccounts], resourceNames: [%q], verbs: [impersonate]}", name)
		role = roleIn(account)
	case path != "":
		rule = fmt.Sprintf("{nonResourceURLs: [%q], verbs: [%s]}", path, verb)
	case group == "" && strings.HasPrefix(resource, "namespaces"):
		// The message has the namespace itself for its namespace, which may not be there yet.
		role = roleIn("")
	}
	return fmt.Sprintf("; %s needs the rule %s in a %s", c.who(ctx, user), rule, role)
}

// verbs returns the verbs of the rule for a request that lacks one. An API server names only
// the first that is missing, and the rule should do for what gitopsd does with the resource
// next: README has the rights that each kind needs.
func verbs(op operation, verb, resource string) string {
	switch {
	case strings.Contains(resource, "/"): // a subresource is read or written, and no more
	case verb == "get" || verb == "list" || verb == "watch":
		return "get, list, watch"
	case op.verb == applies && (verb == "create" || verb == "patch"):
		return "create, patch, delete"
	}
	return verb
}

// grant returns the right to write a role with more rights than the user's, or to bind one; ok
// is false for other objects.
func grant(id manifest.ID) (resource, verb string, ok bool) {
	switch {
	case id.Is(manifest.ClusterRole):
		return "clusterroles", "escalate", true
	case id.Is(manifest.Role):
		return "roles", "escalate", true
	case id.Is(manifest.ClusterRoleBinding):
		return "clusterroles", "bind", true
	case id.Is(manifest.RoleBinding):
		return "clusterroles, roles", "bind", true
	}
	return "", "", false
}

func roleIn(namespace string) string {
	if namespace == "" {
		return manifest.ClusterRole.Kind
	}
	return manifest.Role.Kind + " in namespace " + namespace
}

// who names a user in advice.
func (c *Client) who(ctx context.Context, user string) string {
	if c.actsAs == "" || user != c.actsAs {
		return "that user"
	}
	who := "ServiceAccount " + strings.Replace(strings.TrimPrefix(user, accountPrefix), ":", "/", 1)
	switch exists, known := c.account.exists(ctx); {
	case !known:
		return who + " (spec.serviceAccount; does it exist?)"
	case !exists:
		return who + " (spec.serviceAccount) does not exist: create it, or correct the name; it"
	}
	return who + " (spec.serviceAccount)"
}

// accountPrefix begins the user names of ServiceAccounts.
const accountPrefix = "system:serviceaccount:"

func accountUser(a ServiceAccount) string { return accountPrefix + a.Namespace + ":" + a.Name }
