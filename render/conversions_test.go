package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// convertedCRD has the field old in v1 and new in v2; more is added to its spec.
func convertedCRD(plural, more string) string {
	return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]s.example.org}
spec:
  group: example.org
  names: {plural: %[1]s, kind: K%[1]s}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {old: {type: string, maxLength: 9}}}}}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {new: {type: string, maxLength: 9}}}}}}}
  %[2]s
---
`, plural, more)
}

// rulesFor returns rules that rename old to new.
func rulesFor(name string) string {
	return fmt.Sprintf(`apiVersion: apis.kcp.dev/v1alpha1
kind: APIConversionRules
metadata: {name: %s}
spec:
  conversions:
  - {from: v1, to: v2, rules: [{from: v1.spec.old, to: spec.new}]}
  - {from: v2, to: v1, rules: [{from: v2.spec.new, to: spec.old}]}
---
`, name)
}

const schemaYAML = `apiVersion: apis.kcp.dev/v1alpha1
kind: APIResourceSchema
metadata: {name: rev2.as.example.org, annotations: {note: kept}}
spec:
  group: example.org
  names: {plural: as, singular: a, kind: A, listKind: AList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {type: object, properties: {spec: {type: object, properties: {old: {type: string, maxLength: 9}}}}}}
  - {name: v2, served: true, storage: false, schema: {type: object, properties: {spec: {type: object, properties: {new: {type: string, maxLength: 9}}}}}}
