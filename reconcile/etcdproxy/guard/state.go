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

// State is the state of a namespace.
type State struct {
	// Usage is what it holds, with its quota.
	Usage limit.State
	// Queue is the state of its share.
	Queue limit.QueueState
	// Watches and Leases are the numbers that it has through this proxy.
	Watches, Leases int64
	// Floor is the revision that it is compacted to; 0 if it never was.
	Floor int64
	// Throttled calls and watches were refused because there were too many, and Full calls because
	// the quota was used up.
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

// Held returns what a namespace holds, and reports whether there is such a namespace.
func (g *Guard) Held(id etcd.ID) (limit.State, bool) {
	t := g.tenant(id)
	if t == nil {
		return limit.State{}, false
	}
	return t.usage.State(), true
}

// Ready returns nil if every namespace is counted and followed, and etcd answers. The error names the namespaces
// that are not.
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
