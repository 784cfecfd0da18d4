package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
)

// crash runs a daemon that ends after it applied to dev and before the lock is
// committed, and returns what was applied.
func (w *world) crash() string {
	w.t.Helper()
	commits := len(w.log())
	first := w.daemon(nil)
	var stop func()
	ended := make(chan struct{})
	w.set("dev", func(ctx context.Context) unit.Outcome {
		go func() {
			stop()
			close(ended)
		}()
		<-ctx.Done()
		return unit.Outcome{Phase: status.Failed}
	})
	w.mu.Lock() // stop is set before dev is tried
	stop = w.start(first)
	w.mu.Unlock()
	<-ended
	if len(w.log()) != commits {
		w.t.Fatalf("the lock was committed: %q", w.log())
	}
	w.set("dev", nil)
	w.mu.Lock()
	w.asked = 0
	w.mu.Unlock()
	return w.appliedTo("dev")[0]
}

// ref is what the pending ref holds, empty if it is not there.
func (w *world) ref() string {
	text, err := w.repo.Git(context.WithoutCancel(w.t.Context()), "show", "refs/gitopsd/pending:clusters.lock.main")
	if err != nil {
		return ""
	}
	return text
}

// write has somebody else write the pending ref.
func (w *world) write(text string) {
	w.t.Helper()
	git := func(input string, args ...string) string {
		out, err := w.repo.GitInput(w.t.Context(), input, args...)
		if err != nil {
			w.t.Fatal(err)
		}
		return strings.TrimSpace(out)
	}
	blob := git(text, "hash-object", "-w", "--stdin")
	tree := git("100644 blob "+blob+"\tclusters.lock\n", "mktree")
	git("", "update-ref", "refs/gitopsd/pending", git("", "-c", "user.name=x", "-c", "user.email=x@x", "commit-tree", "-m", "x", tree))
}

// garble makes the pending ref name what is no commit.
func (w *world) garble() {
	w.t.Helper()
	blob, err := w.repo.GitInput(w.t.Context(), "not a commit", "hash-object", "-w", "--stdin")
	if err == nil {
		_, err = w.repo.Git(w.t.Context(), "update-ref", "refs/gitopsd/pending", strings.TrimSpace(blob))
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) gone() bool {
	refs, err := w.repo.Git(context.WithoutCancel(w.t.Context()), "for-each-ref", "refs/gitopsd")
	return err == nil && refs == ""
}

func (w *world) move(content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.content = content
}

func digest(content string) string { return string(sources.DigestOf([]byte(content))) }

func short12(content string) string { return sources.DigestOf([]byte(content)).Short() }

// ever reports whether a cluster was ever given a digest.
func (w *world) ever(name, content string) bool {
	return strings.Contains(strings.Join(w.appliedTo(name), "\n"), short12(content))
}

// refuse has the server refuse pushes to refs that begin with a prefix; the
// empty string heals it.
func (w *world) refuse(prefix string) {
	w.t.Helper()
	script := "#!/bin/sh\nexit 0\n"
	if prefix != "" {
		script = "#!/bin/sh\ncase $1 in " + prefix + "*) echo refused >&2; exit 1;; esac\n"
	}
	if err := w.repo.Hook("update", script); err != nil {
		w.t.Fatal(err)
	}
}

// A daemon that ends after it applied and before the lock is committed has kept
// what it resolved. The next one confirms it, and goes on with it.
func TestEndBetweenApplyAndCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	before := w.crash()
	w.start(w.daemon(nil))
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })
	if all := w.appliedTo("dev"); all[len(all)-1] != before {
		t.Errorf("first %s was applied, after the restart %s", before, all[len(all)-1])
	}
	if w.asked != 1 {
		t.Errorf("the tag was looked up %d times after the restart", w.asked)
	}
	w.eventually("the pending ref is gone", w.gone)
}

// A tag that moves between the end and the start is not followed, and what runs
// stays, until a person decides. Nothing else waits for that.
func TestMovedBetweenEndAndStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	w.crash()
	w.move("moved")
	w.commit("add prod", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("prod", "v2"))
	for range 2 { // however often it starts
		d := w.daemon(nil)
		stop := w.start(d)
		w.eventually("the tag is reported", func() bool {
			return strings.Contains(fmt.Sprint(d.cfg.Board.Snapshot().Problems), "reg.example.com/p v1 was resolved by a run that was interrupted")
		})
		w.eventually("prod is locked", func() bool { return strings.Contains(w.lock(), "@prod reg.example.com/p v2") })
		w.eventually("the other records are cleared", func() bool {
			return strings.Contains(w.ref(), "p v1 "+digest("v1one")) && !strings.Contains(w.ref(), "p v2 ")
		})
		stop()
	}
	if !w.ever("prod", "v2moved") || w.ever("dev", "v1moved") || strings.Contains(w.lock(), "p v1 ") {
		t.Errorf("dev got %q, prod %q, the lock is\n%s", w.appliedTo("dev"), w.appliedTo("prod"), w.lock())
	}
	w.commit("accept it", map[string]string{"clusters.lock": w.lock() + "\n@dev reg.example.com/p v1\nreg.example.com/p v1 " + digest("v1moved") + "\n"})
	w.start(w.daemon(nil))
	w.eventually("dev has what was decided", func() bool { return w.ever("dev", "v1moved") })
	w.eventually("the pending ref is gone", w.gone)
}

