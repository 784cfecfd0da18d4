package live

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// Which bindings and roles make the difference between the rights that were rendered and those
// that an account has.
func TestGrantors(t *testing.T) {
	a := behaviour.Account{Namespace: "ns", Name: "x"}
	binding := func(name, role string) string {
		return fmt.Sprintf("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: %s}, roleRef: {kind: ClusterRole, name: %s}, subjects: [{kind: ServiceAccount, namespace: ns, name: x}]}", name, role)
	}
	read := func(texts []string) (all []behaviour.Binding) {
		for _, text := range texts {
			all = append(all, behaviour.ReadBinding(manifesttest.Tree(t, text)))
		}
		return all
	}
	role := func(verbs map[string]string) func(manifest.ID) ([]any, bool) {
		return func(id manifest.ID) ([]any, bool) {
			v, ok := verbs[id.Name]
			return []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{v}}}, ok
		}
	}
	same := map[string]string{"r": "get", "s": "get"}
	for _, tt := range []struct {
		name           string
		declared, live []string
		wanted, have   map[string]string
		want           string
	}{
		{"the same", []string{binding("b", "r")}, []string{binding("b", "r")}, same, same, ""},
		{"another role", []string{binding("b", "r"), binding("c", "s")}, []string{binding("b", "r"), binding("c", "s")}, same, map[string]string{"r": "get", "s": "list"}, "clusterrole.rbac.authorization.k8s.io/s"},
		{"a role that is not there", []string{binding("b", "r")}, []string{binding("b", "r")}, same, nil, "clusterrole.rbac.authorization.k8s.io/r"},
		{"a binding that is not there", []string{binding("b", "r")}, nil, same, nil, "clusterrolebinding.rbac.authorization.k8s.io/b"},
		{"a binding more", []string{binding("b", "r")}, []string{binding("b", "r"), binding("c", "s")}, same, same, "clusterrolebinding.rbac.authorization.k8s.io/c"},
		{"a binding to another role", []string{binding("b", "r")}, []string{binding("b", "s")}, same, same, "clusterrolebinding.rbac.authorization.k8s.io/b clusterrolebinding.rbac.authorization.k8s.io/b"},
	} {
		var have []string
		for _, id := range grantors(a, read(tt.declared), read(tt.live), role(tt.wanted), role(tt.have)) {
			have = append(have, id.String())
		}
		if text := strings.Join(have, " "); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// One object that gitopsd did not apply as it is makes the whole difference doubtful.
func TestDiffers(t *testing.T) {
	a, b, other := manifest.ClusterRole.ID("", "a"), manifest.ClusterRole.ID("", "b"), manifest.ClusterRole.ID("", "other")
	in := &reading{applied: map[manifest.ID]bool{a: true, b: true}}
	for _, tt := range []struct {
		from []manifest.ID
		want bool
	}{
		{[]manifest.ID{a, b}, true},
		{[]manifest.ID{a, other}, false},
		{[]manifest.ID{other, a}, false},
	} {
		var c verify.Context
		for _, id := range tt.from {
			in.differs(&c, id)
		}
		if c.Applied != tt.want || !slices.Equal(c.From, tt.from) {
			t.Errorf("%v: %+v", tt.from, c)
		}
	}
}
