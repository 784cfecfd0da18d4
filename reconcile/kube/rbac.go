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

// missingRule returns the advice for an answer that a user lacks a right: the rule to
// paste into a role. It returns "" for any other message.
func (c *Client) missingRule(ctx context.Context, message string) string {
	m := lacksRight.FindStringSubmatch(message)
	if m == nil {
		return ""
	}
	user, verb, path, resource, group, namespace := m[1], m[2], m[3], m[4], m[5], m[6]
	rule := fmt.Sprintf("{apiGroups: [%s], resources: [%s], verbs: [%s]}", cmp.Or(group, `""`), resource, verb)
	role := manifest.ClusterRole.Kind
	switch account, name, _ := strings.Cut(strings.TrimPrefix(c.actsAs, accountPrefix), ":"); {
	case strings.HasPrefix(verb, "impersonate") && c.actsAs != "":
		// API servers with constrained impersonation (KEP-5284) name the right that they asked
		// for last, which is one of several. This one does for all.
		rule = fmt.Sprintf("{apiGroups: [\"\"], resources: [serviceaccounts], resourceNames: [%q], verbs: [impersonate]}", name)
		role = manifest.Role.Kind + " in namespace " + account
	case path != "":
		rule = fmt.Sprintf("{nonResourceURLs: [%q], verbs: [%s]}", path, verb)
	case group == "" && strings.HasPrefix(resource, "namespaces"):
		// The message has the namespace itself for its namespace, which may not be there yet.
	case namespace != "":
		role = manifest.Role.Kind + " in namespace " + namespace
	}
	who := "that user"
	if c.actsAs != "" && user == c.actsAs {
		who = "ServiceAccount " + strings.Replace(strings.TrimPrefix(user, accountPrefix), ":", "/", 1)
		switch exists, known := c.account.exists(ctx); {
		case !known:
			who += " (spec.serviceAccount; does it exist?)"
		case !exists:
			who += " (spec.serviceAccount) does not exist: create it, or correct the name; it"
		default:
			who += " (spec.serviceAccount)"
		}
	}
	return fmt.Sprintf("; %s needs the rule %s in a %s", who, rule, role)
}

// accountPrefix begins the user names of ServiceAccounts.
const accountPrefix = "system:serviceaccount:"

func accountUser(a ServiceAccount) string { return accountPrefix + a.Namespace + ":" + a.Name }
