package h2

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// prefixSize is the size of the prefix of a message: whether it is compressed, and its size.
const prefixSize = 5

func prefix(size int, compressed bool) (p [prefixSize]byte) {
	if compressed {
		p[0] = 1
	}
	binary.BigEndian.PutUint32(p[1:], uint32(size))
	return p
}

// message is a message that is being received. It takes memory for received bytes, not for announced ones.
type message struct {
	prefix [prefixSize]byte
	have   int // bytes of the prefix
	size   int
	room   *[]byte
}

// add takes the bytes of the message from data, and returns the rest. done reports whether the message is
// whole. A message of more than most bytes is an error.
func (m *message) add(data []byte, most int, pool mem.BufferPool) (rest []byte, done bool, err error) {
	if m.have < prefixSize {
		n := copy(m.prefix[m.have:], data)
		m.have += n
		data = data[n:]
		if m.have < prefixSize {
			return nil, false, nil
		}
		m.size = int(binary.BigEndian.Uint32(m.prefix[1:]))
		if m.size > most {
			return nil, false, status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", m.size, most)
		}
		m.grow(min(m.size, len(data)), pool)
	}
	missing := m.size - len(*m.room)
	take := data[:min(missing, len(data))]
	if need := len(*m.room) + len(take); need > cap(*m.room) {
		m.grow(min(m.size, max(need, 2*cap(*m.room))), pool)
	}
	*m.room = append(*m.room, take...)
	return data[len(take):], len(take) == missing, nil
}

// received returns how many bytes of the message are there, without the prefix.
func (m *message) received() int {
	if m.room == nil {
		return 0
	}
	return len(*m.room)
}

// grow takes memory for size bytes. For none, or for more than the largest size that they have, gRPC's pools may give
// the memory of a message that was much larger; that is not taken.
func (m *message) grow(size int, pool mem.BufferPool) {
	room := new([]byte)
	if size > 0 {
		room = pool.Get(size)
	}
	if cap(*room) > 2*max(size, 1<<20) {
		pool.Put(room)
		room = new(make([]byte, 0, size))
	}
	*room = (*room)[:0]
	if m.room != nil {
		*room = append(*room, *m.room...)
		pool.Put(m.room)
	}
	m.room = room
}

// take returns the bytes of a whole message with their format, 1 for compressed, and begins the next message.
func (m *message) take(pool mem.BufferPool) (buf mem.Buffer, format byte) {
	buf, format = mem.NewBuffer(m.room, pool), m.prefix[0]
	*m = message{}
	return buf, format
}

// discard frees the bytes received so far.
func (m *message) discard(pool mem.BufferPool) {
	if m.room != nil {
		pool.Put(m.room)
	}
	*m = message{}
}

// decompress returns the content of a message in a format, and frees the message. The error texts are grpc-go's.
func decompress(buf mem.Buffer, format byte, name string, most int, pool mem.BufferPool) (mem.Buffer, error) {
	if format == 0 {
		return buf, nil
	}
	defer buf.Free()
	switch {
	case format != 1:
		return nil, status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", format)
	case name == "" || name == encoding.Identity:
		return nil, status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
	}
	r, err := encoding.GetCompressor(name).Decompress(mem.BufferSlice{buf}.Reader())
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: failed to decompress the message: %v", err)
	}
	if closer, ok := r.(io.Closer); ok {
		defer closer.Close()
	}
	out, err := mem.ReadAll(io.LimitReader(r, int64(most)+1), pool)
	if err == nil && out.Len() > most {
		out.Free()
		return nil, status.Errorf(codes.ResourceExhausted, "grpc: received message after decompression larger than max %d", most)
	}
	if err != nil {
		out.Free()
		return nil, status.Errorf(codes.Internal, "grpc: failed to read decompressed data: %v", err)
	}
	defer out.Free()
	return out.MaterializeToBuffer(pool), nil
}

// compress returns a compressed message, and frees the original.
func compress(buf mem.Buffer, name string, pool mem.BufferPool) (mem.Buffer, error) {
	defer buf.Free()
	var out mem.BufferSlice
	w, err := encoding.GetCompressor(name).Compress(mem.NewWriter(&out, pool))
	if err == nil {
		_, err = w.Write(buf.ReadOnlyData())
	}
	if err == nil {
		err = w.Close()
	}
	defer out.Free()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "grpc: error while compressing: %v", err)
	}
	return out.MaterializeToBuffer(pool), nil
}
