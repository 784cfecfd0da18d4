package cli

import (
	"os/exec"
	"strings"
	"testing"
)

// A file that Git ignores is in no commit: whoever plans or locks with it is told so. Tracked
// files are not ignored, whatever their names are.
func TestIgnoredFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, dir, "clusters.yaml", "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: dev}\nspec: {path: dev, kubeconfig: {file: dev.yaml}}\n")
	writeFile(t, dir, "dev/kustomization.yaml", "resources: [tracked.local.yaml, own.local.yaml]\n")
	writeFile(t, dir, "dev/tracked.local.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: tracked}\n")
	writeFile(t, dir, "dev/own.local.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: own}\n")
	writeFile(t, dir, "dev/unused.local.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: unused}\n")
	writeFile(t, dir, ".gitignore", "*.local.yaml\n")
	lock := func() string {
		code, _, stderr := gitopsd(t, map[string]string{"GITOPSD_CACHE_DIR": t.TempDir()}, "lock", "--repo", dir)
		if code != 0 {
			t.Fatalf("status %d: %s", code, stderr)
		}
		return stderr
	}
	if stderr := lock(); strings.Contains(stderr, "ignores") {
		t.Errorf("without a repository: %s", stderr)
	}
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--force", "dev/tracked.local.yaml"}} {
		if out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v %s", args, err, out)
		}
	}
	const want = "Note: Git ignores dev/own.local.yaml: no commit has it, and `gitopsd run` works without it; add it with `git add --force`, or remove what names it\n"
	if stderr := lock(); !strings.Contains(stderr, want) {
		t.Errorf("have %s", stderr)
	}
}
