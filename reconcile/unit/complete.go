package unit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// Completer fills in what nobody knows when a unit is rendered: CA bundles, Secrets
// that hold a connection, addresses. Plans show what is filled in, and the inventory
// records it apart from what was rendered: a bundle that is renewed is not told as a
// change in the repository. A Completer is used by several goroutines at a time.
type Completer interface {
	// Complete returns what is added to a unit. The error names the cluster, and is
	// about the unit as a whole, of which nothing is planned then. Where something
	// is wrong with one object, its fields are left unknown.
	Complete(ctx context.Context, r Request) (Completion, error)
}

// Request is what a Completer is asked to complete.
type Request struct {
	// Unit is what is wanted, as rendered.
	Unit *desired.Unit
	// Objects are the unit's, as completed so far.
	Objects *manifest.Set
	// Client talks to the unit's cluster.
	Client *kube.Client
	// Preview says that nothing may be written anywhere: what a write would make
	// known is left unknown.
	Preview bool
}

// Completion is what is added to a unit.
type Completion struct {
	// Objects are made by [manifest.Object.Complete]. Each takes the place of the
	// one that it completes, or is added if there is none.
	Objects []*manifest.Object
	// Again is when the unit must be looked at again although nothing changed, as
	// something expires; zero for never.
	Again time.Time
	// Serving says that this process must go on doing something for the unit. A
	// restart completes it anew, and no checkpoint takes the place of that.
	Serving bool

	set *manifest.Set
}

// complete has a unit completed. The completion is that of all completers.
func (c *Connection) complete(ctx context.Context, want *desired.Unit, preview bool) (Completion, error) {
	all := Completion{set: want.Objects}
	if want.Remove || want.Objects == nil {
		return all, nil
	}
	for _, completer := range c.completers {
		one, err := completer.Complete(ctx, Request{Unit: want, Objects: all.set, Client: c.client, Preview: preview})
		if err != nil {
			return all, err
		}
		if all.set, err = merge(all.set, one.Objects); err != nil {
			return all, fmt.Errorf("cluster %s: %w", want.Name, err)
		}
		all.Serving = all.Serving || one.Serving
		if all.Again.IsZero() || !one.Again.IsZero() && one.Again.Before(all.Again) {
			all.Again = one.Again
		}
	}
	return all, nil
}

// merge puts completed objects in the place of those that they complete. An object
// that the repository has is never replaced by one that was made of nothing.
func merge(set *manifest.Set, completed []*manifest.Object) (*manifest.Set, error) {
	if len(completed) == 0 {
		return set, nil
	}
	objects := make(map[manifest.ID]*manifest.Object, set.Len()+len(completed))
	for _, o := range set.All() {
		objects[o.ID()] = o
	}
	for _, o := range completed {
		if old := objects[o.ID()]; old != nil && old.Rendered() != o.Rendered() {
			return nil, fmt.Errorf("%s is in the repository (%s) and made by gitopsd as well; rename the one in the repository", o.ID(), old.Origin())
		}
		objects[o.ID()] = o
	}
	merged, duplicates := manifest.NewSet(slices.Collect(maps.Values(objects)))
	if len(duplicates) > 0 {
		return nil, duplicates[0]
	}
	return merged, nil
}
