package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Objects that gitopsd keeps for itself are refused.
func TestOwnContent(t *testing.T) {
	t.Parallel()
	doc := func(kind, namespace, name string) string {
		return fmt.Sprintf("---\napiVersion: v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\n", kind, name, namespace)
	}
	in := input(t, doc("ConfigMap", "gitopsd-system", "inventory-dev")+doc("Secret", "gitopsd-system", "serving-ca.ns.hooks")+
		doc("Secret", "gitopsd-system", "etcd-ca.0123")+
		doc("ConfigMap", "other", "inventory-dev")+doc("Secret", "gitopsd-system", "inventory-dev")+doc("ConfigMap", "gitopsd-system", "inventory"))
	r, err := expand(t, new(Renderer), in, nil)
	var refused []string
	for _, e := range r.Refused {
		refused = append(refused, e.ID.String())
		if r.Objects.Get(e.ID) != nil || !r.Keeps(e.ID, "") {
			t.Errorf("%s is rendered, or would be pruned", e.ID)
		}
	}
	slices.Sort(refused)
	want := []string{"configmap/gitopsd-system/inventory-dev", "secret/gitopsd-system/etcd-ca.0123", "secret/gitopsd-system/serving-ca.ns.hooks"}
	if !slices.Equal(refused, want) || r.Objects.Len() != 3 {
		t.Errorf("refused are %q, and %d objects are rendered", refused, r.Objects.Len())
	}
	const reason = "c/all.yaml:2: configmap/gitopsd-system/inventory-dev: gitopsd keeps its inventories under such names; rename the object, or remove it from the manifests"
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("have %v", err)
	}
}

// A controller does not run as an account that is there for another purpose.
func TestOwnName(t *testing.T) {
	t.Parallel()
	config := func(spec string) string {
		return "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata: {name: c}\nspec: " + spec + "\n---\n"
	}
	const types = "types alone"
	for _, tt := range []struct{ name, kind, config, what, want string }{
		{"gitopsd", "Provider", "", "", "its controller would get serviceaccount/gitopsd-system/gitopsd, whose name is reserved for gitopsd and Kubernetes: declare example.org/gitopsd under another name; a dependency is named after its repository until it is declared"},
		{"gitopsd-conversion", "Provider", "", "", "serviceaccount/gitopsd-system/gitopsd-conversion"},
		{"default", "Provider", "", "", "serviceaccount/gitopsd-system/default"},
		{"target.hub.team", "Provider", "", "", "serviceaccount/gitopsd-system/target.hub.team"},
		{"p", "Provider", "{serviceAccountTemplate: {metadata: {name: gitopsd}}}", "", "its controller would get serviceaccount/gitopsd-system/gitopsd, whose name is reserved for gitopsd and Kubernetes: name another in DeploymentRuntimeConfig c"},
		{"p", "Provider", "{deploymentTemplate: {metadata: {name: gitopsd}}}", "", "deployment.apps/gitopsd-system/gitopsd, whose name"},
		{"p", "Provider", "{serviceTemplate: {metadata: {name: gitopsd-conversion}}}", "webhooks", "service/gitopsd-system/gitopsd-conversion, whose name"},
		{"gitopsd-provider", "Provider", "", "", ""},
		{"gitopsd", "Provider", "{serviceAccountTemplate: {metadata: {name: p}}, deploymentTemplate: {metadata: {name: p}}}", "", ""},
		{"gitopsd", "Provider", "", types, ""},
		{"gitopsd", "Configuration", "", "", ""},
	} {
		t.Run(strings.TrimSpace(tt.name+" "+tt.kind+" "+tt.config+tt.what), func(t *testing.T) {
			t.Parallel()
			stream, spec := crdYAML("as", ""), ""
			switch {
			case tt.what == "webhooks":
				stream = crdYAML("as", "versions: [{name: v1}, {name: v2}], conversion: {strategy: Webhook}")
			case tt.kind == "Configuration":
				stream = ""
			}
			pkg := content(t, sources.PackageKind(tt.kind), stream)
			pkg.Runnable = pkg.Runnable && tt.what != types
			settings := ""
			if tt.config != "" {
				settings, spec = config(tt.config), "runtimeConfigRef: {name: c}"
			}
			r, err := expand(t, new(Renderer), input(t, plainObject+settings+declare(tt.kind, tt.name, spec)), map[string]*sources.Package{tt.name: pkg})
			if tt.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("have %v, want %s", err, tt.want)
			}
			if have := ids(r.Objects.All()); slices.ContainsFunc(have, func(id string) bool { return strings.HasPrefix(id, "deployment") }) || !r.Keeps(manifest.ID{}, tt.name) {
				t.Errorf("rendered are %q", have)
			}
		})
	}
}
