package namespaces

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources/clusters"
)

// Own provisions the key spaces of clusters themselves (spec.etcd.namespace), for data of the fleet.
// The clusters need not be reachable. A key space that a cluster no longer names stays.
type Own struct {
	admin Admin
	log   *slog.Logger
	woken chan struct{}

	mu     sync.Mutex
	wanted map[etcd.ID]string // to the prefix
	done   map[etcd.ID]admin.Provisioned
	// trouble is why the etcd cannot be used; nil if it can.
	trouble error
}

// NewOwn returns an Own.
func NewOwn(a Admin, log *slog.Logger) *Own {
	return &Own{admin: a, log: log, woken: make(chan struct{}, 1), done: make(map[etcd.ID]admin.Provisioned)}
}

// Want sets the key spaces to provision: those of a registry's clusters. A registry with errors adds to
// the earlier ones.
func (o *Own) Want(r *clusters.Registry) {
	o.mu.Lock()
	wanted := make(map[etcd.ID]string)
	if r.Faulty {
		maps.Copy(wanted, o.wanted)
	}
	for _, c := range r.Clusters {
		if c.Spec.Etcd != nil && c.Spec.Etcd.Namespace != "" && !c.Remove {
			wanted[etcd.ID{Cluster: c.Name}] = etcd.ID{Cluster: c.Spec.Etcd.Namespace}.DefaultPrefix()
		}
	}
	same := maps.Equal(wanted, o.wanted)
	o.wanted = wanted
	o.mu.Unlock()
	if same {
		return
	}
	select {
	case o.woken <- struct{}{}:
	default: // woken already
	}
}

// Namespace returns a cluster's own key space, and reports whether it is provisioned.
func (o *Own) Namespace(cluster string) (admin.Provisioned, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, ok := o.done[etcd.ID{Cluster: cluster}]
	return p, ok && p.Err == nil
}

// Problems returns what is wrong with a cluster's own key space; nil if nothing is, or the
// cluster has none.
func (o *Own) Problems(cluster string) []problem.Problem {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := etcd.ID{Cluster: cluster}
	if _, wanted := o.wanted[id]; !wanted {
		return nil
	}
	why := o.trouble
	if p, known := o.done[id]; known {
		why = p.Err // users of the key space report problems of the etcd
	}
	if why == nil {
		return nil
	}
	return []problem.Problem{{Cluster: cluster, Reason: "spec.etcd.namespace: " + why.Error()}}
}

// ownPause is how often the key spaces of clusters are looked at. That writes to etcd's log.
const ownPause = 10 * time.Minute

// Run provisions until ctx ends, again after ownPause: others may change what is in etcd, or restore it.
// Failures are retried after growing pauses.
func (o *Own) Run(ctx context.Context) {
	pause, told := firstRetry, ""
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.woken:
			pause = firstRetry
		case <-due:
		}
		text := o.provision(ctx)
		if text == "" {
			pause, due = firstRetry, time.After(ownPause)
		} else if ctx.Err() == nil {
			if text != told {
				o.log.Error("key spaces of clusters are not provisioned; it is tried again", "error", text)
			}
			due = time.After(pause)
			pause = min(2*pause, lastRetry)
		}
		told = text
	}
}

// provision provisions the wanted key spaces, and returns an error's text; empty for none.
func (o *Own) provision(ctx context.Context) (failed string) {
	o.mu.Lock()
	var wanted []admin.Wanted
	for _, id := range slices.SortedFunc(maps.Keys(o.wanted), func(a, b etcd.ID) int { return strings.Compare(a.Cluster, b.Cluster) }) {
		wanted = append(wanted, admin.Wanted{ID: id, Prefix: o.wanted[id]})
	}
	o.mu.Unlock()
	if len(wanted) == 0 {
		return ""
	}
	all, err := o.admin.Provision(ctx, wanted)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range all {
		if _, still := o.wanted[p.ID]; still {
			o.done[p.ID] = p
		}
		if p.Err != nil && failed == "" {
			failed = fmt.Sprintf("cluster %s: spec.etcd.namespace: %v", p.ID.Cluster, p.Err)
		}
	}
	if o.trouble = err; err != nil {
		return err.Error()
	}
	return failed
}
