// Package home runs controllers in one registered cluster, a home: a cluster in which
// teams find KubernetesTargets, and create KubernetesApplications with kubectl. Objects
// from the repository are units of work (reconcile/unit); controllers handle objects that
// people create in the cluster itself, and changes without a commit.
//
// To add one, implement [Controller] and put it into [Config.Controllers] where
// cmd/gitopsd/cli wires the daemon. It is called
//   - once at the beginning, when the kinds that it follows have been listed;
//   - when an object of these kinds was changed, created or deleted;
//   - when the fleet has a new commit, and at the time that it asked for;
//   - after a failure, with ever longer pauses.
//
// Each call gets a [View]: the client of the home, the registry, and the metadata of the
// followed objects. It reconciles everything, whatever the reason for the call, so no event
// can be lost. Each controller has one goroutine, so its calls do not overlap; one that
// hangs delays no other controller, and is canceled after five minutes.
//
// home.go runs controllers, follow.go follows kinds, and view.go is what controllers see.
// The worker of the cluster's unit starts a Home after an attempt that left the
// definitions of its kinds in the cluster, or if it finds them there and no attempt can be
// made (see [Fleet], Unknown). It stops the Home when the cluster leaves the fleet or has new
// credentials; while the cluster is suspended, the Home at most has controllers that serve
// what is there. A fleet without homes runs none of this.
package home

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// Kind is a kind of objects that a controller follows.
type Kind struct {
	manifest.GroupKind
	// Selector is a label selector; empty for all objects of the kind.
	Selector string
	// Versions keeps no more of the objects than their names, UIDs and resourceVersions.
	Versions bool
}

// Secrets are all Secrets. There may be very many, and kubectl may have put their content
// into annotations.
var Secrets = Kind{GroupKind: manifest.Secret, Versions: true}

// Controller reconciles a part of a home.
type Controller interface {
	// Name is a word for logs.
	Name() string
	// Kinds are the kinds that the controller follows. They never change.
	Kinds() []Kind
	// Reconcile reconciles everything. again is when it must be called even if nothing
	// changes; zero for never. A problem with one object goes to [View.Report] and is no
	// error. After an error Reconcile is called again, after ever longer pauses.
	Reconcile(ctx context.Context, v *View) (again time.Time, err error)
	// Close releases resources such as connections. Reconcile has returned by then, and
	// is not called again.
	Close()
}

// Config configures a [Home].
type Config struct {
	// Client talks to the home; required. The Home owns it.
	Client *kube.Client
	// Controllers are run side by side.
	Controllers []Controller
	// Reserved is a namespace beside gitopsd-system with the daemon's own credentials; may
	// be empty.
	Reserved string
	// Tell gets everything that the controllers report, when it changes; required. It
	// must not block.
	Tell func([]problem.Problem)
	// Log gets what was done; required.
	Log *slog.Logger
	// Busy is the longest pause before a call of a controller that is woken again and again;
	// default ten seconds.
	Busy time.Duration
	// Absent is the longest pause before a kind that cannot be followed, for example since
	// the home does not serve it, is looked for again; default one minute.
	Absent time.Duration
}

// timeout bounds one call of a controller.
const timeout = 5 * time.Minute

// Pauses between calls of a controller. The shortest grows up to Config.Busy if the
// controller is woken at once more than busy times in a row; longestFail is after failures.
const (
	shortest    = 200 * time.Millisecond
	busy        = 10
	longestFail = 2 * time.Minute
)

// Home runs controllers in one cluster.
type Home struct {
	cfg   Config
	loops []*loop

	mu       sync.Mutex
	fleet    Fleet
	listings map[Kind]*listing
	told     []problem.Problem
}

// loop is one controller.
type loop struct {
	Controller
	// woken has a token when the controller is to be called.
	woken chan struct{}
	// reported is what the last call reported; guarded by the Home's mutex.
	reported []problem.Problem
	failed   error
}

