package edit

import (
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/render"
	"gitopsd.dev/sources"
)

const old = "reg.io/acme/db:v1.0.0"

func provider(name, ref string) string {
	return "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata:\n  name: " + name + "\nspec:\n  package: " + ref + "\n"
}

// Each case is a repository, the cluster's directory, the place of its reference, and the
// file after the change.
func TestFindAndApply(t *testing.T) {
	for _, tt := range []struct {
		name   string
		files  map[string]string
		ref    string
		place  string
		before string // defaults to old
		after  string // the changed file
	}{
		{name: "a comment, quotes and an order of one's own", place: "c/db.yaml:8",
			files: map[string]string{"c/db.yaml": "# was reg.io/acme/db:v1.0.0 for long\n---\nspec: # here\n  # renovate: yes, reg.io/acme/db:v1.0.0\n\n  # |\n\n  package:   \"reg.io/acme/db:v1.0.0\"   # keep\nmetadata: {name: 'db'}\nkind: Provider\napiVersion: pkg.crossplane.io/v1\n"},
			after: "# was reg.io/acme/db:v1.0.0 for long\n---\nspec: # here\n  # renovate: yes, reg.io/acme/db:v1.0.0\n\n  # |\n\n  package:   \"reg.io/acme/db:v2.0.0\"   # keep\nmetadata: {name: 'db'}\nkind: Provider\napiVersion: pkg.crossplane.io/v1\n"},
		{name: "line endings of another system", place: "c/db.yaml:6",
			files: map[string]string{"c/db.yaml": strings.ReplaceAll(provider("db", old), "\n", "\r\n")},
			after: strings.ReplaceAll(provider("db", "reg.io/acme/db:v2.0.0"), "\n", "\r\n")},
		{name: "flow style, no line break at the end", place: "c/db.yaml:1",
			files: map[string]string{"c/db.yaml": "{apiVersion: pkg.crossplane.io/v1, kind: Provider, metadata: {name: db}, spec: {package: 'reg.io/acme/db:v1.0.0'}}"},
			after: "{apiVersion: pkg.crossplane.io/v1, kind: Provider, metadata: {name: db}, spec: {package: 'reg.io/acme/db:v2.0.0'}}"},
		{name: "the second document", place: "c/all.yaml:13",
			files: map[string]string{"c/all.yaml": provider("other", "reg.io/acme/db:v1.0.0-rc.1") + "---\n" + provider("db", old)},
			after: provider("other", "reg.io/acme/db:v1.0.0-rc.1") + "---\n" + provider("db", "reg.io/acme/db:v2.0.0")},
		{name: "a base", place: "base/db.yaml:6",
			files: map[string]string{"c/kustomization.yaml": "resources: [../base]\nnamePrefix: my-\n", "base/kustomization.yaml": "resources: [db.yaml]\n", "base/db.yaml": provider("db", old)},
			after: provider("db", "reg.io/acme/db:v2.0.0")},
		{name: "a patch of its own over the same version in the base", place: "c/kustomization.yaml:7",
			files: map[string]string{"c/kustomization.yaml": "resources: [../base]\npatches:\n- target: {kind: Provider}\n  patch: |\n    - op: replace\n      path: /spec/package\n      value: reg.io/acme/db:v1.0.0\n", "base/kustomization.yaml": "resources: [db.yaml]\n", "base/db.yaml": provider("db", old)},
			after: "resources: [../base]\npatches:\n- target: {kind: Provider}\n  patch: |\n    - op: replace\n      path: /spec/package\n      value: reg.io/acme/db:v2.0.0\n"},
		{name: "a patch in a file", place: "c/pin.yaml:6",
			files: map[string]string{"c/kustomization.yaml": "resources: [../base]\npatches:\n- path: pin.yaml\n", "c/pin.yaml": provider("db", old), "base/kustomization.yaml": "resources: [db.yaml]\n", "base/db.yaml": provider("db", "reg.io/acme/db:v0.1.0")},
			after: provider("db", "reg.io/acme/db:v2.0.0")},
		{name: "a component", place: "component/kustomization.yaml:9",
			files: map[string]string{"c/kustomization.yaml": "resources: [../base]\ncomponents: [../component]\n", "component/kustomization.yaml": "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n- patch: |\n    apiVersion: pkg.crossplane.io/v1\n    kind: Provider\n    metadata: {name: db}\n    spec:\n      package: reg.io/acme/db:v1.0.0\n", "base/kustomization.yaml": "resources: [db.yaml]\n", "base/db.yaml": provider("db", "reg.io/acme/db:v0.1.0")},
			after: "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\npatches:\n- patch: |\n    apiVersion: pkg.crossplane.io/v1\n    kind: Provider\n    metadata: {name: db}\n    spec:\n      package: reg.io/acme/db:v2.0.0\n"},
		{name: "an anchor", place: "c/db.yaml:5",
			files: map[string]string{"c/db.yaml": "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata:\n  annotations:\n    was: &ref reg.io/acme/db:v1.0.0\n  name: db\nspec:\n  package: *ref\n"},
			after: "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata:\n  annotations:\n    was: &ref reg.io/acme/db:v2.0.0\n  name: db\nspec:\n  package: *ref\n"},
		{name: "a list of objects", place: "c/db.yaml:7",
			files: map[string]string{"c/db.yaml": "apiVersion: v1\nkind: List\nitems:\n- apiVersion: pkg.crossplane.io/v1\n  kind: Provider\n  metadata: {name: db}\n  spec: {package: reg.io/acme/db:v1.0.0}\n"},
			after: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: pkg.crossplane.io/v1\n  kind: Provider\n  metadata: {name: db}\n  spec: {package: reg.io/acme/db:v2.0.0}\n"},
		{name: "a digest beside the tag", place: "c/db.yaml:6", before: old + "@sha256:" + strings.Repeat("a", 64),
			files: map[string]string{"c/db.yaml": provider("db", old+"@sha256:"+strings.Repeat("a", 64))}, after: provider("db", "reg.io/acme/db:v2.0.0")},
		{name: "no registry", place: "c/db.yaml:6", before: "acme/db:v1.0.0",
			files: map[string]string{"c/db.yaml": provider("db", "acme/db:v1.0.0")}, after: provider("db", "acme/db:v2.0.0")},
		{name: "a port", place: "c/db.yaml:6", before: "localhost:5000/db@sha256:" + strings.Repeat("a", 64),
			files: map[string]string{"c/db.yaml": provider("db", "localhost:5000/db@sha256:"+strings.Repeat("a", 64))}, after: provider("db", "localhost:5000/db:v2.0.0")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tree(tt.files)
			written := tt.before
			if written == "" {
				written = old
			}
			s, err := Find(t.Context(), []render.Input{{Cluster: "dev", Files: files, Path: "c"}}, []string{written, written})
			if err != nil || len(s.Unknown) > 0 {
				t.Fatal(s, err)
			}
			var place Place
			for d, p := range s.Places {
				if strings.HasSuffix(d.Name, "db") {
					place = p
				}
			}
			if place.String() != tt.place || place.Text != written {
				t.Fatalf("found at %s, want %s (of %v)", place, tt.place, s.Places)
			}
			changed, err := Apply(files, map[Place]string{place: Version(written, sources.Ref{Tag: "v2.0.0"})})
			if err != nil || len(changed) != 1 {
				t.Fatal(changed, err)
			}
			if have := string(changed[place.File]); have != tt.after {
				t.Errorf("have\n%s\nwant\n%s", have, tt.after)
			}
			var renderer render.Renderer
			w, err := renderer.Want(t.Context(), render.Input{Cluster: "dev", Files: Overlay(files, changed), Path: "c"})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, d := range w.Packages {
				if strings.HasSuffix(d.Name, "db") {
					got = d.Ref.Tag
				}
			}
			if got != "v2.0.0" {
				t.Errorf("after the change the cluster gets %q", got)
			}
		})
	}
}

