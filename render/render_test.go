package render

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"reflect"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// An application with errors is refused before any cluster is asked, with all of its errors, and a
// patch may mend it.
func TestApplicationErrors(t *testing.T) {
	t.Parallel()
	in := input(t, `
apiVersion: workload.crossplane.io/v1alpha2
kind: KubernetesApplication
metadata: {name: shop, namespace: team}
spec:
  targetSelector: {matchExpressions: [{key: env, operator: Is, values: [dev]}]}
  serviceAccount: nobody
  resourceTemplates: [{metadata: {name: a}, spec: {template: {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: a}}}}]
`)
	shop := manifest.Application.ID("team", "shop")
	r, err := expand(t, new(Renderer), in, nil)
	for _, want := range []string{shop.String() + `: spec.targetSelector: "Is" is not a valid label selector operator`, `spec.serviceAccount: "nobody" is not a ServiceAccount`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want %s", err, want)
		}
	}
	if r.Objects.Get(shop) != nil || !r.Keeps(shop, "") || len(r.Refused) != 1 {
		t.Error("the application is rendered, or would be pruned")
	}
	in.Patches = []kustomize.Patch{{Target: &kustomize.Selector{Kind: shop.Kind}, Patch: `[{"op": "remove", "path": "/spec/serviceAccount"}, {"op": "remove", "path": "/spec/targetSelector"}]`}}
	if r, err = expand(t, new(Renderer), in, nil); err != nil || r.Objects.Get(shop) == nil {
		t.Errorf("a patch mended the application: %v", err)
	}
}

// Kubernetes deletes an object whose owners do not exist. Plain objects with owners are
// refused, and of a package's objects all metadata is left out that only API servers and
// controllers set.
func TestMetadataOfServers(t *testing.T) {
	t.Parallel()
	const owners = "ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: gone, uid: 11111111-2222-3333-4444-555555555555}]"
	in := input(t, declare("Provider", "as", "")+"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned, namespace: default, "+owners+"}\n---\n"+
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: default, finalizers: [example.org/mine], ownerReferences: []}\n")
	crd := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: as.example.org, creationTimestamp: null, labels: {own: label}, annotations: {own: annotation}, uid: x, resourceVersion: '1', finalizers: [example.org/hold], " + owners + "}\nspec: {group: example.org, names: {plural: as}}\n---\n"
	r, err := expand(t, new(Renderer), in, map[string]*sources.Package{"as": content(t, sources.Provider, crd)})
	if err == nil || !strings.Contains(err.Error(), "configmap/default/owned: metadata.ownerReferences: Kubernetes deletes an object if these are not in the cluster; remove the field") {
		t.Errorf("have %v", err)
	}
	owned := manifest.ConfigMap.ID("default", "owned")
	if r.Objects.Get(owned) != nil || !r.Keeps(owned, "") || r.Objects.Get(manifest.ConfigMap.ID("default", "plain")) == nil {
		t.Error("the owned object is rendered, or would be pruned, or the other one is missing")
	}
	o := r.Objects.Get(manifest.CRD.ID("", "as.example.org"))
	if o == nil {
		t.Fatal("the definition is missing")
	}
	var keys []string
	for key, v := range manifest.Mapping(o.Tree(), "metadata") {
		if v != nil {
			keys = append(keys, key)
		}
	}
	if slices.Sort(keys); !slices.Equal(keys, []string{"annotations", "labels", "name"}) || o.Label("own") != "label" || o.Annotation("own") != "annotation" {
		t.Errorf("the metadata has %q", keys)
	}
	const note = "customresourcedefinition.apiextensions.k8s.io/as.example.org: left out, since only API servers and controllers set it: metadata.finalizers, metadata.ownerReferences, metadata.resourceVersion, metadata.uid"
	if !slices.Contains(r.Notes, note) {
		t.Errorf("notes %q", r.Notes)
	}

	// What counts is the object with its patches.
	patch := func(kind, op string) kustomize.Patch {
		return kustomize.Patch{Target: &kustomize.Selector{Kind: kind}, Patch: op}
	}
	in.Patches = []kustomize.Patch{
		patch("ConfigMap", `[{"op": "add", "path": "/metadata/ownerReferences", "value": []}]`),
		patch("CustomResourceDefinition", `[{"op": "add", "path": "/metadata/ownerReferences", "value": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "x"}]}]`),
	}
	r, err = expand(t, new(Renderer), in, map[string]*sources.Package{"as": content(t, sources.Provider, crd)})
	if r == nil {
		t.Fatal(err)
	}
	definition := manifest.CRD.ID("", "as.example.org")
	if err == nil || !strings.Contains(err.Error(), definition.String()+": metadata.ownerReferences") || strings.Contains(err.Error(), "owned") {
		t.Errorf("patched: have %v", err)
	}
	if r.Objects.Get(owned) == nil || r.Objects.Get(definition) != nil || !r.Keeps(definition, "as") {
		t.Error("patched: the corrected object is missing, or the definition is rendered or would be pruned")
	}
}

// files returns a kustomization with one file.
func files(t *testing.T, stream string) fs.FS {
	t.Helper()
	return fstest.MapFS{
		"c/kustomization.yaml": {Data: []byte("resources: [all.yaml]\n")},
		"c/all.yaml":           {Data: []byte(stream)},
	}
}

