package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/testscripts/devcluster"
	"gitopsd.dev/testscripts/upstream"
)

// restarts is how many restarts of ours are measured together: each costs the server less
// than its own background work.
const restarts = 10

// oursChild is the name under which this program is gitopsd.
const oursChild = "gitopsd-child"

var crdResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// apply compares with kubectl apply --server-side: first everything cold, then again with
// nothing to do, by new processes. The sides take turns on the same control plane.
func (b *bench) apply(ctx context.Context, f *fixture) error {
	fmt.Fprintf(b.say, "bench: taking %d of the CRDs of provider-aws %s\n", b.crds, upstream.ProviderAWSVersion)
	input, err := f.crds(ctx, b.crds)
	if err != nil {
		return err
	}
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	rival, err := devcluster.Kubectl(ctx)
	if err != nil {
		return err
	}
	l, err := newLab(ctx, kubeconfig, input)
	if err != nil {
		return err
	}
	// The first round warms the API server and is not counted.
	for round := range b.rounds + 1 {
		fmt.Fprintf(b.say, "bench: apply, round %d of %d\n", round, b.rounds)
		var ours [3]cost
		var theirs [2]cost
		var reports [3]childReport
		sides := []func() error{
			func() (err error) {
				kept := filepath.Join(f.dir, "checkpoints")
				for i, mode := range []string{"cold", "restart", "warm"} {
					var out []byte
					if ours[i], out, err = l.times(ctx, []int{1, restarts, 1}[i], self, oursChild, l.kubeconfig, l.input, kept, mode); err != nil {
						return err
					}
					if err := json.Unmarshal(out, &reports[i]); err != nil {
						return fmt.Errorf("%s: %w", oursChild, err)
					}
				}
				return nil
			},
			func() (err error) {
				for i := range theirs {
					if theirs[i], _, err = l.times(ctx, 1, rival.Path, "--kubeconfig", l.kubeconfig, "apply", "--server-side", "-f", l.input); err != nil {
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
		// The cost of a process that does nothing is subtracted, as everywhere.
		idle, err := work(ctx, "idle")
		if err != nil {
			return err
		}
		_, rivalIdle, err := child(ctx, rival.Path, "version", "--client")
		if err != nil {
			return err
		}
		b.add("apply-cold-server-cpu", ours[0].server, theirs[0].server)
		b.add("apply-cold-client-cpu", ours[0].client-idle.cpu, theirs[0].client-rivalIdle)
		b.add("apply-cold-requests", reports[0].First, float64(b.crds))
		b.add("noop-restart-client-cpu", ours[1].client-idle.cpu, theirs[1].client-rivalIdle)
		b.add("noop-restart-server-cpu", ours[1].server, theirs[1].server)
		b.add("noop-requests", reports[2].Warm, 1)
		b.add("drift-requests", reports[2].Drift, 1)
		// The part of our cost outside the pass.
		b.note("apply-cold-client-cpu", "decode", reports[0].Before-idle.cpu)
		b.note("noop-restart-client-cpu", "process", idle.cpu)
	}
	return nil
}

// lab is a control plane under measurement.
type lab struct {
	kubeconfig, input string
	server            serverProcess
	idle              float64 // CPU of the idle server, per second
	client            *dynamic.DynamicClient
}

func newLab(ctx context.Context, kubeconfig, input string) (*lab, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // no limit: the measurement itself must not wait
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

// cost is the CPU of one run, in seconds, without the CPU of the idle server.
type cost struct{ client, server float64 }

// times runs a program n times, waits until the server is idle again, and returns the cost
// of one run and the output of the last.
func (l *lab) times(ctx context.Context, n int, program string, args ...string) (c cost, out []byte, err error) {
	before, err := l.server.quiet(ctx)
	if err != nil {
		return cost{}, nil, err
	}
	started := time.Now()
	for range n {
		var cpu float64
		if out, cpu, err = child(ctx, program, args...); err != nil {
			return cost{}, nil, err
		}
		c.client += cpu / float64(n)
	}
	after, err := l.server.quiet(ctx)
	if err != nil {
		return cost{}, nil, err
	}
	c.server = max(0, after-before-l.idle*time.Since(started).Seconds()) / float64(n)
	return c, out, nil
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
	return l.client.Resource(configMapResource).Namespace("gitopsd-system").
		DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "applyset.kubernetes.io/id"})
}
