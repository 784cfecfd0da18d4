package render

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// byType declares a Provider that is installed by type.
func byType(name string) string {
	return fmt.Sprintf("apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: %[1]s, annotations: {gitopsd.dev/install: by-type}}\nspec: {package: 'example.org/%[1]s:v1'}\n---\n", name)
}

func activates(name string, patterns ...string) string {
	return fmt.Sprintf("apiVersion: apiextensions.crossplane.io/v1alpha1\nkind: ManagedResourceActivationPolicy\nmetadata: {name: %s}\nspec: {activate: ['%s']}\n---\n", name, strings.Join(patterns, "', '"))
}

// crdOf returns a CRD in the group PACKAGE.example.org.
func crdOf(pkg, plural, kind string) string {
	return fmt.Sprintf("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: %[2]s.%[1]s.example.org}\nspec: {group: %[1]s.example.org, names: {plural: %[2]s, kind: %[3]s}}\n---\n", pkg, plural, kind)
}

func mrdOf(pkg, plural, kind, more string) string {
	return fmt.Sprintf("apiVersion: apiextensions.crossplane.io/v1alpha1\nkind: ManagedResourceDefinition\nmetadata: {name: %[2]s.%[1]s.example.org}\nspec: {group: %[1]s.example.org, names: {plural: %[2]s, kind: %[3]s}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}], %[4]s}\n---\n", pkg, plural, kind, more)
}

// definitions returns the names of the rendered CRDs.
func definitions(r *Rendered) string {
	var names []string
	for _, o := range r.Objects.All() {
		if o.ID().Is(manifest.CRD) {
			names = append(names, strings.TrimSuffix(o.ID().Name, ".example.org"))
		}
	}
	return strings.Join(names, " ")
}

func inactive(r *Rendered) string {
	var names []string
	for _, t := range r.Inactive {
		if t.Definition.Kind != manifest.CRD.Kind || t.Kind == "" || t.Group == "" || t.Package == "" {
			names = append(names, fmt.Sprintf("%+v", t))
			continue
		}
		names = append(names, strings.TrimSuffix(t.Definition.Name, ".example.org"))
	}
	return strings.Join(names, " ")
}

