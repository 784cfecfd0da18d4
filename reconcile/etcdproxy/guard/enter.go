package guard

import (
	"context"
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/limit"
	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// Enter implements [etcdproxy.Gate].
func (g *Guard) Enter(ctx context.Context, c *etcdproxy.Call) (etcdproxy.Passage, error) {
	t := g.tenant(c.Tenant)
	if t == nil {
		return nil, errGone
	}
	passage, err := t.enter(ctx, c)
	switch {
	case errors.Is(err, limit.ErrNoSpace):
		t.full.Add(1)
	case status.Code(err) == codes.ResourceExhausted:
		t.throttled.Add(1)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		err = status.FromContextError(err).Err()
	}
	return passage, err
}

func (t *tenant) enter(ctx context.Context, c *etcdproxy.Call) (etcdproxy.Passage, error) {
	switch _, method, _ := strings.Cut(strings.TrimPrefix(c.Method, "/etcdserverpb."), "/"); method {
	case "LeaseKeepAlive":
		t.leases.Renewed(c.Notes.Lease)
		return nil, t.spare.Wait(ctx, 1)
	case "Compact":
		return nil, t.floors.Wait(ctx, 1)
	case "Watch":
		return nil, t.watch(ctx, c.Notes)
	case "LeaseGrant":
		return t.grant(ctx)
	case "LeaseRevoke":
		id := c.Notes.Lease
		return t.call(ctx, limit.Write{}, func(_ *passage, o etcdproxy.Outcome) {
			if o.Err == nil {
				t.leases.Revoked(id)
			}
		})
	}
	w := writeOf(c.Notes)
	if !w.Puts() && c.Notes.Deletes == 0 && !strings.HasSuffix(c.Method, "/DeleteRange") {
		return t.call(ctx, w, func(*passage, etcdproxy.Outcome) {})
	}
	return t.call(ctx, w, func(p *passage, o etcdproxy.Outcome) { p.wrote(t.usage, o) })
}

// writeOf returns what a request may put.
func writeOf(n *wire.Notes) (w limit.Write) {
	branches := make([][2]limit.Write, len(n.Txns))
	of := func(b wire.Branch) *limit.Write {
		switch {
		case b.Txn < 0:
			return &w
		case b.Else:
			return &branches[b.Txn][1]
		}
		return &branches[b.Txn][0]
	}
	for _, p := range n.Puts {
		of(p.Branch).Put(string(p.Key), p.Bytes, p.Same)
	}
	for i, within := range slices.Backward(n.Txns) { // inner ones first
		of(within).Either(branches[i][0], branches[i][1])
	}
	return w
}

// watch lets a request of a stream of watches through. Only requests to create a watch are limited.
func (t *tenant) watch(ctx context.Context, n *wire.Notes) error {
	if n.Member != wire.Create {
		return t.spare.Wait(ctx, 1)
	}
	if err := t.rate.Wait(ctx, 1); err != nil {
		return err
	}
	return t.watches.Take()
}

// grant lets a request to grant a lease through.
func (t *tenant) grant(ctx context.Context) (etcdproxy.Passage, error) {
	if err := t.leases.Grant(); err != nil {
		return nil, err
	}
	p, err := t.call(ctx, limit.Write{}, func(_ *passage, o etcdproxy.Outcome) {
		var granted etcdserverpb.LeaseGrantResponse
		if o.Err != nil || proto.Unmarshal(o.Response, &granted) != nil {
			t.leases.Failed()
			return
		}
		t.leases.Granted(granted.GetID(), granted.GetTTL())
	})
	if err != nil {
		t.leases.Failed()
	}
	return p, err
}

// call lets a call through when it is its turn. It takes the place in the quota first, so that a write that waits
// for the count keeps no other waiting, and so that a write that waits makes the size of its key uncertain for
// [limit.Write.Bytes].
func (t *tenant) call(ctx context.Context, w limit.Write, ended func(*passage, etcdproxy.Outcome)) (etcdproxy.Passage, error) {
	if err := t.rate.Wait(ctx, 1); err != nil {
		return nil, err
	}
	hold, err := t.usage.Admit(ctx, w)
	if err != nil {
		return nil, err
	}
	if err := t.writes.Wait(ctx, w.Bytes(len(t.prefix), hold)); err != nil {
		hold.Release()
		return nil, err
	}
	turn, err := t.share.Load().Enter(ctx)
	if err != nil {
		hold.Release()
		return nil, err
	}
	return &passage{turn: turn, hold: hold, write: w, ended: ended}, nil
}

// passage is a call that was let through.
type passage struct {
	turn  *limit.Turn
	hold  *limit.Hold
	write limit.Write
	ended func(*passage, etcdproxy.Outcome)
}

// Answered implements [etcdproxy.Passage].
func (p *passage) Answered() { p.turn.Answered() }

// Leave implements [etcdproxy.Passage].
func (p *passage) Leave(o etcdproxy.Outcome) {
	p.turn.Done(o.Bytes)
	p.ended(p, o)
}

// wrote settles the place of a write in the quota.
func (p *passage) wrote(u *limit.Usage, o etcdproxy.Outcome) {
	revision, succeeded := limit.Outcome(o.Response)
	u.Done(revision)
	switch {
	case o.Err == nil && revision > 0 && p.write.Took(succeeded).Puts():
		p.hold.Written(revision)
	case o.Err == nil && revision > 0, refused(o.Err):
		p.hold.Release()
	default:
		p.hold.Unknown()
	}
}

// refused reports whether an error of etcd says that nothing was written.
func refused(err error) bool {
	switch status.Code(err) {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}
	return errors.Is(err, limit.ErrNoSpace) || errors.Is(err, limit.ErrTooManyRequests)
}
