package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
	"gitopsd.dev/sources/lockfile"
)

// fleet has workers of clusters with behaviour set by a test, in a synctest bubble.
type fleet struct {
	t   *testing.T
	ws  *workers
	log *bytes.Buffer

	mu       sync.Mutex
	behave   map[string]func(ctx context.Context, want *desired.Unit) unit.Outcome
	done     map[string][]string // what was applied, by the first of Notes
	made     map[string][]string // connections, by the service account
	closed   int
	notify   map[string]func()
	follow   func(ctx context.Context, notify func())
	resume   unit.Outcome
	resumed  int
	rested   int
	serve    func(ctx context.Context, want *desired.Unit) (bool, error)
	password string
}

func newFleet(t *testing.T, workers int) *fleet {
	f := &fleet{
		t: t, log: new(bytes.Buffer), behave: make(map[string]func(context.Context, *desired.Unit) unit.Outcome),
		done: make(map[string][]string), made: make(map[string][]string), notify: make(map[string]func()),
		resume: unit.Outcome{Phase: status.Ready},
	}
	f.ws = newWorkers(Config{
		Board: status.NewBoard("test", "fleet", "main"), Log: slog.New(slog.NewTextHandler(f.log, nil)),
		Interval: 30 * time.Second, ClusterTimeout: 10 * time.Minute, Turns: turn.New(workers),
		Connect: func(_ context.Context, c *desired.Unit) (Connection, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.made[c.Name] = append(f.made[c.Name], c.Spec.ServiceAccount)
			return &fleetConnection{f, c.Name}, nil
		},
		Credentials: func(clusters.Cluster) (string, bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.password, f.password != "not known"
		},
	})
	t.Cleanup(f.ws.stop)
	return f
}

// events are what happens in a synctest bubble.
type events struct {
	test  *testing.T
	guard sync.Mutex
	list  []string
}

func (e *events) note(event string) {
	e.guard.Lock()
	defer e.guard.Unlock()
	e.list = append(e.list, event)
}

// happened compares the events since the last call, once nothing goes on any more.
func (e *events) happened(what string, want ...string) {
	e.test.Helper()
	synctest.Wait()
	e.guard.Lock()
	defer e.guard.Unlock()
	if !slices.Equal(e.list, want) {
		e.test.Errorf("%s: have %q, want %q", what, e.list, want)
	}
	e.list = nil
}

type fleetConnection struct {
	f    *fleet
	name string
}

func (t *fleetConnection) Apply(ctx context.Context, want *desired.Unit) unit.Outcome {
	t.f.mu.Lock()
	t.f.done[t.name] = append(t.f.done[t.name], want.Notes[0])
	behave := t.f.behave[t.name]
	t.f.mu.Unlock()
	if behave != nil {
		return behave(ctx, want)
	}
	return unit.Outcome{Phase: status.Ready}
}

func (t *fleetConnection) Resume(context.Context, *checkpoint.Record) unit.Outcome {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.resumed++
	return t.f.resume
}

func (t *fleetConnection) Follow(ctx context.Context, notify func()) {
	t.f.mu.Lock()
	t.f.notify[t.name] = notify
	follow := t.f.follow
	t.f.mu.Unlock()
	if follow != nil {
		follow(ctx, notify)
	}
	<-ctx.Done()
}

func (t *fleetConnection) Serve(ctx context.Context, want *desired.Unit) (bool, error) {
	t.f.mu.Lock()
	serve := t.f.serve
	t.f.mu.Unlock()
	if serve != nil {
		return serve(ctx, want)
	}
	return false, nil
}

func (t *fleetConnection) Rest() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.rested++
}

func (t *fleetConnection) Close() {
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.closed++
}

// state returns the state of a commit with clusters: "NAME", "NAME<-OTHER" with a dependency,
// and "!NAME" with errors in the registration.
func state(commit string, of ...string) *desired.State {
	s := &desired.State{Registry: &clusters.Registry{}}
	s.Commit.Hash = commit
	for _, text := range of {
		if broken, ok := strings.CutPrefix(text, "!"); ok {
			s.Registry.Broken = append(s.Registry.Broken, broken)
			continue
		}
		name, on, depends := strings.Cut(text, "<-")
		c := clusters.Cluster{Name: name}
		if depends {
			c.Spec.DependsOn = []string{on}
		}
		s.Registry.Clusters = append(s.Registry.Clusters, c)
		u := desired.Registered(c, commit)
		u.Notes = []string{commit}
		s.Clusters = append(s.Clusters, u)
	}
	return s
}

