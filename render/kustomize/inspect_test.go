package kustomize

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
)

const (
	configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	builtin   = "apiVersion: builtin\nmetadata: {name: x}\n"
)

// pathFields are all places of a kustomization, or of a file that it names, that may have a
// path; %s stands for the path. The first file is the one to build.
var pathFields = map[string]string{
	"resources":              "resources: ['%s']",
	"bases":                  "bases: ['%s']",
	"components":             "components: ['%s']",
	"case":                   "RESOURCES: ['%s']",
	"crds":                   "resources: [cm.yaml]\ncrds: ['%s']",
	"configurations":         "resources: [cm.yaml]\nconfigurations: ['%s']",
	"openapi":                "resources: [cm.yaml]\nopenapi: {path: '%s'}",
	"patches":                "resources: [cm.yaml]\npatches: [{path: '%s', target: {kind: ConfigMap}}]",
	"patchesJson6902":        "resources: [cm.yaml]\npatchesJson6902: [{path: '%s', target: {version: v1, kind: ConfigMap, name: a}}]",
	"patchesStrategicMerge":  "resources: [cm.yaml]\npatchesStrategicMerge: ['%s']",
	"replacements":           "resources: [cm.yaml]\nreplacements: [{path: '%s'}]",
	"configMapGenerator":     "configMapGenerator: [{name: b, files: ['%s']}]",
	"configMapGenerator key": "configMapGenerator: [{name: b, files: ['k=%s']}]",
	"configMapGenerator env": "configMapGenerator: [{name: b, env: '%s'}]",
	"secretGenerator envs":   "secretGenerator: [{name: b, envs: ['%s']}]",
	"generators":             "generators: ['%s']",
	"transformers":           "resources: [cm.yaml]\ntransformers: ['%s']",
	"validators":             "resources: [cm.yaml]\nvalidators: ['%s']",
	"base's":                 "resources: [base]\n-- a/base/kustomization.yaml --\nresources: ['%s']",
	"component's":            "components: [c]\n-- a/c/kustomization.yaml --\nkind: Component\nresources: ['%s']",
	"subdirectory's":         "resources: [sub]\n-- a/sub/kustomization.yaml --\nresources: [x]\n-- a/sub/x/kustomization.yml --\nconfigMapGenerator: [{name: b, files: ['%s']}]",

	"inline ConfigMapGenerator": "generators:\n- |\n  kind: ConfigMapGenerator\n  " + indent(builtin) + "files: ['%s']",
	"inline SecretGenerator":    "generators:\n- |\n  kind: SecretGenerator\n  " + indent(builtin) + "env: '%s'",
	"inline PatchTransformer":   "resources: [cm.yaml]\ntransformers:\n- |\n  kind: PatchTransformer\n  " + indent(builtin) + "path: '%s'",
	"inline PATH":               "resources: [cm.yaml]\ntransformers:\n- |\n  kind: PatchTransformer\n  " + indent(builtin) + "PATH: '%s'",
	"PatchJson6902Transformer":  "resources: [cm.yaml]\ntransformers: [t.yaml]\n-- a/t.yaml --\nkind: PatchJson6902Transformer\n" + builtin + "target: {kind: ConfigMap, name: a}\npath: '%s'",
	"PatchStrategicMerge":       "resources: [cm.yaml]\ntransformers: [t.yaml]\n-- a/t.yaml --\nkind: PatchStrategicMergeTransformer\n" + builtin + "paths: ['%s']",
	"ReplacementTransformer":    "resources: [cm.yaml]\ntransformers: [t.yaml]\n-- a/t.yaml --\nkind: ReplacementTransformer\n" + builtin + "replacements: [{path: '%s'}]",
	"ValueAddTransformer":       "resources: [cm.yaml]\nvalidators: [t.yaml]\n-- a/t.yaml --\nkind: ValueAddTransformer\n" + builtin + "value: x\ntargetFilePath: '%s'",
	"plugin in a directory":     "resources: [cm.yaml]\ntransformers: [t]\n-- a/t/kustomization.yaml --\nresources: [t.yaml]\n-- a/t/t.yaml --\nkind: PatchTransformer\n" + builtin + "path: '%s'",
	"plugin in a list":          "resources: [cm.yaml]\ntransformers: [t.yaml]\n-- a/t.yaml --\nkind: List\napiVersion: v1\nitems:\n- {kind: PatchTransformer, apiVersion: builtin, metadata: {name: x}, path: '%s'}",
	"plugins' resources":        "resources: [cm.yaml]\ntransformers: [t]\n-- a/t/kustomization.yaml --\nresources: ['%s']",
}

func indent(s string) string { return strings.ReplaceAll(s, "\n", "\n  ") }

func pathFixture(kustomization, path string) string {
	return "-- a/kustomization.yaml --\n" + fmt.Sprintf(kustomization, path) + "\n-- a/cm.yaml --\n" + configMap
}

