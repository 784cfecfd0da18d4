// Package account keeps what a proxy knows of one namespace in etcd true: how much it
// holds, and the floor to which it is compacted, as package limit has them.
//
// [Follow] counts all keys once, at one revision, and then follows a watch on the
// namespace from there. What it says is true at each revision that it has reached, through
// any compaction, reconnection and restart of etcd: where the watch cannot go on, it counts
// anew, and until then writes that grow wait. While much is written and the quota is far, it
// rests now and then: etcd sends what happened meanwhile together, which costs both sides a
// fraction of sending it one by one. [Raise] raises the floor, which lies in etcd
// in the namespace itself; the same watch brings what other proxies raised.
package account

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // which asProto names
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// Config says what to follow.
type Config struct {
	// Log gets a line when the namespace cannot be followed; required.
	Log *slog.Logger
	// Name is for the log, and Prefix is before the namespace's keys in etcd.
	Name, Prefix string
	// Etcd is a connection as the namespace's user. Its codec does not matter.
	Etcd grpc.ClientConnInterface
	// Usage and Floor are kept true.
	Usage *limit.Usage
	Floor *limit.Floor
	// Scans has room for as many scans as are to run at the same time; nil for any number.
	Scans chan struct{}

	// busyFor is in place of the constant, in tests.
	busyFor time.Duration
}

const (
	// Keys are read from firstPage to maxPage at a time, as many as have about pageBytes, by
	// the size of those seen.
	firstPage, maxPage = 16, 512
	pageBytes          = 1 << 20
	// pauses after a failure.
	minPause, maxPause = 100 * time.Millisecond, 10 * time.Second
	// tick is how often etcd is asked how far the watch is while something waits for that, and
	// idle how often otherwise. If it does not answer for silence, the watch begins anew.
	tick, idle, silence = 100 * time.Millisecond, 10 * time.Second, 30 * time.Second
	// After so many answers of the watch within busyFor it rests for restFor, or until the count
	// is needed, which is looked at each restTick.
	busyAnswers                = 64
	busyFor, restFor, restTick = 500 * time.Millisecond, 500 * time.Millisecond, 50 * time.Millisecond
)

// asProto has a call use protobuf on a connection with another codec.
var asProto = grpc.ForceCodecV2(encoding.GetCodecV2("proto"))

