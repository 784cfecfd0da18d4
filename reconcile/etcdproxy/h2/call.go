package h2

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Errors of calls whose connection ends.
var (
	errClosing = status.Error(codes.Canceled, "the connection is closing")
	errLost    = status.Error(codes.Unavailable, "the connection was lost")
	errSilent  = status.Error(codes.Unavailable, "the server does not answer")
)

// clientConn is a connection to a server.
type clientConn struct {
	client  *Client
	net     net.Conn
	in      *reader
	out     *writer
	sending sending
	alive   *keepalive

	// Under the writer's lock: the number of the next stream, and the headers of each method. Callers
	// use few methods.
	next    uint32
	methods map[string]*fixed

	mu       sync.Mutex
	calls    map[uint32]*call
	most     uint32 // largest number of calls
	window   incoming
	retired  bool // takes no more calls
	lost     error
	idleFrom time.Time // when the last call ended
}

// call is a call in progress.
type call struct {
	outgoing
	most  int
	alone bool          // there was no other when it began
	done  chan struct{} // has an element once the call has ended

	// Owned by the reader, and by the receiver of done afterwards.
	in       incoming
	started  bool // the first headers came
	response message
	whole    bool
	unmade   bool
	err      error
}

func newClientConn(c *Client, conn net.Conn) *clientConn {
	x := &clientConn{
		client: c, net: conn, in: newReader(conn, 2*readBuffer, c.Options), out: newWriter(conn), sending: newSending(),
		next: 1, methods: make(map[string]*fixed), calls: make(map[uint32]*call), most: math.MaxUint32, window: incoming{size: max(c.ConnWindow, initialWindow)},
		idleFrom: time.Now(),
	}
	x.out.control(func(fr *http2.Framer) error {
		_, _ = (*pending)(x.out).Write([]byte(http2.ClientPreface)) // into memory
		return c.settings(fr, http2.Setting{ID: http2.SettingEnablePush, Val: 0})
	})
	return x
}

// do makes a call; see [Client.Call].
func (x *clientConn) do(ctx context.Context, method string, headers map[string]string, request []byte, most int) (mem.Buffer, bool, error) {
	if ctx.Err() != nil {
		return nil, true, status.FromContextError(ctx.Err()).Err()
	}
	k := &call{most: most, done: make(chan struct{}, 1), in: incoming{size: x.client.StreamWindow}}
	if !x.out.lock(ctx.Done()) {
		return nil, true, status.FromContextError(ctx.Err()).Err()
	}
	if !x.begin(k) {
		x.out.mu.Unlock()
		return nil, false, nil
	}
	x.headersOf(ctx, k, method, headers)
	head := prefix(len(request), false)
	whole := x.sending.whole(&k.outgoing, prefixSize+len(request))
	if whole {
		x.out.data(k.id, true, head[:], request)
	}
	if k.alone {
		x.out.flush()
	} else {
		x.out.flushWith()
	}
	if !whole {
		x.send(ctx, k, head[:], request)
	}
	select {
	case <-k.done:
	case <-ctx.Done():
		if x.forget(k) { // otherwise the reader is about to end it
			x.sending.close(&k.outgoing)
			x.out.control(func(fr *http2.Framer) error { return fr.WriteRSTStream(k.id, http2.ErrCodeCancel) })
			return nil, true, status.FromContextError(ctx.Err()).Err()
		}
		<-k.done
	}
	x.sending.close(&k.outgoing)
	if k.err == nil && !k.unmade {
		buf, _ := k.response.take(x.client.Pool)
		return buf, true, nil
	}
	k.response.discard(x.client.Pool)
	if k.unmade {
		return nil, false, nil
	}
	return nil, true, k.err
}

// begin gives a call a number, and reports whether the connection takes it. The caller holds the writer's lock.
func (x *clientConn) begin(k *call) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.retired || x.lost != nil || x.out.err != nil || uint32(len(x.calls)) >= x.most {
		return false
	}
	if x.next > maxWindow-2 { // the numbers are used up
		x.retired = true
		return false
	}
	k.id = x.next
	x.next += 2
	x.calls[k.id] = k
	k.alone = len(x.calls) == 1
	x.sending.open(&k.outgoing)
	return true
}

