// Package reconcile is the daemon's loop: poll the fleet repository, compute
// what its newest commit asks for, hand it to one worker for each cluster, and
// commit the lock back.
//
// What is durable when:
//
//  1. New lock records are pushed to the repository's pending ref before the
//     first object that depends on them is applied.
//  2. Each cluster keeps its own inventory (reconcile/apply); a worker that is
//     killed anywhere is completed by the next one.
//  3. The lock is committed on the branch's newest head once every cluster was
//     tried, or after LockGrace, and the pending ref goes.
//
// A daemon that is killed between any two of them reads the pending records
// back: what they say is confirmed by the registry, and nothing is resolved to
// something else without a word (pending.go). There is no other state.
//
// The neighbours: reconcile/desired computes, reconcile/plan decides,
// reconcile/apply executes, reconcile/kube talks to API servers, and
// reconcile/status tells people.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// Repository is the fleet repository. Implementations are used by one goroutine
// at a time.
type Repository interface {
	// Poll returns the newest commit of the branch, and whether it is another
	// one than last. Without a change the commit is empty.
	Poll(ctx context.Context, last string) (sources.Commit, bool, error)
	// Update commits new content of one file on the newest head, durably and
	// never by force. Content may be called several times; equal bytes make
	// no commit.
	Update(ctx context.Context, path, message string, content func(head sources.Commit) ([]byte, error)) (sources.Commit, bool, error)
	// ReadPending returns what is kept outside the branch, nil if there is
	// nothing. Others can write it. The error is git.ErrUnreadable if what is
	// there is no content of WritePending's.
	ReadPending(ctx context.Context) ([]byte, error)
	// WritePending keeps content durably, outside the branch. The error is
	// git.ErrMoved if somebody else has written since the last ReadPending.
	WritePending(ctx context.Context, content []byte) error
	// ClearPending forgets it, with the same errors.
	ClearPending(ctx context.Context) error
	// Parent returns the commit before a commit, its first parent; false if
	// it has none.
	Parent(ctx context.Context, hash string) (sources.Commit, bool, error)
}

// Target is a registered cluster that answers, or not.
type Target interface {
	// Apply brings the cluster to what is wanted. The outcome says what came
	// of it even where that is an error.
	Apply(ctx context.Context, want *desired.Cluster) Outcome
	// Resume looks whether the cluster is as an earlier process left it; if not,
	// the outcome has Moved set and says nothing else. It changes nothing.
	Resume(ctx context.Context, at *checkpoint.Record) Outcome
	// Follow calls notify whenever there is something to do in the cluster
	// although nothing changed in the repository, until ctx ends. notify does
	// not block.
	Follow(ctx context.Context, notify func())
	// Close lets go of connections. Follow has returned by then.
	Close()
}

// Outcome is what an attempt at a cluster came to.
type Outcome struct {
	// Phase is the state that the attempt left the cluster in.
	Phase status.Phase
	// Message says in a line why it is not Ready.
	Message string
	// Actions counts the plan's steps by action.
	Actions map[string]int
	// Changed counts the objects that were written or deleted.
	Changed int
	// Problems are objects at fault, with reasons.
	Problems []string
	// Packages by name: why a package is not ready; those that are, are not
	// there.
	Packages map[string]string
	// Gone says that a cluster that left the registry has nothing of ours any
	// more.
	Gone bool
	// Checkpoint is how the cluster looks, if nothing is left to do in it and
	// that can be told by its looks.
	Checkpoint *apply.Checkpoint
	// Moved says that the cluster is not as a checkpoint has it.
	Moved bool
}

// Config is what a daemon works with. All fields are required but those with a
// default.
type Config struct {
	Repository Repository
	// Computer computes what a commit asks for.
	Computer *desired.Computer
	// Connect makes the target of a registered cluster. It is called again
	// when the cluster's registration or credentials changed.
	Connect func(ctx context.Context, c clusters.Cluster) (Target, error)
	Board   *status.Board
	Log     *slog.Logger
	// Interval between polls.
	Interval time.Duration
	// ClusterTimeout bounds one attempt at a cluster, waits included; 0 means
	// DefaultClusterTimeout.
	ClusterTimeout time.Duration
	// Workers bounds the clusters that are worked on at a time; 0 means 16.
	Workers int
	// LockGrace is how long the commit of the lock waits for slow clusters;
	// 0 means DefaultLockGrace.
	LockGrace time.Duration
	// PruneRemoved empties clusters that leave the registry; otherwise their
	// objects stay.
	PruneRemoved bool
	// ReadonlyLock leaves the lock and the repository as they are.
	ReadonlyLock bool
	// Checkpoints keeps how clusters look that are at rest, so that a restart
	// over the same commit need compute nothing; nil for a start from scratch.
	Checkpoints *checkpoint.Store
	// Settings names everything but the commit that what is wanted is computed
	// from: the program, and what the operator set. Checkpoints of other
	// settings are not used.
	Settings string
}

