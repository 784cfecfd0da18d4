package compat

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"gitopsd.dev/testscripts/upstream"
	"k8s.io/apimachinery/pkg/runtime"
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
		new[name] = bumped(b, d)
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

// bumped is a definition after a change of each kind: a field more, a field
// less, and every rule another.
func bumped(b *testing.B, d map[string]any) map[string]any {
	b.Helper()
	text, err := json.Marshal(d)
	if err != nil {
		b.Fatal(err)
	}
	text = bytes.ReplaceAll(text, []byte(`"rule":"`), []byte(`"rule":"true && `))
	var out map[string]any
	if err := json.Unmarshal(text, &out); err != nil {
		b.Fatal(err)
	}
	for _, v := range mapping(out, "spec")["versions"].([]any) {
		fields := mapping(mapping(mapping(v.(map[string]any), "schema"), "openAPIV3Schema"), "properties")
		fields["another"] = map[string]any{"type": "string"}
		if spec := mapping(mapping(fields, "spec"), "properties"); spec != nil {
			spec["another"] = runtime.DeepCopyJSON(mapping(spec, "forProvider"))
			delete(spec, "publishConnectionDetailsTo")
			delete(spec, "credentials")
			continue
		}
		delete(fields, "providerConfigRef")
	}
	return out
}
