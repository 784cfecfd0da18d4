package cli

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// A file that Git ignores is in no commit, and so it is not in the working tree either: run
// would not see it. Tracked files are not ignored, whatever their names are.
func TestIgnoredFiles(t *testing.T) {
	t.Parallel()
	repo := t.TempDir()
	dir := filepath.Join(repo, "fleet") // need not be the root of the repository
	writeFile(t, dir, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {path: dev, kubeconfig: {file: dev.yaml}}\n")
	configMap := func(name string) {
		writeFile(t, dir, "dev/"+name+".yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "+path.Base(name)+"}\n")
	}
	configMap("new")
	configMap("tracked.local")
	configMap("own.local")
	configMap("cache/made")
	writeFile(t, repo, ".gitignore", "*.local.yaml\ncache/\nbuild/\n")
	render := func(at string, code int, names ...string) (stderr string) {
		t.Helper()
		have, stdout, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, "render", "--cluster", "dev", "--repo", at)
		if have != code {
			t.Fatalf("status %d: %s", have, stderr)
		}
		if n := strings.Count(stdout, "kind: ConfigMap"); n != len(names) {
			t.Errorf("%d objects, want %s", n, names)
		}
		for _, name := range names {
			if !strings.Contains(stdout, "name: "+name+"\n") {
				t.Errorf("without %s: %s", name, stdout)
			}
		}
		return stderr
	}
	render(dir, 0, "new", "tracked.local", "own.local", "made") // without a repository
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--force", "fleet/dev/tracked.local.yaml"}} {
		if out, err := exec.Command("git", append([]string{"-C", repo}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
	}
	render(dir, 0, "new", "tracked.local")
	for _, tt := range []struct{ resource, want string }{
		{"own.local.yaml", "dev/kustomization.yaml:1: resources: dev/own.local.yaml: "},
		{"cache/made.yaml", "dev/kustomization.yaml:1: resources: dev/cache: "},
	} {
		writeFile(t, dir, "dev/kustomization.yaml", "resources: [tracked.local.yaml, "+tt.resource+"]\n")
		want := tt.want + "is ignored by Git, so that no commit has it: `git add --force` it, or remove what names it\n"
		if stderr := render(dir, 1); !strings.Contains(stderr, want) {
			t.Errorf("have %s, want %s", stderr, want)
		}
	}
	writeFile(t, dir, "dev/kustomization.yaml", "resources: [new.yaml]\n")
	// A fleet that is ignored itself, as a copy in a build directory, is there.
	if err := os.CopyFS(filepath.Join(repo, "build/fleet"), os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	render(filepath.Join(repo, "build/fleet"), 0, "new")
	// There a lock can be written, and elsewhere only if Git does not ignore it.
	writeFile(t, repo, ".gitignore", "build/\n*.lock\n")
	const refused = "clusters.lock: Git would ignore this file"
	if err := committable(t.Context(), filepath.Join(repo, "build/fleet"), "clusters.lock"); err != nil {
		t.Error(err)
	}
	if err := committable(t.Context(), dir, "dev/new.yaml", "clusters.lock"); err == nil || !strings.HasPrefix(err.Error(), refused) {
		t.Errorf("have %v, want %s", err, refused)
	}
	// If git fails, all files are read, and a note says so.
	writeFile(t, repo, ".git/index", "not an index")
	_, _, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, "lock", "--repo", dir)
	if want := "Note: files that Git ignores are read here, although `gitopsd run` works without them: git could not list them (git ls-files: "; !strings.Contains(stderr, want) {
		t.Errorf("have %s, want %s", stderr, want)
	}
}
