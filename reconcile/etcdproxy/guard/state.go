package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/render/etcd"
)

// State is what is known of a namespace now.
type State struct {
	// Usage is what it holds, and its quota.
	Usage limit.State
	// Queue is how it uses its share.
	Queue limit.QueueState
	// Watches and Leases are those that it has, by this proxy.
	Watches, Leases int64
	// Floor is the revision that it is compacted to; 0 if it never was.
	Floor int64
	// Throttled are calls and watches that were refused since there were too many, and Full
	// those since nothing more fitted into the quota.
	Throttled, Full uint64
}

// States returns the state of each namespace.
func (g *Guard) States() map[etcd.ID]State {
	g.mu.RLock()
	tenants := maps.Clone(g.tenants)
	g.mu.RUnlock()
	all := make(map[etcd.ID]State, len(tenants))
	for id, t := range tenants {
		all[id] = State{
			Usage: t.usage.State(), Queue: t.share.Load().State(),
			Watches: t.watches.Load(), Leases: t.leases.Load(), Floor: t.floor.Load(),
			Throttled: t.throttled.Load(), Full: t.full.Load(),
		}
	}
	return all
}

// Held returns what a namespace holds now, and reports whether there is such a namespace.
func (g *Guard) Held(id etcd.ID) (limit.State, bool) {
	t := g.tenant(id)
	if t == nil {
		return limit.State{}, false
	}
	return t.usage.State(), true
}

// Ready returns nil if etcd answers for every namespace, and each is counted and followed.
// The error names those that are not.
func (g *Guard) Ready() error {
	var not []string
	for id, s := range g.States() {
		if !s.Usage.Current {
			not = append(not, id.String())
		}
	}
	if len(not) == 0 {
		return nil
	}
	slices.Sort(not)
	const most = 5
	names := strings.Join(not[:min(len(not), most)], ", ")
	if more := len(not) - most; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return errors.New("etcd does not answer, or keys are still being counted, for " + names)
}
