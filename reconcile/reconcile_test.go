package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/turn"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/git"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/gitserver"
)

// world is a fleet repository on a real Git server, a registry of one package
// whose tag can be moved, and clusters that note what they are given.
type world struct {
	t    *testing.T
	git  *gitserver.Server
	repo *gitserver.Repo

	mu       sync.Mutex
	content  string // of the package, now
	asked    int    // look-ups of the tag
	applied  map[string][]string
	behave   map[string]func(ctx context.Context) unit.Outcome
	connects map[string]int
	notify   map[string]func()
	fetched  int
	served   []string
	homes    bool // every cluster is a home
	resumed  map[string]int
	onResume map[string]func(ctx context.Context) unit.Outcome
	// before goes before each look-up of a tag and each fetch of a digest, if there
	// is one.
	before func(ctx context.Context, tag string) error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server := gitserver.Start(t, gitserver.Config{})
	repo, err := server.Create(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, git: server, repo: repo, content: "one", applied: make(map[string][]string),
		behave: make(map[string]func(context.Context) unit.Outcome), connects: make(map[string]int), notify: make(map[string]func()),
		resumed: make(map[string]int), onResume: make(map[string]func(context.Context) unit.Outcome)}
}

func cluster(name, version string) map[string]string {
	return map[string]string{
		"c/" + name + "/kustomization.yaml": "resources: [p.yaml]\n",
		"c/" + name + "/p.yaml":             "apiVersion: pkg.crossplane.io/v1\nkind: Configuration\nmetadata: {name: p}\nspec: {package: reg.example.com/p:" + version + "}\n",
	}
}

func registry(names ...string) string {
	var docs []string
	for _, n := range names {
		docs = append(docs, fmt.Sprintf("apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: %s}\nspec:\n  path: c/%s\n  kubeconfig: {file: %s}\n", n, n, n))
	}
	return strings.Join(docs, "---\n")
}

func (w *world) commit(message string, files ...map[string]string) string {
	w.t.Helper()
	all := make(map[string]string)
	for _, f := range files {
		for name, text := range f {
			all[name] = text
		}
	}
	hash, err := w.repo.Commit(w.t.Context(), "main", message, all)
	if err != nil {
		w.t.Fatal(err)
	}
	return hash
}

// daemon makes a daemon with a cache of its own, as after a restart on another
// machine.
func (w *world) daemon(change func(*Config)) *Daemon {
	w.t.Helper()
	repo, err := git.Open(git.Config{URL: w.git.URL("fleet"), Branch: "main", Dir: filepath.Join(w.t.TempDir(), "git")})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { repo.Close() })
	computer := desired.New(desired.Config{Resolve: resolve.Config{
		Digest: func(ctx context.Context, _ sources.Origin, tag string) (sources.Digest, error) {
			if err := w.wait(ctx, tag); err != nil {
				return "", err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.asked++
			return sources.DigestOf([]byte(tag + w.content)), nil
		},
		Fetch: func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			if err := w.wait(ctx, string(d)); err != nil {
				return nil, err
			}
			w.mu.Lock()
			w.fetched++
			w.mu.Unlock()
			return &sources.Package{Repository: from.Repository, Digest: d, Content: d, Meta: sources.PackageMeta{Kind: sources.Configuration, Name: "p"}}, nil
		},
		Tags: func(context.Context, sources.Origin) ([]string, error) { return nil, errors.New("not asked for here") },
	}})
	cfg := Config{
		Repository: repo, Computer: computer, Board: status.NewBoard("test", "fleet", "main"),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Interval: 20 * time.Millisecond,
		Connect: func(_ context.Context, c *desired.Unit) (Connection, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.connects[c.Name]++
			return &notingConnection{w: w, name: c.Name}, nil
		},
	}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

func (w *world) wait(ctx context.Context, what string) error {
	w.mu.Lock()
	before := w.before
	w.mu.Unlock()
	if before == nil {
		return nil
	}
	return before(ctx, what)
}

// start runs the daemon until the test ends, or stop is called.
func (w *world) start(d *Daemon) (stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(stop)
	return stop
}

type notingConnection struct {
	w    *world
	name string
}