func input(t *testing.T, stream string, patches ...kustomize.Patch) Input {
	t.Helper()
	return Input{Cluster: "prod", Files: files(t, stream), Path: "c", Patches: patches}
}

func declare(kind, name, spec string) string {
	return fmt.Sprintf("apiVersion: pkg.crossplane.io/v1\nkind: %s\nmetadata: {name: %s}\nspec: {package: 'example.org/%s:v1', %s}\n---\n", kind, name, name, spec)
}

const plainObject = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain, namespace: default}\n---\n"

// content returns a package as sources provides it.
func content(t *testing.T, kind sources.PackageKind, stream string) *sources.Package {
	t.Helper()
	return &sources.Package{Runnable: kind == sources.Provider, Meta: sources.PackageMeta{Kind: kind, Name: "meta"}, Documents: manifesttest.Documents(t, stream)}
}

func crdYAML(plural, extra string) string {
	return fmt.Sprintf("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: %[1]s.example.org}\nspec: {group: example.org, names: {plural: %[1]s}, %s}\n---\n", plural, extra)
}

// selectAll resolves every declared package to the package with its name.
func selectAll(t *testing.T, w *Wanted, packages map[string]*sources.Package) []sources.Selected {
	t.Helper()
	var selected []sources.Selected
	for _, d := range w.Packages {
		if p := packages[d.Name]; p != nil {
			selected = append(selected, sources.Selected{Declaration: d, Origin: sources.Origin{Repository: d.Ref.Repository}, Pin: sources.Pin{Ref: d.Ref, Digest: sources.DigestOf([]byte(d.Name))}, Package: p, Runtime: runtimeOf(d, p)})
		}
	}
	return selected
}

// runtimeOf returns the image of a package that includes its controller.
func runtimeOf(d sources.Declaration, p *sources.Package) string {
	if !p.Runnable {
		return ""
	}
	return d.Ref.Repository + "@" + string(sources.DigestOf([]byte(d.Name)))
}

func expand(t *testing.T, r *Renderer, in Input, packages map[string]*sources.Package) (*Rendered, error) {
	t.Helper()
	w, err := new(Renderer).Want(t.Context(), in)
	if w == nil {
		t.Fatal(err)
	}
	return r.Expand(t.Context(), in, w, selectAll(t, w, packages))
}

func ids(objects []*manifest.Object) []string {
	var names []string
	for _, o := range objects {
		names = append(names, o.ID().String())
	}
	return names
}

func yamlOf(t *testing.T, r *Rendered) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Objects.WriteYAML(&b, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestExpandProvider(t *testing.T) {
	t.Parallel()
	pkg := content(t, sources.Provider, crdYAML("as", "")+crdYAML("bs", "versions: [{name: v1}, {name: v2}], conversion: {strategy: Webhook}")+crdYAML("cs", "versions: [{name: v1}], conversion: {strategy: Webhook}")+
		"apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: w, labels: {own: label}}\nwebhooks: [{name: x, clientConfig: {caBundle: Cg==, service: {path: /x}}}]\n")
	before := string(manifest.AppendJSON(nil, pkg.Documents[1].Tree))
	rendered, err := expand(t, new(Renderer), input(t, plainObject+strings.Replace(declare("Provider", "p", "commonLabels: {team: a}, commonAnnotations: {note: b}"), "{name: p}", "{name: p, annotations: {gitopsd.dev/certificate-authority: own-ca}}", 1)), map[string]*sources.Package{"p": pkg})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"configmap/default/plain", "namespace/gitopsd-system", "service/gitopsd-system/p", "serviceaccount/gitopsd-system/p",
		"validatingwebhookconfiguration.admissionregistration.k8s.io/p.w",
		"customresourcedefinition.apiextensions.k8s.io/as.example.org", "customresourcedefinition.apiextensions.k8s.io/bs.example.org", "customresourcedefinition.apiextensions.k8s.io/cs.example.org",
		"deployment.apps/gitopsd-system/p",
		"clusterrole.rbac.authorization.k8s.io/gitopsd:provider:p", "clusterrole.rbac.authorization.k8s.io/gitopsd:provider:p:aggregate-to-edit",
		"clusterrole.rbac.authorization.k8s.io/gitopsd:provider:p:aggregate-to-view", "clusterrolebinding.rbac.authorization.k8s.io/gitopsd:provider:p",
	}
	if have := ids(rendered.Objects.All()); !reflect.DeepEqual(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	for _, o := range rendered.Objects.All() {
		packaged := o.ID().Name != "plain" && o.ID().Kind != "Namespace"
		if packaged != (o.Label(manifest.PackageLabel) == "p" && o.Label("team") == "a" && o.Annotation("note") == "b") {
			t.Errorf("%s has labels %v, annotations %v", o.ID(), o.Labels(), o.Annotations())
		}
		if packaged != (o.Origin().Package.Ref.Repository == "example.org/p") {
			t.Errorf("%s comes from %s", o.ID(), o.Origin())
		}
	}
	for id, want := range map[manifest.ID]string{
		{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration", Name: "p.w"}: `"clientConfig":{"service":{"name":"p","namespace":"gitopsd-system","path":"/x","port":9443}}`,
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "cs.example.org"}:    `"conversion":{"strategy":"None"}`,
		{Kind: "Service", Namespace: "gitopsd-system", Name: "p"}:                                    `"annotations":{"gitopsd.dev/certificate-authority":"own-ca","gitopsd.dev/serving-cert":"p-tls-server","note":"b"}`,
		{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "bs.example.org"}:    `"webhook":{"clientConfig":{"service":{"name":"p","namespace":"gitopsd-system","port":9443}},"conversionReviewVersions":["v1"]}`,
	} {
		if have := string(rendered.Objects.Get(id).AppendJSON(nil)); !strings.Contains(have, want) {
			t.Errorf("%s is %s, want one with %s", id, have, want)
		}
	}
	for _, id := range []manifest.ID{{Group: "admissionregistration.k8s.io", Kind: "ValidatingWebhookConfiguration", Name: "p.w"}, {Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "bs.example.org"}} {
		if have := rendered.Objects.Get(id).Annotation(manifest.InjectCAAnnotation); have != "Service/gitopsd-system/p" {
			t.Errorf("%s: inject-ca is %q", id, have)
		}
	}
	if want := []string{"Provider p wants a webhook to convert types that have one version only, and nothing to convert: they are installed without it (cs.example.org)"}; !slices.Equal(rendered.Notes, want) {
		t.Errorf("notes %q", rendered.Notes)
	}
	if have := string(manifest.AppendJSON(nil, pkg.Documents[1].Tree)); have != before {
		t.Errorf("the package has changed to %s", have)
	}
}

// Packages with configurations of the same names, which generators make, can be in one
// cluster.
func TestSameWebhookNames(t *testing.T) {
	t.Parallel()
	const hooks = "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: mutating-webhook-configuration}, webhooks: [{name: x}]}\n"
	in := input(t, declare("Provider", "p", "")+declare("Provider", "q", ""))
	rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"p": content(t, sources.Provider, hooks), "q": content(t, sources.Provider, hooks)})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"p", "q"} {
		o := rendered.Objects.Get(manifest.MutatingWebhooks.ID("", name+".mutating-webhook-configuration"))
		if o == nil || o.Annotation(manifest.InjectCAAnnotation) != "Service/gitopsd-system/"+name {
			t.Errorf("%s: have %v", name, o)
		}
	}
}

