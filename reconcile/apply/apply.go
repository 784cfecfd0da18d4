// Package apply brings a cluster to what is wanted of it.
//
// It owns
//   - the look at the cluster (look.go): one metadata list for each kind in use,
//     and what is in the way of objects that are new;
//   - what is remembered of it (memory.go), and the watches that keep that
//     current (follow.go), so that the next look asks for nothing; of those who
//     write without end nobody hears each time (damper.go);
//   - drift (drift.go): told from who owns which field (reconcile/apply/managed),
//     and verified by one dry run of the object in question; dispute.go keeps us
//     and somebody else from undoing each other's work for ever;
//   - the execution of a plan (execute.go, wait.go, prune.go), in stages, with
//     taking over what others own of objects (adopt.go), and creating objects
//     anew (replace.go) where the repository asks for it;
//   - what Namespaces, types and packages hold (inside.go) that would be deleted
//     with them, when a plan is made and right before the deletion (full.go);
//   - the inventory (inventory.go), an ApplySet as KEP-3659 specifies it;
//   - dry runs for the plan that people read (dryrun.go);
//   - the health of what was applied (health.go);
//   - what is left to a Crossplane in the cluster (crossplane.go): that nobody
//     else has it install the same, and that it installed what it was told to.
//
// reconcile/plan decides what is to be done, reconcile/kube does the talking.
//
// What is durable when: all state is in the cluster. The parent object of the
// inventory names every kind before the first object of that kind is applied,
// and drops it after the last one is gone; it says for which fleet and commit, and
// is written by compare-and-swap. Every object is applied in one
// request together with its membership and the digest of what was applied. So
// whoever comes next, after a crash anywhere, sees what was done and does the
// rest; what this process remembers only saves requests.
package apply

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

// concurrency is how many requests are under way in one cluster. More make an
// API server no faster.
const concurrency = 8

// Config is what an Applier works with.
type Config struct {
	// Cluster to apply to.
	Cluster *kube.Client
	// Inventory names the inventory in the cluster; the cluster's own name by
	// default.
	Inventory string
	// Fleet is whose inventory it is: a name, or what is accepted, is required.
	Fleet Fleet
	// Log gets what is worth knowing but is no result, with the cluster's name;
	// required.
	Log *slog.Logger
	// Poll is how often Follow lists a kind that cannot be watched; default one
	// minute.
	Poll time.Duration
}

// Applier applies to one cluster. It remembers what it has seen there, to ask
// for less the next time; everything it knows can be lost at any time. It may
// be used by one goroutine at a time.
type Applier struct {
	cluster *kube.Client
	log     *slog.Logger
	set     applySet
	inv     plan.Inventory
	fleet   Fleet
	poll    time.Duration

	parent *parent // as last read or written; nil before
	// pinned are the live definitions that pins were last checked against.
	pinned map[schema.GroupKind]plan.LiveDefinition
	// compared are the definitions that the last plan compared with live ones.
	compared map[manifest.ID]compared

	mu       sync.Mutex
	kinds    map[schema.GroupKind]*kindState
	disputes map[subject]*dispute
	follower *follower // nil while nobody follows
}

// New makes an Applier. It sends nothing.
func New(c Config) (*Applier, error) {
	if c.Cluster == nil || c.Log == nil || c.Fleet.Name == "" && c.Fleet.Accepts == nil {
		return nil, errors.New("apply: Cluster, Fleet and Log are required")
	}
	set := newApplySet(cmp.Or(c.Inventory, c.Cluster.Name()))
	return &Applier{
		cluster: c.Cluster, log: c.Log.With("cluster", c.Cluster.Name()), set: set, fleet: c.Fleet,
		inv:   plan.Inventory{ID: set.id, FieldManager: kube.FieldManager, Namespace: Namespace},
		poll:  cmp.Or(c.Poll, time.Minute),
		kinds: make(map[schema.GroupKind]*kindState), disputes: make(map[subject]*dispute),
	}, nil
}

// PlanOptions say what a plan is for, and what is known of what is wanted.
type PlanOptions struct {
	plan.Options
	// Commit is the one that is planned for; empty for a working tree.
	Commit string
	// DryRun asks the API server about every object that would be written, for
	// its fields that change and whether it would be accepted. It is for
	// people; executing a plan does not need it.
	DryRun bool
	// Allowed says which breaking changes of types are allowed; nil for none.
	Allowed plan.Allowed
	// FindType finds the definition of a type that an object is pinned to, to
	// say how it differs from the cluster's; nil if there is nowhere to look.
	FindType func(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string)
}

// Plan looks at the cluster and decides what is to be done there. It changes
// nothing. The error is about the cluster as a whole; what is wrong with an
// object or a kind is in the plan.
func (a *Applier) Plan(ctx context.Context, desired *manifest.Set, opts PlanOptions) (*plan.Plan, error) {
	a.cluster.Refresh()
	seen, err := a.look(ctx, desired)
	if err != nil {
		return nil, err
	}
	p := plan.Compute(a.cluster.Name(), seen.desired, seen.live, a.inv, opts.Options)
	if err := a.lookInside(ctx, p, seen); err != nil {
		return nil, err
	}
	if len(seen.live.Contents)+len(seen.live.ContentsUnknown) > 0 {
		p = plan.Compute(a.cluster.Name(), seen.desired, seen.live, a.inv, opts.Options)
	}
	p.Commit = opts.Commit
	reclaim(p, seen, opts.ReportDrift)
	if err := a.checkTypes(ctx, p, seen, opts); err != nil {
		return nil, err
	}
	if err := a.soleInstaller(ctx, p); err != nil {
		return nil, err
	}
	if opts.DryRun {
		if err := a.dryRun(ctx, p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// member is an object as it is applied: with its membership, and the digest of
// what was rendered.
func (a *Applier) member(o *manifest.Object) *manifest.Object {
	annotations := map[string]string{manifest.AppliedAnnotation: a.inv.Applied(o)}
	if o.ID().Is(manifest.CRD) {
		// One that the API server will refuse goes without.
		if digest, err := typesDigest(o); err == nil {
			annotations[manifest.TypesAnnotation] = digest
		}
	}
	return o.WithMetadata(map[string]string{plan.PartOfLabel: a.set.id}, annotations)
}
