package reconcile

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/status"
)

// workers are the goroutines that work on clusters, one each, so that a cluster
// that hangs or fails delays no other. What they share is a bound on how many
// are at work.
type workers struct {
	cfg   Config
	slots chan struct{}
	all   map[string]*worker
	wg    sync.WaitGroup
}

func newWorkers(cfg Config) *workers {
	return &workers{cfg: cfg, slots: make(chan struct{}, cfg.Workers), all: make(map[string]*worker)}
}

// job is one attempt to make at a cluster.
type job struct {
	want   *desired.Cluster
	commit string
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
	name   string
	box    chan *job
	quit   context.CancelFunc
	mu     sync.Mutex
	now    *job               // under way
	cancel context.CancelFunc // gives up on it

	// The rest is the worker's own.
	target   Target
	declared *desired.Cluster // what target was made for
	failures int
	nextTry  time.Time
}

// assign gives each cluster of the state its job, and returns channels that
// close when each was tried. Workers of clusters that left the registry end;
// their objects stay in the cluster.
func (ws *workers) assign(ctx context.Context, s *desired.State) []<-chan struct{} {
	jobs := make(map[string]*job)
	for _, c := range s.Clusters {
		jobs[c.Name] = &job{want: c, commit: s.Commit.Hash, tried: make(chan struct{})}
	}
	for name, w := range ws.all {
		if jobs[name] == nil && s.Registry != nil && s.Registry.Removed(name) {
			ws.cfg.Log.Info("the cluster left the registry; its objects stay as they are", "cluster", name)
			w.quit()
			delete(ws.all, name)
		}
	}
	var tried []<-chan struct{}
	for _, name := range sortedKeys(jobs) {
		j := jobs[name]
		for _, on := range j.want.Spec.DependsOn {
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

func (ws *workers) start(ctx context.Context, name string) *worker {
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{name: name, box: make(chan *job, 1), quit: cancel}
	ws.all[name] = w
	ws.wg.Go(func() {
		defer cancel()
		defer func() {
			if w.target != nil {
				w.target.Close()
			}
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case j := <-w.box:
				ws.work(ctx, w, j)
			}
		}
	})
	return w
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
		if w.now.want == j.want {
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

// work makes one attempt.
func (ws *workers) work(ctx context.Context, w *worker, j *job) {
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
	case w.failures > 0 && time.Now().Before(w.nextTry) && w.declared != nil && w.declared.Objects == j.want.Objects:
		return // the last outcome stands
	default:
		if on := waitFor(attempt, j.after); on != "" {
			o = Outcome{Phase: status.Waiting, Message: "waits for cluster " + on}
			break
		}
		select {
		case ws.slots <- struct{}{}:
		case <-attempt.Done():
			return
		}
		ws.cfg.Board.Update(w.name, func(c *status.Cluster) {
			if c.Phase == status.Pending {
				c.Phase = status.Applying
			}
		})
		o = ws.apply(attempt, w, j)
		<-ws.slots
		if attempt.Err() == context.Canceled {
			return // by a newer commit, or the end: that is not the cluster's fault
		}
	}
	w.declared = j.want
	j.ready = o.Phase == status.Ready
	ws.report(w, j, o)
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
	if w.target != nil && !reflect.DeepEqual(w.declared.Cluster, j.want.Cluster) || w.failures > 0 {
		// Another registration, or credentials that may have been replaced.
		if w.target != nil {
			w.target.Close()
		}
		w.target = nil
	}
	if w.target == nil {
		target, err := ws.cfg.Connect(ctx, j.want.Cluster)
		if err != nil {
			return Outcome{Phase: status.Unreachable, Message: err.Error()}
		}
		w.target, w.declared = target, j.want
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
		c.Packages = packages(j.want, o)
	})
	ws.cfg.Board.Attempted(w.name, o.Phase, o.Actions)

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
		log.Info(summary(o))
	}
}

func summary(o Outcome) string {
	if o.Message != "" {
		return o.Message
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
		list = append(list, status.Package{Name: p.Declaration.Name, Repository: p.Pin.Ref.Repository,
			Version: p.Pin.Ref.Version(), Digest: string(p.Pin.Digest), State: state})
	}
	for _, name := range want.Incomplete {
		if !slices.ContainsFunc(list, func(p status.Package) bool { return p.Name == name }) {
			list = append(list, status.Package{Name: name, State: "Failed"})
		}
	}
	return list
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