// Follow keeps the account until ctx ends.
func Follow(ctx context.Context, cfg Config) {
	cfg.busyFor = cmp.Or(cfg.busyFor, busyFor)
	f := &follower{
		Config: cfg,
		kv:     etcdserverpb.NewKVClient(cfg.Etcd),
		watch:  etcdserverpb.NewWatchClient(cfg.Etcd),
		end:    clientv3.GetPrefixRangeEnd(cfg.Prefix),
	}
	pause := minPause
	for {
		err := f.follow(ctx)
		if errors.Is(err, errBusy) {
			f.rest(ctx)
			continue
		}
		f.Usage.SetCurrent(false)
		if ctx.Err() != nil {
			return
		}
		level := slog.LevelDebug // said before
		if f.progressed || pause == minPause {
			pause, f.progressed = minPause, false
			level = slog.LevelWarn
		}
		f.Log.Log(ctx, level, "etcd namespace is not followed; what grows waits", "namespace", f.Name, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// follower is the state of a Follow.
type follower struct {
	Config
	kv    etcdserverpb.KVClient
	watch etcdserverpb.WatchClient
	end   string

	// counted says that Usage is true at revision, in this cluster of etcd.
	counted  bool
	revision int64
	cluster  uint64
	// progressed says that following worked since the last pause.
	progressed bool
}

// errBack says that etcd's revision is lower than before.
var errBack = errors.New("etcd went back to an earlier revision")

// errBusy says that the watch brings much, and that the count may lag.
var errBusy = errors.New("much is written")

// rest waits as long as the count may lag. It stays true at the revision that it has reached.
func (f *follower) rest(ctx context.Context) {
	for end := time.Now().Add(restFor); time.Now().Before(end) && f.Usage.MayLag(); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(restTick):
		}
	}
}

// follow counts if need be, and then watches until that ends.
func (f *follower) follow(ctx context.Context) error {
	now, err := f.record(ctx)
	if err != nil {
		return err
	}
	if f.counted && (now.cluster != f.cluster || now.revision < f.revision) {
		f.Log.Warn("counting an etcd namespace again", "namespace", f.Name, "error", errBack)
		f.counted = false
	}
	if !f.counted {
		f.Usage.SetCurrent(false) // as it was during a rest
		f.Floor.Reset(now.floor)
		if err := f.scan(ctx, now.revision); err != nil {
			return err
		}
		f.counted, f.revision, f.cluster = true, now.revision, now.cluster
	}
	f.Floor.Raise(now.floor)
	err = f.follows(ctx, now.revision)
	if status.Code(err) == codes.ResourceExhausted {
		// What happened meanwhile is more than the connection takes at once, and would be so
		// the next time, too.
		f.counted = false
	}
	return err
}

// record is etcd's state by a linearizable read of a namespace's floor.
type record struct {
	cluster         uint64
	revision, floor int64
	modified        int64 // the revision of the record; 0 if there is none
}

func (f *follower) record(ctx context.Context) (record, error) {
	return read(ctx, f.kv, f.Prefix)
}

func read(ctx context.Context, kv etcdserverpb.KVClient, prefix string) (record, error) {
	ctx, cancel := context.WithTimeout(needsLeader(ctx), silence)
	defer cancel()
	out, err := kv.Range(ctx, &etcdserverpb.RangeRequest{Key: limit.FloorKey(prefix)}, asProto)
	if err != nil {
		return record{}, err
	}
	r := record{cluster: out.GetHeader().GetClusterId(), revision: out.GetHeader().GetRevision()}
	for _, kv := range out.GetKvs() {
		r.modified = kv.GetModRevision()
		r.floor, _ = limit.ParseFloor(kv.GetValue(), r.revision)
	}
	return r, nil
}

// scan counts all keys at a revision.
func (f *follower) scan(ctx context.Context, revision int64) error {
	if f.Scans != nil {
		select {
		case f.Scans <- struct{}{}:
			defer func() { <-f.Scans }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	scan := f.Usage.Scan()
	next, page := append(limit.FloorKey(f.Prefix), 0), int64(firstPage)
	for {
		out, err := f.page(ctx, next, page, revision)
		if status.Code(err) == codes.ResourceExhausted && page > 1 {
			page /= 2 // larger than the connection takes
			continue
		}
		if err != nil {
			return err
		}
		bytes := 0
		for _, kv := range out.GetKvs() {
			scan.Add(kv.GetKey()[len(f.Prefix):], len(kv.GetValue()))
			bytes += len(kv.GetKey()) + len(kv.GetValue())
			next = append(kv.GetKey(), 0)
		}
		switch {
		case !out.GetMore():
			f.Usage.Replace(scan, revision)
			return nil
		case bytes < pageBytes/2:
			page = min(2*page, maxPage)
		case bytes > 2*pageBytes:
			page = max(page/2, 1)
		}
	}
}

func (f *follower) page(ctx context.Context, from []byte, keys, revision int64) (*etcdserverpb.RangeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	return f.kv.Range(ctx, &etcdserverpb.RangeRequest{
		Key: from, RangeEnd: []byte(f.end), Limit: keys, Revision: revision,
		Serializable: true, // the revision says which state is meant
	}, asProto)
}

// Raise raises the floor of a namespace to a revision that etcd has reached, in etcd first.
// The error is ErrCompacted if it is as high already, or that of the connection.
func Raise(ctx context.Context, etcd grpc.ClientConnInterface, prefix string, floor *limit.Floor, revision int64) error {
	kv := etcdserverpb.NewKVClient(etcd)
	key := limit.FloorKey(prefix)
	for range 10 {
		is, err := read(ctx, kv, prefix)
		if err != nil {
			return err
		}
		floor.Raise(is.floor)
		if revision <= is.floor {
			return limit.ErrCompacted
		}
		out, err := kv.Txn(ctx, &etcdserverpb.TxnRequest{
			Compare: []*etcdserverpb.Compare{{
				Target: etcdserverpb.Compare_MOD, Key: key,
				TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: is.modified},
			}},
			Success: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestPut{
				RequestPut: &etcdserverpb.PutRequest{Key: key, Value: limit.FormatFloor(revision)},
			}}},
		}, asProto)
		switch {
		case err != nil:
			return err
		case out.GetSucceeded():
			floor.Raise(revision)
			return nil
		}
	}
	return status.Error(codes.Unavailable, "etcdserver: others compact the namespace at the same time; try again")
}

// needsLeader has etcd refuse a call, and end a watch, on a member that lost its leader, and may not learn of
// changes.
func needsLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}
