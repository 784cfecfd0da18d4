package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"gitopsd.dev/reconcile/hub"
	"gitopsd.dev/reconcile/hub/events"
	"gitopsd.dev/reconcile/hub/leader"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
)

// leaseOptions are the flags for several daemons of which one works.
type leaseOptions struct {
	name, pod string
	duration  time.Duration
	process   string // names this one
}

func (o *leaseOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.name, "lease", "", "Lease in the hub's --namespace by which one of several daemons works, and the others wait (default: this one works whatever others do)")
	f.DurationVar(&o.duration, "lease-duration", leader.DefaultDuration, "with --lease: how long the others wait for one that does not renew it; that one stops writing half a minute earlier")
	annotate(f, "lease-duration", needs, "lease")
	f.StringVar(&o.pod, "pod-name", "", "with --lease: this daemon's pod in --namespace, which has the label "+manifest.LeaderLabel+" while it works")
	annotate(f, "pod-name", needs, "lease")
}

// election returns this daemon's part in choosing the one that works; nil without --lease.
func (o *leaseOptions) election(own *hub.Hub, fleet string, log *slog.Logger) (*leader.Leader, error) {
	if o.name == "" {
		return nil, nil
	}
	if _, err := own.Client(); err != nil {
		return nil, fmt.Errorf("--lease: there is no hub for the Lease: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	o.process = fmt.Sprintf("%s-%d", host, os.Getpid())
	l, err := leader.New(leader.Config{
		Client: own.Client, Namespace: own.Namespace(), Name: o.name, Pod: o.pod, Process: o.process,
		Fleet: fleet, Duration: o.duration, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("--lease: %w", err)
	}
	return l, nil
}

// events returns where Events go.
func (o *leaseOptions) events(own *hub.Hub, board *status.Board, log *slog.Logger) events.Config {
	return events.Config{Client: own.Client, Namespace: own.Namespace(), Lease: o.name, Process: cmp.Or(o.pod, o.process), Board: board, Log: log}
}

// releasePatience is how long giving up the Lease may take.
const releasePatience = 5 * time.Second

// lead waits until this daemon is the leader, and keeps it the leader until release is called.
// The returned context also ends when another daemon is the leader, with leader.ErrLost as its
// cause. The error is that of ctx.
func lead(ctx context.Context, l *leader.Leader, board *status.Board, log *slog.Logger) (leading context.Context, release func(), err error) {
	if err := l.Await(ctx); err != nil {
		return nil, nil, err
	}
	board.Lead()
	leading, cancel := context.WithCancelCause(ctx)
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx)) // what is under way may end as the leader
	var keeper sync.WaitGroup
	keeper.Go(func() { cancel(l.Keep(keeping)) })
	return leading, func() {
		stop()
		keeper.Wait()
		if errors.Is(context.Cause(leading), leader.ErrLost) {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releasePatience)
		defer cancel()
		if err := l.Release(ctx); err != nil {
			log.Warn("the Lease could not be given up; the others wait until it ends", "lease", l.String(), "error", err)
		}
	}, nil
}