// pass hands out a state, and waits until all goroutines are idle.
func (f *fleet) pass(s *desired.State) {
	var names []string
	for _, c := range s.Clusters {
		names = append(names, c.Name)
	}
	f.ws.cfg.Board.Commit(s.Commit.Hash, "", nil, names)
	f.ws.assign(f.t.Context(), &revision{state: s, commit: s.Commit}, nil)
	synctest.Wait()
}

func (f *fleet) wake(name string) {
	f.mu.Lock()
	notify := f.notify[name]
	f.mu.Unlock()
	notify()
	synctest.Wait()
}

func (f *fleet) set(name string, behave func(context.Context, *desired.Unit) unit.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behave[name] = behave
}

// gives has each attempt at a cluster give an outcome.
func (f *fleet) gives(name string, o unit.Outcome) {
	f.set(name, func(context.Context, *desired.Unit) unit.Outcome { return o })
}

func (f *fleet) is(name string, phase status.Phase, message string) {
	f.t.Helper()
	for _, c := range f.ws.cfg.Board.Snapshot().Clusters {
		if c.Name == name && (c.Phase != phase || c.Message != message) {
			f.t.Errorf("%s is %s: %q, want %s: %q", name, c.Phase, c.Message, phase, message)
		}
	}
}

// has compares what was applied to a cluster since its last call.
func (f *fleet) has(name string, want ...string) {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.done[name], want) {
		f.t.Errorf("%s got %q, want %q", name, f.done[name], want)
	}
	f.done[name] = nil
}

// A cluster that waits gets nothing of a commit: not when it is woken, not in later passes, and
// not after a restart. Meanwhile it is kept at the last commit that was let through.
func TestGate(t *testing.T) {
	t.Parallel()
	failing := func(context.Context, *desired.Unit) unit.Outcome {
		return unit.Outcome{Phase: status.Failed, Message: "no"}
	}
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		one, two := state("1", "dev", "prod<-dev"), state("2", "dev", "prod<-dev")
		f.pass(one)
		f.has("prod", "1")
		f.set("dev", failing)
		f.pass(two)
		f.is("prod", status.Waiting, "waits for cluster dev; is kept at commit 1")
		f.has("prod", "1")
		f.wake("prod")
		f.has("prod", "1")
		f.pass(two)
		f.has("prod", "1")
		f.gives("prod", unit.Outcome{Phase: status.Unreachable, Message: "away"})
		f.pass(two)
		time.Sleep(time.Minute)
		f.set("prod", nil)
		f.pass(two)
		f.has("prod", "1", "1")
		f.set("dev", nil)
		f.pass(two)
		f.has("prod", "2")
		// Once let through it is not held back for what becomes of the other.
		f.set("dev", failing)
		f.pass(two)
		f.has("prod", "2")
		// Nor if the commit is computed again, unless that gave something else.
		f.pass(state("2", "dev", "prod<-dev"))
		f.has("prod", "2")
		f.is("prod", status.Ready, "")
		another := state("2", "dev", "prod<-dev")
		another.Clusters[1].Objects, _ = manifest.NewSet([]*manifest.Object{configMap(t, "c")})
		f.pass(another)
		f.is("prod", status.Waiting, "waits for cluster dev; is kept at commit 2")

		restarted := newFleet(t, 4)
		restarted.set("dev", failing)
		restarted.pass(two)
		restarted.is("prod", status.Waiting, "waits for cluster dev")
		restarted.has("prod")
		// If dev is stuck, so is the fleet.
		if s := restarted.ws.cfg.Board.Snapshot(); s.Stuck() {
			t.Error("dev may pass")
		}
		restarted.gives("dev", unit.Outcome{Phase: status.Failed, Message: "refused", Stuck: true})
		restarted.pass(two)
		if s := restarted.ws.cfg.Board.Snapshot(); !s.Stuck() {
			t.Error("dev does not pass, and prod waits in vain")
		}
	})
}

// A cluster that waits for another one still handles its own wake-ups.
func TestGateWokenMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.pass(state("1", "dev", "prod<-dev"))
		f.has("prod", "1")
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			time.Sleep(5 * time.Minute)
			return unit.Outcome{Phase: status.Ready}
		})
		two := state("2", "dev", "prod<-dev")
		f.pass(two)
		f.wake("prod")
		f.has("prod", "1")
		time.Sleep(time.Minute)
		f.is("prod", status.Waiting, "waits for cluster dev")
		f.pass(two) // the job of dev is left alone, and waited for
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		f.has("prod", "2")
		f.is("prod", status.Ready, "")
	})
}

