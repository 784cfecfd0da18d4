package reconcile

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// workers are the goroutines that work on units, one for each, so that a unit that hangs or
// fails delays no other. Config.Turns bounds how many work at a time.
type workers struct {
	cfg Config
	// moved has a token when a unit differs from its checkpoint: the state must be computed.
	moved chan struct{}
	all   map[desired.ID]*worker
	// leaving are the workers of units that left the fleet.
	leaving map[desired.ID]*worker
	// reports are nil unless Once made them.
	reports *reports
	wg      sync.WaitGroup
}

func newWorkers(cfg Config) *workers {
	return &workers{cfg: cfg, all: make(map[desired.ID]*worker), leaving: make(map[desired.ID]*worker), moved: make(chan struct{}, 1)}
}

// job is an attempt to make at a unit.
type job struct {
	want *desired.Unit
	// of is the job's revision.
	of *revision
	// held is why the job must wait; may be empty.
	held string
	// left: the unit is left as it is, because its cluster's document has errors. want then
	// is as it was registered before; nil if that is not known.
	left bool
	// after are the jobs of the units that this one depends on. broken names one of these
	// units that has no job because its registration has errors.
	after  []*job
	broken string
	// tried is closed when the attempt has ended, with its result in ready; or when the job
	// is dropped. instead then is the job that replaces it, if that has the same want.
	// givenUp: it has no result because of a newer job, of this unit or of one in after.
	tried   chan struct{}
	ready   bool
	instead *job
	givenUp bool
}

// at returns the checkpoint of the unit if the job's revision was resumed; nil if it was
// computed.
func (j *job) at() *checkpoint.Record {
	if j.left {
		return nil
	}
	return j.of.at[j.want.ID]
}

// worker works on one unit. Its box holds one job: a newer job replaces the one in the box,
// and cancels one under way for an older commit, unless that wants the same. After
// mostGivenUp jobs that were given up, later ones are not cancelled until one of them gets to
// its end, so that a branch with ever more commits does not keep a slow cluster from all of
// them; see also mustEnd. One that waits may be given up even so, with what it waits for.
type worker struct {
	id   desired.ID
	box  chan *job
	quit context.CancelFunc
	// gone: the unit has left the fleet. done is closed when the worker has ended.
	gone atomic.Bool
	done chan struct{}
	// served is [clusters.Spec.Served] of the unit's last document. Only assign uses it.
	served []string
	// woken has a token when the unit itself asks for attention.
	woken  chan struct{}
	mu     sync.Mutex
	ended  bool
	now    *job               // under way
	cancel context.CancelFunc // cancels it
	// givenUp counts the jobs in a row that were given up under way.
	givenUp int

	// Only the worker's goroutine uses the fields below.
	conn     Connection // nil before it is made
	unfollow func()     // ends its Follow, and waits for that
	made     origin     // what conn was made from
	serving
	// last is the job that was tried or held back last, and allowed the last one that the
	// gate let through.
	last, allowed *job
	failures      int
	// left: the unit is left as it is. moved: the unit differs from the checkpoint,
	// and the state is being computed.
	left  bool
	moved *desired.Unit
	// slow: the last attempt waited so long for answers that it lent its turn. took is the
	// duration of the last attempt; 0 if none was made since the last report.
	slow    bool
	took    time.Duration
	nextTry time.Time
	// brake is how long the next wake-up must wait, so that corrections get slower while
	// others undo each of them at once.
	brake time.Duration
	// running are the known versions of the unit's packages, by name.
	running map[string]version
	// again is when the unit is due for another attempt; zero for never.
	again time.Time
	// kept is the last checkpoint; nil if this process kept none.
	kept *checkpoint.Record
	// certificates are those of the last attempt with a plan, perhaps by an earlier process.
	certificates []status.Certificate
}

const mostGivenUp = 3

// firstBrake is how long the second of two corrections in a row waits.
const firstBrake = 250 * time.Millisecond

