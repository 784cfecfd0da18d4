// Package reconcile is the daemon's loop. It polls the fleet repository, computes the
// newest commit, gives it to one worker per unit of work, and commits the lock back. The
// computation and the workers run in goroutines of their own, and the loop never waits long
// for them.
//
// What is durable when:
//
//  1. New lock records are pushed to the repository's pending ref before the
//     first object that depends on them is applied (pending.go).
//  2. Each unit has an inventory in its cluster (reconcile/apply). If a worker is killed,
//     the next one completes its work.
//  3. The lock is committed on the branch's newest head once every unit was
//     tried, or after LockGrace, and the pending ref is cleared (lock.go).
//
// A daemon that was killed between two of these steps reads the pending records back and
// compares them with the registry, so that no tag silently resolves to another digest. The
// only other state is a cache of checkpoints (resume.go).
//
// reconcile.go has the loop, poll.go the polls, compute.go the computation of a commit, and history.go the
// order of commits. workers.go runs a worker per unit: connect.go connects it, gate.go has it
// wait for the units that it depends on, outcome.go reports what came of an attempt, homes.go
// runs the controllers of homes, serve.go serves a unit that no attempt is made at,
// previous.go knows the clusters of the process before, and panic.go keeps a panic in its unit. report.go collects the problems that [Daemon.Once]
// returns.
//
// The neighbours: reconcile/desired computes, reconcile/unit works on one unit, and
// reconcile/status reports.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/resolve"
)

// Repository is the fleet repository. It is safe for concurrent use: a poll is under way
// while the loop is in one of the other methods, and workers are in Head and Parent.
type Repository interface {
	// Poll returns the newest commit of the branch, and reports whether it differs
	// from last. If not, the commit is zero. It fails if the repository cannot be
	// reached or read, or its newest commit is not trusted, even if it is last.
	Poll(ctx context.Context, last string) (sources.Commit, bool, error)
	// Update commits new content of one file on the newest head, durably and never
	// by force, and reports whether it did. content may be called several times;
	// equal bytes make no commit. Errors of content are returned.
	Update(ctx context.Context, path, message string, content func(head sources.Commit) ([]byte, error)) (sources.Commit, bool, error)
	// ReadPending returns the content that is kept outside the branch, nil if there
	// is none. Others can write it. The error is git.ErrUnreadable if WritePending
	// cannot have written it.
	ReadPending(ctx context.Context) ([]byte, error)
	// WritePending keeps content durably, outside the branch. The error is
	// git.ErrMoved if somebody else has written since the last ReadPending.
	WritePending(ctx context.Context, content []byte) error
	// ClearPending deletes that content. Errors are those of WritePending.
	ClearPending(ctx context.Context) error
	// Head returns the hash of the branch's newest commit. It fails if the repository
	// cannot be reached.
	Head(ctx context.Context) (string, error)
	// Parent returns the first parent of a commit; false if it has none. It fails if
	// the commit cannot be read. Who signed the parent is not known: it is not to be applied.
	Parent(ctx context.Context, hash string) (sources.Commit, bool, error)
}

// Connection works on one unit of work; [unit.Connection] is one. It is used by one
// goroutine at a time, but for Follow.
type Connection interface {
	// Apply applies the unit's objects. Errors are in the outcome.
	Apply(ctx context.Context, want *desired.Unit) unit.Outcome
	// Resume reports whether the unit is as an earlier process left it. If not, only
	// Moved is set in the outcome. It changes nothing.
	Resume(ctx context.Context, at *checkpoint.Record) unit.Outcome
	// Serve has this process serve what the unit has in its cluster, and reports whether
	// that is a home. It changes nothing there.
	Serve(ctx context.Context, want *desired.Unit) (home bool, err error)
	// Follow calls notify whenever there is something to do in the cluster although
	// nothing changed in the repository, until ctx ends. notify does not block.
	Follow(ctx context.Context, notify func())
	// Rest stops what runs in the unit between attempts, until the next Apply.
	Rest()
	// Close ends the connection. Follow has returned by then.
	Close()
}