// A cluster that is not known to be ready holds back those that depend on it.
func TestGateHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.pass(state("1", "!dev", "prod<-dev"))
		f.is("prod", status.Waiting, "waits for cluster dev, whose registration has errors")
		suspended := state("2", "dev", "prod<-dev")
		suspended.Clusters[0].Suspend = true
		f.pass(suspended)
		f.is("prod", status.Waiting, "waits for cluster dev, which is suspended")
		f.has("prod")
	})
}

// A cluster that must wait is not kept at a commit that empties it, or reaches it in another
// way, if the newest commit does not.
func TestGateTakenBack(t *testing.T) {
	t.Parallel()
	waits := "waits until its new lock records are kept"
	for _, test := range []struct {
		name      string
		first     clusters.Cluster
		suspended bool // for a commit in between
		next, why string
	}{
		{"emptied", clusters.Cluster{Remove: true}, false, "prod<-dev", "waits for cluster dev"},
		{"emptied, then suspended", clusters.Cluster{Remove: true}, true, "prod<-dev", "waits for cluster dev"},
		{"emptied, without dependencies", clusters.Cluster{Remove: true}, false, "prod", waits},
		{"another account", clusters.Cluster{Spec: clusters.Spec{ServiceAccount: "strong"}}, false, "prod", waits},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 4)
				f.gives("dev", unit.Outcome{Phase: status.Failed, Message: "no"})
				f.gives("prod", unit.Outcome{Phase: status.Leaving, Message: "it is being emptied"})
				one := state("1", "dev", "prod")
				test.first.Name = "prod"
				one.Clusters[1] = desired.Registered(test.first, "1")
				one.Clusters[1].Notes = []string{"1"}
				f.pass(one)
				f.has("prod", "1")
				if test.suspended {
					between := state("2", "dev", test.next)
					between.Clusters[1].Suspend = true
					f.pass(between)
				}
				next := state("3", "dev", test.next)
				for range 2 {
					f.ws.assign(t.Context(), &revision{state: next, commit: next.Commit}, map[desired.ID]string{{Cluster: "prod"}: map[bool]string{true: waits}[test.why == waits]})
					synctest.Wait()
					f.wake("prod")
				}
				f.has("prod")
				f.is("prod", status.Waiting, test.why)
			})
		})
	}
}

// Work in a cluster between attempts ends when the cluster must be left alone.
func TestRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.pass(state("1", "dev", "prod"))
		if f.rested != 0 {
			t.Errorf("rested %d times", f.rested)
		}
		suspended := state("2", "dev", "prod")
		suspended.Clusters[0].Suspend = true
		f.pass(suspended)
		if f.rested != 1 {
			t.Errorf("a suspended cluster: rested %d times", f.rested)
		}
		broken := state("3", "dev", "!prod")
		broken.Registry.Faulty = true
		f.pass(broken)
		synctest.Wait()
		if f.rested != 2 {
			t.Errorf("a cluster whose registration has errors: rested %d times", f.rested)
		}
	})
}

// A job that is never tried does not keep others waiting.
func TestGateDroppedJob(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		one := state("1", "dev", "prod<-dev")
		release := make(chan struct{})
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			<-release
			return unit.Outcome{Phase: status.Ready}
		})
		f.pass(one)
		// Of the same commit, computed anew: it waits in the box for dev's end, and
		// is replaced there.
		again := state("1", "dev", "prod<-dev")
		f.pass(again)
		f.pass(again)
		close(release)
		synctest.Wait()
		f.is("prod", status.Ready, "")
		if now := f.ws.all[desired.ID{Cluster: "prod"}].last; now.want != again.Clusters[1] {
			t.Error("prod did not come to the newest job")
		}

		// The worker ends with a job in its box.
		hang := make(chan struct{})
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome { <-hang; return unit.Outcome{} })
		f.pass(state("2", "dev", "prod<-dev"))
		f.pass(state("2", "dev", "prod<-dev"))
		f.ws.all[desired.ID{Cluster: "dev"}].quit()
		close(hang)
		synctest.Wait()
		f.is("prod", status.Waiting, "waits for cluster dev; is kept at commit 1")
	})
}