// Whatever somebody writes to the pending ref decides nothing.
func TestForeignPending(t *testing.T) {
	t.Parallel()
	locked := map[string]string{"clusters.lock": "@dev reg.example.com/p v1\nreg.example.com/p v1 " + digest("v1one") + "\nreg.example.com/p v1/package.yaml " + digest("v1one") + "\n"}
	evil := "reg.example.com/p v1 " + digest("evil") + "\n"
	for _, tt := range []struct {
		name   string
		lock   map[string]string
		write  string // empty for what is no commit
		refuse bool
	}{
		{name: "a locked tag", lock: locked, write: evil},
		{name: "a tag that is not locked", write: evil, refuse: true},
		{name: "two digests", write: evil + "reg.example.com/p v1 " + digest("bad") + "\n"},
		{name: "a version that nobody selects", write: strings.Replace(evil, "v1", "v9", 1) + "@dev reg.example.com/p v9\n@prod reg.example.com/q v1 <- reg.example.com/p\n"},
		{name: "other content", write: "reg.example.com/p v1 " + digest("v1one") + "\nreg.example.com/p v1/package.yaml " + digest("evil") + "\n"},
		{name: "no lock", write: "hello\n\x00\n<<<<<<<\n"},
		{name: "a line that is cut off", write: strings.TrimSuffix(evil, "\n")},
		{name: "no commit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"), tt.lock)
			if tt.write != "" {
				w.write(tt.write)
			} else {
				w.garble()
			}
			err := w.daemon(nil).Once(t.Context(), 0)
			if tt.refuse {
				if err == nil || !strings.Contains(err.Error(), digest("evil")) {
					t.Errorf("error %v", err)
				}
			} else {
				if err != nil || !w.ever("dev", "v1one") || !w.gone() {
					t.Errorf("error %v, dev got %q, pending %q", err, w.appliedTo("dev"), w.ref())
				}
			}
			if w.ever("dev", "evil") || strings.Contains(w.lock(), digest("evil")) || strings.Contains(w.lock(), "v9") {
				t.Errorf("dev got %q, the lock is\n%s", w.appliedTo("dev"), w.lock())
			}
		})
	}
}

// A pending ref that others delete, move or garble while it is needed is written
// again.
func TestPendingIsWrittenAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	w.refuse("refs/heads/")
	w.start(w.daemon(func(c *Config) { c.LockGrace = 20 * time.Millisecond }))
	kept := func() bool { return strings.Contains(w.ref(), "p v1 "+digest("v1one")) }
	w.eventually("the records are kept", kept)
	if _, err := w.repo.Git(t.Context(), "update-ref", "-d", "refs/gitopsd/pending"); err != nil {
		t.Fatal(err)
	}
	w.eventually("the records are kept again", kept)
	w.write("reg.example.com/p v1 " + digest("evil") + "\n")
	w.eventually("the records are kept instead", kept)
	w.garble()
	w.eventually("the records are kept at last", kept)
	w.refuse("")
	w.eventually("the lock is committed", func() bool { return strings.Contains(w.lock(), "p v1 "+digest("v1one")) })
	w.eventually("the pending ref is gone", w.gone)
}

// While nothing can be pushed a cluster with new records waits, and goes on with
// what it had; the others do not notice.
func TestPushOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	w.refuse("refs/")
	w.commit("bump dev, and something of prod's", cluster("dev", "v2"), map[string]string{"c/prod/other.txt": "x"})
	d := w.daemon(func(c *Config) { c.LockGrace = 20 * time.Millisecond })
	w.start(d)
	tries := len(w.appliedTo("prod"))
	w.eventually("prod goes on", func() bool { return len(w.appliedTo("prod")) > tries && phase(d, "prod") == status.Ready })
	w.eventually("dev waits", func() bool { return phase(d, "dev") == status.Waiting })
	if w.ever("dev", "v2one") {
		t.Error("dev got what could be lost")
	}
	w.eventually("the status says why", func() bool {
		s := d.cfg.Board.Snapshot()
		return strings.Contains(s.LockError, "refused the push to refs/") && slices.Contains(s.Unready("prod"), s.LockError) && !s.Stuck()
	})
	w.refuse("")
	w.eventually("dev goes on", func() bool { return w.ever("dev", "v2one") && phase(d, "dev") == status.Ready })
	w.eventually("the lock is committed", func() bool { return strings.Contains(w.lock(), "@dev reg.example.com/p v2") })
	w.eventually("the status is Ready", func() bool {
		s := d.cfg.Board.Snapshot()
		head, err := w.repo.Git(t.Context(), "rev-parse", "main")
		return err == nil && len(s.Unready()) == 0 && s.Head == s.LockCommit && s.Head != s.Commit && s.Head == strings.TrimSpace(head)
	})
}

