package etcd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/render/etcd"
)

// The only way to learn the size of keys is to read them. So a namespace is read again only after it
// has changed, one namespace at a time, in pages of about pageBytes. The pause between two readings of
// a namespace is measurePause, or patience times the duration of a reading if that is longer.
const (
	measurePause = time.Minute
	patience     = 50
	// The first page has firstPage keys, and none has more than maxPage.
	firstPage, maxPage = 16, 512
	pageBytes          = 1 << 20
	// listPause is the pause before the registry is read again.
	listPause = 30 * time.Second
)

// Measure measures this fleet's active namespaces until ctx ends, for [Admin.Overview]. It leaves out
// those that skip, which may be nil, reports: their sizes are known elsewhere. Errors are logged, each
// once, and retried.
func (a *Admin) Measure(ctx context.Context, skip func(etcd.ID) bool) {
	m := &meter{admin: a, skip: skip, reading: make(chan struct{}, 1), pause: measurePause, patience: patience, list: listPause}
	told := ""
	for ctx.Err() == nil {
		text := ""
		if err := m.run(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != told {
			a.cfg.Log.Warn("etcd namespaces are not measured; it is tried again", "error", text)
		}
		told = text
		_ = sleep(ctx, m.list) // the loop checks ctx
	}
}

// sizes are the sizes of namespaces, by prefix.
type sizes struct {
	mu    sync.Mutex
	known map[string]size
}

// size is how large a namespace was at a revision.
type size struct{ bytes, revision int64 }

func newSizes() *sizes { return &sizes{known: make(map[string]size)} }

func (s *sizes) of(r registry.Record) (bytes int64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, known := s.known[r.Prefix]
	return n.bytes, known
}

func (s *sizes) set(r registry.Record, to size) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[r.Prefix] = to
}

// keep forgets all but the wanted namespaces.
func (s *sizes) keep(wanted map[registry.Record]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	prefixes := make(map[string]bool)
	for r := range wanted {
		prefixes[r.Prefix] = true
	}
	maps.DeleteFunc(s.known, func(prefix string, _ size) bool { return !prefixes[prefix] })
}

// meter is a call of Measure.
type meter struct {
	admin       *Admin
	skip        func(etcd.ID) bool
	reading     chan struct{} // a semaphore for one reading
	pause, list time.Duration
	patience    int
}

// run measures over one connection until ctx ends or an error.
func (m *meter) run(ctx context.Context) error {
	s, err := m.admin.connect(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel(nil)
	measured := make(map[registry.Record]context.CancelFunc)
	for {
		wanted, err := m.wanted(ctx, s)
		if err != nil {
			return errors.Join(err, ended(ctx))
		}
		for r, stop := range measured {
			if !wanted[r] {
				stop()
				delete(measured, r)
			}
		}
		m.admin.sizes.keep(wanted)
		for r := range wanted {
			if measured[r] != nil {
				continue
			}
			one, stop := context.WithCancel(ctx)
			measured[r] = stop
			all.Go(func() {
				if err := m.measure(one, s, r); one.Err() == nil {
					cancel(fmt.Errorf("etcd namespace %s: %w", r.ID, err))
				}
			})
		}
		if err := sleep(ctx, m.list); err != nil {
			return ended(ctx)
		}
	}
}

// ended returns the error that ended ctx; nil for plain cancellation.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// wanted returns the namespaces to measure.
func (m *meter) wanted(ctx context.Context, s *session) (map[registry.Record]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Config.Timeout)
	defer cancel()
	known, _, err := s.registry(ctx)
	if err != nil {
		return nil, err
	}
	wanted := make(map[registry.Record]bool)
	for _, r := range known.All() {
		if r.Owner.Fleet == s.Config.Fleet && r.State == registry.Active && (m.skip == nil || !m.skip(r.ID)) {
			wanted[r] = true
		}
	}
	return wanted, nil
}

// measure keeps the size of one namespace until ctx ends or an error, which it returns.
func (m *meter) measure(ctx context.Context, s *session, r registry.Record) error {
	for {
		begun := time.Now()
		n, err := m.read(ctx, s, r)
		pause := max(m.pause, time.Duration(m.patience)*time.Since(begun))
		switch {
		case errors.Is(err, rpctypes.ErrCompacted): // during the reading; read again
		case err != nil:
			return err
		default:
			m.admin.sizes.set(r, n)
			if err := changed(ctx, s, r, n.revision); err != nil {
				return err
			}
		}
		if err := sleep(ctx, time.Until(begun.Add(pause))); err != nil {
			return err
		}
	}
}

// read reads a whole namespace at one revision, except for the key of its floor, which equals the
// prefix and is not the tenant's.
func (m *meter) read(ctx context.Context, s *session, r registry.Record) (size, error) {
	select {
	case m.reading <- struct{}{}:
		defer func() { <-m.reading }()
	case <-ctx.Done():
		return size{}, ctx.Err()
	}
	var n size
	next, keys := r.Prefix+"\x00", int64(firstPage)
	for {
		page, err := m.page(ctx, s, r, next, keys, n.revision)
		if err != nil {
			return size{}, err
		}
		if n.revision == 0 {
			n.revision = page.Header.GetRevision()
		}
		bytes := 0
		for _, kv := range page.Kvs {
			n.bytes += int64(len(kv.GetKey()) - len(r.Prefix) + len(kv.GetValue()))
			bytes += len(kv.GetKey()) + len(kv.GetValue())
			next = string(kv.GetKey()) + "\x00"
		}
		switch {
		case !page.More:
			return n, nil
		case bytes < pageBytes/2:
			keys = min(2*keys, maxPage)
		case bytes > 2*pageBytes:
			keys = max(keys/2, 1)
		}
	}
}

// page reads keys at a revision; 0 is the newest.
func (m *meter) page(ctx context.Context, s *session, r registry.Record, from string, keys, revision int64) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Config.Timeout)
	defer cancel()
	return s.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(r.Prefix)), clientv3.WithLimit(keys), clientv3.WithRev(revision))
}

// changed waits until a namespace has, or may have, changed since a revision.
func changed(ctx context.Context, s *session, r registry.Record, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // one event is enough
	watch := s.Watch(clientv3.WithRequireLeader(ctx), r.Prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	for answer := range watch {
		switch {
		case answer.CompactRevision > 0, len(answer.Events) > 0:
			return nil
		case answer.Canceled:
			return answer.Err()
		}
	}
	return ctx.Err()
}
