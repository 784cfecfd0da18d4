package plan

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// Comparer compares definitions, and remembers the results: the same bump in many
// clusters is compared once. It is safe for concurrent use.
type Comparer struct {
	mu   sync.Mutex
	done map[[2]sources.Digest]*comparison

	types validate.Cache
}

type comparison struct {
	// turn is held by the caller that compares, so that others can stop waiting for it.
	turn chan struct{}
	// done is set once everything was compared. The rest never changes from then on.
	done    bool
	changes []Change
	report  compat.Report
	before  []types.Type
	err     error
}

// compare compares definitions as they are rendered; now may be nil. It does not know
// which versions are stored. The error is the context's: the next caller compares then.
func (c *Comparer) compare(ctx context.Context, old, now *manifest.Object) (*comparison, error) {
	key := [2]sources.Digest{old.Hash()}
	var tree map[string]any
	if now != nil {
		key[1], tree = now.Hash(), now.Tree()
	}
	c.mu.Lock()
	if c.done == nil {
		c.done = make(map[[2]sources.Digest]*comparison)
	}
	one := c.done[key]
	if one == nil {
		one = &comparison{turn: make(chan struct{}, 1)}
		c.done[key] = one
	}
	c.mu.Unlock()
	select {
	case one.turn <- struct{}{}:
		defer func() { <-one.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if one.done {
		return one, nil
	}
	if now != nil {
		one.changes = Diff(old.Tree(), tree)
	}
	one.report, one.err = compat.Compare(ctx, old.Tree(), tree, compat.Options{})
	if err := ctx.Err(); err != nil {
		return nil, err // which may be why the comparison failed
	}
	if one.err == nil {
		one.before, one.err = types.Of(old.Tree())
	}
	one.done = true
	return one, nil
}

// Between returns the plan from one rendering of a cluster to another, without looking at
// the cluster. It holds the prunes that would be held there, and refuses the steps that
// would be refused there, as far as that is known: breaking changes, pins, dependencies, and
// objects that a type of the second rendering would not accept. It notes kinds that may be
// misspelt. The error is the context's.
func (c *Comparer) Between(ctx context.Context, cluster string, before, after *manifest.Set, opts Options, allowed Allowed, find FindType) (*Plan, error) {
	p := &Plan{Cluster: cluster}
	packages := make(map[string]bool)
	now, was := computation{desired: after, opts: opts, inactive: byKind(opts.Inactive)}, computation{desired: before}
	now.awaited = otherNames(after)
	now.findUnregistered()
	was.findUnregistered()
	withdrawn := func(o *manifest.Object) bool { // nothing serves it any more
		return now.unregistered[o.ID()] != "" && was.unregistered[o.ID()] == "" && before.Get(o.ID()) != nil
	}
	for _, o := range after.All() {
		if withdrawn(o) {
			continue
		}
		packages[o.Label(manifest.PackageLabel)] = true
		s := Step{Action: Unchanged, ID: o.ID(), Stage: stageOf(o), Object: o, Package: o.Label(manifest.PackageLabel)}
		switch old := before.Get(o.ID()); {
		case old == nil:
			s.Action = Create
		case old.Hash() != o.Hash():
			s.Action = Configure
			if !o.ID().Is(manifest.Definitions...) {
				s.Changes = Diff(old.Tree(), o.Tree())
			}
		}
		if why := now.misuse(o); why != "" {
			s.Action, s.Reason = Refused, why
		} else if why := now.unregistered[o.ID()]; why != "" {
			s.Action, s.Lasting, s.Reason = Held, true, "nothing would serve it: "+why
		}
		p.Steps = append(p.Steps, s)
	}
	sortApplied(p.Steps)
	var prunes []Step
	now.live.Accounts = make(map[manifest.ID][]string)
	for _, o := range before.All() {
		if after.Get(o.ID()) == nil || withdrawn(o) {
			s := Step{Action: Prune, ID: o.ID(), Stage: StageOf(o.ID()), Package: o.Label(manifest.PackageLabel)}
			s.Early, s.Reason = now.early(&s), now.leaves(s.ID)
			s.Needs = dependencies(o.Annotation(manifest.DependsOnAnnotation), Order{})
			if s.WantsAccounts() {
				s.Accounts = AccountsOf(o.Tree())
				now.live.Accounts[s.ID] = s.Accounts
			}
			prunes = append(prunes, s)
		}
	}
	sortPruned(prunes)
	label := func(id manifest.ID, key string) string { return before.Get(id).Label(key) }
	now.keepUnrendered(prunes, label)
	now.keepReplaced(prunes, label)
	now.keepDelegated(prunes)
	now.keepUsed(prunes)
	now.keepMost(prunes, before.Len())
	p.Steps = append(p.Steps, prunes...)
	p.behind = now.order(p.Steps)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range p.Steps {
		s := &p.Steps[i]
		dropped := s.Action == Prune && s.Package != "" && packages[s.Package]
		if !s.ID.Is(manifest.Definitions...) || s.Action != Configure && !dropped {
			continue
		}
		g.Go(func() error {
			done, err := c.compare(gctx, before.Get(s.ID), s.Object)
			if err != nil {
				return err
			}
			s.Changes = done.changes
			if done.err != nil {
				s.Action, s.Reason = Refused, fmt.Sprintf("comparing the types of %s: %v", s.ID, done.err)
				return nil
			}
			s.Compatibility, s.Findings, s.Before = done.report.Severity, done.report.Findings, done.before
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	RefuseBreaking(p, allowed, false) // no objects were looked at
	CheckPins(ctx, p, nil, find, false)
	CheckObjects(ctx, p, ObjectCheck{Types: &c.types, before: before})
	doubtKinds(p, before, after)
	return p, ctx.Err()
}
