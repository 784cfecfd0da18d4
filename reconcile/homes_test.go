package reconcile

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// fakeHome notes what happens to the controllers of a cluster.
type fakeHome struct {
	*events
	name string
	tell func([]problem.Problem)
}

func (h *fakeHome) Set(fleet home.Fleet) {
	_, dev := fleet.Registry.Get("dev")
	h.note("set " + h.name + map[bool]string{true: " with dev", false: ""}[dev])
}

func (h *fakeHome) Run(ctx context.Context) {
	h.note("run " + h.name)
	h.tell([]problem.Problem{{Cluster: h.name, Reason: "as told"}})
	<-ctx.Done()
	h.note("end " + h.name)
}

// The controllers of a home run from the first attempt that leaves targets in it until
// it is suspended, has no targets any more, or its connection ends; they see the commits
// that the home itself is to get, before each attempt.
func TestHomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		events := &events{test: t}
		f.ws.cfg.Home = func(_ context.Context, want *desired.Unit, _ bool, tell func([]problem.Problem)) (Home, error) {
			return &fakeHome{events, want.Name, tell}, nil
		}
		told := func(want int) {
			t.Helper()
			if have := len(f.ws.cfg.Board.Snapshot().Clusters[0].Problems); have != want {
				t.Errorf("%d problems, want %d", have, want)
			}
		}
		outcome := unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Home: true}
		f.set("hub", func(context.Context, *desired.Unit) unit.Outcome { return outcome })
		f.pass(state("1", "hub", "prod"))
		events.happened("it begins", "set hub", "run hub")
		told(1)
		f.pass(state("2", "hub", "prod", "dev"))
		events.happened("a commit", "set hub with dev")

		waits := state("3", "hub<-dev", "prod", "dev")
		f.gives("dev", unit.Outcome{Phase: status.Failed})
		f.pass(waits)
		events.happened("a commit that is held back", "set hub with dev") // the one before, again
		f.set("dev", nil)

		outcome = unit.Outcome{Phase: status.Unreachable}
		f.pass(state("4", "hub"))
		events.happened("it is gone", "set hub")
		outcome = unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Home: true}
		time.Sleep(time.Hour)
		f.pass(state("5", "hub"))
		events.happened("it is back", "set hub", "end hub", "set hub", "run hub")

		suspended := state("6", "hub")
		suspended.Clusters[0].Suspend = true
		f.pass(suspended)
		events.happened("it is suspended", "end hub")
		told(0)
		f.pass(state("7", "hub"))
		events.happened("it is suspended no more", "set hub", "run hub")
		outcome.Home = false
		f.pass(state("8", "hub"))
		events.happened("it has no targets", "set hub", "end hub")
		outcome.Home = true
		f.pass(state("9", "hub"))
		events.happened("it has targets again", "set hub", "run hub")

		f.set("hub", func(context.Context, *desired.Unit) unit.Outcome { panic("as asked for") })
		f.pass(state("10", "hub", "prod"))
		events.happened("an attempt panics", "set hub")
		f.pass(state("11", "prod"))
		events.happened("it leaves the fleet", "end hub")
		f.set("hub", func(context.Context, *desired.Unit) unit.Outcome { return outcome })
		f.pass(state("12", "hub", "prod"))
		events.happened("it is there again", "set hub", "run hub")
		f.ws.stop()
		events.happened("the daemon ends", "end hub")
	})
}

// While the registry has errors, controllers know clusters as they were registered last, by this process or
// the one before.
func TestLastRegistered(t *testing.T) {
	t.Parallel()
	faulty := func(commit string, of ...string) *revision {
		s := state(commit, of...)
		s.Registry.Faulty = true
		return &revision{state: s, commit: s.Commit}
	}
	follow := func(last, now *revision) *revision {
		now.before = now.lastRegistered(last)
		return now
	}
	has := func(r *revision, want ...string) {
		t.Helper()
		j := &job{of: r, want: r.state.Clusters[0]}
		ws := newWorkers(Config{Board: status.NewBoard("", "", "")})
		for _, fleet := range []home.Fleet{ws.fleet(j), ws.unknownFleet(j)} {
			if have := slices.Sorted(maps.Keys(fleet.Before)); !slices.Equal(have, want) {
				t.Errorf("at commit %s it knows %q, want %q", r.commit.Hash, have, want)
			}
		}
	}
	first := faulty("1", "hub")
	prod := desired.Registered(clusters.Cluster{Name: "prod"}, "")
	first.perhaps = map[desired.ID]*desired.Unit{prod.ID: prod}
	has(follow(nil, first), "prod")
	has(follow(first, faulty("2", "hub", "dev")), "hub", "prod")
	good := follow(first, &revision{state: state("3", "hub", "dev")})
	has(good)
	fourth := follow(good, faulty("4", "hub"))
	has(fourth, "dev", "hub")
	has(follow(fourth, faulty("5", "hub")), "dev", "hub")

	// So they do before the first commit is computed.
	store := &checkpoint.Store{Dir: t.TempDir()}
	if err := store.SaveRegistry(t.Context(), []byte(registry("hub", "prod"))); err != nil {
		t.Fatal(err)
	}
	d := &Daemon{cfg: Config{Home: func(context.Context, *desired.Unit, bool, func([]problem.Problem)) (Home, error) { return nil, nil }}, kept: []kept{{Registry: store}}, stuck: true}
	d.loadPrevious(t.Context())
	d.head = sources.Commit{Hash: "1", Files: fstest.MapFS{sources.RegistryFile: {Data: []byte(registry("hub") + "---\n" + strings.Replace(registry("prod"), "path", "pth", 1))}}}
	has((*revision)(nil).next(d), "hub", "prod")
}
