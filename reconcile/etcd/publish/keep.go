package publish

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources/errgroup"
)

const (
	// Pauses after failures grow from firstRetry to lastRetry.
	firstRetry = time.Second
	lastRetry  = 2 * time.Minute
	// lookAgain is how long a published unit counts as published. After that it is looked up: etcd may have
	// been restored from a snapshot of before.
	lookAgain = 10 * time.Minute
	// atATime is how many clusters are published concurrently.
	atATime = 4
)

// Spaces are the etcd namespaces of clusters themselves.
type Spaces interface {
	// Namespace returns a cluster's own namespace, and reports whether it is provisioned.
	Namespace(cluster string) (etcd.Provisioned, bool)
}

// Admin gives access to namespaces; see [etcd.Admin].
type Admin interface {
	// Inside calls do with the keys of a namespace. The error is do's, or says why etcd cannot be
	// used.
	Inside(ctx context.Context, in etcd.Provisioned, do func(clientv3.KV, clientv3.Lease) error) error
}

// Keeper publishes the newest unit of each cluster that has an etcd namespace of its own. It runs in the
// background, so that an unavailable etcd holds nothing else up.
type Keeper struct {
	admin  Admin
	spaces Spaces
	log    *slog.Logger
	woken  chan struct{}
	now    func() time.Time

	mu sync.Mutex
	// By cluster: the unit to publish, the one that was published last, and the last error.
	wanted map[string]*desired.Unit
	done   map[string]done
	told   map[string]string
}

// done is a unit that is published, and when that was last known.
type done struct {
	unit *desired.Unit
	at   time.Time
}

// NewKeeper returns a Keeper.
func NewKeeper(a Admin, s Spaces, log *slog.Logger) *Keeper {
	return &Keeper{
		admin: a, spaces: s, log: log, woken: make(chan struct{}, 1), now: time.Now,
		wanted: make(map[string]*desired.Unit), done: make(map[string]done), told: make(map[string]string),
	}
}

// Want makes the Keeper publish a cluster's unit, if the cluster has an etcd namespace. It does not block.
// An incompletely rendered unit changes nothing: readers would take missing documents for removed ones.
func (k *Keeper) Want(u *desired.Unit) {
	switch {
	case u.ID.Name != "":
		return
	case !u.Publishes():
		k.Forget(u.Name)
		return
	case u.Objects == nil || !u.Complete():
		return
	}
	k.mu.Lock()
	last := k.done[u.Name]
	news := k.wanted[u.Name] != u && (last.unit != u || k.now().Sub(last.at) >= lookAgain)
	if news {
		k.wanted[u.Name] = u
	}
	k.mu.Unlock()
	if !news {
		return
	}
	select {
	case k.woken <- struct{}{}:
	default: // woken already
	}
}

// Forget makes the Keeper publish nothing more for a cluster, and forget its problem. What it published
// stays.
func (k *Keeper) Forget(cluster string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.wanted, cluster)
	delete(k.done, cluster)
	delete(k.told, cluster)
}

// Problems returns why a cluster's newest unit is not published; nil if it is, or is about to be.
func (k *Keeper) Problems(cluster string) []problem.Problem {
	k.mu.Lock()
	defer k.mu.Unlock()
	why := k.told[cluster]
	if why == "" {
		return nil
	}
	return []problem.Problem{{Cluster: cluster, Reason: "nothing is published in its etcd namespace: " + why}}
}

// Run publishes until ctx ends. Failures are retried after growing pauses.
func (k *Keeper) Run(ctx context.Context) {
	pause := firstRetry
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.woken:
			pause = firstRetry
		case <-due:
		}
		due = nil
		if left := k.publish(ctx); left {
			due = time.After(pause)
			pause = min(2*pause, lastRetry)
		}
	}
}

// publish publishes the wanted units, and reports whether any are left.
func (k *Keeper) publish(ctx context.Context) (left bool) {
	k.mu.Lock()
	wanted := slices.Collect(maps.Values(k.wanted))
	k.mu.Unlock()
	var g errgroup.Group
	g.SetLimit(atATime)
	for _, u := range wanted {
		g.Go(func() error {
			k.settle(ctx, u, k.one(ctx, u))
			return nil
		})
	}
	_ = g.Wait() // each cluster keeps its own error
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.wanted) > 0
}

// errNoSpace says that a cluster's etcd namespace is not provisioned, which is reported elsewhere.
var errNoSpace = errors.New("the etcd namespace is not there yet")

func (k *Keeper) one(ctx context.Context, u *desired.Unit) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errgroup.Recovered(v)
		}
	}()
	docs, err := Documents(u)
	if err != nil {
		return err
	}
	space, ok := k.spaces.Namespace(u.Name)
	if !ok {
		return errNoSpace
	}
	return k.admin.Inside(ctx, space, func(kv clientv3.KV, lease clientv3.Lease) error {
		p, err := New(Config{KV: kv, Lease: lease, Log: k.log.With("cluster", u.Name)})
		if err != nil {
			return err
		}
		_, err = p.Publish(ctx, docs)
		return err
	})
}

// settle notes the result of a publication. It logs an error once.
func (k *Keeper) settle(ctx context.Context, u *desired.Unit, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.wanted[u.Name] == nil {
		return // forgotten meanwhile
	}
	if err == nil {
		k.done[u.Name] = done{u, k.now()}
		delete(k.told, u.Name)
		if k.wanted[u.Name] == u {
			delete(k.wanted, u.Name)
		}
		return
	}
	if text := err.Error(); ctx.Err() == nil && err != errNoSpace && k.told[u.Name] != text {
		k.told[u.Name] = text
		k.log.Error("nothing is published in the cluster's etcd namespace; it is tried again", "cluster", u.Name, "error", err)
	}
}
