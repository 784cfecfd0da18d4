package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/home"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/clusters"
)

// server has a fleet that notes what is served without an attempt.
type server struct {
	*fleet
	*events
	fails error
}

func newServer(t *testing.T) *server {
	s := &server{fleet: newFleet(t, 4), events: &events{test: t}}
	s.serve = func(_ context.Context, want *desired.Unit) (bool, error) {
		s.note("serve " + want.Name)
		return want.Name == "hub" && s.fails == nil, s.fails
	}
	s.ws.cfg.Home = func(_ context.Context, want *desired.Unit, only bool, _ func([]problem.Problem)) (Home, error) {
		return &servedHome{s, want.Name, only}, nil
	}
	return s
}

type servedHome struct {
	s    *server
	name string
	only bool
}

func (h *servedHome) Set(fleet home.Fleet) {
	if fleet.Unknown != (fleet.Objects == nil) {
		h.s.t.Errorf("the fleet of %s is unknown: %t, with objects: %t", h.name, fleet.Unknown, fleet.Objects != nil)
	}
	if _, there := fleet.Registry.Get(h.name); !there {
		h.s.t.Errorf("%s is not in its own fleet", h.name)
	}
	h.s.note(fmt.Sprintf("set %s, known: %t", h.name, !fleet.Unknown))
}

func (h *servedHome) Run(ctx context.Context) {
	h.s.note(fmt.Sprintf("run %s, only to serve: %t", h.name, h.only))
	<-ctx.Done()
	h.s.note("end " + h.name)
}

// rendered returns a state in which every cluster has its objects.
func rendered(commit string, of ...string) *desired.State {
	s := state(commit, of...)
	for _, u := range s.Clusters {
		u.Objects, _ = manifest.NewSet(nil)
	}
	return s
}

// broken returns a state in which no cluster renders.
func broken(commit string, of ...string) *desired.State {
	s := state(commit, of...)
	for _, u := range s.Clusters {
		u.Err = errors.New("does not render")
	}
	return s
}

// A process that was started while a unit does not render serves what its cluster has, once,
// and nothing more when attempts are made again. A home does not know then what is declared.
func TestServeBroken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.gives("hub", unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Home: true})
		s.pass(broken("1", "hub", "dev"))
		slices.Sort(s.list)
		s.happened("it does not render", "run hub, only to serve: false", "serve dev", "serve hub", "set hub, known: false")
		s.is("hub", status.Failed, "does not render")
		s.pass(broken("2", "hub", "dev"))
		s.happened("it still does not")
		s.has("hub")
		s.pass(rendered("3", "hub", "dev"))
		s.happened("it renders", "set hub, known: true")
		s.pass(broken("4", "hub", "dev"))
		s.happened("not any more")
		s.ws.stop()
		s.happened("the end", "end hub")
		if n := len(s.made["hub"]); s.closed != len(s.made["dev"])+n || n != 2 {
			t.Errorf("%d connections to hub, %d were closed", n, s.closed)
		}
	})
}

// A unit that does not render is stuck if its files are why, unless something cannot be served.
func TestServeStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			why    error
			fails  error
			sticks bool
		}{
			{why: &problem.Error{Lasting: true, Err: errors.New("no such path")}, sticks: true},
			{why: errors.Join(&problem.Error{Lasting: true, Err: errors.New("no such path")}, errors.New("the registry is down"))},
			{why: &problem.Error{Lasting: true, Err: errors.New("no such path")}, fails: errors.New("it is down")},
		} {
			s := newServer(t)
			s.fails = tt.fails
			want := state("1", "hub")
			want.Clusters[0].Err = tt.why
			s.pass(want)
			if u := s.ws.cfg.Board.Snapshot().Clusters[0]; u.Stuck != tt.sticks {
				t.Errorf("%v, %v: stuck %t", tt.why, tt.fails, u.Stuck)
			}
			s.ws.stop()
		}
	})
}

