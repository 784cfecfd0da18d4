package compat

import (
	"os"
	"path/filepath"
	"testing"

	"gitopsd.dev/testscripts/upstream"
	"sigs.k8s.io/yaml"
)

// BenchmarkParse is what BenchmarkCompare is to be held against: a bare parse of
// both releases' YAML.
func BenchmarkParse(b *testing.B) {
	dir := b.TempDir()
	if err := upstream.Write(b.Context(), upstream.ProviderAWS, upstream.ProviderAWSVersion, dir, os.Stderr); err != nil {
		b.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "crds", "*.yaml"))
	if err != nil {
		b.Fatal(err)
	}
	var texts [][]byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		texts = append(texts, text)
	}
	b.ReportAllocs()
	for b.Loop() {
		for range 2 {
			for _, text := range texts {
				var tree map[string]any
				if err := yaml.Unmarshal(text, &tree); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
}

// BenchmarkCompare compares 927 definitions with a release in which every one
// has changed, its rules included, which have to be compiled: the worst bump
// there is.
func BenchmarkCompare(b *testing.B) {
	old := pinned(b, upstream.ProviderAWS, upstream.ProviderAWSVersion)
	if len(old) != 927 {
		b.Fatalf("%d definitions", len(old))
	}
	new := map[string]map[string]any{}
	for name, d := range old {
		bumped, err := upstream.Bumped(d)
		if err != nil {
			b.Fatal(err)
		}
		new[name] = bumped
	}
	b.ReportAllocs()
	for b.Loop() {
		for name, r := range compareAll(b, old, new, Options{}) {
			if len(r.Findings) == 0 {
				b.Fatalf("nothing was found in %s", name)
			}
		}
	}
}