// Home is the controllers of one cluster; [home.Home] is one.
type Home interface {
	// Set gives them the state of the fleet. It does not block.
	Set(fleet home.Fleet)
	// Run runs them until ctx ends, and then releases everything that they hold.
	Run(ctx context.Context)
}

// Config configures a [Daemon]. Repository, Computer, Connect, Board, Log and Interval are
// required.
type Config struct {
	Repository Repository
	// Computer computes what a commit asks for.
	Computer *desired.Computer
	// Connect connects to a unit. It is called again when the registration or the
	// credentials of the unit's cluster changed.
	Connect func(ctx context.Context, want *desired.Unit) (Connection, error)
	// Computed, if set, is called with each computed state, before any unit is worked on
	// for it.
	Computed func(*desired.State)
	// Left, if set, is called when a unit has left the fleet, and nothing works on it any more.
	Left func(id desired.ID)
	// Credentials returns the name of the credentials that Connect would use now, if it is
	// known without a request. Connect is called again when the name changes. Credentials
	// is called in every pass. It may be nil: then the name is never known.
	Credentials func(c clusters.Cluster) (name string, known bool)
	// Home makes the controllers of a cluster that has KubernetesTargets or
	// EtcdNamespaces, with a connection of their own. tell gets the problems that they
	// report. They run until the cluster's connection ends. With only they are those that
	// serve what is there, and change nothing in the cluster. Nil if there are none.
	Home func(ctx context.Context, want *desired.Unit, only bool, tell func([]problem.Problem)) (Home, error)
	// Attempted, if set, is called after each attempt at a unit, failed or not. It must not
	// block.
	Attempted func(want *desired.Unit)
	Board     *status.Board
	Log       *slog.Logger
	// Interval between polls.
	Interval time.Duration
	// Pushed receives when there may be a new commit, so that the next poll does not wait for
	// Interval; may be nil.
	Pushed <-chan struct{}
	// ClusterTimeout bounds one attempt at a unit, from its turn on; 0 means
	// DefaultClusterTimeout.
	ClusterTimeout time.Duration
	// Turns bounds the units that are worked on at a time; nil means 16, and 16 more with
	// slow clusters.
	Turns *turn.Turns
	// LockGrace is how long the commit of the lock waits for slow clusters; 0 means 15
	// seconds.
	LockGrace time.Duration
	// ReadonlyLock leaves the lock and the repository as they are.
	ReadonlyLock bool
	// Checkpoints stores the state of clusters at rest, so that a restart with the same
	// commit computes nothing. It may be nil: then every start computes everything.
	Checkpoints *checkpoint.Store
	// Registries keep the last registry without errors for the next process, which uses the
	// first that has one.
	Registries []Registry
	// Settings identifies every input of a computation except the commit: the
	// program, and the operator's settings. Checkpoints of other settings are ignored.
	Settings string
}

// Defaults of [Config].
const (
	DefaultClusterTimeout = 10 * time.Minute
	defaultLockGrace      = 15 * time.Second
)

// Daemon is the loop. Make one with New; it is used by one goroutine.
type Daemon struct {
	cfg     Config
	workers *workers
	history *history

	// head is the newest commit. now is the newest revision that could be computed, nil
	// before the first. The units follow now while head cannot be computed.
	head    sources.Commit
	now     *revision
	pending pending
	// unread is why pending could not be read; nil if it could.
	unread error
	// again: the same commit must be computed again, because something failed that may
	// succeed the next time.
	again bool
	// previous has the clusters of the process before. kept is where those of this one are kept
	// for the next. unkept: the registry of now is not everywhere there yet.
	previous previous
	kept     []kept
	unkept   bool
	// first is what is served before there is a commit to apply; nil for nothing. stuck: a
	// commit could not be used.
	first *revision
	stuck bool
	// overtaken: others pushed, so that the lock was not committed and must be computed
	// again. dueSince is when the lock became due; zero if it is not.
	overtaken bool
	dueSince  time.Time

	// polling is the poll under way; nil if there is none.
	polling     *polling
	firstAnswer time.Duration

	// due: head must be computed. computing is the computation under way; may be nil.
	// givenUp counts the computations in a row that were given up for a newer commit.
	due       bool
	computing *computation
	givenUp   int
	// lockless is a commit without a lock that none of its last ancestors has either. Only
	// computations use it.
	lockless string
}

