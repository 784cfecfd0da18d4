package behaviour

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
)

func TestUngranted(t *testing.T) {
	const (
		role    = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: c}\nrules: ["
		binding = "]\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\nroleRef: {kind: ClusterRole, name: c}\nsubjects: [{kind: ServiceAccount, name: sa, namespace: ns}]\n"
		pods    = "{apiGroups: [''], resources: [pods], verbs: [get]}"
		scale   = "{apiGroups: [apps], resources: [deployments/scale], verbs: [get]}"
		secret  = "{apiGroups: [''], resources: [secrets], resourceNames: [a], verbs: [get]}"
		metrics = "{nonResourceURLs: [/metrics/a], verbs: [get]}"
	)
	for _, tt := range []struct {
		name, objects, rule string
		granted             bool
	}{
		{"nothing", "", pods, false},
		{"the same", role + pods + binding, pods, true},
		{"no binding", role + pods + "]\n", pods, false},
		{"another's", strings.Replace(role+pods+binding, "name: sa", "name: other", 1), pods, false},
		{"another group", role + strings.Replace(pods, "''", "apps", 1) + binding, pods, false},
		{"another verb", role + strings.Replace(pods, "get", "list", 1) + binding, pods, false},
		{"every verb", role + strings.Replace(pods, "get", "'*'", 1) + binding, pods, true},
		{"every resource", role + strings.Replace(pods, "pods", "'*'", 1) + binding, pods, true},
		{"every verb is asked for", role + pods + binding, strings.Replace(pods, "get", "'*'", 1), false},
		{"in two rules", role + pods + ", " + strings.Replace(pods, "get", "list", 1) + binding, strings.Replace(pods, "get", "get, list", 1), true},
		{"a part", role + pods + binding, strings.Replace(pods, "pods", "pods, nodes", 1), false},
		{"a subresource", role + scale + binding, scale, true},
		{"subresource of every resource", role + strings.Replace(scale, "deployments/scale", "'*/scale'", 1) + binding, scale, true},
		{"its resource alone", role + strings.Replace(scale, "/scale", "", 1) + binding, scale, false},
		{"by name", role + secret + binding, secret, true},
		{"by another name", role + strings.Replace(secret, "[a]", "[b]", 1) + binding, secret, false},
		{"all by name", role + secret + binding, strings.Replace(secret, "resourceNames: [a], ", "", 1), false},
		{"more than the name", role + strings.Replace(secret, "resourceNames: [a], ", "", 1) + binding, secret, true},
		{"URL", role + metrics + binding, metrics, true},
		{"URLs below", role + strings.Replace(metrics, "/metrics/a", "'/metrics/*'", 1) + binding, metrics, true},
		{"another URL", role + strings.Replace(metrics, "/a", "/b", 1) + binding, metrics, false},
		{"in one namespace", strings.Replace(role+pods+binding, "kind: ClusterRoleBinding\nmetadata: {", "kind: RoleBinding\nmetadata: {namespace: team, ", 1), pods, true},
		{"a role that is unknown", strings.Replace(role+binding, "metadata: {name: c}", "metadata: {name: d}", 1), pods, true},
		{"an aggregated role", strings.Replace(role+binding, "rules:", "aggregationRule: {clusterRoleSelectors: []}\nrules:", 1), pods, true},
		{"everybody's role that is unknown", strings.Replace(strings.Replace(role+binding, "metadata: {name: c}", "metadata: {name: d}", 1), "kind: ServiceAccount, name: sa, namespace: ns", "kind: Group, name: 'system:authenticated'", 1), pods, false},
		{"no rule", "", "a", true},
		{"too many rights", role + strings.Replace(pods, "pods", "'*'", 1) + binding, "{apiGroups: [''], resources: [a" + strings.Repeat(", a", mostRights) + "], verbs: [get]}", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rules := manifesttest.Tree(t, "{rules: ["+tt.rule+"]}")["rules"].([]any)
			missing := Ungranted(Account{"ns", "sa"}, manifesttest.Set(t, tt.objects), rules)
			if (len(missing) == 0) != tt.granted {
				t.Errorf("have %v", missing)
			}
		})
	}
}
