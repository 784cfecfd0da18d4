package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

const runtimeConfigYAML = `apiVersion: pkg.crossplane.io/v1beta1
kind: DeploymentRuntimeConfig
metadata: {name: NAME}
spec:
  deploymentTemplate:
    metadata: {labels: {tier: NAME}}
    spec:
      selector: {}
      template:
        spec:
          containers:
          - name: package-runtime
            args: [--debug]
---
`

// The configuration of a controller is an ImageConfig's, else the declaration's, else the
// default one if it exists.
func TestRuntimeConfig(t *testing.T) {
	t.Parallel()
	pkg := content(t, sources.Provider, crdYAML("as", ""))
	named := func(name string) string { return strings.ReplaceAll(runtimeConfigYAML, "NAME", name) }
	for _, tt := range []struct{ name, settings, spec, want, err string }{
		{"none", "", "", "", ""},
		{"default", named("default"), "", "default", ""},
		{"declared", named("default") + named("big"), "runtimeConfigRef: {name: big}", "big", ""},
		{"by ImageConfig", named("big") + named("small") + imageConfigYAML("{matchImages: [{prefix: example.org/}], runtime: {configRef: {name: small}}}") + "---\n", "runtimeConfigRef: {name: big}", "small", ""},
		{"missing", "", "runtimeConfigRef: {name: big}", "", "Provider p (c/all.yaml:5): its controller uses the DeploymentRuntimeConfig big, which is not among the cluster's manifests"},
		{"broken", strings.Replace(named("big"), "args", "arks", 1), "runtimeConfigRef: {name: big}", "", "Provider p (c/all.yaml:19): its controller uses the DeploymentRuntimeConfig big, which has errors"},
		{"broken, another's", strings.Replace(named("big"), "args", "arks", 1), "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rendered, err := expand(t, new(Renderer), input(t, plainObject+tt.settings+declare("Provider", "p", tt.spec)), map[string]*sources.Package{"p": pkg})
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || !rendered.Keeps(manifest.ID{}, "p") {
					t.Errorf("have %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			d := rendered.Objects.Get(manifest.ID{Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: "p"})
			args := strings.Contains(string(d.AppendJSON(nil)), `"args":["--debug"]`)
			if d.Label("tier") != tt.want || args != (tt.want != "") {
				t.Errorf("have %s", d.AppendJSON(nil))
			}
		})
	}
}

// A package without a controller gets one only if a DeploymentRuntimeConfig names its
// image.
func TestTypesAlone(t *testing.T) {
	t.Parallel()
	pkg := content(t, sources.Provider, crdYAML("as", "")+"apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: h}\nwebhooks: [{name: a.example.org, clientConfig: {}}]\n")
	pkg.Runnable = false
	big := strings.ReplaceAll(runtimeConfigYAML, "NAME", "big")
	image := strings.Replace(big, "args: [--debug]", "image: 'example.org/c@sha256:"+strings.Repeat("0", 64)+"'", 1)
	const noted = "c/all.yaml:%d: Provider p: spec.runtimeConfigRef means nothing, since example.org/p:v1 has types and no controller; a DeploymentRuntimeConfig gives it one by the image of a container package-runtime"
	for _, tt := range []struct {
		name, settings, spec string
		runs, noted          bool
	}{
		{"plain", "", "", false, false},
		{"default settings", strings.ReplaceAll(runtimeConfigYAML, "NAME", "default"), "", false, false},
		{"settings of its own", big, "runtimeConfigRef: {name: big}", false, true},
		{"an image", image, "runtimeConfigRef: {name: big}", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stream := plainObject + tt.settings + declare("Provider", "p", tt.spec)
			rendered, err := expand(t, new(Renderer), input(t, stream), map[string]*sources.Package{"p": pkg})
			if err != nil {
				t.Fatal(err)
			}
			runs := slices.ContainsFunc(rendered.Objects.All(), func(o *manifest.Object) bool {
				return o.ID().Is(manifest.Deployment, manifest.Service, manifest.ServiceAccount, manifest.ClusterRoleBinding) || o.ID().Name == "gitopsd:provider:p"
			})
			if runs != tt.runs || rendered.Objects.Get(manifest.CRD.ID("", "as.example.org")) == nil {
				t.Errorf("have %q", ids(rendered.Objects.All()))
			}
			var want []string
			if tt.noted {
				want = []string{fmt.Sprintf(noted, 1+strings.Count(strings.Split(stream, "kind: Provider")[0], "\n")-1)}
			}
			if !slices.Equal(rendered.Notes, want) {
				t.Errorf("notes %q, want %q", rendered.Notes, want)
			}
		})
	}
}

func TestRuntimeConfigFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, old, new, want string }{
		{"unknown field", "args", "arks", `spec: unknown field "deploymentTemplate.spec.template.spec.containers[0].arks"`},
		{"version", "v1beta1", "v1", "apiVersion: pkg.crossplane.io/v1 is not known; write pkg.crossplane.io/v1beta1"},
		{"image by tag", "args: [--debug]", "image: 'example.org/c:v1'", "spec.deploymentTemplate.spec.template.spec.containers[0].image: example.org/c:v1 names no digest"},
		{"our label", "tier", "gitopsd.dev/package", "spec.deploymentTemplate.metadata: gitopsd.dev/package: is gitopsd's own to set"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, err := new(Renderer).Want(t.Context(), input(t, strings.Replace(runtimeConfigYAML, tt.old, tt.new, 1)))
			if err != nil {
				t.Fatal(err)
			}
			if faults := w.Faults(); len(faults) != 1 || !strings.Contains(faults[0].Error(), tt.want) || !strings.HasPrefix(faults[0].Error(), "c/all.yaml:") {
				t.Errorf("have %v, want %q", faults, tt.want)
			}
		})
	}
}
