package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources/errgroup"
)

const (
	// longestRun bounds one attempt at a CRD. The next one resumes.
	longestRun = 24 * time.Hour
	// firstRetry is the pause after a failed attempt. It doubles up to longestRetry.
	firstRetry   = time.Minute
	longestRetry = time.Hour
)

// KeeperConfig configures a [Keeper].
type KeeperConfig struct {
	// Cluster, Rate and Settle are as in [Config].
	Cluster *kube.Client
	Rate    float64
	Settle  time.Duration
	// Report is called with the migrations that are not done, sorted by CRD, whenever these
	// change. It must not block or use the Keeper.
	Report func([]status.Migration)
	// Log is required.
	Log *slog.Logger

	// For tests: the bounds above.
	longestRun, firstRetry time.Duration
}

// Wanted is a CRD that a [Keeper] keeps migrated.
type Wanted struct {
	// Name is the name of the CRD.
	Name string
	// Tried reports whether a write of the CRD was just tried, so that its storage version may
	// have changed, even if the write seems to have failed. Written reports whether it was
	// done: that ends the pause after a failed attempt.
	Tried, Written bool
}

// Keeper migrates CRDs of one cluster in the background, one after the other. A CRD that is
// migrated is not read again until it is written. Methods are safe for concurrent use, but
// only one Run may be active.
type Keeper struct {
	m   *Migrator
	cfg KeeperConfig
	// woken has a token when there may be something to do.
	woken chan struct{}

	mu   sync.Mutex
	kept map[string]*kept
	// now is the CRD that is being migrated; may be nil. cancel cancels that.
	now    *kept
	cancel context.CancelFunc
}

// kept is one CRD.
type kept struct {
	name string
	// settled: no object is stored in an old version. written: the CRD may have been written
	// since the last attempt began.
	settled, written bool
	failures         int
	due              time.Time
	// shown is for the status; its State is empty if there is nothing to show.
	shown status.Migration
}

// NewKeeper returns a Keeper that keeps nothing yet. It sends nothing.
func NewKeeper(c KeeperConfig) (*Keeper, error) {
	c.longestRun, c.firstRetry = cmp.Or(c.longestRun, longestRun), cmp.Or(c.firstRetry, firstRetry)
	k := &Keeper{cfg: c, woken: make(chan struct{}, 1), kept: make(map[string]*kept)}
	m, err := New(Config{Cluster: c.Cluster, Rate: c.Rate, Settle: c.Settle, Progress: k.progress, Log: c.Log})
	k.m = m
	return k, err
}

// Keep replaces the CRDs to keep migrated. A migration of any other is cancelled.
func (k *Keeper) Keep(all []Wanted) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.kept
	k.kept = make(map[string]*kept, len(all))
	for _, w := range all {
		c := before[w.Name]
		if c == nil {
			c = &kept{name: w.Name}
		}
		if w.Tried || w.Written {
			c.settled, c.written = false, true
		}
		if w.Written {
			c.due = time.Time{}
		}
		k.kept[w.Name] = c
	}
	if k.now != nil && k.kept[k.now.name] != k.now {
		k.cancel()
	}
	k.tell()
	select {
	case k.woken <- struct{}{}:
	default: // woken already
	}
}

// Settled reports whether nothing is left to do for any CRD.
func (k *Keeper) Settled() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.kept {
		if !c.settled {
			return false
		}
	}
	return true
}

// Run works until ctx ends. It calls notify when versions were removed from the
// status.storedVersions of a CRD, so that changes that were refused because of them can be
// applied. notify must not block.
func (k *Keeper) Run(ctx context.Context, notify func()) {
	defer k.cfg.Report(nil)
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, k.cfg.longestRun)
		c, due := k.take(time.Now(), cancel)
		if c == nil {
			cancel()
			k.wait(ctx, due)
			continue
		}
		r, err := k.migrate(attempt, c.name)
		cancel()
		if k.note(ctx, c, r, err) {
			notify()
		}
	}
}