// New checks the configuration and makes a daemon. It starts nothing.
func New(cfg Config) (*Daemon, error) {
	if cfg.Repository == nil || cfg.Computer == nil || cfg.Connect == nil || cfg.Board == nil || cfg.Log == nil || cfg.Interval <= 0 {
		return nil, errors.New("reconcile: Repository, Computer, Connect, Board, Log and Interval are required")
	}
	cfg.ClusterTimeout = cmp.Or(cfg.ClusterTimeout, DefaultClusterTimeout)
	cfg.LockGrace = cmp.Or(cfg.LockGrace, defaultLockGrace)
	if cfg.Turns == nil {
		cfg.Turns = turn.New(16)
	}
	return &Daemon{cfg: cfg, workers: newWorkers(cfg), history: newHistory(cfg.Repository), kept: places(cfg), firstAnswer: firstAnswer}, nil
}

// Run runs the loop until ctx ends, and then returns nil. Steps under way are finished, or
// given up where the next run can complete them.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.stop()
	d.loadPrevious(ctx)
	var pause <-chan time.Time
	rest := func() {
		// A tenth of jitter keeps a fleet of daemons from polling in step.
		pause = time.After(d.cfg.Interval + rand.N(d.cfg.Interval/10+1))
	}
	// Units are tried again more often than polls that are rare.
	var retry <-chan time.Time
	later := func() {
		if d.cfg.Interval > longestRetry {
			retry = time.After(longestRetry + rand.N(longestRetry/10))
		}
	}
	later()
	var err error
	for poll := true; ; {
		d.cfg.Board.Turn()
		d.overtaken = false
		asks := poll && d.polling == nil
		if asks {
			d.poll(ctx) // the clusters get their jobs when it ends
		} else if err = errors.Join(err, d.handOut(ctx, false)); err != nil && ctx.Err() == nil {
			d.cfg.Log.Error("pass failed", "error", err)
		}
		if d.overtaken {
			pause = time.After(min(d.cfg.Interval, overtakenPause))
		}
		poll, err = false, nil
		late, silent := d.silent()
		if asks && late { // by now, nothing else would tell
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.polled():
			err = d.look(ctx)
			rest()
		case <-silent:
		case <-d.workers.moved:
			// A failed computation waits for the next poll.
			poll = !d.again
			d.again = true
		case <-d.computed():
			err = d.takeUp(ctx)
		case <-d.impatient():
			d.giveUp()
		case <-d.pushed():
			poll = true
		case <-retry:
			later()
		case <-pause:
			poll = true
			rest()
		}
	}
}

// stop ends the poll, the computation and the workers, and waits for them.
func (d *Daemon) stop() {
	if p := d.polling; p != nil {
		p.cancel()
		<-p.done
	}
	if c := d.computing; c != nil {
		c.cancel()
		<-c.done
	}
	d.workers.stop()
}

// maxOvertaken bounds the passes that Once makes because others push meanwhile.
// overtakenPause is how long a daemon then waits for its next pass.
const (
	maxOvertaken   = 10
	overtakenPause = time.Second
)

// fine are the phases of units for which Once returns no error.
var fine = []status.Phase{status.Ready, status.Suspended, status.Degraded, status.Progressing}

// Once makes one pass over all clusters and commits the lock. If others push meanwhile, it
// makes another pass with the new commit. With patience it then works as Run does until
// everything is Ready, for at most that long, or until only people can make it so. It returns all problems, and with patience also
// the clusters that are not Ready. Without patience, a problem is not both returned and
// logged, and problems of a commit that was overtaken are neither.
func (d *Daemon) Once(ctx context.Context, patience time.Duration) error {
	if patience == 0 {
		d.workers.reports = new(reports)
	}
	returned := make(map[reportKey]bool)
	defer func() {
		d.stop()
		d.workers.reports.log(d.cfg.Log, d.current(), returned)
	}()
	if err := d.pass(ctx); err != nil {
		return err
	}
	accepted := fine
	var errs []error
	if patience > 0 {
		accepted = fine[:2]
		errs = append(errs, d.awaitReady(ctx, patience))
	}
	for _, p := range d.now.state.Problems() {
		returned[report{problem: p}.key()] = true
		errs = append(errs, p)
	}
	for _, c := range d.cfg.Board.Snapshot().Clusters {
		want := d.now.state.Get(c.Name)
		if slices.Contains(accepted, c.Phase) {
			continue
		}
		lines := []string{fmt.Sprintf("cluster %s: %s: %s", c.Name, c.Phase, c.Message)}
		for _, p := range c.Problems {
			returned[report{unit: c.Name, problem: p}.key()] = true
			lines = append(lines, p.WithoutCluster().String())
		}
		if want == nil || want.Err == nil { // else it is the state's
			errs = append(errs, errors.New(strings.Join(lines, "\n    ")))
		}
	}
	return errors.Join(errs...)
}