// A cluster that is woken while a newer commit waits for it gets that one: parts of a commit in
// between may be applied, and no older commit may follow.
func TestWokenForNothingOlder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for range 20 {
			f := newFleet(t, 4)
			f.pass(state("1", "dev"))
			f.set("dev", func(ctx context.Context, want *desired.Unit) unit.Outcome {
				if want.Notes[0] == "2" {
					<-ctx.Done()
				}
				return unit.Outcome{Phase: status.Ready}
			})
			f.pass(state("2", "dev"))
			f.wake("dev")
			f.pass(state("3", "dev"))
			f.mu.Lock()
			if slices.Contains(f.done["dev"][1:], "1") {
				t.Errorf("dev got %q", f.done["dev"])
			}
			f.mu.Unlock()
		}
	})
}

// A connection is made again if and only if its origin has changed, whatever commits declared in
// between.
func TestConnectionIsOfTheRegistration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		as := func(commit, account string) *desired.State {
			s := state(commit, "dev")
			s.Clusters[0].Spec.ServiceAccount = account
			return s
		}
		f.pass(as("1", "strong"))
		broken := as("2", "weak")
		broken.Clusters[0].Err = errors.New("it does not render")
		f.pass(broken)
		f.is("dev", status.Failed, "it does not render")
		f.pass(as("3", "weak"))
		moved := as("4", "weak")
		moved.Clusters[0].Line, moved.Clusters[0].Labels = 7, map[string]string{"a": "b"}
		f.pass(moved)
		f.mu.Lock()
		f.password = "another"
		f.mu.Unlock()
		f.pass(as("4", "weak"))
		f.mu.Lock()
		f.password = "not known"
		f.mu.Unlock()
		f.pass(as("4", "weak"))
		f.mu.Lock()
		defer f.mu.Unlock()
		if want := []string{"strong", "weak", "weak"}; !slices.Equal(f.made["dev"], want) || f.closed != 2 {
			t.Errorf("connections as %q, want %q; %d were closed", f.made["dev"], want, f.closed)
		}
	})
}

// Slow clusters lend their turns to others.
func TestSlowClustersLendTheirSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 16)
		var names []string
		for n := range 20 {
			name := fmt.Sprintf("c%02d", n)
			names = append(names, name)
			if n < 17 {
				f.set(name, func(ctx context.Context, _ *desired.Unit) unit.Outcome {
					<-ctx.Done()
					return unit.Outcome{Phase: status.Unreachable, Message: "no answer"}
				})
			}
		}
		s := state("1", names...)
		f.pass(s)
		time.Sleep(turn.TellAfter + time.Millisecond)
		waiting := 0
		for _, c := range f.ws.cfg.Board.Snapshot().Clusters {
			if c.Phase == status.Waiting && strings.HasPrefix(c.Message, "waits for its turn") {
				waiting++
			}
		}
		ready := len(f.ws.cfg.Board.Snapshot().Clusters) - 16 - waiting
		if waiting == 0 && ready < 3 {
			t.Error("nothing shows that clusters wait for their turn")
		}
		time.Sleep(turn.LendAfter)
		synctest.Wait()
		for _, name := range names[17:] {
			f.is(name, status.Ready, "")
		}
	})
}

// A panic is an error of its cluster.
func TestPanicIsOneClustersError(t *testing.T) {
	t.Parallel()
	for name, panics := range map[string]func(context.Context, *desired.Unit) unit.Outcome{
		"in the worker": func(context.Context, *desired.Unit) unit.Outcome { panic(errors.New("secret")) },
		"in a goroutine of its own": func(context.Context, *desired.Unit) unit.Outcome {
			var g errgroup.Group
			g.Go(func() error { panic(errors.New("secret")) })
			_ = g.Wait()
			return unit.Outcome{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, 1)
				f.set("dev", panics)
				f.follow = func(context.Context, func()) { panic("as well") }
				s := state("1", "dev", "prod")
				f.pass(s)
				f.is("dev", status.Failed, "a bug in gitopsd: panic with a value of type *errors.errorString; the log has its stack")
				f.is("prod", status.Ready, "")
				f.set("dev", nil)
				f.pass(s)
				f.is("dev", status.Ready, "")
				f.ws.stop()
				if log := f.log.String(); !strings.Contains(log, "workers_test.go") || strings.Contains(log, "secret") {
					t.Errorf("the log has\n%s", log)
				}
				if f.closed != len(f.made["dev"])+len(f.made["prod"]) {
					t.Errorf("%d of %v connections were closed", f.closed, f.made)
				}
			})
		})
	}
}