// A new authority changes the rendering.
func TestAuthorityChanges(t *testing.T) {
	t.Parallel()
	pkg := content(t, sources.Provider, crdYAML("as", "versions: [{name: v1}, {name: v2}], conversion: {strategy: Webhook}"))
	var r Renderer
	for _, want := range []string{"", "one", "two", ""} {
		in := input(t, strings.Replace(declare("Provider", "p", ""), "{name: p}", "{name: p, annotations: {gitopsd.dev/certificate-authority: '"+want+"'}}", 1))
		rendered, err := expand(t, &r, in, map[string]*sources.Package{"p": pkg})
		if err != nil {
			t.Fatal(err)
		}
		if have := rendered.Objects.Get(manifest.Service.ID("gitopsd-system", "p")).Annotation(manifest.AuthorityAnnotation); have != want {
			t.Errorf("have %q, want %q", have, want)
		}
	}
}

// A patch may leave a bundle to another controller.
func TestBundlesLeftOut(t *testing.T) {
	t.Parallel()
	patch := kustomize.Patch{Patch: "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: w, annotations: {cert-manager.io/inject-ca-from: a/b}}}"}
	in := input(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: w}, webhooks: [{name: x, clientConfig: {url: 'https://x', caBundle: eA==}}]}\n---\n{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: v}, webhooks: [{name: x, clientConfig: {url: 'https://x', caBundle: Cg==}}]}\n", patch)
	rendered, err := expand(t, new(Renderer), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if have := yamlOf(t, rendered); strings.Contains(have, "caBundle") {
		t.Errorf("have\n%s", have)
	}
	if len(rendered.Patched) != 1 {
		t.Errorf("patched: %v", rendered.Patched)
	}
}

func TestExpandConfiguration(t *testing.T) {
	t.Parallel()
	pkg := content(t, sources.Configuration, "apiVersion: apiextensions.crossplane.io/v1\nkind: CompositeResourceDefinition\nmetadata: {name: xs.example.org}\n---\napiVersion: apiextensions.crossplane.io/v1\nkind: Composition\nmetadata: {name: x}\n")
	rendered, err := expand(t, new(Renderer), input(t, declare("Configuration", "c", "")), map[string]*sources.Package{"c": pkg})
	if err != nil {
		t.Fatal(err)
	}
	if have, want := ids(rendered.Objects.All()), []string{"compositeresourcedefinition.apiextensions.crossplane.io/xs.example.org", "composition.apiextensions.crossplane.io/x"}; !slices.Equal(slices.Sorted(slices.Values(have)), want) {
		t.Errorf("have %q", have)
	}
}

