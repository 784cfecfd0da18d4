package upgrade

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
)

// provider returns a version of a package with one type, with or without a controller.
func provider(t *testing.T, version string, runnable bool) *sources.Package {
	t.Helper()
	docs := manifesttest.Documents(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.acme.example}, spec: {
	 group: acme.example, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}`)
	return &sources.Package{Repository: "reg.io/acme/widgets", Digest: sources.DigestOf([]byte(version)), Documents: docs, Runnable: runnable,
		Meta: sources.PackageMeta{Kind: sources.Provider, Name: "widgets"}}
}

// A controller that a version has and the other has not is compared with none.
func TestControllerComesAndGoes(t *testing.T) {
	t.Parallel()
	image := func(version string) string { return "sha256:" + sources.DigestOf([]byte(version)).Short() }
	for _, tt := range []struct {
		name        string
		before, now bool     // whether the version has a controller
		want        string   // what is said of its image
		marks       []string // how the rest may be marked
	}{
		{"gained", false, true, "image package-runtime added: " + image("v2"), []string{"added"}},
		{"lost", true, false, "image package-runtime removed: " + image("v1"), []string{"removed"}},
		{"changed", true, true, "image package-runtime: " + image("v1") + " -> " + image("v2"), nil},
		{"never had one", false, false, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old, now := provider(t, "v1", tt.before), provider(t, "v2", tt.now)
			p := &Versions{Repository: old.Repository, Current: "v1", Clusters: []string{"a"}, pkg: old, selected: sources.Selected{
				Declaration: sources.Declaration{Kind: sources.Provider, Name: "widgets", Ref: sources.Ref{Repository: old.Repository, Tag: "v1"}},
				Pin:         sources.Pin{Ref: sources.Ref{Repository: old.Repository, Tag: "v1"}, Digest: old.Digest}, Package: old,
			}}
			if tt.before {
				p.selected.Runtime = old.Repository + "@" + string(old.Digest)
			}
			all, err := new(Upgrader).controller(t.Context(), nil, p, &Candidate{Version: "v2", Digest: now.Digest}, now)
			if err != nil {
				t.Fatal(err)
			}
			var images, marks []string
			for _, d := range all {
				switch {
				case d.What == "image":
					images = append(images, d.String())
				case d.Added && !slices.Contains(marks, "added"):
					marks = append(marks, "added")
				case d.Removed && !slices.Contains(marks, "removed"):
					marks = append(marks, "removed")
				case !d.Added && !d.Removed:
					marks = append(marks, d.String())
				}
			}
			if strings.Join(images, "\n") != tt.want || !slices.Equal(marks, tt.marks) {
				t.Errorf("images %q, want %q; other parts %q, want %q", images, tt.want, marks, tt.marks)
			}
		})
	}
}
