package main

import (
	"context"
	"runtime"
)

// live compares the memory for following a cluster with the largest package with 1 MB.
func (b *bench) live(ctx context.Context, f *fixture) error {
	input, err := f.crds(ctx, renderCRDs)
	if err != nil {
		return err
	}
	kubeconfig, err := f.controlPlane(ctx)
	if err != nil {
		return err
	}
	return b.eachRound(ctx, "live", [][]string{{"live-heap", kubeconfig, input}}, func(u []usage) error {
		b.add("live-heap", u[0].result, 1)
		return nil
	})
}

// liveHeap applies a file to a cluster, follows the cluster, and returns the memory, in MB,
// that it frees when it stops following: args are a kubeconfig and the file.
func liveHeap(args []string) (float64, error) {
	set, err := load(args[1])
	if err != nil {
		return 0, err
	}
	remembering, err := func() (float64, error) {
		f, err := connect(args[0], nil)
		if err != nil {
			return 0, err
		}
		defer f.close()
		f.follow(func() {})
		for range 2 { // the second finds nothing to do
			if _, _, err := f.pass(set); err != nil {
				return 0, err
			}
		}
		heap := heapMB()
		runtime.KeepAlive(f)
		return heap, nil
	}()
	if err != nil {
		return 0, err
	}
	without := heapMB()
	runtime.KeepAlive(set)
	return remembering - without, nil
}
