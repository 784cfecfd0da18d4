// Package unit reconciles a unit of work: it observes the cluster, completes the
// desired objects, plans, applies, and checks the health of what it applied. The
// daemon and the commands share this path, so that `gitopsd run` does what `gitopsd
// plan` prints.
//
// unit.go has the connection to one unit and its memory, options.go the options of
// its plan, complete.go the completion of its objects, outcome.go the outcome of an
// attempt for people, storage.go the storage migrations that go on beside it, serve.go
// what is served for a unit without an attempt, live.go plans that also look at stored
// objects, installed.go the installed versions of packages, and notes.go a plan's notes on
// Compositions, etcd and annotations.
//
// reconcile/desired computes the desired state, reconcile/plan decides, and
// reconcile/apply observes and executes. Package reconcile decides when to make an
// attempt.
package unit

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/migrate"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources/clusters"
)

// Config configures a [Connection].
type Config struct {
	// Unit is the identity of the unit; required.
	Unit desired.ID
	// Client talks to the unit's cluster; required. The Connection owns it.
	Client *kube.Client
	// Fleet is the fleet whose inventory the unit has; see [apply.Config].
	Fleet apply.Fleet
	// Completers fill in values that are unknown when the unit is rendered, in this
	// order.
	Completers []Completer
	// Migrations, if set, migrates the storage of CRDs that ask for it, while Follow runs.
	// Its Cluster and Log are taken from this Config.
	Migrations *migrate.KeeperConfig
	// Beside, if set, runs while Follow does, and calls notify when a Completer would
	// return another result although nothing changed in the unit's cluster.
	Beside func(ctx context.Context, notify func())
	// Alone, if set, returns an error if the cluster that client reaches is or may be another
	// registered cluster. Then the unit is not emptied.
	Alone func(ctx context.Context, client *kube.Client, registered []clusters.Cluster) error
	// Serve, if set, has this process serve what the unit keeps in its cluster, as
	// Completers do, without changing anything.
	Serve func(ctx context.Context, r Request) error
	// Log gets what was done; required.
	Log *slog.Logger
}

// Connection works on one unit. It remembers what it observed in the cluster, so
// that the next attempt sends fewer requests. Except for Follow, only one goroutine
// at a time may use it.
type Connection struct {
	client     *kube.Client
	applier    *apply.Applier
	completers []Completer
	migrations *migrate.Keeper // nil for none
	beside     func(ctx context.Context, notify func())
	alone      func(ctx context.Context, client *kube.Client, registered []clusters.Cluster) error
	serve      func(ctx context.Context, r Request) error
	log        *slog.Logger

	// completion is the last one that was not for a preview. It was made at completedAt,
	// for the unit completed; nil if there is none.
	completed   *desired.Unit
	completedAt time.Time
	completion  Completion
}

// New makes a connection to a unit. It sends nothing. The error is about the
// configuration; the client is then closed.
func New(c Config) (*Connection, error) {
	if c.Client == nil || c.Log == nil || c.Unit.Cluster == "" {
		return nil, errors.New("unit: Unit, Client and Log are required")
	}
	applier, err := apply.New(apply.Config{Cluster: c.Client, Inventory: c.Unit.String(), Fleet: c.Fleet, Log: c.Log})
	if err != nil {
		c.Client.Close()
		return nil, err
	}
	conn := &Connection{client: c.Client, applier: applier, completers: c.Completers, beside: c.Beside, alone: c.Alone, serve: c.Serve, log: c.Log.With("cluster", c.Unit.String())}
	if c.Migrations == nil {
		return conn, nil
	}
	of := *c.Migrations
	of.Cluster, of.Log = c.Client, c.Log
	if conn.migrations, err = migrate.NewKeeper(of); err != nil {
		c.Client.Close()
		return nil, err
	}
	return conn, nil
}

// Close ends the connection. Follow must have returned.
func (c *Connection) Close() { c.client.Close() }

// Follow calls notify for each change in the cluster that may need a correction,
// until ctx ends. notify must not block. Meanwhile it runs Config.Migrations and
// Config.Beside.
func (c *Connection) Follow(ctx context.Context, notify func()) {
	var beside sync.WaitGroup
	defer beside.Wait()
	if c.migrations != nil {
		beside.Go(func() { c.migrations.Run(ctx, notify) })
	}
	if c.beside != nil {
		beside.Go(func() { c.beside(ctx, notify) })
	}
	c.applier.Follow(ctx, notify)
}

// Plan returns the steps that Apply would take, with the fields that would change
// and whether the API server would accept them. It changes nothing. The error is
// about the unit as a whole.
func (c *Connection) Plan(ctx context.Context, want *desired.Unit) (*plan.Plan, error) {
	p, _, err := c.plan(ctx, want, planning{preview: true, dryRun: true})
	return p, err
}

// Decide returns the steps that Apply would take, as Plan does, but asks the API server
// about none of them. It changes nothing. The error is about the unit as a whole.
func (c *Connection) Decide(ctx context.Context, want *desired.Unit) (*plan.Plan, error) {
	p, _, err := c.plan(ctx, want, planning{preview: true})
	return p, err
}

