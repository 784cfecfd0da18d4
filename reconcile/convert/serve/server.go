// Package serve is what is around a [convert.Handler]: TLS with a certificate that is
// replaced while it is used (certificates.go), the server and its end (server.go), the
// ConfigMaps of a cluster that rules are read from (follow.go), and the daemon's part,
// for clusters that reach the daemon by URL (daemon.go).
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/status"
)

const (
	// leaving is how long a server goes on that is to end: until no API server has
	// its address any more. Meanwhile it is not ready.
	leaving = 5 * time.Second
	// ending is how long requests may take then.
	ending = 20 * time.Second
	// streams is how many reviews a connection has at a time, and streamRoom how much of
	// one is taken before it is read. Large reviews wait for one another unread: the room
	// of the connection must hold what all have sent, or those that are read get no more.
	// The room of a connection is less than 4 MiB.
	streams, streamRoom = 60, 64 << 10
)

// Server serves a handler.
type Server struct {
	// Address is what it listens on.
	Address net.Addr

	server  *http.Server
	leaving atomic.Bool
}

// Listen serves a handler on an address. It calls failed if serving ends before
// [Server.End].
func Listen(address string, handler *convert.Handler, c *Certificates, log *slog.Logger, failed func(error)) (*Server, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{Address: listener.Addr()}
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.leaving.Load() {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
		TLSConfig: c.Config(),
		// API servers keep connections for 90 s without requests. They end them, so that
		// no request meets one that ends.
		IdleTimeout: 10 * time.Minute, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerStream: streamRoom, MaxReceiveBufferPerConnection: streams * streamRoom},
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug), // handshakes of others
	}
	go func() {
		if err := s.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return s, nil
}

// Leave has every connection end with its next answer, which tells the client to open
// another one. An API server that uses one all the time would send a request into its end
// sooner or later, and does not send it again.
func (s *Server) Leave() { s.leaving.Store(true) }

// End waits for the requests under way, and stops serving.
func (s *Server) End() {
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	defer cancel()
	_ = s.server.Shutdown(ctx) // the process ends anyway
}

// Config configures [Run].
type Config struct {
	// Bind is the address to listen on; empty for all of the machine. Port is for
	// reviews, HealthPort for /healthz, /readyz and /metrics, without TLS.
	Bind             string
	Port, HealthPort string
	// TLSDir is the directory of the certificate; see [Certificates].
	TLSDir string
	// Follower has the rules; required.
	Follower *Follower
	// Log gets what happens; required.
	Log *slog.Logger
}

// Run serves the rules of a cluster until ctx ends: the process behind the Deployment
// of render/converter.
func Run(ctx context.Context, c Config) error {
	certificates, err := LoadCertificates(c.TLSDir, c.Log)
	if err != nil {
		return err
	}
	handler, err := convert.New(convert.Config{Table: c.Follower.Table, Log: c.Log})
	if err != nil {
		return err
	}
	failures := make(chan error, 2)
	failed := func(err error) {
		select {
		case failures <- err:
		default:
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		why := c.Follower.Unready()
		if ctx.Err() != nil {
			why = "it is ending"
		}
		if why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", status.MetricsHandler(handler.Conversions))
	health, err := net.Listen("tcp", net.JoinHostPort(c.Bind, c.HealthPort))
	if err != nil {
		return fmt.Errorf("the port for health: %w", err)
	}
	beside := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() {
		if err := beside.Serve(health); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	defer beside.Close()
	server, err := Listen(net.JoinHostPort(c.Bind, c.Port), handler, certificates, c.Log, failed)
	if err != nil {
		return err
	}
	defer server.End()
	c.Log.Info("serving conversions", "address", server.Address.String(), "health", health.Addr().String())
	// What is followed is used to the end.
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	go certificates.Follow(following)
	go c.Follower.Run(following)
	select {
	case err := <-failures:
		return err
	case <-ctx.Done():
	}
	c.Log.Info("ending; requests are served for a moment more", "for", leaving)
	server.Leave()
	select {
	case err := <-failures:
		return err
	case <-time.After(leaving):
	}
	return nil
}
