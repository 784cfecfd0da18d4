package etcdproxy

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a message as bytes. One that was received is freed by who received it; one that
// is sent is freed by gRPC.
type frame struct {
	buf mem.Buffer
	// taken says that gRPC has taken it to be sent.
	taken bool
}

// bytes are valid until the frame is freed.
func (f *frame) bytes() []byte { return f.buf.ReadOnlyData() }

func (f *frame) free() {
	if f.buf != nil {
		f.buf.Free()
		f.buf = nil
	}
}

// lend returns the frame to be sent in a call that may be made again. It is to be reclaimed.
func (f *frame) lend() *frame {
	f.buf.Ref()
	return &frame{buf: f.buf}
}

// reclaim frees a frame that was lent, unless gRPC does: a call without a connection takes nothing.
func (f *frame) reclaim() {
	if !f.taken {
		f.free()
	}
}

// outcome is that of a call with the frame as its response.
func (f *frame) outcome(err error) Outcome {
	if err != nil || f.buf == nil {
		return Outcome{Err: err}
	}
	return Outcome{Bytes: f.buf.Len(), Response: f.bytes()}
}

// pool is where messages are. Memory is cleared when it is taken, so there are more sizes than gRPC's
// own pool has, where what is larger than 32 KiB takes 1 MiB.
var pool = func() mem.BufferPool {
	p, err := mem.NewBinaryTieredBufferPool(8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20)
	if err != nil {
		panic(err) // for sizes that cannot be
	}
	return p
}()

// rewritten returns a frame with what write appends; size is about what that will be.
func rewritten(size int, write func(dst []byte) ([]byte, error)) (frame, error) {
	return rewrittenInto(func(room *[]byte) mem.Buffer { return mem.NewBuffer(room, pool) }, size, write)
}

// rewrittenInto is rewritten with a function that makes a buffer of memory from the pool.
func rewrittenInto(buffer func(*[]byte) mem.Buffer, size int, write func(dst []byte) ([]byte, error)) (frame, error) {
	room := pool.Get(size)
	if cap(*room) > size+size/8 && size > smallResponse/2 {
		// Large ones have any size, and what is counted is what is taken.
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

// codec hands messages through as frames. It implements [google.golang.org/grpc/encoding.CodecV2].
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

// Name is that of protobuf: what is inside.
func (codec) Name() string { return "proto" }
