package publish

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources/clusters"
)

// space is an etcd without users, with one namespace that may be missing.
type space struct {
	client *clientv3.Client

	mu          sync.Mutex
	provisioned bool
	down        error
	opened      int
}

func (s *space) set(provisioned bool, down error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.provisioned, s.down = provisioned, down
}

func (s *space) Namespace(cluster string) (etcd.Provisioned, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return etcd.Provisioned{Prefix: "/" + cluster + "/"}, s.provisioned
}

func (s *space) Inside(_ context.Context, in etcd.Provisioned, do func(clientv3.KV, clientv3.Lease) error) error {
	s.mu.Lock()
	down := s.down
	s.opened++
	s.mu.Unlock()
	if down != nil {
		return down
	}
	return do(namespace.NewKV(s.client, in.Prefix), s.client)
}

// publishing returns a unit to publish; name makes it different.
func publishing(t *testing.T, name string) *desired.Unit {
	u := unit(t)
	u.Spec.Etcd = &clusters.Etcd{Namespace: "prod"}
	u.Packages[0].Declaration.Name = name
	return u
}

// The newest unit is published once the namespace exists and etcd answers; then nothing more is sent. A
// unit with errors removes nothing.
func TestKeeper(t *testing.T) {
	t.Parallel()
	s := &space{client: client(t)}
	var log strings.Builder
	k := NewKeeper(s, s, slog.New(slog.NewTextHandler(&log, nil)))
	kv := namespace.NewKV(s.client, "/prod/")
	published := func(want string) {
		t.Helper()
		_, docs, err := Read(t.Context(), kv, 0)
		if want == "" && errors.Is(err, ErrNone) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			if d.Name == "packages/"+want {
				return
			}
		}
		t.Errorf("packages/%s is not published", want)
	}
	round := func(left bool) {
		t.Helper()
		if got := k.publish(t.Context()); got != left {
			t.Errorf("something is left: %v", got)
		}
	}
	k.Want(unit(t)) // of a cluster without a namespace
	round(false)
	k.Want(publishing(t, "first"))
	round(true)
	s.set(true, errors.New("no member answers"))
	round(true)
	round(true)
	published("")
	if n := strings.Count(log.String(), "no member answers"); n != 1 {
		t.Errorf("the error is logged %d times:\n%s", n, log.String())
	}
	if got := k.Problems("prod"); len(got) != 1 || !strings.Contains(got[0].Reason, "no member answers") {
		t.Errorf("told of the cluster: %v", got)
	}
	second := publishing(t, "second")
	k.Want(second)
	s.set(true, nil)
	round(false)
	published("second")
	if got := k.Problems("prod"); got != nil {
		t.Errorf("told of the cluster, though all is well: %v", got)
	}

	broken := publishing(t, "third")
	broken.Faults = []problem.Problem{{Package: "third", Reason: "not found"}}
	opened := s.opened
	k.Want(broken)
	k.Want(second)
	round(false)
	if s.opened != opened {
		t.Error("etcd was asked though nothing is to be published")
	}
	published("second")
}

// For a cluster that gives up its key space, or leaves the fleet, nothing is tried any more, and nothing is told.
func TestKeeperForgets(t *testing.T) {
	t.Parallel()
	for _, leaves := range []bool{false, true} {
		s := &space{client: client(t)}
		s.set(true, errors.New("no member answers"))
		k := NewKeeper(s, s, slog.New(slog.DiscardHandler))
		first := publishing(t, "first")
		k.Want(first)
		k.publish(t.Context())
		if leaves {
			k.Forget("prod")
		} else {
			k.Want(unit(t))
		}
		k.settle(t.Context(), first, s.down) // it was under way
		opened := s.opened
		if left := k.publish(t.Context()); left || s.opened != opened {
			t.Errorf("leaves %v: it is still tried: left %v, %d times more", leaves, left, s.opened-opened)
		}
		if got := k.Problems("prod"); got != nil {
			t.Errorf("leaves %v: still told: %v", leaves, got)
		}
		s.set(true, nil)
		k.Want(first)
		k.publish(t.Context())
		if _, _, err := Read(t.Context(), namespace.NewKV(s.client, "/prod/"), 0); err != nil {
			t.Errorf("leaves %v: it is not published later: %v", leaves, err)
		}
	}
}

// If etcd is restored from a snapshot of before, the unit is published again.
func TestKeeperRestored(t *testing.T) {
	t.Parallel()
	s := &space{client: client(t)}
	s.set(true, nil)
	k := NewKeeper(s, s, slog.New(slog.DiscardHandler))
	now := time.Now()
	k.now = func() time.Time { return now }
	u := publishing(t, "first")
	kv := namespace.NewKV(s.client, "/prod/")
	k.Want(u)
	k.publish(t.Context())
	before, _, err := Read(t.Context(), kv, 0)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(lookAgain)
	k.Want(u)
	k.publish(t.Context())
	if after, _, err := Read(t.Context(), kv, 0); err != nil || after != before {
		t.Errorf("%+v is published again as %+v: %v", before, after, err)
	}
	if _, err := kv.Delete(t.Context(), "", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	opened := s.opened
	k.Want(u)
	k.publish(t.Context())
	if s.opened != opened {
		t.Error("it is looked up at once")
	}
	now = now.Add(lookAgain)
	k.Want(u)
	k.publish(t.Context())
	if _, _, err := Read(t.Context(), kv, 0); err != nil {
		t.Error(err)
	}
}

// Failures are retried after growing pauses.
func TestKeeperRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := new(space)
		s.set(true, errors.New("no member answers"))
		k := NewKeeper(s, s, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			k.Run(ctx)
			close(ended)
		}()
		k.Want(publishing(t, "first"))
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if s.opened < 20 || s.opened > 60 {
			t.Errorf("tried %d times in an hour", s.opened)
		}
	})
}
