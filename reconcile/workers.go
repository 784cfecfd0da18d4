package reconcile

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// workers are the goroutines that work on clusters, one each, so that a cluster
// that hangs or fails delays no other. What they share is a bound on how many
// are at work.
type workers struct {
	cfg   Config
	slots chan struct{}
	// suspects are the slots of clusters that did not answer the last time, so
	// that many of them do not take those of clusters that work.
	suspects chan struct{}
	// moved has a token when a cluster is not as its checkpoint has it, so that
	// what is wanted of it must be computed.
	moved chan struct{}
	all   map[string]*worker
	wg    sync.WaitGroup
}

func newWorkers(cfg Config) *workers {
	return &workers{
		cfg: cfg, all: make(map[string]*worker),
		slots: make(chan struct{}, cfg.Workers), suspects: make(chan struct{}, cfg.Workers),
		moved: make(chan struct{}, 1),
	}
}

// job is one attempt to make at a cluster.
type job struct {
	want   *desired.Unit
	commit string
	// input names what want was computed from, empty if nobody may rely on it.
	// With at, nothing but the registration was computed, and the cluster is
	// looked at whether it is so.
	input string
	at    *checkpoint.Record
	// held is why nothing new may be done about it yet.
	held string
	// left says that the cluster is to be left as it is: its document has errors.
	// There is no want then.
	left bool
	// after are the jobs of the clusters that this one depends on, and broken is
	// the name of one that has none, as its registration has errors.
	after  []*job
	broken string
	// tried is closed when the attempt has ended, and ready says how; or when
	// the job was dropped, for instead if that is for the same.
	tried   chan struct{}
	ready   bool
	instead *job
}

// worker works on one cluster. Its jobs wait in a box of one: a newer job
// replaces the one that waits, and gives up on one under way for an older
// commit.
type worker struct {
	name string
	box  chan *job
	quit context.CancelFunc
	// woken has a token when the cluster asks for attention by itself.
	woken  chan struct{}
	mu     sync.Mutex
	ended  bool
	now    *job               // under way
	cancel context.CancelFunc // gives up on it

	// The rest is the worker's own.
	target   Target
	unfollow func()     // ends the target's Follow, and waits for its end
	made     connection // what target was made from
	// last is the job that was tried or held back last, allowed the last that
	// the gate let through.
	last, allowed *job
	failures      int
	// left says that the cluster is to be left as it is, moved that it is not as it
	// was left with this, so that what is wanted of it is being computed.
	left  bool
	moved *desired.Unit
	// slow says that the last attempt had to wait for answers for so long that
	// its slot was lent.
	slow    bool
	nextTry time.Time
	// brake is how long the next waking has to wait: somebody who undoes every
	// correction at once is answered ever more slowly.
	brake time.Duration
	// kept is the checkpoint that was kept last.
	kept *checkpoint.Record
}

// connection is what a target is made from, credentials empty where they are not
// known.
type connection struct {
	access      clusters.Access
	credentials string
}

// stale reports whether now is something else.
func (c connection) stale(now connection) bool {
	return c.access != now.access || c.credentials != now.credentials && now.credentials != ""
}

// firstBrake is how long the second of two corrections in a row waits.
const firstBrake = 250 * time.Millisecond

// round is what the clusters are to be brought to in one turn of the loop.
type round struct {
	state *desired.State
	// commit names the one that state is in charge for.
	commit string
	// input and at are a job's, at by the cluster's name.
	input string
	at    map[string]*checkpoint.Record
	// held is why clusters are to wait, by name.
	held map[string]string
}

// assign gives each cluster of the state its job, and returns channels that
// close when each was tried. Workers of clusters that left the registry end, and
// their objects stay in the cluster; those of clusters that may have left it do
// nothing.
func (ws *workers) assign(ctx context.Context, r round) []<-chan struct{} {
	s, jobs := r.state, make(map[string]*job)
	for _, c := range s.Clusters {
		jobs[c.Name] = &job{want: c, commit: r.commit, input: r.input, at: r.at[c.Name], held: r.held[c.Name], tried: make(chan struct{})}
	}
	for name, w := range ws.all {
		switch {
		case jobs[name] != nil:
		case s.Registry.Removed(name):
			ws.cfg.Log.Info("the cluster left the registry; its objects stay as they are", "cluster", name, "to have them removed", "register it again, with the annotation "+clusters.RemoveAnnotation+": "+name)
			w.quit()
			delete(ws.all, name)
			ws.forget(name)
		default:
			w.give(&job{commit: r.commit, left: true, tried: make(chan struct{})})
		}
	}
	var tried []<-chan struct{}
	for _, name := range sortedKeys(jobs) {
		j := jobs[name]
		for _, on := range j.want.Spec.DependsOn {
			if j.want.Remove {
				break // there is nothing to wait for
			}
			if dep := jobs[on]; dep != nil {
				j.after = append(j.after, dep)
			} else {
				j.broken = on // the registry has it, or it would have an error for this one
			}
		}
		w := ws.all[name]
		if w == nil {
			w = ws.start(ctx, name)
		}
		tried = append(tried, w.give(j).tried)
	}
	return tried
}