// Kustomize itself would fetch most of these. The test first shows that the listener would
// see it, and then that it sees nothing.
func TestNothingIsFetched(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var seen atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			seen.Add(1)
			conn.Close()
		}
	}()
	host := l.Addr().String()
	direct := filesys.MakeFsInMemory()
	if err := direct.WriteFile("/a/kustomization.yaml", []byte("resources: ['http://"+host+"/x.yaml']")); err != nil {
		t.Fatal(err)
	}
	if _, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(direct, "/a"); err == nil || seen.Load() == 0 {
		t.Fatalf("kustomize does not fetch: this test shows nothing (%v)", err)
	}
	seen.Store(0)
	// Nor is there one for what is allowed: fetching is not the build's.
	allowed, err := remote.ParsePrefixes([]string{"http://" + host, "https://" + host})
	if err != nil {
		t.Fatal(err)
	}
	pinned := "http://" + host + "/org/repo//dir?ref=" + hashA
	for name, kustomization := range pathFields {
		_, _, err := new(Builder).Build(t.Context(), txtarFS(t, pathFixture(kustomization, pinned)), "a", remote.Bases{Allowed: allowed})
		if err == nil {
			t.Errorf("%s: %s is built", name, pinned)
		}
		for _, path := range []string{
			"http://" + host + "/x.yaml", "HTTPS://" + host + "/x.yaml", "http:/" + host, "https://" + host + "/org/repo//dir?ref",
			"git::http://" + host + "/org/repo", "ssh://git@" + host + "/org/repo", "git@" + host + ":org/repo", "file:///" + host + "/repo",
			"git::git@" + host + "/org/repo.git", "github.com/org/repo", "GitHub.com:org/repo", "oci://" + host + "/x", " http://" + host + "/x",
		} {
			archive := pathFixture(kustomization, path)
			_, _, err := new(Builder).Build(t.Context(), txtarFS(t, archive), "a", remote.Bases{})
			if err == nil || !strings.Contains(err.Error(), "is remote, or looks so") {
				t.Errorf("%s: %s: have %v", name, path, err)
			}
		}
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// Files outside the repository, or behind a symbolic link, are not read.
func TestNothingOutsideIsRead(t *testing.T) {
	t.Parallel()
	for name, kustomization := range pathFields {
		for path, want := range map[string]string{
			"/etc/passwd":               "is an absolute path",
			"../../../../../etc/passwd": "leads out of the repository",
			"link.yaml":                 "is a symbolic link",
			"linked/cm.yaml":            "is a symbolic link",
			"linked":                    "is a symbolic link",
			"missing.yaml":              "is not in the repository",
			"cm.yaml/x":                 "is not in the repository",
		} {
			t.Run(name+"/"+path, func(t *testing.T) {
				root, _ := repository(t, txtar.Parse([]byte(pathFixture(kustomization, path))))
				outside := t.TempDir()
				if err := os.WriteFile(filepath.Join(outside, "cm.yaml"), []byte(configMap), 0o644); err != nil {
					t.Fatal(err)
				}
				dirs := []string{"a", "a/base", "a/c", "a/sub/x", "a/t"}
				for _, dir := range dirs {
					dir = filepath.Join(root, dir)
					if _, err := os.Stat(dir); err != nil {
						continue
					}
					if err := os.Symlink(filepath.Join(outside, "cm.yaml"), filepath.Join(dir, "link.yaml")); err != nil {
						t.Fatal(err)
					}
					if err := os.Symlink(outside, filepath.Join(dir, "linked")); err != nil {
						t.Fatal(err)
					}
				}
				_, _, err := new(Builder).Build(t.Context(), os.DirFS(root), "a", remote.Bases{})
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("have %v, want one with %q", err, want)
				}
			})
		}
	}
}