func TestActivation(t *testing.T) {
	t.Parallel()
	aws := content(t, sources.Provider, crdOf("aws", "buckets", "Bucket")+crdOf("aws", "queues", "Queue")+crdOf("aws", "configs", "ProviderConfig"))
	managed := content(t, sources.Provider, mrdOf("m", "disks", "Disk", "state: Inactive")+mrdOf("m", "nets", "Net", "state: Active")+mrdOf("m", "vms", "VM", ""))
	safe := content(t, sources.Provider, crdOf("safe", "as", "A")+crdOf("safe", "bs", "B"))
	safe.Meta.Document.Tree = map[string]any{"spec": map[string]any{"capabilities": []any{"safe-start"}}}
	policyIn := content(t, sources.Configuration, activates("inside", "queues.*"))
	packages := map[string]*sources.Package{"aws": aws, "managed": managed, "safe": safe, "policies": policyIn}
	for _, tt := range []struct {
		name, stream, want, inactive string
		notes                        []string // in part, in order
	}{
		{name: "without the annotation everything", stream: declare("Provider", "aws", "") + declare("Provider", "managed", ""),
			want: "buckets.aws configs.aws disks.m nets.m queues.aws vms.m"},
		{name: "a policy takes nothing from who did not ask", stream: declare("Provider", "aws", "") + activates("p", "buckets.*"),
			want:  "buckets.aws configs.aws queues.aws",
			notes: []string{"Provider aws installs all of its 2 types, though policies name one of them; to get these alone, annotate its declaration with gitopsd.dev/install: by-type"}},
		{name: "Crossplane's default policy", stream: declare("Provider", "aws", "") + activates("default", "*"), want: "buckets.aws configs.aws queues.aws"},
		{name: "by type", stream: byType("aws") + declare("Provider", "managed", "") + activates("p", "buckets.aws.example.org"),
			want: "buckets.aws configs.aws disks.m nets.m vms.m", inactive: "queues.aws",
			notes: []string{"Provider aws is installed by type (1 of 2), and does not say that its controller starts where types are missing (capability safe-start)"}},
		{name: "definitions of Crossplane's", stream: byType("managed") + activates("p", "d*.m.example.org"), want: "disks.m nets.m", inactive: "vms.m",
			notes: []string{"Provider managed is installed by type (1 of 2)"}},
		{name: "a package that is ready for it", stream: byType("safe") + activates("p", "as.*"), want: "as.safe", inactive: "bs.safe"},
		{name: "the union of policies", stream: byType("aws") + activates("p", "buckets.*") + activates("q", "queues.*"), want: "buckets.aws configs.aws queues.aws"},
		{name: "a policy in a Configuration", stream: byType("aws") + declare("Configuration", "policies", ""), want: "configs.aws queues.aws", inactive: "buckets.aws",
			notes: []string{"Provider aws is installed by type (1 of 2)"}},
		{name: "no policy", stream: byType("aws"), want: "configs.aws", inactive: "buckets.aws queues.aws",
			notes: []string{"Provider aws is installed by type, and no ManagedResourceActivationPolicy activates any of its 2 types"}},
		{name: "a pattern for nothing", stream: byType("safe") + activates("p", "*.safe.example.org", "buckets.s3.example.org"), want: "as.safe bs.safe",
			notes: []string{`ManagedResourceActivationPolicy p (c/all.yaml:6): pattern "buckets.s3.example.org" matches no type of this cluster's packages`}},
		{name: "a policy at fault that nothing depends on", stream: declare("Provider", "aws", "") + activates("p", "a["), want: "buckets.aws configs.aws queues.aws",
			notes: []string{`c/all.yaml:6: ManagedResourceActivationPolicy p: spec.activate.0: "a[" is not a pattern`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rendered, err := expand(t, new(Renderer), input(t, tt.stream), packages)
			if err != nil {
				t.Fatal(err)
			}
			if have := definitions(rendered); have != tt.want {
				t.Errorf("have %s\nwant %s", have, tt.want)
			}
			if have := inactive(rendered); have != tt.inactive {
				t.Errorf("inactive are %q, want %q", have, tt.inactive)
			}
			if len(rendered.Notes) != len(tt.notes) {
				t.Fatalf("notes %q", rendered.Notes)
			}
			for i, want := range tt.notes {
				if !strings.Contains(rendered.Notes[i], want) {
					t.Errorf("note %q\nwant %q", rendered.Notes[i], want)
				}
			}
			for _, o := range rendered.Objects.All() {
				if o.ID().Kind == manifest.ActivationPolicy.Kind {
					t.Error("the policy is applied, which a cluster without Crossplane does not know")
				}
				if o.ID().Is(manifest.CRD) && o.Label(manifest.PackageLabel) == "" {
					t.Errorf("%s does not say whose it is", o.ID())
				}
			}
		})
	}
}