func (t *notingConnection) Apply(ctx context.Context, want *desired.Unit) unit.Outcome {
	t.w.mu.Lock()
	var what []string
	for _, p := range want.Packages {
		what = append(what, p.Pin.Ref.Tag+" "+p.Pin.Digest.Short())
	}
	t.w.applied[t.name] = append(t.w.applied[t.name], strings.Join(what, ", "))
	behave := t.w.behave[t.name]
	t.w.mu.Unlock()
	if behave != nil {
		return behave(ctx)
	}
	return unit.Outcome{Phase: status.Ready}
}

func (t *notingConnection) Serve(context.Context, *desired.Unit) (bool, error) {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.served = append(t.w.served, t.name)
	return t.w.homes, nil
}

func (t *notingConnection) Resume(ctx context.Context, at *checkpoint.Record) unit.Outcome {
	t.w.mu.Lock()
	t.w.resumed[t.name]++
	behave := t.w.onResume[t.name]
	t.w.mu.Unlock()
	if behave != nil {
		return behave(ctx)
	}
	return unit.Outcome{Phase: status.Ready}
}

func (t *notingConnection) Follow(ctx context.Context, notify func()) {
	t.w.mu.Lock()
	t.w.notify[t.name] = notify
	t.w.mu.Unlock()
	<-ctx.Done()
}

func (t *notingConnection) Close() {}

func (t *notingConnection) Rest() {}

func (w *world) appliedTo(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.applied[name])
}

func (w *world) set(name string, behave func(context.Context) unit.Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.behave[name] = behave
}

// gives has each attempt at a cluster give an outcome.
func (w *world) gives(name string, o unit.Outcome) {
	w.set(name, func(context.Context) unit.Outcome { return o })
}

// eventually waits for a condition, for as long as the test may take.
func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	await.True(w.t, what, ok)
}

func (w *world) log() []string {
	w.t.Helper()
	log, err := w.repo.Log(w.t.Context(), "main")
	if err != nil {
		w.t.Fatal(err)
	}
	return log
}

func (w *world) show(path string) string {
	w.t.Helper()
	text, err := w.repo.Git(w.t.Context(), "show", "main:"+path)
	if err != nil {
		w.t.Fatal(err)
	}
	return text
}

func phase(d *Daemon, name string) status.Phase {
	for _, c := range d.cfg.Board.Snapshot().Clusters {
		if c.Name == name {
			return c.Phase
		}
	}
	return ""
}

// The lock is one commit of one file; what follows it changes nothing.
func TestLockIsCommittedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v2"))
	d := w.daemon(nil)
	w.start(d)
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })
	if subject := w.log()[0]; subject != "Lock p v1, p v2" {
		t.Errorf("subject %q", subject)
	}
	files, err := w.repo.Git(t.Context(), "diff", "--name-only", "main^", "main")
	if err != nil || files != "clusters.lock" {
		t.Errorf("the commit changes %q, %v", files, err)
	}
	lock := w.show("clusters.lock")
	if !strings.HasPrefix(lock, "@dev reg.example.com/p v1\n@prod reg.example.com/p v2\nreg.example.com/p v1 sha256:") {
		t.Errorf("lock\n%s", lock)
	}
	tries := len(w.appliedTo("dev"))
	w.eventually("several more passes", func() bool { return len(w.appliedTo("dev")) > tries+5 })
	if n := len(w.log()); n != 2 {
		t.Errorf("%d commits after more passes: %q", n, w.log())
	}
	if w.asked != 2 {
		t.Errorf("the registry was asked %d times for two references", w.asked)
	}
	if refs, err := w.repo.Git(t.Context(), "for-each-ref", "refs/gitopsd"); err != nil || refs != "" {
		t.Errorf("pending records stay behind: %s %v", refs, err)
	}
}