---
`

var inCluster = Converter{Image: "example.org/gitopsd:v1", Replicas: 2}

func convertedInput(t *testing.T, stream string, patches ...kustomize.Patch) Input {
	t.Helper()
	in := input(t, plainObject+stream, patches...)
	in.Converter = inCluster
	return in
}

func TestConversionRules(t *testing.T) {
	t.Parallel()
	id := manifest.CRD.ID("", "as.example.org")
	packages := map[string]*sources.Package{"p": content(t, sources.Provider, convertedCRD("as", ""))}
	for _, tt := range []struct{ name, stream string }{
		{"of a plain definition", convertedCRD("as", "") + rulesFor("as.example.org")},
		{"in place of a webhook", convertedCRD("as", "conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1beta1], clientConfig: {url: 'https://other.example.org', caBundle: Zm9v}}}") + rulesFor("as.example.org")},
		{"of a package", declare("Provider", "p", "") + rulesFor("as.example.org")},
		{"by label", convertedCRD("as", "") + strings.Replace(rulesFor("mine"), "{name: mine}", "{name: mine, labels: {apis.kcp.dev/apiresourceschema: as.example.org}}", 1)},
		{"of a schema", schemaYAML + rulesFor("rev2.as.example.org")},
		{"of the definition that a schema describes", schemaYAML + rulesFor("as.example.org")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := convertedInput(t, tt.stream)
			r, err := expand(t, new(Renderer), in, packages)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range r.Objects.All() {
				if o.ID().Is(append(slices.Clip(manifest.ConversionRules), manifest.ResourceSchema)...) {
					t.Errorf("%s is applied", o.ID())
				}
			}
			c := r.Conversions["as.example.org"]
			if len(r.Conversions) != 1 || c == nil || c.Definition != r.Objects.Get(id) || len(c.Documents) != 1 {
				t.Fatalf("conversions are %+v", r.Conversions)
			}
			out, _, err := c.Set.Convert(map[string]any{"apiVersion": "example.org/v1", "kind": c.Definition.Tree()["spec"].(map[string]any)["names"].(map[string]any)["kind"], "metadata": map[string]any{"name": "x"}, "spec": map[string]any{"old": "y"}}, "v2")
			if err != nil || manifest.Text(out, "spec", "new") != "y" {
				t.Errorf("converted to %v, %v", out, err)
			}
			client := manifest.Mapping(c.Definition.Tree(), "spec", "conversion", "webhook", "clientConfig")
			path := conversion.Path("prod", "as.example.org", c.Set.Digest())
			if client["url"] != nil || client["caBundle"] != nil || manifest.Text(client, "service", "path") != path || manifest.Text(client, "service", "name") != "gitopsd-conversion" {
				t.Errorf("the API server is to ask %v", client)
			}
			if have := c.Definition.Annotation(manifest.InjectCAAnnotation); have != "Service/gitopsd-system/gitopsd-conversion" {
				t.Errorf("it is to trust %q", have)
			}
			if digest := conversion.Rules(c.Definition.Tree()); digest != c.Set.Digest() {
				t.Errorf("it names the rules %q, want %q", digest, c.Set.Digest())
			}
			if r.Patched[id] != nil {
				t.Error("it counts as patched")
			}
			in.Converter = Converter{URL: "https://gitopsd.example.org:9443/fleet"}
			if r, err = expand(t, new(Renderer), in, packages); err != nil {
				t.Fatal(err)
			}
			o := r.Objects.Get(id)
			client = manifest.Mapping(o.Tree(), "spec", "conversion", "webhook", "clientConfig")
			if client["url"] != "https://gitopsd.example.org:9443/fleet"+path || client["service"] != nil || o.Annotation(manifest.InjectCAAnnotation) != "" {
				t.Errorf("by URL the API server is to ask %v", client)
			}
		})
	}
}

// A definition with invalid rules stays unchanged, with its package.
func TestConversionFaults(t *testing.T) {
	t.Parallel()
	id := manifest.CRD.ID("", "as.example.org")
	webhook := "conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}"
	packages := map[string]*sources.Package{
		"p": content(t, sources.Provider, convertedCRD("as", "")+convertedCRD("bs", "")),
		"w": content(t, sources.Provider, convertedCRD("as", webhook)),
		"g": content(t, sources.Provider, convertedCRD("gs", "")),
	}
	bad := strings.Replace(rulesFor("as.example.org"), "v1.spec.old", "v1.spec.odl", 1)
	for _, tt := range []struct {
		name, stream, err string
		pkg               string
		none              bool // nothing serves
		found             bool // the definition is rendered all the same
	}{
		{name: "nothing serves", stream: convertedCRD("as", "") + rulesFor("as.example.org"), none: true,
			err: "c/all.yaml:5: customresourcedefinition.apiextensions.k8s.io/as.example.org: it has conversion rules (c/all.yaml:17), and the cluster has nothing to serve them: set spec.conversion of the Cluster, to service: {image: <image of gitopsd>} for a server in the cluster, or to url: https://"},
		{name: "no such field", stream: convertedCRD("as", "") + bad, err: "c/all.yaml:17: conversions[0].rules[0]"},
		{name: "no such field, of a package", stream: declare("Provider", "p", "") + bad, pkg: "p", err: "Provider p (c/all.yaml:5): customresourcedefinition.apiextensions.k8s.io/as.example.org of example.org/p:v1: c/all.yaml:10: conversions[0].rules[0]"},
		{name: "the package's own webhook", stream: declare("Provider", "w", "") + rulesFor("as.example.org"), pkg: "w", err: "its package brings a webhook that converts its objects: remove the rules, or"},
		{name: "no such definition", stream: convertedCRD("as", "") + rulesFor("ass.example.org"), err: "the cluster gets no CustomResourceDefinition of that name; did you mean as.example.org?", found: true},
		{name: "a schema with errors", stream: strings.Replace(schemaYAML, "storage: true", "storage: false", 1) + rulesFor("rev2.as.example.org"), err: "no version has storage: true"},
		{name: "a schema without a group", stream: convertedCRD("as", "") + strings.Replace(schemaYAML, "  group: example.org\n", "", 1) + rulesFor("rev2.as.example.org"), err: "spec.names.plural or spec.group is missing", found: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := convertedInput(t, tt.stream)
			if tt.none {
				in.Converter = Converter{}
			}
			r, err := expand(t, new(Renderer), in, packages)
			if err == nil || !strings.Contains(err.Error(), tt.err) || len(strings.Split(err.Error(), "\n")) > 1 {
				t.Fatalf("error %v\nwant one with %s", err, tt.err)
			}
			if found := r.Objects.Get(id) != nil; found != tt.found || r.Keeps(id, tt.pkg) == tt.found {
				t.Errorf("rendered %t, kept %t", found, r.Keeps(id, tt.pkg))
			}
			if len(r.Conversions) > 0 {
				t.Errorf("conversions are %v", r.Conversions)
			}
			if tt.pkg != "" && r.Objects.Get(manifest.CRD.ID("", "bs.example.org")) != nil {
				t.Error("the rest of the package is rendered")
			}
			if rules := manifest.ConfigMap.ID("gitopsd-system", "conversion.as.example.org.0123456789"); !tt.found && !r.Keeps(rules, "") {
				t.Error("what converts the objects of the definition is pruned")
			}
			if r.Keeps(manifest.ConfigMap.ID("gitopsd-system", "other"), "") || r.Objects.Get(manifest.ConfigMap.ID("default", "plain")) == nil {
				t.Error("other objects are affected")
			}
		})
	}
	t.Run("two definitions of a package", func(t *testing.T) {
		r, err := expand(t, new(Renderer), convertedInput(t, declare("Provider", "p", "")+bad+strings.ReplaceAll(bad, "as.example.org", "bs.example.org")), packages)
		if err == nil || len(r.Broken) != 1 || !strings.Contains(err.Error(), "/as.example.org of") || !strings.Contains(err.Error(), "/bs.example.org of") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the webhook patched away", func(t *testing.T) {
		patch := kustomize.Patch{Target: &kustomize.Selector{Kind: "CustomResourceDefinition"}, Patch: "- {op: replace, path: /spec/conversion, value: {strategy: None}}"}
		r, err := expand(t, new(Renderer), convertedInput(t, declare("Provider", "w", "")+rulesFor("as.example.org"), patch), packages)
		if err != nil || r.Conversions["as.example.org"] == nil || r.Patched[id] == nil {
			t.Errorf("error %v, conversions %v", err, r.Conversions)
		}
	})
	for what, own := range map[string]func(r *Rendered) *manifest.Object{
		"a copy of a bundle":   func(r *Rendered) *manifest.Object { return r.Conversions["as.example.org"].Bundle },
		"a copy of the server": func(r *Rendered) *manifest.Object { return r.Objects.Get(converter.Workload()) },
		"another of its account": func(r *Rendered) *manifest.Object {
			return r.Objects.Get(manifest.ServiceAccount.ID("gitopsd-system", "gitopsd-conversion"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			stream := convertedCRD("as", "") + rulesFor("as.example.org")
			r, err := expand(t, new(Renderer), convertedInput(t, stream), packages)
			if err != nil {
				t.Fatal(err)
			}
			id := own(r).ID()
			copied := own(r).WithMetadata(map[string]string{"copied": "true"}, nil)
			r, err = expand(t, new(Renderer), convertedInput(t, stream+string(copied.AppendJSON(nil))+"\n---\n"), packages)
			if r == nil || len(r.Refused) != 1 || r.Refused[0].ID != id || !strings.Contains(err.Error(), " makes an object of that name") {
				t.Fatalf("error %v", err)
			}
			if o := r.Objects.Get(id); o == nil || o.Label("copied") != "" || r.Conversions["as.example.org"] == nil {
				t.Errorf("rendered is %v", o)
			}
		})
	}
	t.Run("a server that cannot be told", func(t *testing.T) {
		patch := kustomize.Patch{Target: &kustomize.Selector{Kind: "Deployment"}, Patch: "- {op: replace, path: /spec/template/spec/containers/0/name, value: mine}"}
		_, err := expand(t, new(Renderer), convertedInput(t, convertedCRD("as", "")+rulesFor("as.example.org"), patch), packages)
		if err == nil || !strings.Contains(err.Error(), "deployment.apps/gitopsd-system/gitopsd-conversion has no container gitopsd after spec.patches") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("of a package that is not known", func(t *testing.T) {
		r, err := expand(t, new(Renderer), convertedInput(t, declare("Provider", "gone", "")+rulesFor("as.example.org")), packages)
		if err == nil || strings.Contains(err.Error(), "conversion rules") || !slices.Contains(r.Notes, "c/all.yaml:10: the conversion rules are for as.example.org, which is not rendered while packages have errors") {
			t.Errorf("error %v, notes %q", err, r.Notes)
		}
		if !r.Keeps(manifest.Deployment.ID("gitopsd-system", "gitopsd-conversion"), "") {
			t.Error("the server that converts the package's objects is pruned")
		}
	})
	t.Run("delegated", func(t *testing.T) {
		in := convertedInput(t, declare("Provider", "g", "")+rulesFor("gs.example.org"))
		in.Delegate = true
		_, err := expand(t, new(Renderer), in, packages)
		if err == nil || !strings.Contains(err.Error(), "of a package that Crossplane installs") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("of one version", func(t *testing.T) {
		one := strings.Replace(convertedCRD("as", ""), "  - {name: v2", "  # {name: v2", 1)
		empty := "apiVersion: apis.kcp.dev/v1alpha1\nkind: APIConversionRules\nmetadata: {name: as.example.org}\nspec: {conversions: []}\n"
		r, err := expand(t, new(Renderer), convertedInput(t, one+empty), packages)
		if err != nil || len(r.Conversions) > 0 || r.Objects.Get(id) == nil || types.Read(r.Objects.Get(id).Tree()).Converts || !slices.Contains(r.Notes, "c/all.yaml:17: the conversion rules are for as.example.org, which has one version and needs none") {
			t.Errorf("error %v, conversions %v, notes %q", err, r.Conversions, r.Notes)
		}
	})
	t.Run("a copy of a live definition", func(t *testing.T) {
		copied := strings.Replace(convertedCRD("as", ""), "as.example.org}", "as.example.org, annotations: {gitopsd.dev/conversion: 'h1:x'}}", 1)
		r, err := expand(t, new(Renderer), convertedInput(t, copied), packages)
		if err == nil || !strings.Contains(err.Error(), "gitopsd sets where there are conversion rules, and there are none for it: add them, or remove") || r.Objects.Get(id) != nil || !r.Keeps(id, "") {
			t.Errorf("error %v", err)
		}
		if _, err := expand(t, new(Renderer), convertedInput(t, copied+rulesFor("as.example.org")), packages); err != nil {
			t.Errorf("with rules: %v", err)
		}
	})
	t.Run("in a workspace of kcp", func(t *testing.T) {
		r, err := expand(t, new(Renderer), input(t, schemaYAML+rulesFor("rev2.as.example.org")+"apiVersion: apis.kcp.dev/v1alpha1\nkind: APIExport\nmetadata: {name: as}\nspec: {latestResourceSchemas: [rev2.as.example.org]}\n"), packages)
		if err != nil || r.Objects.Len() != 3 || len(r.Conversions) > 0 {
			t.Errorf("error %v, objects\n%s", err, yamlOf(t, r))
		}
	})
	t.Run("inactive", func(t *testing.T) {
		r, err := expand(t, new(Renderer), convertedInput(t, byType("g")+rulesFor("gs.example.org")), packages)
		if err != nil || !slices.ContainsFunc(r.Notes, func(n string) bool {
			return strings.Contains(n, "the conversion rules are for gs.example.org, a type that no policy activates")
		}) {
			t.Errorf("error %v, notes %q", err, r.Notes)
		}
	})
}

// Clusters share compiled rules as long as their definitions and rules are equal.
func TestConversionsAreShared(t *testing.T) {
	t.Parallel()
	var r Renderer
	set := func(in Input) *conversion.Set {
		t.Helper()
		rendered, err := expand(t, &r, in, nil)
		if err != nil {
			t.Fatal(err)
		}
		return rendered.Conversions["as.example.org"].Set
	}
	stream := convertedCRD("as", "") + rulesFor("as.example.org")
	first := convertedInput(t, stream)
	other := convertedInput(t, stream)
	other.Cluster = "dev"
	one := set(first)
	if set(other) != one || set(convertedInput(t, stream)) != one {
		t.Error("rules are compiled again for another cluster")
	}
	if set(convertedInput(t, strings.Replace(stream, "maxLength: 9", "maxLength: 8", 1))) == one {
		t.Error("rules are not compiled again for another definition")
	}
	described := func() *manifest.Object {
		t.Helper()
		rendered, err := expand(t, &r, convertedInput(t, schemaYAML), nil)
		if err != nil {
			t.Fatal(err)
		}
		return rendered.Objects.Get(manifest.CRD.ID("", "as.example.org"))
	}
	if before := described(); described() != before {
		t.Error("a schema is read again for each cluster")
	}
	r.Sweep()
	set(first)
	r.Sweep()
	if len(r.rules) != 1 || len(r.schemas) != 0 {
		t.Errorf("%d sets and %d schemas are kept, want the one set in use", len(r.rules), len(r.schemas))
	}
}