// New makes a Home. It starts nothing.
func New(c Config) (*Home, error) {
	if c.Client == nil || c.Tell == nil || c.Log == nil {
		return nil, errors.New("home: Client, Tell and Log are required")
	}
	c.Busy = cmp.Or(c.Busy, 10*time.Second)
	c.Absent = cmp.Or(c.Absent, time.Minute)
	h := &Home{cfg: c, listings: make(map[Kind]*listing)}
	for _, controller := range c.Controllers {
		h.loops = append(h.loops, &loop{Controller: controller, woken: make(chan struct{}, 1)})
		for _, kind := range controller.Kinds() {
			h.listings[kind] = new(listing)
		}
	}
	return h, nil
}

// Set sets the fleet for the controllers. Call it before Run, and for each new commit of the
// home's own unit.
func (h *Home) Set(fleet Fleet) {
	h.mu.Lock()
	same := fleet.Registry == h.fleet.Registry
	h.fleet = fleet
	h.mu.Unlock()
	if same {
		return
	}
	for _, l := range h.loops {
		l.wake()
	}
}

// Run runs the controllers until ctx ends. It closes them, and the client.
func (h *Home) Run(ctx context.Context) {
	defer h.cfg.Client.Close()
	var all sync.WaitGroup
	for kind := range h.listings {
		all.Go(func() { h.follow(ctx, kind) })
	}
	for _, l := range h.loops {
		all.Go(func() {
			defer l.Close()
			h.run(ctx, l)
		})
	}
	all.Wait()
}

func (l *loop) wake() {
	select {
	case l.woken <- struct{}{}:
	default: // woken already
	}
}

// run calls a controller whenever there is a reason to.
func (h *Home) run(ctx context.Context, l *loop) {
	pause, row, failures := shortest, 0, 0
	var woken time.Time // when a wake-up last led to a call
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.woken:
			if !h.listed(l) {
				continue // the first list of the last kind wakes it
			}
			// A controller's own writes wake it a few times. If somebody undoes them at
			// once, again and again, the pause grows.
			if time.Since(woken) >= 2*pause {
				pause, row = shortest, 0
			} else if row++; row > busy {
				pause = min(2*pause, h.cfg.Busy)
			}
			if kube.Sleep(ctx, pause) != nil {
				return
			}
			woken = time.Now()
		case <-due:
		}
		again, err := h.call(ctx, l)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			failures = 0
		} else {
			failures++
			again = time.Now().Add(min(time.Second<<min(failures-1, 10), longestFail))
		}
		if due = nil; !again.IsZero() {
			d := max(time.Until(again), shortest)
			due = time.After(d + rand.N(d/20+1))
		}
	}
}

// call calls a controller once, and keeps what it reports.
func (h *Home) call(ctx context.Context, l *loop) (again time.Time, err error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	v := h.view(l)
	again, err = reconcile(limited, l, v)
	if ctx.Err() != nil {
		return again, err
	}
	if err != nil {
		v.Report(problem.Problem{Cluster: h.cfg.Client.Name(), Reason: l.Name() + ": " + problem.Message(err)})
	}
	if before := l.failed; err != nil && (before == nil || before.Error() != err.Error()) {
		h.cfg.Log.Error("a controller failed; it is tried again", "controller", l.Name(), "error", err)
	}
	l.failed = err
	h.mu.Lock()
	defer h.mu.Unlock()
	l.reported = bounded(v.Cluster, v.problems)
	var all []problem.Problem
	for _, l := range h.loops {
		all = append(all, l.reported...)
	}
	if !slices.Equal(all, h.told) {
		h.told = all
		h.cfg.Tell(all)
	}
	return again, err
}

// reconcile calls a controller. A panic is its error.
func reconcile(ctx context.Context, l *loop, v *View) (again time.Time, err error) {
	defer func() {
		if p := recover(); p != nil {
			recovered := errgroup.Recovered(p)
			v.Log.Error(recovered.Error()+"; the daemon goes on", "controller", l.Name(), "stack", string(recovered.Stack))
			err = recovered
		}
	}()
	return l.Reconcile(ctx, v)
}
