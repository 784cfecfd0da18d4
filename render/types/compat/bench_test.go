package compat

import (
	"testing"

	"gitopsd.dev/testscripts/upstream"
)

// BenchmarkCompare compares 927 definitions with a release in which each has changed,
// including its rules, which must be compiled: the slowest possible upgrade. Compare it
// with twice BenchmarkParse in render/types.
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
