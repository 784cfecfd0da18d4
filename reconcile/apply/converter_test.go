package apply_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
)

// rules returns a definition that names conversion rules with a digest, the ConfigMap
// with them, and the workload that serves them, which never gets ready if failing is set.
func (b *bed) rules(digest string, failing bool) *manifest.Set {
	b.t.Helper()
	objects, err := converter.Objects(converter.Config{Image: "registry.example.org/gitopsd:v1"})
	if err != nil {
		b.t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range objects {
		yaml, err := o.YAML()
		if err != nil {
			b.t.Fatal(err)
		}
		template := fmt.Sprintf("prometheus.io/scrape: \"true\"\n        rules: %q\n", digest)
		if failing {
			template += "        devcluster.gitopsd.dev/fail: image\n"
		}
		text.WriteString(strings.Replace(string(yaml), "prometheus.io/scrape: \"true\"\n", template, 1) + "---\n")
	}
	crd := "widgets." + b.name + ".example.org"
	fmt.Fprintf(&text, `
apiVersion: v1
kind: ConfigMap
metadata: {name: %s, namespace: gitopsd-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s, annotations: {gitopsd.dev/conversion: %q}}
spec:
  group: $NAME.example.org
  scope: Cluster
  names: {plural: widgets, kind: Widget}
  conversion:
    strategy: Webhook
    webhook:
      conversionReviewVersions: [v1]
      clientConfig: {service: {namespace: gitopsd-system, name: gitopsd-conversion, port: 443, path: %s}}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v2, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
`, bundle.ID(crd, digest).Name, crd, digest, conversion.Path("dev", crd, digest))
	return b.set(text.String())
}

// A definition names new rules when the workload that serves them is ready, and the old
// ones stay until then.
func TestRulesWait(t *testing.T) {
	b := newBed(t)
	const one, two = "h1:AAAA", "h1:BBBB"
	crd := b.set("{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.$NAME.example.org}}").All()[0]
	named := func() any {
		return manifest.Mapping(b.live(crd), "metadata", "annotations")["gitopsd.dev/conversion"]
	}
	set := b.rules(one, false)
	b.applied(set)

	_, results := b.apply(b.rules(two, true))
	if len(results) != 2 || !strings.Contains(results[0], "pending customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org: waits for deployment.apps/gitopsd-system/gitopsd-conversion, which is to convert its objects: ") ||
		!strings.HasPrefix(results[1], "pending configmap/gitopsd-system/conversion.widgets.$NAME.example.org.") {
		t.Errorf("results %q", results)
	}
	if have := named(); have != one {
		t.Errorf("the definition names %v", have)
	}

	// Also if nothing is left but what it names: the repository has no rules any more, and
	// the definition cannot be changed.
	gone := b.set("{apiVersion: v1, kind: ConfigMap, metadata: {name: $NAME, namespace: default}}")
	steps, _ := b.applyWith(gone, apply.PlanOptions{}, func(id manifest.ID, _ string) bool { return id.Is(manifest.CRD) })
	kept := 0
	for _, s := range steps {
		if strings.Contains(s, "kept: customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org names conversion rules that need it") {
			kept++
		}
	}
	if kept < 7 { // of the workload, and one bundle
		t.Errorf("steps %q", steps)
	}

	set = b.rules(two, false)
	_, results = b.apply(set)
	b.wantNothing("results", results)
	if have := named(); have != two {
		t.Errorf("the definition names %v", have)
	}
	b.settled(set)

	// A CA bundle for the rules that it names does not wait: without it, API servers cannot
	// trust the next certificate of the pods that serve them.
	b.applied(b.trusting(set, ca))
	_, results = b.apply(b.trusting(b.rules(two, true), otherCA))
	b.wantNothing("results", results)
	if have := manifest.Mapping(b.live(crd), "spec", "conversion", "webhook", "clientConfig")["caBundle"]; have != otherCA {
		t.Errorf("caBundle is %v", have)
	}
}

// trusting returns rules whose definition trusts a CA.
func (b *bed) trusting(rules *manifest.Set, ca string) *manifest.Set {
	b.t.Helper()
	objects := slices.Clone(rules.All())
	for i, o := range objects {
		if !o.ID().Is(manifest.CRD) {
			continue
		}
		tree := exact.Clone(o.Tree())
		manifest.Mapping(tree, "spec", "conversion", "webhook", "clientConfig")["caBundle"] = ca
		completed, err := o.Complete(tree)
		if err != nil {
			b.t.Fatal(err)
		}
		objects[i] = completed
	}
	set, _ := manifest.NewSet(objects)
	return set
}

// While a package's definition is refused, the rules that the live one names stay.
func TestRulesRefused(t *testing.T) {
	b := newBed(t)
	const one, two = "h1:AAAA", "h1:BBBB"
	// packaged is a package's, served by URL, with versions left out.
	packaged := func(digest string, versions int) *manifest.Set {
		objects := slices.DeleteFunc(slices.Clone(b.rules(digest, false).All()), func(o *manifest.Object) bool { return !o.ID().Is(manifest.CRD, manifest.ConfigMap) })
		for i, o := range objects {
			if !o.ID().Is(manifest.CRD) {
				continue
			}
			tree := exact.Clone(o.Tree())
			spec := manifest.Mapping(tree, "spec")
			spec["versions"] = manifest.List(spec, "versions")[:versions]
			manifest.Mapping(spec, "conversion", "webhook")["clientConfig"] = map[string]any{"url": "https://gitopsd.example.org" + conversion.Path("dev", o.ID().Name, digest)}
			o, err := manifest.New(tree, o.Origin())
			if err != nil {
				t.Fatal(err)
			}
			objects[i] = o.WithMetadata(map[string]string{manifest.PackageLabel: "widgets"}, nil)
		}
		set, _ := manifest.NewSet(objects)
		return set
	}
	_, results := b.apply(packaged(one, 2))
	b.wantNothing("results", results)
	steps, results := b.apply(packaged(two, 1))
	bundleOf := bundle.ID("widgets."+b.name+".example.org", one)
	text := strings.Join(steps, "\n")
	if !strings.Contains(text, "refused customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org") ||
		!strings.Contains(text, "held "+strings.ReplaceAll(bundleOf.String(), b.name, "$NAME")+" ") {
		t.Errorf("steps %q, results %q", steps, results)
	}
	configMaps, err := b.cluster.Type(t.Context(), "v1", "ConfigMap")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.cluster.Get(t.Context(), configMaps, bundleOf); err != nil {
		t.Error(err)
	}
}

// live returns an object as the API server has it.
func (b *bed) live(o *manifest.Object) map[string]any {
	b.t.Helper()
	typ, err := b.cluster.Type(b.t.Context(), o.APIVersion(), o.ID().Kind)
	if err != nil {
		b.t.Fatal(err)
	}
	tree, _, err := b.cluster.Get(b.t.Context(), typ, o.ID())
	if err != nil {
		b.t.Fatal(err)
	}
	return tree
}

// applyWith plans and applies with objects that are kept.
func (b *bed) applyWith(set *manifest.Set, opts apply.PlanOptions, keeps func(manifest.ID, string) bool) (steps, results []string) {
	b.t.Helper()
	opts.Keeps = keeps
	p := b.plan(set, opts)
	r := b.execute(p)
	return b.steps(p), b.results(r)
}
