package etcdproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a message as bytes. The receiver frees a frame that it received; gRPC frees one that is sent.
type frame struct {
	buf   mem.Buffer
	taken bool // by gRPC, to be sent
}

// bytes are valid until the frame is freed.
func (f *frame) bytes() []byte { return f.buf.ReadOnlyData() }

func (f *frame) free() {
	if f.buf != nil {
		f.buf.Free()
		f.buf = nil
	}
}

// lend returns a second reference to the frame, to send in a call that may be made again. The caller
// reclaims it.
func (f *frame) lend() *frame {
	f.buf.Ref()
	return &frame{buf: f.buf}
}

// reclaim frees a lent frame unless gRPC does: a call without a connection does not take it.
func (f *frame) reclaim() {
	if !f.taken {
		f.free()
	}
}

// outcome returns the outcome of a call with the frame as its response.
func (f *frame) outcome(err error) Outcome {
	if err != nil || f.buf == nil {
		return Outcome{Err: err}
	}
	return Outcome{Bytes: f.buf.Len(), Response: f.bytes()}
}

// pool has the memory of messages. It clears memory on Get, so it has more sizes than gRPC's own pool,
// where anything above 32 KiB takes 1 MiB.
var pool = func() mem.BufferPool {
	p, err := mem.NewBinaryTieredBufferPool(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
	if err != nil {
		panic(err) // the sizes are invalid
	}
	return p
}()

// rewritten returns a frame with the bytes that write appends, about size of them.
func rewritten(size int, write func(dst []byte) ([]byte, error)) (frame, error) {
	return rewrittenInto(func(room *[]byte) mem.Buffer { return mem.NewBuffer(room, pool) }, size, write)
}

// rewrittenInto is rewritten with a function that makes a buffer from memory of the pool.
func rewrittenInto(buffer func(*[]byte) mem.Buffer, size int, write func(dst []byte) ([]byte, error)) (frame, error) {
	room := pool.Get(max(size, 1)) // for 0 it gives the memory of any large message
	if cap(*room) > size+size/8 && size > smallResponse/2 {
		// Large messages take exactly what is counted for them.
		pool.Put(room)
		exact := make([]byte, 0, size)
		room = &exact
	}
	out, err := write((*room)[:0])
	if err != nil {
		pool.Put(room)
		return frame{}, err
	}
	*room = out
	return frame{buf: buffer(room)}, nil
}

// codec passes messages as frames. It implements [google.golang.org/grpc/encoding.CodecV2].
type codec struct{}

// Marshal returns the bytes of a frame, which gRPC frees.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("%T is not a frame", v)
	}
	f.taken = true
	return mem.BufferSlice{f.buf}, nil
}

// Unmarshal keeps the bytes of a message in a frame.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("%T is not a frame", v)
	}
	f.buf = data.MaterializeToBuffer(pool)
	return nil
}

// Name returns the name of protobuf, the content of the frames.
func (codec) Name() string { return "proto" }
