// Package apply applies the desired objects to a cluster.
//
// It owns
//   - the look at the cluster (look.go): one metadata list for each kind in use, and
//     objects that are in the way of new ones. Before that, objects take the form in which
//     the API server keeps them (normalize.go);
//   - the memory of it (memory.go), and the watches that keep it current (follow.go), so
//     that the next look needs no requests; damper.go limits how often a busy writer
//     causes a look. checkpoint.go compares a cluster at rest with an earlier process's
//     memory;
//   - drift (drift.go): detected from the owners of fields (reconcile/apply/managed), and
//     verified by a dry run of the object. dispute.go keeps gitopsd and another writer
//     from undoing each other's work forever;
//   - the execution of a plan in stages (execute.go, step.go, wait.go, depends.go, converter.go,
//     prune.go); taking over fields of others (adopt.go), and creating objects again
//     (replace.go) where the repository asks for it;
//   - facts about package controllers for rollbacks (rollback.go), which
//     reconcile/rollback decides;
//   - the contents of Namespaces, types and packages (inside.go), which would be
//     deleted with them: read for a plan, and right before the deletion (full.go);
//   - the inventory (inventory.go), an ApplySet as KEP-3659 specifies it, and the
//     inventories of other clusters that are in this one (beside.go);
//   - comparing types with the live ones (types.go), the types that a definition had
//     before (history.go), and the objects that a breaking change would harm (survey.go),
//     which render/types/harm judges; tried.go tries conversion rules on live objects;
//   - dry runs for plans that people read (dryrun.go), and the live objects that checks
//     against changed types need (validate.go);
//   - the health of applied objects (health.go, pods.go), which reconcile/health judges;
//   - packages that a Crossplane in the cluster installs (crossplane.go): no other object
//     may install the same ones, and Crossplane must have installed ours.
//
// reconcile/plan decides, reconcile/kube sends the requests.
//
// Durability: all state is in the cluster. The parent object of the inventory names
// every kind before the first object of that kind is applied, and drops it after the
// last one is gone. It names the fleet and the commit, and is written by
// compare-and-swap. Every object is applied in one request together with its membership
// and its digest. So after a crash anywhere, the next process finds out what was done
// and does the rest; the memory of this process only saves requests.
package apply

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/validate"
)

// concurrency is how many requests are under way in one cluster. More make an
// API server no faster.
const concurrency = 8

// Config configures an [Applier].
type Config struct {
	// Cluster to apply to.
	Cluster *kube.Client
	// Inventory names the inventory in the cluster; the cluster's own name by
	// default.
	Inventory string
	// Fleet owns the inventory; Name or Accepts is required.
	Fleet Fleet
	// Log gets messages that are no results, with the cluster's name; required.
	Log *slog.Logger
	// Poll is how often Follow lists a kind that cannot be watched; default one
	// minute.
	Poll time.Duration
}

// Applier applies to one cluster. It remembers the cluster's state to save requests;
// losing that memory is harmless. Only one goroutine at a time may use it.
type Applier struct {
	cluster *kube.Client
	log     *slog.Logger
	set     applySet
	inv     plan.Inventory
	fleet   Fleet
	poll    time.Duration

	parent *parent // as last read or written; nil before
	// claimed is the parent's resourceVersion after the last write of this process.
	claimed string
	// pinned are the live definitions that pins were last checked against.
	pinned map[schema.GroupKind]pinned
	// revisions are the last decisions about packages' controllers.
	revisions map[manifest.ID]revision
	// compared are the comparisons of definitions with live ones for the last plan.
	compared map[manifest.ID]compared
	// surveyed are recent surveys of objects.
	surveyed map[manifest.ID]surveyed
	// rules are the conversion rules of desired definitions in the last plan.
	rules map[string]*render.Conversion
	// tried are recent trials of conversion rules.
	tried map[manifest.ID]tried

	mu sync.Mutex
	// gating is the Key of the plan.Gating that health was last judged by.
	gating string
	// healthTypes are the types of live definitions, for judging health. healthRules are
	// the rules of definitions that are not in a plan, and healthRead is when these were read.
	healthTypes map[schema.GroupVersionKind]*health.Type
	healthRules map[manifest.GroupKind]*health.Custom
	healthRead  map[schema.GroupVersionKind]time.Time
	kinds       map[schema.GroupKind]*kindState
	disputes    map[subject]*dispute
	// finished are the Jobs that were seen finished; zero for those that were not, last.
	finished map[manifest.ID]plan.Finished
	// added are the CRDs of the last plan that are new in an installed package.
	added    map[manifest.ID]bool
	follower *follower // nil while Follow does not run
	// rewound is set when resourceVersions went back: the parent must be read again.
	rewound bool
}

