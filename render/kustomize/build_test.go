package kustomize

import (
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
	"sigs.k8s.io/yaml"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
)

// repository unpacks an archive, and returns the directories after "build:" in its
// comment.
func repository(t *testing.T, archive *txtar.Archive) (root string, dirs []string) {
	t.Helper()
	root = t.TempDir()
	for _, f := range archive.Files {
		name := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(string(archive.Comment)) {
		if rest, ok := strings.CutPrefix(line, "build:"); ok {
			dirs = strings.Fields(rest)
		}
	}
	return root, dirs
}

// krustyBuild returns the output of `kustomize build --load-restrictor
// LoadRestrictionsNone` in a separate process.
func krustyBuild(t *testing.T, dir string) string {
	t.Helper()
	schema.Lock()
	defer schema.Unlock()
	openapi.ResetOpenAPI()
	defer openapi.ResetOpenAPI()
	return krustyRun(t, dir)
}

func krustyRun(t *testing.T, dir string) string {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionUnspecified
	options.LoadRestrictions = types.LoadRestrictionsNone
	rm, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("kustomize itself fails: %v", err)
	}
	out, err := rm.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func stream(t *testing.T, objects []*manifest.Object) string {
	t.Helper()
	var b bytes.Buffer
	for i, o := range objects {
		if i > 0 {
			b.WriteString("---\n")
		}
		doc, err := o.YAML()
		if err != nil {
			t.Fatal(err)
		}
		b.Write(doc)
	}
	return b.String()
}

// Each archive shows features of kustomize, built by Build and by kustomize.
func TestBuildIsKustomizeBuild(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/build/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("%d archives, %v", len(archives), err)
	}
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			root, dirs := repository(t, archive)
			for _, dir := range dirs {
				objects, _, err := new(Builder).Build(t.Context(), os.DirFS(root), dir, remote.Bases{})
				if err != nil {
					t.Fatalf("%s: %v", dir, err)
				}
				want := krustyBuild(t, filepath.Join(root, dir))
				if have := stream(t, objects); have != want {
					t.Errorf("%s: have\n%s\nwant\n%s", dir, have, want)
				}
			}
		})
	}
}

// Kustomize ends an env file before a line that is too long, which is refused here: nothing of
// what is taken is lost.
func TestLongestLine(t *testing.T) {
	t.Parallel()
	for end, most := range map[string]int{"": 1<<16 - 1, "\n": 1<<16 - 1, "\nC=last\n": 1<<16 - 1, "\r\nC=last\n": 1<<16 - 2} {
		for _, n := range []int{most, most + 1} {
			root, _ := repository(t, &txtar.Archive{Files: []txtar.File{
				{Name: "a/kustomization.yaml", Data: []byte("configMapGenerator: [{name: m, envs: [e]}]\n")},
				{Name: "a/e", Data: []byte("A=first\nB=" + strings.Repeat("x", n-len("B=")) + end)},
			}})
			want := krustyBuild(t, filepath.Join(root, "a"))
			lost := !strings.Contains(want, "xxx") || strings.Contains(end, "last") && !strings.Contains(want, "last")
			objects, _, err := new(Builder).Build(t.Context(), os.DirFS(root), "a", remote.Bases{})
			if refused := err != nil; refused != lost || refused != (n > most) || !refused && stream(t, objects) != want {
				t.Errorf("%d bytes, and then %q: kustomize loses some: %t; %v", n, end, lost, err)
			}
		}
	}
}

// The archives show every field of a kustomization and of the types in it, except for
// refused ones. So new fields in a new version of kustomize fail the test.
func TestEveryFieldIsShown(t *testing.T) {
	t.Parallel()
	shown := make(map[string]bool)
	archives, _ := filepath.Glob("testdata/build/*.txtar")
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range archive.Files {
			if !slices.Contains(konfig.RecognizedKustomizationFileNames(), path.Base(f.Name)) {
				continue
			}
			var tree any
			if err := yaml.Unmarshal(f.Data, &tree); err != nil {
				t.Fatalf("%s: %s: %v", file, f.Name, err)
			}
			show(shown, reflect.TypeFor[types.Kustomization](), tree)
		}
	}
	var missing []string
	all := make(map[string]bool)
	known(all, reflect.TypeFor[types.Kustomization]())
	for name := range all {
		if !shown[name] {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	refused := []string{"Kustomization.helmChartInflationGenerator", "Kustomization.helmCharts", "Kustomization.helmGlobals"}
	if !slices.Equal(missing, refused) {
		t.Errorf("no archive shows %q\nwant only %q missing", missing, refused)
	}
}

// show records the fields that are set in a value and in the values below it.
func show(shown map[string]bool, of reflect.Type, v any) {
	switch of.Kind() {
	case reflect.Pointer:
		show(shown, of.Elem(), v)
	case reflect.Slice:
		list, _ := v.([]any)
		for _, item := range list {
			show(shown, of.Elem(), item)
		}
	case reflect.Struct:
		m, _ := v.(map[string]any)
		for name, f := range jsonFields(of) {
			if value, ok := m[name]; ok {
				shown[of.Name()+"."+name] = true
				show(shown, f, value)
			}
		}
	}
}

// known records all fields of a type and of the types below it.
func known(all map[string]bool, of reflect.Type) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || strings.HasPrefix(of.Name(), "Helm") {
		return
	}
	for name, f := range jsonFields(of) {
		all[of.Name()+"."+name] = true
		known(all, f)
	}
}

