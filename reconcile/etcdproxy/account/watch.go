package account

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// follows watches from the counted revision. The count is current once it has reached the revision that etcd had
// before the watch began. The error is errBusy if the count may lag. Each watch has its own stream, which leaves
// nothing behind in etcd when it ends.
func (f *follower) follows(ctx context.Context, current int64) error {
	ctx, cancel := context.WithCancelCause(needsLeader(ctx))
	defer cancel(nil)
	stream, err := f.watch.Watch(ctx, asProto)
	if err != nil {
		return err
	}
	err = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			// The changes of the revision itself are counted already, and ignored. A watch that
			// begins in the future would receive no progress.
			Key: limit.FloorKey(f.Prefix), RangeEnd: []byte(f.end), StartRevision: f.revision,
			Fragment: true, // there may be many events after a rest or a lost connection
		},
	}})
	if err != nil {
		return err
	}
	if f.revision >= current {
		f.Usage.SetCurrent(true)
	}
	var heard atomic.Int64 // when etcd last sent something
	heard.Store(time.Now().UnixNano())
	go f.asks(ctx, cancel, stream, &heard)
	var answers int
	var since time.Time // when the first of them came
	for {
		got, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		heard.Store(time.Now().UnixNano())
		if err := f.apply(got); err != nil {
			return err
		}
		if f.revision >= current {
			f.progressed = true
			f.Usage.SetCurrent(true)
		}
		if len(got.GetEvents()) == 0 {
			continue
		}
		now := time.Now()
		if answers == 0 || now.Sub(since) > f.busyFor {
			answers, since = 0, now
		}
		if answers++; answers >= busyAnswers && f.revision >= current && f.Usage.MayLag() {
			return errBusy
		}
	}
}

// asks asks etcd for the progress of the watch: often while something waits for it, and rarely otherwise, to check
// that etcd still answers.
func (f *follower) asks(ctx context.Context, cancel context.CancelCauseFunc, stream etcdserverpb.Watch_WatchClient, heard *atomic.Int64) {
	next := tick
	for {
		woken := false
		select {
		case <-ctx.Done():
			return
		case <-f.Usage.Waiting():
			// The event is usually on its way.
			woken = true
			select {
			case <-ctx.Done():
				return
			case <-time.After(tick):
			}
		case <-time.After(next):
		}
		next = idle
		if f.Usage.Waits() || !f.Usage.State().Current {
			next = tick
		} else if woken {
			continue
		}
		if time.Since(time.Unix(0, heard.Load())) > silence {
			cancel(fmt.Errorf("etcd did not answer on a watch for %v", silence))
			return
		}
		if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
			ProgressRequest: &etcdserverpb.WatchProgressRequest{},
		}}); err != nil {
			return // the other direction receives the reason
		}
	}
}

// apply applies one response of the watch.
func (f *follower) apply(got *etcdserverpb.WatchResponse) error {
	switch {
	case got.GetCompactRevision() > 0:
		f.counted = false
		return fmt.Errorf("etcd was compacted at revision %d, and the watch was at %d", got.GetCompactRevision(), f.revision)
	case got.GetCanceled():
		return errors.New("etcd ended the watch: " + got.GetCancelReason())
	case got.GetCreated():
		return nil // its revision is etcd's, not the watch's
	}
	// A response without events means that there were none up to its revision.
	reached := got.GetHeader().GetRevision()
	changes := make([]limit.Change, 0, len(got.GetEvents()))
	for i, e := range got.GetEvents() {
		kv := e.GetKv()
		if i == 0 || kv.GetModRevision() > reached {
			reached = kv.GetModRevision()
		}
		key := kv.GetKey()
		if len(key) < len(f.Prefix) {
			return fmt.Errorf("etcd sent an event of a key outside of %s", f.Prefix)
		}
		if len(key) == len(f.Prefix) {
			if floor, ok := limit.ParseFloor(kv.GetValue(), kv.GetModRevision()); ok && e.GetType() == mvccpb.Event_PUT {
				f.Floor.Raise(floor)
			}
			continue
		}
		changes = append(changes, limit.Change{
			Key: key[len(f.Prefix):], Value: len(kv.GetValue()),
			Deleted: e.GetType() == mvccpb.Event_DELETE, Revision: kv.GetModRevision(),
		})
	}
	if got.GetFragment() {
		reached-- // the next part may have more of the same revision
	}
	f.Usage.Apply(changes, reached)
	f.revision = max(f.revision, reached)
	return nil
}
