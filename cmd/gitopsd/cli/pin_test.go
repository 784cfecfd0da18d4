package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Files of a person are replaced as a whole, and keep their mode. A symbolic link stays one.
// Nothing is written into the file that was there, as a full disk would then cut it.
func TestFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {path: dev, kubeconfig: {file: dev.yaml}}\n")
	writeFile(t, dir, "dev/kustomization.yaml", "resources: [crd.yaml]\n")
	writeFile(t, dir, "dev/crd.yaml", `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.acme.example}
spec:
  group: acme.example
  scope: Namespaced
  names: {kind: Widget, listKind: WidgetList, plural: widgets, singular: widget}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`)
	widget := "apiVersion: acme.example/v1\nkind: Widget\nmetadata: {name: small}\n"
	lock := "@dev registry.example.org/acme/widgets v1.0.0\n"
	for _, tt := range []struct {
		before, want string
		args         func(file string) []string
	}{
		{before: widget, want: "gitopsd.dev/type", args: func(file string) []string { return []string{"types", "pin", "--repo", dir, file} }},
		{before: "", want: lock, args: func(file string) []string {
			return []string{"lock", "merge", writeFile(t, dir, "base", ""), file, writeFile(t, dir, "theirs", lock)}
		}},
	} {
		place := t.TempDir()
		file := writeFile(t, place, "file.yaml", tt.before)
		link, second := filepath.Join(place, "link.yaml"), filepath.Join(place, "second.yaml")
		if err := errors.Join(os.Chmod(file, 0o640), os.Symlink("file.yaml", link), os.Link(file, second)); err != nil {
			t.Fatal(err)
		}
		args := tt.args(link)
		if code, _, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, args...); code != 0 {
			t.Fatalf("%q: %d %s", args, code, stderr)
		}
		text, err := os.ReadFile(link)
		if err != nil || !strings.Contains(string(text), tt.want) {
			t.Errorf("%q wrote %q, %v", args, text, err)
		}
		if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%q replaced a symbolic link: %v", args, err)
		}
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%q changed the mode: %v, %v", args, info.Mode(), err)
		}
		if text, err := os.ReadFile(second); err != nil || string(text) != tt.before {
			t.Errorf("%q wrote into the file that was there: %q, %v", args, text, err)
		}
		if left, err := os.ReadDir(place); err != nil || len(left) != 3 {
			t.Errorf("%q left %v, %v", args, left, err)
		}
	}
}
