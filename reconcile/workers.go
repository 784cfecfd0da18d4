package reconcile

import (
	"context"
	"log/slog"
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
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// workers are the goroutines that work on units, one each, so that a unit that hangs
// or fails delays no other. A shared bound limits how many are at work.
type workers struct {
	cfg Config
	// moved has a token when a unit differs from its checkpoint, so that the state
	// must be computed.
	moved chan struct{}
	all   map[desired.ID]*worker
	wg    sync.WaitGroup
}

func newWorkers(cfg Config) *workers {
	return &workers{
		cfg: cfg, all: make(map[desired.ID]*worker),
		moved: make(chan struct{}, 1),
	}
}

// job is one attempt to be made at a unit.
type job struct {
	want *desired.Unit
	// of is the job's revision.
	of *revision
	// held is why nothing new may be done about it yet.
	held string
	// left: the unit is left as it is, because its cluster's document has errors.
	// There is no want then.
	left bool
	// after are the jobs of the units that this one depends on, and broken names
	// one that has none, as its registration has errors.
	after  []*job
	broken string
	// tried is closed when the attempt has ended, and ready is its result; or when
	// the job was dropped, for instead if that has the same want.
	tried   chan struct{}
	ready   bool
	instead *job
}

// at returns how the unit looks if the job's revision was resumed; nil if it was
// computed.
func (j *job) at() *checkpoint.Record {
	if j.left {
		return nil
	}
	return j.of.at[j.want.ID]
}

// worker works on one unit. Its jobs wait in a box of one: a newer job
// replaces the one that waits, and gives up on one under way for an older
// commit.
type worker struct {
	id   desired.ID
	box  chan *job
	quit context.CancelFunc
	// woken has a token when the unit itself asks for attention.
	woken  chan struct{}
	mu     sync.Mutex
	ended  bool
	now    *job               // under way
	cancel context.CancelFunc // gives up on it

	// The rest is the worker's own.
	conn     Connection // nil before it is made
	unfollow func()     // ends its Follow, and waits for that
	made     origin     // what conn was made from
	home     Home       // nil unless its controllers run
	unhome   func()     // ends them, and waits for that
	// last is the job that was tried or held back last, allowed the last that
	// the gate let through.
	last, allowed *job
	failures      int
	// left: the unit is left as it is. moved: the unit differs from the checkpoint,
	// and the state is being computed.
	left  bool
	moved *desired.Unit
	// slow: the last attempt waited so long for answers that its slot was lent. took is how
	// long it took; 0 if none was made since the last report.
	slow    bool
	took    time.Duration
	nextTry time.Time
	// brake is how long the next wake-up must wait: if somebody undoes every
	// correction at once, corrections get ever slower.
	brake time.Duration
	// running are the versions of packages that the unit is known to have, by name.
	running map[string]version
	// again is when the unit asks to be looked at again; zero for never.
	again time.Time
	// kept is the checkpoint that was kept last, and unkept says that it was taken
	// away since.
	kept   *checkpoint.Record
	unkept bool
}

// origin is what a connection is made from; credentials are empty if not known.
type origin struct {
	access      clusters.Access
	credentials string
}

// stale reports whether now differs.
func (o origin) stale(now origin) bool {
	return o.access != now.access || o.credentials != now.credentials && now.credentials != ""
}

// version is a version of a package, with its digest.
type version struct{ name, digest string }

// firstBrake is how long the second of two corrections in a row waits.
const firstBrake = 250 * time.Millisecond

// assign gives each unit its job of a revision, and returns channels that close when
// each was tried. held is why units must wait. Workers of units that left the fleet
// end, and the objects stay; workers of units that may have left it do nothing.
func (ws *workers) assign(ctx context.Context, of *revision, held map[desired.ID]string) []<-chan struct{} {
	jobs := make(map[desired.ID]*job)
	for _, u := range of.state.Clusters {
		jobs[u.ID] = &job{want: u, of: of, held: held[u.ID], tried: make(chan struct{})}
	}
	for id, w := range ws.all {
		switch {
		case jobs[id] != nil:
		case of.state.Removed(id):
			ws.cfg.Log.Info("the cluster left the registry; its objects stay as they are", "cluster", id.String(),
				"to have them removed", "register it again, with the annotation "+clusters.RemoveAnnotation+": "+id.Cluster)
			w.quit()
			delete(ws.all, id)
			ws.forget(id)
		default:
			w.give(&job{of: of, left: true, tried: make(chan struct{})})
		}
	}
	var tried []<-chan struct{}
	for _, u := range of.state.Clusters {
		j := jobs[u.ID]
		for _, on := range u.After {
			if dep := jobs[on]; dep != nil {
				j.after = append(j.after, dep)
			} else {
				j.broken = on.String() // the registry has it, or it would have an error for this one
			}
		}
		w := ws.all[u.ID]
		if w == nil {
			w = ws.start(ctx, u.ID)
		}
		tried = append(tried, w.give(j).tried)
	}
	return tried
}

func (ws *workers) start(ctx context.Context, id desired.ID) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{id: id, box: make(chan *job, 1), woken: make(chan struct{}, 1), quit: cancel}
	ws.all[id] = w
	ws.wg.Go(func() {
		defer cancel()
		defer w.end()
		for ctx.Err() == nil {
			ws.step(ctx, w)
		}
	})
	return w
}

