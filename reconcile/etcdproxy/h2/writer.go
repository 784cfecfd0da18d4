package h2

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Answers to pings wait. grpc-go's clients send a ping with most of the data that they receive, once the last
// ping was answered, to estimate the bandwidth; each one costs more than most frames. After pongDelay an answer
// goes with the next write, and after maxDelay by itself. At most maxPongs wait.
const (
	pongDelay = 5 * time.Millisecond
	maxDelay  = 20 * time.Millisecond
	maxPongs  = 32
)

// pendingBytes is how many bytes may be pending before senders have to wait.
const pendingBytes = 64 << 10

// writer sends frames. A sender locks it, adds its frames to the pending ones, and flushes: it writes all of
// them, unless another goroutine is writing, which then writes them next.
type writer struct {
	to io.Writer

	mu      sync.Mutex
	framer  *http2.Framer // adds to pending
	block   bytes.Buffer
	hpack   *hpack.Encoder
	table   int // counts the changes of the encoder's table
	fixed   map[*fixed]encoded
	pending *[]byte // nil if empty
	writing bool
	yields  bool        // a goroutine in flushWith is about to write
	writes  uint64      // number of writes begun
	pongs   [][8]byte   // answers to pings that wait
	ponged  time.Time   // when the first of them began to wait
	timer   *time.Timer // calls flushPongs; nil before the first ping
	timed   bool        // timer runs
	err     error
	room    chan struct{} // closed when pending is taken; nil if nobody waits
	// failed is closed when err is set.
	failed chan struct{}
	// end is called after the last write; nil while there may be more.
	end func()
}

// buffers has the memory of pending frames. Idle connections have none.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 8<<10)
	return &b
}}

func newWriter(to io.Writer) *writer {
	w := &writer{to: to, failed: make(chan struct{}), table: 1, fixed: make(map[*fixed]encoded)}
	w.framer = http2.NewFramer((*pending)(w), nil)
	w.hpack = hpack.NewEncoder(&w.block)
	return w
}

// pending is the writer of a writer's framer. The caller holds w.mu.
type pending writer

// Write implements [io.Writer].
func (p *pending) Write(b []byte) (int, error) {
	(*writer)(p).add(b)
	return len(b), nil
}

// add adds bytes of frames to the pending ones. The caller holds w.mu.
func (w *writer) add(b []byte) {
	if w.err != nil {
		return
	}
	if w.pending == nil {
		w.pending = buffers.Get().(*[]byte)
	}
	*w.pending = append(*w.pending, b...)
}

// fixed are headers that are sent often.
type fixed []hpack.HeaderField

// encoded are encoded headers. They are valid for one version of the table.
type encoded struct {
	table int
	block []byte
}

// headers adds headers: the fixed ones, which may be nil, and more. They are continued in further frames if they
// do not fit into one. The caller holds w.mu.
func (w *writer) headers(stream uint32, end bool, fields *fixed, more ...hpack.HeaderField) {
	w.block.Reset()
	if fields != nil {
		w.encodeFixed(fields)
	}
	for _, f := range more {
		w.encode(f)
	}
	block := w.block.Bytes()
	flags := http2.FlagHeadersEndHeaders
	if end {
		flags |= http2.FlagHeadersEndStream
	}
	if len(block) <= maxFrame {
		w.frame(http2.FrameHeaders, flags, stream, block, nil)
		return
	}
	w.frame(http2.FrameHeaders, flags&^http2.FlagHeadersEndHeaders, stream, block[:maxFrame], nil)
	for block = block[maxFrame:]; len(block) > 0; {
		next := block[:min(len(block), maxFrame)]
		block = block[len(next):]
		_ = w.framer.WriteContinuation(stream, len(block) == 0, next) // into memory
	}
}

// encodeFixed adds headers to the block, from the cache if the table has not changed.
func (w *writer) encodeFixed(fields *fixed) {
	if is := w.fixed[fields]; is.table == w.table {
		w.block.Write(is.block)
		return
	}
	for _, f := range *fields {
		w.encode(f)
	}
	if block := w.block.Bytes(); indexed(block) {
		w.fixed[fields] = encoded{w.table, bytes.Clone(block)}
	}
}

// encode adds a header to the block. Sensitive headers are in no table.
func (w *writer) encode(f hpack.HeaderField) {
	before := w.block.Len()
	_ = w.hpack.WriteField(f) // into memory
	if !f.Sensitive && !indexed(w.block.Bytes()[before:]) {
		w.table++
	}
}

// tableSize sets the size of the table. The next headers announce it.
func (w *writer) tableSize(size uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hpack.SetMaxDynamicTableSize(size)
	w.table++
}

