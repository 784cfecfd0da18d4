package status

import (
	"slices"
	"testing"

	"gitopsd.dev/reconcile/problem"
)

func TestUnready(t *testing.T) {
	const now, before = "now", "before"
	fleet := func(change func(*Snapshot)) Snapshot {
		s := Snapshot{Commit: now, Clusters: []Unit{{Name: "dev", Phase: Ready, Commit: now}, {Name: "prod", Phase: Ready, Commit: now}}}
		change(&s)
		return s
	}
	for _, tt := range []struct {
		name   string
		change func(*Snapshot)
		only   []string
		want   []string
	}{
		{name: "ready", change: func(*Snapshot) {}},
		{name: "no cluster", change: func(s *Snapshot) { s.Clusters = nil }},
		{name: "no commit", change: func(s *Snapshot) { s.Commit = "" }, want: []string{"no commit was read yet"}},
		{name: "a newer commit", change: func(s *Snapshot) { s.Computing = "newer" }, want: []string{"commit newer is being computed"}},
		{name: "the repository is away", change: func(s *Snapshot) { s.PollError = "refused" }, want: []string{"refused"}},
		{name: "behind", change: func(s *Snapshot) { s.Clusters[1].Commit = before }, want: []string{"cluster prod: it is Ready with commit before, and commit now is next"}},
		{name: "failed", change: func(s *Snapshot) { s.Clusters[0].Phase, s.Clusters[0].Message = Failed, "two objects" }, want: []string{"cluster dev: Failed: two objects"}},
		{name: "pending", change: func(s *Snapshot) { s.Clusters[0].Phase = Pending }, want: []string{"cluster dev: Pending"}},
		{name: "degraded", change: func(s *Snapshot) { s.Clusters[0].Phase = Degraded }, want: []string{"cluster dev: Degraded"}},
		{name: "suspended", change: func(s *Snapshot) { s.Clusters[0].Phase, s.Clusters[0].Commit = Suspended, before }},
		{name: "asked for, and suspended", change: func(s *Snapshot) { s.Clusters[0].Phase = Suspended }, only: []string{"dev"}, want: []string{"cluster dev: the repository suspends it"}},
		{name: "problems", change: func(s *Snapshot) {
			s.Problems = problem.Gather([]problem.Problem{{Reason: "a"}, {Cluster: "dev", Reason: "b"}, {Cluster: "prod", Reason: "c"}})
		}, only: []string{"prod"}, want: []string{"a", "cluster prod: c"}},
		{name: "a problem that others share", change: func(s *Snapshot) {
			s.Problems = problem.Gather([]problem.Problem{{Cluster: "dev", Reason: "b"}, {Cluster: "stage", Reason: "b"}})
		}, only: []string{"prod"}},
		{name: "a shared problem", change: func(s *Snapshot) {
			s.Problems = problem.Gather([]problem.Problem{{Cluster: "dev", Reason: "b"}, {Cluster: "prod", Reason: "b"}})
		}, want: []string{"b"}},
		{name: "others do not count", change: func(s *Snapshot) { s.Clusters[0].Phase = Failed }, only: []string{"prod"}},
		{name: "not registered", change: func(*Snapshot) {}, only: []string{"stage"}, want: []string{"cluster stage: no such cluster is registered in commit now"}},
	} {
		s := fleet(tt.change)
		if have := s.Unready(tt.only...); !slices.Equal(have, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, have, tt.want)
		}
	}
}

