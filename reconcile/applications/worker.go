package applications

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// worker works on one application. Its box holds one job: a newer job replaces the one in the
// box. It also cancels one under way for another spec, placement or connection, which may be
// waiting for a cluster that does not answer.
type worker struct {
	cfg  Config
	home *kube.Client
	log  *slog.Logger
	id   desired.ID
	app  manifest.ID
	uid  string
	box  chan *job
	quit context.CancelFunc
	// woken has a token when something in the target's cluster changed, and touched when
	// somebody wrote to the application.
	woken, touched chan struct{}

	mu       sync.Mutex
	given    *job               // last
	now      *job               // under way
	cancel   context.CancelFunc // cancels it
	problems []problem.Problem
	orphans  []problem.Problem // of objects that should have gone with it
	orphaned time.Time         // since when
	at       []string          // targets with clusters that may have its objects
	seen     string            // the application's last resourceVersion
	version  string            // the one at which it had status; empty if that is to be written
	silent   string            // the target whose cluster did not answer in the last attempt

	// Only the worker's goroutine uses the fields below.
	status *state
	links  map[string]*link
	// removed: its finalizer was removed, and its connections were ended.
	removed bool
	// rest is the input of the last attempt if that left nothing to do and nothing has
	// changed since; otherwise nil.
	rest *rest
	// retreat is from the clusters that the application has left.
	retreat retreat
	// published is the PlacementDecision as it was written or found last; nil if unknown.
	published *announced
	// failures counts failures in a row. brake is how long the next wake-up must wait, so
	// that corrections get slower while others undo each of them at once.
	failures int
	brake    time.Duration
	// unreachable: a cluster did not answer in the last attempt. slow: it answered so slowly
	// that the turn was lent.
	unreachable, slow bool
}

// Pauses of a worker: the first and the longest after a failure, and the first and the longest
// between corrections in a row.
const (
	firstPause   = 2 * time.Second
	longestPause = 5 * time.Minute
	firstBrake   = 250 * time.Millisecond
	longestBrake = 30 * time.Second
)

// longestName bounds the application's name within an inventory's name.
const longestName = 63

func newWorker(c Config, v *home.View, k *known) *worker {
	app, status, version := k.app, readState(k.status), k.version
	if status.add(app.Noted) { // the status was lost, or is from a backup
		version = ""
	}
	name := strings.TrimRight(app.Name[:min(len(app.Name), longestName)], "-.") // it must end a DNS label
	return &worker{
		cfg: c, home: v.Client, log: v.Log.With("application", app.String()), app: manifest.Application.ID(app.Namespace, app.Name), uid: app.UID,
		id:     desired.ID{Cluster: v.Cluster, Name: app.Namespace + "." + name + "." + app.UID},
		status: status, at: status.targets(), version: version,
		box: make(chan *job, 1), woken: make(chan struct{}, 1), touched: make(chan struct{}, 1), links: make(map[string]*link),
	}
}

// give puts a job into the box, unless it equals the last one.
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

// saw notes the application's resourceVersion. If somebody else wrote to it, its status may be
// lost, and the worker writes that again.
func (w *worker) saw(version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if version == w.seen {
		return
	}
	if w.seen = version; !w.written() {
		return
	}
	select {
	case w.touched <- struct{}{}:
	default: // touched already
	}
}

// written reports whether the application may have another status than w.status, since it was
// written to later; guarded by mu.
func (w *worker) written() bool {
	c, _ := resourceversion.CompareResourceVersion(w.seen, w.version)
	return w.version == "" || c > 0
}

// troubles returns the problems of the application.
func (w *worker) troubles() []problem.Problem {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.problems)
}

// places returns the targets with clusters that may have objects of the application.
func (w *worker) places() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.at
}

// unanswered returns the target whose cluster did not answer in the last attempt; empty if it
// answered.
func (w *worker) unanswered() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.silent
}

// wake asks for an attempt although there is no new job.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // woken already
	}
}

// run works until ctx ends.
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
		case <-w.touched:
			if j == nil {
				continue
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
		w.problems, w.silent = r.problems, r.silent
	}
	w.mu.Unlock()
	if attempt.Err() != nil {
		return firstPause // given up for a newer job, or at the end
	}
	w.brake = min(max(2*w.brake, firstBrake), longestBrake)
	if r.changed == 0 {
		w.brake = 0
	}
	if !r.failed {
		w.failures = 0
		return r.again
	}
	w.failures++
	return pause(w.failures)
}

// pause returns the pause after failures in a row.
func pause(failures int) time.Duration { return min(firstPause<<min(failures-1, 10), longestPause) }

// result is the result of an attempt.
type result struct {
	// failed: it is tried again, at growing intervals. Otherwise the next attempt is due
	// after again.
	failed  bool
	again   time.Duration
	changed int
	// silent is the target whose cluster did not answer, or refused the connection.
	silent string
	// problems are for the status of the home.
	problems []problem.Problem
}

// guarded makes an attempt. A panic is a failure of the attempt.
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