// pass brings all clusters to the newest commit, and commits its lock.
func (d *Daemon) pass(ctx context.Context) error {
	for n := 1; ; n++ {
		d.cfg.Board.Turn()
		d.overtaken = false
		if err := d.once(ctx); err != nil {
			return err
		}
		select {
		case <-d.workers.moved:
			d.again = true
			continue
		default:
		}
		if d.overtaken && n < maxOvertaken {
			continue
		}
		if d.overtaken {
			return d.commitLock(ctx, true)
		}
		return nil
	}
}

// awaitReady waits until everything is Ready. Meanwhile workers follow their clusters, and
// passes bring new commits and retries.
func (d *Daemon) awaitReady(ctx context.Context, patience time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pause := time.After(d.cfg.Interval)
	for {
		changed := d.cfg.Board.Changed()
		s := d.cfg.Board.Snapshot()
		if len(s.Unready()) == 0 {
			return nil
		}
		if s.Stuck() {
			return errors.New("not everything is Ready, and waiting does not help: what is held or refused needs a change in the repository or the cluster")
		}
		select {
		case <-waiting.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return errors.Join(fmt.Errorf("not everything is Ready after %s", patience), lockError(s))
		case <-changed:
			continue
		case <-d.workers.moved:
			d.again = true
		case <-pause:
		}
		if err := d.pass(waiting); err != nil && waiting.Err() == nil {
			d.cfg.Log.Error("pass failed", "error", err)
		}
		pause = time.After(d.cfg.Interval)
	}
}

// lockError returns why the lock cannot be read or committed; nil if it can.
func lockError(s status.Snapshot) error {
	if s.LockError == "" {
		return nil
	}
	return errors.New(s.LockError)
}