// A problem is not new because its lines have moved.
func TestLinesMove(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1)
		lines := func(commit string, origins ...string) {
			t.Helper()
			f.mu.Lock()
			f.log.Reset()
			f.mu.Unlock()
			f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
				o := unit.Outcome{Phase: status.Failed, Message: "a.yaml:" + commit + ": and more"}
				for _, origin := range origins {
					o.Problems = append(o.Problems, problem.Problem{Cluster: "dev", Object: "configmap/a/b", Origin: origin, Reason: "no"})
				}
				return o
			})
			f.pass(state(commit, "dev"))
		}
		said := func(want int, why string) {
			t.Helper()
			synctest.Wait()
			if have := strings.Count(f.log.String(), "msg=problem"); have != want {
				t.Errorf("%s: %d problems are logged, want %d:\n%s", why, have, want, f.log)
			}
		}
		lines("1", "a.yaml:1")
		said(1, "the first commit")
		lines("2", "a.yaml:2")
		said(0, "lines moved")
		if strings.Contains(f.log.String(), "and more") {
			t.Errorf("lines moved: the outcome is logged anew:\n%s", f.log)
		}
		lines("3", "a.yaml:3", "a.yaml:30")
		said(1, "once more")
		lines("4", "b.yaml:3", "b.yaml:30")
		said(2, "another file")
	})
}

// A cluster that is down is tried less often, and is back soon after it answers.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	t.Run("clean", func(t *testing.T) { testUnreachable(t, "dev", "prod") })
	// Its commit is computed again and again.
	t.Run("beside a broken cluster", func(t *testing.T) { testUnreachable(t, "dev", "prod", "broken") })
}

func testUnreachable(t *testing.T, names ...string) {
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		fleet := files("v1")
		maps.Copy(fleet, cluster("prod", "v1"))
		fleet["clusters.yaml"] = registry(names...)
		b.push("1", fleet)
		f.gives("dev", unit.Outcome{Phase: status.Unreachable, Message: "connection refused"})
		d := looping(t, f, b, nil)
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		f.mu.Lock()
		dev, prod, closed := len(f.done["dev"]), len(f.done["prod"]), f.closed
		f.mu.Unlock()
		if prod < 30 || dev < 4 || dev > prod/3 {
			t.Errorf("dev, which is down, was tried %d times, prod %d times", dev, prod)
		}
		if closed != dev-1 {
			t.Errorf("dev was tried %d times, and connected to anew %d times", dev, closed)
		}
		f.set("dev", nil)
		time.Sleep(10 * 30 * time.Second * 3 / 2)
		synctest.Wait()
		if phase(d, "dev") != status.Ready {
			t.Errorf("dev is %s", phase(d, "dev"))
		}
	})
}

// Rare polls keep no cluster waiting that failed or was down for a moment.
func TestRarePolls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		fleet := files("v1")
		maps.Copy(fleet, cluster("prod", "v1"))
		fleet["clusters.yaml"] = registry("dev", "prod")
		b.push("1", fleet)
		f.gives("dev", unit.Outcome{Phase: status.Unreachable, Message: "connection refused"})
		f.gives("prod", unit.Outcome{Phase: status.Failed, Message: "503 Service Unavailable"})
		f.ws.cfg.Interval = time.Hour
		d := looping(t, f, b, nil)
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		f.set("dev", nil)
		f.set("prod", nil)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if phase(d, "dev") != status.Ready || phase(d, "prod") != status.Ready {
			t.Errorf("dev is %s, and prod is %s", phase(d, "dev"), phase(d, "prod"))
		}
		if n := b.polled(); n > 2 {
			t.Errorf("%d polls", n)
		}
	})
}

// A cluster that is down while a commit comes, and calls once it is back, gets that
// commit and not the one before.
func TestWokenAfterUnreachable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.gives("dev", unit.Outcome{Phase: status.Unreachable, Message: "away"})
		f.pass(state("1", "dev"))
		f.has("dev", "1")
		f.pass(state("2", "dev"))
		f.has("dev")
		f.set("dev", nil)
		time.Sleep(5 * time.Minute)
		f.wake("dev")
		f.has("dev", "2")
	})
}

