package etcdproxy

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

var bothStreams = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// watch serves a stream of watches by one stream to etcd. Responses are passed on one to one and in order,
// except those for a watch that begins below the tenant's floor; see [watching].
func (c *call) watch() error {
	up, err := c.tenant.upstream.conn.NewStream(c.ctx, bothStreams, c.method)
	if err != nil {
		return c.told(c.tenant, c.method, err)
	}
	w := &watching{call: c, up: up, open: make(map[int64]bool)}
	defer w.end()
	return c.relay(up, w.requests, w.response)
}

// errEnded is the error when etcd ends a stream that the client has not ended. The client should begin anew.
var errEnded = status.Error(codes.Unavailable, "gitopsd: etcd ended the stream")

// relay runs both directions of a stream until one of them ends it. requests passes on the client's requests;
// its error is io.EOF if the client sends no more. response handles one response.
func (c *call) relay(up grpc.ClientStream, requests func() error, response func(*frame) error) error {
	var finished atomic.Bool // the client sends no more
	failed := make(chan error, 1)
	go func() {
		err := requests()
		if err == io.EOF {
			finished.Store(true)
			err = up.CloseSend()
		}
		failed <- err
	}()
	ended := make(chan error, 1)
	go func() {
		for {
			var got frame
			if err := up.RecvMsg(&got); err == io.EOF && !finished.Load() {
				ended <- errEnded
				return
			} else if err != nil {
				ended <- c.told(c.tenant, c.method, err)
				return
			}
			err := response(&got)
			got.free()
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	// Both goroutines end soon after the call: the handler's return ends the client's stream, and
	// the end of ctx the one to etcd.
	for {
		select {
		case <-c.slow:
			return errSlow
		case err := <-ended:
			return err
		case err := <-failed:
			if err != nil {
				return err
			}
			failed = nil // the client may still receive
		}
	}
}

// watching is a stream of watches.
//
// The client of a watch below the floor receives the responses of an etcd that is compacted at the floor: the
// watch is created, and canceled with the floor as the compact revision. etcd assigns the ID and keeps the
// order, so it creates a watch, too, but one without events, which is canceled at once. A watch that the
// gate refuses is treated the same, with the reason.
//
// If etcd did not create a watch because its users changed meanwhile, the request is resent, unless the client
// has sent others before the answer: that would change their order.
type watching struct {
	*call
	up grpc.ClientStream

	sending sync.Mutex // of messages to etcd, by both directions
	mu      sync.Mutex
	// creating are the requests to create watches that etcd has not answered, in order.
	creating []creating
	open     map[int64]bool // by ID; false if it is canceled for the client already
	over     bool
}

// creating is a request to create a watch. The watch ends at once if it is below the floor or refused.
type creating struct {
	floor   int64  // 0 unless the watch is below it
	refused string // the reason
	// request is the request, and before how often it was resent; empty if others were waiting when
	// it was sent.
	request frame
	before  int
}

func (c creating) ends() bool { return c.floor > 0 || c.refused != "" }

// requests passes on the client's requests until there are no more.
func (w *watching) requests() error {
	for {
		var from frame
		if err := w.client.RecvMsg(&from); err != nil {
			return err
		}
		if err := w.pass(&from); err != nil {
			return err
		}
	}
}

// pass passes on one request.
func (w *watching) pass(from *frame) error {
	var notes wire.Notes
	in, err := w.request(wire.WatchRequest, from, &notes)
	if err != nil {
		from.free()
		return err
	}
	floor, err := w.below(&notes)
	if err != nil {
		in.discard()
		return err
	}
	create := creating{floor: floor}
	leave, err := w.enter(&notes)
	switch {
	case err == nil:
	case notes.Member == wire.Create && status.Code(err) == codes.ResourceExhausted:
		create, leave = creating{refused: status.Convert(err).Message()}, open{}
		if err := w.hesitate(); err != nil {
			in.discard()
			return err
		}
	default:
		in.discard()
		return err
	}
	err = w.send(&in.frame, &notes, create)
	in.from.free()
	leave.Leave(Outcome{Err: err})
	if err == io.EOF {
		return nil // the other direction receives the reason
	}
	return err
}

// hesitate slows down a client that repeats refused requests.
func (w *watching) hesitate() error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

// send sends a request to etcd.
func (w *watching) send(in *frame, notes *wire.Notes, create creating) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	if notes.Member != wire.Create {
		return w.up.SendMsg(in)
	}
	if create.ends() {
		in.free()
		*in, _ = rewritten(len(w.tenant.prefix)+96, func(dst []byte) ([]byte, error) { // never fails
			return w.tenant.space.WatchNothing(dst, notes.Watch), nil
		})
	}
	w.mu.Lock()
	switch {
	case !w.over:
		if len(w.creating) == 0 {
			create.request = *in.lend()
		}
		w.creating = append(w.creating, create)
	case create.refused == "":
		w.cfg.Gate.Unwatch(w.tenant.id)
	}
	w.mu.Unlock()
	return w.up.SendMsg(in)
}

// response passes on one response.
func (w *watching) response(got *frame) error {
	var notes wire.Notes
	out, err := w.call.response(wire.WatchResponse, got, &notes)
	if err != nil {
		return err
	}
	create, hide, err := w.note(&notes)
	if err != nil || hide {
		out.free()
		return err
	}
	if notes.Created && notes.Canceled {
		return w.declined(&out, create, string(notes.Reason))
	}
	create.request.free()
	if err := w.tell(&out); err != nil || !create.ends() {
		return err
	}
	if out, err = rewritten(len(notes.Header)+len(create.refused)+48, func(dst []byte) ([]byte, error) {
		return wire.CanceledWatch(dst, notes.Header, notes.Watch, create.floor, create.refused), nil
	}); err != nil {
		return err
	}
	if err := w.tell(&out); err != nil {
		return err
	}
	return w.forget(notes.Watch)
}

// declined passes on the response that etcd did not create a watch, unless the request is resent.
func (w *watching) declined(out *frame, create creating, reason string) error {
	if reason == rpctypes.ErrGRPCAuthOldRevision.Error() && w.resend(create) {
		out.free()
		return nil
	}
	create.request.free()
	if create.refused == "" {
		w.cfg.Gate.Unwatch(w.tenant.id)
	}
	return w.tell(out)
}

// resend resends a request to create a watch, and reports whether it did.
func (w *watching) resend(create creating) bool {
	if create.request.buf == nil || !again(w.ctx, rpctypes.ErrGRPCAuthOldRevision, create.before) {
		return false
	}
	w.sending.Lock()
	defer w.sending.Unlock()
	w.mu.Lock()
	first := !w.over && len(w.creating) == 0
	if first {
		create.before++
		w.creating = append(w.creating, create)
	}
	w.mu.Unlock()
	if first {
		lent := create.request.lend()
		_ = w.up.SendMsg(lent) // RecvMsg returns the error
		lent.reclaim()
	}
	return first
}

// note keeps account of the open watches. It returns the request if the response answers one, and whether to
// hide the response from the client.
func (w *watching) note(n *wire.Notes) (create creating, hide bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return creating{}, true, nil
	}
	if n.Created {
		if len(w.creating) == 0 {
			return creating{}, true, w.foreign(w.tenant, w.method, errUnasked)
		}
		create, w.creating = w.creating[0], w.creating[1:]
		if n.Canceled {
			return create, false, nil // etcd refused it
		}
		if create.floor > 0 && create.refused == "" {
			w.cfg.Gate.Unwatch(w.tenant.id)
		}
		w.open[n.Watch] = !create.ends()
		return create, false, nil
	}
	if !n.Canceled {
		return creating{}, false, nil
	}
	known, is := w.open[n.Watch]
	delete(w.open, n.Watch)
	if known {
		w.cfg.Gate.Unwatch(w.tenant.id)
	}
	return creating{}, is && !known, nil
}

// forget cancels a watch in etcd that the client knows as canceled.
func (w *watching) forget(id int64) error {
	in, err := rewritten(16, func(dst []byte) ([]byte, error) { return wire.CancelWatch(dst, id), nil })
	if err != nil {
		return err
	}
	w.sending.Lock()
	defer w.sending.Unlock()
	if err := w.up.SendMsg(&in); err != nil && err != io.EOF {
		return err
	}
	return nil
}

// end reports the watches that end with the stream to the gate.
func (w *watching) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.open {
		if known {
			w.cfg.Gate.Unwatch(w.tenant.id)
		}
	}
	for _, create := range w.creating {
		if create.refused == "" {
			w.cfg.Gate.Unwatch(w.tenant.id)
		}
	}
	w.open, w.creating, w.over = make(map[int64]bool), nil, true
}