func TestStuck(t *testing.T) {
	held := Unit{Name: "dev", Phase: Degraded, Commit: "now", Stuck: true}
	ready, suspended, failed := Unit{Name: "prod", Phase: Ready, Commit: "now"}, Unit{Name: "prod", Phase: Suspended}, Unit{Name: "prod", Phase: Failed, Commit: "now"}
	refused, old := failed, held
	refused.Stuck, old.Commit = true, "before"
	waits := func(name, on string) Unit { return Unit{Name: name, Phase: Waiting, Commit: "now", WaitsFor: on} }
	for _, tt := range []struct {
		name  string
		fleet Snapshot
		only  []string
		want  bool
	}{
		{"ready", Snapshot{Clusters: []Unit{ready}}, nil, false},
		{"held", Snapshot{Clusters: []Unit{held, ready}}, nil, true},
		{"held and suspended", Snapshot{Clusters: []Unit{held, suspended}}, nil, true},
		{"held and refused", Snapshot{Clusters: []Unit{held, refused}}, nil, true},
		{"held and failed", Snapshot{Clusters: []Unit{held, failed}}, nil, false},
		{"held, with an earlier commit", Snapshot{Clusters: []Unit{old}}, nil, false},
		{"held, and a commit is next", Snapshot{Clusters: []Unit{held}, Computing: "next"}, nil, false},
		{"held, and the repository is away", Snapshot{Clusters: []Unit{held}, PollError: "refused"}, nil, false},
		{"held, and a package is late", Snapshot{Clusters: []Unit{held}, Problems: problem.Gather([]problem.Problem{{Reason: "late"}})}, nil, false},
		{"it does not render", Snapshot{Clusters: []Unit{refused}, Problems: problem.Gather([]problem.Problem{{Cluster: "prod", Reason: "no such path", Lasting: true}})}, nil, true},
		{"it does not render, and a package is late", Snapshot{Clusters: []Unit{refused}, Problems: problem.Gather([]problem.Problem{{Reason: "no such path", Lasting: true}, {Reason: "late"}})}, nil, false},
		{"it does not render, and another one failed", Snapshot{Clusters: []Unit{held, failed}, Problems: problem.Gather([]problem.Problem{{Cluster: "dev", Reason: "no such path", Lasting: true}})}, nil, false},
		{"a package of another one is late", Snapshot{Clusters: []Unit{held, failed}, Problems: problem.Gather([]problem.Problem{{Cluster: "prod", Reason: "late"}})}, []string{"dev"}, true},
		{"waits for one that is refused", Snapshot{Clusters: []Unit{waits("a", "b"), waits("b", "prod"), refused}}, nil, true},
		{"waits for one that is suspended", Snapshot{Clusters: []Unit{waits("a", "dev"), {Name: "dev", Phase: Suspended, Commit: "now"}}}, nil, true},
		{"waits for one that is refused, asked for alone", Snapshot{Clusters: []Unit{waits("a", "prod"), refused}}, []string{"a"}, true},
		{"waits for one that failed", Snapshot{Clusters: []Unit{waits("a", "prod"), failed}}, nil, false},
		{"waits for one that is Ready by now", Snapshot{Clusters: []Unit{waits("a", "prod"), ready, held}}, nil, false},
		{"waits for one that is held by now", Snapshot{Clusters: []Unit{waits("a", "dev"), held}}, nil, false},
		{"waits for its turn", Snapshot{Clusters: []Unit{waits("a", ""), held}}, nil, false},
		{"waits for itself", Snapshot{Clusters: []Unit{waits("a", "b"), waits("b", "a")}}, nil, false},
		{"the newest commit is not trusted", Snapshot{Clusters: []Unit{ready}, PollError: "it is not signed", PollLasting: true}, nil, true},
		{"the newest commit is not trusted, and there was none before", Snapshot{PollError: "it is not signed", PollLasting: true}, []string{"prod"}, true},
		{"the commit is refused for good", Snapshot{Clusters: []Unit{old, ready}, Refused: true, LockDue: true, Problems: problem.Gather([]problem.Problem{{Reason: "no registry", Lasting: true}})}, nil, true},
		{"the commit is refused for good, and one asks for a cluster", Snapshot{Clusters: []Unit{ready}, Refused: true, Problems: problem.Gather([]problem.Problem{{Reason: "no registry", Lasting: true}})}, []string{"prod"}, true},
		{"the commit is refused for now", Snapshot{Clusters: []Unit{old}, Refused: true, Problems: problem.Gather([]problem.Problem{{Reason: "cut off"}})}, nil, false},
		{"the commit is refused, and a newer one is next", Snapshot{Clusters: []Unit{old}, Refused: true, Computing: "next", Problems: problem.Gather([]problem.Problem{{Reason: "no registry", Lasting: true}})}, nil, false},
		{"another one is held", Snapshot{Clusters: []Unit{held, ready}}, []string{"prod"}, false},
		{"another one failed", Snapshot{Clusters: []Unit{held, failed}}, []string{"dev"}, true},
	} {
		tt.fleet.Commit = "now"
		if have := tt.fleet.Stuck(tt.only...); have != tt.want {
			t.Errorf("%s: %t", tt.name, have)
		}
	}
}

// A cluster with problems is never shown as Ready, but those that depend on it go on.
func TestDegraded(t *testing.T) {
	b := NewBoard("v1", "r", "main")
	b.Commit("abc", "first", nil, []string{"dev", "prod"})
	b.Update("dev", func(u *Unit) { u.Phase, u.Problems = Ready, []problem.Problem{{Reason: "held"}} })
	b.Update("prod", func(u *Unit) { u.Phase = Ready })
	b.Home("prod", []problem.Problem{{Reason: "a"}, {Reason: "b"}})
	for i, want := range []string{"everything is applied that may be; 1 problem is left", "everything is applied that may be; 2 problems are left"} {
		if u := b.Snapshot().Clusters[i]; u.Phase != Degraded || u.Message != want {
			t.Errorf("%s: %s %q", u.Name, u.Phase, u.Message)
		}
		if phase, message := b.State(b.Snapshot().Clusters[i].Name); phase != Ready || message != "" {
			t.Errorf("state %s %q", phase, message)
		}
	}
	// A problem of an object that is not in the repository is its owner's.
	theirs := problem.Problem{Reason: "c", Outside: true}
	b.Home("prod", []problem.Problem{theirs})
	if u := b.Snapshot().Clusters[1]; u.Phase != Ready || len(u.Problems) != 1 || u.Problems[0] != theirs {
		t.Errorf("%+v", u)
	}
	b.Home("prod", nil)
	if u := b.Snapshot().Clusters[1]; u.Phase != Ready {
		t.Errorf("%+v", u)
	}
}

// A newer commit is told until it is in charge, and every change wakes those that wait.
func TestChanged(t *testing.T) {
	b := NewBoard("v1", "r", "main")
	changed := b.Changed()
	b.Computing("def")
	select {
	case <-changed:
	default:
		t.Error("nobody is woken")
	}
	if changed == b.Changed() {
		t.Error("the next change wakes nobody")
	}
	b.Commit("abc", "first", nil, nil)
	if s := b.Snapshot(); s.Computing != "def" {
		t.Errorf("%+v", s)
	}
	b.Commit("def", "second", nil, nil)
	if s := b.Snapshot(); s.Computing != "" || s.Time.IsZero() {
		t.Errorf("%+v", s)
	}
}
