package apply

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

// follower is a running Follow.
type follower struct {
	starts chan *kindState
	done   chan struct{}
}

// Follow watches the members of every kind that Plan has looked at, until ctx
// ends. While it runs, a pass over an undisturbed cluster sends no requests, and
// notify is called when there may be something to do: somebody else changed or
// deleted a member, or a member that was not ready may be ready. notify is called
// from several goroutines and must not block.
//
// Only metadata is watched. A write to status is ignored unless the object was not
// ready. A watch that the API server cannot continue costs one list; a kind that
// cannot be watched is listed once in each Config.Poll. At most one Follow may run
// at a time.
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
			watches.Go(func() {
				defer a.survive(s)
				a.watch(ctx, s, notify)
			})
		}
	}
}

// followAll starts a watch for every kind in use that has none. It is the last step of a
// look.
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

// A watch that does not last is tried again after ever longer pauses. Meanwhile
// the kind is listed, once in each Config.Poll.
const (
	// watchBrief is how long a watch must last to count as working.
	watchBrief = 10 * time.Second
	// firstPause is the first pause. After a restart of the API server or a broken
	// connection the watch then goes on where it was.
	firstPause = time.Second
	// longestPause bounds the pause that a throttling API server may ask for.
	longestPause = 10 * time.Minute
)

// watch follows one kind until it cannot be read, or is not in use any more.
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
	d := &damper{notify: notify}
	defer d.stop()
	current := time.Now() // when the members were complete last
	watched := func() {
		if a.polls(s, "") {
			notify()
		}
	}
	var failing time.Time // since when no watch has lasted
	for failures := 0; ; {
		begun := time.Now()
		lasts := time.AfterFunc(watchBrief, watched)
		err := a.cluster.Watch(ctx, t, "", a.set.selector(), version, func(e kube.Event) {
			version, current = e.Meta.ResourceVersion, time.Now()
			watched()
			if !e.Progress {
				d.tell(a.saw(s, e))
			}
		})
		lasts.Stop()
		lasted := time.Since(begun) >= watchBrief
		if lasted {
			failures = 0
		}
		if failures == 0 {
			failing = time.Now()
		}
		if err != nil || !lasted {
			failures++
		}
		if kube.Sleep(ctx, a.pauseAfter(failures, err)) != nil {
			a.lost(s)
			return
		}
		if failures > 1 && (!passes(err) || time.Since(failing) >= a.poll) && a.polls(s, whyPolled(err)) {
			a.log.Warn("a kind cannot be watched, and is listed instead", "kind", t.Kind, "every", a.poll, "error", err)
			notify()
		}
		if !a.outdated(failures, err, current) {
			continue
		}
		v, err := a.relist(ctx, s, t, d)
		switch {
		case err == nil:
			version, current = v, time.Now()
		case kube.ClassOf(err) != kube.Throttled:
			// The next look at the cluster reports the trouble.
			a.log.Debug("a kind is not followed any more", "kind", t.Kind, "error", err)
			a.lost(s)
			notify()
			return
		}
	}
}

// pauseAfter returns how long a watch that ended waits before it is tried again: as
// long as the API server asks for, and longer with each failure in a row. Jitter
// keeps the watches of a cluster from trying all at once.
func (a *Applier) pauseAfter(failures int, err error) time.Duration {
	d := min(firstPause<<min(max(failures-1, 0), 10), a.poll)
	if e, ok := errors.AsType[*kube.Error](err); ok {
		d = max(d, min(e.RetryAfter, longestPause))
	}
	return d + rand.N(d/10+1)
}

// passes reports whether a failed watch may work again soon: a kind counts as one that cannot
// be watched only if that goes on for Config.Poll. While a definition changes, the API server
// ends the watches of its objects, and a version that was just listed may be too old. While a
// cluster is down, the next look at it reports that.
func passes(err error) bool {
	switch kube.ClassOf(err) {
	case "", kube.Expired, kube.Unreachable, kube.Unanswered, kube.Server:
		return true
	}
	return false
}

// outdated reports whether the kind must be listed before it is watched again: the watch
// may have missed something, or does not work. If the API server denies that the kind
// exists or may be read, the list confirms it.
func (a *Applier) outdated(failures int, err error, current time.Time) bool {
	switch kube.ClassOf(err) {
	case kube.Expired, kube.NoSuchType, kube.Unauthorized:
		return true
	case kube.Unreachable:
		return failures > 1
	}
	return failures > 1 && time.Since(current) >= a.poll
}

