package kustomize

import (
	"strings"
	"testing"

	"gitopsd.dev/render/remote"
)

// A patch with a target that matches nothing gives a note with its place and a suggestion.
// A patch that matches in any layer of the build gives none.
func TestPatchesThatMiss(t *testing.T) {
	t.Parallel()
	const app = `
-- base/kustomization.yaml --
resources: [app.yaml]
-- base/app.yaml --
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
`
	const add = `
  patch: '[{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}]'
`
	for _, tt := range []struct {
		name, files string
		want        string
	}{
		{"it matches", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {kind: Deployment, name: w.*}" + add, ""},
		{"kind", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {kind: Deployment}" + add + "- target:\n    kind: Deploymnt" + add,
			"a/kustomization.yaml:6: patches[1] changes nothing: no object matches its target (kind: Deploymnt); did you mean Deployment?"},
		{"name", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {kind: Service, name: wbe}" + add,
			"a/kustomization.yaml:3: patches[0] changes nothing: no object matches its target (kind: Service, name: wbe); did you mean web?"},
		{"version", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {group: apps, version: v1beta1, kind: Deployment}" + add,
			"a/kustomization.yaml:3: patches[0] changes nothing: no object matches its target (group: apps, version: v1beta1, kind: Deployment)"},
		{"namespace", "-- a/kustomization.yaml --\nnamespace: shop\nresources: [../base]\npatches:\n- target: {kind: Service, namespace: shpo}" + add,
			"a/kustomization.yaml:4: patches[0] changes nothing: no object matches its target (kind: Service, namespace: shpo)"},
		{"a namespace that is set above", "-- a/kustomization.yaml --\nresources: [../b]\npatches:\n- target: {kind: Service, namespace: shop}" + add + "-- b/kustomization.yaml --\nnamespace: shop\nresources: [../base]\n", ""},
		{"labels", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {labelSelector: app=wbe}" + add,
			"a/kustomization.yaml:3: patches[0] changes nothing: no object matches its target (labelSelector: app=wbe)"},
		{"labels that match", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {labelSelector: app=web}" + add, ""},
		{"labels that are not there", "-- a/kustomization.yaml --\nresources: [../base]\ncommonLabels: {new: label}\npatches:\n- target: {kind: Service, labelSelector: '!new'}" + add, ""},
		{"an object that it deletes", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {kind: Deployment, labelSelector: app=web}\n  patch: '{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, $patch: delete}'\n", ""},
		{"a name between two prefixes", "-- a/kustomization.yaml --\nnamePrefix: b-\nresources: [../b]\npatches:\n- target: {kind: Service, name: a-web}" + add + "-- b/kustomization.yaml --\nnamePrefix: a-\nresources: [../base]\n", ""},
		{"a generated object", "-- a/kustomization.yaml --\nconfigMapGenerator: [{name: settings, literals: [a=b]}]\npatches:\n- target: {kind: ConfigMap, name: settings}" + add, ""},
		{"a generated object, misspelt", "-- a/kustomization.yaml --\nconfigMapGenerator: [{name: settings, literals: [a=b]}]\npatches:\n- target: {kind: ConfigMap, name: setings}" + add,
			"a/kustomization.yaml:3: patches[0] changes nothing: no object matches its target (kind: ConfigMap, name: setings); did you mean settings?"},
		{"an object of another part of the build", "-- a/kustomization.yaml --\nresources: [../base, ../c]\n-- c/kustomization.yaml --\nresources: [cm.yaml]\npatches:\n- target: {kind: Service}" + add + "-- c/cm.yaml --\n{apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n",
			"c/kustomization.yaml:3: patches[0] changes nothing: no object matches its target (kind: Service)"},
		{"a component's patch of what was before it", "-- a/kustomization.yaml --\nresources: [../base]\ncomponents: [../c]\n-- c/kustomization.yaml --\napiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n- target: {kind: Service}" + add, ""},
		{"an older field", "-- a/kustomization.yaml --\nresources: [../base]\npatchesJson6902:\n- target: {version: v1, kind: Service, name: wbe}\n  patch: '[{\"op\": \"add\", \"path\": \"/metadata/annotations\", \"value\": {\"a\": \"b\"}}]'\n",
			"a/kustomization.yaml:3: patchesJson6902[0] changes nothing: no object matches its target (version: v1, kind: Service, name: wbe); did you mean web?"},
		{"where names may become anything", "-- a/kustomization.yaml --\nresources: [../base]\npatches:\n- target: {kind: Service}\n  options: {allowNameChange: true}\n  patch: '[{\"op\": \"replace\", \"path\": \"/metadata/name\", \"value\": \"shop\"}]'\n- target: {kind: Service, name: shop}" + add, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, notes, err := new(Builder).Build(t.Context(), txtarFS(t, app[1:]+tt.files), "a", remote.Bases{})
			if have := strings.Join(notes, "\n"); err != nil || have != tt.want {
				t.Errorf("have %q, %v\nwant %q", have, err, tt.want)
			}
		})
	}
}
