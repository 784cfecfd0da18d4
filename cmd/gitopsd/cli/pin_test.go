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

// While a cluster has errors it may define any type: a check says so, and asks nobody to remove
// a pin. Objects that no CRD defines in any case need none.
func TestPinsThatCannotBeChecked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: prod}\nspec: {path: prod, kubeconfig: {file: prod.yaml}}\n")
	writeFile(t, dir, "prod/kustomization.yaml", "resources: [bad.yaml]\n")
	writeFile(t, dir, "prod/bad.yaml", "a: [\n")
	widget := writeFile(t, dir, "widget.yaml", "apiVersion: acme.example/v1\nkind: Widget\nmetadata: {name: small}\n")
	pinned := writeFile(t, dir, "pinned.yaml", "apiVersion: acme.example/v1\nkind: Widget\nmetadata: {name: small, annotations: {gitopsd.dev/type: 'h1:nRLEOxiY2AjXEnRY25F8/lNTIYk/2q2G5gZXlk1iCZQ='}}\n")
	settings := writeFile(t, dir, "settings.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n")
	const want = "cannot be pinned: whether a CRD defines acme.example/v1 Widget is not known while 1 cluster has errors (prod): correct that first"
	for file, unknown := range map[string]bool{widget: true, pinned: true, settings: false} {
		code, _, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, "types", "pin", "--check", "--repo", dir, file)
		if unknown != (code == 1) || unknown != strings.Contains(stderr, want) || strings.Contains(stderr, "remove the annotation") {
			t.Errorf("%s: status %d, %s", filepath.Base(file), code, stderr)
		}
	}
}
