package kustomize

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"sigs.k8s.io/kustomize/api/types"

	"github.com/rogpeppe/go-internal/txtar"

	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

var (
	hashA = strings.Repeat("a", 40)
	hashB = strings.Repeat("b", 40)
)

// basesOf returns trees of https://git.example.org/org/NAME by "NAME@HASH". All
// repositories there are allowed.
func basesOf(t *testing.T, trees map[string]fs.FS) remote.Bases {
	t.Helper()
	allowed, err := remote.ParsePrefixes([]string{"https://git.example.org/org/"})
	if err != nil {
		t.Fatal(err)
	}
	b := remote.Bases{Allowed: allowed, Trees: make(map[sources.Tree]fs.FS)}
	for name, files := range trees {
		repository, commit, _ := strings.Cut(name, "@")
		b.Trees[sources.Tree{Repository: "https://git.example.org/org/" + repository, Commit: commit}] = files
	}
	return b
}

// The build of a remote base gives the same as kustomize with a clone of it.
func TestRemoteBaseIsKustomizeBuild(t *testing.T) {
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
			clone, dirs := repository(t, archive)
			bases := basesOf(t, map[string]fs.FS{"bases@" + hashA: os.DirFS(clone)})
			for _, dir := range dirs {
				local := func(entry string) string { return fmt.Sprintf("resources: [%q]\nnamePrefix: x-\n", entry) }
				if err := os.MkdirAll(filepath.Join(clone, "wrapper"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(clone, "wrapper/kustomization.yaml"), []byte(local("../"+dir)), 0o644); err != nil {
					t.Fatal(err)
				}
				address := func(dir string) string { return "https://git.example.org/org/bases//" + dir + "?ref=" + hashA }
				text := local(address(dir))
				if strings.ContainsFunc(dir, func(r rune) bool { return r > '~' }) {
					// No address has such characters; what it names may.
					text = fmt.Sprintf("resources: [%q]\n", address("wrapper"))
				}
				fleet := fstest.MapFS{"a/kustomization.yaml": {Data: []byte(text)}}
				objects, _, err := new(Builder).Build(t.Context(), fleet, "a", bases)
				if err != nil {
					t.Fatalf("%s: %v", dir, err)
				}
				want := krustyBuild(t, filepath.Join(clone, "wrapper"))
				if have := stream(t, objects); have != want {
					t.Errorf("%s: have\n%s\nwant\n%s", dir, have, want)
				}
			}
		})
	}
}

// A kustomization that names remote bases is rewritten for kustomize without other changes.
func TestEncodedKustomizationIsTheSame(t *testing.T) {
	t.Parallel()
	archives, _ := filepath.Glob("testdata/build/*.txtar")
	encoded := 0
	for _, file := range archives {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		plain, dirs := repository(t, archive)
		for i, f := range archive.Files {
			if path.Base(f.Name) != "kustomization.yaml" {
				continue
			}
			var k types.Kustomization
			if err := k.Unmarshal(f.Data); err != nil {
				t.Fatal(err)
			}
			k.FixKustomization()
			if archive.Files[i].Data, err = encode(&k); err != nil {
				t.Errorf("%s: %s: %v", file, f.Name, err)
				archive.Files[i].Data = f.Data
			}
			encoded++
		}
		again, _ := repository(t, archive)
		for _, dir := range dirs {
			want, have := krustyBuild(t, filepath.Join(plain, dir)), krustyBuild(t, filepath.Join(again, dir))
			if have != want {
				t.Errorf("%s: %s: have\n%s\nwant\n%s", file, dir, have, want)
			}
		}
	}
	if encoded == 0 {
		t.Error("no kustomization was encoded")
	}
}