// What cannot be served is told, and tried again at growing intervals. New credentials are
// used, also by a home.
func TestServeFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.fails = errors.New("it is down")
		told := func() string {
			all := s.ws.cfg.Board.Snapshot().Clusters[0].Problems
			if len(all) != 1 {
				return fmt.Sprint(all)
			}
			return all[0].Reason
		}
		want := broken("1", "hub")
		for range 60 {
			s.pass(want)
			if !strings.HasSuffix(told(), "are not served since the daemon started: it is down") {
				t.Fatalf("the problem is %q", told())
			}
			time.Sleep(s.ws.cfg.Interval)
		}
		// After 0, 1, 3, 7, 15, 25 ... intervals, more or less.
		if n := len(s.list); n < 8 || n > 11 {
			t.Errorf("tried %d times in 60 intervals", n)
		}
		s.list, s.fails = nil, nil
		time.Sleep(10 * time.Hour)
		s.pass(want)
		s.happened("it is up", "serve hub", "set hub, known: false", "run hub, only to serve: false")
		if told() != "[]" {
			t.Errorf("the problem is %q", told())
		}
		s.mu.Lock()
		s.password = "another"
		s.mu.Unlock()
		s.pass(want)
		s.happened("its password changed", "serve hub", "end hub", "set hub, known: false", "run hub, only to serve: false")

		s = newServer(t)
		s.serve = func(context.Context, *desired.Unit) (bool, error) { panic("as asked for") }
		s.pass(want)
		if !strings.Contains(told(), "a bug in gitopsd") {
			t.Errorf("the problem is %q", told())
		}
		// A home is served though something else in its cluster is not.
		s = newServer(t)
		s.serve = func(context.Context, *desired.Unit) (bool, error) { return true, errors.New("a bundle is garbled") }
		for range 60 {
			s.pass(want)
			if !strings.Contains(told(), "a bundle is garbled") {
				t.Errorf("the problem is %q", told())
			}
			time.Sleep(s.ws.cfg.Interval)
		}
		s.happened("in part", "set hub, known: false", "run hub, only to serve: false")
		// The error of the attempt itself is told once.
		s = newServer(t)
		s.fails = errors.New("the inventory belongs to another fleet")
		s.gives("hub", unit.Outcome{Phase: status.Failed, Message: "the inventory belongs to another fleet"})
		s.pass(rendered("1", "hub"))
		if told() != "[]" {
			t.Errorf("the problem is %q", told())
		}
		// A call that hangs is given up for a newer commit.
		s = newServer(t)
		s.serve = func(ctx context.Context, _ *desired.Unit) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		s.pass(want)
		s.pass(rendered("2", "hub"))
		s.has("hub", "2")
		// If that happens while new credentials are tried, they are tried again.
		s = newServer(t)
		s.pass(want)
		hang := s.serve
		s.serve = func(ctx context.Context, _ *desired.Unit) (bool, error) {
			<-ctx.Done()
			return false, ctx.Err()
		}
		s.mu.Lock()
		s.password = "another"
		s.mu.Unlock()
		s.pass(want)
		s.mu.Lock()
		s.list, s.serve = nil, hang
		s.mu.Unlock()
		s.pass(suspend(state("2", "hub")))
		s.pass(broken("3", "hub"))
		s.happened("later", "end hub", "serve hub", "set hub, known: false", "run hub, only to serve: false")
	})
}

// suspend suspends the clusters of a state.
func suspend(s *desired.State) *desired.State {
	for _, u := range s.Clusters {
		u.Suspend = true
	}
	return s
}

// What ended because the cluster was down is served again once it is back, also if its unit
// does not render any more.
func TestServeAfterOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.gives("hub", unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Home: true})
		s.pass(rendered("1", "hub"))
		s.gives("hub", unit.Outcome{Phase: status.Unreachable})
		s.pass(rendered("2", "hub"))
		time.Sleep(time.Hour)
		s.pass(rendered("2", "hub"))
		s.happened("it is down", "set hub, known: true", "run hub, only to serve: false",
			"set hub, known: true", "set hub, known: true", "end hub")
		s.pass(broken("3", "hub"))
		s.happened("it is back", "serve hub", "set hub, known: false", "run hub, only to serve: false")
	})
}

// The cluster of a suspended unit is asked only if its API servers need the daemon. Then no
// controllers run in it but those that serve.
func TestServeSuspended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.gives("hub", unit.Outcome{Phase: status.Ready, Actions: map[string]int{}, Home: true})
		suspended := func(commit string, url string) *desired.State {
			all := state(commit, "hub")
			u := all.Clusters[0]
			if u.Suspend = true; url != "" {
				u.Spec.Etcd = &clusters.Etcd{Proxy: &clusters.EtcdProxy{URL: url}}
			}
			return all
		}
		s.pass(suspended("1", ""))
		s.happened("it is suspended")
		s.pass(suspended("2", "https://gitopsd.example.org:2379"))
		s.happened("it needs the daemon", "serve hub", "set hub, known: false", "run hub, only to serve: true")
		s.pass(suspended("3", "https://gitopsd.example.org:2379"))
		s.happened("a commit")
		s.is("hub", status.Suspended, "spec.suspend leaves the cluster as it is")
		s.has("hub")
		s.pass(rendered("4", "hub"))
		s.happened("it goes on", "end hub", "set hub, known: true", "run hub, only to serve: false")
		s.pass(suspended("5", "https://gitopsd.example.org:2379"))
		s.happened("it is suspended again", "end hub", "serve hub", "set hub, known: false", "run hub, only to serve: true")
		s.pass(broken("6", "hub"))
		s.happened("it does not render", "serve hub", "end hub", "set hub, known: false", "run hub, only to serve: false")
		s.pass(suspended("7", ""))
		s.happened("it is suspended, and needs no daemon", "end hub")
	})
}

// A unit that waits for others is served meanwhile, and so is one without a plan.
func TestServeWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var begin sync.WaitGroup
		begin.Add(1)
		s.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			begin.Wait()
			return unit.Outcome{Phase: status.Ready, Actions: map[string]int{}}
		})
		s.gives("hub", unit.Outcome{Phase: status.Failed, Message: "no plan"})
		s.pass(rendered("1", "dev", "hub<-dev"))
		s.happened("it begins to wait")
		time.Sleep(turn.TellAfter)
		s.happened("it waits", "serve hub", "set hub, known: false", "run hub, only to serve: false")
		begin.Done()
		s.happened("it waits no more", "set hub, known: true")
		s.is("hub", status.Failed, "no plan")
		s.gives("hub", unit.Outcome{Phase: status.Ready, Actions: map[string]int{}})
		s.pass(rendered("2", "dev", "hub<-dev"))
		s.happened("it is no home", "set hub, known: true", "end hub")

		s = newServer(t)
		s.gives("hub", unit.Outcome{Phase: status.Failed, Message: "no plan"})
		s.pass(rendered("1", "hub"))
		s.happened("it has no plan", "serve hub", "set hub, known: false", "run hub, only to serve: false")
	})
}
