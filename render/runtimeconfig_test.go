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

// Providers may share an account that their DeploymentRuntimeConfigs name, as one that a
// cloud gives its rights.
func TestSharedAccount(t *testing.T) {
	t.Parallel()
	config := func(name, account string) string {
		return "apiVersion: pkg.crossplane.io/v1beta1\nkind: DeploymentRuntimeConfig\nmetadata: {name: " + name + "}\nspec: {serviceAccountTemplate: {metadata: " + account + "}}\n---\n"
	}
	account := manifest.ServiceAccount.ID("gitopsd-system", "aws")
	const role = "{name: aws, annotations: {eks.amazonaws.com/role-arn: arn}}"
	one := config("one", role)
	packages := func() map[string]*sources.Package {
		return map[string]*sources.Package{
			"p": content(t, sources.Provider, crdYAML("ps", "")), "q": content(t, sources.Provider, crdYAML("qs", "")), "aws": content(t, sources.Provider, crdYAML("rs", "")),
		}
	}
	p, q := declare("Provider", "p", "runtimeConfigRef: {name: one}"), declare("Provider", "q", "runtimeConfigRef: {name: one}")
	other := strings.Replace(q, "one", "two", 1)
	const differ = "serviceaccount/gitopsd-system/aws is defined 2 times: by the runtime of package example.org/p:v1@"
	const advice = "; keep one definition, or the same labels and annotations in spec.serviceAccountTemplate of each DeploymentRuntimeConfig, and the same commonLabels and commonAnnotations for each package"
	for _, tt := range []struct{ name, stream, of, err string }{
		{"one configuration", one + p + q, "p", ""},
		{"two equal ones", one + config("two", role) + p + other, "p", ""},
		{"one package left", one + q, "q", ""},
		{"the first package broken", one + p + q, "q", "was not resolved"},
		{"other annotations", one + config("two", "{name: aws}") + p + other, "", advice},
		{"other common labels", one + p + strings.Replace(q, "runtimeConfigRef", "commonLabels: {a: b}, runtimeConfigRef", 1), "", differ},
		{"a package of that name", config("one", "{name: aws}") + p + declare("Provider", "aws", ""), "", "; keep one definition\n"},
		{"a manifest", one + p + "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: aws, namespace: gitopsd-system}\n", "", "; keep one definition"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			with := packages()
			if tt.err == "was not resolved" {
				delete(with, "p")
			}
			r, err := expand(t, new(Renderer), input(t, plainObject+tt.stream), with)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error()+"\n", tt.err) {
				t.Fatalf("have %v, want %q", err, tt.err)
			}
			o := r.Objects.Get(account)
			if tt.of == "" {
				if o != nil || !r.Keeps(account, "p") {
					t.Errorf("rendered is %v", o)
				}
				return
			}
			if o == nil || o.Label(manifest.PackageLabel) != tt.of {
				t.Fatalf("rendered is %v", o)
			}
			for _, name := range []string{"p", "q"} {
				d := r.Objects.Get(manifest.ClusterRoleBinding.ID("", "gitopsd:provider:"+name))
				if d != nil && !strings.Contains(string(d.AppendJSON(nil)), `[{"kind":"ServiceAccount","name":"aws","namespace":"gitopsd-system"}]`) {
					t.Errorf("%s: %s", name, d.AppendJSON(nil))
				}
			}
		})
	}
	t.Run("kept for a broken package", func(t *testing.T) {
		t.Parallel()
		with := packages()
		with["p"].Meta.Kind = sources.Configuration
		r, err := expand(t, new(Renderer), input(t, one+p+declare("Provider", "q", "")), with)
		if err == nil || !r.Keeps(account, "q") || r.Keeps(manifest.Deployment.ID("gitopsd-system", "other"), "q") {
			t.Errorf("the account of a package with errors is pruned, or another object stays: %v", err)
		}
	})
	t.Run("with conversion rules that fail", func(t *testing.T) {
		t.Parallel()
		r, err := expand(t, new(Renderer), convertedInput(t, one+p+q+strings.Replace(rulesFor("ps.example.org"), "spec.old", "spec.older", 1)), map[string]*sources.Package{
			"p": content(t, sources.Provider, convertedCRD("ps", "")), "q": packages()["q"],
		})
		if err == nil || len(r.Broken) != 1 || r.Objects.Get(account) == nil {
			t.Errorf("the account of q is not rendered: %v", err)
		}
	})
}
