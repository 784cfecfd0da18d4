package linearizability

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// follow watches until it has seen the put of last, through any of the proxies. When a connection ends,
// etcd's client continues the watch from where it was.
func (w *watched) follow(ctx context.Context, watcher clientv3.Watcher, more ...clientv3.OpOption) error {
	options := append([]clientv3.OpOption{clientv3.WithRev(w.from), clientv3.WithProgressNotify()}, more...)
	if w.end == "" {
		options = append(options, clientv3.WithFromKey())
	} else {
		options = append(options, clientv3.WithRange(w.end))
	}
	if w.before {
		options = append(options, clientv3.WithPrevKV())
	}
	asking, stop := context.WithCancel(ctx)
	var asks sync.WaitGroup
	asks.Go(func() { askProgress(asking, watcher) })
	defer asks.Wait()
	defer stop()
	for answer := range watcher.Watch(ctx, w.key, options...) {
		if err := answer.Err(); err != nil {
			return fmt.Errorf("watcher %s: %w", w.name, err)
		}
		for _, e := range answer.Events {
			w.seen = append(w.seen, eventOf(e, w.before))
		}
		if answer.IsProgressNotify() {
			w.progress = append(w.progress, progress{answer.Header.Revision, len(w.seen)})
		}
		if n := len(w.seen); n > 0 && w.seen[n-1].key == last {
			return nil
		}
	}
	return errors.Join(fmt.Errorf("watcher %s: ended after %d events", w.name, len(w.seen)), ctx.Err())
}

// askProgress requests progress notifications for a watcher repeatedly, as API servers do. The watcher
// receives them. Requests fail while there is no connection.
func askProgress(ctx context.Context, watcher clientv3.Watcher) {
	for ctx.Err() == nil {
		_ = watcher.RequestProgress(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func eventOf(e *clientv3.Event, before bool) event {
	out := event{revision: e.Kv.ModRevision, key: string(e.Kv.Key), value: string(e.Kv.Value), deleted: e.Type == mvccpb.DELETE}
	if before && e.PrevKv != nil {
		out.before = string(e.PrevKv.Value)
	}
	return out
}