// One file may be used by several clusters, also by one that cannot be rendered.
func TestFindShared(t *testing.T) {
	files := tree(map[string]string{
		"base/kustomization.yaml":  "resources: [db.yaml]\n",
		"base/db.yaml":             provider("db", old),
		"dev/kustomization.yaml":   "resources: [../base]\n",
		"prod/kustomization.yaml":  "resources: [../base]\nnamePrefix: prod-\n",
		"own/db.yaml":              provider("db", old),
		"odd/kustomization.yaml":   "resources: [../base]\npatches: [{path: none.yaml}]\n",
		"parts/kustomization.yaml": "resources: [db.yaml]\nreplacements:\n- source: {kind: ConfigMap, name: versions, fieldPath: data.db}\n  targets: [{select: {kind: Provider}, fieldPaths: [spec.package], options: {delimiter: ':', index: 1}}]\n",
		"parts/db.yaml":            provider("db", "reg.io/acme/db:v0") + "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: versions}\ndata: {db: v1.0.0}\n",
	})
	var clusters []render.Input
	for _, name := range []string{"dev", "prod", "own", "odd", "parts"} {
		clusters = append(clusters, render.Input{Cluster: name, Files: files, Path: name})
	}
	s, err := Find(t.Context(), clusters, []string{old})
	if err != nil {
		t.Fatal(err)
	}
	shared := Place{File: "base/db.yaml", Line: 6, Offset: strings.Index(provider("db", old), old), Text: old}
	own := shared
	own.File = "own/db.yaml"
	want := map[Declared]Place{
		{"dev", sources.Provider, "db"}:       shared,
		{"prod", sources.Provider, "prod-db"}: shared,
		{"own", sources.Provider, "db"}:       own,
	}
	if !maps.Equal(s.Places, want) {
		t.Errorf("have %v, want %v", s.Places, want)
	}
	if len(s.Unknown) != 1 || s.Unknown[0] != "odd" || !strings.Contains(strings.Join(s.Read["odd"], " "), "base/db.yaml") {
		t.Errorf("unknown %v, which read %v", s.Unknown, s.Read)
	}
}