func (ws *workers) start(ctx context.Context, name string) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{name: name, box: make(chan *job, 1), woken: make(chan struct{}, 1), quit: cancel}
	ws.all[name] = w
	ws.wg.Go(func() {
		defer cancel()
		defer w.end()
		for ctx.Err() == nil {
			ws.step(ctx, w)
		}
	})
	return w
}

// step waits for the next thing that the worker has to do, and does it.
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
	}
}

// wake makes an attempt that the cluster itself asks for: something was changed
// there.
func (ws *workers) wake(ctx context.Context, w *worker) {
	if w.last == nil || w.left {
		return // it was not tried yet, and will be; or it is not to be
	}
	select {
	case <-ctx.Done():
		return
	case j := <-w.box: // newer than what the waking is about
		ws.work(ctx, w, j)
		return
	case <-time.After(w.brake):
	}
	select {
	case j := <-w.box: // came together with the end of the pause
		ws.work(ctx, w, j)
		return
	default:
	}
	if w.last.at != nil {
		ws.askForState(w)
		return
	}
	again := *w.last // the gate is asked once more
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

// connect makes the worker's target, and follows the cluster.
func (ws *workers) connect(ctx context.Context, w *worker, want *desired.Unit) error {
	made := ws.connectionOf(want) // before: what is replaced meanwhile is told the next time
	target, err := ws.cfg.Connect(ctx, want.Cluster)
	if err != nil {
		return err
	}
	if made.credentials == "" {
		made = ws.connectionOf(want) // known since they were read
	}
	// The attempt ends before the connection does.
	following, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ws.logPanic(w)
		target.Follow(following, func() {
			select {
			case w.woken <- struct{}{}:
			default: // it is awake
			}
		})
	}()
	w.target, w.made = target, made
	w.unfollow = func() {
		cancel()
		<-ended
	}
	return nil
}

// connectionOf is what a target would be made from now.
func (ws *workers) connectionOf(want *desired.Unit) connection {
	c := connection{access: want.Spec.Access()}
	if ws.cfg.Credentials != nil {
		if name, known := ws.cfg.Credentials(want.Cluster); known {
			c.credentials = "known as " + name // also where there are none any more
		}
	}
	return c
}

// disconnect lets go of the worker's target, if it has one.
func (w *worker) disconnect() {
	if w.target == nil {
		return
	}
	w.unfollow()
	w.target.Close()
	w.target = nil
}

// end lets go of all that the worker has. Nobody waits for a job in its box.
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

// give puts a job into the worker's box, and returns it. A job for the same that
// is under way is left alone, and returned instead.
func (w *worker) give(j *job) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		if w.now.want == j.want && w.now.held == j.held {
			j.drop(w.now)
			return w.now
		}
		if w.now.commit != j.commit {
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

// work makes one attempt. The outcome is empty where there was none.
func (ws *workers) work(ctx context.Context, w *worker, j *job) Outcome {
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.now, w.cancel = j, cancel
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.now = nil
		w.mu.Unlock()
		close(j.tried)
	}()
	var o Outcome
	if w.left = j.left; w.left {
		return o
	}
	switch {
	case j.want.Spec.Suspend:
		o = Outcome{Phase: status.Suspended, Message: "spec.suspend leaves the cluster as it is"}
	case j.want.Err != nil:
		o = Outcome{Phase: status.Failed, Message: problem.Message(j.want.Err)}
	case w.failures > 0 && time.Now().Before(w.nextTry) && w.last.want.Objects == j.want.Objects && w.last.want.Spec.Access() == j.want.Spec.Access():
		w.last = j
		return Outcome{} // what came of the last one stands
	case j.at != nil && w.moved == j.want:
		return Outcome{} // it is not known yet what to do
	default:
		ok := true
		if why := ws.gate(attempt, w, j); why != "" {
			o = ws.heldBack(attempt, w, why)
		} else {
			w.allowed = j // from here on: a part of it may be done
			o, ok = ws.try(attempt, w, j)
		}
		if !ok || attempt.Err() != nil {
			return Outcome{} // given up for a newer commit, or the end: that is not the cluster's fault
		}
		if o.Moved {
			w.moved = j.want
			ws.askForState(w)
			return Outcome{}
		}
	}
	w.last = j
	j.ready = o.Phase == status.Ready
	ws.report(w, j, o)
	return o
}

// try makes the attempt itself, when it is the cluster's turn. ok is false where
// it was given up, which says nothing of the cluster.
func (ws *workers) try(ctx context.Context, w *worker, j *job) (o Outcome, ok bool) {
	slots := ws.slots
	if w.failures > 0 || w.slow {
		slots = ws.suspects
	}
	t, err := takeTurn(ctx, slots, func(waits bool) {
		if waits {
			ws.show(w, status.Waiting, "waits for its turn: as many clusters are worked on as may be at a time")
		} else {
			ws.show(w, status.Applying, "")
		}
	})
	if err != nil {
		return Outcome{}, false
	}
	ws.cfg.Board.Update(w.name, func(c *status.Unit) {
		if c.Phase == status.Pending {
			c.Phase = status.Applying
		}
	})
	// What was waited for before is not the cluster's time.
	attempt, cancel := context.WithTimeout(kube.WithPace(ctx, t.pace()), ws.cfg.ClusterTimeout)
	defer cancel()
	o = ws.apply(attempt, w, j)
	w.slow = t.end()
	return o, ctx.Err() == nil
}

