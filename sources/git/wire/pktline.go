package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gitopsd.dev/sources"
)

// packet is the kind of one packet in a stream.
type packet int

const (
	dataPacket  packet = iota
	flushPacket        // "0000", the end of a message
	delimPacket        // "0001", the end of a section
	endPacket          // "0002", the end of a response
)

// maxPacket bounds the content of a packet (gitprotocol-common(5)).
const maxPacket = 65516

// pktReader reads the packets of a stream.
type pktReader struct {
	r     *bufio.Reader
	alive func() // called for each packet, see watchdog
	left  int64  // bytes that may still come
	buf   []byte
}

func newPktReader(r io.Reader, alive func()) *pktReader {
	return &pktReader{r: bufio.NewReaderSize(r, 32<<10), alive: alive, left: maxAnswer, buf: make([]byte, 0, 1024)}
}

// next returns the next packet. Its content is valid until the next call. At the end of
// the stream it returns io.ErrUnexpectedEOF, since the end of a message is marked.
func (p *pktReader) next() ([]byte, packet, error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return nil, 0, unexpected(err)
	}
	p.alive()
	if p.left -= int64(len(head)); p.left < 0 {
		return nil, 0, fmt.Errorf("the server sends more than %d MiB: %w", maxAnswer>>20, sources.ErrLimit)
	}
	n, err := strconv.ParseUint(string(head[:]), 16, 16)
	if err != nil {
		return nil, 0, fmt.Errorf("not the Git protocol: the length of a packet is %q", head)
	}
	switch n {
	case 0:
		return nil, flushPacket, nil
	case 1:
		return nil, delimPacket, nil
	case 2:
		return nil, endPacket, nil
	}
	if n < 4 || n > maxPacket+4 {
		return nil, 0, fmt.Errorf("not the Git protocol: a packet of %d bytes", n)
	}
	n -= 4
	p.left -= int64(n)
	if uint64(cap(p.buf)) < n {
		p.buf = make([]byte, 0, maxPacket)
	}
	p.buf = p.buf[:n]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return nil, 0, unexpected(err)
	}
	return p.buf, dataPacket, nil
}

// unexpected returns io.ErrUnexpectedEOF for io.EOF, and other errors unchanged.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// line returns the next packet as a line of text without its newline. It returns an
// error for an ERR packet, which may come in place of any line.
func (p *pktReader) line() (string, packet, error) {
	data, kind, err := p.next()
	if err != nil || kind != dataPacket {
		return "", kind, err
	}
	line := strings.TrimSuffix(string(data), "\n")
	if text, isErr := strings.CutPrefix(line, "ERR "); isErr {
		return "", 0, newServerError(text)
	}
	return line, dataPacket, nil
}

// pktWriter collects the packets of a request.
type pktWriter struct{ buf []byte }

// line adds a text line.
func (w *pktWriter) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...) + "\n"
	w.buf = fmt.Appendf(w.buf, "%04x%s", len(text)+4, text)
}

func (w *pktWriter) flush() { w.buf = append(w.buf, "0000"...) }
func (w *pktWriter) delim() { w.buf = append(w.buf, "0001"...) }

// sideband reads the first channel of a multiplexed stream, up to its flush. The second
// channel, which is for people, is collected in text. The third is a fatal error.
type sideband struct {
	p    *pktReader
	rest []byte
	done bool
	text strings.Builder
}

// maxSidebandText bounds the text of the second channel.
const maxSidebandText = 8 << 10

func (s *sideband) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.done {
			return 0, io.EOF
		}
		data, kind, err := s.p.next()
		if err != nil {
			return 0, err
		}
		if kind != dataPacket {
			s.done = true
			continue
		}
		if len(data) == 0 {
			continue
		}
		switch channel, data := data[0], data[1:]; channel {
		case 1:
			s.rest = data
		case 2:
			s.text.Write(data[:min(len(data), maxSidebandText-s.text.Len())])
		case 3:
			return 0, newServerError(string(data))
		default:
			return 0, fmt.Errorf("not the Git protocol: a packet on channel %d", channel)
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// drain reads up to the end of the message, so that the stream and the connection can be
// used again.
func (s *sideband) drain() error {
	_, err := io.Copy(io.Discard, s)
	return err
}