// One cluster that hangs holds up neither the others nor the lock.
func TestOneClusterHangs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	w.set("dev", func(ctx context.Context) unit.Outcome {
		<-ctx.Done()
		return unit.Outcome{Phase: status.Failed}
	})
	d := w.daemon(func(c *Config) { c.LockGrace = 50 * time.Millisecond })
	w.start(d)
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })
	w.eventually("prod is tried again and again", func() bool { return len(w.appliedTo("prod")) > 3 })
	if phase(d, "prod") != status.Ready {
		t.Errorf("prod is %s", phase(d, "prod"))
	}
	if n := len(w.appliedTo("dev")); n != 1 {
		t.Errorf("dev was tried %d times while it hangs", n)
	}
	// A newer commit gives up on the attempt for the older one.
	w.set("dev", nil)
	w.commit("bump", cluster("dev", "v2"))
	w.eventually("dev has the newer commit", func() bool {
		all := w.appliedTo("dev")
		return strings.HasPrefix(all[len(all)-1], "v2 ") && phase(d, "dev") == status.Ready
	})
}

// A commit that cannot be read, and one cluster's error in it, leave the rest
// as it is.
func TestBrokenCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	d := w.daemon(nil)
	w.start(d)
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })

	good := w.show("clusters.lock") + "\n"
	w.commit("garble the lock", map[string]string{"clusters.lock": good[:len(good)-20]})
	w.eventually("the error is reported", func() bool {
		s := d.cfg.Board.Snapshot()
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Reason, "clusters.lock:") && s.Stuck()
	})
	tries := len(w.appliedTo("dev"))
	w.eventually("dev goes on with what it had", func() bool { return len(w.appliedTo("dev")) > tries+2 })

	w.commit("mend the lock, break prod", map[string]string{"clusters.lock": good, "c/prod/p.yaml": "kind: [\n"}, cluster("dev", "v2"))
	w.eventually("dev is bumped", func() bool {
		all := w.appliedTo("dev")
		return strings.HasPrefix(all[len(all)-1], "v2 ")
	})
	w.eventually("prod has failed", func() bool { return phase(d, "prod") == status.Failed })
	w.eventually("the lock of dev alone changes", func() bool {
		return strings.Contains(w.show("clusters.lock"), "@dev reg.example.com/p v2\n@prod reg.example.com/p v1\n")
	})
	if all := w.appliedTo("prod"); slices.ContainsFunc(all, func(s string) bool { return s == "" }) {
		t.Errorf("prod was given an empty state: %q", all)
	}
}

// A cluster that leaves the registry is left alone; one whose document is broken
// did not leave.
func TestClusterLeaves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	d := w.daemon(nil)
	w.start(d)
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })
	w.commit("break prod's document", map[string]string{"clusters.yaml": strings.Replace(registry("dev", "prod"), "path: c/prod", "paht: c/prod", 1)})
	w.eventually("prod has failed", func() bool { return phase(d, "prod") == status.Failed })
	if !strings.Contains(w.show("clusters.lock"), "@prod ") {
		t.Error("a broken document took prod out of the lock")
	}
	w.commit("drop prod", map[string]string{"clusters.yaml": registry("dev")})
	w.eventually("prod has left the lock", func() bool { return !strings.Contains(w.show("clusters.lock"), "@prod ") })
	if phase(d, "prod") != "" {
		t.Errorf("prod is still %s", phase(d, "prod"))
	}
	tries := len(w.appliedTo("prod"))
	n := len(w.appliedTo("dev"))
	w.eventually("dev goes on", func() bool { return len(w.appliedTo("dev")) > n+3 })
	if len(w.appliedTo("prod")) != tries {
		t.Error("prod is still worked on")
	}
}

// A cluster that was disturbed is looked at without waiting for the interval.
func TestDisturbedCluster(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	w.gives("dev", unit.Outcome{Phase: status.Ready, Changed: 1})
	d := w.daemon(func(c *Config) { c.Interval = time.Hour })
	w.start(d)
	w.eventually("dev is ready", func() bool { return phase(d, "dev") == status.Ready })
	var notify func()
	w.eventually("dev is followed", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		notify = w.notify["dev"]
		return notify != nil
	})
	for tries := 2; tries <= 4; tries++ {
		notify()
		w.eventually("dev is looked at again", func() bool { return len(w.appliedTo("dev")) == tries })
	}
}