// An error of one package does not affect others.
func TestBrokenPackages(t *testing.T) {
	t.Parallel()
	good := content(t, sources.Provider, crdYAML("goods", ""))
	for _, tt := range []struct {
		name string
		// declared is a second package, bad its content.
		declared string
		bad      *sources.Package
		// plain are more objects of the cluster.
		plain string
		want  string
		// conflicts are the IDs that are withheld.
		conflicts string
	}{
		{name: "not resolved", declared: declare("Provider", "bad", ""), want: "Provider bad (c/all.yaml:10): example.org/bad:v1 was not resolved"},
		{name: "another kind", declared: declare("Provider", "bad", ""), bad: content(t, sources.Configuration, ""), want: "is a Configuration package; declare it as one"},
		{name: "another kind of object", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, crdYAML("bads", "")+"apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: x}\n"), want: "package.yaml:6: clusterrolebinding.rbac.authorization.k8s.io/x: a Provider package must not hold a ClusterRoleBinding"},
		{name: "configuration with types", declared: declare("Configuration", "bad", ""), bad: content(t, sources.Configuration, crdYAML("bads", "")), want: "a Configuration package must not hold a CustomResourceDefinition"},
		{name: "no object", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, "kind: X\n"), want: "package.yaml:1: apiVersion: is missing"},
		{name: "our annotation", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: bads.example.org, annotations: {gitopsd.dev/adopt: 'true'}}\n"), want: "a package must not set gitopsd.dev/adopt"},
		{name: "inventory's label", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: bads.example.org, labels: {applyset.kubernetes.io/part-of: x}}\n"), want: "a package must not set applyset.kubernetes.io/part-of"},
		{name: "webhook by URL", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, crdYAML("bads", "versions: [{name: v1}, {name: v2}], conversion: {strategy: Webhook, webhook: {clientConfig: {url: 'https://x'}}}")), want: "package.yaml:1: customresourcedefinition.apiextensions.k8s.io/bads.example.org: spec.conversion.webhook.clientConfig: url: https://x"},
		{name: "type of Kubernetes'", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: roles.rbac.authorization.k8s.io}\nspec: {group: rbac.authorization.k8s.io, names: {plural: roles}}\n"), want: "not a package's to define types in"},
		{name: "twice in the package", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, crdYAML("bads", "")+crdYAML("bads", "")), want: "bads.example.org is defined 2 times: by package example.org/bad:v1@"},
		{name: "a plain object too", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, crdYAML("bads", "")+crdYAML("more", "")), plain: crdYAML("bads", ""), want: "c/all.yaml:5 and by package example.org/bad:v1@", conflicts: "customresourcedefinition.apiextensions.k8s.io/bads.example.org"},
		{name: "a plain Deployment too", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, ""), plain: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: bad, namespace: gitopsd-system}\n---\n", want: "by c/all.yaml:5 and by the runtime of package example.org/bad:v1@", conflicts: "deployment.apps/gitopsd-system/bad"},
		{name: "a plain binding too", declared: declare("Provider", "bad", ""), bad: content(t, sources.Provider, ""), plain: "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: 'gitopsd:provider:bad'}\n---\n", want: "is defined 2 times", conflicts: "clusterrolebinding.rbac.authorization.k8s.io/gitopsd:provider:bad"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := input(t, plainObject+tt.plain+declare("Provider", "good", "")+tt.declared)
			rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"good": good, "bad": tt.bad})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("have %v\nwant an error with %q", err, tt.want)
			}
			var broken *PackageError
			if !errors.As(err, &broken) || broken.Name != "bad" || len(rendered.Broken) != 1 {
				t.Errorf("broken are %v", rendered.Broken)
			}
			for _, o := range rendered.Objects.All() {
				if strings.Contains(o.ID().Name, "bad") {
					t.Errorf("%s is there", o.ID())
				}
			}
			for _, id := range []manifest.ID{
				{Kind: "ConfigMap", Namespace: "default", Name: "plain"}, {Group: "apps", Kind: "Deployment", Namespace: "gitopsd-system", Name: "good"},
				{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "goods.example.org"}, {Kind: "Namespace", Name: "gitopsd-system"},
			} {
				if rendered.Objects.Get(id) == nil {
					t.Errorf("%s is not there", id)
				}
			}
			var conflicts []string
			for _, c := range rendered.Conflicts {
				conflicts = append(conflicts, c.ID.String())
				if !rendered.Keeps(c.ID, "") {
					t.Errorf("%s would be pruned", c.ID)
				}
			}
			if have := strings.Join(conflicts, " "); have != tt.conflicts {
				t.Errorf("conflicts %q, want %q", have, tt.conflicts)
			}
			old := manifest.ID{Kind: "ConfigMap", Name: "old"}
			if !rendered.Keeps(old, "bad") || rendered.Keeps(old, "good") || rendered.Keeps(old, "") || !rendered.Keeps(old, "its earlier name") {
				t.Error("what is to be pruned is wrong")
			}
		})
	}
}