// take returns the CRD to migrate; or nil, and when the next one is due, zero for never.
func (k *Keeper) take(now time.Time, cancel context.CancelFunc) (c *kept, due time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.kept)) {
		c := k.kept[name]
		switch {
		case c.settled:
		case !c.due.After(now):
			c.written = false
			k.now, k.cancel = c, cancel
			return c, time.Time{}
		case due.IsZero() || c.due.Before(due):
			due = c.due
		}
	}
	return nil, due
}

func (k *Keeper) wait(ctx context.Context, due time.Time) {
	var timer <-chan time.Time
	if !due.IsZero() {
		timer = time.After(time.Until(due))
	}
	select {
	case <-ctx.Done():
	case <-k.woken:
	case <-timer:
	}
}

func (k *Keeper) migrate(ctx context.Context, name string) (r Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			p := errgroup.Recovered(v)
			k.cfg.Log.Error(p.Error()+"; the daemon goes on", "definition", name, "stack", string(p.Stack))
			err = p
		}
	}()
	r, err = k.m.Run(ctx, name)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("it is not done after %s, and goes on where it is", k.cfg.longestRun)
	}
	return r, err
}

// note notes the result of an attempt, and reports whether versions were removed.
func (k *Keeper) note(ctx context.Context, c *kept, r Result, err error) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.now, k.cancel = nil, nil
	if k.kept[c.name] != c || ctx.Err() != nil {
		return false // given up
	}
	log := k.cfg.Log.With("cluster", k.m.cfg.Cluster.Name(), "definition", c.name)
	if err == nil && len(r.Failures) == 0 {
		c.settled, c.failures, c.shown = !c.written, 0, status.Migration{}
		k.tell()
		if len(r.Removed) == 0 {
			return false
		}
		log.Info("everything is stored in the storage version", "version", r.Version, "removed from status.storedVersions", strings.Join(r.Removed, ", "))
		return true
	}
	message := failure(r, err)
	if c.shown.Message != message {
		log.Warn("the storage migration is not complete", "reason", message)
	}
	pause := min(k.cfg.firstRetry<<min(c.failures, 20), longestRetry)
	c.due = time.Now().Add(pause)
	c.failures++
	c.shown.Definition, c.shown.State, c.shown.Message, c.shown.Next = c.name, status.MigrationFailed, message, c.due
	k.tell()
	return false
}

// failure returns why a CRD is not migrated.
func failure(r Result, err error) string {
	if err != nil {
		all := problem.Of(err)
		for i := range all {
			all[i].Cluster, all[i].Object = "", ""
		}
		return problem.Message(problem.Join(all))
	}
	const most = 3
	var objects []string
	for _, f := range r.Failures[:min(most, len(r.Failures))] {
		objects = append(objects, f.Object+": "+f.Reason)
	}
	if n := len(r.Failures) - len(objects); n > 0 {
		objects = append(objects, fmt.Sprintf("and %d more", n))
	}
	return fmt.Sprintf("%s not stored again: %s", prose.Agree(len(r.Failures), "object was", "objects were"), strings.Join(objects, "; "))
}

// progress shows the progress of a migration.
func (k *Keeper) progress(p Progress) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.kept[p.Name]
	if c == nil {
		return
	}
	c.shown = status.Migration{
		Definition: p.Name, State: status.MigrationRunning, Kubernetes: p.Kubernetes,
		Done: p.Done, Objects: p.All, Failed: p.Failed, Message: c.shown.Message,
	}
	if p.Wait > 0 {
		c.shown.State, c.shown.Next = status.MigrationWaiting, time.Now().Add(p.Wait)
	}
	k.tell()
}

// tell reports the migrations that are not done.
func (k *Keeper) tell() {
	var all []status.Migration
	for _, name := range slices.Sorted(maps.Keys(k.kept)) {
		if c := k.kept[name]; c.shown.State != "" {
			all = append(all, c.shown)
		}
	}
	k.cfg.Report(all)
}
