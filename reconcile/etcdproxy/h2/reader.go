package h2

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	frameHeader = 9
	// maxKnown is how many blocks of headers the reader remembers, with at most maxBlock bytes each.
	maxKnown, maxBlock = 8, 32
)

// reader reads frames. Headers come as [http2.MetaHeadersFrame].
type reader struct {
	buf    *bufio.Reader
	framer *http2.Framer
	// known are blocks of headers that did not change the decoder's table. The same bytes are the
	// same headers until another block changes it.
	known []known
	next  int // the index of the one to replace next

	head http2.HeadersFrame
	meta http2.MetaHeadersFrame
}

type known struct {
	block  []byte
	fields []hpack.HeaderField // are not changed
}

func newReader(from io.Reader, size int, o Options) *reader {
	r := &reader{buf: bufio.NewReaderSize(from, size)}
	r.framer = http2.NewFramer(io.Discard, r.buf)
	r.framer.SetReuseFrames()
	r.framer.SetMaxReadFrameSize(maxFrame)
	r.framer.MaxHeaderListSize = o.HeaderBytes
	r.framer.ReadMetaHeaders = hpack.NewDecoder(4<<10, nil)
	return r
}

// read returns the next frame, which is valid until the next call. Errors are those of
// [http2.Framer.ReadFrame].
func (r *reader) read() (http2.Frame, error) {
	if r.buf.Buffered() == 0 {
		if _, err := r.buf.Peek(1); err != nil {
			return nil, err
		}
	}
	block := r.block()
	for i := range r.known {
		if k := &r.known[i]; block != nil && bytes.Equal(block, k.block) {
			return r.again(k), nil
		}
	}
	block = bytes.Clone(block) // the framer is about to overwrite it
	f, err := r.framer.ReadFrame()
	is, ok := f.(*http2.MetaHeadersFrame)
	switch {
	case err == nil && !ok:
	case err != nil || block == nil:
		r.known = r.known[:0] // the decoder's table may have changed
	case is.Truncated:
	case len(r.known) < maxKnown:
		r.known = append(r.known, known{block, is.Fields})
	default:
		r.known[r.next] = known{block, is.Fields}
		r.next = (r.next + 1) % maxKnown
	}
	return f, err
}

// block returns the block of headers in the next frame if it is indexed and buffered as a whole; otherwise nil.
func (r *reader) block() []byte {
	if r.buf.Buffered() < frameHeader {
		return nil
	}
	head, _ := r.buf.Peek(frameHeader)
	const flags = http2.FlagHeadersEndHeaders | http2.FlagHeadersPadded | http2.FlagHeadersPriority
	size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	if http2.FrameType(head[3]) != http2.FrameHeaders || http2.Flags(head[4])&flags != http2.FlagHeadersEndHeaders ||
		streamOf(head) == 0 || size == 0 || size > maxBlock || r.buf.Buffered() < frameHeader+size {
		return nil
	}
	frame, _ := r.buf.Peek(frameHeader + size)
	if block := frame[frameHeader:]; indexed(block) {
		return block
	}
	return nil
}

func streamOf(head []byte) uint32 { return binary.BigEndian.Uint32(head[5:]) &^ (1 << 31) }

// again returns the next frame, which has known headers.
func (r *reader) again(k *known) http2.Frame {
	head, _ := r.buf.Peek(frameHeader)
	r.head.FrameHeader = http2.FrameHeader{
		Type: http2.FrameHeaders, Flags: http2.Flags(head[4]), Length: uint32(len(k.block)), StreamID: streamOf(head),
	}
	_, _ = r.buf.Discard(frameHeader + len(k.block))
	r.meta = http2.MetaHeadersFrame{HeadersFrame: &r.head, Fields: k.fields}
	return &r.meta
}

// indexed reports whether a block of headers consists of references to the table, of one byte each. Such a
// block does not change the table.
func indexed(block []byte) bool {
	const mark, more = 0x80, 0xff // the bit of a reference, and the start of a longer one
	for _, b := range block {
		if b <= mark || b == more {
			return false
		}
	}
	return true
}
