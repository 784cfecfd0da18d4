package apply_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/testscripts/devcluster"
)

// runKubectl runs a command of the real kubectl, and returns its output.
func runKubectl(t *testing.T, args ...string) string {
	t.Helper()
	args = append([]string{"--kubeconfig", devcluster.Start(t, "apply").Kubeconfig("apply")}, args...)
	cmd, err := devcluster.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	out, _ := cmd.CombinedOutput() // what it cannot do it says
	return string(out)
}

// Other tools that follow the specification leave the inventory alone.
func TestKubectlRefusesInventory(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	file := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(cm("theirs"), "$NAME", b.name)), 0o600); err != nil {
		t.Fatal(err)
	}
	said := runKubectl(t, "apply", "--prune", "--applyset=configmap/inventory-"+b.name, "-n", "gitopsd-system", "-f", file)
	if !strings.Contains(said, `already exists and is managed by tooling "gitopsd" instead of "kubectl"`) {
		t.Errorf("kubectl says: %s", said)
	}
	if b.get(cm("a")) == nil || b.get(cm("theirs")) != nil {
		t.Error("kubectl used our inventory")
	}
	b.settled(set)
}
