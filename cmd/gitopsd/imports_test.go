package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
)

const module = "gitopsd.dev/"

// room is a part of the code and what it may import of the other parts. Data
// flows one way: sources, then render, then reconcile; only cmd knows all.
var rooms = []struct {
	dir     string
	allowed []string
}{
	{"sources", []string{"sources"}},
	{"render", []string{"render", "sources!"}}, // "!": that package alone, not those below it
	{"reconcile", []string{"reconcile", "render", "sources"}},
	{"reconcile/prose", []string{"reconcile/prose!"}},
	{"testscripts", []string{"testscripts", "sources", "cmd/gitopsd/cli"}},
	{"cmd/gitopsd", []string{"cmd/gitopsd", "reconcile", "render", "sources"}},
}

// owners are dependencies that one package imports, and hands out types of its
// own for.
var owners = map[string]string{
	"github.com/go-git/go-git":               "sources/git",
	"github.com/google/go-containerregistry": "sources/oci",
	"github.com/sigstore":                    "sources/signature",
	"sigs.k8s.io/kustomize":                  "render/kustomize",
	"github.com/fsnotify/fsnotify":           "sources/local",
	"github.com/prometheus":                  "reconcile/status",
	"github.com/fluxcd/cli-utils":            "reconcile/apply",
	"github.com/google/cel-go":               "render/cel",
	"github.com/spf13":                       "cmd/gitopsd/cli",
}

// TestImports keeps the map of the code true: it prints each import that goes
// against the flow.
func TestImports(t *testing.T) {
	root := os.DirFS("../..")
	checked := 0
	for _, room := range rooms {
		err := fs.WalkDir(root, room.dir, func(name string, d fs.DirEntry, err error) error {
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
				checked++
				check(t, name, imported, room.allowed)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 500 {
		t.Errorf("only %d imports were found; is this the repository?", checked)
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