// Remote bases may use each other, and components. Their objects have an origin there. The
// key of a shared build includes the commits.
func TestRemoteBases(t *testing.T) {
	t.Parallel()
	remoteA := "https://git.example.org/org/bases//app/overlay?ref=" + hashA
	bases := basesOf(t, map[string]fs.FS{
		"bases@" + hashA: txtarFS(t, "-- app/overlay/kustomization.yaml --\nresources: [../base, 'https://git.example.org/org/more?ref="+hashB+"']\nlabels: [{pairs: {a: overlay}}]\n"+
			"-- app/base/kustomization.yaml --\nresources: [../../common/x.yaml]\nconfigMapGenerator: [{name: g, files: [../../common/data.txt]}]\n-- common/x.yaml --\n\n"+configMap+"-- common/data.txt --\nhello"),
		"bases@" + hashB: txtarFS(t, "-- app/overlay/kustomization.yaml --\nresources: [x.yaml]\n-- app/overlay/x.yaml --\n"+configMap),
		"more@" + hashB: txtarFS(t, "-- Kustomization --\nresources: [d.yaml]\ncomponents: [c]\n-- d.yaml --\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"+
			"-- c/kustomization.yaml --\nkind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\nnamespace: deep\n"),
	})
	fleet := txtarFS(t, "-- a/kustomization.yaml --\nresources: ['"+remoteA+"']\ncomponents: ['https://git.example.org/org/more//c?ref="+hashB+"']\n"+
		"-- b/kustomization.yaml --\nbases: ['"+strings.ReplaceAll(remoteA, hashA, hashB)+"']\n"+
		"-- c/kustomization.yaml --\nresources: ['"+remoteA+"']\ncomponents: ['https://git.example.org/org/more//c?ref="+hashB+"']\n")
	builder := new(Builder)
	objects, _, err := builder.Build(t.Context(), fleet, "a", bases)
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, o := range objects {
		have = append(have, fmt.Sprintf("%s %s %s", o.ID(), o.Label("a"), o.Origin()))
	}
	want := []string{
		"configmap/deep/a overlay git.example.org/org/bases@" + hashA + "/common/x.yaml:2",
		"configmap/deep/g-f9b88t2fkf overlay git.example.org/org/bases@" + hashA + "/app/base/kustomization.yaml:2",
		"deployment.apps/deep/d overlay git.example.org/org/more@" + hashB + "/d.yaml:1",
	}
	if strings.Join(have, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
	if objects, _, err = builder.Build(t.Context(), fleet, "b", bases); err != nil || len(objects) != 1 {
		t.Errorf("another commit: have %v, %v", objects, err)
	}
	// The build is shared by what is in it, wherever it is asked for again.
	again, _, err := builder.Build(t.Context(), fleet, "a", bases)
	if err != nil || len(builder.built) != 2 || again[0] == nil {
		t.Errorf("%d builds, %v", len(builder.built), err)
	}
}

// All missing bases are reported at once, and nothing is built without them.
func TestMissingBases(t *testing.T) {
	t.Parallel()
	at := func(repository, hash string) string {
		return "https://git.example.org/org/" + repository + "//x?ref=" + hash
	}
	fleet := txtarFS(t, "-- a/kustomization.yaml --\nresources:\n- ../b\n- "+at("one", hashA)+"\n- "+at("one", hashB)+"\n- "+at("here", hashA)+"\n"+
		"-- b/kustomization.yaml --\ncomponents:\n- "+at("two", hashA)+"\nresources:\n- "+at("one", hashA)+"\n")
	bases := basesOf(t, map[string]fs.FS{"here@" + hashA: txtarFS(t, "-- x/kustomization.yaml --\nresources: ['"+at("nested", hashA)+"']\n")})
	_, _, err := new(Builder).Build(t.Context(), fleet, "a", bases)
	var missing *MissingError
	if !errors.As(err, &missing) {
		t.Fatalf("have %v", err)
	}
	var have []string
	for _, m := range missing.Bases {
		have = append(have, m.Fault(errors.New("!")).Error())
	}
	want := []string{
		`b/kustomization.yaml:4: resources: "` + at("one", hashA) + `": !`,
		`b/kustomization.yaml:2: components: "` + at("two", hashA) + `": !`,
		`a/kustomization.yaml:4: resources: "` + at("one", hashB) + `": !`,
		`git.example.org/org/here@` + hashA + `/x/kustomization.yaml:1: resources: "` + at("nested", hashA) + `": !`,
	}
	if strings.Join(have, "\n") != strings.Join(want, "\n") {
		t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(want, "\n"))
	}
}