// If a policy cannot be read, the packages that depend on it stay unchanged.
func TestPolicyFaults(t *testing.T) {
	t.Parallel()
	packages := map[string]*sources.Package{"aws": content(t, sources.Provider, crdOf("aws", "buckets", "Bucket")), "other": content(t, sources.Provider, crdOf("other", "things", "Thing"))}
	policy := func(spec string) string {
		return "apiVersion: apiextensions.crossplane.io/v1alpha1\nkind: ManagedResourceActivationPolicy\nmetadata: {name: p}\n" + spec
	}
	for _, tt := range []struct{ policy, want string }{
		{policy(""), "spec: is missing"},
		{policy("spec: {}\n"), "spec.activate: want a list"},
		{policy("spec: {activate: [1]}\n"), "spec.activate.0: want a string, have 1; quote it"},
		{policy("spec: {activate: ['*', '[']}\n"), `spec.activate.1: "[" is not a pattern`},
		{policy("spec: {activate: ['*'], activations: []}\n"), "spec.activations: is not a field"},
		{strings.Replace(policy("spec: {activate: ['*']}\n"), "v1alpha1", "v2", 1), "apiVersion: apiextensions.crossplane.io/v2 is not known; write apiextensions.crossplane.io/v1alpha1"},
	} {
		rendered, err := expand(t, new(Renderer), input(t, byType("aws")+declare("Provider", "other", "")+tt.policy), packages)
		if err == nil || !strings.Contains(err.Error(), "Provider aws (c/all.yaml:1): c/all.yaml:11: ManagedResourceActivationPolicy p: "+tt.want) {
			t.Errorf("have %v, want %s", err, tt.want)
		}
		if definitions(rendered) != "things.other" || !rendered.Keeps(manifest.ID{}, "aws") {
			t.Errorf("%s: have %s", tt.want, definitions(rendered))
		}
	}
	rendered, _ := expand(t, new(Renderer), input(t, byType("aws")+declare("Configuration", "policies", "")), packages)
	if len(rendered.Notes) > 0 || !rendered.Keeps(manifest.CRD.ID("", "buckets.aws.example.org"), "aws") {
		t.Errorf("with policies in a package that is not resolved: notes %q, or its types are pruned", rendered.Notes)
	}
	for _, annotations := range []string{"{gitopsd.dev/install: some}", "{gitopsd.dev/install: by-type}"} {
		kind, want := "Configuration", "only a Provider is installed by type"
		if strings.Contains(annotations, "some") {
			kind, want = "Provider", `metadata.annotations: gitopsd.dev/install: want by-type, have "some"`
		}
		_, err := new(Renderer).Want(t.Context(), input(t, "apiVersion: pkg.crossplane.io/v1\nkind: "+kind+"\nmetadata: {name: x, annotations: "+annotations+"}\nspec: {package: 'example.org/x:v1'}\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("have %v, want %s", err, want)
		}
	}
}

// Clusters that activate the same types share the selection, and all clusters share the
// types.
func TestSelectionsAreShared(t *testing.T) {
	t.Parallel()
	var stream strings.Builder
	for i := range 300 {
		stream.WriteString(crdOf("aws", fmt.Sprintf("x%d", i), fmt.Sprintf("X%d", i)))
	}
	packages := map[string]*sources.Package{"aws": content(t, sources.Provider, stream.String())}
	var r Renderer
	render := func(patterns ...string) *Rendered {
		rendered, err := expand(t, &r, input(t, byType("aws")+activates("p", patterns...)), packages)
		if err != nil {
			t.Fatal(err)
		}
		return rendered
	}
	a, b := render("x1.*", "x2.*"), render("x2.*", "x1.*")
	other := render("x2.*")
	if definitions(a) != "x1.aws x2.aws" || definitions(b) != definitions(a) || definitions(other) != "x2.aws" {
		t.Fatalf("have %s, %s, %s", definitions(a), definitions(b), definitions(other))
	}
	if len(r.packages) != 1 || len(r.selections) != 2 {
		t.Errorf("%d packages, %d selections", len(r.packages), len(r.selections))
	}
	id := manifest.CRD.ID("", "x2.aws.example.org")
	if a.Objects.Get(id) != b.Objects.Get(id) || a.Objects.Get(id) != other.Objects.Get(id) {
		t.Error("the type is not shared")
	}
	if &a.Inactive[0] != &b.Inactive[0] {
		t.Error("what is inactive is not shared")
	}
	// The rights are the same everywhere: a type that stays installed because it
	// holds objects is still reconciled.
	role := manifest.ID{Group: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "gitopsd:provider:aws"}
	if a.Objects.Get(role) != other.Objects.Get(role) || !slices.Contains(ids(a.Objects.All()), role.String()) {
		t.Error("the role differs")
	}
	r.Sweep()
	r.Sweep()
	if len(r.selections) != 0 {
		t.Errorf("%d selections are kept that nobody asked for", len(r.selections))
	}
}