// Corrections that are undone at once are made ever more slowly.
func TestNextBrake(t *testing.T) {
	for _, tt := range []struct {
		brake   time.Duration
		changed int
		want    time.Duration
	}{
		{0, 0, 0}, {0, 1, firstBrake}, {firstBrake, 3, 2 * firstBrake}, {firstBrake, 0, firstBrake}, {20 * time.Second, 1, 30 * time.Second},
	} {
		if have := nextBrake(tt.brake, tt.changed, 30*time.Second); have != tt.want {
			t.Errorf("after %s and %d changes: %s, want %s", tt.brake, tt.changed, have, tt.want)
		}
	}
}

// A cluster waits for those that it depends on.
func TestDependsOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": strings.Replace(registry("dev", "prod"), "  path: c/prod\n", "  path: c/prod\n  dependsOn: [dev]\n", 1)},
		cluster("dev", "v1"), cluster("prod", "v1"))
	w.gives("dev", unit.Outcome{Phase: status.Failed, Message: "no"})
	d := w.daemon(nil)
	w.start(d)
	w.eventually("prod waits", func() bool { return phase(d, "prod") == status.Waiting })
	if n := len(w.appliedTo("prod")); n != 0 {
		t.Errorf("prod was tried %d times", n)
	}
	w.set("dev", nil)
	w.eventually("prod is ready", func() bool { return phase(d, "prod") == status.Ready })
}

// Once makes one pass, and says what failed.
func TestOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	w.gives("dev", unit.Outcome{Phase: status.Unreachable, Message: "connection refused"})
	err := w.daemon(nil).Once(t.Context(), 0)
	if err == nil || !strings.Contains(err.Error(), "cluster dev: Unreachable: connection refused") {
		t.Errorf("error %v", err)
	}
	if len(w.log()) != 2 {
		t.Errorf("commits %q", w.log())
	}
	w.set("dev", nil)
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil {
		t.Error(err)
	}
	if len(w.log()) != 2 {
		t.Errorf("a second pass commits: %q", w.log())
	}
}

// Problems that Once returns are not logged. Problems that it does not return are logged, also
// those of a pass that is interrupted.
func TestOnceReports(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod", "typo") + "nonsense: 1\n"}, cluster("dev", "v1"), cluster("prod", "v1"))
	refused := problem.Problem{Cluster: "dev", Object: "configmap/a/b", Origin: "c/dev/b.yaml:1", Reason: "refused"}
	w.gives("dev", unit.Outcome{Phase: status.Failed, Message: "1 of 2 objects failed to apply", Problems: []problem.Problem{refused}})
	w.gives("prod", unit.Outcome{Phase: status.Degraded, Message: "1 object has failed", Problems: []problem.Problem{{Cluster: "prod", Object: "deployment/a/b", Reason: "crashes"}}})
	once := func(ctx context.Context) (text string, err error) {
		var log bytes.Buffer
		err = w.daemon(func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).Once(ctx, 0)
		return log.String(), err
	}
	text, err := once(t.Context())
	if err == nil || !strings.Contains(err.Error(), "refused (c/dev/b.yaml:1)") || !strings.Contains(err.Error(), "nonsense") || strings.Contains(err.Error(), "crashes") {
		t.Errorf("error %v", err)
	}
	if strings.Contains(text, "reason=refused") || strings.Contains(text, "nonsense") || !strings.Contains(text, "reason=crashes") {
		t.Errorf("the log has what is returned, or lacks the rest:\n%s", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w.set("prod", func(context.Context) unit.Outcome {
		cancel()
		return unit.Outcome{Phase: status.Ready}
	})
	text, err = once(ctx)
	if err == nil || strings.Contains(text, "nonsense") == strings.Contains(err.Error(), "nonsense") {
		t.Errorf("interrupted: what is wrong is not in the log or the error alone: %v\n%s", err, text)
	}
}

// Problems of a commit that was overtaken by a push are neither returned nor logged at the end.
func TestOnceDropsOvertakenProblems(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "typo") + "nonsense: 1\n"}, cluster("dev", "v1"))
	attempts := 0
	w.set("dev", func(context.Context) unit.Outcome {
		if attempts++; attempts > 1 {
			return unit.Outcome{Phase: status.Ready}
		}
		if _, err := w.repo.Commit(t.Context(), "main", "mend", map[string]string{"clusters.yaml": registry("dev")}); err != nil {
			t.Error(err)
		}
		return unit.Outcome{Phase: status.Failed, Message: "1 object failed to apply", Problems: []problem.Problem{{Cluster: "dev", Object: "configmap/a/b", Reason: "refused"}}}
	})
	var log bytes.Buffer
	err := w.daemon(func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).Once(t.Context(), 0)
	if err != nil || attempts < 2 {
		t.Errorf("%d attempts, error %v", attempts, err)
	}
	if text := log.String(); strings.Contains(text, "nonsense") || strings.Contains(text, "refused") {
		t.Errorf("the log has problems of the first commit:\n%s", text)
	}
}