// The defaults of Config.
const (
	DefaultClusterTimeout = 10 * time.Minute
	DefaultLockGrace      = 15 * time.Second
)

// Daemon is the loop. Make one with New; it is used by one goroutine.
type Daemon struct {
	cfg     Config
	workers *workers

	// head is the newest commit, state the newest that could be computed: the
	// clusters follow state while head is so broken that it says nothing.
	head  sources.Commit
	state *desired.State
	// input names what state was computed from; empty if it may be computed
	// differently the next time. at is how the clusters look if state was taken
	// up from an earlier process, so that it says what is wanted of nobody.
	input   string
	at      map[string]*checkpoint.Record
	pending pending
	// leaving are the clusters that left the registry and are not empty yet.
	leaving map[string]*desired.Cluster
	// again says that the commit must be computed once more although it is
	// the same: something failed that may go well the next time.
	again bool
	// overtaken says that the last commit of the lock went on top of somebody
	// else's, which the clusters do not follow yet.
	overtaken bool
}

// New checks the configuration and makes a daemon. It starts nothing.
func New(cfg Config) (*Daemon, error) {
	if cfg.Repository == nil || cfg.Computer == nil || cfg.Connect == nil || cfg.Board == nil || cfg.Log == nil || cfg.Interval <= 0 {
		return nil, errors.New("reconcile: Repository, Computer, Connect, Board, Log and Interval are required")
	}
	if cfg.ClusterTimeout == 0 {
		cfg.ClusterTimeout = DefaultClusterTimeout
	}
	if cfg.LockGrace == 0 {
		cfg.LockGrace = DefaultLockGrace
	}
	if cfg.Workers == 0 {
		cfg.Workers = 16
	}
	return &Daemon{cfg: cfg, workers: newWorkers(cfg), leaving: make(map[string]*desired.Cluster)}, nil
}

// Run goes round until the context ends, which is no error; steps under way are
// finished or given up at a point from which the next run completes them.
func (d *Daemon) Run(ctx context.Context) error {
	defer d.workers.stop()
	for {
		if err := d.pass(ctx, false); err != nil && ctx.Err() == nil {
			d.cfg.Log.Error("pass failed", "error", err)
		}
		// A tenth of jitter keeps a fleet of daemons from polling in step.
		pause := d.cfg.Interval + rand.N(d.cfg.Interval/10+1)
		select {
		case <-ctx.Done():
			return nil
		case <-d.workers.moved:
			d.again = true
		case <-time.After(pause):
		}
	}
}

// maxOvertaken bounds the passes that one Once makes because others push
// meanwhile.
const maxOvertaken = 10

// Once makes one pass over all clusters and commits the lock; if somebody else
// pushed meanwhile, another one over what they pushed. It returns what went wrong
// anywhere.
func (d *Daemon) Once(ctx context.Context) error {
	defer d.workers.stop()
	for n := 1; ; n++ {
		d.overtaken = false
		if err := d.pass(ctx, true); err != nil {
			return err
		}
		select {
		case <-d.workers.moved:
			d.again = true
			continue
		default:
		}
		if !d.overtaken || n >= maxOvertaken {
			break
		}
	}
	errs := []error{d.state.Err()}
	told := errorText(d.state)
	for _, c := range d.cfg.Board.Snapshot().Clusters {
		switch {
		case c.Phase == status.Ready, c.Phase == status.Suspended, c.Phase == status.Progressing:
		case c.Message != "" && strings.Contains(told, c.Message):
		default:
			errs = append(errs, fmt.Errorf("cluster %s: %s: %s", c.Name, c.Phase, strings.Join(append([]string{c.Message}, c.Problems...), "\n    ")))
		}
	}
	return errors.Join(errs...)
}

