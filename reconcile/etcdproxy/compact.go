package etcdproxy

import (
	"context"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
)

// Floors keeps the floor of each tenant: the revision that it compacted to. A tenant sees nothing older,
// whether or not etcd still has it: all tenants share etcd's history, which the administrator compacts at
// the lowest floor. Methods are called concurrently, for each request.
type Floors interface {
	// Floor returns a tenant's floor; 0 if it never compacted. It may wait until the floor is known.
	// The error, a gRPC status, is passed to the tenant.
	Floor(ctx context.Context, id etcd.ID) (int64, error)
	// Raise raises the floor to a revision. The error, a gRPC status, is passed to the tenant as the
	// error of its Compact.
	Raise(ctx context.Context, id etcd.ID, revision int64) error
}

// memory is a [Floors] that lasts as long as the proxy.
type memory struct {
	mu     sync.RWMutex
	floors map[etcd.ID]int64
}

func (m *memory) Floor(_ context.Context, id etcd.ID) (int64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.floors[id], nil
}

func (m *memory) Raise(_ context.Context, id etcd.ID, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.floors == nil {
		m.floors = make(map[etcd.ID]int64)
	}
	m.floors[id] = max(m.floors[id], revision)
	return nil
}

// compact serves KV.Compact by raising the tenant's floor.
func (c *call) compact() error {
	return c.own(wire.CompactionRequest, func(notes *wire.Notes) (proto.Message, error) {
		head, err := c.raise(notes.Revision)
		return &etcdserverpb.CompactionResponse{Header: head}, err
	})
}

// raise raises the floor. The errors are those of a compaction in etcd.
func (c *call) raise(revision int64) (*etcdserverpb.ResponseHeader, error) {
	head, err := c.head()
	if err != nil {
		return nil, err
	}
	floor, err := c.cfg.Floors.Floor(c.ctx, c.tenant.id)
	switch {
	case err != nil:
		return nil, err
	case revision <= floor:
		return nil, rpctypes.ErrGRPCCompacted
	case revision > head.Revision:
		return nil, rpctypes.ErrGRPCFutureRev
	}
	return head, c.told(c.tenant, c.method, c.cfg.Floors.Raise(c.ctx, c.tenant.id, revision))
}

// aboveFloor returns an error for a request at a revision that the tenant compacted, in either branch of a
// transaction.
func (c *call) aboveFloor(notes *wire.Notes) error {
	floor, err := c.below(notes)
	if err == nil && floor > 0 {
		err = rpctypes.ErrGRPCCompacted
	}
	return err
}

// below returns the floor if a request is at a revision below it; otherwise 0.
func (c *call) below(notes *wire.Notes) (floor int64, err error) {
	if notes.Revision == 0 {
		return 0, nil
	}
	floor, err = c.cfg.Floors.Floor(c.ctx, c.tenant.id)
	if err != nil || notes.Revision >= floor {
		return 0, err
	}
	return floor, nil
}

// head returns etcd's current header, by a linearizable read that returns no keys.
func (c *call) head() (*etcdserverpb.ResponseHeader, error) {
	out, err := c.ask(&etcdserverpb.RangeRequest{Key: []byte(c.tenant.prefix), CountOnly: true})
	return out.GetHeader(), err
}

// ask reads a range of etcd's keys without rewriting: the range is in the namespace.
func (c *call) ask(r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	out := new(etcdserverpb.RangeResponse)
	return out, c.exchange(rangeMethod, r, out)
}

// exchange calls etcd with a read-only request of the proxy's own.
func (c *call) exchange(method string, request, response proto.Message) error {
	in, err := marshal(request)
	if err != nil {
		return err
	}
	var got frame
	done, err := c.fetch(method, &in, &got, new(wire.Notes))
	defer done()
	if err != nil {
		return err
	}
	defer got.free()
	if err := proto.Unmarshal(got.bytes(), response); err != nil {
		return c.foreign(c.tenant, method, err)
	}
	return nil
}

// own serves a call that the proxy answers itself, with the response that do returns.
func (c *call) own(request *wire.Message, do func(*wire.Notes) (proto.Message, error)) error {
	var notes wire.Notes
	in, err := c.receive(request, &notes)
	if err != nil {
		return err
	}
	defer in.discard()
	leave, err := c.enter(&notes)
	if err != nil {
		return err
	}
	out, err := do(&notes)
	if err == nil {
		err = c.answer(out)
	}
	leave.Leave(Outcome{Err: err})
	return err
}

// answer sends a response of the proxy's own.
func (c *call) answer(response proto.Message) error {
	out, err := marshal(response)
	if err != nil {
		return err
	}
	return c.client.SendMsg(&out)
}

func marshal(m proto.Message) (frame, error) {
	return rewritten(proto.Size(m), func(dst []byte) ([]byte, error) {
		return proto.MarshalOptions{}.MarshalAppend(dst, m)
	})
}