// A problem that several clusters share is logged once, and not again when fewer clusters have
// it. If another cluster gets it, it is logged for that one.
func TestSharedProblems(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	d := &Daemon{cfg: Config{Board: status.NewBoard("test", "fleet", "main"), Log: slog.New(slog.NewTextHandler(&log, nil))}}
	d.workers = newWorkers(d.cfg)
	for _, tt := range []struct {
		clusters, want string
	}{
		{"a b c", "msg=problem package=p reason=late origin=\"a.yaml:1, b.yaml:1, c.yaml:1\""},
		{"a b", ""},
		{"a b d", "msg=problem cluster=d package=p reason=late origin=d.yaml:1"},
	} {
		s := &desired.State{Registry: new(clusters.Registry), Committed: new(lockfile.File)}
		for name := range strings.FieldsSeq(tt.clusters) {
			s.Clusters = append(s.Clusters, &desired.Unit{ID: desired.ID{Name: name}, Faults: []problem.Problem{{Cluster: name, Package: "p", Reason: "late", Origin: name + ".yaml:1"}}})
		}
		log.Reset()
		d.follow(&revision{state: s})
		_, have, _ := strings.Cut(log.String(), "msg=problem")
		if want := strings.TrimPrefix(tt.want, "msg=problem"); strings.TrimSpace(have) != strings.TrimSpace(want) {
			t.Errorf("%s:\n%s\nwant\n%s", tt.clusters, log.String(), tt.want)
		}
	}
}

// With patience Once works until everything is Ready, including a cluster that did not answer and
// one that waited for another. When the time is over, it returns what is not Ready.
func TestOnceWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	after := strings.Replace(registry("dev", "prod"), "path: c/prod", "path: c/prod\n  dependsOn: [dev]", 1)
	w.commit("start", map[string]string{"clusters.yaml": after}, cluster("dev", "v1"), cluster("prod", "v1"))
	var n atomic.Int32
	w.set("dev", func(context.Context) unit.Outcome {
		switch n.Add(1) {
		case 1:
			return unit.Outcome{Phase: status.Unreachable, Message: "connection refused"}
		case 2:
			return unit.Outcome{Phase: status.Progressing, Message: "1 object is not ready yet"}
		}
		return unit.Outcome{Phase: status.Ready}
	})
	d := w.daemon(nil)
	if err := d.Once(t.Context(), time.Minute); err != nil {
		t.Error(err)
	}
	if s := d.cfg.Board.Snapshot(); len(s.Unready()) > 0 {
		t.Errorf("not ready: %q", s.Unready())
	}
	if len(w.log()) != 2 {
		t.Errorf("commits %q", w.log())
	}
	w.gives("dev", unit.Outcome{Phase: status.Progressing, Message: "1 object is not ready yet"})
	err := w.daemon(nil).Once(t.Context(), 100*time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "not everything is Ready after 100ms\ncluster dev: Progressing: 1 object is not ready yet\ncluster prod: Waiting: waits for cluster dev") {
		t.Errorf("error %v", err)
	}
	// A commit that comes meanwhile is followed, too.
	n.Store(2)
	w.set("dev", func(context.Context) unit.Outcome {
		if n.Add(1) == 4 {
			if _, err := w.repo.Commit(t.Context(), "main", "next", cluster("dev", "v2")); err != nil {
				t.Error(err)
			}
		}
		if n.Load() < 6 {
			return unit.Outcome{Phase: status.Progressing, Message: "not yet"}
		}
		return unit.Outcome{Phase: status.Ready}
	})
	d = w.daemon(nil)
	if err := d.Once(t.Context(), time.Minute); err != nil || d.cfg.Board.Snapshot().Subject != "next" {
		t.Errorf("%v %+v", err, d.cfg.Board.Snapshot())
	}
}