// pass is one turn: poll, compute if there is a reason to, hand out, commit the
// lock. The error is about the repository or the commit as a whole; clusters go
// on with the newest state there is.
func (d *Daemon) pass(ctx context.Context, wait bool) error {
	d.cfg.Board.Turn()
	fresh, err := d.poll(ctx)
	if err == nil {
		d.again = d.again || fresh // until it is computed
		err = d.readPending(ctx)
	}
	if err == nil && (d.again || d.state != nil && d.state.Always) {
		err = d.compute(ctx)
	}
	if d.state == nil {
		return err
	}
	d.left()
	held, perr := d.keepPending(ctx)
	now := round{state: d.state, leaving: d.leaving, input: d.input, at: d.at, held: held}
	tried := d.workers.assign(ctx, now)
	if !wait && !d.lockDue() {
		return errors.Join(err, perr, d.settlePending(ctx))
	}
	d.await(ctx, tried, wait)
	d.left()
	lerr := d.commitLock(ctx)
	if len(held) > 0 && lerr == nil && !d.state.LockChanged() {
		// The records are on the branch, which is as good.
		perr, now.held = nil, nil
		if tried = d.workers.assign(ctx, now); wait {
			d.await(ctx, tried, wait)
			d.left()
		}
	}
	return errors.Join(err, perr, lerr)
}

// poll asks the repository for a newer commit.
func (d *Daemon) poll(ctx context.Context) (fresh bool, err error) {
	commit, changed, err := d.cfg.Repository.Poll(ctx, d.head.Hash)
	d.cfg.Board.Polled(err)
	if err != nil {
		return false, fmt.Errorf("polling the repository: %w", err)
	}
	if !changed {
		return false, nil
	}
	d.head = commit
	d.cfg.Log.Info("new commit", "commit", short(commit.Hash), "subject", commit.Subject)
	return true, nil
}

// compute computes the newest commit. One that cannot be read at all leaves the
// clusters with what they have.
func (d *Daemon) compute(ctx context.Context) error {
	d.again = true
	if state := d.resume(); state != nil {
		d.follow(state)
		return nil
	}
	state, err := d.cfg.Computer.Compute(ctx, d.head, d.earlier())
	if err != nil {
		var names []string
		for _, c := range d.cfg.Board.Snapshot().Clusters {
			names = append(names, c.Name)
		}
		d.cfg.Board.Commit(d.head.Hash, d.head.Subject, []string{err.Error()}, names)
		d.computeOlder(ctx)
		return fmt.Errorf("commit %s: %w", short(d.head.Hash), err)
	}
	d.leave(ctx, d.state, state)
	d.input, d.at = d.inputOf(state), nil
	d.follow(state)
	return nil
}

// follow puts a state in charge, and tells people what is new about it.
func (d *Daemon) follow(state *desired.State) {
	before := ""
	var waiting []resolve.Waiting
	var noted []string
	if d.state != nil {
		before, waiting, noted = errorText(d.state), d.state.Waiting, notes(d.state)
	}
	d.state, d.again = state, false
	var errs, names []string
	if text := errorText(state); text != "" {
		errs = strings.Split(text, "\n")
		d.again = true
		if text != before {
			d.cfg.Log.Error("the commit has errors; everything else goes on", "commit", short(state.Commit.Hash), "error", text)
		}
	}
	for _, w := range state.Waiting {
		if !slices.Contains(waiting, w) {
			d.cfg.Log.Info("a new revision waits for approval: declare its digest to activate it", "package", w.Ref.String(), "active", w.Active, "new", w.New)
		}
	}
	for _, note := range notes(state) {
		if !slices.Contains(noted, note) {
			d.cfg.Log.Warn(note)
		}
	}
	for _, c := range state.Clusters {
		names = append(names, c.Name)
	}
	names = append(names, sortedKeys(d.leaving)...)
	d.cfg.Board.Commit(state.Commit.Hash, state.Commit.Subject, errs, append(names, state.Registry.Broken...))
	for _, name := range state.Registry.Broken {
		d.cfg.Board.Update(name, func(c *status.Cluster) {
			c.Phase, c.Message = status.Failed, "its registration has errors; the cluster is left as it is"
		})
	}
}

// notes are those of all clusters.
func notes(s *desired.State) []string {
	var all []string
	for _, c := range s.Clusters {
		for _, note := range c.Notes {
			all = append(all, fmt.Sprintf("cluster %s: %s", c.Name, note))
		}
	}
	return all
}

func errorText(s *desired.State) string {
	if err := s.Err(); err != nil {
		return err.Error()
	}
	return ""
}

func (d *Daemon) lockDue() bool {
	return !d.cfg.ReadonlyLock && d.state.LockChanged()
}