// The rules of the fleet repository apply to a remote base, and it cannot leave its own
// repository.
func TestRemoteBaseFaults(t *testing.T) {
	t.Parallel()
	here := "https://git.example.org/org/bases//x?ref=" + hashA
	root := "git.example.org/org/bases@" + hashA
	for _, tt := range []struct{ name, fleet, base, want string }{
		{name: "out of it", base: "-- x/kustomization.yaml --\nresources: [../../../../../a/secret.yaml]\n", want: root + `/x/kustomization.yaml:1: resources: "../../../../../a/secret.yaml" leads out of the repository`},
		{name: "out of it, by one", base: "-- x/kustomization.yaml --\nresources: [../../x.yaml]\n", want: "leads out of the repository"},
		{name: "into the root of the build", base: "-- x/kustomization.yaml --\nconfigMapGenerator: [{name: x, files: [../../../../../../../etc/passwd]}]\n", want: "leads out of the repository"},
		{name: "absolute", base: "-- x/kustomization.yaml --\nresources: [/a/secret.yaml]\n", want: "is an absolute path"},
		{name: "into another one", base: "-- x/kustomization.yaml --\nresources: ['https://git.example.org/org/more?ref=" + hashB + "', ../../more@" + hashB + "]\n", want: "leads out of the repository"},
		{name: "into it by a path", fleet: "resources: ['" + here + "', ../" + root + "/x]\n", base: "-- x/kustomization.yaml --\nresources: []\n", want: `a/kustomization.yaml:1: resources: "../` + root + `/x" leads out of the repository`},
		{name: "into one that is not used", fleet: "resources: [../git.example.org/org/more@" + hashB + "]\n", want: "is not in the repository"},
		{name: "not allowed", base: "-- x/kustomization.yaml --\nresources: ['https://git.example.org/other/bases?ref=" + hashA + "']\n", want: root + `/x/kustomization.yaml:1: resources: "https://git.example.org/other/bases?ref=` + hashA + `": https://git.example.org/other/bases is not below what --allow-remote-bases allows`},
		{name: "not by commit", base: "-- x/kustomization.yaml --\nresources: ['https://git.example.org/org/bases?ref=main']\n", want: "a tag, a branch or part of a hash"},
		{name: "no such directory", base: "-- y --\n", want: `a/kustomization.yaml:1: resources: "` + here + `": that commit has no x`},
		{name: "a file", base: "-- x --\n" + configMap, want: "is a file there; a remote base is a directory with a kustomization"},
		{name: "no kustomization", base: "-- x/x.yaml --\n" + configMap, want: root + "/x: has no kustomization file"},
		{name: "Helm", base: "-- x/kustomization.yaml --\nhelmCharts: [{name: x}]\n", want: root + "/x/kustomization.yaml:1: helmCharts: gitopsd does not inflate Helm charts"},
		{name: "remote patch", base: "-- x/kustomization.yaml --\nresources: []\npatches: [{path: 'https://git.example.org/org/bases//p.yaml?ref=" + hashA + "'}]\n", want: "and only resources and components may be"},
		{name: "remote plugin", fleet: "resources: []\ntransformers: ['" + here + "']\n", want: "and only resources and components may be"},
		{name: "remote plugin of a plugin", fleet: "resources: []\ntransformers: [t]\n-- a/t/kustomization.yaml --\nresources: ['" + here + "']\n", want: "and only resources and components may be"},
		{name: "loop", base: "-- x/kustomization.yaml --\nresources: ['" + here + "']\n", want: root + "/x: is used by " + root + "/x, which is in it: kustomizations must not form a loop"},
		{name: "password", fleet: "resources: ['https://me:s3cret@git.example.org/org/bases?ref=" + hashA + "']\n", want: `resources: "https://…@git.example.org/org/bases?ref=` + hashA + `": has a user name or password`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.fleet == "" {
				tt.fleet = "resources: ['" + here + "']\n"
			}
			fleet := txtarFS(t, "-- a/kustomization.yaml --\n"+tt.fleet+"-- a/secret.yaml --\n"+configMap)
			bases := basesOf(t, map[string]fs.FS{"bases@" + hashA: txtarFS(t, tt.base), "more@" + hashB: txtarFS(t, "-- kustomization.yaml --\nresources: []\n")})
			objects, _, err := new(Builder).Build(t.Context(), fleet, "a", bases)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("have %v, %v\nwant an error with %q", objects, err, tt.want)
			}
		})
	}
}

// The nesting of bases is limited.
func TestRemoteBasesEnd(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range maxRemotes + 1 {
		fmt.Fprintf(&many, "- https://git.example.org/org/bases?ref=%040x\n", i)
	}
	_, _, err := new(Builder).Build(t.Context(), txtarFS(t, "-- a/kustomization.yaml --\nresources:\n"+many.String()), "a", basesOf(t, nil))
	if !errors.Is(err, sources.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprintf("a/kustomization.yaml:%d: ", maxRemotes+2)) {
		t.Errorf("have %v", err)
	}
	deep := make(map[string]fs.FS)
	for i := range maxRemotes {
		next := fmt.Sprintf("-- kustomization.yaml --\nresources: ['https://git.example.org/org/bases?ref=%040x']\n", i+1)
		deep[fmt.Sprintf("bases@%040x", i)] = txtarFS(t, next)
	}
	_, _, err = new(Builder).Build(t.Context(), txtarFS(t, "-- a/kustomization.yaml --\nresources: ['https://git.example.org/org/bases?ref="+strings.Repeat("0", 40)+"']\n"), "a", basesOf(t, deep))
	if !errors.Is(err, sources.ErrLimit) {
		t.Errorf("have %v", err)
	}
}
