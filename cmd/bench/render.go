package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// renderCRDs is the number of definitions to render, and fleetClusters the number of
// clusters that get them.
const (
	renderCRDs    = 900
	fleetClusters = 100
)

// render compares rendering a package for a cluster from its YAML (expand, label, annotate,
// patch one object) with only parsing it by sigs.k8s.io/yaml and with the same build by
// kustomize. It also compares the memory of a fleet's desired state with that of one cluster.
func (b *bench) render(ctx context.Context, f *fixture) error {
	crds, err := f.crds(ctx, renderCRDs)
	if err != nil {
		return err
	}
	first, err := firstName(crds)
	if err != nil {
		return err
	}
	rival := filepath.Join(f.dir, "rival")
	ours := filepath.Join(f.dir, "ours")
	for name, text := range map[string]string{
		filepath.Join(rival, "kustomization.yaml"): fmt.Sprintf(`resources: [crds.yaml]
labels: [{pairs: {gitopsd.dev/package: aws, team: platform}}]
commonAnnotations: {note: bench}
patches:
- target: {kind: CustomResourceDefinition, name: %s}
  patch: '%s'
`, first, benchPatch),
		filepath.Join(ours, "fleet", "clusters.yaml"): clustersYAML(fleetClusters),
		filepath.Join(ours, "one", "clusters.yaml"):   clustersYAML(1),
		filepath.Join(ours, "fleet", "c", "all.yaml"): benchProvider,
		filepath.Join(ours, "one", "c", "all.yaml"):   benchProvider,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			return err
		}
	}
	if err := os.Rename(crds, filepath.Join(rival, "crds.yaml")); err != nil {
		return err
	}
	crds = filepath.Join(rival, "crds.yaml")
	return b.eachRound(ctx, "render", [][]string{
		{"render", filepath.Join(ours, "one"), crds, first}, {"parse-rival", crds}, {"krusty", rival},
		{"desired-heap", filepath.Join(ours, "fleet"), crds}, {"desired-heap", filepath.Join(ours, "one"), crds},
	}, func(u []usage) error {
		b.add("render-cpu", u[0].cpu, u[1].cpu)
		b.add("render-krusty-cpu", u[0].cpu, u[2].cpu)
		b.add("render-rss", u[0].rss, u[2].rss)
		b.add("fleet-heap", u[3].result, u[4].result)
		return nil
	})
}

const benchPatch = `[{"op": "add", "path": "/spec/names/shortNames", "value": ["bench"]}]`

// benchProvider declares the package that every cluster gets.
const benchProvider = `apiVersion: pkg.crossplane.io/v1
kind: Provider
metadata: {name: aws}
spec:
  package: example.org/upbound/provider-aws:v1.0.0
  commonLabels: {team: platform}
  commonAnnotations: {note: bench}
`

// clustersYAML registers n clusters with the same content.
func clustersYAML(n int) string {
	text := ""
	for i := range n {
		text += fmt.Sprintf("---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c%d}\nspec: {path: c, kubeconfig: {file: c.yaml}}\n", i)
	}
	return text
}

func firstName(crds string) (string, error) {
	docs, err := decode(crds)
	if err != nil {
		return "", err
	}
	meta, _ := docs[0].Tree["metadata"].(map[string]any)
	name, _ := meta["name"].(string)
	if name == "" || len(docs) != renderCRDs {
		return "", fmt.Errorf("%s: %d documents, and the first is called %q", crds, len(docs), name)
	}
	return name, nil
}

// benchPackage returns the package with the definitions in a file.
func benchPackage(crds, repository string, d sources.Digest) (*sources.Package, error) {
	docs, err := decode(crds)
	if err != nil {
		return nil, err
	}
	return &sources.Package{Repository: repository, Digest: d, Content: d, Documents: docs,
		Meta: sources.PackageMeta{Kind: sources.Provider, Name: "aws"}}, nil
}

// renderOne renders the package for one cluster: args are a fleet's directory, the file of
// definitions and the name of the definition to patch.
func renderOne(args []string) (float64, error) {
	ctx := context.Background()
	in := render.Input{Cluster: "c0", Files: os.DirFS(args[0]), Path: "c", Patches: []kustomize.Patch{{
		Patch: benchPatch, Target: &kustomize.Selector{Kind: "CustomResourceDefinition", Name: args[2]},
	}}}
	var r render.Renderer
	w, err := r.Want(ctx, in)
	if err != nil {
		return 0, err
	}
	declaration := w.Packages[0]
	digest := sources.DigestOf([]byte("bench"))
	pkg, err := benchPackage(args[1], declaration.Ref.Repository, digest)
	if err != nil {
		return 0, err
	}
	rendered, err := r.Expand(ctx, in, w, []sources.Selected{{
		Declaration: declaration, Package: pkg, Pin: sources.Pin{Ref: declaration.Ref, Digest: digest},
		Runtime: declaration.Ref.Repository + "@" + string(digest),
	}})
	if err != nil {
		return 0, err
	}
	if rendered.Objects.Len() < renderCRDs {
		return 0, errors.New("objects are missing")
	}
	return float64(rendered.Objects.Len()), nil
}

// runKrusty builds a directory with kustomize.
func runKrusty(args []string) (float64, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), args[0])
	if err != nil {
		return 0, err
	}
	return float64(built.Size()), nil
}

// desiredHeap returns the memory, in MB, of a fleet's desired state: args are its directory
// and the file of definitions.
func desiredHeap(args []string) (float64, error) {
	digest := sources.DigestOf([]byte("bench"))
	c := desired.New(desired.Config{Resolve: resolve.Config{
		Digest: func(context.Context, sources.Origin, string) (sources.Digest, error) { return digest, nil },
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			return benchPackage(args[1], from.Repository, d)
		},
		Types: func(*sources.Package) (string, error) {
			return "h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=", nil
		},
	}})
	state, err := c.Compute(context.Background(), sources.Commit{Files: os.DirFS(args[0])}, desired.Earlier{})
	if err != nil {
		return 0, err
	}
	if err := state.Err(); err != nil {
		return 0, err
	}
	heap := heapMB()
	runtime.KeepAlive(state)
	runtime.KeepAlive(c)
	return heap, nil
}

// heapMB returns the size of the live heap, in MB.
func heapMB() float64 {
	for range 3 { // finalizers and pools free memory late
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