// assign gives each unit its job of a revision, and returns a channel for each that is closed
// when it was tried. held is why units must wait. Workers of units that left the fleet end,
// and the objects stay; workers of units that may have left it do nothing.
func (ws *workers) assign(ctx context.Context, of *revision, held map[desired.ID]string) []<-chan struct{} {
	maps.DeleteFunc(ws.leaving, func(_ desired.ID, w *worker) bool { return w.isDone() })
	jobs := make(map[desired.ID]*job)
	for _, u := range of.state.Clusters {
		jobs[u.ID] = &job{want: u, of: of, held: held[u.ID], tried: make(chan struct{})}
	}
	for id := range of.perhaps {
		if ws.all[id] == nil && jobs[id] == nil && !of.state.Removed(id) {
			ws.start(ctx, id)
		}
	}
	for id, w := range ws.all {
		switch {
		case jobs[id] != nil:
		case of.state.Removed(id):
			if served := w.served; id.Name == "" && len(served) > 0 {
				ws.cfg.Log.Warn("the cluster left the registry while its API servers need the daemon, which serves nothing for it any more; register it again, and withdraw this before", "cluster", id.String(), "fields", strings.Join(served, ", "))
			}
			ws.cfg.Log.Info("the cluster left the registry; its objects stay as they are", "cluster", id.String(),
				"to have them removed", "register it again, with the annotation "+clusters.RemoveAnnotation+": "+id.Cluster)
			w.gone.Store(true)
			w.quit()
			ws.leaving[id] = w
			delete(ws.all, id)
			ws.forget(id)
		default:
			w.give(&job{want: of.perhaps[id], of: of, left: true, tried: make(chan struct{})})
		}
	}
	var tried []<-chan struct{}
	for _, u := range of.state.Clusters {
		j := jobs[u.ID]
		for _, on := range u.After {
			if dep := jobs[on]; dep != nil {
				j.after = append(j.after, dep)
			} else {
				j.broken = on.String() // it is in the registry, or this unit's document had an error
			}
		}
		w := ws.all[u.ID]
		if w == nil {
			w = ws.start(ctx, u.ID)
		}
		w.served = u.Spec.Served()
		tried = append(tried, w.give(j).tried)
	}
	return tried
}

func (ws *workers) start(ctx context.Context, id desired.ID) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{id: id, box: make(chan *job, 1), woken: make(chan struct{}, 1), quit: cancel, done: make(chan struct{})}
	ws.all[id] = w
	if ws.cfg.Checkpoints != nil {
		w.certificates = ws.cfg.Checkpoints.Certificates(id.String())
	}
	before := ws.leaving[id]
	if delete(ws.leaving, id); before != nil {
		before.gone.Store(false) // it is back
	}
	ws.wg.Go(func() {
		defer close(w.done)
		defer cancel()
		defer func() {
			w.end()
			if w.gone.Load() && ws.cfg.Left != nil {
				ws.cfg.Left(id)
			}
		}()
		if before != nil {
			<-before.done // one at a time works on a unit
		}
		for ctx.Err() == nil {
			ws.step(ctx, w)
		}
	})
	return w
}

// isDone reports whether the worker has ended.
func (w *worker) isDone() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// soonest is the shortest pause before an attempt that the unit is due for: the time may be
// over already.
const soonest = 5 * time.Second

// due returns a channel that receives when the unit is due; nil for never.
func (w *worker) due() <-chan time.Time {
	if w.again.IsZero() {
		return nil
	}
	return time.After(time.Until(w.again))
}

// lookAgain notes when the unit is due for another attempt.
func (w *worker) lookAgain(at time.Time) {
	if earliest := time.Now().Add(soonest); !at.IsZero() && at.Before(earliest) {
		at = earliest
	}
	w.again = at
}

// step waits for the worker's next task, and does it.
func (ws *workers) step(ctx context.Context, w *worker) {
	defer ws.logPanic(w)
	select {
	case <-ctx.Done():
	case j := <-w.box:
		if o := ws.work(ctx, w, j); o.Changed == 0 {
			w.brake = 0
		}
	case <-w.woken:
		ws.wake(ctx, w)
	case <-w.due():
		w.again = time.Time{}
		ws.wake(ctx, w)
	}
}

