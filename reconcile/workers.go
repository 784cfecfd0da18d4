package reconcile

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/status"
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

	mu   sync.Mutex
	gone []string // clusters that left and are empty
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
	want   *desired.Cluster
	commit string
	// input names what want was computed from, empty if nobody may rely on it.
	// With at, nothing but the registration was computed, and the cluster is
	// looked at whether it is so.
	input string
	at    *checkpoint.Record
	// held is why nothing may be done about it yet.
	held string
	// after are the jobs of the clusters that this one depends on.
	after []*job
	// tried is closed when the attempt has ended, ready says how.
	tried chan struct{}
	ready bool
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
	now    *job               // under way
	cancel context.CancelFunc // gives up on it

	// The rest is the worker's own.
	target   Target
	unfollow func()           // ends the target's Follow, and waits for its end
	declared *desired.Cluster // what target was made for
	last     *job
	failures int
	nextTry  time.Time
	// brake is how long the next waking has to wait: somebody who undoes every
	// correction at once is answered ever more slowly.
	brake time.Duration
	// kept is the checkpoint that was kept last.
	kept *checkpoint.Record
}

// firstBrake is how long the second of two corrections in a row waits.
const firstBrake = 250 * time.Millisecond

// round is what the clusters are to be brought to in one turn of the loop.
type round struct {
	state *desired.State
	// leaving are to be emptied.
	leaving map[string]*desired.Cluster
	// input and at are a job's, at by the cluster's name.
	input string
	at    map[string]*checkpoint.Record
	// held is why clusters are to wait, by name.
	held map[string]string
}

// assign gives each cluster of the state its job, and returns channels that
// close when each was tried; so it does for clusters that are to be emptied.
// Workers of other clusters that left the registry end, and their objects stay
// in the cluster.
func (ws *workers) assign(ctx context.Context, r round) []<-chan struct{} {
	s, jobs := r.state, make(map[string]*job)
	for _, c := range s.Clusters {
		jobs[c.Name] = &job{want: c, commit: s.Commit.Hash, input: r.input, at: r.at[c.Name], held: r.held[c.Name], tried: make(chan struct{})}
	}
	for name, c := range r.leaving {
		jobs[name] = &job{want: c, commit: s.Commit.Hash, tried: make(chan struct{})}
	}
	for name, w := range ws.all {
		if jobs[name] == nil && s.Registry != nil && s.Registry.Removed(name) {
			ws.cfg.Log.Info("the cluster left the registry; its objects stay as they are", "cluster", name)
			w.quit()
			delete(ws.all, name)
			ws.forget(name)
		}
	}
	var tried []<-chan struct{}
	for _, name := range sortedKeys(jobs) {
		j := jobs[name]
		for _, on := range j.want.Spec.DependsOn {
			if j.want.Leaving {
				break
			}
			if dep := jobs[on]; dep != nil {
				j.after = append(j.after, dep)
			}
		}
		w := ws.all[name]
		if w == nil {
			w = ws.start(ctx, name)
		}
		if under := w.give(j); under != nil {
			j = under
		}
		tried = append(tried, j.tried)
	}
	return tried
}

// takeGone returns the clusters that have become empty after they left, and ends
// their workers.
func (ws *workers) takeGone() []string {
	ws.mu.Lock()
	gone := ws.gone
	ws.gone = nil
	ws.mu.Unlock()
	for _, name := range gone {
		if w := ws.all[name]; w != nil {
			w.quit()
			delete(ws.all, name)
			ws.forget(name)
		}
	}
	return gone
}

func (ws *workers) start(ctx context.Context, name string) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{name: name, box: make(chan *job, 1), woken: make(chan struct{}, 1), quit: cancel}
	ws.all[name] = w
	ws.wg.Go(func() {
		defer cancel()
		defer w.disconnect()
		for {
			select {
			case <-ctx.Done():
				return
			case j := <-w.box:
				if o := ws.work(ctx, w, j); o.Changed == 0 {
					w.brake = 0
				}
			case <-w.woken:
				ws.wake(ctx, w)
			}
		}
	})
	return w
}

