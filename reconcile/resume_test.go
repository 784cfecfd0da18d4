package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
)

// resting makes a fleet of two clusters that a daemon has brought to rest.
func resting(t *testing.T) (w *world, dir string) {
	t.Helper()
	w, dir = newWorld(t), t.TempDir()
	w.commit("fleet", map[string]string{"clusters.yaml": registry("a", "b")}, cluster("a", "v1"), cluster("b", "v1"))
	for _, name := range []string{"a", "b"} {
		w.gives(name, unit.Outcome{Phase: status.Ready, Checkpoint: &apply.Checkpoint{Namespaces: []string{name}}})
	}
	if err := w.daemon(keeping(dir)).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied, w.asked, w.fetched = make(map[string][]string), 0, 0
	return w, dir
}

// keeping has a daemon keep checkpoints.
func keeping(dir string) func(*Config) {
	return func(c *Config) { c.Checkpoints, c.Settings = &checkpoint.Store{Dir: dir}, "the program" }
}

// A daemon that starts where another left off computes nothing if the clusters
// are as they were, and everything as soon as something is not as it was.
func TestResume(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		change  func(t *testing.T, w *world, dir string)
		config  func(*Config)
		resumed bool   // the state
		applied bool   // to both clusters
		fails   string // the error of Once
	}{
		{name: "nothing changed", resumed: true},
		{name: "a cluster was changed", resumed: true, applied: true, change: func(_ *testing.T, w *world, _ string) {
			w.onResume["b"] = func(context.Context) unit.Outcome { return unit.Outcome{Moved: true} }
		}},
		{name: "a cluster is away", resumed: true, fails: "cluster b: Unreachable: away", change: func(_ *testing.T, w *world, _ string) {
			w.onResume["b"] = func(context.Context) unit.Outcome { return unit.Outcome{Phase: status.Unreachable, Message: "away"} }
		}},
		{name: "commit of another version", applied: true, change: func(_ *testing.T, w *world, _ string) { w.commit("bump", cluster("a", "v2")) }},
		{name: "commit of any file", applied: true, change: func(_ *testing.T, w *world, _ string) { w.commit("docs", map[string]string{"README.md": "hello"}) }},
		{name: "commit of the lock", applied: true, change: func(t *testing.T, w *world, _ string) {
			text, err := w.repo.Git(t.Context(), "show", "main:clusters.lock")
			if err != nil {
				t.Fatal(err)
			}
			w.commit("edit", map[string]string{"clusters.lock": strings.ReplaceAll(text, "@b", "@c") + "\n"})
		}},
		{name: "records of an interrupted run", applied: true, change: func(t *testing.T, w *world, _ string) {
			d := w.daemon(nil)
			if err := d.cfg.Repository.WritePending(t.Context(), []byte("reg.example.com/q v1 sha256:"+strings.Repeat("0", 64)+"\n")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "other settings", applied: true, config: func(c *Config) { c.Settings = "another program" }},
		{name: "no checkpoints", applied: true, config: func(c *Config) { c.Checkpoints = nil }},
		{name: "one is missing", applied: true, change: func(t *testing.T, _ *world, dir string) {
			if err := os.Remove(filepath.Join(dir, "b.json")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "one is garbled", applied: true, change: func(t *testing.T, _ *world, dir string) {
			text, err := os.ReadFile(filepath.Join(dir, "a.json"))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "a.json"), text[:len(text)/2], 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, dir := resting(t)
			if tt.change != nil {
				tt.change(t, w, dir)
			}
			d := w.daemon(func(c *Config) {
				keeping(dir)(c)
				if tt.config != nil {
					tt.config(c)
				}
			})
			err := d.Once(t.Context(), 0)
			if tt.fails == "" && err != nil || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails)) {
				t.Errorf("error: %v", err)
			}
			if resumed := w.resumed["a"]+w.resumed["b"] > 0; resumed != tt.resumed {
				t.Errorf("resumed: %v", resumed)
			}
			for _, name := range []string{"a", "b"} {
				if applied := len(w.applied[name]) > 0; applied != tt.applied {
					t.Errorf("applied to %s: %v", name, applied)
				}
			}
			if computed := w.fetched > 0; computed != tt.applied {
				t.Errorf("packages were read: %v", computed)
			}
			for _, c := range d.cfg.Board.Snapshot().Clusters {
				want := status.Ready
				if tt.fails != "" && c.Name == "b" {
					want = status.Unreachable
				}
				if c.Phase != want || len(c.Packages) != 1 || c.Packages[0].State != string(want) {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}

// A cluster that has a commit already is looked after although one that it depends on is down
// when the daemon starts.
func TestResumedDependent(t *testing.T) {
	t.Parallel()
	for _, computed := range []bool{false, true} {
		w, dir := newWorld(t), t.TempDir()
		ready := unit.Outcome{Phase: status.Ready, Checkpoint: &apply.Checkpoint{Namespaces: []string{"x"}}}
		w.commit("fleet", map[string]string{"clusters.yaml": strings.Replace(registry("a", "b"), "  path: c/b\n", "  path: c/b\n  dependsOn: [a]\n", 1)}, cluster("a", "v1"), cluster("b", "v1"))
		w.gives("a", ready)
		w.gives("b", ready)
		if err := w.daemon(keeping(dir)).Once(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.applied = make(map[string][]string)
		w.onResume["a"] = func(context.Context) unit.Outcome { return unit.Outcome{Phase: status.Unreachable, Message: "away"} }
		w.mu.Unlock()
		w.gives("a", unit.Outcome{Phase: status.Unreachable, Message: "away"})
		if computed {
			if err := os.Remove(filepath.Join(dir, "a.json")); err != nil {
				t.Fatal(err)
			}
		}
		d := w.daemon(keeping(dir))
		w.start(d)
		w.eventually("b is looked after", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.resumed["b"] > 0 && !computed || len(w.applied["b"]) > 0
		})
		// A commit that it does not have waits.
		w.commit("bump", cluster("b", "v2"))
		w.eventually("it waits", func() bool { return phase(d, "b") == status.Waiting })
		if slices.ContainsFunc(w.appliedTo("b"), func(what string) bool { return strings.HasPrefix(what, "v2") }) {
			t.Errorf("b got %q", w.appliedTo("b"))
		}
	}
}

// What a cluster at rest is to have is computed when it stirs, and then for all.
func TestResumedStirs(t *testing.T) {
	t.Parallel()
	w, dir := resting(t)
	d := w.daemon(keeping(dir))
	w.start(d)
	w.eventually("both are resumed, more than once", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.resumed["a"] > 1 && w.resumed["b"] > 1 && w.notify["a"] != nil
	})
	if w.appliedTo("a") != nil || w.appliedTo("b") != nil {
		t.Error("applied to clusters at rest")
	}
	w.mu.Lock()
	stir := w.notify["a"]
	w.mu.Unlock()
	w.eventually("both are applied to", func() bool {
		stir() // more than once: an attempt that begins now may be taken for the answer
		return len(w.appliedTo("a")) > 0 && len(w.appliedTo("b")) > 0
	})
}

// Clusters are kept as they were left by a commit that can be read, also where the
// newest cannot.
func TestResumedBeforeBrokenCommit(t *testing.T) {
	t.Parallel()
	w, dir := resting(t)
	d := w.daemon(keeping(dir))
	w.start(d)
	w.eventually("both are resumed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.resumed["a"] > 0 && w.resumed["b"] > 0
	})
	w.commit("break it", map[string]string{"clusters.lock": "no lock\n"})
	w.eventually("both are applied to, as they were", func() bool {
		return slices.Contains(w.appliedTo("a"), "v1 "+sources.DigestOf([]byte("v1one")).Short()) && len(w.appliedTo("b")) > 0
	})
	w.eventually("it is told", func() bool {
		problems := d.cfg.Board.Snapshot().Problems
		return len(problems) == 1 && strings.Contains(problems[0].Reason, "clusters.lock")
	})
}

// What changes always, or waits for somebody, is looked at by every start.
func TestNothingToResume(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{"tags are followed": "packagePullPolicy: Always", "resumed": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorld(t), t.TempDir()
			files := cluster("a", "v1")
			files["c/a/p.yaml"] = strings.Replace(files["c/a/p.yaml"], "v1}", "v1, "+policy+"}", 1)
			w.commit("fleet", map[string]string{"clusters.yaml": registry("a")}, files)
			w.gives("a", unit.Outcome{Phase: status.Ready, Checkpoint: &apply.Checkpoint{}})
			for range 2 {
				if err := w.daemon(keeping(dir)).Once(t.Context(), 0); err != nil {
					t.Fatal(err)
				}
			}
			want := 2
			if policy == "" {
				want = 1
			}
			if n := len(w.appliedTo("a")); n != want {
				t.Errorf("applied %d times", n)
			}
		})
	}
}

// The problems of a suspended cluster are told after a restart, too.
func TestSuspendedKeepsProblems(t *testing.T) {
	t.Parallel()
	w, dir := newWorld(t), t.TempDir()
	suspended := strings.Replace(registry("b"), "path: c/b", "path: c/b\n  suspend: true", 1)
	w.before = func(_ context.Context, what string) error {
		if what == "missing" {
			return errors.New("there is no such tag")
		}
		return nil
	}
	w.commit("fleet", map[string]string{"clusters.yaml": registry("a") + "---\n" + suspended}, cluster("a", "v1"), cluster("b", "missing"))
	w.gives("a", unit.Outcome{Phase: status.Ready, Checkpoint: &apply.Checkpoint{Namespaces: []string{"a"}}})
	for range 2 {
		d := w.daemon(keeping(dir))
		err := d.Once(t.Context(), 0)
		s := d.cfg.Board.Snapshot()
		if err == nil || !strings.Contains(strings.Join(s.Unready(), "\n"), "cluster b: package p: there is no such tag") {
			t.Errorf("%v, unready: %q", err, s.Unready())
		}
	}

	// Without problems, the fleet is resumed.
	w.commit("correct", cluster("b", "v1"))
	for range 2 {
		if err := w.daemon(keeping(dir)).Once(t.Context(), 0); err != nil {
			t.Error(err)
		}
	}
	if w.resumed["a"] != 1 {
		t.Errorf("resumed %v", w.resumed)
	}
}

// The checkpoint of a cluster that left goes.
func TestForget(t *testing.T) {
	t.Parallel()
	w, dir := resting(t)
	d := w.daemon(keeping(dir))
	w.start(d)
	w.eventually("it is resumed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.resumed["b"] > 0
	})
	w.commit("b leaves", map[string]string{"clusters.yaml": registry("a")})
	w.eventually("its checkpoint is gone", func() bool {
		_, err := os.Stat(filepath.Join(dir, "b.json"))
		return os.IsNotExist(err)
	})
	if _, err := os.Stat(filepath.Join(dir, "a.json")); err != nil {
		t.Error(err)
	}
}