// soonest is the least pause before a unit is looked at again at its own request: it
// may ask for a time that is over.
const soonest = 5 * time.Second

// due gets a time when the unit asks to be looked at again; nil for never.
func (w *worker) due() <-chan time.Time {
	if w.again.IsZero() {
		return nil
	}
	return time.After(time.Until(w.again))
}

// lookAgain notes when the unit asks to be looked at again.
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
		w.again = time.Time{} // unless the unit asks again
		ws.wake(ctx, w)
	}
}

// wake makes an attempt that the unit itself asks for: something was changed in its
// cluster, or fell due.
func (ws *workers) wake(ctx context.Context, w *worker) {
	if w.last == nil || w.left {
		return // not tried yet, but will be; or must not be
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
	case j := <-w.box: // came together with the end of the pause
		ws.work(ctx, w, j)
		return
	default:
	}
	if w.last.at() != nil {
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

// connect makes the worker's connection, and follows the unit.
func (ws *workers) connect(ctx context.Context, w *worker, want *desired.Unit) error {
	made := ws.originOf(want) // before connecting: a replacement meanwhile is noticed the next time
	conn, err := ws.cfg.Connect(ctx, want)
	if err != nil {
		return err
	}
	if made.credentials == "" {
		made = ws.originOf(want) // known since they were read
	}
	// The attempt ends before the connection does.
	following, cancel := context.WithCancel(kube.Waiting(context.WithoutCancel(ctx)))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer ws.logPanic(w)
		conn.Follow(following, func() {
			select {
			case w.woken <- struct{}{}:
			default: // woken already
			}
		})
	}()
	w.conn, w.made = conn, made
	w.unfollow = func() {
		cancel()
		<-ended
	}
	return nil
}

// originOf returns what a connection would be made from now.
func (ws *workers) originOf(want *desired.Unit) origin {
	c := origin{access: want.Spec.Access()}
	if ws.cfg.Credentials != nil {
		if name, known := ws.cfg.Credentials(want.Cluster); known {
			c.credentials = "known as " + name // also where there are none any more
		}
	}
	return c
}

// disconnect ends the worker's connection, if it has one.
func (w *worker) disconnect() {
	if w.conn == nil {
		return
	}
	w.endHome()
	w.unfollow()
	w.conn.Close()
	w.conn = nil
}

// rest has the worker's connection do nothing in the unit that is to be left alone.
func (w *worker) rest() {
	if w.conn != nil {
		w.conn.Rest()
	}
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

// give puts a job into the worker's box, and returns it. If a job with the same want
// is under way, that goes on, and is returned instead.
func (w *worker) give(j *job) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		if w.now.want == j.want && w.now.held == j.held {
			j.drop(w.now)
			return w.now
		}
		if w.now.of.commit.Hash != j.of.commit.Hash {
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
		w.mu.Unlock()
		close(j.tried)
	}()
	var o unit.Outcome
	if w.left = j.left; w.left {
		w.rest()
		return o
	}
	switch {
	case j.want.Suspend:
		w.rest()
		w.endHome()
		o = unit.Outcome{Phase: status.Suspended, Message: "spec.suspend leaves the cluster as it is"}
	case j.want.Err != nil:
		o = unit.Outcome{Phase: status.Failed, Message: problem.Message(j.want.Err)}
	case w.failures > 0 && time.Now().Before(w.nextTry) && w.last.want.Objects == j.want.Objects && w.last.want.Spec.Access() == j.want.Spec.Access():
		w.last = j
		return unit.Outcome{} // the last outcome stands
	case j.at() != nil && w.moved == j.want:
		return unit.Outcome{} // what to do is not known yet
	default:
		ok := true
		if why := ws.gate(attempt, w, j); why != "" {
			o = ws.heldBack(attempt, w, why)
		} else {
			w.allowed = j // from here on, some of it may be applied
			o, ok = ws.try(attempt, w, j)
		}
		w.know(w.allowed, o)
		if !ok || attempt.Err() != nil {
			return unit.Outcome{} // given up for a newer commit, or at the end: not the cluster's fault
		}
		if o.Moved {
			w.moved = j.want
			ws.askForState(w)
			return unit.Outcome{}
		}
	}
	w.last = j
	w.lookAgain(o.Again)
	j.ready = o.Phase == status.Ready
	ws.report(w, j, o)
	return o
}

// try makes the attempt itself, when it is the cluster's turn. ok is false if it was
// given up, which says nothing about the cluster.
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
	attempt, cancel := context.WithTimeout(kube.WithPace(ctx, t.Pace()), ws.cfg.ClusterTimeout)
	defer cancel()
	ws.tellHome(w, j)
	began := time.Now()
	o = ws.apply(attempt, w, j)
	w.took = time.Since(began)
	w.slow = t.End()
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
		// The credentials were replaced, or may have been; or the registration was.
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

// report notes the outcome of an attempt, and when the next one is due.
func (ws *workers) report(w *worker, j *job, o unit.Outcome) {
	now := time.Now()
	switch o.Phase {
	case status.Unreachable:
		// Up to ten intervals: a cluster that is down for long costs little, and
		// one that comes back is noticed soon.
		w.failures++
		pause := min(ws.cfg.Interval<<min(w.failures-1, 10), 10*ws.cfg.Interval)
		w.nextTry = now.Add(pause*9/10 + rand.N(pause/5+1))
	default:
		w.failures, w.nextTry = 0, time.Time{}
	}
	took := w.took
	w.took = 0
	commit := j.of.state.Commit.Hash // that of the lock, on top of it, is the same to people
	var before status.Unit
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) {
		before = *c
		c.Phase, c.Message, c.Actions, c.Problems = o.Phase, o.Message, o.Actions, o.Problems
		c.Commit, c.Tried, c.Failures, c.NextTry = commit, now, w.failures, w.nextTry
		if o.Phase == status.Ready {
			c.Applied, c.Succeeded = commit, now
		}
		if took > 0 {
			c.Seconds = took.Seconds()
		}
		if j.want.Objects != nil {
			c.Objects = j.want.Objects.Len()
		}
		if o.Actions != nil { // without a plan nothing new is known, and they expire all the same
			c.Certificates, c.Drifted = o.Certificates, o.Drifted
		}
		c.Packages, c.Notes = packages(j.want, o, w.running), slices.Concat(j.want.Waiting, j.want.Notes, o.Notes)
		if at := j.at(); at != nil {
			c.Objects, c.Packages = at.Objects, resumed(at.Packages, o.Phase)
		}
	})
	ws.cfg.Board.Attempted(w.id.String(), status.Attempt{Outcome: o.Phase, Actions: o.Actions, Corrected: o.Corrected, Took: took})
	ws.keep(w, j, o)
	ws.log(w, j, o, before)
}

