package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// follower applies to a cluster as the daemon does.
type follower struct {
	*apply.Applier
	cluster *kube.Client
	stop    func() // stops following
}

// connect connects to a cluster until close is called. wrap wraps the transport; it may be
// nil.
func connect(kubeconfig string, wrap func(http.RoundTripper) http.RoundTripper) (*follower, error) {
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		return nil, err
	}
	cluster, err := kube.New(kube.Config{Name: benchCluster, Kubeconfig: text, WrapTransport: wrap})
	if err != nil {
		return nil, err
	}
	applier, err := apply.New(apply.Config{Cluster: cluster, Fleet: apply.Fleet{Name: "bench"}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		cluster.Close()
		return nil, err
	}
	return &follower{applier, cluster, func() {}}, nil
}

// follow follows the cluster until close is called, and calls notify after changes.
func (f *follower) follow(notify func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Follow(ctx, notify)
	}()
	f.stop = func() {
		stop()
		<-ended
	}
}

func (f *follower) close() {
	f.stop()
	f.cluster.Close()
}

// pass plans and applies a set. A step that was not done is an error.
func (f *follower) pass(set *manifest.Set) (*plan.Plan, *apply.Report, error) {
	ctx := context.Background()
	p, err := f.Plan(ctx, set, apply.PlanOptions{})
	if err != nil {
		return nil, nil, err
	}
	report, err := f.Apply(ctx, p)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range report.Results {
		if r.Outcome != apply.Done && r.Outcome != apply.Left {
			why := r.Reason
			if r.Err != nil {
				why = r.Err.Error()
			}
			return nil, nil, fmt.Errorf("%s: %s: %s", r.Step.ID, r.Outcome, why)
		}
	}
	return p, report, nil
}