// The checkpoint of a cluster goes when there is something to do for it that its looks
// do not tell: a process that starts has to compute it. One that is away keeps it.
func TestCheckpointIsTakenBack(t *testing.T) {
	t.Parallel()
	for phase, kept := range map[status.Phase]bool{status.Ready: false, status.Progressing: false, status.Failed: false, status.Unreachable: true} {
		w, dir := resting(t)
		w.onResume["b"] = func(context.Context) unit.Outcome { return unit.Outcome{Moved: true} }
		w.gives("a", unit.Outcome{Phase: phase})
		d := w.daemon(keeping(dir))
		if err := d.Once(t.Context(), 0); err != nil && phase != status.Failed && phase != status.Unreachable {
			t.Error(err)
		}
		if got := len(w.appliedTo("a")) > 0; !got {
			t.Errorf("%s: nothing was computed", phase)
		}
		if _, err := os.Stat(filepath.Join(dir, "a.json")); (err == nil) != kept {
			t.Errorf("%s: checkpoint: %v, want it kept: %v", phase, err, kept)
		}
		if _, err := os.Stat(filepath.Join(dir, "b.json")); err != nil {
			t.Error(err)
		}
	}
}

// A cache that cannot be written to is told once, and keeps nobody from anything.
func TestUnwritableCheckpoints(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("fleet", map[string]string{"clusters.yaml": registry("a")}, cluster("a", "v1"))
	w.gives("a", unit.Outcome{Phase: status.Ready, Checkpoint: &apply.Checkpoint{}})
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	stop := w.start(w.daemon(func(c *Config) {
		keeping(filepath.Join(file, "below"))(c)
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	}))
	w.eventually("several passes", func() bool { return len(w.appliedTo("a")) > 3 })
	stop()
	if n := strings.Count(log.String(), "the next start will compute everything"); n != 1 {
		t.Errorf("told %d times:\n%s", n, &log)
	}
}

// While the repository is out of reach a cluster that is disturbed after a restart
// is put right all the same: the commit is there.
func TestMovedWhileTheRepositoryIsAway(t *testing.T) {
	t.Parallel()
	w, dir := resting(t)
	w.start(w.daemon(keeping(dir)))
	w.eventually("the clusters were looked at", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.resumed["a"] > 0 && w.resumed["b"] > 0
	})
	w.git.Close()
	w.mu.Lock()
	w.onResume["b"] = func(context.Context) unit.Outcome { return unit.Outcome{Moved: true} }
	w.mu.Unlock()
	w.eventually("b is put right", func() bool { return len(w.appliedTo("b")) > 0 })
}