// What left the repository while a package has errors stays if the package may bring it under
// the same name, or if it may be what the package was until now.
func TestKeptBesideErrors(t *testing.T) {
	t.Parallel()
	types := content(t, sources.Provider, "")
	types.Runnable = false
	render := func(bad *sources.Package) *Rendered {
		packages := map[string]*sources.Package{"good": content(t, sources.Provider, ""), "types": types, "bad": bad}
		rendered, _ := expand(t, new(Renderer), input(t, plainObject+declare("Provider", "good", "")+declare("Provider", "types", "")+declare("Provider", "bad", "")), packages)
		return rendered
	}
	without := render(content(t, sources.Provider, ""))
	with := map[string]*Rendered{"not resolved": render(nil), "with an error": render(content(t, sources.Provider, "kind: X\n"))}
	system := func(kind manifest.GroupKind, name string) manifest.ID { return kind.ID("gitopsd-system", name) }
	for _, tt := range []struct {
		id   manifest.ID
		pkg  string
		kept bool
	}{
		{manifest.CRD.ID("", "olds.example.org"), "", true},
		{manifest.CRD.ID("", "olds.example.org"), "good", true},
		{manifest.XRD.ID("", "olds.example.org"), "", true},
		{manifest.Composition.ID("", "olds"), "good", true},
		{manifest.Function.ID("", "good"), "good", true}, // a Provider has the name too
		{manifest.ValidatingWebhooks.ID("", "olds"), "", false},
		{manifest.ValidatingWebhooks.ID("", "olds"), "good", false},
		{manifest.ValidatingWebhooks.ID("", "olds"), "renamed", true},
		{manifest.ConfigMap.ID("gitopsd-system", "old"), "", false},
		{manifest.Namespace.ID("", "old"), "", false},
		{manifest.Deployment.ID("default", "old"), "", false},
		{manifest.ClusterRoleBinding.ID("", "old"), "", false},
		{system(manifest.Deployment, "old"), "", true},
		{system(manifest.Deployment, "old"), "good", false}, // it has another
		{system(manifest.Deployment, "types"), "types", true},
		{system(manifest.Service, "types"), "types", true},
		{manifest.ClusterRoleBinding.ID("", "gitopsd:provider:types"), "types", true},
		{system(manifest.Deployment, "gitopsd"), "", false}, // no package may have the name
		{system(manifest.ServiceAccount, "default"), "", false},
	} {
		if without.Keeps(tt.id, tt.pkg) {
			t.Errorf("%s of %q is kept without errors", tt.id, tt.pkg)
		}
		for name, r := range with {
			if r.Keeps(tt.id, tt.pkg) != tt.kept {
				t.Errorf("beside a package %s, %s of %q is kept: %t", name, tt.id, tt.pkg, !tt.kept)
			}
		}
	}
}

// If two packages define one object, neither changes anything.
func TestTwoPackagesOneObject(t *testing.T) {
	t.Parallel()
	packages := map[string]*sources.Package{
		"a": content(t, sources.Provider, crdYAML("shared", "")+crdYAML("as", "")),
		"b": content(t, sources.Provider, crdYAML("bs", "")+crdYAML("shared", "")),
		"c": content(t, sources.Provider, crdYAML("cs", "")),
	}
	rendered, err := expand(t, new(Renderer), input(t, declare("Provider", "a", "")+declare("Provider", "b", "")+declare("Provider", "c", "")), packages)
	if len(rendered.Broken) != 2 || rendered.Broken[0].Name != "a" || rendered.Broken[1].Name != "b" || len(rendered.Conflicts) != 1 {
		t.Errorf("broken %v, conflicts %v", rendered.Broken, rendered.Conflicts)
	}
	if err == nil || strings.Count(err.Error(), "shared.example.org is defined 2 times: by package example.org/a:v1@") != 2 || strings.Count(err.Error(), "and by package example.org/b:v1@") != 2 {
		t.Errorf("have %v", err)
	}
	for _, o := range rendered.Objects.All() {
		if name := o.Label(manifest.PackageLabel); name != "c" && o.ID().Kind != "Namespace" {
			t.Errorf("%s of %s is there", o.ID(), name)
		}
	}
}