// A push to the branch in the middle of a pass: the lock is committed on top of
// it with what that commit selects, and one Once brings the clusters there too.
func TestBranchMovesDuringAPass(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		run  func(w *world, d *Daemon)
	}{
		{"a daemon", func(w *world, d *Daemon) { w.start(d) }},
		{"one run", func(w *world, d *Daemon) {
			if err := d.Once(w.t.Context(), 0); err != nil {
				w.t.Error(err)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
			var once sync.Once
			w.set("dev", func(context.Context) unit.Outcome {
				once.Do(func() {
					if _, err := w.repo.Commit(context.WithoutCancel(w.t.Context()), "main", "meanwhile", cluster("dev", "v2")); err != nil {
						w.t.Error(err)
					}
				})
				return unit.Outcome{Phase: status.Ready}
			})
			tt.run(w, w.daemon(nil))
			w.eventually("the cluster gets what was pushed", func() bool {
				return slices.ContainsFunc(w.appliedTo("dev"), func(what string) bool { return strings.HasPrefix(what, "v2 ") })
			})
			w.eventually("the lock is committed", func() bool { return len(w.log()) == 3 })
			lock := w.lock()
			if !strings.HasPrefix(lock, "@dev reg.example.com/p v2\n") || !strings.Contains(lock, "\nreg.example.com/p v1 ") || !strings.Contains(lock, "\nreg.example.com/p v2 ") {
				t.Errorf("the first lock commit has\n%s", lock)
			}
			if log := w.log(); log[len(log)-2] != "meanwhile" {
				t.Errorf("history %q", log)
			}
		})
	}
}

func TestReadonlyLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	d := w.daemon(func(c *Config) { c.ReadonlyLock = true })
	if err := d.Once(t.Context(), 0); err != nil {
		t.Error(err)
	}
	refs, err := w.repo.Git(t.Context(), "for-each-ref", "--format=%(refname)")
	if err != nil || refs != "refs/heads/main" || len(w.log()) != 1 {
		t.Errorf("refs %q, log %q, %v", refs, w.log(), err)
	}
}

// removing is a registry in which some clusters are to be emptied.
func removing(text string, names ...string) map[string]string {
	for _, n := range names {
		text = strings.Replace(text, "{name: "+n+"}", "{name: "+n+", annotations: {gitopsd.dev/remove: "+n+"}}", 1)
	}
	return map[string]string{"clusters.yaml": text}
}

// A cluster is emptied at the word of its document, and of nothing else; a daemon
// that never saw it otherwise goes on with it, whether or not the lock knows it.
func TestRemove(t *testing.T) {
	t.Parallel()
	both := registry("a", "b")
	for _, tt := range []struct {
		name   string
		change map[string]string
		// emptied says that b is asked to hold nothing; left that the lock
		// forgets it.
		emptied, left bool
		phase         status.Phase
	}{
		{name: "asked for", change: removing(both, "b"), emptied: true, left: true, phase: status.Ready},
		{name: "taken out of the file", change: map[string]string{"clusters.yaml": registry("a")}, left: true},
		{name: "renamed to an invalid name", change: map[string]string{"clusters.yaml": strings.Replace(both, "{name: b}", "{name: US_East}", 1)}, phase: status.Failed},
		{name: "renamed to another's name", change: map[string]string{"clusters.yaml": strings.Replace(both, "{name: b}", "{name: a}", 1)}, phase: status.Failed},
		{name: "cut off", change: map[string]string{"clusters.yaml": both[:strings.Index(both, "---\n")+4]}, phase: status.Failed},
		{name: "empty", change: map[string]string{"clusters.yaml": ""}, phase: status.Failed},
		{name: "asked for beside a mistake", change: removing(registry("a", "b", "Not_Valid"), "b"), phase: status.Failed},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", tt.name, restart), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.commit("Start", map[string]string{"clusters.yaml": both}, cluster("a", "v1"), cluster("b", "v1"))
				d := w.daemon(nil)
				stop := w.start(d)
				w.eventually("the lock is committed", func() bool { return strings.Contains(w.lock(), "@b ") })
				if restart {
					stop()
				}
				before := len(w.appliedTo("b"))
				w.commit("Change the registry", tt.change)
				if restart {
					d = w.daemon(nil)
					w.start(d)
				}
				w.eventually("the commit is in charge", func() bool { return d.cfg.Board.Snapshot().Subject != "Start" && phase(d, "b") == tt.phase })
				if tt.left {
					w.eventually("the lock forgets it", func() bool { return !strings.Contains(w.lock(), "@b ") })
				} else if !strings.Contains(w.lock(), "@b ") {
					t.Error("the lock forgot it")
				}
				if tt.emptied {
					// Attempts with packages may have begun before the commit was seen.
					w.eventually("it is asked to hold nothing", func() bool { return slices.Contains(w.appliedTo("b")[before:], "") })
				} else if slices.Contains(w.appliedTo("b"), "") {
					t.Error("it was asked to hold nothing")
				}
			})
		}
	}
}