// wake makes an attempt because something changed in the unit's cluster, or the unit is due.
func (ws *workers) wake(ctx context.Context, w *worker) {
	if w.last == nil || w.left {
		return // a job will come, or must not
	}
	select {
	case <-ctx.Done():
		return
	case j := <-w.box: // newer than the wake-up
		ws.work(ctx, w, j)
		return
	case <-time.After(w.brake):
	}
	select {
	case j := <-w.box: // came at the end of the pause
		ws.work(ctx, w, j)
		return
	default:
	}
	if w.last.at() != nil {
		ws.askForState(w)
		return
	}
	again := *w.last // which passes the gate once more
	again.tried, again.ready = make(chan struct{}), false
	o := ws.work(ctx, w, &again)
	w.brake = nextBrake(w.brake, o.Changed, ws.cfg.Interval)
}

// nextBrake doubles the brake with each correction in a row, up to the interval.
func nextBrake(brake time.Duration, changed int, interval time.Duration) time.Duration {
	if changed == 0 {
		return brake
	}
	return min(max(2*brake, firstBrake), interval)
}

// end releases what the worker holds, and drops the job in its box.
func (w *worker) end() {
	w.disconnect()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	select {
	case j := <-w.box:
		j.drop(nil)
	default:
	}
}

// stop ends all workers and waits for them.
func (ws *workers) stop() {
	for _, w := range ws.all {
		w.quit()
	}
	ws.wg.Wait()
}

// give puts a job into the worker's box, and returns it. If a job with the same want is
// under way, give drops the new one and returns that instead.
func (w *worker) give(j *job) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		if w.now.want == j.want && w.now.held == j.held {
			j.drop(w.now)
			return w.now
		}
		newer := w.now.of.commit.Hash != j.of.commit.Hash || w.now.of.computing && !j.of.computing
		if newer && (w.now.mustEnd(j) || w.givenUp < mostGivenUp && !w.now.wantsSame(j)) {
			w.cancel()
		}
	}
	select {
	case old := <-w.box:
		old.drop(j)
	default:
	}
	if w.ended {
		j.drop(nil)
		return j
	}
	w.box <- j
	return j
}

// wantsSame reports whether two jobs want the same of their unit. A commit is computed
// again and again while anything in the fleet is wrong.
func (j *job) wantsSame(other *job) bool {
	if j.want == nil || other.want == nil {
		return j.want == other.want
	}
	samePackage := func(a, b sources.Selected) bool { return a.Pin == b.Pin && a.Declaration.Name == b.Declaration.Name }
	return j.want.Objects.Equal(other.want.Objects) && reflect.DeepEqual(j.want.Cluster, other.want.Cluster) &&
		slices.EqualFunc(j.want.Packages, other.want.Packages, samePackage)
}

// mustEnd reports whether an attempt must not go on since another job is there: that one
// leaves the unit alone, or revokes this one.
func (j *job) mustEnd(next *job) bool {
	return j.want == nil || next.left || next.want.Suspend || j.revoked(next)
}

// revoked reports whether nothing more of a job may be applied since another one is there:
// that one begins or ends the emptying of the unit, or reaches it in another way, or it is
// being emptied and may now be another registered cluster.
func (j *job) revoked(next *job) bool {
	return next.want.Remove != j.want.Remove || j.want.Remove && !reflect.DeepEqual(next.want.Beside, j.want.Beside) || next.want.Spec.Access() != j.want.Spec.Access()
}

