package h2

import (
	"cmp"
	"errors"
	"maps"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// ServerConfig configures a [Server].
type ServerConfig struct {
	Options
	// Credentials authenticate clients; required.
	Credentials credentials.TransportCredentials
	// Handle serves a call; required. It is called concurrently. Its error, a gRPC status, is the
	// status of the call. It returns soon after the call's context ends.
	Handle func(*Stream) error
	// RequestBytes and ResponseBytes are the sizes of the largest messages from and to a client;
	// required.
	RequestBytes, ResponseBytes int
	// Streams is the largest number of calls in progress on a connection; required.
	Streams uint32
	// Count, if not nil, is told of each change in the memory of messages that calls have not received
	// yet, in bytes, beyond 16 KiB of each call. It must not block. If it returns an error for more, a
	// gRPC status, the call receives the error.
	Count func(auth credentials.AuthInfo, more int) error
	// Patience is how long a client may take to send the rest of a message, or the next 64 KiB of it; a
	// minute if 0. Then the call receives an error.
	Patience time.Duration
	// Setup is how long a client may take to begin HTTP/2 after the handshake; 10 seconds if 0.
	Setup time.Duration
	// KeepaliveTime is how long a client may be silent before it is pinged; 2 minutes if 0.
	// KeepaliveTimeout is how long it may take to answer; 20 seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// PingPause is how long clients should wait between pings; 5 seconds if 0. Clients that ping
	// more often are disconnected.
	PingPause time.Duration
}

// Server serves gRPC. Its methods are those of [google.golang.org/grpc.Server].
type Server struct {
	ServerConfig
	work chan *Stream // to idle workers
	// over is closed by end once there are no connections any more.
	over    chan struct{}
	end     func()
	workers sync.WaitGroup

	mu        sync.Mutex
	conns     map[net.Conn]*serverConn // nil during the handshake
	listeners map[net.Listener]struct{}
	draining  bool
	serving   sync.WaitGroup
}

// NewServer returns a Server.
func NewServer(cfg ServerConfig) *Server {
	cfg.Options = cfg.Options.withDefaults()
	cfg.Patience = cmp.Or(cfg.Patience, time.Minute)
	cfg.Setup = cmp.Or(cfg.Setup, 10*time.Second)
	cfg.KeepaliveTime = cmp.Or(cfg.KeepaliveTime, 2*time.Minute)
	cfg.KeepaliveTimeout = cmp.Or(cfg.KeepaliveTimeout, 20*time.Second)
	cfg.PingPause = cmp.Or(cfg.PingPause, 5*time.Second)
	s := &Server{
		ServerConfig: cfg,
		work:         make(chan *Stream),
		over:         make(chan struct{}),
		conns:        make(map[net.Conn]*serverConn),
		listeners:    make(map[net.Listener]struct{}),
	}
	s.end = sync.OnceFunc(func() { close(s.over) })
	return s
}

// Serve serves connections to a listener until the listener fails or the server ends, and closes the listener.
// The error is nil if the server ended.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	const most = time.Second
	pause := 5 * time.Millisecond
	for {
		raw, err := l.Accept()
		switch {
		case err == nil:
			pause = 5 * time.Millisecond
			s.accept(raw)
			continue
		case s.ending():
			return nil
		case !temporary(err):
			return err
		}
		time.Sleep(pause) // such as for too many open files
		pause = min(2*pause, most)
	}
}

// temporary reports whether another accept(2) may succeed after an error.
func temporary(err error) bool {
	var is interface{ Temporary() bool }
	return errors.As(err, &is) && is.Temporary()
}

func (s *Server) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

// accept serves a connection in the background.
func (s *Server) accept(raw net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		raw.Close()
		return
	}
	s.conns[raw] = nil
	s.serving.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.conns, raw)
			s.mu.Unlock()
		}()
		conn, auth, err := s.Credentials.ServerHandshake(raw)
		if err != nil {
			return // ServerHandshake has closed raw
		}
		c := newServerConn(s, conn, auth)
		s.mu.Lock()
		served := !s.draining
		if served {
			s.conns[raw] = c
		}
		s.mu.Unlock()
		if !served {
			c.kill()
			return
		}
		c.serve()
	})
}

// GracefulStop refuses new connections and calls, and waits until the calls in progress have ended.
func (s *Server) GracefulStop() {
	for _, c := range s.close() {
		if c != nil {
			go c.drain()
		}
	}
	s.wait()
}

// Stop ends all connections and their calls.
func (s *Server) Stop() {
	for raw, c := range s.close() {
		if c != nil {
			go c.kill() // it may block behind a client that does not read
		} else {
			raw.Close()
		}
	}
	s.wait()
}

// wait waits until all connections and calls have ended.
func (s *Server) wait() {
	s.serving.Wait()
	s.end()
	s.workers.Wait()
}

// close closes the listeners, and returns the connections.
func (s *Server) close() map[net.Conn]*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for l := range s.listeners {
		l.Close()
	}
	return maps.Clone(s.conns)
}

// rest is how long an idle worker waits for a call.
const rest = 10 * time.Second

// run serves a call in an idle worker, whose stack has grown already, or in a new one.
func (s *Server) run(call *Stream) {
	select {
	case s.work <- call:
	default:
		s.workers.Go(func() { s.worker(call) })
	}
}

func (s *Server) worker(call *Stream) {
	idle := time.NewTimer(rest)
	defer idle.Stop()
	for {
		call.conn.call(call)
		idle.Reset(rest)
		select {
		case call = <-s.work:
		case <-idle.C:
			return
		case <-s.over:
			return
		}
	}
}