// A cluster that is to be emptied and cannot be reached says so, and what to do if
// it is gone for good.
func TestRemoveGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("Start", removing(registry("a", "b"), "b"), cluster("a", "v1"))
	d := w.daemon(func(c *Config) {
		connect := c.Connect
		c.Connect = func(ctx context.Context, cl *desired.Unit) (Connection, error) {
			if cl.Name == "b" {
				return nil, errors.New("its Secret is not there")
			}
			return connect(ctx, cl)
		}
	})
	err := d.Once(t.Context(), 0)
	if err == nil || !strings.Contains(err.Error(), "cluster b: Unreachable: its Secret is not there; if there is no such cluster any more, take its document out of clusters.yaml") {
		t.Errorf("error %v", err)
	}
	if len(w.appliedTo("a")) == 0 {
		t.Error("a was not tried")
	}
}

// lock is the lock on the branch, empty before there is one.
func (w *world) lock() string {
	text, err := w.repo.Git(w.t.Context(), "show", "main:clusters.lock")
	if err != nil {
		return ""
	}
	return text
}

// Clusters that are known not to answer take no worker from those that do.
func TestSuspectsHoldNoWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("a", "b", "c")}, cluster("a", "v1"), cluster("b", "v1"), cluster("c", "v1"))
	for _, bad := range []string{"a", "b"} {
		tried := false
		w.set(bad, func(ctx context.Context) unit.Outcome {
			w.mu.Lock()
			first := !tried
			tried = true
			w.mu.Unlock()
			if !first {
				<-ctx.Done()
			}
			return unit.Outcome{Phase: status.Unreachable, Message: "no answer"}
		})
	}
	w.start(w.daemon(func(c *Config) { c.Turns = turn.New(1) }))
	w.eventually("both hang", func() bool { return len(w.appliedTo("a"))+len(w.appliedTo("b")) >= 3 })
	n := len(w.appliedTo("c"))
	w.eventually("c goes on", func() bool { return len(w.appliedTo("c")) > n+3 })
}

// With patience Once does not wait for what only a commit can bring on, but for everything else.
// The log names the phase as the status does.
func TestOnceDoesNotWaitForPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	held := problem.Problem{Cluster: "dev", Object: "configmap/a/b", Reason: "held: kept; to allow that, annotate the Cluster"}
	w.gives("dev", unit.Outcome{Phase: status.Ready, Stuck: true, Problems: []problem.Problem{held}})
	var n atomic.Int32
	w.set("prod", func(context.Context) unit.Outcome {
		if n.Add(1) < 3 {
			return unit.Outcome{Phase: status.Progressing, Message: "not yet"}
		}
		return unit.Outcome{Phase: status.Ready}
	})
	var log bytes.Buffer
	err := w.daemon(func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) }).Once(t.Context(), time.Hour)
	if err == nil || !strings.Contains(err.Error(), "not everything is Ready, and waiting does not help") || !strings.Contains(err.Error(), "to allow that, annotate the Cluster") || strings.Contains(err.Error(), "prod") {
		t.Errorf("error %v", err)
	}
	if text := log.String(); !strings.Contains(text, "phase=Degraded") {
		t.Errorf("log\n%s", text)
	}
}
