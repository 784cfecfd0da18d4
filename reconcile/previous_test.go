package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/await"
)

// remoteness is a repository that can be out of reach, or hang.
type remoteness struct {
	Repository
	away, hangs atomic.Bool
}

func (r *remoteness) Poll(ctx context.Context, last string) (sources.Commit, bool, error) {
	for r.hangs.Load() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if r.away.Load() {
		return sources.Commit{}, false, errors.New("it is away")
	}
	return r.Repository.Poll(ctx, last)
}

// A daemon that cannot use any commit serves the clusters of the process before, until it can.
func TestServePrevious(t *testing.T) {
	t.Parallel()
	needs := strings.Replace(registry("b"), "spec:", "spec:\n  conversion: {url: 'https://gitopsd.example.org:9443'}", 1)
	both := registry("a") + "---\n" + needs
	for _, tt := range []struct {
		name string
		// change makes the commit unusable, and repair mends that.
		change, repair func(w *world, r *remoteness)
		// served are the clusters without attempts, with their phases and the beginning of
		// their messages.
		served  []string
		phases  map[string]status.Phase
		message string
		commit  bool // is known
	}{
		{
			name: "the repository is away", served: []string{"a", "b"}, message: "waits for a commit: none could be used since the daemon started",
			phases: map[string]status.Phase{"a": status.Waiting, "b": status.Waiting},
			change: func(_ *world, r *remoteness) { r.away.Store(true) },
			repair: func(_ *world, r *remoteness) { r.away.Store(false) },
		},
		{
			name: "the repository hangs", served: []string{"b"}, message: "waits for the first commit since the daemon started: the repository has not answered yet",
			phases: map[string]status.Phase{"b": status.Waiting},
			change: func(_ *world, r *remoteness) { r.hangs.Store(true) },
			repair: func(_ *world, r *remoteness) { r.hangs.Store(false) },
		},
		{
			name: "the lock is garbled", served: []string{"a", "b"}, message: "waits for a commit: none could be used since the daemon started", commit: true,
			phases: map[string]status.Phase{"a": status.Waiting, "b": status.Waiting},
			change: func(w *world, _ *remoteness) {
				w.commit("garbled", map[string]string{"clusters.lock": "<<<<<<< main\n"})
			},
			repair: func(w *world, _ *remoteness) { w.commit("mended", map[string]string{"clusters.lock": ""}) },
		},
		{
			name: "a document has errors", served: []string{"b"}, message: "its registration has errors; the cluster is left as it is", commit: true,
			phases: map[string]status.Phase{"b": status.Failed},
			change: func(w *world, _ *remoteness) {
				w.commit("garbled", map[string]string{"clusters.yaml": strings.Replace(both, "9443", "no port", 1)})
			},
			repair: func(w *world, _ *remoteness) { w.commit("mended", map[string]string{"clusters.yaml": both}) },
		},
		{
			name: "the first commit is being computed", served: []string{"b"}, message: "waits for the first commit since the daemon started, which is being computed",
			phases: map[string]status.Phase{"b": status.Waiting},
			change: func(w *world, _ *remoteness) {
				w.commit("bump", cluster("a", "v2"))
				w.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
			},
			repair: func(w *world, _ *remoteness) {
				w.mu.Lock()
				w.before = nil
				w.mu.Unlock()
				w.commit("bump again", cluster("a", "v3"))
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			r := new(remoteness)
			config := func(c *Config) {
				store := &checkpoint.Store{Dir: dir}
				c.Checkpoints, c.Registries, c.Settings = store, []Registry{store}, "the program"
				c.Home = func(context.Context, *desired.Unit, bool, func([]problem.Problem)) (Home, error) {
					return nil, errors.New("none is a home")
				}
				r.Repository = c.Repository
				c.Repository = r
			}
			w.commit("fleet", map[string]string{"clusters.yaml": both}, cluster("a", "v1"), cluster("b", "v1"))
			if err := w.daemon(config).Once(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			w.mu.Lock()
			w.applied = make(map[string][]string)
			w.mu.Unlock()

			tt.change(w, r)
			d := w.daemon(config)
			if r.hangs.Load() {
				d.firstAnswer = time.Millisecond
			}
			w.start(d)
			await.True(t, "it is served", func() bool {
				s := d.cfg.Board.Snapshot()
				if (s.Commit != "") != tt.commit {
					return false
				}
				n := 0
				for _, c := range s.Clusters {
					if phase, ok := tt.phases[c.Name]; ok && c.Phase == phase && strings.HasPrefix(c.Message, tt.message) {
						n++
					}
				}
				w.mu.Lock()
				defer w.mu.Unlock()
				return n == len(tt.phases) && len(w.served) >= len(tt.served)
			})
			time.Sleep(3 * d.cfg.Interval) // later passes change nothing
			w.mu.Lock()
			slices.Sort(w.served)
			w.served = slices.Compact(w.served) // a call that is given up for a newer commit is repeated
			if !slices.Equal(w.served, tt.served) {
				t.Errorf("served %q, want %q", w.served, tt.served)
			}
			for _, name := range tt.served {
				if got := w.applied[name]; len(got) > 0 {
					t.Errorf("%s was given %q", name, got)
				}
			}
			w.mu.Unlock()
			tt.repair(w, r)
			await.True(t, "it is applied", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.applied["a"]) > 0 && len(w.applied["b"]) > 0
			})
		})
	}
}

