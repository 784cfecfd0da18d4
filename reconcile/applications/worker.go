package applications

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// worker works on one application. Its jobs wait in a box of one: a newer job replaces
// the one that waits, and gives up on one under way for another spec, placement or
// connection: it may be waiting for a cluster that does not answer.
type worker struct {
	cfg  Config
	home *kube.Client
	log  *slog.Logger
	id   desired.ID
	app  manifest.ID
	uid  string
	box  chan *job
	quit context.CancelFunc
	// woken has a token when something in the target's cluster changed.
	woken chan struct{}

	mu       sync.Mutex
	given    *job               // last
	now      *job               // under way
	cancel   context.CancelFunc // gives up on it
	problems []problem.Problem
	at       []string // the targets in whose clusters it may have objects

	// The rest is the worker's own.
	status *state
	links  map[string]*link
	// rest is what the last attempt was made for, if it left nothing to do and nothing has
	// changed since; else nil.
	rest *rest
	// published is the PlacementDecision as it was written or found last; nil if that is not
	// known.
	published *announced
	// failures in a row, and brake is how long the next wake-up must wait: if somebody
	// undoes every correction at once, corrections get ever slower.
	failures int
	brake    time.Duration
	// unreachable: a cluster did not answer in the last attempt. slow: answers took so
	// long that the turn was lent.
	unreachable, slow bool
}

// Pauses of a worker: the first after a failure and the longest one, and the second of two
// corrections in a row and the longest one.
const (
	firstPause   = 2 * time.Second
	longestPause = 5 * time.Minute
	firstBrake   = 250 * time.Millisecond
	longestBrake = 30 * time.Second
)

// longestName bounds the part of an inventory's name that is an application's name.
const longestName = 63

func newWorker(c Config, v *home.View, k *known) *worker {
	app, status := k.app, readState(k.status)
	name := strings.TrimRight(app.Name[:min(len(app.Name), longestName)], "-.") // what follows is a label of its own
	return &worker{
		cfg: c, home: v.Client, log: v.Log.With("application", app.String()), app: manifest.Application.ID(app.Namespace, app.Name), uid: app.UID,
		id:     desired.ID{Cluster: v.Cluster, Name: app.Namespace + "." + name + "." + app.UID},
		status: status, at: status.places(),
		box: make(chan *job, 1), woken: make(chan struct{}, 1), links: make(map[string]*link),
	}
}

// give puts a job into the box, unless it is the last one again.
func (w *worker) give(j *job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.given != nil && w.given.key == j.key {
		return
	}
	w.given = j
	if w.now != nil && w.now.of != j.of {
		w.cancel()
	}
	select {
	case <-w.box:
	default:
	}
	w.box <- j
}

// troubles returns what is wrong with the application.
func (w *worker) troubles() []problem.Problem {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.problems)
}

// places returns the targets in whose clusters the application may have objects.
func (w *worker) places() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// wake asks for an attempt although there is no new job.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // woken already
	}
}

// run works until ctx ends. The application's objects stay.
func (w *worker) run(ctx context.Context) {
	defer w.quit()
	defer w.disconnect()
	var j *job
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case j = <-w.box:
		case <-w.woken:
			w.rest = nil
			if j == nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case j = <-w.box:
			case <-time.After(w.brake):
			}
		case <-timer.C:
			if j == nil {
				continue
			}
		}
		again := w.work(ctx, j)
		timer.Reset(again + rand.N(again/10+1))
	}
}

// work makes one attempt, and returns when the next is due.
func (w *worker) work(ctx context.Context, j *job) time.Duration {
	attempt, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	w.now, w.cancel = j, cancel
	w.mu.Unlock()
	r := w.guarded(attempt, j)
	w.mu.Lock()
	w.now = nil
	if attempt.Err() == nil {
		w.problems = r.problems
	}
	w.mu.Unlock()
	if attempt.Err() != nil {
		return firstPause // given up for a newer job, or at the end
	}
	switch {
	case r.changed == 0:
		w.brake = 0
	default:
		w.brake = min(max(2*w.brake, firstBrake), longestBrake)
	}
	if !r.failed {
		w.failures = 0
		return r.again
	}
	w.failures++
	return min(firstPause<<min(w.failures-1, 10), longestPause)
}

// result is the result of an attempt.
type result struct {
	// failed: it is tried again, ever more rarely. Otherwise again is when the next
	// attempt is due.
	failed  bool
	again   time.Duration
	changed int
	// problems are for the status of the home.
	problems []problem.Problem
}

// guarded makes an attempt. A panic is its failure.
func (w *worker) guarded(ctx context.Context, j *job) (r result) {
	defer func() {
		if v := recover(); v != nil {
			p := errgroup.Recovered(v)
			w.log.Error(p.Error()+"; the daemon goes on", "stack", string(p.Stack))
			r = result{failed: true, problems: []problem.Problem{trouble(j.app, p.Error()+"; the log has its stack")}}
		}
	}()
	if j.deleting {
		return w.remove(ctx, j)
	}
	return w.attempt(ctx, j)
}
