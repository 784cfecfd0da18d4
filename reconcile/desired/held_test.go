package desired

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// What the lock has stays where a declaration cannot be read or waits for approval,
// and both are told.
func TestLockedStays(t *testing.T) {
	var fetched int
	v0 := string(sources.DigestOf([]byte("reg.io/a:v0")))
	f := files{
		"clusters.yaml":   cluster("typo") + cluster("manual"),
		"c/typo/a.yaml":   strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", "v1, packagePullPolicy: Alwys}", 1) + configMap,
		"c/manual/a.yaml": strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", "v1, revisionActivationPolicy: Manual}", 1) + configMap,
		"clusters.lock":   "@manual reg.io/a v0\n@typo reg.io/a v0\nreg.io/a v0 " + v0 + "\nreg.io/a v0/package.yaml " + v0 + "\n",
	}
	// The packages of a commit may be in its own files.
	asked := 0
	c := New(Config{FromTree: func(tree fs.FS) (resolve.Config, error) {
		asked++
		_, err := fs.Stat(tree, "clusters.yaml")
		return shelf(&fetched), err
	}})
	for range 2 {
		s, err := c.Compute(t.Context(), f.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		if s.LockChanged() {
			t.Errorf("the lock became\n%s", s.Lock.Format())
		}
		typo, manual := s.Get("typo"), s.Get("manual")
		if len(typo.Packages) != 0 || !typo.Keeps(manifest.ID{Kind: "X", Name: "x"}, "a") || typo.Objects.Len() != 1 || len(typo.Faults) != 1 {
			t.Errorf("typo: %v, faults %v", typo.Packages, typo.Faults)
		}
		if want := "package a stays at v0, which clusters.lock has, while its declaration cannot be read"; len(typo.Notes) != 1 || typo.Notes[0] != want {
			t.Errorf("typo: notes %q", typo.Notes)
		}
		if len(manual.Packages) != 1 || manual.Packages[0].Pin.Ref.Tag != "v0" || manual.Packages[0].Declaration.Ref.Tag != "v0" || !manual.Complete() {
			t.Errorf("manual: %v, %v", manual.Packages, manual.Problems())
		}
		if len(manual.Waiting) != 1 || !strings.HasPrefix(manual.Waiting[0], "reg.io/a:v1 waits for approval in manual, where v0 stays: ") || len(s.Waiting) != 1 {
			t.Errorf("manual: waiting %q", manual.Waiting)
		}
	}
	if asked != 2 || fetched != 1 {
		t.Errorf("asked %d times, fetched %d packages", asked, fetched)
	}
}

// A tag stays while the document of a cluster that has it cannot be read: the cluster may hold it.
func TestTagStaysForBrokenDocument(t *testing.T) {
	old, moved := sources.DigestOf([]byte("old")), sources.DigestOf([]byte("new"))
	always := "v1, packagePullPolicy: Always}"
	for _, tt := range []struct {
		name, prod string
		typo       bool
		want       sources.Digest
	}{
		{"manual activation", "v1, packagePullPolicy: Always, revisionActivationPolicy: Manual}", true, old},
		{"named digest", "v1@" + string(old) + ", packagePullPolicy: Always}", true, old},
		{"all can be read", always, false, moved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := shelf(new(int))
			cfg.Digest = func(context.Context, sources.Origin, string) (sources.Digest, error) { return moved, nil }
			registry := cluster("dev") + cluster("prod")
			f := files{
				"clusters.yaml": registry,
				"c/dev/a.yaml":  strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", always, 1),
				"c/prod/a.yaml": strings.Replace(configuration("a", "reg.io/a:v1"), "v1}", tt.prod, 1),
				"clusters.lock": "@dev reg.io/a v1\n@prod reg.io/a v1\nreg.io/a v1 " + string(old) + "\nreg.io/a v1/package.yaml " + string(old) + "\n",
			}
			if tt.typo {
				f["clusters.yaml"] = cluster("dev") + strings.Replace(cluster("prod"), "path", "paht", 1)
			}
			s, err := New(Config{Resolve: cfg}).Compute(t.Context(), f.commit(), Earlier{})
			if err != nil {
				t.Fatal(err)
			}
			if now, _ := s.Lock.Digest("reg.io/a", "v1"); now != tt.want || len(s.Lock.Selections("prod")) != 1 {
				t.Errorf("the lock became\n%s", s.Lock.Format())
			}
			dev := s.Get("dev")
			if len(dev.Packages) != 1 || dev.Packages[0].Pin.Digest != tt.want {
				t.Errorf("dev has %v", dev.Packages)
			}
			if told := len(dev.Waiting) == 1 && strings.HasSuffix(dev.Waiting[0], "the former one stays while the declaration of it in cluster prod cannot be read"); told != tt.typo {
				t.Errorf("dev waits: %q", dev.Waiting)
			}
		})
	}
}