// wake makes an attempt that the cluster itself asks for: something was changed
// there.
func (ws *workers) wake(ctx context.Context, w *worker) {
	if w.last == nil {
		return // it was not tried yet, and will be
	}
	select {
	case <-ctx.Done():
		return
	case j := <-w.box: // newer than what the waking is about
		ws.work(ctx, w, j)
		return
	case <-time.After(w.brake):
	}
	if w.last.at != nil {
		ws.askForState()
		return
	}
	o := ws.work(ctx, w, &job{want: w.last.want, commit: w.last.commit, input: w.last.input, tried: make(chan struct{})})
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
func (ws *workers) connect(ctx context.Context, w *worker, want *desired.Cluster) error {
	target, err := ws.cfg.Connect(ctx, want.Cluster)
	if err != nil {
		return err
	}
	// The attempt ends before the connection does.
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		target.Follow(following, func() {
			select {
			case w.woken <- struct{}{}:
			default: // it is awake
			}
		})
	}()
	w.target, w.declared = target, want
	w.unfollow = func() {
		cancel()
		<-ended
	}
	return nil
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

// stop ends all workers and waits for them.
func (ws *workers) stop() {
	for _, w := range ws.all {
		w.quit()
	}
	ws.wg.Wait()
}

// give puts a job into the worker's box. A job for the same commit that is
// under way is left alone, and returned instead.
func (w *worker) give(j *job) *job {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil {
		if w.now.want == j.want && w.now.held == j.held {
			return w.now
		}
		if w.now.commit != j.commit {
			w.cancel()
		}
	}
	select {
	case old := <-w.box:
		close(old.tried)
	default:
	}
	w.box <- j
	return nil
}

// work makes one attempt. The outcome is empty where there was none.
func (ws *workers) work(ctx context.Context, w *worker, j *job) Outcome {
	attempt, cancel := context.WithTimeout(ctx, ws.cfg.ClusterTimeout)
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
	switch {
	case j.want.Spec.Suspend:
		o = Outcome{Phase: status.Suspended, Message: "spec.suspend leaves the cluster as it is"}
	case j.want.Err != nil:
		o = Outcome{Phase: status.Failed, Message: j.want.Err.Error()}
	case j.held != "":
		// What it had before is what it goes on with when it is woken.
		o = Outcome{Phase: status.Waiting, Message: j.held}
		ws.report(w, j, o)
		return o
	case w.failures > 0 && time.Now().Before(w.nextTry) && w.declared != nil && w.declared.Objects == j.want.Objects:
		return Outcome{} // the last one stands
	default:
		if on := waitFor(attempt, j.after); on != "" {
			o = Outcome{Phase: status.Waiting, Message: "waits for cluster " + on}
			break
		}
		slots := ws.slots
		if w.failures > 0 {
			slots = ws.suspects
		}
		select {
		case slots <- struct{}{}:
		case <-attempt.Done():
			return Outcome{}
		}
		ws.cfg.Board.Update(w.name, func(c *status.Cluster) {
			if c.Phase == status.Pending {
				c.Phase = status.Applying
			}
		})
		o = ws.apply(attempt, w, j)
		<-slots
		if attempt.Err() == context.Canceled {
			return Outcome{} // by a newer commit, or the end: that is not the cluster's fault
		}
		if o.Moved {
			ws.askForState()
			return Outcome{} // it is not known what to do
		}
	}
	if o.Gone {
		ws.mu.Lock()
		ws.gone = append(ws.gone, w.name)
		ws.mu.Unlock()
	}
	w.declared, w.last = j.want, j
	j.ready = o.Phase == status.Ready
	ws.report(w, j, o)
	return o
}

// waitFor waits for the attempts at other clusters, and names the first that is
// not ready after it.
func waitFor(ctx context.Context, jobs []*job) string {
	for _, dep := range jobs {
		select {
		case <-dep.tried:
			if !dep.ready {
				return dep.want.Name
			}
		case <-ctx.Done():
			return dep.want.Name
		}
	}
	return ""
}

func (ws *workers) apply(ctx context.Context, w *worker, j *job) Outcome {
	if w.failures > 0 || w.target != nil && !reflect.DeepEqual(w.declared.Cluster, j.want.Cluster) {
		// Credentials that may have been replaced, or another registration.
		w.disconnect()
	}
	if w.target == nil {
		if err := ws.connect(ctx, w, j.want); err != nil {
			return Outcome{Phase: status.Unreachable, Message: err.Error()}
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
	var before status.Cluster
	ws.cfg.Board.Update(w.name, func(c *status.Cluster) {
		before = *c
		c.Phase, c.Message, c.Actions, c.Problems = o.Phase, o.Message, o.Actions, o.Problems
		c.Commit, c.Tried, c.Failures, c.NextTry = j.commit, now, w.failures, w.nextTry
		if o.Phase == status.Ready {
			c.Applied, c.Succeeded = j.commit, now
		}
		if j.want.Objects != nil {
			c.Objects = j.want.Objects.Len()
		}
		c.Packages, c.Notes = packages(j.want, o), j.want.Notes
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
func packages(want *desired.Cluster, o Outcome) []status.Package {
	var list []status.Package
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
		listed := status.Package{Name: p.Declaration.Name, Repository: p.Pin.Ref.Repository,
			Version: p.Pin.Ref.Version(), Digest: string(p.Pin.Digest), Revision: p.Revision(), Verified: p.Verified, State: state}
		if p.Origin.RewrittenBy != "" {
			listed.From = p.Origin.String()
		}
		list = append(list, listed)
	}
	for _, name := range want.Incomplete {
		if !slices.ContainsFunc(list, func(p status.Package) bool { return p.Name == name }) {
			list = append(list, status.Package{Name: name, State: "Failed"})
		}
	}
	return list
}

// resumed are a cluster's packages as they were left, unless nobody knows.
func resumed(left []status.Package, now status.Phase) []status.Package {
	list := slices.Clone(left)
	for i := range list {
		if now != status.Ready {
			list[i].State = string(now)
		}
	}
	return list
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
