package main

import (
	"context"
	"log/slog"
	"os"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// follower applies to a cluster that it follows meanwhile, as the daemon does.
type follower struct {
	applier *apply.Applier
	close   func()
}

// follow begins to follow a cluster, until close is called.
func follow(kubeconfig string) (*follower, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	cluster, err := kube.New(kube.Config{Name: "bench", Kubeconfig: text})
	if err != nil {
		return nil, err
	}
	applier, err := apply.New(apply.Config{Cluster: cluster, Fleet: apply.Fleet{Name: "bench"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		cluster.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		applier.Follow(ctx, func() {})
	}()
	return &follower{applier: applier, close: func() {
		stop()
		<-ended
		cluster.Close()
	}}, nil
}

// pass brings the cluster to what a set says.
func (f *follower) pass(set *manifest.Set) error {
	ctx := context.Background()
	p, err := f.applier.Plan(ctx, set, apply.PlanOptions{})
	if err != nil {
		return err
	}
	report, err := f.applier.Apply(ctx, p)
	if err != nil {
		return err
	}
	return done(report)
}