// The controllers of Providers that cannot be resolved or verified go on running, and keep the
// rights of their family.
func TestFamilyKeepsRights(t *testing.T) {
	const config = `---
apiVersion: pkg.crossplane.io/v1beta1
kind: DeploymentRuntimeConfig
metadata: {name: unsigned}
spec: {deploymentTemplate: {spec: {selector: {}, template: {spec: {containers: [{name: package-runtime, image: "reg.io/own/ec2@DIGEST"}]}}}}}
---
apiVersion: pkg.crossplane.io/v1beta1
kind: ImageConfig
metadata: {name: signed}
spec:
  matchImages: [{prefix: reg.io/own}]
  verification: {provider: Cosign, cosign: {authorities: [{name: a, key: {secretRef: {name: k, key: k}}}]}}
`
	provider := func(name, spec string) string {
		return strings.Replace(configuration(name, "reg.io/acme/"+name+":"+spec), "kind: Configuration", "kind: Provider", 1)
	}
	f := files{"clusters.yaml": cluster("dev"), "c/dev/ec2.yaml": provider("ec2", "v1"), "c/dev/base.yaml": provider("base", "v1")}
	cfg := shelf(new(int))
	cfg.Fetch = func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		plural := strings.TrimPrefix(from.Repository, "reg.io/acme/") + "s"
		crd := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + plural + ".example.org}\nspec: {group: example.org, scope: Cluster, names: {plural: " + plural + ", kind: X" + plural +
			"}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n"
		docs, err := sources.DecodeYAML(strings.NewReader(crd), sources.Limits{})
		p := &sources.Package{Repository: from.Repository, Digest: d, Content: d, Runnable: true, Meta: sources.PackageMeta{Kind: sources.Provider, Name: "x"}, Documents: docs}
		p.Meta.Document.Tree = map[string]any{"metadata": map[string]any{"labels": map[string]any{"pkg.crossplane.io/provider-family": "f"}}}
		return p, err
	}
	for _, tt := range []struct {
		name, ec2, fault string
	}{
		{"resolved", provider("ec2", "v1"), ""},
		{"a tag that does not exist", provider("ec2", "missing"), "not found"},
		{"a controller's image without a signature", strings.Replace(provider("ec2", "v1"), "v1}", "v1, runtimeConfigRef: {name: unsigned}}", 1) + strings.ReplaceAll(config, "DIGEST", string(sources.DigestOf(nil))), "asks for a signature"},
	} {
		f["c/dev/ec2.yaml"] = tt.ec2
		s, err := New(Config{Resolve: cfg}).Compute(t.Context(), f.commit(), Earlier{})
		if err != nil {
			t.Fatal(err)
		}
		f["clusters.lock"] = string(s.Lock.Format())
		dev := s.Get("dev")
		if fault := fmt.Sprint(s.Err()); (len(dev.Faults) > 0) != (tt.fault != "") || !strings.Contains(fault, tt.fault) {
			t.Errorf("%s: %v", tt.name, dev.Faults)
		}
		binding := dev.Objects.Get(manifest.ClusterRoleBinding.ID("", "gitopsd:provider:base"))
		if binding == nil || len(manifest.List(binding.Tree(), "subjects")) != 2 {
			t.Errorf("%s: %v (%v)", tt.name, binding, dev.Faults)
		}
	}
}