// jsonFields returns the fields of a struct by their names in YAML.
func jsonFields(of reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for f := range of.Fields() {
		tag, ok := f.Tag.Lookup("json")
		name, _, _ := strings.Cut(tag, ",")
		switch {
		case name == "-" || !ok && !f.Anonymous || !f.IsExported():
		case name != "":
			fields[name] = f.Type
		default:
			maps.Copy(fields, jsonFields(f.Type))
		}
	}
	return fields
}

// Origins are found by the same name, by a part of it, or not at all.
func TestOrigins(t *testing.T) {
	t.Parallel()
	files := txtarFS(t, `
-- a/kustomization.yaml --
resources: [../base, more.yaml]
namePrefix: p-
configMapGenerator: [{name: gen, literals: [a=b]}]
-- a/more.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: second}
-- base/kustomization.yaml --
resources: [x.yaml, y.yaml]
-- base/x.yaml --
# one
apiVersion: v1
kind: ConfigMap
metadata: {name: first}
---
apiVersion: v1
kind: Service
metadata: {name: same, namespace: a}
-- base/y.yaml --
apiVersion: v1
kind: Service
metadata: {name: same, namespace: b}
`)
	objects, _, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{})
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]string)
	for _, o := range objects {
		have[o.ID().String()] = o.Origin().String()
	}
	want := map[string]string{
		"configmap/p-first":          "base/x.yaml:2",
		"configmap/p-second":         "a/more.yaml:1",
		"configmap/p-gen-4h2mbtbbt6": "a/kustomization.yaml:3",
		"service/a/p-same":           "base/x.yaml:6",
		"service/b/p-same":           "base/y.yaml:1",
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
	o := newOrigins([]written{
		{id: manifest.ID{Kind: "A", Name: "x"}, origin: manifest.Origin{File: "1"}},
		{id: manifest.ID{Kind: "A", Name: "x"}, origin: manifest.Origin{File: "2"}},
	}, manifest.Origin{File: "dir"})
	for _, name := range []string{"x", "px", "y"} {
		if have := o.find(manifest.ID{Kind: "A", Name: name}); have.File != "dir" {
			t.Errorf("%s is said to come from %s", name, have)
		}
	}
}

// A directory without a kustomization file is built as in Flux.
func TestAutodetect(t *testing.T) {
	t.Parallel()
	files := txtarFS(t, `
-- a/deep/er/one.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: one}
-- a/two.yml --
apiVersion: v1
kind: ConfigMap
metadata: {name: two}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: three}
-- a/github.com/x.yaml --
# a path that looks remote, and nothing in it
-- a/README.md --
not YAML
-- a/with\backslash.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: backslash}
-- a/sub/kustomization.yaml --
resources: [in.yaml]
namePrefix: sub-
-- a/sub/in.yaml --
apiVersion: v1
kind: ConfigMap
metadata: {name: in}
-- a/sub/out.yaml --
not even: [YAML
-- empty/README.md --
nothing
-- bad/values.yaml --
replicas: 1
`)
	objects, _, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{})
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, o := range objects {
		have = append(have, o.ID().Name+" "+o.Origin().String())
	}
	want := []string{`backslash a/with\backslash.yaml:1`, "one a/deep/er/one.yaml:1", "sub-in a/sub/in.yaml:1", "three a/two.yml:5", "two a/two.yml:1"}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %q\nwant %q", have, want)
	}
	if objects, _, err := new(Builder).Build(t.Context(), files, "empty", remote.Bases{}); err != nil || len(objects) != 0 {
		t.Errorf("an empty directory: %v, %v", objects, err)
	}
	if _, _, err := new(Builder).Build(t.Context(), files, "bad", remote.Bases{}); err == nil || err.Error() != "bad/values.yaml:1: is not a Kubernetes object: kind is missing" {
		t.Errorf("have %v", err)
	}
}