// What the newest commit says about a cluster counts, though nothing is computed yet: one that it
// suspends is not written to, and one that it removes is not asked.
func TestServeFirstOfCommit(t *testing.T) {
	t.Parallel()
	needs := func(name, suspend string) string {
		return strings.Replace(registry(name), "spec:", "spec:\n  conversion: {url: 'https://gitopsd.example.org:9443'}\n  suspend: "+suspend, 1)
	}
	w, dir := newWorld(t), t.TempDir()
	only := make(chan bool, 10)
	config := func(c *Config) {
		store := &checkpoint.Store{Dir: dir}
		c.Checkpoints, c.Registries, c.Settings = store, []Registry{store}, "the program"
		c.Home = func(_ context.Context, _ *desired.Unit, o bool, _ func([]problem.Problem)) (Home, error) {
			only <- o
			return nil, errors.New("none here")
		}
	}
	w.commit("fleet", map[string]string{"clusters.yaml": needs("a", "false") + "---\n" + needs("b", "false") + "---\n" + needs("c", "false")},
		cluster("a", "v1"), cluster("b", "v1"), cluster("c", "v1"))
	if err := w.daemon(config).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.commit("suspend", map[string]string{"clusters.yaml": needs("a", "true") + "---\n" + needs("b", "false")}, cluster("b", "v2"))
	w.mu.Lock()
	w.homes = true
	w.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	w.mu.Unlock()
	d := w.daemon(config)
	w.start(d)
	await.True(t, "both are served", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.served, "a") && slices.Contains(w.served, "b")
	})
	time.Sleep(3 * d.cfg.Interval)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.served, "c") || w.connects["c"] > 1 {
		t.Error("a cluster that the commit removes is asked")
	}
	for len(only) > 0 {
		if !<-only {
			t.Error("controllers run that write")
		}
	}
}

// place is a Registry in memory.
type place struct {
	text         []byte
	saved        time.Time
	load, save   error
	loads, saves int
}

func (p *place) LoadRegistry(context.Context) ([]byte, time.Time, error) {
	p.loads++
	if p.load != nil {
		return nil, time.Time{}, p.load
	}
	return p.text, p.saved, nil
}

func (p *place) SaveRegistry(_ context.Context, text []byte) error {
	p.saves++
	if p.save == nil {
		p.text = text
	}
	return p.save
}

