package behaviour

import (
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

func TestRights(t *testing.T) {
	const mine = "{kind: ServiceAccount, name: sa, namespace: ns}"
	binding := func(kind, namespace, role, subject string) string {
		return "{apiVersion: rbac.authorization.k8s.io/v1, kind: " + kind + ", metadata: {name: b, namespace: '" + namespace + "'}, roleRef: " + role + ", subjects: [" + subject + "]}"
	}
	const cluster, named = "{kind: ClusterRole, name: c}", "{kind: Role, name: r}"
	clusterWide := func(subject string) string { return binding("ClusterRoleBinding", "", cluster, subject) }
	const pods = "{apiGroups: ['', apps], resources: [pods, deployments/status], verbs: [list, get]}"
	for _, tt := range []struct{ name, binding, rules, want string }{
		{"its own", clusterWide(mine), pods, "deployments/status get list, deployments/status.apps get list, pods get list, pods.apps get list"},
		{"somebody else's", clusterWide("{kind: ServiceAccount, name: sa, namespace: other}"), pods, ""},
		{"as a user", clusterWide("{kind: User, name: 'system:serviceaccount:ns:sa'}"), "{apiGroups: [''], resources: [pods], verbs: [get]}", "pods get"},
		{"as one of its namespace", clusterWide("{kind: Group, name: 'system:serviceaccounts:ns'}"), "{apiGroups: [''], resources: [pods], verbs: [get]}", "pods get"},
		{"as one of another namespace", clusterWide("{kind: Group, name: 'system:serviceaccounts:other'}"), "{apiGroups: [''], resources: [pods], verbs: [get]}", ""},
		{"as everybody", clusterWide("{kind: Group, name: 'system:authenticated'}"), "{apiGroups: [authorization.k8s.io], resources: [selfsubjectaccessreviews], verbs: [create]}, {nonResourceURLs: [/version], verbs: [get]}", ""},
		{"more than everybody", clusterWide("{kind: Group, name: 'system:authenticated'}"), "{apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}", "subjectaccessreviews.authorization.k8s.io create"},
		{"of two rules", clusterWide(mine), "{apiGroups: [''], resources: [pods], verbs: [list]}, {apiGroups: [''], resources: [pods], verbs: [get]}", "pods get list"},
		{"all", clusterWide(mine), "{apiGroups: ['*'], resources: ['*'], verbs: ['*', get]}", "*.* *"},
		{"by name", clusterWide(mine), "{apiGroups: [''], resources: [secrets], resourceNames: [a, b], verbs: [get]}", "secrets named a get, secrets named b get"},
		{"in its namespace", binding("RoleBinding", "ns", named, mine), "{apiGroups: [''], resources: [pods], verbs: [get]}", "pods in its own namespace get"},
		{"in another namespace", binding("RoleBinding", "team", cluster, mine), "{apiGroups: [''], resources: [pods], verbs: [get]}", "pods in namespace team get"},
		{"a role that is not there", binding("RoleBinding", "ns", "{kind: Role, name: none}", mine), pods, "Role none in its own namespace not there"},
		{"too many", clusterWide(mine), "{apiGroups: [a" + strings.Repeat(", a", 300) + "], resources: [b" + strings.Repeat(", b", 300) + "], verbs: [get]}", "a rule for 301 resources"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rules := manifesttest.Tree(t, "{rules: ["+tt.rules+"]}")["rules"].([]any)
			parts := Rights(Account{"ns", "sa"}, []Binding{ReadBinding(manifesttest.Tree(t, tt.binding))}, func(role manifest.ID) ([]any, bool) {
				return rules, role == manifest.ClusterRole.ID("", "c") || role == manifest.Role.ID("ns", "r")
			})
			var have []string
			for _, p := range parts {
				have = append(have, p.Name+" "+p.Value)
			}
			if text := strings.Join(have, ", "); text != tt.want && (tt.name != "too many" || !strings.HasPrefix(text, tt.want)) {
				t.Errorf("have %q\nwant %q", text, tt.want)
			}
		})
	}
}