// A directory without a kustomization file leaves nothing out without a word.
func TestAutodetectLeavesOut(t *testing.T) {
	t.Parallel()
	one := &fstest.MapFile{Data: []byte(configMap)}
	for _, tt := range []struct {
		name string
		file *fstest.MapFile
		want string // an error; "" for a note
	}{
		{"linked", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common")}, "a/linked: is a symbolic link"},
		{"v1.2", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common")}, "a/v1.2: is a symbolic link"},
		{"acme.io", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common")}, "a/acme.io: is a symbolic link"},
		{"deep/conf.d", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../common/")}, "a/deep/conf.d: is a symbolic link"},
		{"root.md", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("..")}, "a/root.md: is a symbolic link"},
		{"outside.md", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../common")}, "a/outside.md: is a symbolic link"},
		{"absolute.md", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("/common/two.yaml")}, "a/absolute.md: is a symbolic link"},
		{"dangling.md", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("none")}, "a/dangling.md: is a symbolic link"},
		{"x.YAML", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common/two.yaml")}, "a/x.YAML: is a symbolic link"},
		{"x.yml", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common/two.yaml")}, "a/x.yml: is a symbolic link"},
		{"module", &fstest.MapFile{Mode: fs.ModeIrregular}, "a/module: is neither a regular file nor a directory"},
		{"caf\xe9/x.yaml", one, `a: "caf\xe9" is not a name in UTF-8; rename it`},
		{"x.json", one, ""},
		{"y.json", &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../common/two.yaml")}, ""},
		{"deep/x.YAML", one, ""},
		{"x.Yml", one, ""},
	} {
		files := fstest.MapFS{"a/one.yaml": one, "common/two.yaml": one, "a/" + tt.name: tt.file}
		objects, notes, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{})
		if tt.want != "" {
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%q: %v, want %s", tt.name, err, tt.want)
			}
			continue
		}
		want := "a: without a kustomization only .yaml and .yml files are read, so not " + tt.name
		if err != nil || len(objects) != 1 || !slices.Equal(notes, []string{want}) {
			t.Errorf("%s: %d objects, %q, %v", tt.name, len(objects), notes, err)
		}
	}
	// The registry of clusters is at the root.
	files := fstest.MapFS{"clusters.yaml": {Data: []byte("kind: Cluster\n")}, "one.yaml": one}
	if objects, notes, err := new(Builder).Build(t.Context(), files, ".", remote.Bases{}); err != nil || len(objects) != 1 || len(notes) > 0 {
		t.Errorf("at the root: %d objects, %q, %v", len(objects), notes, err)
	}
	// A link to a file of another kind is like that file, whatever looks like an extension.
	for _, name := range []string{"README.md", "LICENSE", "v1.2"} {
		files = fstest.MapFS{"a/one.yaml": one, "README.md": one, "a/" + name: {Mode: fs.ModeSymlink, Data: []byte("../README.md")}}
		if objects, notes, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{}); err != nil || len(objects) != 1 || len(notes) > 0 {
			t.Errorf("a link %s to a README: %d objects, %q, %v", name, len(objects), notes, err)
		}
	}
}

// Building the same files again returns the same objects, until they are swept.
func TestBuilderRemembers(t *testing.T) {
	t.Parallel()
	var b Builder
	build := func(content string) *manifest.Object {
		files := txtarFS(t, "-- a/kustomization.yaml --\nresources: [cm.yaml]\n-- a/cm.yaml --\n"+content+"-- a/other --\n"+content)
		objects, _, err := b.Build(t.Context(), files, "a", remote.Bases{})
		if err != nil {
			t.Fatal(err)
		}
		return objects[0]
	}
	first := build(configMap)
	if build(configMap) != first {
		t.Error("the same files give another object")
	}
	if build(configMap+"data: {a: b}\n") == first {
		t.Error("other files give the same object")
	}
	b.Sweep()
	if build(configMap) != first || len(b.built) != 2 {
		t.Errorf("%d builds are remembered, want 2", len(b.built))
	}
	b.Sweep()
	b.Sweep()
	if len(b.built) != 0 {
		t.Errorf("%d builds are remembered that nobody asked for", len(b.built))
	}
}

func txtarFS(t *testing.T, archive string) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	for _, f := range txtar.Parse([]byte(archive)).Files {
		files[f.Name] = &fstest.MapFile{Data: f.Data}
	}
	return files
}
