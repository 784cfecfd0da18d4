package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "gitopsd.dev/"

// rooms are the parts of the code, and the parts that each may import. Data flows one way:
// sources, then render, then reconcile; only cmd knows all.
var rooms = []struct {
	dir     string
	allowed []string
}{
	{"sources", []string{"sources"}},
	{"render", []string{"render", "sources!"}}, // "!": that package alone, not those below it
	{"reconcile", []string{"reconcile", "render", "sources"}},
	{"reconcile/problem", []string{"reconcile/problem!", "reconcile/prose!"}},
	{"reconcile/prose", []string{"reconcile/prose!"}},
	{"testscripts", []string{"testscripts", "sources", "cmd/gitopsd/cli"}},
	{"cmd/gitopsd", []string{"cmd/gitopsd", "reconcile", "render", "sources"}},
}

// owners are the packages that alone import a dependency, and hand out their own types.
var owners = map[string]string{
	"github.com/go-git/go-git":               "sources/git",
	"github.com/ProtonMail/go-crypto":        "sources/git/signed",
	"github.com/hiddeco/sshsig":              "sources/git/signed",
	"github.com/google/go-containerregistry": "sources/oci",
	"github.com/docker":                      "sources/oci",
	"github.com/sigstore":                    "sources/signature",
	"sigs.k8s.io/kustomize":                  "render/kustomize",
	"github.com/fsnotify/fsnotify":           "sources/local",
	"github.com/prometheus":                  "reconcile/status",
	"github.com/google/cel-go":               "render/cel",
	"github.com/spf13":                       "cmd/gitopsd/cli",
	"sigs.k8s.io/controller-runtime":         "cmd/bench", // a rival's
	"github.com/open-policy-agent":           "cmd/bench", // a rival
}

// TestImports reports each import that goes against the flow.
func TestImports(t *testing.T) {
	root := os.DirFS("../..")
	checked := 0
	for _, room := range rooms {
		walkImports(t, root, room.dir, func(file, imported string) {
			checked++
			check(t, file, imported, room.allowed)
		})
	}
	if checked < 500 {
		t.Errorf("only %d imports were found; is this the repository?", checked)
	}
}

// walkImports calls yield for each import of the Go files below a directory.
func walkImports(t *testing.T, root fs.FS, dir string, yield func(file, imported string)) {
	t.Helper()
	err := fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") {
			return err
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			yield(name, imported)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, file, imported string, allowed []string) {
	t.Helper()
	test := strings.HasSuffix(file, "_test.go")
	if ours, ok := strings.CutPrefix(imported, module); ok {
		if test && strings.HasPrefix(ours, "testscripts/") {
			return // servers to test against
		}
		for _, a := range allowed {
			exact, only := strings.CutSuffix(a, "!")
			if ours == exact || !only && strings.HasPrefix(ours, a+"/") {
				return
			}
		}
		t.Errorf("%s imports %s, which is against the flow of data; it may import of ours: %v", file, ours, allowed)
		return
	}
	if test || strings.HasPrefix(file, "testscripts/") {
		return
	}
	for dependency, owner := range owners {
		if (imported == dependency || strings.HasPrefix(imported, dependency+"/")) && !strings.HasPrefix(path.Dir(file)+"/", owner+"/") {
			t.Errorf("%s imports %s, which only %s should know", file, imported, owner)
		}
	}
}

// talks are packages that talk to a server.
var talks = []string{
	"net", "net/http", "k8s.io/client-go", "github.com/go-git/go-git", "github.com/google/go-containerregistry",
	module + "reconcile/kube", module + "reconcile/apply", module + "reconcile/hub", module + "sources/git", module + "sources/oci",
}

// walls are packages of reconcile, and packages that they must not import, directly or by
// another package of ours. Pure functions make the decisions, and packages that talk to
// clusters do not know how the desired state is computed.
var walls = []struct {
	dir   string
	never []string
}{
	{"reconcile/plan", talks},
	{"reconcile/verify", talks},
	{"reconcile/health", talks},
	{"reconcile/rollback", talks},
	{"reconcile/desired", talks},
	{"reconcile/upgrade", talks},
	{"reconcile/kube", []string{module + "reconcile/desired"}},
	{"reconcile/hub", []string{module + "reconcile/desired"}},
	{"reconcile/apply", []string{module + "reconcile/desired"}},
}

// joins are the packages of reconcile that use both the desired state and clusters. verify/live
// only reads clusters, and applications reads an application where it connects to its target.
var joins = []string{"reconcile", "reconcile/applications", "reconcile/unit", "reconcile/verify/live"}

// TestReconcileImports checks the walls inside reconcile. It reports the chain of imports by
// which a package reaches one that it must not.
func TestReconcileImports(t *testing.T) {
	imports := make(map[string][]string) // of packages of ours, without their tests
	for _, room := range []string{"sources", "render", "reconcile"} {
		walkImports(t, os.DirFS("../.."), room, func(file, imported string) {
			if from := module + path.Dir(file); !strings.HasSuffix(file, "_test.go") && !slices.Contains(imports[from], imported) {
				imports[from] = append(imports[from], imported)
			}
		})
	}
	for _, wall := range walls {
		if imports[module+wall.dir] == nil {
			t.Errorf("there is no package %s", wall.dir)
		}
		if way := reaches(imports, module+wall.dir, wall.never); way != nil {
			t.Errorf("%s must not import %s:\n\t%s", wall.dir, way[len(way)-1], strings.Join(way, "\n\timports "))
		}
	}
	for from, list := range imports {
		dir := strings.TrimPrefix(from, module)
		talking := slices.Contains(list, module+"reconcile/kube") || slices.Contains(list, module+"reconcile/apply")
		if talking && slices.Contains(list, module+"reconcile/desired") && !slices.Contains(joins, dir) {
			t.Errorf("%s imports reconcile/desired, and reconcile/kube or reconcile/apply; only cmd and %v join these", dir, joins)
		}
	}
}

// reaches returns the shortest chain of imports from a package to one in never or below it, nil
// if there is none. "net" stands for that package only. Imports of other modules are not
// followed.
func reaches(imports map[string][]string, from string, never []string) []string {
	ways := [][]string{{from}}
	seen := map[string]bool{from: true}
	for len(ways) > 0 {
		way := ways[0]
		ways = ways[1:]
		for _, next := range imports[way[len(way)-1]] {
			if seen[next] {
				continue
			}
			seen[next] = true
			longer := append(slices.Clone(way), next)
			if slices.ContainsFunc(never, func(n string) bool { return next == n || n != "net" && strings.HasPrefix(next, n+"/") }) {
				return longer
			}
			ways = append(ways, longer)
		}
	}
	return nil
}

// The chain is the shortest, with both ends.
func TestReaches(t *testing.T) {
	imports := map[string][]string{"a": {"b", "net/url"}, "b": {"c", "d"}, "c": {"d"}, "d": {"a", "x/y/z"}}
	for _, tt := range []struct {
		from  string
		never []string
		want  []string
	}{
		{"a", []string{"x/y"}, []string{"a", "b", "d", "x/y/z"}},
		{"a", []string{"net"}, nil},
		{"a", []string{"net/url"}, []string{"a", "net/url"}},
		{"a", []string{"x/yy"}, nil},
	} {
		if have := reaches(imports, tt.from, tt.never); !slices.Equal(have, tt.want) {
			t.Errorf("%s to %v: %v, want %v", tt.from, tt.never, have, tt.want)
		}
	}
}
