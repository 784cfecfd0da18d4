package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The lines to paste mean the same wherever the checkout and the temporary directory are.
func TestSetup(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"plain", "two words", "it's", "$HOME", "a;b", "`x`"} {
		dir := filepath.Join(t.TempDir(), dir)
		s := &stage{dir: dir, source: filepath.Join(dir, "source"), clone: filepath.Join(dir, "clone"), api: "http://127.0.0.1:1"}
		script := strings.Join(s.setup(filepath.Join(dir, "config"), "127.0.0.1:2"), "\n")
		script, cd, _ := strings.Cut(script, "\ncd ")
		script += "\nprintf '%s\\n' \"$KUBECONFIG\" \"$PATH\" \"$GITOPSD_KUBECONFIG_DIR\" \"$GITOPSD_CACHE_DIR\" \"$GITOPSD_REGISTRY_MIRROR\" \"$GITOPSD_ADDRESS\" " + strings.TrimSuffix(cd, " && git pull -q --ff-only")
		cmd := exec.Command("/bin/sh", "-euc", script)
		cmd.Env = []string{"PATH=/bin", "HOME=/none"}
		out, err := cmd.CombinedOutput()
		want := strings.Join([]string{
			filepath.Join(dir, "config"), filepath.Join(dir, "source", "bin") + ":/bin", filepath.Join(dir, "clusters"),
			filepath.Join(dir, "cache"), canonical + "=127.0.0.1:2", "127.0.0.1:1", filepath.Join(dir, "clone"),
		}, "\n") + "\n"
		if err != nil || string(out) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", dir, err, out, want)
		}
	}
}
