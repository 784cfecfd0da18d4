package manifest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
)

// TestSpelledOnce fails for each string in the code that spells out a group, kind, label or
// annotation of this package. Package sources and its dependencies cannot import this one,
// and tests spell out names as people do.
func TestSpelledOnce(t *testing.T) {
	root := os.DirFS("../..")
	known := make(map[string]string)
	for _, name := range []string{"render/manifest/kinds.go", "render/manifest/ours.go"} {
		for text := range spelled(t, root, name) {
			if strings.Contains(text, ".") && len(text) > 1 || strings.ToLower(text) != text && text != "apiVersion" {
				known[text] = name
			}
		}
	}
	if len(known) < 40 {
		t.Fatalf("%d names were found; is this the repository?", len(known))
	}
	for _, dir := range []string{"render", "reconcile", "cmd/gitopsd"} {
		err := fs.WalkDir(root, dir, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.Name() == "testdata": // what people write, too
				return fs.SkipDir
			case !strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go"):
				return nil
			}
			for text, pos := range spelled(t, root, name) {
				if by := known[text]; by != "" && by != name {
					t.Errorf("%s spells %q; %s has a name for it", pos, text, by)
				}
				if strings.Contains(text, manifest.Group+"/") {
					t.Errorf("%s spells a label or annotation in %q; render/manifest/ours.go has names for them", pos, text)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// spelled returns the strings in a file and their places, without its imports.
func spelled(t *testing.T, root fs.FS, name string) map[string]token.Position {
	t.Helper()
	text, err := fs.ReadFile(root, name)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]token.Position)
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				found[s] = files.Position(n.Pos())
			}
		}
		return true
	})
	return found
}
