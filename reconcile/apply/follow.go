package apply

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
)

// follower is a running Follow.
type follower struct {
	starts chan *kindState
	done   chan struct{}
}

// Follow watches the members of every kind that Plan has looked at, until ctx
// ends. While it runs, a pass over a cluster that nobody disturbs asks the API
// server nothing, and notify is called when there is something to do: a member
// was changed by somebody else, or is gone, or one that was not ready may be. It
// is called from several goroutines and must not block.
//
// Only metadata is watched, and a write to status is looked at no further. A
// watch that the API server cannot continue costs one list in the next pass. At
// most one Follow may run at a time.
func (a *Applier) Follow(ctx context.Context, notify func()) {
	f := &follower{starts: make(chan *kindState), done: make(chan struct{})}
	a.mu.Lock()
	a.follower = f
	a.mu.Unlock()
	var watches sync.WaitGroup
	defer func() {
		close(f.done)
		watches.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.follower = nil
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-f.starts:
			watches.Go(func() { a.watch(ctx, s, notify) })
		}
	}
}

// followAll has every kind watched that is in use and not watched yet. It is the
// last thing that a look at the cluster does.
func (a *Applier) followAll() {
	a.mu.Lock()
	f := a.follower
	var todo []*kindState
	if f != nil {
		for _, s := range a.kinds {
			if !s.followed && s.version != "" {
				s.followed = true
				todo = append(todo, s)
			}
		}
	}
	a.mu.Unlock()
	for _, s := range todo {
		select {
		case f.starts <- s:
		case <-f.done:
			a.lost(s)
		}
	}
}

// reconnectPause is how long a watch that broke waits before it goes on where it
// was; when that fails too, the kind is listed anew.
const reconnectPause = time.Second

// watch follows one kind until it cannot, or until nobody asks for it any more.
func (a *Applier) watch(ctx context.Context, s *kindState, notify func()) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	t, version, abandoned := s.t, s.version, a.kinds[groupKind(s.t)] != s
	s.cancel = cancel
	a.mu.Unlock()
	if abandoned {
		return
	}
	for broken := false; ; {
		before := version
		err := a.cluster.Watch(ctx, t, a.set.selector(), version, func(e kube.Event) {
			version = e.Meta.ResourceVersion
			if !e.Progress && a.saw(s, e) {
				notify()
			}
		})
		switch {
		case err == nil:
			broken = false
		case kube.ClassOf(err) == kube.Unreachable && !(broken && version == before):
			broken = true
		default:
			if ctx.Err() == nil {
				a.log.Debug("a watch ended", "kind", t.Kind, "error", err)
			}
			a.lost(s)
			notify()
			return
		}
		if pause(ctx, reconnectPause) != nil {
			a.lost(s)
			return
		}
	}
}

// lost notes that a kind is not followed any more: the next look lists it.
func (a *Applier) lost(s *kindState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.followed, s.version = false, ""
}

// saw takes an event in, and says whether somebody should look at it.
func (a *Applier) saw(s *kindState, e kube.Event) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, after, news := a.take(s, e)
	if !news {
		return false
	}
	s.stirred = true
	return after == nil || !after.fine || len(s.unready) > 0
}

// abandon forgets the kinds that nobody asks for any more, and ends their
// watches.
func (a *Applier) abandon(inUse map[schema.GroupKind]kube.Type) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for gk, s := range a.kinds {
		if _, used := inUse[gk]; used {
			continue
		}
		delete(a.kinds, gk)
		if s.cancel != nil {
			s.cancel()
		}
	}
}
