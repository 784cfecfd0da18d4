package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	kubectl "k8s.io/kubectl/pkg/cmd"

	"gitopsd.dev/testscripts/upstream"
)

// restarts is how many restarts of ours are measured as one: the server does so
// little for each that what it does by itself would hide it.
const restarts = 10

// The names under which this program is its own children.
const (
	kubectlChild = "kubectl-child"
	oursChild    = "gitopsd-child"
)

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// apply compares with kubectl apply --server-side: everything cold, then again
// with nothing to do, by new processes, on the same control plane in turn.
func (b *bench) apply(ctx context.Context) error {
	if !b.wants("apply-cold-server-cpu", "apply-cold-client-cpu", "apply-cold-requests", "noop-requests",
		"noop-restart-client-cpu", "noop-restart-server-cpu", "drift-requests") {
		return nil
	}
	dir, err := os.MkdirTemp("", "gitopsd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	fmt.Fprintf(b.say, "bench: taking %d of the CRDs of provider-aws %s\n", b.crds, upstream.ProviderAWSVersion)
	input, err := sample(ctx, dir, b.crds, b.say)
	if err != nil {
		return err
	}
	planes, err := b.controlPlane(ctx, dir)
	if err != nil {
		return err
	}
	defer planes.Close()
	l, err := newLab(ctx, planes.Kubeconfig(benchCluster), input)
	if err != nil {
		return err
	}
	// The first round warms the API server and is not counted.
	for round := range b.rounds + 1 {
		fmt.Fprintf(b.say, "bench: apply, round %d of %d\n", round, b.rounds)
		var ours, theirs [2]cost
		var more cost
		sides := []func() error{
			func() (err error) {
				kept := filepath.Join(dir, "checkpoints")
				for i, into := range []*cost{&ours[0], &ours[1], &more} {
					if *into, err = l.times(ctx, []int{1, restarts, 1}[i], oursChild, l.kubeconfig, l.input, kept, []string{"cold", "restart", "warm"}[i]); err != nil {
						return err
					}
				}
				return nil
			},
			func() (err error) {
				for i := range theirs {
					if theirs[i], err = l.times(ctx, 1, kubectlChild, "--kubeconfig", l.kubeconfig, "apply", "--server-side", "-f", l.input); err != nil {
						return err
					}
				}
				return nil
			},
		}
		if round%2 == 1 { // neither side is always the first
			sides[0], sides[1] = sides[1], sides[0]
		}
		for _, side := range sides {
			if err := side(); err != nil {
				return err
			}
			if err := l.clean(ctx); err != nil {
				return err
			}
		}
		if round == 0 {
			continue
		}
		b.add("apply-cold-server-cpu", ours[0].server, theirs[0].server)
		// Beyond a process that does nothing, as everywhere.
		idle, err := work(ctx, "idle")
		if err != nil {
			return err
		}
		b.add("apply-cold-client-cpu", ours[0].client-idle.cpu, theirs[0].client-idle.cpu)
		b.add("apply-cold-requests", ours[0].report.First, float64(b.crds))
		b.add("noop-restart-client-cpu", ours[1].client-idle.cpu, theirs[1].client-idle.cpu)
		b.add("noop-restart-server-cpu", ours[1].server, theirs[1].server)
		b.add("noop-requests", more.report.Warm, 1)
		b.add("drift-requests", more.report.Drift, 1)
		// How much of ours is not the pass.
		b.note("apply-cold-client-cpu", "decode", ours[0].report.Before-idle.cpu)
		b.note("noop-restart-client-cpu", "process", idle.cpu)
	}
	return nil
}

// sample writes n of the largest package's CRDs, evenly taken, into one file.
func sample(ctx context.Context, dir string, n int, log io.Writer) (string, error) {
	source := filepath.Join(dir, "package")
	if err := upstream.Write(ctx, upstream.ProviderAWS, upstream.ProviderAWSVersion, source, log); err != nil {
		return "", err
	}
	var files []string
	err := filepath.WalkDir(source, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && d.Name() != "crossplane.yaml" {
			files = append(files, name)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if n > len(files) {
		return "", fmt.Errorf("-crds %d: the package has %d", n, len(files))
	}
	var all bytes.Buffer
	for i := range n {
		text, err := os.ReadFile(files[i*len(files)/n])
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&all, "---\n%s\n", bytes.TrimPrefix(bytes.TrimSpace(text), []byte("---")))
	}
	name := filepath.Join(dir, "crds.yaml")
	return name, os.WriteFile(name, all.Bytes(), 0o600)
}

// lab is a control plane under measurement.
type lab struct {
	kubeconfig, input string
	server            serverProcess
	idle              float64 // CPU that the server takes by itself, a second
	client            *dynamic.DynamicClient
}

func newLab(ctx context.Context, kubeconfig, input string) (*lab, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // the laboratory itself must not wait
	l := &lab{kubeconfig: kubeconfig, input: input}
	if l.server, err = findServer(cfg.Host); err != nil {
		return nil, err
	}
	if l.client, err = dynamic.NewForConfig(cfg); err != nil {
		return nil, err
	}
	l.idle, err = l.server.idle(ctx)
	return l, err
}

// cost is what one run took, in seconds of CPU; the server's without what it takes
// when nobody asks for anything.
type cost struct {
	client, server float64
	report         childReport
}

// times runs a child n times, waits until the server has done what follows from
// it, and returns what one took. The report is the last one's.
func (l *lab) times(ctx context.Context, n int, args ...string) (cost, error) {
	before, err := l.server.quiet(ctx)
	if err != nil {
		return cost{}, err
	}
	started := time.Now()
	var c cost
	for range n {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			return cost{}, fmt.Errorf("%s: %w\n%s", args[0], err, stderr.Bytes()[:min(stderr.Len(), 2000)])
		}
		c.client += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() / float64(n)
		if args[0] == oursChild {
			if err := json.Unmarshal(stdout.Bytes(), &c.report); err != nil {
				return cost{}, fmt.Errorf("%s: %w", args[0], err)
			}
		}
	}
	after, err := l.server.quiet(ctx)
	if err != nil {
		return cost{}, err
	}
	c.server = max(0, after-before-l.idle*time.Since(started).Seconds()) / float64(n)
	return c, nil
}

// clean removes everything that was applied.
func (l *lab) clean(ctx context.Context) error {
	crds := l.client.Resource(crdResource)
	if err := crds.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	for {
		left, err := crds.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if len(left.Items) == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	err := l.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("gitopsd-system").
		DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "applyset.kubernetes.io/id"})
	return err
}

// runKubectl is kubectl as a process of its own.
func runKubectl(args []string) int {
	os.Args = append([]string{"kubectl"}, args...) // where it looks for its arguments
	cmd := kubectl.NewDefaultKubectlCommand()
	if err := cmd.Execute(); err != nil {
		return 1
	}
	return 0
}
