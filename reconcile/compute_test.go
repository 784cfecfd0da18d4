package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// branch is a repository in memory, for synctest bubbles.
type branch struct {
	mu      sync.Mutex
	commits []sources.Commit
	polls   int
	hangs   chan struct{} // a poll waits until it is closed, after it has read the head; nil for not
}

func (b *branch) push(hash string, files map[string]string) {
	tree := make(fstest.MapFS)
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commits = append(b.commits, sources.Commit{Hash: hash, Files: tree})
}

func (b *branch) Poll(_ context.Context, last string) (sources.Commit, bool, error) {
	b.mu.Lock()
	b.polls++
	head, hangs := b.commits[len(b.commits)-1], b.hangs
	b.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	return head, head.Hash != last, nil
}

func (b *branch) hang(until chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hangs = until
}

func (b *branch) polled() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.polls
}

func (b *branch) Head(context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commits[len(b.commits)-1].Hash, nil
}

func (b *branch) Update(context.Context, string, string, func(sources.Commit) ([]byte, error)) (sources.Commit, bool, error) {
	return sources.Commit{}, false, errors.New("not asked for here")
}
func (b *branch) ReadPending(context.Context) ([]byte, error) { return nil, nil }
func (b *branch) WritePending(context.Context, []byte) error  { return nil }
func (b *branch) ClearPending(context.Context) error          { return nil }
func (b *branch) Parent(context.Context, string) (sources.Commit, bool, error) {
	return sources.Commit{}, false, nil
}

// looping runs a daemon over a branch, in a synctest bubble. Its registry answers for a tag
// after a delay.
func looping(t *testing.T, f *fleet, b *branch, answers map[string]time.Duration) *Daemon {
	t.Helper()
	d := idle(t, f, b, answers)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return d
}

// idle returns the daemon of looping before it runs.
func idle(t *testing.T, f *fleet, b *branch, answers map[string]time.Duration) *Daemon {
	t.Helper()
	cfg := f.ws.cfg
	cfg.Repository, cfg.ReadonlyLock = b, true
	cfg.Computer = desired.New(desired.Config{Resolve: resolve.Config{
		Digest: func(ctx context.Context, _ sources.Origin, tag string) (sources.Digest, error) {
			if tag == "panic" {
				panic("as asked for")
			}
			select {
			case <-time.After(answers[tag]):
				return sources.DigestOf([]byte(tag)), nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		},
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			return &sources.Package{Repository: from.Repository, Digest: d, Content: d, Meta: sources.PackageMeta{Kind: sources.Configuration, Name: "p"}}, nil
		},
		Tags: func(context.Context, sources.Origin) ([]string, error) { return nil, errors.New("not asked for here") },
	}})
	cfg.Connect = func(_ context.Context, c *desired.Unit) (Connection, error) {
		return &versionConnection{fleetConnection{f, c.Name}}, nil
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// versionConnection notes the version of the package that it is given.
type versionConnection struct{ fleetConnection }

func (t *versionConnection) Apply(ctx context.Context, want *desired.Unit) unit.Outcome {
	noted := *want
	noted.Notes = []string{"nothing"}
	for _, p := range want.Packages {
		noted.Notes = []string{p.Pin.Ref.Tag}
	}
	return t.fleetConnection.Apply(ctx, &noted)
}

func files(version string) map[string]string {
	all := cluster("dev", version)
	all["clusters.yaml"] = registry("dev")
	return all
}

func (f *fleet) last(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.done[name]) == 0 {
		return ""
	}
	return f.done[name][len(f.done[name])-1]
}

// A registry that does not answer does not block the loop: it turns, polls, and works on the
// current commit. A newer commit does not wait for it for ever.
func TestComputingBlocksNothing(t *testing.T) {
	t.Parallel()
	const ever = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		b.push("1", files("v1"))
		d := looping(t, f, b, map[string]time.Duration{"hangs": ever, "slow": 2 * time.Minute})
		synctest.Wait()
		if have := f.last("dev"); have != "v1" {
			t.Fatalf("dev has %q", have)
		}
		b.push("2", files("hangs"))
		f.mu.Lock()
		f.done["dev"] = nil
		f.mu.Unlock()
		polls := b.polled()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		s := d.cfg.Board.Snapshot()
		if polls := b.polled() - polls; polls < 15 || time.Since(s.Turned) > time.Minute {
			t.Errorf("%d polls, and the loop turned %s ago", polls, time.Since(s.Turned))
		}
		f.mu.Lock()
		if n := len(f.done["dev"]); n < 15 || slices.Contains(f.done["dev"], "hangs") {
			t.Errorf("dev was kept up %d times: %q", n, f.done["dev"])
		}
		f.mu.Unlock()
		b.push("3", files("v3"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if have := f.last("dev"); have != "v3" {
			t.Errorf("dev has %q", have)
		}
		// Somebody who pushes more often than a commit is computed in.
		for n := range 40 {
			b.push("push "+string(rune('A'+n)), files("slow"))
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		if have := f.last("dev"); have != "slow" {
			t.Errorf("dev has %q: commits that take long are never computed", have)
		}
	})
}

// A repository that hangs does not block the loop: it turns, and keeps clusters up.
func TestPollingBlocksNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		b.push("1", files("v1"))
		d := looping(t, f, b, nil)
		synctest.Wait()
		until := make(chan struct{})
		b.hang(until)
		time.Sleep(2 * time.Minute)
		f.mu.Lock()
		f.done["dev"] = nil
		f.mu.Unlock()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if s := d.cfg.Board.Snapshot(); time.Since(s.Turned) > time.Minute {
			t.Errorf("the loop turned %s ago", time.Since(s.Turned))
		}
		f.mu.Lock()
		if n := len(f.done["dev"]); n < 15 || n > 25 {
			t.Errorf("dev was kept up %d times", n)
		}
		f.mu.Unlock()
		b.push("2", files("v2"))
		b.hang(nil)
		close(until)
		time.Sleep(time.Minute)
		synctest.Wait()
		if have := f.last("dev"); have != "v2" {
			t.Errorf("dev has %q", have)
		}
	})
}