// New returns an Applier. It sends nothing.
func New(c Config) (*Applier, error) {
	if c.Cluster == nil || c.Log == nil || c.Fleet.Name == "" && c.Fleet.Accepts == nil {
		return nil, errors.New("apply: Cluster, Fleet and Log are required")
	}
	set := newApplySet(cmp.Or(c.Inventory, c.Cluster.Name()))
	return &Applier{
		cluster: c.Cluster, log: c.Log.With("cluster", c.Cluster.Name()), set: set, fleet: c.Fleet,
		inv:       plan.Inventory{ID: set.id, FieldManager: kube.FieldManager, Namespace: Namespace},
		poll:      cmp.Or(c.Poll, time.Minute),
		revisions: make(map[manifest.ID]revision), surveyed: make(map[manifest.ID]surveyed),
		kinds: make(map[schema.GroupKind]*kindState), disputes: make(map[subject]*dispute),
		finished: make(map[manifest.ID]plan.Finished),
		gating:   new(plan.Gating).Key(),
	}, nil
}

// PlanOptions are the inputs of a plan beside the desired objects.
type PlanOptions struct {
	plan.Options
	// Clusters are the names of all registered clusters; nil for none.
	Clusters []string
	// Commit to plan for; empty for a working tree.
	Commit string
	// Refused is why objects must not be applied, whatever the cluster has.
	Refused map[manifest.ID]string
	// DryRun asks the API server about every object that would be written: which fields
	// change, and whether it would be accepted. It is for people; Apply does not need it.
	DryRun bool
	// Allowed reports which breaking changes of types are allowed; nil for none.
	Allowed plan.Allowed
	// BreakingByData allows any breaking change that harms no object. Otherwise only one
	// that goes back to earlier types is allowed.
	BreakingByData bool
	// Conversions are the conversion rules of desired definitions, by the definition's
	// name, and Proofs tries them; required if there are any.
	Conversions map[string]*render.Conversion
	Proofs      *prove.Cache
	// Types compiles the types that objects are checked by; nil for none to share.
	Types *validate.Cache
	// FindType finds the definition of a type that an object is pinned to, to describe
	// the differences from the cluster's type; may be nil.
	FindType func(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string)
	// Behaviour returns what acts on the types of a desired definition, as rendered; nil
	// leaves pins to behaviours unchecked. FindBehaviour finds the behaviour that an
	// object is pinned to, to describe the differences from the cluster's; may be nil.
	Behaviour     func(definition *manifest.Object) (*behaviour.Identity, error)
	FindBehaviour func(ctx context.Context, kind schema.GroupKind, digest string) (i *behaviour.Identity, where string)
}

// Plan reads the state of the cluster and returns the steps to the desired objects. It
// changes nothing. The error is about the cluster as a whole; problems of an object or a
// kind are in the plan.
func (a *Applier) Plan(ctx context.Context, desired *manifest.Set, opts PlanOptions) (*plan.Plan, error) {
	a.cluster.Refresh()
	seen, err := a.look(ctx, desired)
	if err != nil {
		return nil, err
	}
	if seen.live.Beside, err = a.beside(ctx, seen, opts.Clusters); err != nil {
		return nil, err
	}
	a.findFinished(seen, opts.Options)
	p := plan.Compute(a.cluster.Name(), seen.desired, seen.live, a.inv, opts.Options)
	if err := a.lookInside(ctx, p, seen); err != nil {
		return nil, err
	}
	if err := a.readAccounts(ctx, p, seen); err != nil {
		return nil, err
	}
	if len(seen.live.Contents)+len(seen.live.ContentsUnknown)+len(seen.live.Accounts) > 0 {
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
	plan.KeepConverters(p)
	plan.RefuseUnkept(p)
	plan.RefuseAccounts(p)
	if opts.DryRun {
		if err := a.dryRun(ctx, p); err != nil {
			return nil, err
		}
		p.Notes = rolledBack(p)
	}
	return p, nil
}

// member returns an object as it is applied: with its membership and its digest.
func (a *Applier) member(o *manifest.Object) *manifest.Object {
	annotations := map[string]string{manifest.AppliedAnnotation: a.inv.Applied(o)}
	if o.ID().Is(manifest.Definitions...) {
		// A definition that the API server will refuse gets no digest.
		if digest, err := typesDigest(o); err == nil {
			annotations[manifest.TypesAnnotation] = digest
			// A manifest that was copied from a cluster has that one's record.
			if past := a.past(o.ID(), digest); past != "" || o.Annotation(manifest.HistoryAnnotation) != "" {
				annotations[manifest.HistoryAnnotation] = past
			}
		}
	}
	return o.WithMetadata(map[string]string{plan.PartOfLabel: a.set.id}, annotations)
}