// Whoever protects the branch is told what to do.
func TestBranchIsProtected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	w.refuse("refs/heads/")
	d := w.daemon(nil)
	err := d.Once(t.Context(), 0)
	if err == nil || !strings.Contains(err.Error(), "hook declined") || !strings.HasSuffix(err.Error(), "or start it with --lock readonly and commit the output of `gitopsd lock`") {
		t.Errorf("error %v", err)
	}
	if s := d.cfg.Board.Snapshot(); s.LockError == "" || len(s.Unready()) == 0 {
		t.Errorf("the status is Ready: %+v", s)
	}
}

// Where the pending ref alone is refused, the commit of the lock keeps the records,
// and clusters get theirs after it.
func TestPendingRefusedForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	if err := w.repo.Hook("update", "#!/bin/sh\ncase $1 in *pending*) echo refused >&2; exit 1;; esac\n"); err != nil {
		t.Fatal(err)
	}
	w.set("dev", func(context.Context) unit.Outcome {
		if !strings.Contains(w.lock(), digest("v1one")) {
			w.t.Error("dev was given what is kept nowhere")
		}
		return unit.Outcome{Phase: status.Ready}
	})
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil || !w.ever("dev", "v1one") {
		t.Errorf("error %v, dev got %q", err, w.appliedTo("dev"))
	}
}

// failing is a repository whose pending ref cannot be read some times.
type failing struct {
	Repository
	times int
}

func (f *failing) ReadPending(ctx context.Context) ([]byte, error) {
	if f.times--; f.times >= 0 {
		return nil, errors.New("connection reset")
	}
	return f.Repository.ReadPending(ctx)
}

// Nothing is computed before the pending ref could be read, and everything is
// after that.
func TestPendingIsOutOfReach(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	before := w.crash()
	d := w.daemon(func(c *Config) { c.Repository = &failing{c.Repository, 2} })
	if err := d.Once(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "reading pending lock records: connection reset") {
		t.Errorf("error %v", err)
	}
	if w.asked != 0 || len(w.appliedTo("dev")) != 1 {
		t.Error("something was resolved or applied without it")
	}
	w.start(w.daemon(func(c *Config) { c.Repository = &failing{c.Repository, 2} }))
	w.eventually("the lock is committed", func() bool { return len(w.log()) == 2 })
	if all := w.appliedTo("dev"); all[len(all)-1] != before {
		t.Errorf("first %s was applied, after the restart %s", before, all[len(all)-1])
	}
}

// A lock that is committed beside what others pushed adds records there, and takes
// none away: what they select is as safe as before.
func TestRecordsOnAMovedHead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev")}, cluster("dev", "v1"))
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 1)
	w.before = func(ctx context.Context, what string) error {
		if what != "hangs" {
			return nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	w.refuse("refs/heads/")
	w.commit("bump", cluster("dev", "v2"))
	stop := w.start(w.daemon(func(c *Config) { c.LockGrace = 20 * time.Millisecond }))
	w.eventually("dev is bumped", func() bool { return w.ever("dev", "v2one") })
	w.commit("meanwhile", cluster("dev", "hangs"))
	<-asked
	w.refuse("")
	w.eventually("the new records are kept", func() bool { return strings.Contains(w.lock(), "p v2 "+digest("v2one")) })
	stop()
	if lock := w.lock(); !strings.Contains(lock, "@dev reg.example.com/p v1\n") || !strings.Contains(lock, "p v1 "+digest("v1one")) {
		t.Errorf("the lock is\n%s", lock)
	}
	w.move("moved")
	w.commit("back", cluster("dev", "v1"))
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil || w.ever("dev", "v1moved") {
		t.Errorf("error %v, dev got %q", err, w.appliedTo("dev"))
	}
}

// A commit that is computed once more while its lock is committed is not what counts
// any more: the lock's own commit is computed next.
func TestLockIsCommittedWhileComputing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.commit("start", map[string]string{"clusters.yaml": registry("dev", "prod")}, cluster("dev", "v1"), cluster("prod", "v1"))
	if err := w.daemon(nil).Once(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	times := 0
	w.before = func(ctx context.Context, what string) error {
		if what != digest("v1one") {
			return nil
		}
		if times++; times == 1 {
			return errors.New("service unavailable")
		}
		select {
		case asked <- struct{}{}:
		default:
		}
		select {
		case <-answer:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.refuse("refs/heads/")
	w.commit("bump", cluster("dev", "v2"))
	d := w.daemon(func(c *Config) { c.LockGrace = 20 * time.Millisecond })
	w.start(d)
	<-asked
	w.refuse("")
	w.eventually("the lock is committed", func() bool { return strings.Contains(w.lock(), "@dev reg.example.com/p v2\n") })
	close(answer)
	w.eventually("prod is ready", func() bool { return phase(d, "prod") == status.Ready })
	w.eventually("the pending ref is gone", w.gone)
	w.eventually("what counts is the lock's commit", func() bool {
		return strings.HasPrefix(d.cfg.Board.Snapshot().Subject, "Lock ")
	})
}