func TestBuildFaults(t *testing.T) {
	t.Parallel()
	deployment := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {x: 1}\n"
	for _, tt := range []struct{ name, archive, want string }{
		{"no directory", "-- b/x --\n", `the build: "a" is not in the repository (looked for a)`},
		{"a file", "-- a --\n", "a: is a file; a build starts from a directory"},
		{"empty", "-- a/kustomization.yaml --\n", "a/kustomization.yaml: is empty; list the resources"},
		{"no fields", "-- a/kustomization.yaml --\nkind: Kustomization\n", "a/kustomization.yaml: has no fields"},
		{"empty path", "-- a/kustomization.yaml --\nresources: ['']\n", "a/kustomization.yaml:1: resources: names an empty path"},
		{"two files", "-- a/kustomization.yaml --\nresources: []\n-- a/Kustomization --\nresources: []\n", "a: has several kustomization files (a/kustomization.yaml, a/Kustomization); keep one"},
		{"two documents", "-- a/kustomization.yaml --\nresources: []\n---\nresources: []\n", "a/kustomization.yaml:3: a kustomization file holds one document"},
		{"unknown field", "-- a/kustomization.yaml --\nresources: []\nresource: []\n", `a/kustomization.yaml:2: a kustomization has no field "resource"`},
		{"misspelt field", "-- a/kustomization.yaml --\nresuorces: []\n", `a/kustomization.yaml:1: a kustomization has no field "resuorces"; did you mean resources?`},
		{"misspelt resource", "-- a/kustomization.yaml --\nresources: [setings.yaml]\n-- a/settings.yaml --\n" + configMap, `resources: "setings.yaml" is not in the repository (looked for a/setings.yaml); did you mean a/settings.yaml?`},
		{"misspelt base", "-- a/kustomization.yaml --\nresources: [../bsae]\n-- base/kustomization.yaml --\nresources: []\n", "did you mean base?"},
		{"misspelt file", "-- a/kustomisation.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap, "a/kustomisation.yaml:1: a kustomization is found by its name: rename the file to kustomization.yaml"},
		{"file of another name", "-- a/all.yaml --\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap, "a/all.yaml:1: a kustomization is found by its name: rename the file to kustomization.yaml"},
		{"base with a misspelt file", "-- a/kustomization.yaml --\nresources: [../b]\n-- b/kustomizaton.yaml --\nresources: []\n", "b: has no kustomization file (kustomization.yaml, kustomization.yml, Kustomization); rename b/kustomizaton.yaml"},
		{"tab", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n\tnamespace: b\n", "a/b.yaml:5: the indentation has a tab; YAML takes spaces alone"},
		{"duplicate field", "-- a/kustomization.yaml --\nresources: []\nresources: [x]\n", `a/kustomization.yaml:2: duplicate key "resources"`},
		{"wrong type", "-- a/kustomization.yaml --\nresources: x\n", "a/kustomization.yaml: cannot unmarshal string into Go struct field Kustomization.resources of type []string"},
		{"wrong kind", "-- a/kustomization.yaml --\nkind: Pod\nresources: []\n", "kind should be Kustomization or Component"},
		{"not YAML", "-- a/kustomization.yaml --\nresources: [\n", "a/kustomization.yaml:"},
		{"base without a file", "-- a/kustomization.yaml --\nresources: [../b]\n-- b/x.yaml --\n", "b: has no kustomization file (kustomization.yaml, kustomization.yml, Kustomization)"},
		{"component as resource", "-- a/kustomization.yaml --\nresources: [../b]\n-- b/kustomization.yaml --\nkind: Component\nresources: []\n", "b/kustomization.yaml: is a Component; name b under components"},
		{"resource as component", "-- a/kustomization.yaml --\ncomponents: [../b]\n-- b/kustomization.yaml --\nresources: []\n", "b/kustomization.yaml: is not a Component"},
		{"file as component", "-- a/kustomization.yaml --\ncomponents: [b.yaml]\n-- a/b.yaml --\n", `a/kustomization.yaml:1: components: "b.yaml" is a file`},
		{"directory as patch", "-- a/kustomization.yaml --\nresources: []\npatches: [{path: b}]\n-- a/b/x.yaml --\n", `a/kustomization.yaml:2: patches.path: "b" is a directory, want a file`},
		{"no object", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "---\nx: 1\n", "a/b.yaml:5: is not a Kubernetes object: kind is missing"},
		{"no name", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n\nkind: ConfigMap\n", "a/b.yaml:2: ConfigMap: metadata.name is missing"},
		{"number as name", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: ConfigMap\nmetadata: {name: 123}\n", "a/b.yaml:1: ConfigMap: metadata.name is the number 123: quote it"},
		{"no apiVersion", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n\nkind: ConfigMap\nmetadata: {name: a}\n", "a/b.yaml:2: apiVersion: is missing"},
		{"number as label", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: A\napiVersion: v1\nmetadata: {name: a, labels: {x: 1}}\n", "a/b.yaml:1: a/a: metadata.labels: x: want a string, have 1; quote it"},
		{"mapping as annotation", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "---\nkind: Secret\napiVersion: v1\nmetadata:\n  name: a\n  annotations:\n    a: 1\n    c: {x: hunter2}\n", "a/b.yaml:11: secret/a: metadata.annotations: c: want a string, have a mapping, which would be lost"},
		{"list as label", "-- a/kustomization.yaml --\nresources: [b.yaml]\nlabels: [{pairs: {x: z}}]\n-- a/b.yaml --\nkind: A\napiVersion: v1\nmetadata:\n  name: a\n  labels:\n    c: [hunter2]\n", "a/b.yaml:6: a/a: metadata.labels: c: want a string, have a list"},
		{"mapping as annotation in a list", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: List\napiVersion: v1\nitems:\n- {kind: A, apiVersion: v1, metadata: {name: a}}\n- kind: A\n  apiVersion: v1\n  metadata:\n    name: b\n    annotations:\n      f: {x: y}\n", "a/b.yaml:10: a/b: metadata.annotations: f: want a string, have a mapping"},
		{"list of annotations", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: A\napiVersion: v1\nmetadata:\n  name: a\n  annotations: [hunter2]\n", "a/b.yaml:5: a/a: metadata.annotations: want a mapping of strings, have a list"},
		{"mapping as annotation in a patch", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n" + configMap + "---\nkind: ConfigMap\napiVersion: v1\nmetadata:\n  name: a\n  annotations: {b: null, $patch: merge}\n  labels:\n    x: 1\n    z: {hunter2: hunter2}\n", "a/p.yaml:12: metadata.labels: z: want a string, have a mapping"},
		{"list as annotation in an inline patch", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n- patch: '{kind: ConfigMap, apiVersion: v1, metadata: {name: a, annotations: {a: [hunter2]}}}'\n-- a/b.yaml --\n" + configMap, "a/kustomization.yaml:3: patches: the patch: metadata.annotations: a: want a string, have a list"},
		{"list as annotation in a merge patch", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatchesStrategicMerge:\n- '{kind: ConfigMap, apiVersion: v1, metadata: {name: a, annotations: {a: [hunter2]}}}'\n-- a/b.yaml --\n" + configMap, "a/kustomization.yaml:3: patchesStrategicMerge: the patch: metadata.annotations: a: want a string, have a list"},
		{"mapping as annotation by an operation", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n- {op: add, path: /metadata/labels, value: {a: b}}\n- op: add\n  path: /metadata/annotations/a~1b\n  value: {x: hunter2}\n", "a/p.yaml:4: metadata.annotations: a/b: want a string, have a mapping"},
		{"list as annotation that is not quoted", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: Provider\napiVersion: pkg.crossplane.io/v1\nmetadata:\n  name: p\n  annotations: {gitopsd.dev/depends-on: package/a, package/b}\nspec: {package: 'example.org/p:v1'}\n", `a/b.yaml:5: provider.pkg.crossplane.io/p: metadata.annotations: package/b: want a string, have null; if it is a part of the value before a comma, quote the whole value, else write "" for an empty one`},
		{"null by an operation", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n- op: add\n  path: /metadata/annotations\n  value: {x: null}\n", "a/p.yaml:3: metadata.annotations: x: want a string, have null"},
		{"date", "-- a/b.yaml --\n" + configMap + "---\nkind: ConfigMap\napiVersion: v1\nmetadata: {name: b, annotations: {a: 2012-10-17}}\ndata:\n  a: \"2012-10-17\"\n  at: 2012-10-17T00:00:00Z\n  b: 2012-10-17\n", "a/b.yaml:11: data.b: is a date without quotes, which kustomize would write as a time; quote it"},
		{"date by an alias in a list", "-- a/b.yaml --\nkind: List\napiVersion: v1\nitems:\n- kind: A\n  apiVersion: v1\n  metadata:\n    name: a\n    annotations: {a: &date 2012-10-17 10:00:00}\n  spec: [*date]\n", "a/b.yaml:8: items.0.spec.0: is a date"},
		{"date in a patch", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n" + configMap + "data:\n  a: 2012-10-17\n", "a/p.yaml:5: data.a: is a date"},
		{"date in an inline patch", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n- patch: '{kind: ConfigMap, apiVersion: v1, metadata: {name: a}, data: {a: 2012-10-17}}'\n-- a/b.yaml --\n" + configMap, "a/kustomization.yaml:3: patches: the patch: data.a: is a date"},
		{"merge key in quotes", "-- a/b.yaml --\nkind: A\napiVersion: v1\nmetadata: {name: a}\nspec:\n- x:\n    '<<': 1\n", "a/b.yaml:6: a/a: spec.0.x.<<: kustomize reads this key as a merge, and would lose it; use another"},
		{"long number under operations", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n- path: p.yaml\n  target: {kind: A}\n-- a/b.yaml --\nkind: A\napiVersion: v1\nmetadata: {name: a}\nspec: {x: 9007199254740993}\n-- a/p.yaml --\n- {op: remove, path: /spec/y}\n", "a/kustomization.yaml:3: patches: a/a (a/b.yaml:1): spec.x: JSON 6902 operations would round this number; use a strategic merge patch"},
		{"long number in an operation", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n- op: add\n  path: /x\n  value: {x: -9007199254740993}\n", "a/p.yaml:3: 0.value.x: JSON 6902 operations would round this number"},
		{"duplicate key", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "kind: X\n", `a/b.yaml:4: duplicate key "kind"`},
		{"infinity", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "x: .inf\n", "a/b.yaml:4: the value is not a number that JSON can hold"},
		{"number as key", "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "data: {9000: hunter2}\n", "ConfigMap a: a key is a number, true, false or null; quote it"},
		{"same object in two files", "-- a/kustomization.yaml --\nresources: [b.yaml, ../c]\n-- a/b.yaml --\n" + configMap + "-- c/kustomization.yaml --\nresources: [d.yaml]\n-- c/d.yaml --\n\n" + configMap, "c: ConfigMap a is defined more than once: by a/b.yaml:1 and by c/d.yaml:2; keep one definition"},
		{"same file twice", "-- a/kustomization.yaml --\nresources: [b.yaml, b.yaml]\n-- a/b.yaml --\n" + configMap, "a: ConfigMap a is defined more than once: by a/b.yaml:1, which is used more than once"},
		{"patch for nothing", "-- a/kustomization.yaml --\nresources: [../b]\n-- b/kustomization.yaml --\nresources: [c.yaml]\npatches: [{path: p.yaml}]\n-- b/c.yaml --\n" + configMap + "-- b/p.yaml --\n" + deployment, "b/kustomization.yaml:2: patches[0] (p.yaml): a patch is for Deployment d, which is not among the resources"},
		{"patch with several targets", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatchesStrategicMerge: [p.yaml]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n" + deployment, "a/kustomization.yaml:2: patchesStrategicMerge[0] (p.yaml): a patch is for Deployment d, which is not among the resources"},
		{"JSON patch for no field", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{target: {kind: ConfigMap}, patch: '- {op: remove, path: /x}'}]\n-- a/b.yaml --\n" + configMap, "a/kustomization.yaml:2: patches[0] (for kind: ConfigMap): error in remove for path: '/x': Unable to remove nonexistent key"},
		{"one of several JSON patches", "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n- {target: {kind: ConfigMap}, patch: '- {op: add, path: /x, value: 1}'}\n- {target: {kind: ConfigMap}, patch: '- {op: remove, path: /x}'}\n- path: p.yaml\n  target: {kind: ConfigMap, name: a}\n- {target: {kind: ConfigMap}, patch: '- {op: add, path: /x, value: 1}'}\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n- {op: remove, path: /x}\n", "a/kustomization.yaml:6: patches[2] (p.yaml, for kind: ConfigMap, name: a): error in remove for path: '/x'"},
		{"malformed inline patch", "-- a/kustomization.yaml --\nresources: []\npatches:\n- patch: '{a: b, a: c}'\n", `a/kustomization.yaml:3: patches: the patch, line 1: duplicate key "a"`},
		{"merge with nothing", "-- a/kustomization.yaml --\nconfigMapGenerator: [{name: x, behavior: merge, literals: [a=b]}]\n", "a: a generator is to merge with or replace ConfigMap x, which is not among the resources"},
		{"nothing to replace from", "-- a/kustomization.yaml --\nresources: [b.yaml]\nreplacements: [{source: {kind: X, name: z}, targets: [{select: {kind: ConfigMap}}]}]\n-- a/b.yaml --\n" + configMap, "a: nothing selected by X z"},
		{"nothing to replace from, at a field", "-- a/kustomization.yaml --\nresources: [b.yaml]\nreplacements: [{source: {kind: X, name: z.y, namespace: w, fieldPath: spec.serviceName}, targets: [{select: {kind: ConfigMap}}]}]\n-- a/b.yaml --\n" + configMap, "a: nothing selected by X z.y:spec.serviceName"},
		{"in a component", "-- a/kustomization.yaml --\nresources: [b.yaml]\ncomponents: [c]\n-- a/b.yaml --\n" + configMap + "-- a/c/kustomization.yaml --\nkind: Component\nreplacements: [{source: {kind: X, name: z}, targets: [{select: {kind: ConfigMap}}]}]\n", "a/c: nothing selected by X z"},
		{"Helm", "-- a/kustomization.yaml --\nresources: []\nhelmCharts: [{name: x, repo: 'https://example.org'}]\n", "a/kustomization.yaml:2: helmCharts: gitopsd does not inflate Helm charts"},
		{"old Helm", "-- a/kustomization.yaml --\nhelmChartInflationGenerator: [{chartName: x}]\n", "a/kustomization.yaml:1: helmCharts:"},
		{"Helm as generator", "-- a/kustomization.yaml --\ngenerators: [g.yaml]\n-- a/g.yaml --\nkind: HelmChartInflationGenerator\n" + builtin + "name: x\nrepo: https://example.org\n", "a/g.yaml: HelmChartInflationGenerator: gitopsd does not inflate Helm charts; commit the output of `helm template`"},
		{"plugin", "-- a/kustomization.yaml --\ngenerators: [g.yaml]\n-- a/g.yaml --\n\napiVersion: example.org/v1\nkind: X\nmetadata: {name: x}\n", `a/g.yaml:2: X "x": apiVersion example.org/v1: gitopsd runs no plugins or functions, only what is built into kustomize (apiVersion: builtin); commit what it makes`},
		{"exec function", "-- a/kustomization.yaml --\nresources: []\ntransformers:\n- |\n  apiVersion: v1\n  kind: X\n  metadata:\n    name: x\n    annotations: {config.kubernetes.io/function: 'exec: {path: /bin/true}'}\n", "gitopsd runs no plugins or functions"},
		{"local plugin config", "-- a/kustomization.yaml --\nresources: []\ntransformers:\n- |\n  apiVersion: v1\n  kind: X\n  metadata:\n    name: x\n    annotations: {config.kubernetes.io/local-config: 'true'}\n", "gitopsd runs no plugins or functions"},
		{"plugin like an address", "-- a/kustomization.yaml --\nresources: []\ntransformers:\n- |\n  ssh://example.org/org/repo: 1\n  kind: LabelTransformer\n  " + indent(builtin), "a/kustomization.yaml:3: transformers: YAML must not begin like the address of a repository"},
		{"patch like an address", "-- a/kustomization.yaml --\nresources: []\npatchesStrategicMerge:\n- 'git@example.org/org/repo: {}\n\n  kind: A\n\n  metadata: {name: a}'\n", "YAML must not begin like the address of a repository"},
		{"computed plugin", "-- a/kustomization.yaml --\nresources: [b.yaml]\ntransformers: [t]\n-- a/b.yaml --\n" + configMap + "-- a/t/kustomization.yaml --\nresources: [t.yaml]\npatches: [{target: {kind: PatchTransformer}, patch: '- {op: replace, path: /path, value: \"http://example.org\"}'}]\n-- a/t/t.yaml --\nkind: PatchTransformer\n" + builtin + "path: ../b.yaml\n", "a/t/kustomization.yaml: lists generators, transformers or validators, and may therefore have no field but resources"},
		{"generated plugin", "-- a/kustomization.yaml --\nresources: []\ntransformers: [t]\n-- a/t/kustomization.yaml --\ngenerators: [g.yaml]\n-- a/t/g.yaml --\n", "may therefore have no field but resources"},
		{"crds with an object", "-- a/kustomization.yaml --\nresources: []\ncrds: [c.yaml]\n-- a/c.yaml --\n" + configMap, "a/c.yaml: crds: want a mapping of type names"},
		{"empty crds", "-- a/kustomization.yaml --\nresources: []\ncrds: [c.yaml]\n-- a/c.yaml --\n", "a/c.yaml: has 0 documents; crds wants a file with one"},
		{"bad openapi", "-- a/kustomization.yaml --\nresources: [b.yaml]\nopenapi: {path: s.yaml}\nnamespace: x\n-- a/b.yaml --\nkind: Unknown\napiVersion: x/v1\nmetadata: {name: a}\n-- a/s.yaml --\ndefinitions: {A: {x-kubernetes-group-version-kind: [{group: 1}]}}\n", "kustomize cannot cope with this input"},
		{"unknown openapi version", "-- a/kustomization.yaml --\nresources: []\nopenapi: {version: v9}\n", "a: the specified OpenAPI version is not built in"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			objects, _, err := new(Builder).Build(t.Context(), txtarFS(t, tt.archive), "a", remote.Bases{})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter") {
				t.Errorf("have %v, %v\nwant an error with %q", objects, err, tt.want)
			}
		})
	}
}

// Builds that do not end or take too much are refused before kustomize sees them.
func TestBuildEnds(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	base := func(dir string, bases ...string) string {
		return "-- " + dir + "/kustomization.yaml --\nnamePrefix: x-\nresources: [" + strings.Join(bases, ", ") + "]\n"
	}
	var doubling, deep strings.Builder
	for i := range 20 {
		fmt.Fprintf(&doubling, "-- n%d/kustomization.yaml --\nresources: [l, r]\n-- n%d/l/kustomization.yaml --\nresources: [../../n%d]\nnamePrefix: l-\n-- n%d/r/kustomization.yaml --\nresources: [../../n%d]\nnamePrefix: r-\n", i, i, i+1, i, i+1)
	}
	doubling.WriteString("-- n20/kustomization.yaml --\nresources: []\n")
	for i := range 60 {
		deep.WriteString(base(fmt.Sprintf("n%d", i), fmt.Sprintf("../n%d", i+1)))
	}
	bomb := "x: &x0 [a,a,a,a,a,a,a,a,a,a]\n"
	for i := range 8 {
		bomb += fmt.Sprintf("x%d: &x%d [*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d,*x%d]\n", i+1, i+1, i, i, i, i, i, i, i, i, i, i)
	}
	growing := "replacements:\n" + many(40, "- {source: {kind: ConfigMap, name: a, fieldPath: data}, targets: [{select: {kind: ConfigMap}, fieldPaths: [data.x%d], options: {create: true}}]}\n")
	large, objects := strings.Repeat("a", 1<<20), many(600, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\n")
	for _, tt := range []struct {
		name, archive, want string
		limit               bool
	}{
		{name: "itself", archive: base("a", "."), want: "a: is used by a, which is in it"},
		{name: "loop", archive: base("a", "../b") + base("b", "../c") + base("c", "../b"), want: "b: is used by b -> c, which is in it"},
		{name: "parent", archive: base("a", "b") + base("a/b", ".."), want: "a: is used by a/b, which is in it"},
		{name: "component loop", archive: "-- a/kustomization.yaml --\ncomponents: [../c]\n-- c/kustomization.yaml --\nkind: Component\ncomponents: [../c]\n", want: "c: is used by c, which is in it"},
		{name: "plugin loop", archive: "-- a/kustomization.yaml --\ntransformers: [../t]\n-- t/kustomization.yaml --\nresources: [../t]\n", want: "t: is used by t, which is in it"},
		{name: "plugins of the kustomization itself", archive: "-- a/kustomization.yaml --\ntransformers: [.]\n", want: "a: is used by a, which is in it"},
		{name: "doubling", archive: strings.Replace(doubling.String(), "n0/", "a/", 3), want: "more than 2000000 steps", limit: true},
		{name: "deep", archive: strings.Replace(deep.String(), "n0/", "a/", 1), want: "nested deeper than 50", limit: true},
		{name: "objects", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + many(5001, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\n"), want: "more than 5000 objects", limit: true},
		{name: "objects in lists", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\nkind: List\napiVersion: v1\nitems:\n" + many(5001, "- {apiVersion: v1, kind: ConfigMap, metadata: {name: a%d}}\n"), want: "more than 5000 objects", limit: true},
		{name: "generated objects", archive: "-- a/kustomization.yaml --\nconfigMapGenerator:\n" + many(5001, "- {name: a%d}\n"), want: "more than 5000 objects", limit: true},
		{name: "bytes", archive: "-- a/kustomization.yaml --\nconfigMapGenerator:\n" + many(70, "- {name: a%d, files: [big]}\n") + "-- a/big --\n" + strings.Repeat("x", 1<<20), want: "reads more than 67108864 bytes", limit: true},
		{name: "aliases", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + bomb, want: "are aliases nested?", limit: true},
		{name: "aliases in a patch", archive: "-- a/kustomization.yaml --\nresources: []\npatches:\n- patch: |\n    " + strings.ReplaceAll(configMap+bomb, "\n", "\n    "), want: "are aliases nested?", limit: true},
		{name: "aliases in a kustomization", archive: "-- a/kustomization.yaml --\n" + bomb, want: "are aliases nested?", limit: true},
		{name: "depth", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "x: " + strings.Repeat("[", 600) + strings.Repeat("]", 600), want: "nested deeper", limit: true},
		{name: "names", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + many(1000, "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a%d}\nspec: {volumes: ["+strings.Repeat("{name: v, configMap: {name: c}},", 30)+"]}\n"), want: "more than 50000000 names, times objects", limit: true},
		{name: "wide mapping", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\n" + configMap + "data:\n" + many(32_000, "  k%d: v\n"), want: "too many entries for kustomize", limit: true},
		{name: "wide mapping in a patch", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml}]\n-- a/b.yaml --\n" + configMap + "-- a/p.yaml --\n" + configMap + "data:\n" + many(32_000, "  k%d: v\n"), want: "too many entries for kustomize", limit: true},
		{name: "wide environment", archive: "-- a/kustomization.yaml --\nsecretGenerator: [{name: s, envs: [e]}]\n-- a/e --\n" + many(32_000, "K%d=v\n"), want: "too many entries for kustomize", limit: true},
		{name: "mapping with many patches", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n" + many(120, "- {target: {kind: ConfigMap}, patch: '[{op: remove, path: /data/k%d}]'}\n") + "-- a/b.yaml --\n" + configMap + "data:\n" + many(3_000, "  k%d: v\n"), want: "too many entries for kustomize", limit: true},
		{name: "long list that is merged", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatchesStrategicMerge:\n- |-\n  apiVersion: v1\n  kind: Pod\n  metadata: {name: a}\n  spec: {containers: [{name: k0, image: x}]}\n-- a/b.yaml --\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + many(2_300, "  - {name: k%d}\n"), want: "too many entries for kustomize", limit: true},
		{name: "long list that is not", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n-- a/b.yaml --\napiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n" + many(2_300, "  - {name: k%d}\n"), want: ""},
		{name: "long list in a custom resource", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{target: {kind: PrometheusRule}, patch: '[{\"op\": \"add\", \"path\": \"/metadata/labels\", \"value\": {}}]'}]\n-- a/b.yaml --\n" + "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: a}\nspec:\n  groups:\n  - name: g\n    rules:\n" + many(3_000, "    - {alert: a%d, expr: up}\n"), want: ""},
		{name: "long list in a custom resource with a schema", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nopenapi: {path: s.json}\npatches: [{target: {kind: PrometheusRule}, patch: '[{\"op\": \"add\", \"path\": \"/metadata/labels\", \"value\": {}}]'}]\n-- a/s.json --\n{\"definitions\": {}}\n-- a/b.yaml --\n" + "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: a}\nspec:\n  groups:\n  - name: g\n    rules:\n" + many(3_000, "    - {alert: a%d, expr: up}\n"), want: "too many entries for kustomize", limit: true},
		{name: "steps", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nimages:\n" + many(1000, "- {name: i%d, newTag: x}\n") + "-- a/b.yaml --\n" + many(3000, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a%d}\n"), want: "more than 2000000 steps", limit: true},
		{name: "large annotation", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\ncommonAnnotations:\n  k: v\n  x: " + large + "\n-- a/b.yaml --\n" + objects, want: "a/kustomization.yaml:4: commonAnnotations: x: up to 629146200 bytes in all objects", limit: true},
		{name: "large label", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nlabels:\n- pairs: {x: " + large + "}\n-- a/b.yaml --\n" + objects, want: "a/kustomization.yaml:3: labels[0]: x: up to", limit: true},
		{name: "large name", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nnamePrefix: " + large + "\n-- a/b.yaml --\n" + objects, want: "a/kustomization.yaml:2: namePrefix: up to", limit: true},
		{name: "large image", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nimages: [{name: a, newTag: " + large + "}]\n-- a/b.yaml --\n" + objects, want: "a/kustomization.yaml:2: images: up to", limit: true},
		{name: "large patch", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap}}]\n-- a/p.yaml --\n" + configMap + "data: {x: " + large + "}\n-- a/b.yaml --\n" + objects, want: "a/p.yaml: patches: up to", limit: true},
		{name: "large patch of one object", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches: [{path: p.yaml, target: {kind: ConfigMap, name: a1}}]\n-- a/p.yaml --\n" + configMap + "data: {x: " + large + "}\n-- a/b.yaml --\n" + objects},
		{name: "JSON patches of a large object", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n" + many(600, "- {target: {kind: ConfigMap}, patch: '[{op: add, path: /x%d, value: y}]'}\n") + "-- a/b.yaml --\n" + configMap + "data: {x: " + large + "}\n", want: "patches: up to", limit: true},
		{name: "large replacement", archive: "-- a/kustomization.yaml --\nresources: [b.yaml, c.yaml]\nreplacements:\n- source: {kind: Source, name: s, fieldPath: x}\n  targets: [{select: {kind: ConfigMap}, fieldPaths: [data.x]}]\n-- a/c.yaml --\napiVersion: v1\nkind: Source\nmetadata: {name: s}\nx: " + large + "\n-- a/b.yaml --\n" + objects, want: "a/kustomization.yaml: replacements: up to", limit: true},
		{name: "large annotation by a transformer", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\ntransformers: [t.yaml]\n-- a/t.yaml --\nkind: AnnotationsTransformer\n" + builtin + "annotations: {x: " + large + "}\nfieldSpecs: [{path: metadata/annotations, create: true}]\n-- a/b.yaml --\n" + objects, want: "a/t.yaml: AnnotationsTransformer: up to", limit: true},
		{name: "replacements that grow", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\n" + growing + "-- a/b.yaml --\n" + configMap + "data: {a: b}\n", want: "could make the value more than 1000 times as large", limit: true},
		{name: "replacements that grow, in a file", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\nreplacements: [{path: r.yaml}]\n-- a/b.yaml --\n" + configMap + "-- a/r.yaml --\n" + strings.TrimPrefix(growing, "replacements:\n"), want: "more than 1000 times as large", limit: true},
		{name: "replacements that grow, in a plugin", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\ntransformers: [r.yaml]\n-- a/b.yaml --\n" + configMap + "-- a/r.yaml --\nkind: ReplacementTransformer\n" + builtin + growing, want: "more than 1000 times as large", limit: true},
		{name: "copies that grow", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n- target: {kind: ConfigMap}\n  patch: |\n" + many(40, "    - {op: copy, from: /data, path: /data/x%d}\n") + "-- a/b.yaml --\n" + configMap + "data: {a: b}\n", want: "more than 1000 times as large", limit: true},
		{name: "copies that grow, in patches", archive: "-- a/kustomization.yaml --\nresources: [b.yaml]\npatches:\n" + many(40, "- target: {kind: ConfigMap}\n  patch: '[{\"op\": \"copy\", \"from\": \"/data\", \"path\": \"/data/x%d\"}]'\n") + "-- a/b.yaml --\n" + configMap + "data: {a: b}\n", want: "more than 1000 times as large", limit: true},
		{name: "schema that refers to itself", archive: "-- a/kustomization.yaml --\nresources: []\nopenapi: {path: s.json}\n-- a/s.json --\n{\"definitions\": {\"A\": {\"$ref\": \"#/definitions/B\"}, \"B\": {\"$ref\": \"#/definitions/A\"}}}", want: "refers to itself"},
		{name: "schema with odd references", archive: "-- a/kustomization.yaml --\nresources: []\nopenapi: {path: s.json}\n-- a/s.json --\n{\"definitions\": {\"A\": {\"properties\": {\"x\": {\"$ref\": \"#/definitions/A/properties/x\"}}}}}", want: "want #/definitions/<name>"},
		{name: "crds that hold themselves", archive: "-- a/kustomization.yaml --\nresources: []\ncrds: [c.json]\n-- a/c.json --\n{\"A\": {\"Schema\": {\"properties\": {\"apiVersion\": {}, \"kind\": {}, \"metadata\": {}, \"a\": {\"$ref\": \"A\"}}}}}", want: `definition "A" holds itself`},
		{name: "crds that expand", archive: "-- a/kustomization.yaml --\nresources: []\ncrds: [c.json]\n-- a/c.json --\n{" + many(20, `"A%[1]d": {"Schema": {"properties": {"a": {"$ref": "A1%[1]d"}, "b": {"$ref": "A1%[1]d"}}}}, `) + `"A": {}}`, want: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := new(Builder).Build(t.Context(), txtarFS(t, tt.archive), "a", remote.Bases{})
			if tt.want == "" {
				if err != nil {
					t.Errorf("have %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("have %v\nwant an error with %q", err, tt.want)
			}
			if errors.Is(err, sources.ErrLimit) != tt.limit {
				t.Errorf("errors.Is(%v, sources.ErrLimit) = %t", err, !tt.limit)
			}
		})
	}
}

// The number of kustomizations is not limited, only their cost.
func TestManyKustomizations(t *testing.T) {
	t.Parallel()
	const n = 1_500
	files := fstest.MapFS{}
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "- k%d\n", i)
		if i%10 > 0 { // most have no object, which would cost more than they do
			files[fmt.Sprintf("a/k%d/kustomization.yaml", i)] = &fstest.MapFile{Data: []byte("resources: []\nnamePrefix: x-\n")}
			continue
		}
		files[fmt.Sprintf("a/k%d/kustomization.yaml", i)] = &fstest.MapFile{Data: []byte("resources: [c.yaml]\nnamePrefix: x-\n")}
		files[fmt.Sprintf("a/k%d/c.yaml", i)] = &fstest.MapFile{Data: fmt.Appendf(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c%d}\n", i)}
	}
	files["a/kustomization.yaml"] = &fstest.MapFile{Data: []byte("resources:\n" + all.String())}
	objects, _, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{})
	if err != nil || len(objects) != n/10 {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}

// A directory without a kustomization file may be large.
func TestAutodetectEnds(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{}
	for i := range maxEntries + 1 {
		files[fmt.Sprintf("a/%d.txt", i)] = &fstest.MapFile{}
	}
	if _, _, err := new(Builder).Build(t.Context(), files, "a", remote.Bases{}); !errors.Is(err, sources.ErrLimit) {
		t.Errorf("have %v", err)
	}
}

func TestBuildIsCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	files := txtarFS(t, "-- a/kustomization.yaml --\nresources: []\n-- b/x.yaml --\n")
	for _, dir := range []string{"a", "b"} {
		if _, _, err := new(Builder).Build(ctx, files, dir, remote.Bases{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
