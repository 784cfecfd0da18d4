package etcdproxy

import (
	"cmp"
	"errors"
	"io"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// unary returns the handler of a call with one request and one response.
func unary(request, response *wire.Message) func(*call) error {
	return func(c *call) error {
		var notes wire.Notes
		in, err := c.receive(request, &notes)
		if err != nil {
			return err
		}
		out, err := c.invoke(in, response, &notes)
		if err != nil {
			return err
		}
		return c.client.SendMsg(&out)
	}
}

// received is a rewritten request.
type received struct {
	frame
	from frame // as the client sent it; notes refer to it
}

// receive receives and rewrites a client's request.
func (c *call) receive(m *wire.Message, notes *wire.Notes) (received, error) {
	var from frame
	if err := c.client.RecvMsg(&from); err != nil {
		return received{}, err
	}
	in, err := c.request(m, &from, notes)
	if err != nil {
		from.free()
	}
	return in, err
}

// request rewrites a request.
func (c *call) request(m *wire.Message, from *frame, notes *wire.Notes) (received, error) {
	src := from.bytes()
	c.tenant.counts.received.Add(int64(len(src)))
	if c.asksTooMuch() {
		return received{}, errAsked
	}
	to, err := rewrittenInto(c.requests().hold, len(src)+2*len(c.tenant.prefix)+32, func(dst []byte) ([]byte, error) {
		return c.tenant.space.Request(dst, m, src, notes)
	})
	if err != nil {
		c.tenant.counts.refused.Add(1)
		return received{}, refused(err)
	}
	return received{frame: to, from: *from}, nil
}

// discard frees both frames.
func (r *received) discard() {
	r.frame.free()
	r.from.free()
}

// invoke sends a request to etcd if floor and gate permit it, and returns the rewritten response. Except for
// [resends] it sends it once: as with etcd, the client has to find out whether a failed write was applied.
func (c *call) invoke(in received, m *wire.Message, notes *wire.Notes) (frame, error) {
	err := c.aboveFloor(notes)
	if err == nil && len(notes.Puts) == 0 && notes.Deletes == 0 {
		err = c.readsAll()
	}
	if err != nil {
		in.discard()
		return frame{}, err
	}
	leave, err := c.enter(notes)
	if err != nil {
		in.discard()
		return frame{}, err
	}
	in.from.free()
	out, err := c.roundTrip(&in.frame, m, notes)
	leave.Leave(out.outcome(err))
	return out, err
}

// roundTrip sends a request to etcd and returns the rewritten response.
func (c *call) roundTrip(in *frame, m *wire.Message, notes *wire.Notes) (frame, error) {
	var got frame
	done, err := c.fetch(c.method, in, &got, notes)
	defer done()
	if err != nil {
		return frame{}, err
	}
	defer got.free()
	return c.response(m, &got, notes)
}

// response rewrites a response.
func (c *call) response(m *wire.Message, got *frame, notes *wire.Notes) (frame, error) {
	src := got.bytes()
	*notes = wire.Notes{}
	out, err := rewrittenInto(c.responses().hold, len(src), func(dst []byte) ([]byte, error) {
		return c.tenant.space.Response(dst, m, src, notes)
	})
	if err != nil {
		return frame{}, c.foreign(c.tenant, c.method, err)
	}
	c.tenant.counts.sent.Add(int64(out.buf.Len()))
	return out, nil
}

var serverStreams = &grpc.StreamDesc{ServerStreams: true}

// rangeStream serves a range in parts.
func (c *call) rangeStream() error {
	var notes wire.Notes
	in, err := c.receive(wire.RangeRequest, &notes)
	if err != nil {
		return err
	}
	if err := cmp.Or(c.aboveFloor(&notes), c.readsAll()); err != nil {
		in.discard()
		return err
	}
	leave, err := c.enter(&notes)
	if err != nil {
		in.discard()
		return err
	}
	in.from.free()
	return c.attended(func() error {
		size, err := c.parts(&in.frame, leave.Answered)
		leave.Leave(Outcome{Err: err, Bytes: size})
		return err
	})
}

// parts sends a request and passes on the parts of the response. It returns their size. A request that etcd
// refused before the first part is resent; see [resends].
func (c *call) parts(in *frame, answered func()) (size int, err error) {
	defer in.free()
	for try := 0; ; try++ {
		size, err = c.stream(in, answered)
		if size > 0 || !again(c.ctx, err, try) {
			return size, err
		}
	}
}

// stream is parts without resending.
func (c *call) stream(in *frame, answered func()) (size int, err error) {
	up, err := c.tenant.upstream.conn.NewStream(c.ctx, serverStreams, c.method)
	if err != nil {
		return 0, c.told(c.tenant, c.method, err)
	}
	lent := in.lend()
	err = up.SendMsg(lent)
	if lent.reclaim(); err != nil && err != io.EOF {
		return 0, c.told(c.tenant, c.method, err)
	}
	if err := up.CloseSend(); err != nil {
		return 0, c.told(c.tenant, c.method, err)
	}
	whole := false // only the last part has a header
	for {
		var got frame
		switch err := up.RecvMsg(&got); {
		case err == io.EOF:
			return size, nil
		case whole && errors.Is(err, rpctypes.ErrGRPCAuthOldRevision):
			// Etcd checks again whether users changed after it has sent everything, at one revision. If
			// the user may still read the namespace, it received nothing that it should not have.
			_, err := c.head()
			return size, err
		case err != nil:
			return size, c.told(c.tenant, c.method, err)
		}
		answered()
		var notes wire.Notes
		out, err := c.response(wire.RangeStreamResponse, &got, &notes)
		got.free()
		if err != nil {
			return size, err
		}
		size += out.buf.Len()
		whole = len(notes.Header) > 0
		if err := c.tell(&out); err != nil {
			return size, err
		}
	}
}
