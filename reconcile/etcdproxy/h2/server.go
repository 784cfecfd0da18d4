package h2

import (
	"cmp"
	"errors"
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
	// Handle serves a call; required. It may be called many times at the same time. Its error, a
	// status of gRPC, is the answer, and it ends soon after the call's context does.
	Handle func(*Stream) error
	// RequestBytes is the size of the largest message of a client, and ResponseBytes of the
	// largest for one; required.
	RequestBytes, ResponseBytes int
	// Streams is how many calls of a connection may be in progress; required.
	Streams uint32
	// Setup is how long a client may take until it speaks HTTP/2; 10 seconds if 0.
	Setup time.Duration
	// KeepaliveTime is after which silence a client is asked whether it is there, and
	// KeepaliveTimeout how long it may take to answer; 2 minutes and 20 seconds if 0.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// PingPause is how long clients are to wait between pings; 5 seconds if 0. Those that send
	// more are disconnected.
	PingPause time.Duration
}

// Server serves gRPC. Its methods are those of grpc-go's server.
type Server struct {
	ServerConfig
	work chan *Stream // to workers that have nothing to do
	// over is closed once there are no connections any more, and end closes it.
	over    chan struct{}
	end     func()
	workers sync.WaitGroup

	mu        sync.Mutex
	conns     map[net.Conn]*serverConn // nil until it is authenticated
	listeners map[net.Listener]struct{}
	draining  bool
	serving   sync.WaitGroup
}

// NewServer returns a Server.
func NewServer(cfg ServerConfig) *Server {
	cfg.Options = cfg.Options.withDefaults()
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

// Serve serves connections to a listener until it fails or the server ends, and closes it. The error
// is nil if the server ended.
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
		time.Sleep(pause) // there are too many connections
		pause = min(2*pause, most)
	}
}

// temporary reports an error of accept(2) after which another may succeed.
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
			return // it is closed
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

// GracefulStop accepts no more connections and calls, and waits until those in progress have ended.
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
			go c.kill() // which may wait for a client to read
		} else {
			raw.Close()
		}
	}
	s.wait()
}

// wait waits until everything has ended. No connections are accepted any more.
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
	all := make(map[net.Conn]*serverConn, len(s.conns))
	for raw, c := range s.conns {
		all[raw] = c
	}
	return all
}

// rest is how long a goroutine waits for more calls to make.
const rest = 10 * time.Second

// run makes a call in a goroutine that has made others, if there is one: its stack has grown already.
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