// planning is what a plan is made for.
type planning struct {
	// preview: nothing may be written anywhere.
	preview bool
	// dryRun: the API server is asked about every step that writes.
	dryRun bool
}

func (c *Connection) plan(ctx context.Context, want *desired.Unit, how planning) (*plan.Plan, Completion, error) {
	opts, err := options(want)
	if err != nil {
		return nil, Completion{}, err
	}
	completed, err := c.complete(ctx, want, opts.Adopt, how.preview)
	if err != nil {
		return nil, completed, err
	}
	completed.keep(&opts.Options)
	opts.Refused, opts.DryRun = completed.Refused, how.dryRun
	p, err := c.applier.Plan(ctx, completed.set, opts)
	if err != nil {
		return nil, completed, err
	}
	if want.Remove && c.alone != nil && p.Count(plan.Prune) > 0 {
		switch err := c.alone(ctx, c.client, want.Beside); {
		case err != nil && !how.preview:
			return nil, completed, err
		case err != nil:
			p.Notes = append(p.Notes, problem.Message(err)) // of the cluster
		}
	}
	if want.ReportDrift {
		hold(p)
	}
	plan.KeepConverters(p)
	if want.LineOf != nil {
		p.Locate(want.LineOf)
	}
	if how.dryRun {
		plan.HoldIncomplete(p)
		p.Notes = append(p.Notes, append(c.notes(ctx, want), completed.Notes...)...)
		p.Notes = append(p.Notes, c.stranded(ctx, want, p)...)
	}
	return p, completed, nil
}

// Deletions take time: one attempt to empty a unit has at most so many rounds.
const (
	emptyRounds = 10
	emptyPause  = time.Second
)

// Apply brings the unit to the desired state. The outcome has the results even if
// one is an error.
func (c *Connection) Apply(ctx context.Context, want *desired.Unit) (o Outcome) {
	o = c.apply(ctx, want)
	defer func() {
		if o.Phase != status.Unreachable { // which says it all
			o.Notes = append(o.Notes, c.applier.Polled()...)
		}
	}()
	underWay := func() bool {
		return o.Phase == status.Leaving && o.Actions[string(plan.Prune)]+o.Actions[string(plan.Wait)] > 0
	}
	for round := 1; round < emptyRounds && underWay() && kube.Sleep(ctx, emptyPause) == nil; round++ {
		o = c.apply(ctx, want)
	}
	return o
}

func (c *Connection) apply(ctx context.Context, want *desired.Unit) Outcome {
	p, completed, err := c.plan(ctx, want, planning{})
	if err != nil {
		return failed(err)
	}
	o := newOutcome(want.ID, p)
	o.Again, o.Notes, o.Certificates = completed.Again, completed.Notes, completed.Certificates
	o.Notes = append(o.Notes, unproven(p)...)
	o.Home = slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return target.Defines(s.ID) || etcd.Defines(s.ID) })
	report, err := c.applier.Apply(ctx, p)
	c.take(want, report, &o)
	if err != nil {
		return o.fail(err)
	}
	migrated := c.migrate(report)
	unhealthy, err := c.applier.Health(ctx, p)
	if err != nil {
		return o.fail(err)
	}
	if err := c.applier.Record(ctx, p); err != nil {
		return o.fail(err)
	}
	for _, h := range unhealthy {
		o.unhealthy(want, h)
		if !h.Until.IsZero() && (o.Again.IsZero() || h.Until.Before(o.Again)) {
			o.Again = h.Until
		}
	}
	o.conclude(want, p)
	if o.Phase == status.Ready && len(o.Problems) == 0 && !want.Remove && !want.Publishes() && !completed.Serving && !o.Home && migrated {
		o.Checkpoint = c.applier.Checkpoint(p)
	}
	return o
}

// Inventory returns the UID of the object in the cluster that records which objects are
// the unit's; empty if there is none. Two connections to one unit that return the same
// UID lead to the same cluster, whatever their addresses.
func (c *Connection) Inventory(ctx context.Context) (string, error) { return c.applier.ParentUID(ctx) }

// IsAt is [apply.Applier.IsAt].
func (c *Connection) IsAt(id manifest.ID, version string) bool { return c.applier.IsAt(id, version) }

// Resume checks that the unit is still in the recorded state, and that nothing has fallen
// due since. If not, only Moved is set in the outcome. It changes nothing.
func (c *Connection) Resume(ctx context.Context, at *checkpoint.Record) Outcome {
	if !at.Again.IsZero() && !time.Now().Before(at.Again) {
		return Outcome{Moved: true}
	}
	rests, err := c.applier.AtRest(ctx, at.Cluster)
	switch {
	case err != nil:
		return failed(err)
	case !rests:
		return Outcome{Moved: true}
	}
	o := Outcome{Phase: status.Ready, Actions: map[string]int{string(plan.Unchanged): at.Objects}, Again: at.Again, Certificates: at.Certificates}
	for _, id := range c.applier.Unjudged() {
		o.unknown = append(o.unknown, id.String())
	}
	o.noteUnknown()
	o.Notes = append(o.Notes, c.applier.Polled()...)
	return o
}