// work makes one attempt. The outcome is zero if none was made.
func (ws *workers) work(ctx context.Context, w *worker, j *job) unit.Outcome {
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.now, w.cancel = j, cancel
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now = nil
		if w.givenUp++; !j.givenUp {
			w.givenUp = 0
		}
		w.mu.Unlock()
		close(j.tried)
	}()
	var o unit.Outcome
	if w.left = j.left; w.left {
		w.rest()
		if j.want != nil {
			ws.serveLeft(attempt, w, j)
		}
		return o
	}
	if w.allowed != nil && w.allowed.revoked(j) {
		w.allowed = nil // an emptying must not go on while the unit waits for this one
	}
	switch {
	case j.want.Suspend:
		w.rest()
		if !w.only {
			w.endHome()
		}
		o = unit.Outcome{Phase: status.Suspended, Message: "spec.suspend leaves the cluster as it is"}
	case j.want.Err != nil:
		o = unit.Outcome{Phase: status.Failed, Message: problem.Message(j.want.Err), Stuck: problem.Lasts(j.want.Err)}
	case w.failures > 0 && time.Now().Before(w.nextTry) && w.last.wantsSame(j):
		w.last = j
		return unit.Outcome{} // the last outcome stands
	case j.at() != nil && w.moved == j.want:
		return unit.Outcome{} // the state is being computed
	default:
		ok := true
		why, on := ws.gate(attempt, w, j)
		switch {
		case why == "":
			w.allowed = j // from here on, parts of it may be applied
			o, ok = ws.try(attempt, w, j)
		case j.givenUp:
			ok = false
		default:
			o = ws.heldBack(attempt, w, why, on)
		}
		w.know(w.allowed, o)
		if !ok || attempt.Err() != nil {
			j.givenUp = ctx.Err() == nil // otherwise the worker ends
			return unit.Outcome{}
		}
		if o.Moved {
			w.moved = j.want
			ws.askForState(w)
			return unit.Outcome{}
		}
	}
	if unplanned(o) {
		for _, p := range ws.serve(attempt, w, j) {
			if p.Reason != unserved+o.Message { // one error is told once
				o.Problems, o.Stuck = append(o.Problems, p), false
			}
		}
		expire, again := expiring(w.id.String(), w.certificates, time.Now())
		o.Problems, o.Again = append(o.Problems, expire...), again
		if o.Phase == status.Suspended && len(expire) > 0 {
			o.Message += "; certificates in it expire"
		}
	}
	w.last = j
	w.lookAgain(o.Again)
	j.ready = o.Phase == status.Ready || o.Elsewhere
	ws.report(w, j, o)
	return o
}

// try waits for the cluster's turn, and makes the attempt. ok is false if it was given up.
func (ws *workers) try(ctx context.Context, w *worker, j *job) (o unit.Outcome, ok bool) {
	t, err := ws.cfg.Turns.Take(ctx, w.failures > 0 || w.slow, func(waits bool) {
		if waits {
			ws.show(w, status.Waiting, "waits for its turn: as many clusters are worked on as may be at a time")
		} else {
			ws.show(w, status.Applying, "")
		}
	})
	if err != nil {
		return unit.Outcome{}, false
	}
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) {
		if c.Phase == status.Pending {
			c.Phase = status.Applying
		}
	})
	// Waiting for the turn does not count as the cluster's time.
	attempt, cancel := context.WithTimeoutCause(kube.WithPace(ctx, t.Pace()), ws.cfg.ClusterTimeout,
		fmt.Errorf("the attempt took longer than %s (--cluster-timeout); the next one goes on with what is left", ws.cfg.ClusterTimeout))
	defer cancel()
	ws.tellHome(w, j)
	began := time.Now()
	o = ws.apply(attempt, w, j)
	w.took = time.Since(began)
	w.slow = t.End()
	if o.Actions != nil {
		w.known, w.isHome = true, o.Home
	}
	ws.keepHome(ctx, w, j, o)
	if ws.cfg.Attempted != nil {
		ws.cfg.Attempted(j.want)
	}
	return o, ctx.Err() == nil
}

func (ws *workers) apply(ctx context.Context, w *worker, j *job) (o unit.Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = ws.panicked(w, errgroup.Recovered(v))
		}
	}()
	if w.failures > 0 || w.conn != nil && w.made.stale(ws.originOf(j.want)) {
		// The credentials or the registration changed, or may have changed.
		w.disconnect()
	}
	if w.conn == nil {
		if err := ws.connect(ctx, w, j.want); err != nil {
			o := unit.Outcome{Phase: status.Unreachable, Message: problem.Message(err)}
			if j.want.Remove {
				o.Message += "; if there is no such cluster any more, take its document out of " + sources.RegistryFile
			}
			return o
		}
	}
	if at := j.at(); at != nil {
		return w.conn.Resume(ctx, at)
	}
	return w.conn.Apply(ctx, j.want)
}
