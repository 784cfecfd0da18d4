package kustomize

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

// A large build that waits for another one ends with its context. Small builds do not wait.
// Builds that are too large are refused before all of them is decoded.
func TestLargeBuilds(t *testing.T) {
	var many strings.Builder
	for d := range 3 {
		fmt.Fprintf(&many, "--- {apiVersion: v1, kind: ConfigMap, metadata: {name: c%d}, x: [%s]}\n", d, strings.Repeat("{a: 1},", 200_000))
	}
	files := fstest.MapFS{
		"large/all.yaml": {Data: []byte(many.String())},
		"small/all.yaml": {Data: []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: b}}")},
	}
	var b Builder
	if err := large.Acquire(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Build(ended, files, "large", remote.Bases{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a large build beside another one: %v", err)
	}
	if objects, _, err := b.Build(t.Context(), files, "small", remote.Bases{}); err != nil || len(objects) != 1 {
		t.Errorf("a small build beside it: %d objects, %v", len(objects), err)
	}
	large.Release(1)
	for range 2 {
		_, _, err := b.Build(t.Context(), files, "large", remote.Bases{})
		if !errors.Is(err, sources.ErrLimit) || !strings.Contains(err.Error(), "all.yaml:3: more than ") {
			t.Errorf("a build that is too large: %v", err)
		}
	}
}
