package render

import (
	"errors"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"gitopsd.dev/sources"
)

func TestWant(t *testing.T) {
	t.Parallel()
	w, err := new(Renderer).Want(t.Context(), input(t, plainObject+`
apiVersion: pkg.crossplane.io/v1
kind: Provider
metadata: {name: p}
spec:
  package: xpkg.example.org/org/p:v1.0.0
  packagePullPolicy: Always
  packagePullSecrets: [{name: a}, {name: b}]
  revisionActivationPolicy: Manual
  revisionHistoryLimit: 3
  ignoreCrossplaneConstraints: true
  skipDependencyResolution: true
  commonLabels: {l: m}
  commonAnnotations: {n: o}
  runtimeConfigRef: {apiVersion: pkg.crossplane.io/v1beta1, kind: DeploymentRuntimeConfig, name: default}
---
apiVersion: pkg.crossplane.io/v1beta1
kind: Function
metadata: {name: f}
spec: {package: 'example.org/f@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855', runtimeConfigRef: null}
---
apiVersion: pkg.crossplane.io/v1
kind: Configuration
metadata: {name: c}
spec: {package: 'example.org/c:v2'}
---
apiVersion: pkg.crossplane.io/v1beta1
kind: ImageConfig
metadata: {name: i}
spec: {matchImages: [{prefix: xpkg.example.org/}], registry: {authentication: {pullSecretRef: {name: pull}}}}
---
apiVersion: example.org/v1
kind: Provider
metadata: {name: other}
`))
	if err != nil {
		t.Fatal(err)
	}
	// Crossplane installs the Function, and by its own settings.
	if have := ids(w.Objects); !reflect.DeepEqual(have, []string{"configmap/default/plain", "provider.example.org/other", "imageconfig.pkg.crossplane.io/i"}) {
		t.Errorf("plain are %q", have)
	}
	if want := (sources.ImageConfigs{{Name: "i", Prefixes: []string{"xpkg.example.org/"}, PullSecret: "pull"}}); !reflect.DeepEqual(w.Images, want) || w.Faults() != nil {
		t.Errorf("images are %+v, faults %v", w.Images, w.Faults())
	}
	if len(w.Packages) != 3 {
		t.Fatalf("have %+v", w.Packages)
	}
	for i := range w.Packages {
		if w.Packages[i].Document.Tree["kind"] != string(w.Packages[i].Kind) || w.Packages[i].Document.Line == 0 {
			t.Errorf("document of %s is %+v", w.Packages[i].Name, w.Packages[i].Document)
		}
		if w.Packages[i].File != "c/all.yaml" {
			t.Errorf("%s is declared in %q", w.Packages[i].Name, w.Packages[i].File)
		}
		w.Packages[i].File, w.Packages[i].Document = "", sources.Document{}
	}
	want := []sources.Declaration{
		{Kind: sources.Configuration, Name: "c", Ref: sources.Ref{Repository: "example.org/c", Tag: "v2"}, PullPolicy: sources.PullIfNotPresent},
		{Kind: sources.Function, Name: "f", Ref: sources.Ref{Repository: "example.org/f", Digest: sources.DigestOf(nil)}, PullPolicy: sources.PullIfNotPresent},
		{
			Kind: sources.Provider, Name: "p", Ref: sources.Ref{Repository: "xpkg.example.org/org/p", Tag: "v1.0.0"}, PullPolicy: sources.PullAlways,
			PullSecrets: []string{"a", "b"}, ManualActivation: true, IgnoreCrossplaneConstraints: true, SkipDependencyResolution: true,
			CommonLabels: map[string]string{"l": "m"}, CommonAnnotations: map[string]string{"n": "o"}, RuntimeConfig: "default",
		},
	}
	if !reflect.DeepEqual(w.Packages, want) {
		t.Errorf("have %+v\nwant %+v", w.Packages, want)
	}
}

// A directory without files is an error as in a commit, which cannot have it. Other files
// that are no manifests may stand for one that is filled later.
func TestWantNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, err string
		files     fstest.MapFS
		notes     []string
	}{
		{"missing", "spec.path: there is no clusters/new in the repository; did you mean clusters/knew?", fstest.MapFS{"clusters/knew/x": {}}, nil},
		{"empty", "spec.path: there is no file in clusters/new, and Git keeps no empty directories", fstest.MapFS{"clusters/new": {Mode: fs.ModeDir}}, nil},
		{"empty in it", "spec.path: there is no file in clusters/new, and Git keeps no empty directories", fstest.MapFS{"clusters/new/sub/dir": {Mode: fs.ModeDir}}, nil},
		{"no manifests", "", fstest.MapFS{"clusters/new/README.txt": {}}, []string{"clusters/new has no manifests"}},
		{"a manifest", "", fstest.MapFS{"clusters/new/sub": {Mode: fs.ModeDir}, "clusters/new/x.yaml": {Data: []byte(plainObject)}}, nil},
	} {
		w, err := new(Renderer).Want(t.Context(), Input{Cluster: "new", Files: tt.files, Path: "clusters/new"})
		switch {
		case tt.err != "":
			if err == nil || err.Error() != tt.err {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.err)
			}
		case err != nil || !slices.Equal(w.Notes, tt.notes):
			t.Errorf("%s: %v, %+v, want the notes %q", tt.name, err, w, tt.notes)
		}
	}
}

