package upstream

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources/xpkg"
)

// TestWrite makes a package of every pinned release.
func TestWrite(t *testing.T) {
	t.Parallel()
	for name, p := range projects {
		for version := range p.releases {
			t.Run(name+"@"+version, func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "package")
				if err := Write(t.Context(), name, version, dir, io.Discard); err != nil {
					t.Fatal(err)
				}
				// copy refuses a release with other files, and Build refuses
				// anything that is not a package. The largest is built by
				// benchmarks.
				if name == ProviderAWS {
					return
				}
				if _, err := xpkg.Build(os.DirFS(dir), nil); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	if err := Write(t.Context(), "nobody", "v1", t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), `project "nobody"`) {
		t.Errorf("unknown project: %v", err)
	}
	if err := Write(t.Context(), ClusterAPI, "v0.0.1", t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "cluster-api v0.0.1") {
		t.Errorf("unknown release: %v", err)
	}
	var said strings.Builder
	if _, err := download(t.Context(), "sigs.k8s.io/cluster-api@"+ClusterAPIOld, "h1:other", &said); err == nil || !strings.Contains(err.Error(), "h1:other is pinned") {
		t.Errorf("another checksum: %v", err)
	}
	other := Module{"sigs.k8s.io/cluster-api", ClusterAPIOld, "h1:other"}
	if err := other.Copy(t.Context(), t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "h1:other is pinned") {
		t.Errorf("a module with another checksum: %v", err)
	}
	module := fstest.MapFS{"crds/a.yaml": {Data: []byte("a: 1\n")}}
	if err := (files{"crds/*.yaml", 2, "crds"}).copy(module, t.TempDir()); err == nil || !strings.Contains(err.Error(), "2 were expected") {
		t.Errorf("a missing file: %v", err)
	}
}