// A cluster with errors in its document is left as it is, also when it is woken. Once the
// document is mended, the cluster is followed again.
func TestBrokenRegistrationIsLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.pass(state("1", "dev", "prod"))
		f.has("dev", "1")
		broken := state("2", "!dev", "prod")
		broken.Registry.Faulty = true
		f.pass(broken)
		f.wake("dev")
		f.has("dev")
		f.has("prod", "1", "2")

		// An attempt under way is given up.
		gaveUp := false
		f.set("dev", func(ctx context.Context, _ *desired.Unit) unit.Outcome {
			<-ctx.Done()
			gaveUp = true
			return unit.Outcome{Phase: status.Failed}
		})
		f.pass(state("3", "dev", "prod"))
		f.has("dev", "3")
		again := state("4", "!dev", "prod")
		again.Registry.Faulty = true
		f.pass(again)
		f.set("dev", nil)
		f.wake("dev")
		f.has("dev")
		if !gaveUp {
			t.Error("the attempt for the older document went on")
		}
		f.pass(state("5", "dev", "prod"))
		f.wake("dev")
		f.has("dev", "5", "5")
	})
}

// A cluster that has changed since it was left is not read again while the state is computed.
func TestMovedIsAskedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.resume = unit.Outcome{Moved: true}
		resting := &revision{state: state("1", "dev"), at: map[desired.ID]*checkpoint.Record{{Cluster: "dev"}: {}}}
		f.ws.cfg.Board.Commit("1", "", nil, []string{"dev"})
		for range 3 {
			f.ws.assign(t.Context(), resting, nil)
			synctest.Wait()
		}
		if f.resumed != 1 || len(f.ws.moved) != 1 {
			t.Errorf("it was looked at %d times, and what is wanted was asked for %d times", f.resumed, len(f.ws.moved))
		}
		f.is("dev", status.Waiting, "it has changed since the last daemon left it; its objects are computed first")
		f.pass(state("1", "dev"))
		f.is("dev", status.Ready, "")
		f.has("dev", "1")
	})
}

// A unit gets an attempt when it is due, also if nothing was computed since an earlier process
// left it.
func TestLookedAtAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		var due []time.Duration
		begun := time.Now()
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			due = append(due, time.Since(begun))
			if len(due) == 3 {
				return unit.Outcome{Phase: status.Ready}
			}
			return unit.Outcome{Phase: status.Ready, Again: time.Now().Add(time.Hour)}
		})
		f.pass(state("1", "dev"))
		time.Sleep(5 * time.Hour)
		synctest.Wait()
		if want := []time.Duration{0, time.Hour, 2 * time.Hour}; !slices.Equal(due, want) {
			t.Errorf("attempts after %v, want %v", due, want)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.resume = unit.Outcome{Phase: status.Ready, Again: time.Now().Add(time.Hour)}
		resting := &revision{state: state("1", "dev"), at: map[desired.ID]*checkpoint.Record{{Cluster: "dev"}: {}}}
		f.ws.cfg.Board.Commit("1", "", nil, []string{"dev"})
		f.ws.assign(t.Context(), resting, nil)
		synctest.Wait()
		if len(f.ws.moved) != 0 {
			t.Error("what is wanted was asked for at once")
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if len(f.ws.moved) != 1 {
			t.Error("what is wanted was not asked for when the unit fell due")
		}
	})
}

// A unit that is due at a time in the past does not keep its cluster busy.
func TestAgainIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		attempts := 0
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			if attempts++; attempts > 1000 {
				<-t.Context().Done() // the time would stand still
			}
			return unit.Outcome{Phase: status.Ready, Again: time.Now().Add(-time.Hour)}
		})
		f.pass(state("1", "dev"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if attempts < 5 || attempts > 15 {
			t.Errorf("%d attempts in a minute", attempts)
		}
	})
}

// A unit that becomes due while it waits for another cluster gets an attempt.
func TestDueAtTheGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		due := time.Now().Add(time.Minute)
		f.set("prod", func(context.Context, *desired.Unit) unit.Outcome {
			if time.Now().Before(due) {
				return unit.Outcome{Phase: status.Ready, Again: due}
			}
			return unit.Outcome{Phase: status.Ready}
		})
		f.pass(state("1", "dev", "prod<-dev"))
		f.has("prod", "1")
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			time.Sleep(5 * time.Minute)
			return unit.Outcome{Phase: status.Ready}
		})
		f.pass(state("2", "dev", "prod<-dev"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		f.has("prod", "1")
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		f.has("prod", "2")
	})
}