// The error of an invalid declaration has its place, and affects nothing else.
func TestWantFaults(t *testing.T) {
	t.Parallel()
	spec := func(fields string) string {
		return "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: bad}\nspec: {" + fields + "}\n"
	}
	for _, tt := range []struct{ name, doc, want string }{
		{"no spec", "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: bad}\n", "spec: is missing"},
		{"no package", spec(""), "spec.package: is missing; write <repository>:<version>"},
		{"null", spec("package: null"), "spec.package: is missing"},
		{"number", spec("package: 1"), "spec.package: want a string, have 1; quote it"},
		{"no version", spec("package: example.org/p"), `spec.package: package reference "example.org/p": it names neither a tag nor a digest`},
		{"old version", "apiVersion: pkg.crossplane.io/v1alpha1\nkind: Provider\nmetadata: {name: bad}\nspec: {package: 'example.org/p:v1'}\n", "apiVersion: pkg.crossplane.io/v1alpha1 is not known; write pkg.crossplane.io/v1"},
		{"beta provider", "apiVersion: pkg.crossplane.io/v1beta1\nkind: Provider\nmetadata: {name: bad}\nspec: {package: 'example.org/p:v1'}\n", "apiVersion: pkg.crossplane.io/v1beta1 is not known"},
		{"kind", "apiVersion: pkg.crossplane.io/v1\nkind: Provdier\nmetadata: {name: bad}\nspec: {package: 'example.org/p:v1'}\n", "kind: Provdier is not known; write Provider, Configuration or Function"},
		{"long name", "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: bad" + strings.Repeat("d", 61) + "}\nspec: {package: 'example.org/p:v1'}\n", "metadata.name: more than 63 characters"},
		{"name of no object", "apiVersion: pkg.crossplane.io/v1\nkind: Provider\nmetadata: {name: bad_d}\nspec: {package: 'example.org/p:v1'}\n", `metadata.name: "bad_d" cannot be the name of an object: want lower-case letters`},
		{"value of a label", spec("package: 'example.org/p:v1', commonLabels: {team: a b}"), `spec.commonLabels: team: "a b": a valid label must be`},
		{"long value of a label", spec("package: 'example.org/p:v1', commonLabels: {team: " + strings.Repeat("a", 64) + "}"), "must be no more than 63"},
		{"name of a label", spec("package: 'example.org/p:v1', commonLabels: {a/b/c: d}"), `spec.commonLabels: "a/b/c": a valid label key must consist of`},
		{"name of an annotation", spec("package: 'example.org/p:v1', commonAnnotations: {-a: any value at all}"), `spec.commonAnnotations: "-a": name part must consist of`},
		{"misspelt field", spec("pakage: 'example.org/p:v1'"), "spec.pakage: is not a field of a Provider; did you mean package?"},
		{"unknown root", spec("package: 'example.org/p:v1'") + "data: {}\n", "data: is not a field of a Provider"},
		{"unknown field", spec("packages: 'example.org/p:v1'"), "spec.packages: is not a field of a Provider; did you mean package?"},
		{"field that is like none", spec("image: 'example.org/p:v1'"), "spec.image: is not a field of a Provider that gitopsd knows (commonAnnotations, commonLabels,"},
		{"controllerConfigRef", spec("package: 'example.org/p:v1', controllerConfigRef: {name: x}"), "spec.controllerConfigRef: Crossplane has removed it"},
		{"pull policy", spec("package: 'example.org/p:v1', packagePullPolicy: Sometimes"), "spec.packagePullPolicy: want Always, IfNotPresent, Never, have Sometimes"},
		{"pull secrets", spec("package: 'example.org/p:v1', packagePullSecrets: x"), "spec.packagePullSecrets: want a list of {name: <Secret>}"},
		{"pull secret", spec("package: 'example.org/p:v1', packagePullSecrets: [{name: a}, {nam: b}]"), "spec.packagePullSecrets: 1: want {name: <Secret>}"},
		{"activation", spec("package: 'example.org/p:v1', revisionActivationPolicy: yes"), "spec.revisionActivationPolicy: want Automatic, Manual"},
		{"history", spec("package: 'example.org/p:v1', revisionHistoryLimit: -1"), "spec.revisionHistoryLimit: want a number that is not negative, have -1"},
		{"boolean", spec("package: 'example.org/p:v1', skipDependencyResolution: 'true'"), "spec.skipDependencyResolution: want true or false, have true"},
		{"labels", spec("package: 'example.org/p:v1', commonLabels: [a]"), "spec.commonLabels: want a mapping of strings"},
		{"label", spec("package: 'example.org/p:v1', commonLabels: {a: 1}"), "spec.commonLabels: a: want a string, have 1; quote it"},
		{"our label", spec("package: 'example.org/p:v1', commonLabels: {gitopsd.dev/package: x}"), "spec.commonLabels: gitopsd.dev/package: is gitopsd's own to set"},
		{"our annotation", spec("package: 'example.org/p:v1', commonAnnotations: {gitopsd.dev/adopt: x}"), "spec.commonAnnotations: gitopsd.dev/adopt: is gitopsd's own to set"},
		{"runtime config", spec("package: 'example.org/p:v1', runtimeConfigRef: x"), "spec.runtimeConfigRef: want {name: <DeploymentRuntimeConfig>}"},
		{"runtime config's kind", spec("package: 'example.org/p:v1', runtimeConfigRef: {kind: X, name: y}"), "spec.runtimeConfigRef: kind: X is not known"},
		{"runtime config's name", spec("package: 'example.org/p:v1', runtimeConfigRef: {}"), "spec.runtimeConfigRef: name: is missing"},
		{"runtime config of a Configuration", "apiVersion: pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: bad}\nspec: {package: 'example.org/p:v1', runtimeConfigRef: {name: x}}\n", "spec.runtimeConfigRef: is not a field of a Configuration"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, err := new(Renderer).Want(t.Context(), input(t, plainObject+declare("Configuration", "good", "")+tt.doc))
			var broken *PackageError
			if !errors.As(err, &broken) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), " bad") || !strings.Contains(err.Error(), " (c/all.yaml:10): ") {
				t.Fatalf("have %v\nwant a PackageError with %q", err, tt.want)
			}
			if len(w.Packages) != 1 || w.Packages[0].Name != "good" || len(w.Broken) != 1 || ids(w.Objects)[0] != "configmap/default/plain" {
				t.Errorf("have %v, %v, %v", w.Packages, w.Broken, ids(w.Objects))
			}
			rendered, err := new(Renderer).Expand(t.Context(), input(t, ""), w, nil)
			if !errors.As(err, &broken) || len(rendered.Broken) != 2 || !rendered.Keeps(w.Objects[0].ID(), "dependency of bad") {
				t.Errorf("have %v, %v", err, rendered.Broken)
			}
		})
	}
}