// headersOf adds the headers of a call. The caller holds the writer's lock.
func (x *clientConn) headersOf(ctx context.Context, k *call, method string, headers map[string]string) {
	var more []hpack.HeaderField
	if at, ok := ctx.Deadline(); ok {
		// It differs each time, and would evict the others from the table.
		more = append(more, hpack.HeaderField{Name: "grpc-timeout", Value: encodeTimeout(time.Until(at)), Sensitive: true})
	}
	for name, value := range headers {
		more = append(more, hpack.HeaderField{Name: name, Value: value})
	}
	fields := x.methods[method]
	if fields == nil {
		fields = &fixed{
			{Name: ":method", Value: "POST"},
			{Name: ":scheme", Value: "https"},
			{Name: ":path", Value: method},
			{Name: ":authority", Value: x.client.Authority},
			{Name: "content-type", Value: grpcType},
			{Name: "user-agent", Value: x.client.UserAgent},
			{Name: "te", Value: "trailers"},
		}
		x.methods[method] = fields
	}
	x.out.headers(k.id, false, fields, more...)
}

// send sends a request in parts, as the server has room for them, until the request or the call ends.
func (x *clientConn) send(ctx context.Context, k *call, head, body []byte) {
	for len(head)+len(body) > 0 {
		n := x.sending.take(&k.outgoing, len(head)+len(body))
		if n == 0 {
			select {
			case <-k.wake:
				continue
			case <-k.done:
				k.done <- struct{}{} // for do
			case <-ctx.Done():
			}
			return
		}
		if !x.out.lock(ctx.Done()) {
			x.sending.untake(n)
			return
		}
		if x.call(k.id) != k { // the server has ended it
			x.out.mu.Unlock()
			x.sending.untake(n)
			return
		}
		a := head[:min(n, len(head))]
		b := body[:n-len(a)]
		head, body = head[len(a):], body[len(b):]
		x.out.data(k.id, len(head)+len(body) == 0, a, b)
		x.out.flush()
	}
}

func (x *clientConn) call(id uint32) *call {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls[id]
}

// forget removes a call, and reports whether it was there.
func (x *clientConn) forget(k *call) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.calls[k.id] != k {
		return false
	}
	x.remove(k)
	return true
}

// remove removes a call. The caller holds x.mu.
func (x *clientConn) remove(k *call) {
	delete(x.calls, k.id)
	if len(x.calls) == 0 {
		x.idleFrom = time.Now()
		if x.retired {
			x.net.SetReadDeadline(time.Now()) // then the reader closes it
		}
	}
}

// finish ends a call.
func (x *clientConn) finish(k *call, err error) {
	if x.forget(k) {
		k.err = err
		k.done <- struct{}{}
	}
}

// abort ends a call, and resets its stream.
func (x *clientConn) abort(k *call, code http2.ErrCode, err error) {
	x.finish(k, err)
	x.out.control(func(fr *http2.Framer) error { return fr.WriteRSTStream(k.id, code) })
}

// retire refuses new calls.
func (x *clientConn) retire() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.retired = true
	if len(x.calls) == 0 {
		x.net.SetReadDeadline(time.Now()) // then the reader closes it
	}
}

// fail ends the connection with its calls. The server may have processed them.
func (x *clientConn) fail(err error) {
	x.net.Close()
	x.mu.Lock()
	if x.lost == nil {
		x.lost = err
	}
	calls := x.calls
	x.calls = make(map[uint32]*call)
	x.mu.Unlock()
	for _, k := range calls {
		k.err = err
		k.done <- struct{}{}
	}
}

// serve reads frames until the connection ends.
func (x *clientConn) serve() {
	x.alive = newKeepalive(x.out, x.client.KeepaliveTime, x.client.KeepaliveTimeout, func() { x.fail(errSilent) }, x.idle)
	for {
		f, err := x.in.read()
		x.alive.heard()
		if err == nil {
			err = x.frame(f)
		}
		if of, ok := errors.AsType[http2.StreamError](err); ok {
			if k := x.call(of.StreamID); k != nil {
				x.abort(k, of.Code, resetError(of.Code))
			}
		} else if err != nil {
			break
		}
	}
	x.alive.stop()
	x.fail(errLost)
}

// idle reports whether there is no call. It retires a connection that has been idle for too long.
func (x *clientConn) idle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.calls) > 0 {
		return false
	}
	if time.Since(x.idleFrom) > x.client.Idle {
		x.retired = true
		x.net.SetReadDeadline(time.Now())
	}
	return true
}

