package kube

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/manifest"
)

// pasted matches the rule that an error of a missing right has, and where it belongs.
var pasted = regexp.MustCompile(`; (.+) needs the rule ({.*}) in a (ClusterRole|Role in namespace ([a-z-]+))$`)

// A rule is pasted into a role as the error prints it, and the request is let through: after
// as many rules as the request needs rights.
func TestMissingRules(t *testing.T) {
	t.Parallel()
	admin := withObjects(t, "missing-rules")
	leases := Type{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Resource: "leases", Namespaced: true}
	const ns = "missing-rules"
	impersonated := "ServiceAccount missing-rules/%s (spec.serviceAccount)"
	for _, tt := range []struct {
		name  string
		rules []string // that are pasted, one after the other
		who   string   // who needs them, with %s for the account
		// token: the account does not act by impersonation, and impersonates another one
		// if that is named.
		token bool
		as    string
		do    func(ctx context.Context, c *Client) error
	}{
		{name: "get", who: impersonated, rules: []string{`{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]} in a Role in namespace missing-rules`},
			do: func(ctx context.Context, c *Client) error {
				_, err := c.GetMetadata(ctx, configMaps, configMaps.ID(ns, "a"))
				return err
			}},
		{name: "list", who: impersonated, rules: []string{`{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, list, watch]} in a ClusterRole`},
			do: func(ctx context.Context, c *Client) error {
				_, err := c.List(ctx, leases, ListOptions{}, func(*metav1.PartialObjectMetadata) bool { return true })
				return err
			}},
		{name: "create", who: impersonated, rules: []string{
			`{apiGroups: [""], resources: [configmaps], verbs: [create, patch, delete]} in a Role in namespace missing-rules`,
		}, do: func(ctx context.Context, c *Client) error {
			_, err := c.Apply(ctx, configMaps, configMaps.ID(ns, "created"), object(t, configMaps, ns, "created", nil), ApplyOptions{})
			return err
		}},
		{name: "status", who: impersonated, rules: []string{`{apiGroups: [""], resources: [services/status], verbs: [patch]} in a Role in namespace missing-rules`},
			do: func(ctx context.Context, c *Client) error {
				_, err := c.Apply(ctx, services, services.ID(ns, "a"), object(t, services, ns, "a", balancer("192.0.2.7")), ApplyOptions{Status: true})
				return err
			}},
		{name: "delete", who: impersonated, rules: []string{`{apiGroups: [""], resources: [namespaces], verbs: [delete]} in a ClusterRole`},
			do: func(ctx context.Context, c *Client) error {
				_, _, err := c.Delete(ctx, namespaces, namespaces.ID("", "missing-rules-gone"), "")
				if ClassOf(err) == NotFound {
					return nil
				}
				return err
			}},
		{name: "escalate", who: impersonated, rules: []string{
			`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [create, patch, delete]} in a ClusterRole`,
			`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [escalate]} in a ClusterRole`,
		}, do: func(ctx context.Context, c *Client) error {
			return grants(ctx, t, c, manifest.ClusterRole.ID("", "missing-rules-granted"), map[string]any{
				"rules": []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"pods"}, "verbs": []any{"get"}}},
			})
		}},
		{name: "bind", who: impersonated, rules: []string{
			`{apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [create, patch, delete]} in a Role in namespace missing-rules`,
			`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles, roles], verbs: [bind]} in a Role in namespace missing-rules`,
		}, do: func(ctx context.Context, c *Client) error {
			return grants(ctx, t, c, manifest.RoleBinding.ID(ns, "granted"), roleRef("view"))
		}},
		{name: "bind-everywhere", who: impersonated, rules: []string{
			`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterrolebindings], verbs: [create, patch, delete]} in a ClusterRole`,
			`{apiGroups: [rbac.authorization.k8s.io], resources: [clusterroles], verbs: [bind]} in a ClusterRole`,
		}, do: func(ctx context.Context, c *Client) error {
			return grants(ctx, t, c, manifest.ClusterRoleBinding.ID("", "missing-rules-granted"), roleRef("view"))
		}},
		{name: "token", who: "that user", token: true, rules: []string{`{apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]} in a Role in namespace missing-rules`},
			do: func(ctx context.Context, c *Client) error {
				_, err := c.GetMetadata(ctx, configMaps, configMaps.ID(ns, "a"))
				return err
			}},
		{name: "impersonate", who: "that user", token: true, as: "get", rules: []string{`{apiGroups: [""], resources: [serviceaccounts], resourceNames: ["get"], verbs: [impersonate]} in a Role in namespace missing-rules`},
			do: func(ctx context.Context, c *Client) error {
				_, err := c.Version(ctx) // which every account may ask for
				return err
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			account := ServiceAccount{Namespace: ns, Name: tt.name}
			if _, err := admin.Apply(t.Context(), accounts, accounts.ID(ns, tt.name), object(t, accounts, ns, tt.name, nil), ApplyOptions{}); err != nil {
				t.Fatal(err)
			}
			c := limited(t, admin, account, tt.token, tt.as)
			var rules []string
			deadline, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			for {
				err := tt.do(deadline, c)
				if err == nil {
					break
				}
				m := pasted.FindStringSubmatch(err.Error())
				if m == nil {
					t.Fatalf("after %d rules: %v", len(rules), err)
				}
				who := tt.who
				if strings.Contains(who, "%s") {
					who = fmt.Sprintf(who, tt.name)
				}
				if rest, ok := strings.CutSuffix(m[1], who); !ok || rest != "" && !strings.HasSuffix(rest, "; ") && rest != "to grant more rights than it has, " {
					t.Errorf("%q needs the rule, want %q", m[1], who)
				}
				rule := m[2] + " in a " + m[3]
				if len(rules) > 0 && rules[len(rules)-1] == rule { // the API server has not seen it yet
					if deadline.Err() != nil {
						t.Fatalf("it is not enough: %v", err)
					}
					time.Sleep(50 * time.Millisecond)
					continue
				}
				rules = append(rules, rule)
				paste(t, admin, account, fmt.Sprint(tt.name, "-", len(rules)), m[2], m[4])
			}
			if strings.Join(rules, "\n") != strings.Join(tt.rules, "\n") {
				t.Errorf("it took the rules %q, want %q", rules, tt.rules)
			}
		})
	}
}