// Without the registry of a process before none is known, a damaged one is ignored, and a place
// that cannot be read leaves it to the next.
func TestNoPrevious(t *testing.T) {
	t.Parallel()
	store := &checkpoint.Store{Dir: t.TempDir()}
	home := func(context.Context, *desired.Unit, bool, func([]problem.Problem)) (Home, error) { return nil, nil }
	load := func(all ...Registry) previous {
		cfg := Config{Registries: all, Home: home, Log: slog.New(slog.DiscardHandler)}
		d := &Daemon{cfg: cfg, kept: places(cfg)}
		d.loadPrevious(t.Context())
		return d.previous
	}
	if p := load(store); p.registry != nil || p.units != nil {
		t.Errorf("clusters from nowhere: %+v", p)
	}
	if err := store.SaveRegistry(t.Context(), []byte("a: [")); err != nil {
		t.Fatal(err)
	}
	if p := load(store); p.registry != nil {
		t.Errorf("from a damaged file: %+v", p)
	}
	if err := store.SaveRegistry(t.Context(), []byte(registry("a"))); err != nil {
		t.Fatal(err)
	}
	if p := load(store); len(p.units) != 1 {
		t.Errorf("of one cluster: %+v", p)
	}
	later := time.Now().Add(time.Hour)
	both := []byte(registry("a") + "---\n" + registry("b"))
	for name, tt := range map[string]struct {
		first *place
		want  int
	}{
		"the newer one counts": {&place{text: both, saved: later}, 2},
		"it is older":          {&place{text: both, saved: time.Unix(1, 0)}, 1},
		"it has none":          {&place{}, 1},
		"it is damaged":        {&place{text: []byte("a: ["), saved: later}, 1},
		"it cannot be read":    {&place{text: both, saved: later, load: errors.New("the hub is away")}, 1},
	} {
		if p := load(tt.first, store); len(p.units) != tt.want {
			t.Errorf("%s: %d clusters are known, want %d", name, len(p.units), tt.want)
		}
	}
}

// A place that could not be read is asked again, while nothing is known.
func TestPreviousLater(t *testing.T) {
	t.Parallel()
	p := &place{text: []byte(registry("a")), saved: time.Now(), load: errors.New("the hub is away")}
	home := func(context.Context, *desired.Unit, bool, func([]problem.Problem)) (Home, error) { return nil, nil }
	d := &Daemon{cfg: Config{Home: home, Log: slog.New(slog.DiscardHandler)}, kept: []kept{{Registry: p}}}
	d.loadPrevious(t.Context())
	d.loadPrevious(t.Context())
	if p.loads != 1 || d.previous.registry != nil {
		t.Errorf("it was asked %d times within moments", p.loads)
	}
	p.load, d.kept[0].next = nil, time.Now()
	d.loadPrevious(t.Context())
	d.loadPrevious(t.Context())
	if p.loads != 2 || len(d.previous.units) != 1 {
		t.Errorf("later %d clusters are known, after it was asked %d times", len(d.previous.units), p.loads)
	}
}

// The registry is kept in every place, written where it is not yet, and tried again later where that
// fails, without holding up the others.
func TestKeepRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	away, there := &place{save: errors.New("the hub is away")}, &place{text: []byte("old")}
	w.commit("fleet", map[string]string{"clusters.yaml": registry("a")}, cluster("a", "v1"))
	d := w.daemon(func(c *Config) { c.Registries = []Registry{away, there} })
	for range 2 {
		if err := d.Once(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if string(there.text) != registry("a") || there.saves != 1 {
		t.Errorf("written %d times, and it is %q", there.saves, there.text)
	}
	if away.saves != 1 || !d.unkept {
		t.Errorf("a place that failed was tried %d times within moments", away.saves)
	}
	away.save, d.kept[0].next = nil, time.Time{}
	for range 2 {
		if err := d.Once(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if string(away.text) != registry("a") || away.saves != 2 || there.saves != 1 || d.unkept {
		t.Errorf("later it is %q, written %d and %d times", away.text, away.saves, there.saves)
	}
	// Somebody has removed it.
	there.text, d.kept[1].next = nil, time.Now()
	if err := d.Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if string(there.text) != registry("a") || away.saves != 2 {
		t.Errorf("after that it is %q, and the other one was written %d times", there.text, away.saves)
	}
}