// Units of a cluster with errors in its document are left alone, and stay in the status.
func TestUnitsAreLeftAlone(t *testing.T) {
	t.Parallel()
	s := state("2", "dev", "!prod")
	s.Registry.Faulty = true
	s.Committed = new(lockfile.File)
	d := &Daemon{cfg: Config{Board: status.NewBoard("test", "fleet", "main")}}
	d.cfg.Board.Commit("1", "", nil, []string{"dev", "dev.shop", "prod", "prod.shop", "gone.shop"})
	want := map[string]string{
		"prod": "its registration has errors", "prod.shop": "its registration has errors",
		"gone.shop": "it is not registered any more by a clusters.yaml that has errors",
	}
	if left := d.leftAlone(s); !maps.Equal(left, want) {
		t.Errorf("left alone: %v", left)
	}
}

// The running version of a package is the last one that was applied completely.
func TestRunningVersions(t *testing.T) {
	t.Parallel()
	want := func(version string, incomplete ...string) *job {
		d := sources.Declaration{Name: "p"}
		ref := sources.Ref{Repository: "reg.io/p", Tag: version}
		return &job{of: new(revision), want: &desired.Unit{Incomplete: incomplete, Packages: []sources.Selected{
			{Declaration: d, Pin: sources.Pin{Ref: ref, Digest: sources.DigestOf([]byte(version))}, Package: new(sources.Package)},
		}}}
	}
	made := func(behind ...string) unit.Outcome {
		o := unit.Outcome{Phase: status.Ready, Actions: map[string]int{"unchanged": 1}, Behind: make(map[string]bool)}
		for _, name := range behind {
			o.Behind[name] = true
		}
		return o
	}
	w := new(worker)
	for _, step := range []struct {
		name string
		j    *job
		o    unit.Outcome
		want string
	}{
		{"not known after a start", want("v1"), made("p"), ""},
		{"applied", want("v1"), made(), "v1"},
		{"refused", want("v2"), made("p"), "v1"},
		{"not reached", want("v2"), unit.Outcome{Phase: status.Unreachable}, "v1"},
		{"cannot be resolved", want("v2", "p"), made(), "v1"},
		{"applied at last", want("v2"), made(), "v2"},
	} {
		w.know(step.j, step.o)
		if have := packages(step.j.want, step.o, w.running)[0].Running; have != step.want {
			t.Errorf("%s: %q, want %q", step.name, have, step.want)
		}
	}
	// A tag that was moved to another digest.
	if have := running(w.running, "p", "v2", "sha256:0"); have != "v2@sha256:"+sources.DigestOf([]byte("v2")).Short() {
		t.Errorf("%q", have)
	}
	// A package that left, and comes back, was not there meanwhile.
	w.know(&job{of: new(revision), want: new(desired.Unit)}, made())
	if j := want("v3"); packages(j.want, made("p"), w.running)[0].Running != "" {
		t.Errorf("%v", w.running)
	}
	// A unit at rest has what it should.
	rest := want("v1")
	rest.of.at = map[desired.ID]*checkpoint.Record{{}: {Packages: []status.PackageState{{Name: "p", Version: "v1", Digest: "d"}}}}
	w.know(rest, unit.Outcome{Phase: status.Ready})
	if w.running["p"] != (version{"v1", "d"}) {
		t.Errorf("%v", w.running)
	}
}

// An attempt is given up for a newer commit that wants something else, but not again and
// again: a cluster that takes longer than the time between two commits gets to an end.
func TestBusyBranch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		var mu sync.Mutex
		var ended, givenUp []string
		f.set("prod", func(ctx context.Context, want *desired.Unit) unit.Outcome {
			select {
			case <-time.After(40 * time.Second):
			case <-ctx.Done():
			}
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() != nil {
				givenUp = append(givenUp, want.Notes[0])
			} else {
				ended = append(ended, want.Notes[0])
			}
			return unit.Outcome{Phase: status.Ready, Actions: map[string]int{}}
		})
		commit := func(n int, objects bool) *desired.State {
			s := state(fmt.Sprint(n), "prod")
			if objects {
				s.Clusters[0].Objects, _ = manifest.NewSet([]*manifest.Object{configMap(t, fmt.Sprint("c", n))})
			}
			return s
		}
		for n := range 9 {
			f.pass(commit(n, true))
			time.Sleep(30 * time.Second)
		}
		mu.Lock()
		if want := []string{"0", "1", "2", "4", "5", "6"}; !slices.Equal(givenUp, want) {
			t.Errorf("given up are %q, want %q", givenUp, want)
		}
		if want := []string{"3", "7"}; !slices.Equal(ended, want) {
			t.Errorf("ended are %q, want %q", ended, want)
		}
		mu.Unlock()
		time.Sleep(time.Hour)
		mu.Lock()
		ended, givenUp = nil, nil
		mu.Unlock()
		for n := range 4 {
			f.pass(commit(10+n, false))
			time.Sleep(30 * time.Second)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(givenUp) > 0 || len(ended) < 2 {
			t.Errorf("commits that want the same: given up are %q, ended are %q", givenUp, ended)
		}
	})
}