func roleRef(clusterRole string) map[string]any {
	return map[string]any{"roleRef": map[string]any{"apiGroup": manifest.GroupRBAC, "kind": manifest.ClusterRole.Kind, "name": clusterRole}}
}

// grants applies an object of RBAC.
func grants(ctx context.Context, t *testing.T, c *Client, id manifest.ID, fields map[string]any) error {
	typ := Type{Group: id.Group, Version: "v1", Kind: id.Kind, Resource: strings.ToLower(id.Kind) + "s", Namespaced: id.Namespace != ""}
	_, err := c.Apply(ctx, typ, id, object(t, typ, id.Namespace, id.Name, fields), ApplyOptions{})
	return err
}

// A binding whose role does not exist is refused by the role's name, whatever the binding's.
func TestMissingRole(t *testing.T) {
	t.Parallel()
	const ns = "missing-role"
	admin := withObjects(t, ns)
	account := ServiceAccount{Namespace: ns, Name: "binder"}
	if _, err := admin.Apply(t.Context(), accounts, accounts.ID(ns, account.Name), object(t, accounts, ns, account.Name, nil), ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	paste(t, admin, account, "binder", `{apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: [create, patch]}`, ns)
	c := connect(t, Config{ServiceAccount: &account})
	deadline := time.Now().Add(30 * time.Second)
	for _, role := range []string{"missing-role-role", "same"} {
		err := grants(t.Context(), t, c, manifest.RoleBinding.ID(ns, "same"), roleRef(role))
		for ClassOf(err) == Forbidden && time.Now().Before(deadline) { // the API server has not seen the rule yet
			time.Sleep(50 * time.Millisecond)
			err = grants(t.Context(), t, c, manifest.RoleBinding.ID(ns, "same"), roleRef(role))
		}
		if want := fmt.Sprintf("roleRef: role %q not found", role); ClassOf(err) != NotFound || MessageOf(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// An account without rights, one that does not exist, and one that the credentials may
// not look up have different messages; an account that is created is found.
func TestMissingAccount(t *testing.T) {
	t.Parallel()
	const ns = "missing-account"
	admin := withObjects(t, ns)
	account := func(name string) ServiceAccount {
		t.Helper()
		if _, err := admin.Apply(t.Context(), accounts, accounts.ID(ns, name), object(t, accounts, ns, name, nil), ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		return ServiceAccount{Namespace: ns, Name: name}
	}
	said := func(c *Client) string {
		t.Helper()
		_, err := c.GetMetadata(t.Context(), configMaps, configMaps.ID(ns, "a"))
		_, who, ok := strings.Cut(fmt.Sprint(err), "; ")
		who, _, found := strings.Cut(who, " needs the rule ")
		if ClassOf(err) != Forbidden || !ok || !found {
			t.Fatalf("want an error with the rule that is missing, have: %v", err)
		}
		return who
	}
	missing := connect(t, Config{ServiceAccount: &ServiceAccount{Namespace: ns, Name: "later"}})
	impersonator := account("impersonator")
	paste(t, admin, impersonator, "impersonator", `{apiGroups: [""], resources: [serviceaccounts], verbs: [impersonate]}`, ns)
	for _, tt := range []struct {
		name string
		c    *Client
		want string
	}{
		{"without rights", connect(t, Config{ServiceAccount: new(account("there"))}), "ServiceAccount missing-account/there (spec.serviceAccount)"},
		{"not there", missing, "ServiceAccount missing-account/later (spec.serviceAccount) does not exist: create it, or correct the name; it"},
		{"in no namespace", connect(t, Config{ServiceAccount: &ServiceAccount{Namespace: "missing-namespace", Name: "a"}}), "ServiceAccount missing-namespace/a (spec.serviceAccount) does not exist: create it, or correct the name; it"},
		{"not to be known", limited(t, admin, impersonator, true, "there"), "ServiceAccount missing-account/there (spec.serviceAccount; does it exist?)"},
	} {
		deadline := time.Now().Add(10 * time.Second)
		have := said(tt.c)
		for have == "that user" && time.Now().Before(deadline) { // the API server has not seen the role yet
			time.Sleep(50 * time.Millisecond)
			have = said(tt.c)
		}
		if have != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, have, tt.want)
		}
	}
	account("later")
	missing.account.asked = time.Time{} // or some seconds later
	if have, want := said(missing), "ServiceAccount missing-account/later (spec.serviceAccount)"; have != want {
		t.Errorf("%q, want %q", have, want)
	}
}

// A rule is the one that the message asks for, or none.
func TestMissingRuleText(t *testing.T) {
	t.Parallel()
	const lacks = `configmaps "a" is forbidden: User "u" cannot `
	const grants = `forbidden: user "u" (groups=["a" "b"]) is attempting to grant RBAC permissions not currently held:` + "\n" + `{APIGroups:["a.b"], Resources:["c"], Verbs:["*"]}`
	const noCredentials = "; no credentials were sent, or the API server accepted none: correct the token or the client certificate that gitopsd connects with"
	for _, tt := range []struct {
		id                    manifest.ID
		message, actsAs, want string
	}{
		{id: manifest.Role.ID("a", "b"), message: grants, want: `; to grant more rights than it has, that user needs the rule {apiGroups: [rbac.authorization.k8s.io], resources: [roles], verbs: [escalate]} in a Role in namespace a`},
		{id: configMaps.ID("a", "b"), message: grants},
		{message: lacks + `get resource "configmaps" in API group "" in the namespace "123"`, want: `; that user needs the rule {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]} in a Role in namespace 123`},
		{message: lacks + `patch resource "namespaces/status" in API group "" in the namespace "a"`, want: `; that user needs the rule {apiGroups: [""], resources: [namespaces/status], verbs: [patch]} in a ClusterRole`},
		{message: lacks + `get path "/openapi/v3"`, want: `; that user needs the rule {nonResourceURLs: ["/openapi/v3"], verbs: [get]} in a ClusterRole`},
		{message: lacks + `impersonate resource "serviceaccounts" in API group "" in the namespace "a"`, actsAs: accountPrefix + "a:123", want: `; that user needs the rule {apiGroups: [""], resources: [serviceaccounts], resourceNames: ["123"], verbs: [impersonate]} in a Role in namespace a`},
		{message: lacks + `impersonate-on:serviceaccount:get resource "pods" in API group ""`, actsAs: accountPrefix + "a:b", want: `; that user needs the rule {apiGroups: [""], resources: [serviceaccounts], resourceNames: ["b"], verbs: [impersonate]} in a Role in namespace a`},
		{message: strings.Replace(lacks, `"u"`, `"system:anonymous"`, 1) + `get resource "configmaps" in API group ""`, want: noCredentials},
		{id: manifest.Role.ID("a", "b"), message: strings.Replace(grants, `"u"`, `"system:anonymous"`, 1), want: noCredentials},
		{message: lacks + `get resource "*" in API group "*"`},
		{message: lacks + `get resource "pods" in API group "*"`},
		{message: lacks + `get resource "*], verbs: ['*'], x: [a" in API group ""`},
		{message: lacks + `get resource "pods" in API group "], resources: ['*'], x: [a"`},
		{message: lacks + `get path "/*"`},
		{message: lacks + `* resource "pods" in API group ""`},
	} {
		if have := (&Client{actsAs: tt.actsAs}).missingRule(t.Context(), operation{applies, tt.id}, tt.message); have != tt.want {
			t.Errorf("%s\n%q, want\n%q", tt.message, have, tt.want)
		}
	}
}

// limited connects as an account without rights, by impersonation or by its token.
func limited(t *testing.T, admin *Client, account ServiceAccount, token bool, as string) *Client {
	t.Helper()
	if !token {
		return connect(t, Config{ServiceAccount: &account})
	}
	text, _, err := admin.Token(t.Context(), account, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Name: "prod", Kubeconfig: withToken(t, text)}
	if as != "" {
		cfg.ServiceAccount = &ServiceAccount{Namespace: account.Namespace, Name: as}
	}
	return open(t, cfg)
}

// paste makes a role with a rule, in a namespace or for the whole cluster, and gives it to an
// account.
func paste(t *testing.T, admin *Client, account ServiceAccount, name, rule, namespace string) {
	t.Helper()
	kind, prefix := "Role", ""
	if namespace == "" {
		kind, prefix = "ClusterRole", "Cluster"
	}
	metadata := fmt.Sprintf("{name: missing-rules-%s, namespace: %q}", name, namespace)
	role := fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: %s\nmetadata: %s\nrules:\n- %s\n", kind, metadata, rule)
	binding := fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: %sBinding\nmetadata: %s\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: missing-rules-%s}\nsubjects: [{kind: ServiceAccount, name: %s, namespace: %s}]\n",
		kind, metadata, kind, name, account.Name, account.Namespace)
	for kind, text := range map[string]string{prefix + "Role": role, prefix + "RoleBinding": binding} {
		body, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatalf("%s\n%v", text, err)
		}
		typ := Type{Group: manifest.GroupRBAC, Version: "v1", Kind: kind, Resource: strings.ToLower(kind) + "s", Namespaced: namespace != ""}
		if _, err := admin.Apply(t.Context(), typ, typ.ID(namespace, "missing-rules-"+name), body, ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