func whyPolled(err error) string {
	if e, ok := errors.AsType[*kube.Error](err); ok {
		return e.Message
	}
	return "a watch ends as soon as it begins"
}

// polls notes why a kind is listed instead of watched, "" if it is watched, and
// reports whether that is news.
func (a *Applier) polls(s *kindState, why string) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	news = (s.polled == "") != (why == "")
	s.polled = why
	return news
}

// Polled returns a text for each kind whose watch does not work, with the reason. Changes
// to their objects are noticed later.
func (a *Applier) Polled() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []string
	for _, s := range a.kinds {
		if s.followed && s.polled != "" {
			list = append(list, fmt.Sprintf("%s cannot be watched, and is listed every %s instead: %s", kindName(s.t), a.poll, s.polled))
		}
	}
	slices.Sort(list)
	return list
}

func kindName(t kube.Type) string {
	return strings.TrimSuffix(t.Resource+"."+t.Group, ".")
}

// relist lists a kind and records the changes since the last list or event.
func (a *Applier) relist(ctx context.Context, s *kindState, t kube.Type, d *damper) (version string, err error) {
	there := make(map[manifest.ID]string) // their resourceVersions
	var most notice
	opts := kube.ListOptions{Selector: a.set.selector(), Again: func() { clear(there) }}
	version, err = a.cluster.List(ctx, t, opts, func(m *metav1.PartialObjectMetadata) bool {
		there[t.ID(m.Namespace, m.Name)] = m.ResourceVersion
		most = max(most, a.saw(s, kube.Event{Meta: m}))
		return true
	})
	if err == nil && a.restored(s, there, version) {
		a.log.Warn("the cluster is older than it was, and is read anew: was it restored, or does its address lead to another one?", "kind", t.Kind)
		return "", errRestored
	}
	if err == nil {
		for _, id := range a.membersBut(s, there) {
			// An object that was created since the list is newer, and stays.
			gone := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name, ResourceVersion: version}}
			most = max(most, a.saw(s, kube.Event{Meta: gone, Deleted: true}))
		}
	}
	d.tell(most)
	return version, err
}

// errRestored ends the watch of a kind whose resourceVersions went back.
var errRestored = errors.New("its resourceVersions went back")

// restored reports whether resourceVersions went back, as after a restore of etcd: a list is
// older than the remembered state, or than an object that it has in an older state. Events
// would not correct what is remembered, since an older one is no news. What is known of the
// inventory's parent is dropped too.
func (a *Applier) restored(s *kindState, there map[manifest.ID]string, version string) bool {
	older := func(v, than string) bool {
		c, err := resourceversion.CompareResourceVersion(v, than)
		return err == nil && c < 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	back := older(version, s.version)
	for id, v := range there {
		// What was written during the list is newer than all of it.
		m := s.members[id]
		back = back || m != nil && older(v, m.version) && !older(version, m.version)
	}
	a.rewound = a.rewound || back
	return back
}

func (a *Applier) membersBut(s *kindState, there map[manifest.ID]string) []manifest.ID {
	a.mu.Lock()
	defer a.mu.Unlock()
	var missing []manifest.ID
	for id := range s.members {
		if _, is := there[id]; !is {
			missing = append(missing, id)
		}
	}
	return missing
}

// survive recovers from a panic in the watch of a kind. Only that watch is lost,
// and the next look lists the kind.
func (a *Applier) survive(s *kindState) {
	if v := recover(); v != nil {
		p := errgroup.Recovered(v)
		a.mu.Lock()
		kind := s.t.Kind
		a.mu.Unlock()
		a.log.Error(p.Error()+" in a watch; the daemon goes on", "kind", kind, "stack", string(p.Stack))
		a.lost(s)
	}
}

// lost notes that a kind is no longer followed: the next look lists it.
func (a *Applier) lost(s *kindState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.followed, s.version, s.polled = false, "", ""
}

// saw records an event, and returns whether and how soon it needs a look. A write to
// status needs one only if its object was not ready, and not at once: controllers report
// progress often.
func (a *Applier) saw(s *kindState, e kube.Event) notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, after, news := a.take(s, e)
	if !news {
		return ignore
	}
	id := s.t.ID(e.Meta.Namespace, e.Meta.Name)
	s.touch(id)
	if after == nil {
		return atOnce
	}
	status := before != nil && before.print == after.print && e.Meta.DeletionTimestamp == nil
	switch {
	case !status:
		return atOnce
	case s.waitsFor(id) || !after.fine:
		return later
	}
	return ignore
}

// abandon forgets the kinds that are no longer in use, and ends their watches.
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
