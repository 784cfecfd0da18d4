package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/testscripts/devcluster"
)

// live measures what is remembered of a cluster that holds the largest package,
// while it is followed: against one MB.
func (b *bench) live(ctx context.Context) error {
	if !b.wants("live-heap") {
		return nil
	}
	dir, err := os.MkdirTemp("", "gitopsd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	input, err := sample(ctx, dir, renderCRDs, b.say)
	if err != nil {
		return err
	}
	state := filepath.Join(dir, "cluster")
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	fmt.Fprintf(b.say, "bench: starting a control plane, and applying %d CRDs to it\n", renderCRDs)
	planes, err := devcluster.Up(ctx, devcluster.Config{Dir: state, Log: b.say, NoControllerManager: true}, "bench")
	if err != nil {
		return err
	}
	defer planes.Close()
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: live, round %d of %d\n", round+1, b.rounds)
		u, err := work(ctx, "live-heap", planes.Kubeconfig("bench"), input)
		if err != nil {
			return err
		}
		b.add("live-heap", u.result, 1)
	}
	return nil
}

// liveHeap applies a file to a cluster, follows it, and returns by how much memory
// shrinks when that ends, in MB.
func liveHeap(args []string) (float64, error) {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return 0, err
	}
	set, err := load(args[1])
	if err != nil {
		return 0, err
	}
	remembering, err := func() (float64, error) {
		cluster, err := kube.New(kube.Config{Name: "bench", Kubeconfig: text})
		if err != nil {
			return 0, err
		}
		defer cluster.Close()
		applier, err := apply.New(apply.Config{Cluster: cluster, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return 0, err
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			applier.Follow(ctx, func() {})
		}()
		defer func() {
			stop()
			<-ended
		}()
		for range 2 { // the second finds nothing to do
			p, err := applier.Plan(ctx, set, apply.PlanOptions{})
			if err != nil {
				return 0, err
			}
			if _, err := applier.Apply(ctx, p); err != nil {
				return 0, err
			}
		}
		heap := heapMB()
		runtime.KeepAlive(applier)
		return heap, nil
	}()
	if err != nil {
		return 0, err
	}
	without := heapMB()
	runtime.KeepAlive(set)
	return remembering - without, nil
}
