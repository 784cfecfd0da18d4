package apply_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubectl "k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"gitopsd.dev/testscripts/devcluster"
)

// oneKubectl is held by the one kubectl that runs: what it does on a fatal error is
// set for the whole process.
var oneKubectl sync.Mutex

// runKubectl runs a command of the real kubectl, and returns what it says.
func runKubectl(t *testing.T, args ...string) string {
	t.Helper()
	oneKubectl.Lock()
	defer oneKubectl.Unlock()
	var out bytes.Buffer
	args = append([]string{"--kubeconfig", devcluster.Start(t, "apply").Kubeconfig("apply")}, args...)
	cmd := kubectl.NewKubectlCommand(kubectl.KubectlOptions{
		Arguments: args,
		IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &out},
	})
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	func() {
		type fatal struct{}
		cmdutil.BehaviorOnFatal(func(message string, _ int) {
			out.WriteString(message)
			panic(fatal{}) // it must not come back
		})
		defer func() {
			if p := recover(); p != nil {
				if _, ok := p.(fatal); !ok {
					panic(p)
				}
			}
		}()
		cmd.Execute()
	}()
	return out.String()
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
