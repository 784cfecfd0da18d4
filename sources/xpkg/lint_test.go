package xpkg

import (
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

func lintText(text string) (sources.PackageMeta, []sources.Document, error) {
	docs, err := decode(strings.NewReader(text), anyShare())
	if err != nil {
		return sources.PackageMeta{}, nil, err
	}
	return lint(docs, func(i int) string {
		return "line " + string(rune('0'+docs[i].Line/10)) + string(rune('0'+docs[i].Line%10))
	})
}

func object(apiVersion, kind, name string) string {
	return "---\napiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {name: " + name + "}\n"
}

func metaOf(kind, version, spec string) string {
	return "---\napiVersion: meta.pkg.crossplane.io/" + version + "\nkind: " + kind + "\nmetadata: {name: it}\nspec: {" + spec + "}\n"
}

// TestLint is which objects may be in which package.
func TestLint(t *testing.T) {
	t.Parallel()
	const (
		crd      = "apiextensions.k8s.io/v1 CustomResourceDefinition"
		oldCRD   = "apiextensions.k8s.io/v1beta1 CustomResourceDefinition"
		mrd      = "apiextensions.crossplane.io/v1alpha1 ManagedResourceDefinition"
		mrap     = "apiextensions.crossplane.io/v1alpha1 ManagedResourceActivationPolicy"
		mutate   = "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration"
		validate = "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration"
		xrd1     = "apiextensions.crossplane.io/v1 CompositeResourceDefinition"
		xrd2     = "apiextensions.crossplane.io/v2 CompositeResourceDefinition"
		compose  = "apiextensions.crossplane.io/v1 Composition"
		operate  = "ops.crossplane.io/v1alpha1 Operation"
		cron     = "ops.crossplane.io/v1alpha1 CronOperation"
		watch    = "ops.crossplane.io/v1alpha1 WatchOperation"
		secret   = "v1 Secret"
		deploy   = "apps/v1 Deployment"
	)
	all := []string{crd, oldCRD, mrd, mrap, mutate, validate, xrd1, xrd2, compose, operate, cron, watch, secret, deploy}
	for kind, may := range map[string]string{
		"Provider":      strings.Join([]string{crd, mrd, mutate, validate}, ","),
		"Configuration": strings.Join([]string{xrd1, xrd2, compose, mrap, operate, cron, watch}, ","),
		"Function":      crd,
	} {
		for _, what := range all {
			apiVersion, objectKind, _ := strings.Cut(what, " ")
			_, docs, err := lintText(metaOf(kind, "v1", "") + object(apiVersion, objectKind, "thing"))
			if want := strings.Contains(","+may+",", ","+what+","); (err == nil) != want || want && len(docs) != 1 {
				t.Errorf("%s with %s: %v, want it allowed: %v", kind, what, err, want)
			}
		}
	}
}

// TestLintErrors is what a publisher reads.
func TestLintErrors(t *testing.T) {
	t.Parallel()
	const crd = "apiextensions.k8s.io/v1"
	tests := map[string]struct {
		text string
		want []string // each in one problem, in this order
	}{
		"no meta":  {object(crd, "CustomResourceDefinition", "a"), []string{"there is no meta object among its documents"}},
		"two meta": {metaOf("Provider", "v1", "") + metaOf("Function", "v1", ""), []string{"line 07: Function it: a package has one meta object, and Provider it is at line 02 already"}},
		"unknown meta kind and version": {metaOf("Project", "v2", ""), []string{
			"Project it: it is no kind of package; want Provider, Configuration or Function", "meta.pkg.crossplane.io/v2 is not known"}},
		"old CRD":       {metaOf("Provider", "v1", "") + object(crd+"beta1", "CustomResourceDefinition", "a"), []string{"line 07: CustomResourceDefinition a: CustomResourceDefinition of apiextensions.k8s.io/v1beta1 is gone since Kubernetes 1.22; convert it to apiextensions.k8s.io/v1"}},
		"old webhook":   {metaOf("Provider", "v1", "") + object("admissionregistration.k8s.io/v1beta1", "MutatingWebhookConfiguration", "a"), []string{"is not a version that packages use; want v1"}},
		"other kind":    {metaOf("Provider", "v1", "") + object("v1", "ConfigMap", "a"), []string{"line 07: ConfigMap a: a Provider package cannot hold ConfigMap of /v1; it may hold CustomResourceDefinition, ManagedResourceDefinition, MutatingWebhookConfiguration"}},
		"not an object": {metaOf("Provider", "v1", "") + "---\nx: 1\n", []string{"a document without a kind: it is not a Kubernetes object"}},
		"no name":       {metaOf("Provider", "v1", "") + "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {}\n", []string{"CustomResourceDefinition without a name: it needs metadata.name"}},
		"twice":         {metaOf("Provider", "v1", "") + object(crd, "CustomResourceDefinition", "a") + object(crd, "CustomResourceDefinition", "a"), []string{"line 11: CustomResourceDefinition a: duplicate of the one at line 07"}},
		"all at once":   {metaOf("Provider", "v1", "") + object("v1", "ConfigMap", "a") + object("v1", "Secret", "a"), []string{"ConfigMap a", "Secret a"}},

		"range":              {metaOf("Provider", "v1", `crossplane: {version: "latest"}`), []string{`spec.crossplane.version "latest" is not a range of versions`}},
		"range not text":     {metaOf("Provider", "v1", `crossplane: {version: 2}`), []string{"spec.crossplane.version is not a string"}},
		"image not text":     {metaOf("Provider", "v1", `controller: {image: [a]}`), []string{"spec.controller.image is not a string"}},
		"dependsOn no list":  {metaOf("Provider", "v1", `dependsOn: {}`), []string{"spec.dependsOn is not a list"}},
		"entry no mapping":   {metaOf("Provider", "v1", `dependsOn: [a]`), []string{"spec.dependsOn[0] is not a mapping"}},
		"entry empty":        {metaOf("Provider", "v1", `dependsOn: [{version: v1}]`), []string{"spec.dependsOn[0]: it names no package"}},
		"both spellings":     {metaOf("Provider", "v1", `dependsOn: [{provider: a/b, package: a/c, version: v1}]`), []string{"it names a package as package and as provider"}},
		"unknown kind":       {metaOf("Provider", "v1", `dependsOn: [{apiVersion: pkg.crossplane.io/v1, kind: Chart, package: a/b, version: v1}]`), []string{"pkg.crossplane.io/v1 Chart is no kind of package"}},
		"other group":        {metaOf("Provider", "v1", `dependsOn: [{apiVersion: example.org/v1, kind: Provider, package: a/b, version: v1}]`), []string{"example.org/v1 Provider is no kind of package"}},
		"no version":         {metaOf("Provider", "v1", `dependsOn: [{provider: a/b}]`), []string{"xpkg.crossplane.io/a/b needs a version"}},
		"bad version":        {metaOf("Provider", "v1", `dependsOn: [{provider: a/b, version: sha256:12}]`), []string{`version "sha256:12" of xpkg.crossplane.io/a/b is neither`}},
		"tag in it":          {metaOf("Provider", "v1", `dependsOn: [{provider: "a/b:v1", version: v1}]`), []string{`"a/b:v1" is not a repository`}},
		"digest in it":       {metaOf("Provider", "v1", `dependsOn: [{provider: "a/b@sha256:1", version: v1}]`), []string{"is not a repository"}},
		"not a repository":   {metaOf("Provider", "v1", `dependsOn: [{provider: "A b", version: v1}]`), []string{`"A b" is not a repository`}},
		"one package, twice": {metaOf("Provider", "v1", `dependsOn: [{provider: a/b, version: v1}, {provider: xpkg.crossplane.io/a/b, version: v2}]`), []string{"spec.dependsOn[1]: duplicate entry for xpkg.crossplane.io/a/b"}},
	}
	for name, test := range tests {
		_, docs, err := lintText(test.text)
		invalid, ok := err.(*InvalidError)
		if !ok || docs != nil || len(invalid.Problems) != len(test.want) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, want := range test.want {
			if !strings.Contains(invalid.Problems[i], want) {
				t.Errorf("%s: problem %q, want %q", name, invalid.Problems[i], want)
			}
		}
	}
}

func TestMeta(t *testing.T) {
	t.Parallel()
	digest := string(sources.DigestOf(nil))
	m, _, err := lintText(metaOf("Function", "v1beta1", `image: r.example.org/f:v1, crossplane: {version: ">=v1.14.0-0, <v3"},
  dependsOn: [{configuration: r.example.org/a/b, version: "`+digest+`"}, {apiVersion: pkg.crossplane.io/v1beta1, kind: Function, package: a/c, version: ">=v1"}]`))
	if err != nil {
		t.Fatal(err)
	}
	if m.Kind != sources.Function || m.Name != "it" || m.Image != "r.example.org/f:v1" || m.Crossplane != ">=v1.14.0-0, <v3" {
		t.Errorf("meta %+v", m)
	}
	want := []sources.Dependency{{Kind: sources.Configuration, Repository: "r.example.org/a/b", Constraint: digest}, {Kind: sources.Function, Repository: "xpkg.crossplane.io/a/c", Constraint: ">=v1"}}
	if len(m.DependsOn) != 2 || m.DependsOn[0] != want[0] || m.DependsOn[1] != want[1] {
		t.Errorf("dependencies %+v", m.DependsOn)
	}
}

// TestManyProblems: a list that nobody would read to its end is cut.
func TestManyProblems(t *testing.T) {
	t.Parallel()
	err := &InvalidError{Package: "p", Problems: make([]string, 100)}
	if text := err.Error(); !strings.HasPrefix(text, "p: 100 problems:") || !strings.HasSuffix(text, "and 80 more") {
		t.Errorf("error %s", text)
	}
}
