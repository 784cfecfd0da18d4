package etcdproxy

import (
	"io"
	"sync"

	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

var bothStreams = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// watch serves a stream of watches by one stream to etcd. What etcd sends is passed on one to one
// and in order. Only a watch that begins below the tenant's floor is different; see [watching].
func (c *call) watch() error {
	up, err := c.tenant.upstream.conn.NewStream(c.ctx, bothStreams, c.method)
	if err != nil {
		return c.told(c.tenant, c.method, err)
	}
	w := &watching{call: c, up: up, open: make(map[int64]bool)}
	defer w.end()
	return c.relay(up, w.requests, w.response)
}

// relay runs both directions of a stream until one of them ends it. Requests has an error if the
// client's or the stream to etcd failed; response handles one response.
func (c *call) relay(up grpc.ClientStream, requests func() error, response func(*frame) error) error {
	failed := make(chan error, 1)
	go func() { failed <- requests() }()
	ended := make(chan error, 1)
	go func() {
		for {
			var got frame
			if err := up.RecvMsg(&got); err != nil {
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
	// Neither goroutine outlives the call by more than it takes them to notice: with the
	// handler's return the client's stream ends, and with ctx the one to etcd.
	for {
		select {
		case err := <-ended:
			return err
		case err := <-failed:
			if err != nil {
				return err
			}
			failed = nil // the client sends no more, and may still receive
		}
	}
}

// watching is a stream of watches.
//
// A watch below the floor gets what etcd would have sent if it were compacted there: the watch is
// created, and canceled with the floor as the revision of the compaction. To know the ID, and to
// keep the order, etcd creates it, too, on the one key that never exists; it is canceled there as
// soon as it is known.
type watching struct {
	*call
	up grpc.ClientStream

	sending sync.Mutex // of messages to etcd, by both directions
	mu      sync.Mutex
	// creating are the watches that etcd was asked for and has not answered, in order: the
	// floor at which one fails, or 0.
	creating []int64
	open     map[int64]bool // by ID; false for those that the client does not know of
}

// requests passes on what the client sends, until it sends no more.
func (w *watching) requests() error {
	for {
		var from frame
		if err := w.client.RecvMsg(&from); err != nil {
			if err == io.EOF {
				return w.up.CloseSend()
			}
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
	leave, err := w.enter(&notes, in.bytes)
	if err != nil {
		in.discard()
		return err
	}
	in.from.free()
	err = w.send(&in.frame, &notes)
	leave(err, 0)
	if err == io.EOF {
		return nil // the reason comes by the other direction
	}
	return err
}

// send sends a request to etcd.
func (w *watching) send(in *frame, notes *wire.Notes) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	if notes.Member == wire.Create {
		floor := int64(0)
		if err := w.aboveFloor(notes); err != nil {
			floor = w.cfg.Floors.Floor(w.tenant.id)
			in.free()
			*in = frame{}
			var err error
			if *in, err = rewritten(len(w.tenant.prefix)+32, func(dst []byte) ([]byte, error) {
				return w.tenant.space.WatchNothing(dst, notes.Watch), nil
			}); err != nil {
				return err
			}
		}
		w.mu.Lock()
		w.creating = append(w.creating, floor)
		w.mu.Unlock()
	}
	return w.up.SendMsg(in)
}

// response passes on one response.
func (w *watching) response(got *frame) error {
	var notes wire.Notes
	out, err := w.call.response(wire.WatchResponse, got, &notes)
	if err != nil {
		return err
	}
	floor, hide, err := w.note(&notes)
	if err != nil || hide {
		out.free()
		return err
	}
	if err := w.client.SendMsg(&out); err != nil || floor == 0 {
		return err
	}
	if out, err = rewritten(len(notes.Header)+48, func(dst []byte) ([]byte, error) {
		return wire.Compacted(dst, notes.Header, notes.Watch, floor), nil
	}); err != nil {
		return err
	}
	if err := w.client.SendMsg(&out); err != nil {
		return err
	}
	return w.forget(notes.Watch)
}

// note keeps count of the watches that are open. It returns the floor if one was created that is
// below it, and whether the response is not for the client.
func (w *watching) note(n *wire.Notes) (floor int64, hide bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.Created {
		if len(w.creating) == 0 {
			return 0, true, w.foreign(w.tenant, w.method, errUnasked)
		}
		floor, w.creating = w.creating[0], w.creating[1:]
		switch {
		case n.Canceled:
			return 0, false, nil // etcd refused it, and tells why
		case floor > 0:
			w.open[n.Watch] = false
			return floor, false, nil
		}
		w.open[n.Watch] = true
		w.cfg.Gate.Watching(w.tenant.id, 1)
		return 0, false, nil
	}
	if !n.Canceled {
		return 0, false, nil
	}
	known, is := w.open[n.Watch]
	delete(w.open, n.Watch)
	if known {
		w.cfg.Gate.Watching(w.tenant.id, -1)
	}
	return 0, is && !known, nil
}

// forget has etcd cancel a watch that the client thinks is gone.
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

// end counts the watches that end with the stream.
func (w *watching) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, known := range w.open {
		if known {
			w.cfg.Gate.Watching(w.tenant.id, -1)
		}
	}
	w.open = nil
}
