// Package account follows one namespace in etcd: it keeps a [limit.Usage] and a [limit.Floor] up to
// date.
//
// [Follow] counts all keys at one revision (account.go), and then follows a watch on the namespace
// from there (watch.go). The count is exact at each revision that it has reached, through any
// compaction, reconnection and restart of etcd: if the watch cannot go on, Follow counts again, and
// writes that may make the namespace larger wait meanwhile. While much is written and the quota is
// far, it pauses now and then: etcd then sends the events of the pause together, at a fraction of
// the cost for both sides. [Raise] raises the floor, which is a key in the namespace itself; the
// watch also brings what other proxies raised.
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
	_ "google.golang.org/grpc/encoding/proto" // for asProto
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/limit"
)

// Config configures [Follow].
type Config struct {
	// Log gets a line when the namespace cannot be followed; required.
	Log *slog.Logger
	// Name is the namespace's name for the log, and Prefix the prefix of its keys in etcd.
	Name, Prefix string
	// Etcd is a connection as the namespace's user. Its codec does not matter.
	Etcd grpc.ClientConnInterface
	// Usage and Floor are kept up to date.
	Usage *limit.Usage
	Floor *limit.Floor
	// Scans is a semaphore: its capacity is the number of concurrent scans; nil for no limit.
	Scans chan struct{}

	// busyFor replaces the constant in tests.
	busyFor time.Duration
}

const (
	// A page has firstPage to maxPage keys, and about pageBytes, judged by the size of the last one.
	firstPage, maxPage = 16, 512
	pageBytes          = 1 << 20
	// Pauses after failures grow from minPause to maxPause.
	minPause, maxPause = 100 * time.Millisecond, 10 * time.Second
	// tick is how often to ask etcd for the progress of the watch while something waits for it, and
	// idle how often otherwise. After silence without an answer, the watch begins anew.
	tick, idle, silence = 100 * time.Millisecond, 10 * time.Second, 30 * time.Second
	// After busyAnswers of the watch within busyFor, Follow rests for restFor, or until the count is
	// needed, which it checks each restTick.
	busyAnswers                = 64
	busyFor, restFor, restTick = 500 * time.Millisecond, 500 * time.Millisecond, 50 * time.Millisecond
)

// asProto makes a call use protobuf on a connection with another codec.
var asProto = grpc.ForceCodecV2(encoding.GetCodecV2("proto"))

// Follow follows the namespace until ctx ends.
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
		level := slog.LevelDebug // a repetition
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

// follower is a call of Follow.
type follower struct {
	Config
	kv    etcdserverpb.KVClient
	watch etcdserverpb.WatchClient
	end   string

	// counted reports whether Usage is true at revision, in this cluster of etcd.
	counted  bool
	revision int64
	cluster  uint64
	// progressed reports whether following has worked since the last pause.
	progressed bool
}

// errBusy says that the watch has many events, and that the count may lag.
var errBusy = errors.New("much is written")

// rest waits while the count may lag. It stays true at its revision.
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
	now, err := read(ctx, f.kv, f.Prefix)
	if err != nil {
		return err
	}
	if f.counted && (now.cluster != f.cluster || now.revision < f.revision) {
		f.Log.Warn("counting an etcd namespace again", "namespace", f.Name, "error", "etcd went back to an earlier revision")
		f.counted = false
	}
	if !f.counted {
		f.Usage.SetCurrent(false) // it may be current after a rest
		f.Floor.Reset(now.floor)
		if err := f.scan(ctx, now.revision); err != nil {
			return err
		}
		f.counted, f.revision, f.cluster = true, now.revision, now.cluster
	}
	f.Floor.Raise(now.floor)
	err = f.follows(ctx, now.revision)
	if status.Code(err) == codes.ResourceExhausted {
		// The events since then are more than the connection takes at once, and would be again.
		f.counted = false
	}
	return err
}

// record is etcd's state at a linearizable read of a namespace's floor.
type record struct {
	cluster         uint64
	revision, floor int64
	modified        int64 // the revision of the floor's key; 0 if there is none
}

// read reads the floor.
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
			page /= 2 // it was larger than the connection takes
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
		Serializable: true, // the revision determines the state
	}, asProto)
}

// Raise raises the floor of a namespace to a revision that etcd has reached, in etcd first. The error is
// [limit.ErrCompacted] if the floor is as high already, or the connection's.
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

// needsLeader makes a member of etcd refuse a call, or end a watch, if it has no leader: it may not learn of
// changes.
func needsLeader(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
}