// Nor does a branch with ever more commits keep a cluster from all of them that depends on a slow
// one, whichever of the commits changed only that one.
func TestBusyBranchBehind(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ dev, prod time.Duration }{
		{20 * time.Second, 40 * time.Second}, {40 * time.Second, 0}, {40 * time.Second, 40 * time.Second}, {100 * time.Second, 0}, {100 * time.Second, 40 * time.Second},
	} {
		for earlier := range mostGivenUp + 1 {
			t.Run(fmt.Sprint(test.dev, " ", test.prod, " ", earlier), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 4)
					var other, ended atomic.Int32
					takes := func(d time.Duration, ended *atomic.Int32) func(context.Context, *desired.Unit) unit.Outcome {
						return func(ctx context.Context, _ *desired.Unit) unit.Outcome {
							select {
							case <-time.After(d):
								ended.Add(1)
								return unit.Outcome{Phase: status.Ready}
							case <-ctx.Done():
								return unit.Outcome{Phase: status.Failed}
							}
						}
					}
					f.set("dev", takes(test.dev, &other))
					f.set("prod", takes(test.prod, &ended))
					for n := range 60 {
						s := state(fmt.Sprint(n), "dev", "prod<-dev")
						s.Clusters[0].Objects, _ = manifest.NewSet([]*manifest.Object{configMap(t, fmt.Sprint("c", n))})
						s.Clusters[1].Objects, _ = manifest.NewSet([]*manifest.Object{configMap(t, fmt.Sprint("c", max(n, earlier)))})
						f.pass(s)
						time.Sleep(30 * time.Second)
					}
					if n := ended.Load(); n < 5 {
						t.Errorf("of 60 commits prod got %d", n)
					}
				})
			})
		}
	}
}

// An attempt ends at once if its cluster must be left alone, however often others were given
// up before.
func TestSuspendedWhileBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		f.set("prod", func(ctx context.Context, _ *desired.Unit) unit.Outcome {
			<-ctx.Done()
			return unit.Outcome{Phase: status.Unreachable}
		})
		for n := range mostGivenUp + 1 {
			s := state(fmt.Sprint(n), "prod")
			s.Clusters[0].Objects, _ = manifest.NewSet([]*manifest.Object{configMap(t, fmt.Sprint("c", n))})
			f.pass(s)
		}
		s := state("last", "prod")
		s.Clusters[0].Suspend = true
		f.pass(s)
		f.is("prod", status.Suspended, "spec.suspend leaves the cluster as it is")
	})
}

func configMap(t *testing.T, name string) *manifest.Object {
	t.Helper()
	o, err := manifest.New(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}}, manifest.Origin{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// A unit that leaves the fleet is told of once nothing works on it any more, and not if it is
// back by then.
func TestLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 4)
		told := &events{test: t}
		f.ws.cfg.Left = func(id desired.ID) { told.note(id.String()) }
		end := make(chan struct{})
		f.set("dev", func(context.Context, *desired.Unit) unit.Outcome {
			<-end
			return unit.Outcome{Phase: status.Ready}
		})
		f.pass(state("1", "dev", "prod"))
		f.pass(state("2", "prod"))
		told.happened("it has left, and an attempt is under way")
		f.pass(state("3", "dev", "prod"))
		close(end)
		told.happened("it is back")
		f.pass(state("4", "prod"))
		told.happened("it has left", "dev")
		f.has("dev", "1", "3")
		f.ws.stop()
		told.happened("the daemon ends")
	})
}

// An emptying under way ends when another cluster is registered: it may be the same one.
func TestEmptyingEnds(t *testing.T) {
	t.Parallel()
	prod := clusters.Cluster{Name: "prod", Remove: true}
	empties := func(beside ...clusters.Cluster) *job {
		u := desired.Registered(prod, "a")
		u.Beside = beside
		return &job{want: u}
	}
	if empties(prod).mustEnd(empties(prod)) {
		t.Error("it ends though nothing changed")
	}
	if !empties(prod).mustEnd(empties(prod, clusters.Cluster{Name: "production"})) {
		t.Error("it goes on though another cluster is registered")
	}
}