// await waits until all clusters were tried; all of them if wait, else for as
// long as the commit of the lock may be held up.
func (d *Daemon) await(ctx context.Context, tried []<-chan struct{}, wait bool) {
	var grace <-chan time.Time
	if !wait {
		grace = time.After(d.cfg.LockGrace)
	}
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

// commitLock commits the lock if it changed. On a head that moved on meanwhile it
// is the lock that this head asks for; its objects are the next pass's business.
func (d *Daemon) commitLock(ctx context.Context) error {
	if ctx.Err() != nil || d.cfg.ReadonlyLock {
		return ctx.Err()
	}
	if !d.lockDue() {
		return d.settlePending(ctx)
	}
	onOwn := false
	commit, wrote, err := d.cfg.Repository.Update(ctx, sources.LockFile, lockMessage(d.state), func(head sources.Commit) ([]byte, error) {
		if onOwn = head.Hash == d.state.Commit.Hash; onOwn {
			return d.state.Lock.Format(), nil
		}
		return d.lockOf(ctx, head)
	})
	if err != nil {
		return fmt.Errorf("committing %s: %w", sources.LockFile, err)
	}
	if wrote {
		d.cfg.Log.Info("lock committed", "commit", short(commit.Hash), "subject", commit.Subject)
		d.cfg.Board.LockCommitted(commit.Hash)
	}
	if onOwn {
		// The lock's own commit asks for nothing new, and starts no pass.
		d.head, d.state.Commit, d.state.Committed = commit, commit, d.state.Lock
	}
	d.overtaken = !onOwn
	return d.settlePending(ctx)
}

// lockOf is the lock of somebody else's commit, with all records of this pass;
// where the two contradict each other, with theirs. A commit that says nothing gets
// the records alone.
func (d *Daemon) lockOf(ctx context.Context, head sources.Commit) ([]byte, error) {
	if theirs, err := d.cfg.Computer.Compute(ctx, head, d.earlier()); err == nil {
		if d.cfg.PruneRemoved {
			// Clusters that left with this commit are still to be emptied.
			for _, name := range theirs.Committed.Clusters() {
				if theirs.Registry.Removed(name) {
					theirs.Lock.Select(name, theirs.Committed.Selections(name))
				}
			}
		}
		return theirs.Lock.Format(), nil
	} else if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	theirs, err := desired.ReadLock(head.Files)
	if err != nil {
		return nil, err
	}
	ours := d.state.Lock.Clone()
	for _, name := range append(ours.Clusters(), d.state.Committed.Clusters()...) {
		ours.Select(name, d.state.Committed.Selections(name))
	}
	return lockfile.Rebase(d.state.Committed, ours, theirs).Format(), nil
}

// lockMessage says which selections the commit changes.
func lockMessage(s *desired.State) string {
	var changes []string
	subject := make(map[string]bool)
	names := make(map[string]bool)
	for _, lock := range []*lockfile.File{s.Committed, s.Lock} {
		for _, name := range lock.Clusters() {
			names[name] = true
		}
	}
	for _, name := range sortedKeys(names) {
		old, now := lines(s.Committed, name), lines(s.Lock, name)
		for _, line := range sortedKeys(old) {
			if !now[line] {
				changes = append(changes, "- "+line)
			}
		}
		for _, line := range sortedKeys(now) {
			if !old[line] {
				changes = append(changes, "+ "+line)
				fields := strings.Fields(line)
				subject[fields[1][strings.LastIndexByte(fields[1], '/')+1:]+" "+shortVersion(fields[2])] = true
			}
		}
	}
	title := "Lock " + strings.Join(sortedKeys(subject), ", ")
	switch {
	case len(subject) == 0 && len(changes) > 0:
		title = "Lock what was removed"
	case len(subject) == 0:
		title = "Lock what was resolved"
	case len(title) > 72:
		title = "Lock " + prose.Count(len(subject), "package")
	}
	const most = 50
	if len(changes) > most {
		changes = append(changes[:most], fmt.Sprintf("… and %d more", len(changes)-most))
	}
	return strings.TrimSpace(title + "\n\n" + strings.Join(changes, "\n"))
}

func lines(f *lockfile.File, cluster string) map[string]bool {
	found := make(map[string]bool)
	for _, s := range f.Selections(cluster) {
		found[s.String()] = true
	}
	return found
}

func shortVersion(v string) string {
	if d, err := sources.ParseDigest(v); err == nil {
		return "sha256:" + d.Short()
	}
	return v
}

// short is a commit's name as people read it.
func short(hash string) string { return hash[:min(10, len(hash))] }
