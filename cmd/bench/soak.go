package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing/fstest"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/testscripts/devcluster"
)

// How long a short and a long life are, in passes, and how many objects there are.
const (
	soakFew     = 50
	soakMany    = 500
	soakObjects = 100
)

// soak compares the heap after many passes with that after few. Every pass has a
// commit in which two objects changed, one came and one left.
func (b *bench) soak(ctx context.Context) error {
	if !b.wants("soak-heap") {
		return nil
	}
	dir, err := os.MkdirTemp("", "gitopsd-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	state := filepath.Join(dir, "cluster")
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	fmt.Fprintln(b.say, "bench: starting a control plane")
	planes, err := devcluster.Up(ctx, devcluster.Config{Dir: state, Log: b.say, NoControllerManager: true}, "bench")
	if err != nil {
		return err
	}
	defer planes.Close()
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: soak, round %d of %d\n", round+1, b.rounds)
		kubeconfig := planes.Kubeconfig("bench")
		u, err := each(ctx, round, [][]string{
			{"soak", kubeconfig, strconv.Itoa(soakMany)}, {"soak", kubeconfig, strconv.Itoa(soakFew)},
		})
		if err != nil {
			return err
		}
		b.add("soak-heap", u[0].result, u[1].result)
	}
	return nil
}

// soakHeap computes, plans and applies so many commits to a cluster that is
// followed, and returns the heap afterwards, in MB: args are a kubeconfig and the
// number of passes.
func soakHeap(args []string) (float64, error) {
	text, err := os.ReadFile(args[0])
	if err != nil {
		return 0, err
	}
	passes, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
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
	computer := desired.New(desired.Config{Resolve: resolve.Config{
		Digest: func(context.Context, sources.Origin, string) (sources.Digest, error) {
			return "", errors.New("nothing declares a package")
		},
	}})
	var last *desired.State
	for n := range passes {
		last, err = computer.Compute(ctx, sources.Commit{Files: soakFiles(n)}, nil)
		if err == nil {
			err = last.Err()
		}
		if err != nil {
			return 0, err
		}
		p, err := applier.Plan(ctx, last.Clusters[0].Objects, apply.PlanOptions{})
		if err != nil {
			return 0, err
		}
		report, err := applier.Apply(ctx, p)
		if err != nil {
			return 0, err
		}
		if done := report.Count(apply.Done) + report.Count(apply.Left); done != len(report.Results) {
			return 0, fmt.Errorf("pass %d: %d of %d steps were done", n, done, len(report.Results))
		}
	}
	heap := heapMB()
	runtime.KeepAlive(last)
	runtime.KeepAlive(computer)
	runtime.KeepAlive(applier)
	return heap, nil
}

// soakFiles is the repository in pass n.
func soakFiles(n int) fstest.MapFS {
	var all strings.Builder
	for i := n; i < n+soakObjects; i++ {
		value := 0
		if i == n+soakObjects/2 {
			value = n
		}
		fmt.Fprintf(&all, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: soak-%d, namespace: default}\ndata: {pass: \"%d\"}\n", i, value)
	}
	return fstest.MapFS{
		"clusters.yaml": {Data: []byte(clustersYAML(1))},
		"c/all.yaml":    {Data: []byte(all.String())},
	}
}