// A dependency gives way to a declared package of its name, with the packages that depend
// on it. They stay in the cluster.
func TestTwoPackagesOneName(t *testing.T) {
	t.Parallel()
	in := input(t, declare("Provider", "a", "")+declare("Provider", "b", "")+declare("Provider", "c", ""))
	w, err := new(Renderer).Want(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	dependent := func(plural, on string) *sources.Package {
		pkg := content(t, sources.Provider, crdYAML(plural, ""))
		pkg.Meta.DependsOn = []sources.Dependency{{Kind: sources.Provider, Repository: on}}
		return pkg
	}
	dependency := func(repository, parent string) sources.Selected {
		ref := sources.Ref{Repository: repository, Tag: "v1"}
		return sources.Selected{
			Declaration: sources.Declaration{Kind: sources.Provider, Name: path.Base(repository), Ref: ref},
			Pin:         sources.Pin{Ref: ref, Digest: sources.DigestOf([]byte(repository))}, Parent: parent,
			Package: dependent("x"+path.Base(path.Dir(repository)), "example.org/none"),
		}
	}
	packages := map[string]*sources.Package{
		"a": content(t, sources.Provider, crdYAML("as", "")),
		"b": dependent("bs", "other.org/x/a"),
		"c": dependent("cs", "other.org/x/d"),
	}
	for _, tt := range []struct {
		name string
		more []sources.Selected
		held bool // a is
		want map[string]string
	}{
		{name: "a declared one's", more: []sources.Selected{dependency("other.org/x/a", "example.org/b")}, want: map[string]string{
			"a": ", on which example.org/b depends, has the name of the package that c/all.yaml:1 declares; declare it under another",
			"b": "example.org/b:v1 depends on other.org/x/a: other.org/x/a:v1@",
		}},
		{name: "a held one's", more: []sources.Selected{dependency("other.org/x/a", "example.org/b")}, held: true, want: map[string]string{
			"a": "has the name of the package that", "b": "depends on",
		}},
		{name: "another dependency's", more: []sources.Selected{dependency("other.org/x/d", "example.org/c"), dependency("other.org/y/d", "example.org/none")}, want: map[string]string{
			"d": " have the same name; declare one of them under another", "c": "depends on other.org/x/d",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := *w
			selected := selectAll(t, &w, packages)
			if tt.held {
				w.Packages, w.Held, selected = w.Packages[1:], selected[:1], selected[1:]
			}
			rendered, err := new(Renderer).Expand(t.Context(), in, &w, append(selected, tt.more...))
			if err == nil {
				t.Fatal("there is no error")
			}
			failed := make(map[string]bool)
			for _, e := range rendered.Broken {
				failed[e.Name] = true
				if want := tt.want[e.Name]; want == "" || !strings.Contains(e.Err.Error(), want) {
					t.Errorf("%v, want %q", e, want)
				}
			}
			if len(failed) != len(tt.want) || !rendered.Keeps(manifest.ID{}, "anything") {
				t.Errorf("have %v", rendered.Broken)
			}
			for name := range tt.want {
				if !rendered.Keeps(manifest.ID{}, name) {
					t.Errorf("%s is pruned", name)
				}
			}
			for name := range packages {
				want := tt.want[name] == "" || name == "a" && !tt.held
				if have := rendered.Objects.Get(manifest.CRD.ID("", name+"s.example.org")) != nil; have != want {
					t.Errorf("%s is rendered: %t", name, have)
				}
			}
		})
	}
}

// The objects of a Provider and a Configuration of one name could not be told apart, unless
// Crossplane installs them. Both stay in the cluster.
func TestTwoKindsOneName(t *testing.T) {
	t.Parallel()
	in := input(t, declare("Provider", "a", "")+declare("Configuration", "a", "")+declare("Provider", "b", "")+declare("Function", "b", ""))
	packages := map[string]*sources.Package{"a": content(t, sources.Provider, crdYAML("as", "")), "b": content(t, sources.Provider, crdYAML("bs", ""))}
	rendered, _ := expand(t, new(Renderer), in, packages)
	const want = " have the same name, and the label gitopsd.dev/package could not tell their objects apart; rename the Configuration at c/all.yaml:6, whose objects keep their names"
	if len(rendered.Broken) != 2 || rendered.Broken[0].Name != "a" || rendered.Broken[1].Name != "a" || !strings.HasSuffix(rendered.Broken[0].Err.Error(), want) {
		t.Errorf("have %v", rendered.Broken)
	}
	if !rendered.Keeps(manifest.CRD.ID("", "as.example.org"), "a") || rendered.Objects.Get(manifest.CRD.ID("", "bs.example.org")) == nil {
		t.Errorf("have %v", rendered.Objects.All())
	}
	in.Delegate = true
	if rendered, err := expand(t, new(Renderer), in, packages); err != nil || len(rendered.Broken) > 0 {
		t.Errorf("delegated: have %v", err)
	}
}

// The repository may define the namespace of controllers itself.
func TestOwnNamespace(t *testing.T) {
	t.Parallel()
	in := input(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: gitopsd-system, labels: {own: 'true'}}\n---\n"+declare("Provider", "a", ""))
	rendered, err := expand(t, new(Renderer), in, map[string]*sources.Package{"a": content(t, sources.Provider, crdYAML("as", ""))})
	if err != nil {
		t.Fatal(err)
	}
	if o := rendered.Objects.Get(manifest.ID{Kind: "Namespace", Name: "gitopsd-system"}); o == nil || o.Label("own") != "true" {
		t.Errorf("have %v", o)
	}
}

func TestPatchesTouchPackages(t *testing.T) {
	t.Parallel()
	packages := map[string]*sources.Package{"p": content(t, sources.Provider, crdYAML("as", "")+crdYAML("bs", ""))}
	var r Renderer
	stream := plainObject + declare("Provider", "p", "")
	without, err := expand(t, &r, input(t, stream), packages)
	if err != nil {
		t.Fatal(err)
	}
	patch := kustomize.Patch{Target: &kustomize.Selector{Kind: "Deployment|CustomResourceDefinition", Name: "as.*|p", LabelSelector: "gitopsd.dev/package=p"}, Patch: "- {op: add, path: /metadata/annotations, value: {patched: 'yes'}}"}
	with, err := expand(t, &r, input(t, stream, patch), packages)
	if err != nil {
		t.Fatal(err)
	}
	var changed []string
	for _, o := range with.Objects.All() {
		switch old := without.Objects.Get(o.ID()); {
		case o.Origin().Package == (sources.Pin{}):
		case o.Annotation("patched") == "yes":
			changed = append(changed, o.ID().Name)
			if o.Origin() != old.Origin() {
				t.Errorf("%s comes from %s", o.ID(), o.Origin())
			}
		case o != old && o.ID().Kind != "ClusterRoleBinding":
			t.Errorf("%s is not shared", o.ID())
		}
	}
	if !slices.Equal(changed, []string{"as.example.org", "p"}) {
		t.Errorf("changed are %q", changed)
	}

	for patch, want := range map[string]string{
		"- {op: remove, path: /x}":                                     "patches.0: error in remove",
		"- {op: replace, path: /metadata/name, value: bs.example.org}": "patches: customresourcedefinition.apiextensions.k8s.io/bs.example.org is defined 2 times",
	} {
		in := input(t, stream, kustomize.Patch{Target: &kustomize.Selector{Name: "as.*"}, Patch: patch})
		if rendered, err := expand(t, &r, in, packages); rendered != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v, %v", patch, rendered, err)
		}
	}
	bad := input(t, stream, kustomize.Patch{Patch: "x"})
	if rendered, err := expand(t, &r, bad, packages); rendered != nil || err == nil || !strings.Contains(err.Error(), "patches.0") {
		t.Errorf("have %v, %v", rendered, err)
	}
}