// log logs an outcome, and each problem that was not there before, if there is anything
// new.
func (ws *workers) log(w *worker, j *job, o unit.Outcome, before status.Unit) {
	log := ws.cfg.Log.With("cluster", w.id.String())
	outcome := log.With("commit", short(j.of.commit.Hash), "phase", o.Phase, "changed", o.Changed)
	if len(o.Problems) > 0 {
		outcome = outcome.With("problems", len(o.Problems))
	}
	level := slog.LevelInfo
	switch {
	case o.Phase == before.Phase && o.Message == before.Message && o.Changed == 0 && slices.Equal(o.Problems, before.Problems):
		outcome.Debug("nothing to do")
		return
	case o.Phase == status.Failed || o.Phase == status.Unreachable:
		level = slog.LevelError
		outcome.Error(o.Message)
	case o.Phase == status.Ready && len(o.Problems) > 0:
		level = slog.LevelWarn
		outcome.Warn("applied, but for what has a problem")
	default:
		outcome.Info(summary(j, o))
	}
	for _, p := range o.Problems {
		if !slices.Contains(before.Problems, p) {
			logProblem(log, level, p.WithoutCluster())
		}
	}
}

// logProblem logs one problem.
func logProblem(log *slog.Logger, level slog.Level, p problem.Problem) {
	var about []any
	for _, a := range [][2]string{{"cluster", p.Cluster}, {"package", p.Package}, {"object", p.Object}, {"reason", p.Reason}, {"advice", p.Advice}} {
		if a[1] != "" {
			about = append(about, a[0], a[1])
		}
	}
	message := "problem"
	if level == slog.LevelInfo {
		message = "not ready yet"
	}
	log.Log(context.Background(), level, message, about...)
}