func (ws *workers) apply(ctx context.Context, w *worker, j *job) (o Outcome) {
	defer func() {
		if v := recover(); v != nil {
			o = ws.panicked(w, errgroup.Recovered(v))
		}
	}()
	if w.failures > 0 || w.target != nil && w.made.stale(ws.connectionOf(j.want)) {
		// Credentials that were replaced, or may have been; or another registration.
		w.disconnect()
	}
	if w.target == nil {
		if err := ws.connect(ctx, w, j.want); err != nil {
			o := Outcome{Phase: status.Unreachable, Message: problem.Message(err)}
			if j.want.Remove {
				o.Message += "; if there is no such cluster any more, take its document out of " + sources.RegistryFile
			}
			return o
		}
	}
	if j.at != nil {
		return w.target.Resume(ctx, j.at)
	}
	return w.target.Apply(ctx, j.want)
}

// report notes what came of an attempt, and when the next is due.
func (ws *workers) report(w *worker, j *job, o Outcome) {
	now := time.Now()
	switch o.Phase {
	case status.Unreachable:
		// Up to ten intervals, so that one that is away for long costs little
		// and one that comes back is noticed soon.
		w.failures++
		pause := min(ws.cfg.Interval<<min(w.failures-1, 10), 10*ws.cfg.Interval)
		w.nextTry = now.Add(pause*9/10 + rand.N(pause/5+1))
	default:
		w.failures, w.nextTry = 0, time.Time{}
	}
	var before status.Unit
	ws.cfg.Board.Update(w.name, func(c *status.Unit) {
		before = *c
		c.Phase, c.Message, c.Actions, c.Problems = o.Phase, o.Message, o.Actions, o.Problems
		c.Commit, c.Tried, c.Failures, c.NextTry = j.commit, now, w.failures, w.nextTry
		if o.Phase == status.Ready {
			c.Applied, c.Succeeded = j.commit, now
		}
		if j.want.Objects != nil {
			c.Objects = j.want.Objects.Len()
		}
		c.Packages, c.Notes = packages(j.want, o), slices.Concat(j.want.Notes, o.Notes)
		if j.at != nil {
			c.Objects, c.Packages = j.at.Objects, resumed(j.at.Packages, o.Phase)
		}
	})
	ws.cfg.Board.Attempted(w.name, o.Phase, o.Actions)
	ws.keep(w, j, o)

	log := ws.cfg.Log.With("cluster", w.name, "commit", short(j.commit), "phase", o.Phase, "changed", o.Changed)
	if len(o.Problems) > 0 {
		log = log.With("problems", o.Problems)
	}
	switch {
	case o.Phase == before.Phase && o.Message == before.Message && o.Changed == 0 && slices.Equal(o.Problems, before.Problems):
		log.Debug("nothing to do")
	case o.Phase == status.Failed || o.Phase == status.Unreachable:
		log.Error(o.Message)
	default:
		log.Info(summary(j, o))
	}
}

func summary(j *job, o Outcome) string {
	switch {
	case o.Message != "":
		return o.Message
	case j.at != nil:
		return "at rest, as it was left"
	}
	return "applied"
}

// packages lists a cluster's packages with their states.
func packages(want *desired.Unit, o Outcome) []status.PackageState {
	var list []status.PackageState
	for _, p := range want.Packages {
		state := "Ready"
		switch {
		case o.Packages[p.Declaration.Name] != "":
			state = o.Packages[p.Declaration.Name]
		case slices.Contains(want.Incomplete, p.Declaration.Name):
			state = "Failed"
		case o.Phase == status.Unreachable || o.Phase == status.Waiting || o.Phase == status.Suspended:
			state = string(o.Phase)
		}
		listed := status.PackageState{Name: p.Declaration.Name, Repository: p.Pin.Ref.Repository,
			Version: p.Pin.Ref.Version(), Digest: string(p.Pin.Digest), Revision: p.Revision(), Verified: p.Verified, State: state}
		if p.Origin.RewrittenBy != "" {
			listed.From = p.Origin.String()
		}
		list = append(list, listed)
	}
	for _, name := range want.Incomplete {
		if !slices.ContainsFunc(list, func(p status.PackageState) bool { return p.Name == name }) {
			list = append(list, status.PackageState{Name: name, State: "Failed"})
		}
	}
	return list
}

// resumed are a cluster's packages as they were left, unless nobody knows.
func resumed(left []status.PackageState, now status.Phase) []status.PackageState {
	list := slices.Clone(left)
	for i := range list {
		if now != status.Ready {
			list[i].State = string(now)
		}
	}
	return list
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
