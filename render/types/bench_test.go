package types

import (
	"os"
	"path/filepath"
	"testing"

	"gitopsd.dev/testscripts/upstream"
	"sigs.k8s.io/yaml"
)

// BenchmarkParse parses 927 definitions, to compare with BenchmarkPackage.
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
		for _, text := range texts {
			var tree map[string]any
			if err := yaml.Unmarshal(text, &tree); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkPackage computes the digests of the same 927 definitions, parsed.
func BenchmarkPackage(b *testing.B) {
	docs := release{upstream.ProviderAWS, upstream.ProviderAWSVersion}.crds(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Package(docs); err != nil {
			b.Fatal(err)
		}
	}
}