// know notes which versions of packages the unit has after an attempt with a job, which is
// nil if none was let through.
func (w *worker) know(j *job, o unit.Outcome) {
	if j == nil || o.Moved {
		return
	}
	switch at := j.at(); {
	case at != nil:
		w.running = make(map[string]version)
		for _, p := range at.Packages { // a unit at rest has what it should
			w.running[p.Name] = version{p.Version, p.Digest}
		}
	case o.Actions != nil: // else nothing new is known
		known := w.running
		w.running = make(map[string]version)
		for _, name := range j.want.Incomplete {
			if v, ok := known[name]; ok {
				w.running[name] = v
			}
		}
		for _, p := range j.want.Packages {
			name := p.Declaration.Name
			if v, ok := known[name]; o.Behind[name] || slices.Contains(j.want.Incomplete, name) {
				if ok {
					w.running[name] = v
				}
				continue
			}
			w.running[name] = version{p.Pin.Ref.Version(), string(p.Pin.Digest)}
		}
	}
}

func summary(j *job, o unit.Outcome) string {
	switch {
	case o.Message != "":
		return o.Message
	case j.at() != nil:
		return "at rest, as it was left"
	}
	return "applied"
}

// running returns the version of a package that a unit has, for the status; empty if it
// is not known.
func running(known map[string]version, name, wanted, digest string) string {
	v, ok := known[name]
	switch {
	case !ok:
		return ""
	case v.name == wanted && v.digest != digest:
		return v.name + "@sha256:" + sources.Digest(v.digest).Short()
	}
	return v.name
}

// packages returns a cluster's packages with their states, and the versions that it has.
func packages(want *desired.Unit, o unit.Outcome, known map[string]version) []status.PackageState {
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
			Version: p.Pin.Ref.Version(), Digest: string(p.Pin.Digest), Revision: p.Revision(), Verified: p.Verified, Replaces: p.Replacement(), State: state}
		listed.Running = running(known, listed.Name, listed.Version, listed.Digest)
		if p.Origin.RewrittenBy != "" {
			listed.From = p.Origin.String()
		}
		list = append(list, listed)
	}
	for _, name := range want.Incomplete {
		if !slices.ContainsFunc(list, func(p status.PackageState) bool { return p.Name == name }) {
			list = append(list, status.PackageState{Name: name, Running: known[name].name, State: "Failed"})
		}
	}
	return list
}

// resumed returns a cluster's packages as they were left, if that is known.
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
