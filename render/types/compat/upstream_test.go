package compat

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/upstream"
)

// definitions returns the definitions in a directory, by name.
func definitions(t testing.TB, dir string) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		r, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		docs, err := sources.DecodeYAML(r, sources.Limits{})
		r.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			all[manifest.Text(d.Tree, "metadata", "name")] = d.Tree
		}
	}
	return all
}

// pinned returns the definitions of a project at a release that package upstream pins.
func pinned(t testing.TB, project, version string) map[string]map[string]any {
	t.Helper()
	dir := t.TempDir()
	if err := upstream.Write(t.Context(), project, version, dir, os.Stderr); err != nil {
		t.Fatal(err)
	}
	return definitions(t, filepath.Join(dir, "crds"))
}

// compareAll compares two releases, and returns the findings by definition.
func compareAll(t testing.TB, old, new map[string]map[string]any, opts Options) map[string]Report {
	t.Helper()
	all := map[string]Report{}
	for _, name := range names(anyValues(old), anyValues(new)) {
		r, err := Compare(t.Context(), old[name], new[name], opts)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = r
	}
	return all
}

func anyValues(m map[string]map[string]any) map[string]any {
	all := map[string]any{}
	for k, v := range m {
		all[k] = v
	}
	return all
}

func briefs(r Report) []string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, brief(f))
	}
	return all
}

// This release of Cluster API adds limits and a kind, and changes descriptions.
func TestClusterAPI(t *testing.T) {
	all := compareAll(t, pinned(t, upstream.ClusterAPI, upstream.ClusterAPIOld), pinned(t, upstream.ClusterAPI, upstream.ClusterAPINew), Options{})
	for name, want := range map[string]string{
		"machinedrainrules.cluster.x-k8s.io": "compatible definition-added",
		"machines.cluster.x-k8s.io":          "breaking enum-added v1beta1 .status.phase",
		"clusterclasses.cluster.x-k8s.io":    "compatible required-removed v1beta1 .spec.variables[*].schema.openAPIV3Schema.type",
		"ipaddresses.ipam.cluster.x-k8s.io":  "breaking max-length-added v1beta1 .spec.gateway",
		"clusters.cluster.x-k8s.io":          "compatible field-added v1beta1 .status.v1beta2",
	} {
		if have := briefs(all[name]); !slices.Contains(have, want) {
			t.Errorf("%s: no %q among %q", name, want, have)
		}
	}
	kinds := map[string]bool{}
	for _, r := range all {
		for _, f := range r.Findings {
			kinds[f.Name] = true
		}
	}
	want := []string{"definition-added", "enum-added", "field-added", "max-items-added", "max-length-added", "min-length-added", "required-removed"}
	if have := slices.Sorted(maps.Keys(kinds)); !slices.Equal(have, want) {
		t.Errorf("findings %q, want %q: read the release notes before this is changed", have, want)
	}
}

// cert-manager v1.7 removes three versions of each of its six kinds, and the
// webhook that converts them. That broke clusters with objects stored in one of them,
// which the live status.storedVersions shows.
func TestCertManager(t *testing.T) {
	old, new := certManager(t, "v1.6.3", "h1:t5Ldacaed2qmDEXsuzkfsa1uE5rpzdDM1vMzheUbbHI="), certManager(t, "v1.7.3", "h1:GMbRmyEqKf/ve0TQIXIOjbokdm805rj3uWRlifJnd6U=")
	removed := func(severity string) []string {
		return []string{severity + " conversion-removed", severity + " version-removed v1alpha2", severity + " version-removed v1alpha3", severity + " version-removed v1beta1"}
	}
	if len(old) != 6 {
		t.Fatalf("%d definitions, want six", len(old))
	}
	for _, tt := range []struct {
		name   string
		stored []string
		want   []string
	}{
		{"nobody knows", nil, removed("breaking")},
		{"migrated", []string{"v1"}, removed("compatible")},
		{"not migrated", []string{"v1alpha2", "v1"}, append([]string{"breaking stored-version-removed v1alpha2", "breaking conversion-removed"}, removed("compatible")[1:]...)},
	} {
		for name, r := range compareAll(t, old, new, Options{StoredVersions: tt.stored}) {
			have := briefs(r)
			// One field was added, too.
			have = slices.DeleteFunc(have, func(s string) bool { return strings.HasPrefix(s, "compatible field-added") })
			slices.Sort(have)
			slices.Sort(tt.want)
			if !slices.Equal(have, tt.want) {
				t.Errorf("%s: %s: have %q\nwant %q", tt.name, name, have, tt.want)
			}
		}
	}
}

// certManager returns the definitions of an old release with another module path. It comes
// from the module proxy and is checked like the releases of package upstream.
func certManager(t *testing.T, version, sum string) map[string]map[string]any {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/jetstack/cert-manager@"+version)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := cmd.Output()
	var module struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &module); jsonErr != nil || err != nil || module.Sum != sum {
		t.Fatalf("cert-manager %s: checksum %s, want %s: %v %s", version, module.Sum, sum, err, module.Error)
	}
	return definitions(t, filepath.Join(module.Dir, "deploy", "crds"))
}