func TestWantBuildFails(t *testing.T) {
	t.Parallel()
	if w, err := new(Renderer).Want(t.Context(), input(t, "kind: X\n")); w != nil || err == nil || err.Error() != "c/all.yaml:1: X: metadata.name is missing" {
		t.Errorf("have %v, %v", w, err)
	}
}

// A declaration in a misspelled group does not count as absent. A kind of the same name in
// another group is not a declaration.
func TestWantMisspelledGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		version, kind, pkg string
		broken             bool
	}{
		{"pkg.crosplane.io/v1", "Provider", "example.org/p:v1", true},
		{"pkg.crossplane.oi/v1", "Configuration", "example.org/p:v1", true},
		{"pgk.crossplane.io/v1", "Function", "example.org/p:v1", true},
		{"crossplane.io/v1", "Provider", "example.org/p:v1", true},
		{"meta.pkg.crossplane.io/v1", "Provider", "example.org/p:v1", true},
		{"v1", "Provider", "example.org/p:v1", true},
		{"fission.io/v1", "Function", "{packageref: {name: p}}", false},
		{"example.org/v1", "Provider", "example.org/p:v1", false},
		{"pkg.example.io/v1", "Provider", "example.org/p:v1", false},
	} {
		doc := "apiVersion: " + tt.version + "\nkind: " + tt.kind + "\nmetadata: {name: x}\nspec: {package: '" + tt.pkg + "'}\n"
		if tt.pkg[0] == '{' {
			doc = strings.ReplaceAll(doc, "'", "")
		}
		w, err := new(Renderer).Want(t.Context(), input(t, plainObject+doc))
		if (err != nil) != tt.broken || len(w.Objects) == 1 != tt.broken {
			t.Errorf("%s %s: have %v", tt.version, tt.kind, err)
		}
		if !tt.broken {
			continue
		}
		if want := "apiVersion: " + tt.version + " is not known; write pkg.crossplane.io/v1"; !strings.Contains(err.Error(), want) {
			t.Errorf("have %v", err)
		}
		if len(w.Unreadable) != 1 || w.Unreadable[0].Ref.Repository != "example.org/p" {
			t.Errorf("%s %s: unreadable %+v", tt.version, tt.kind, w.Unreadable)
		}
	}
}
