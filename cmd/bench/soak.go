package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing/fstest"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// The passes of a short and of a long life, and the number of objects.
const (
	soakFew     = 50
	soakMany    = 500
	soakObjects = 100
)

// soak compares the heap after many passes with the heap after few. In the commit of every
// pass, two objects are changed, one is added and one removed.
func (b *bench) soak(ctx context.Context, f *fixture) error {
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	return b.eachRound(ctx, "soak", [][]string{
		{"soak", kubeconfig, strconv.Itoa(soakMany)}, {"soak", kubeconfig, strconv.Itoa(soakFew)},
	}, func(u []usage) error {
		b.add("soak-heap", u[0].result, u[1].result)
		return nil
	})
}

// soakHeap computes, plans and applies commits to a followed cluster, and returns the heap
// afterwards, in MB: args are a kubeconfig and the number of passes.
func soakHeap(args []string) (float64, error) {
	passes, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
	f, err := connect(args[0], nil)
	if err != nil {
		return 0, err
	}
	defer f.close()
	f.follow(func() {})
	computer := desired.New(desired.Config{Resolve: resolve.Config{
		Digest: func(context.Context, sources.Origin, string) (sources.Digest, error) {
			return "", errors.New("nothing declares a package")
		},
	}})
	var last *desired.State
	for n := range passes {
		last, err = computer.Compute(context.Background(), sources.Commit{Files: soakFiles(n)}, desired.Earlier{})
		if err == nil {
			err = last.Err()
		}
		if err == nil {
			_, _, err = f.pass(last.Clusters[0].Objects)
		}
		if err != nil {
			return 0, fmt.Errorf("pass %d: %w", n, err)
		}
	}
	heap := heapMB()
	runtime.KeepAlive(last)
	runtime.KeepAlive(computer)
	runtime.KeepAlive(f)
	return heap, nil
}

// soakFiles returns the repository of pass n.
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