// frame handles a frame. The error ends the connection, unless it is an [http2.StreamError].
func (x *clientConn) frame(f http2.Frame) error {
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		x.headers(f)
	case *http2.DataFrame:
		return x.data(f)
	case *http2.RSTStreamFrame:
		if k := x.call(f.StreamID); k != nil {
			k.unmade = f.ErrCode == http2.ErrCodeRefusedStream
			x.finish(k, resetError(f.ErrCode))
		}
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if most, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
			x.mu.Lock()
			x.most = most
			x.mu.Unlock()
		}
		return applySettings(f, x.out, &x.sending)
	case *http2.PingFrame:
		if !f.IsAck() {
			x.out.pong(f.Data)
		}
	case *http2.WindowUpdateFrame:
		return x.sending.grow(f.StreamID, f.Increment)
	case *http2.GoAwayFrame:
		x.goAway(f)
	}
	return nil
}

// goAway retires the connection. The server will never begin the calls after the last one that it names.
func (x *clientConn) goAway(f *http2.GoAwayFrame) {
	x.client.gone(x)
	x.mu.Lock()
	var unmade []*call
	for id, k := range x.calls {
		if id > f.LastStreamID {
			unmade = append(unmade, k)
		}
	}
	for _, k := range unmade {
		x.remove(k)
	}
	x.mu.Unlock()
	for _, k := range unmade {
		k.unmade = true
		k.done <- struct{}{}
	}
	x.retire()
}

// headers handles the first or the last headers of a response.
func (x *clientConn) headers(f *http2.MetaHeadersFrame) {
	k := x.call(f.StreamID)
	if k == nil {
		return
	}
	if f.Truncated {
		x.abort(k, http2.ErrCodeFrameSize, status.Error(codes.Internal, "headers of a response are too large"))
		return
	}
	if !k.started {
		k.started = true
		code := f.PseudoValue("status")
		isGRPC := slices.ContainsFunc(f.Fields, func(f hpack.HeaderField) bool {
			_, ok := contentSubtype(f.Value)
			return f.Name == "content-type" && ok
		})
		if code != "200" || !isGRPC {
			x.abort(k, http2.ErrCodeCancel, httpError(code))
			return
		}
		if !f.StreamEnded() {
			return
		}
	}
	if !f.StreamEnded() {
		x.abort(k, http2.ErrCodeProtocol, status.Error(codes.Internal, "headers amid a response"))
		return
	}
	err := statusOf(f.Fields)
	if err == nil && !k.whole {
		err = status.Error(codes.Internal, "no response, and no error")
	}
	x.finish(k, err)
}

// data handles a part of a response.
func (x *clientConn) data(f *http2.DataFrame) error {
	size := f.Header().Length
	x.mu.Lock()
	fits := x.window.receive(size)
	back := x.window.read(size)
	k := x.calls[f.StreamID]
	x.mu.Unlock()
	if !fits {
		return http2.ConnectionError(http2.ErrCodeFlowControl)
	}
	if back > 0 {
		x.out.control(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(0, back) })
	}
	if k == nil {
		return nil
	}
	if !k.in.receive(size) {
		x.abort(k, http2.ErrCodeFlowControl, status.Error(codes.Internal, "more than the window"))
		return nil
	}
	if err := x.part(k, f.Data()); err != nil {
		x.abort(k, http2.ErrCodeCancel, err)
		return nil
	}
	if f.StreamEnded() {
		x.finish(k, status.Error(codes.Internal, "a response without a status"))
		return nil
	}
	if back := k.in.read(size); back > 0 {
		x.out.control(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(k.id, back) })
	}
	return nil
}

func (x *clientConn) part(k *call, data []byte) error {
	if !k.started {
		return status.Error(codes.Internal, "data before headers")
	}
	if len(data) == 0 {
		return nil
	}
	if k.whole {
		return status.Error(codes.Internal, "more than one response")
	}
	rest, done, err := k.response.add(data, k.most, x.client.Pool)
	switch {
	case err != nil:
		return err
	case done && k.response.prefix[0] != 0:
		return status.Error(codes.Internal, "a response is compressed, and was not asked to be")
	case done && len(rest) > 0:
		return status.Error(codes.Internal, "more than one response")
	}
	k.whole = done
	return nil
}