// once polls, waits for the computation, and applies its result to all clusters.
func (d *Daemon) once(ctx context.Context) error {
	d.poll(ctx)
	<-d.polled()
	err := d.look(ctx)
	for d.computing != nil {
		select {
		case <-d.computing.done:
			err = errors.Join(err, d.takeUp(ctx))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(err, d.handOut(ctx, true))
}

// handOut gives the clusters their jobs, and commits the lock. The error is about
// the repository as a whole.
func (d *Daemon) handOut(ctx context.Context, wait bool) (err error) {
	defer func() {
		if ctx.Err() == nil {
			d.cfg.Board.Lock(d.now != nil && d.lockDue(), errors.Join(d.unread, err))
		}
	}()
	if d.now == nil {
		d.serveFirst(ctx)
		return nil
	}
	if d.lockDue() { // before a cluster is Ready with it
		d.cfg.Board.Lock(true, nil)
	}
	held, perr := d.keepPending(ctx)
	tried := d.workers.assign(ctx, d.now, held)
	d.keepRegistry(ctx)
	due := d.lockDue()
	switch {
	case !due:
		d.dueSince = time.Time{}
	case d.dueSince.IsZero():
		d.dueSince = time.Now()
	}
	if !due && !wait {
		return errors.Join(perr, d.settlePending(ctx))
	}
	behind := d.head.Hash != d.now.commit.Hash
	waited := time.Since(d.dueSince)
	switch {
	case wait:
		d.await(ctx, tried, nil)
	case behind && waited < lockPatience*d.cfg.LockGrace:
		return perr // the computation under way brings the newer commit's lock
	case waited < d.cfg.LockGrace:
		d.await(ctx, tried, time.After(d.cfg.LockGrace-waited))
	}
	lerr := d.commitLock(ctx, behind)
	if len(held) > 0 && lerr == nil && !d.lockDue() {
		// The records are on the branch, which is just as durable.
		perr = nil
		if tried = d.workers.assign(ctx, d.now, nil); wait {
			d.await(ctx, tried, nil)
		}
	}
	return errors.Join(perr, lerr)
}

// follow puts a revision in charge, and reports its new problems and notes.
func (d *Daemon) follow(now *revision) {
	now.perhaps = d.previous.perhaps(now.state)
	now.before = now.lastRegistered(d.now)
	var before []problem.Problem
	var waiting []resolve.Waiting
	var noted []string
	if d.now != nil {
		before, waiting, noted = d.now.state.AllProblems(), d.now.state.Waiting, notes(d.now.state)
	}
	state := now.state
	d.now, d.again, d.unkept = now, false, true
	problems, all := state.Problems(), state.AllProblems()
	if len(problems) > 0 {
		d.again = true
		if !problem.Unchanged(all, before) {
			d.cfg.Log.Error("the commit has errors; everything else goes on", "commit", sources.ShortHash(state.Commit.Hash), "problems", len(problems))
		}
		// A problem that another cluster gets is new for that cluster alone.
		for _, p := range problem.Merge(problem.News(all, before, problem.Problem.String)) {
			d.workers.reports.take(d.cfg.Log, report{problem: p, level: slog.LevelError})
		}
	}
	for _, w := range problem.News(state.Waiting, waiting, resolve.Waiting.String) {
		d.cfg.Log.Info("a new revision waits for approval", "package", w.Ref.String(), "clusters", strings.Join(w.Clusters, ", "), "active", w.Active.String(), "new", w.New, "approve", w.String())
	}
	for _, note := range problem.News(notes(state), noted, func(note string) string { return note }) {
		d.cfg.Log.Warn(note)
	}
	var names []string
	for _, u := range state.Clusters {
		names = append(names, u.ID.String())
	}
	left := d.leftAlone(state)
	d.cfg.Board.Commit(state.Commit.Hash, state.Commit.Subject, all, append(names, sortedKeys(left)...))
	for id := range now.perhaps {
		if _, known := left[id.String()]; !known && state.Get(id.String()) == nil && !state.Removed(id) {
			left[id.String()] = "it is not registered any more by a " + sources.RegistryFile + " that has errors"
		}
	}
	d.cfg.Board.Know(sortedKeys(left))
	for name, why := range left {
		d.cfg.Board.Update(name, func(c *status.Unit) {
			c.Phase, c.Message = status.Failed, why+"; the cluster is left as it is"
			c.Commit, c.Stuck = state.Commit.Hash, true
		})
	}
}

// leftAlone returns the units that are left as they are because the registry has errors,
// and why: the document of their cluster has errors, or is missing and one with errors may
// be meant for it.
func (d *Daemon) leftAlone(s *desired.State) map[string]string {
	left := make(map[string]string)
	known := append(s.Committed.Clusters(), s.Registry.Broken...)
	for _, c := range d.cfg.Board.Snapshot().Clusters {
		known = append(known, c.Name)
	}
	for _, name := range known {
		id := desired.ParseID(name)
		_, there := s.Registry.Get(id.Cluster)
		switch {
		case slices.Contains(s.Registry.Broken, id.Cluster):
			left[name] = "its registration has errors"
		case !there && !s.Removed(id):
			left[name] = "it is not registered any more by a " + sources.RegistryFile + " that has errors"
		}
	}
	return left
}

// notes returns the notes of all clusters.
func notes(s *desired.State) []string {
	var all []string
	for _, c := range s.Clusters {
		for _, note := range c.Notes {
			all = append(all, fmt.Sprintf("cluster %s: %s", c.ID, note))
		}
	}
	return all
}

// await waits until all clusters were tried, or grace or ctx ends.
func (d *Daemon) await(ctx context.Context, tried []<-chan struct{}, grace <-chan time.Time) {
	for _, done := range tried {
		select {
		case <-done:
		case <-grace:
			return
		case <-ctx.Done():
			return
		}
	}
}
