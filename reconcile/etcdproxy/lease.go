package etcdproxy

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"gitopsd.dev/reconcile/etcdproxy/wire"
	"gitopsd.dev/render/etcd"
)

var errUnasked = errors.New("a watch or a lease that was not asked for")

// leaseGrant grants a lease, with the ID that the client asks for or a random one. A random ID that is taken
// already is replaced by another.
func (c *call) leaseGrant() error {
	var notes wire.Notes
	in, err := c.receive(wire.LeaseGrantRequest, &notes)
	if err != nil {
		return err
	}
	defer in.discard()
	asked := notes.Lease
	if asked < 0 || asked > wire.MaxLease {
		return status.Errorf(codes.InvalidArgument, "gitopsd: the ID of a lease is between 1 and %d, or 0 for one that is free", int64(wire.MaxLease))
	}
	leave, err := c.enter(&notes)
	if err != nil {
		return err
	}
	out, err := c.grant(&in.frame, asked)
	for tries := 0; tries < 3 && asked == 0 && errors.Is(err, rpctypes.ErrGRPCLeaseExist); tries++ {
		out, err = c.grant(&in.frame, asked)
	}
	leave.Leave(out.outcome(err))
	if err != nil {
		return err
	}
	return c.client.SendMsg(&out)
}

// grant adds an ID, random if it is 0, to a request to grant a lease, and sends it.
func (c *call) grant(request *frame, id int64) (frame, error) {
	for id == 0 || id > wire.MaxLease {
		var random [8]byte
		_, _ = rand.Read(random[:]) // never fails
		id = int64(binary.LittleEndian.Uint64(random[:]) & (1<<etcd.LeaseBits - 1))
	}
	in, err := rewritten(request.buf.Len()+16, func(dst []byte) ([]byte, error) {
		return c.tenant.space.AppendLease(append(dst, request.bytes()...), id), nil
	})
	if err != nil {
		return frame{}, err
	}
	var notes wire.Notes
	out, err := c.roundTrip(&in, wire.LeaseGrantResponse, &notes)
	if err != nil {
		return frame{}, err
	}
	if notes.Lease != c.tenant.space.Lease(id) {
		out.free()
		return frame{}, c.foreign(c.tenant, c.method, errUnasked)
	}
	c.tenant.remember(id)
	return out, nil
}

// leaseRevoke revokes a lease. The keys deleted with it are the tenant's: etcd lets no user attach a key
// to a lease that has keys of others.
func (c *call) leaseRevoke() error {
	var notes wire.Notes
	in, err := c.receive(wire.LeaseRevokeRequest, &notes)
	if err != nil {
		return err
	}
	id := notes.Lease
	out, err := c.invoke(in, wire.LeaseRevokeResponse, &notes)
	if err != nil {
		return err
	}
	c.tenant.forget(id)
	return c.client.SendMsg(&out)
}

// leaseTimeToLive returns how long a lease lives, and the keys attached to it.
func (c *call) leaseTimeToLive() error {
	var notes wire.Notes
	in, err := c.receive(wire.LeaseTimeToLiveRequest, &notes)
	if err != nil {
		return err
	}
	asked := notes.Lease
	out, err := c.invoke(in, wire.LeaseTimeToLiveResponse, &notes)
	if err != nil {
		return err
	}
	if notes.Lease != c.tenant.space.Lease(asked) {
		out.free()
		return c.foreign(c.tenant, c.method, errUnasked)
	}
	return c.client.SendMsg(&out)
}

// leaseKeepAlive serves a stream of requests to renew leases by one stream to etcd.
func (c *call) leaseKeepAlive() error {
	up, err := c.tenant.upstream.conn.NewStream(c.ctx, bothStreams, c.method)
	if err != nil {
		return c.told(c.tenant, c.method, err)
	}
	return c.relay(up, func() error { return c.renewals(up) }, func(got *frame) error {
		var notes wire.Notes
		out, err := c.response(wire.LeaseKeepAliveResponse, got, &notes)
		if err != nil {
			return err
		}
		return c.tell(&out)
	})
}

// renewals passes on the client's requests until there are no more.
func (c *call) renewals(up grpc.ClientStream) error {
	for {
		var notes wire.Notes
		in, err := c.receive(wire.LeaseKeepAliveRequest, &notes)
		if err != nil {
			return err
		}
		leave, err := c.enter(&notes)
		if err != nil {
			in.discard()
			return err
		}
		in.from.free()
		err = up.SendMsg(&in.frame)
		leave.Leave(Outcome{Err: err})
		if err == io.EOF {
			return nil // the other direction receives the reason
		}
		if err != nil {
			return err
		}
	}
}

// leaseLeases lists the tenant's leases: those that the tenant's keys are attached to, and those that this
// proxy granted and that still live. etcd itself refuses to list leases to a user who may not read all
// keys attached to any lease. A lease that another replica granted, or this one before a restart, is
// missing while no key is attached to it.
func (c *call) leaseLeases() error {
	return c.own(wire.LeaseLeasesRequest, func(*wire.Notes) (proto.Message, error) { return c.leases() })
}

func (c *call) leases() (*etcdserverpb.LeaseLeasesResponse, error) {
	head, found, err := c.attachedLeases()
	if err != nil {
		return nil, err
	}
	for _, id := range c.tenant.granted() {
		if found[id] {
			continue
		}
		var out etcdserverpb.LeaseTimeToLiveResponse
		if err := c.exchange(timeToLiveMethod, &etcdserverpb.LeaseTimeToLiveRequest{ID: c.tenant.space.Lease(id)}, &out); err != nil {
			return nil, err
		}
		if out.TTL < 0 {
			c.tenant.forget(id)
			continue
		}
		found[id] = true
	}
	out := &etcdserverpb.LeaseLeasesResponse{Header: head}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		out.Leases = append(out.Leases, &etcdserverpb.LeaseStatus{ID: id})
	}
	return out, nil
}

// keysPage is how many keys are read at once.
const keysPage = 10_000

// attachedLeases returns the leases that the tenant's keys are attached to, all at one revision.
func (c *call) attachedLeases() (*etcdserverpb.ResponseHeader, map[int64]bool, error) {
	found := make(map[int64]bool)
	from, to := c.tenant.space.All()
	request := &etcdserverpb.RangeRequest{Key: from, RangeEnd: to, Limit: keysPage, KeysOnly: true}
	var head *etcdserverpb.ResponseHeader
	for {
		out, err := c.ask(request)
		if err != nil {
			return nil, nil, err
		}
		if head == nil {
			head = out.Header
			request.Revision = head.GetRevision()
		}
		for _, kv := range out.Kvs {
			if id, ok := c.tenant.space.Own(kv.Lease); ok && id != 0 {
				found[id] = true
			}
		}
		if !out.More || len(out.Kvs) == 0 {
			return head, found, nil
		}
		request.Key = append(out.Kvs[len(out.Kvs)-1].Key, 0)
	}
}

// maxRemembered bounds the remembered leases: listing looks up each of them.
const maxRemembered = 2000

// remember notes a lease that was granted.
func (t *tenant) remember(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.leases) >= maxRemembered {
		for any := range t.leases {
			delete(t.leases, any)
			break
		}
	}
	t.leases[id] = struct{}{}
}

// forget removes a lease that is gone.
func (t *tenant) forget(id int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.leases, id)
}

// granted returns the leases that are remembered.
func (t *tenant) granted() []int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.leases))
}
