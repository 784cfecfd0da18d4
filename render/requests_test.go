package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// The rights that a package asks for are noted until its controller has them.
func TestPermissionRequests(t *testing.T) {
	t.Parallel()
	const (
		deployments = `{"apiGroups":["apps"],"resources":["deployments"],"verbs":["get","list"]}`
		note        = "Provider p: example.org/p:v1 asks for rights that its controller does not have (spec.controller.permissionRequests); if it should have them, add a ClusterRole with these rules to the Cluster's manifests, and a ClusterRoleBinding of it to ServiceAccount gitopsd-system/p: "
	)
	role := func(rules, account string) string {
		return fmt.Sprintf("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: more}\nrules: [%s]\n---\n"+
			"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: more}\nroleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: more}\nsubjects: [{kind: ServiceAccount, name: %s, namespace: gitopsd-system}]\n---\n", rules, account)
	}
	runtimeConfig := "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata: {name: irsa}\nspec: {serviceAccountTemplate: {metadata: {name: irsa}}}\n---\n"
	for _, tt := range []struct {
		name, requests, objects, spec string
		typesAlone                    bool
		want                          string // none if empty
	}{
		{name: "nothing"},
		{name: "another type", requests: deployments, want: note + deployments},
		{name: "granted", requests: deployments, objects: role(deployments, "p")},
		{name: "granted to another", requests: deployments, objects: role(deployments, "q"), want: note + deployments},
		{name: "granted in part", requests: deployments, objects: role(strings.Replace(deployments, `,"list"`, "", 1), "p"), want: note + deployments},
		{name: "its own rights", requests: `{"apiGroups":["example.org"],"resources":["as","as/status"],"verbs":["get","update"]}, {"apiGroups":[""],"resources":["secrets","events"],"verbs":["*"]}`},
		{name: "one of two", requests: `{"apiGroups":[""],"resources":["events"],"verbs":["create"]}, ` + deployments, want: note + deployments},
		{name: "another account", requests: deployments, objects: runtimeConfig, spec: "runtimeConfigRef: {name: irsa}", want: strings.Replace(note, "gitopsd-system/p", "gitopsd-system/irsa", 1) + deployments},
		{name: "another account, granted", requests: deployments, objects: runtimeConfig + role(deployments, "irsa"), spec: "runtimeConfigRef: {name: irsa}"},
		{name: "types alone", requests: deployments, typesAlone: true},
		{name: "many", requests: strings.Repeat(deployments+", ", 100), want: note + strings.Repeat(deployments+", ", mostRequested/len(deployments)) + "and 73 more"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := content(t, sources.Provider, crdYAML("as", ""))
			p.Runnable = !tt.typesAlone
			p.Meta.Document.Tree = manifesttest.Tree(t, "{spec: {controller: {permissionRequests: ["+tt.requests+"]}}}")
			rendered, err := expand(t, new(Renderer), input(t, plainObject+tt.objects+declare("Provider", "p", tt.spec)), map[string]*sources.Package{"p": p})
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if tt.want != "" {
				want = []string{tt.want}
			}
			if !slices.Equal(rendered.Notes, want) {
				t.Errorf("have %q\nwant %q", rendered.Notes, want)
			}
		})
	}
}