func TestApplyToAnotherContent(t *testing.T) {
	files := tree(map[string]string{"db.yaml": "something else entirely"})
	for _, p := range []Place{{File: "db.yaml", Line: 1, Text: old}, {File: "db.yaml", Line: 9, Offset: 1000, Text: old}} {
		if _, err := Apply(files, map[Place]string{p: "x"}); err == nil || !strings.Contains(err.Error(), "changed meanwhile") {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func tree(texts map[string]string) fs.FS {
	files := make(fstest.MapFS)
	for name, text := range texts {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

// In any file, only the reference changes, and changing it back restores the file.
func FuzzApply(f *testing.F) {
	f.Add("package: reg.io/acme/db:v1.0.0\r\n# reg.io/acme/db:v1.0.0-rc.1 reg.io/acme/db:v1.0.0")
	f.Add("xreg.io/acme/db:v1.0.0\x00reg.io/acme/db:v1.0.0reg.io/acme/db:v1.0.0")
	f.Fuzz(func(t *testing.T, content string) {
		files := tree(map[string]string{"f": content})
		there, back := make(map[Place]string), make(map[Place]string)
		shift := 0
		for _, p := range (&marks{references: []string{old}}).find("f", []byte(content)) {
			to := old + "-longer"
			there[p] = to
			back[Place{File: "f", Line: p.Line, Offset: p.Offset + shift, Text: to}] = old
			shift += len(to) - len(old)
		}
		if len(there) == 0 {
			return
		}
		changed, err := Apply(files, there)
		if err != nil || len(changed["f"]) != len(content)+shift {
			t.Fatal(changed, err)
		}
		restored, err := Apply(tree(map[string]string{"f": string(changed["f"])}), back)
		if err != nil || string(restored["f"]) != content {
			t.Errorf("%q became %q and %q again, %v", content, changed["f"], restored["f"], err)
		}
	})
}