// data adds a DATA frame with two parts. The caller holds w.mu.
func (w *writer) data(stream uint32, end bool, head, tail []byte) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	w.frame(http2.FrameData, flags, stream, head, tail)
}

// frame adds a frame with two parts. It copies them once; the framer would copy twice. The caller holds w.mu.
func (w *writer) frame(is http2.FrameType, flags http2.Flags, stream uint32, head, tail []byte) {
	n := len(head) + len(tail)
	header := [frameHeader]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(is), byte(flags)}
	binary.BigEndian.PutUint32(header[5:], stream)
	w.add(header[:])
	w.add(head)
	w.add(tail)
}

// full reports whether senders have to wait. The caller holds w.mu.
func (w *writer) full() bool { return w.pending != nil && len(*w.pending) >= pendingBytes }

// flushWith is flush after other goroutines that are about to send had their turn, which costs less than a
// write.
func (w *writer) flushWith() {
	if !w.writing && !w.yields {
		w.yields = true
		w.mu.Unlock()
		runtime.Gosched()
		w.mu.Lock()
		w.yields = false
		w.flush()
		return
	}
	w.mu.Unlock()
}

// flush writes what is pending, unless another goroutine is writing. The caller holds w.mu; flush unlocks it.
func (w *writer) flush() {
	if w.writing {
		w.mu.Unlock()
		return
	}
	w.writing = true
	for w.pending != nil && w.err == nil {
		if len(w.pongs) > 0 && time.Since(w.ponged) >= pongDelay {
			w.addPongs()
		}
		out := w.pending
		w.pending = nil
		w.writes++
		w.admit()
		w.mu.Unlock()
		_, err := w.to.Write(*out)
		if cap(*out) <= 2*pendingBytes {
			*out = (*out)[:0]
			buffers.Put(out)
		}
		w.mu.Lock()
		w.fail(err)
	}
	w.writing = false
	end := w.end
	if end != nil {
		w.end = nil
		w.fail(net.ErrClosed)
	}
	w.mu.Unlock()
	if end != nil {
		end()
	}
}

// underWay returns the number of the write in progress; 0 for none.
func (w *writer) underWay() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.writing {
		return 0
	}
	return w.writes
}

// fail sets w.err, unless err is nil. The caller holds w.mu.
func (w *writer) fail(err error) {
	if err == nil || w.err != nil {
		return
	}
	w.err = err
	w.pending = nil
	close(w.failed)
	w.admit()
}

// admit wakes the goroutines that wait for room. The caller holds w.mu.
func (w *writer) admit() {
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
}

// lock locks w.mu once there is room or the writer has failed. It returns false, without the lock, if done is
// closed before.
func (w *writer) lock(done <-chan struct{}) bool {
	w.mu.Lock()
	for w.err == nil && w.full() {
		if !w.writing {
			w.flush()
			w.mu.Lock()
			continue
		}
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		select {
		case <-room:
		case <-done:
			return false
		}
		w.mu.Lock()
	}
	return true
}

// control sends a frame that answers one of the other side. The reader's goroutine calls it, so that a peer that
// does not read is not read from, either.
func (w *writer) control(frame func(*http2.Framer) error) {
	w.lock(nil)
	_ = frame(w.framer) // into memory
	w.flush()
}

// pong answers a ping, usually later.
func (w *writer) pong(data [8]byte) {
	w.lock(nil)
	if len(w.pongs) == 0 {
		w.ponged = time.Now()
	}
	w.pongs = append(w.pongs, data)
	switch {
	case len(w.pongs) >= maxPongs:
		w.addPongs()
		w.flush()
		return
	case w.timed:
	case w.timer == nil:
		w.timer = time.AfterFunc(maxDelay, w.flushPongs)
	default:
		w.timer.Reset(maxDelay)
	}
	w.timed = true
	w.mu.Unlock()
}

// addPongs adds the answers that wait. The caller holds w.mu.
func (w *writer) addPongs() {
	for _, data := range w.pongs {
		_ = w.framer.WritePing(true, data) // into memory
	}
	w.pongs = w.pongs[:0]
}

// flushPongs sends answers that have waited long enough.
func (w *writer) flushPongs() {
	w.mu.Lock()
	left := maxDelay - time.Since(w.ponged)
	w.timed = len(w.pongs) > 0 && left > 0 && w.err == nil
	if w.timed { // those that it was set for have gone
		w.timer.Reset(left)
		w.mu.Unlock()
		return
	}
	w.addPongs()
	w.flush()
}
