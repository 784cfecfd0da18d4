package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
)

// streamSession is a session with a service by its standard input and output.
type streamSession struct {
	alive  func()
	stdin  io.Writer
	out    *pktReader
	stderr boundedText
	wait   func() // waits until the service has ended
	stop   func() // ends the service
}

func (s *streamSession) greeting(context.Context) (*pktReader, error) { return s.out, nil }

func (s *streamSession) request(_ context.Context, body []byte) (*pktReader, error) {
	for len(body) > 0 {
		n, err := s.stdin.Write(body[:min(len(body), 64<<10)])
		if err != nil {
			break // the server has ended; its answer may say why
		}
		s.alive()
		body = body[n:]
	}
	return s.out, nil
}

func (s *streamSession) close() { s.stop() }

// explain adds the server's stderr to the error if the server has ended, or refused a push
// without a text.
func (s *streamSession) explain(err error) error {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		if refused.Text == "" {
			s.wait()
			refused.Text = clean(s.stderr.String())
		}
		return err
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	s.wait() // for stderr, which ends too
	if text := s.stderr.String(); strings.TrimSpace(text) != "" {
		return newServerError(text)
	}
	return fmt.Errorf("the server ended the conversation: %w", err)
}

// boundedText keeps the first bytes written to it.
type boundedText struct {
	mu  sync.Mutex
	buf []byte
}

func (b *boundedText) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf = append(b.buf, p[:min(len(p), maxSidebandText-len(b.buf))]...)
	return len(p), nil
}

func (b *boundedText) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.buf)
}
