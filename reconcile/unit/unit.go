// Package unit takes a unit of work the whole way: look at its cluster, complete
// what is wanted, plan, apply, and see to the health of what was applied. The daemon
// and the commands go this way alike, so that `gitopsd run` does what `gitopsd plan`
// prints.
//
// It owns
//   - the connection to one unit, with what is remembered of it;
//   - the options of its plan (options.go);
//   - the completion of its objects (complete.go);
//   - the outcome of an attempt, in people's terms (outcome.go).
//
// reconcile/desired says what is wanted, reconcile/plan decides, and reconcile/apply
// looks and executes. When an attempt is made is reconcile's business.
package unit

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/status"
)

// Config is what a Connection is made of.
type Config struct {
	// Unit is the identity of the unit; required.
	Unit desired.ID
	// Client talks to the unit's cluster; required. The Connection owns it.
	Client *kube.Client
	// Fleet is whose inventory the unit has; see [apply.Config].
	Fleet apply.Fleet
	// Completers fill in what is not known when the unit is rendered, in this
	// order.
	Completers []Completer
	// Log gets what was done; required.
	Log *slog.Logger
}

// Connection works on one unit. It remembers what it has seen in the cluster, so
// that the next attempt asks for less. It is used by one goroutine at a time, but
// for Follow.
type Connection struct {
	client     *kube.Client
	applier    *apply.Applier
	completers []Completer
	log        *slog.Logger
}

// New makes a connection to a unit. It sends nothing. The error is about the
// configuration; the client is closed then.
func New(c Config) (*Connection, error) {
	if c.Client == nil || c.Log == nil || c.Unit.Cluster == "" {
		return nil, errors.New("unit: Unit, Client and Log are required")
	}
	applier, err := apply.New(apply.Config{Cluster: c.Client, Inventory: c.Unit.String(), Fleet: c.Fleet, Log: c.Log})
	if err != nil {
		c.Client.Close()
		return nil, err
	}
	return &Connection{client: c.Client, applier: applier, completers: c.Completers, log: c.Log.With("cluster", c.Unit.String())}, nil
}

// Close ends the connection. Follow has returned by then.
func (c *Connection) Close() { c.client.Close() }

// Follow calls notify whenever something changed in the cluster that may need to be
// corrected, until ctx ends. notify must not block.
func (c *Connection) Follow(ctx context.Context, notify func()) { c.applier.Follow(ctx, notify) }

// Plan returns what Apply would do, with the fields that would change and whether
// the API server would accept it. It changes nothing. The error is about the unit
// as a whole.
func (c *Connection) Plan(ctx context.Context, want *desired.Unit) (*plan.Plan, error) {
	p, _, err := c.plan(ctx, want, true)
	return p, err
}

func (c *Connection) plan(ctx context.Context, want *desired.Unit, preview bool) (*plan.Plan, Completion, error) {
	opts, err := options(want)
	if err != nil {
		return nil, Completion{}, err
	}
	completed, err := c.complete(ctx, want, preview)
	if err != nil {
		return nil, completed, err
	}
	opts.DryRun = preview
	p, err := c.applier.Plan(ctx, completed.set, opts)
	if err != nil {
		return nil, completed, err
	}
	if want.ReportDrift {
		hold(p)
	}
	return p, completed, nil
}

// Deletions take their time: a unit that is to be emptied is looked at so often in
// one attempt.
const (
	emptyRounds = 10
	emptyPause  = time.Second
)

// Apply brings the unit to what is wanted. The outcome says what came of it also
// where that is an error.
func (c *Connection) Apply(ctx context.Context, want *desired.Unit) (o Outcome) {
	o = c.apply(ctx, want)
	defer func() { o.Notes = c.applier.Polled() }()
	underWay := func() bool {
		return o.Phase == status.Leaving && o.Actions[string(plan.Prune)]+o.Actions[string(plan.Wait)] > 0
	}
	for round := 1; round < emptyRounds && underWay(); round++ {
		select {
		case <-ctx.Done():
			return o
		case <-time.After(emptyPause):
		}
		o = c.apply(ctx, want)
	}
	return o
}

func (c *Connection) apply(ctx context.Context, want *desired.Unit) Outcome {
	p, completed, err := c.plan(ctx, want, false)
	if err != nil {
		return failed(err)
	}
	o := newOutcome(want.ID, p)
	o.Again = completed.Again
	report, err := c.applier.Apply(ctx, p)
	c.take(report, &o)
	if err != nil {
		return o.fail(err)
	}
	unhealthy, err := c.applier.Health(ctx, p)
	if err != nil {
		return o.fail(err)
	}
	for _, h := range unhealthy {
		o.unhealthy(h)
	}
	o.conclude(want, p)
	if o.Phase == status.Ready && len(o.Problems) == 0 && !want.Remove && !completed.Serving {
		o.Checkpoint = c.applier.Checkpoint(p)
	}
	return o
}

// Resume reports whether the unit is as a record has it, and nothing has fallen due
// since: if not, the outcome has Moved set and says nothing else. It changes
// nothing.
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
	return Outcome{Phase: status.Ready, Actions: map[string]int{string(plan.Unchanged): at.Objects}, Notes: c.applier.Polled(), Again: at.Again}
}