// What a poll read before the lock was committed is not taken for newer than that commit.
func TestPollOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		b.push("1", files("v1"))
		d := idle(t, f, b, nil)
		d.poll(t.Context())
		<-d.polled()
		b.push("2", files("v1"))
		d.head = b.commits[1]
		if err := d.look(t.Context()); err != nil || d.head.Hash != "2" || d.due {
			t.Errorf("the head is %s, due: %v, %v", d.head.Hash, d.due, err)
		}
		<-d.polled()
	})
}

// A panic in what is computed is that commit's error, and the daemon goes on.
func TestPanicWhileComputing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, b := newFleet(t, 4), new(branch)
		f.log = new(bytes.Buffer)
		b.push("1", files("v1"))
		f.ws.cfg.Log = slog.New(slog.NewTextHandler(f.log, nil))
		d := looping(t, f, b, nil)
		synctest.Wait()
		b.push("2", files("panic"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if have := f.last("dev"); have != "v1" {
			t.Errorf("dev has %q", have)
		}
		s := d.cfg.Board.Snapshot()
		if len(s.Problems) != 1 || !strings.Contains(s.Problems[0].Reason, "a bug in gitopsd: panic with a value of type string") {
			t.Errorf("problems %v", s.Problems)
		}
		b.push("3", files("v3"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if have := f.last("dev"); have != "v3" {
			t.Errorf("dev has %q", have)
		}
		if phase(d, "dev") != status.Ready {
			t.Errorf("dev is %s", phase(d, "dev"))
		}
		if !strings.Contains(f.log.String(), "compute_test.go") {
			t.Error("the log has no stack")
		}
	})
}

// A commit without the lock that the revision in charge has is not used, whatever is between them.
func TestLockLost(t *testing.T) {
	t.Parallel()
	lock, err := lockfile.Parse("clusters.lock", []byte("reg.example.org/p v1 "+string(sources.DigestOf([]byte("v1")))+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	commit := func(hash string, files fstest.MapFS) sources.Commit { return sources.Commit{Hash: hash, Files: files} }
	without := commit("2222222222", fstest.MapFS{})
	for _, tt := range []struct {
		name   string
		commit sources.Commit
		needs  *lockfile.File // what the commit needs; lock by default
		lock   *lockfile.File // of the revision in charge; nil for none
		want   string
	}{
		{name: "the first commit", commit: without},
		{name: "there was none", commit: without, lock: new(lockfile.File)},
		{name: "it is there", commit: commit("2222222222", fstest.MapFS{"clusters.lock": {Data: lock.Format()}}), lock: lock},
		{name: "it is lost", commit: without, lock: lock, want: "clusters.lock is missing, and commit 1111111111 has it"},
		{name: "it is empty", commit: commit("2222222222", fstest.MapFS{"clusters.lock": {}}), lock: lock},
		{name: "nothing is to be locked", commit: without, needs: new(lockfile.File), lock: lock},
		{name: "its lock is in a later commit", commit: commit("0000000000", fstest.MapFS{}), lock: lock},
	} {
		var now *revision
		if tt.lock != nil {
			now = &revision{state: &desired.State{Commit: sources.Commit{Hash: "0000000000"}}, commit: sources.Commit{Hash: "1111111111"}, committed: tt.lock}
		}
		d := &Daemon{cfg: Config{Repository: new(branch)}}
		err := d.lockLost(t.Context(), &desired.State{Commit: tt.commit, Lock: cmp.Or(tt.needs, lock)}, now)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) || err != nil && !problem.Lasts(err) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}