// Providers of a family have each other's rights, even if one is broken. A family is of one
// organization; a note names packages that claim it from elsewhere.
func TestFamilies(t *testing.T) {
	t.Parallel()
	declare := func(kind, name, spec string) string {
		return strings.Replace(declare(kind, name, spec), "example.org/", "example.org/org/", 1)
	}
	member := func(stream string) *sources.Package {
		p := content(t, sources.Provider, stream)
		p.Meta.Document.Tree = map[string]any{"metadata": map[string]any{"labels": map[string]any{"pkg.crossplane.io/provider-family": "f"}}}
		return p
	}
	packages := map[string]*sources.Package{"a": member(crdYAML("as", "")), "b": member("kind: X\n"), "c": content(t, sources.Provider, crdYAML("cs", "")), "d": member(crdYAML("ds", ""))}
	stranger := strings.Replace(declare("Provider", "d", ""), "/org/", "/evil/", 1)
	rendered, _ := expand(t, new(Renderer), input(t, declare("Provider", "a", "")+declare("Provider", "b", "")+declare("Provider", "c", "")+stranger), packages)
	if !slices.Contains(rendered.Notes, "package d names the same family as a, b, and they get no rights on each other's types: a family is of one registry and organization") {
		t.Errorf("notes: %q", rendered.Notes)
	}
	for name, want := range map[string]string{"a": `[{"kind":"ServiceAccount","name":"a","namespace":"gitopsd-system"},{"kind":"ServiceAccount","name":"b","namespace":"gitopsd-system"}]`, "c": `[{"kind":"ServiceAccount","name":"c","namespace":"gitopsd-system"}]`, "d": `[{"kind":"ServiceAccount","name":"d","namespace":"gitopsd-system"}]`} {
		o := rendered.Objects.Get(manifest.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding", Name: "gitopsd:provider:" + name})
		if have := string(manifest.AppendJSON(nil, o.Tree()["subjects"])); have != want {
			t.Errorf("%s: have %s", name, have)
		}
	}

	// A member whose declaration cannot be read keeps its rights, by the account that
	// it runs with.
	var r Renderer
	in := input(t, declare("Provider", "a", "")+declare("Provider", "b", "packagePullPolicy: Alwys"))
	w, _ := r.Want(t.Context(), in)
	if len(w.Unreadable) != 1 || w.Unreadable[0].Ref.Repository != "example.org/org/b" {
		t.Fatalf("unreadable are %+v", w.Unreadable)
	}
	w.Held = []sources.Selected{{Declaration: w.Unreadable[0], Package: member(""), Runtime: "example.org/org/b@" + string(sources.DigestOf(nil))}}
	rendered, _ = r.Expand(t.Context(), in, w, selectAll(t, w, packages))
	o := rendered.Objects.Get(manifest.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding", Name: "gitopsd:provider:a"})
	if have := string(manifest.AppendJSON(nil, o.Tree()["subjects"])); !strings.Contains(have, `"name":"b"`) {
		t.Errorf("beside one that cannot be read: have %s", have)
	}

	// One that could not be resolved keeps them, too. If it may be of the family, nobody
	// gets or loses rights.
	binding := manifest.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRoleBinding", Name: "gitopsd:provider:a"}
	in = input(t, declare("Provider", "a", ""))
	for _, tt := range []struct {
		name, organization string
		pkg                *sources.Package
		want               string // a part of the subjects; empty for no binding
	}{
		{"a member", "org", member(""), `"name":"b"`},
		{"not a member", "org", content(t, sources.Provider, ""), `[{"kind":"ServiceAccount","name":"a","namespace":"gitopsd-system"}]`},
		{"perhaps a member", "org", nil, ""},
		{"of another organization", "evil", nil, `[{"kind":"ServiceAccount","name":"a","namespace":"gitopsd-system"}]`},
	} {
		w, _ := r.Want(t.Context(), in)
		ref := sources.Ref{Repository: "example.org/" + tt.organization + "/b", Tag: "v1"}
		w.Left = []sources.Selected{{Declaration: sources.Declaration{Kind: sources.Provider, Name: "b"}, Pin: sources.Pin{Ref: ref}, Package: tt.pkg, Runtime: ref.Repository + "@" + string(sources.DigestOf(nil))}}
		rendered, err := r.Expand(t.Context(), in, w, selectAll(t, w, packages))
		if err != nil {
			t.Fatal(err)
		}
		have := ""
		if o := rendered.Objects.Get(binding); o != nil {
			have = string(manifest.AppendJSON(nil, o.Tree()["subjects"]))
		}
		if !strings.Contains(have, tt.want) || tt.want == "" && have != "" {
			t.Errorf("%s: have %s", tt.name, have)
		}
		note := "package a: the accounts that have its rights stay the same, since b may be of its family and cannot be read"
		if unclear := tt.want == ""; rendered.Keeps(binding, "a") != unclear || slices.Contains(rendered.Notes, note) != unclear {
			t.Errorf("%s: kept: %t, notes %q", tt.name, rendered.Keeps(binding, "a"), rendered.Notes)
		}
	}
}

// The same input gives the same bytes: again, in another order, and in another Renderer.
func TestRenderingIsPure(t *testing.T) {
	t.Parallel()
	packages := make(map[string]*sources.Package)
	var declared []string
	for _, name := range []string{"a", "b", "c", "d"} {
		packages[name] = content(t, sources.Provider, crdYAML(name+"s", "conversion: {strategy: Webhook}")+crdYAML(name+"x", ""))
		declared = append(declared, declare("Provider", name, "commonLabels: {z: y, a: b}, commonAnnotations: {q: r}"))
	}
	patches := []kustomize.Patch{{Target: &kustomize.Selector{Kind: "CustomResourceDefinition"}, Patch: "- {op: add, path: /metadata/annotations, value: {patched: 'yes'}}"}}
	var shared Renderer
	want := ""
	for i := range 8 {
		order := slices.Clone(declared)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		r := &shared
		if i%3 == 2 {
			r = new(Renderer)
		}
		in := input(t, plainObject+strings.Join(order, ""), patches...)
		w, err := new(Renderer).Want(t.Context(), in)
		if err != nil {
			t.Fatal(err)
		}
		selected := selectAll(t, w, packages)
		if i%4 > 1 {
			slices.Reverse(selected)
		}
		rendered, err := r.Expand(t.Context(), in, w, selected)
		if err != nil {
			t.Fatal(err)
		}
		if have := yamlOf(t, rendered); want == "" {
			want = have
		} else if have != want {
			t.Errorf("time %d: have\n%s\nwant\n%s", i, have, want)
		}
	}
}

// A package is expanded once for all clusters, and forgotten if no cluster uses it between
// two sweeps. Not parallel, since it measures the heap.
func TestObjectsAreShared(t *testing.T) {
	var stream strings.Builder
	for i := range 200 {
		stream.WriteString(crdYAML(fmt.Sprintf("x%d", i), "versions: [{name: v1, schema: {openAPIV3Schema: {type: object, description: '"+strings.Repeat("long ", 200)+"'}}}]"))
	}
	packages := map[string]*sources.Package{"p": content(t, sources.Provider, stream.String())}
	patches := []kustomize.Patch{{Target: &kustomize.Selector{Name: "x1[.].*"}, Patch: "- {op: add, path: /metadata/annotations, value: {patched: 'yes'}}"}}
	var r Renderer
	const clusters = 50
	rendered := make([]*Rendered, clusters)
	var wg sync.WaitGroup
	for i := range clusters {
		wg.Go(func() {
			var err error
			if rendered[i], err = expand(t, &r, input(t, plainObject+declare("Provider", "p", ""), patches...), packages); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	for _, other := range rendered[1:] {
		for i, o := range rendered[0].Objects.All() {
			if own := o.ID().Kind == "ClusterRoleBinding" || o.ID().Kind == "Namespace" || o.ID().Name == "plain"; !own && other.Objects.All()[i] != o {
				t.Fatalf("%s is not shared", o.ID())
			}
		}
	}
	heap := func() uint64 {
		goruntime.GC()
		var m goruntime.MemStats
		goruntime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	with := heap()
	goruntime.KeepAlive(rendered)
	one := rendered[0]
	rendered = nil
	if without := heap(); with > without+without/2 {
		t.Errorf("%d clusters need %d bytes, one %d", clusters, with, without)
	}
	goruntime.KeepAlive(one)
	goruntime.KeepAlive(packages)

	again, err := expand(t, &r, input(t, declare("Provider", "p", "")), packages)
	if err != nil || again.Objects.All()[3] == nil {
		t.Fatal(err)
	}
	r.Sweep()
	if len(r.packages) != 1 || len(r.patches) != 2 {
		t.Errorf("%d packages, %d patches", len(r.packages), len(r.patches))
	}
	r.Sweep()
	if len(r.packages) != 0 || len(r.patches) != 0 {
		t.Errorf("%d packages, %d patches are kept that nobody asked for", len(r.packages), len(r.patches))
	}
}

// A panic while a value is made is the error of all calls for it, with its place, and is
// dropped like other results.
func TestPanicIsRemembered(t *testing.T) {
	var r Renderer
	for range 2 {
		_, err := recall(&r, &r.packages, packageKey{declaration: "a"}, func() (*expansion, error) {
			var none *expansion
			return nil, errors.New(none.notes[0])
		})
		if err == nil || !strings.HasPrefix(err.Error(), "a bug in gitopsd: panic: runtime error: ") || !strings.Contains(err.Error(), "render.TestPanicIsRemembered") {
			t.Errorf("%v", err)
		}
	}
	_, err := recall(&r, &r.packages, packageKey{declaration: "b"}, func() (*expansion, error) { panic("a secret") })
	if err == nil || strings.Contains(err.Error(), "a secret") {
		t.Errorf("%v", err)
	}
	r.Sweep()
	r.Sweep()
	if len(r.packages) != 0 {
		t.Errorf("%d results are kept", len(r.packages))
	}
}
