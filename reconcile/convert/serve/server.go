// Package serve serves a [convert.Handler]: over TLS, with a certificate that can be replaced
// at any time (certificates.go), by a server with a graceful end (server.go). The rules are
// from ConfigMaps of a cluster (follow.go), or from the daemon for clusters that reach it by
// URL (daemon.go).
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
	"gitopsd.dev/reconcile/listener"
	"gitopsd.dev/reconcile/status"
)

const (
	// leaving is how long a server goes on when it must end, until no API server has its
	// address any more. Meanwhile it is not ready.
	leaving = 5 * time.Second
	// ending is how long requests may then take.
	ending = 20 * time.Second
	// streams is the number of reviews on a connection at a time, and streamRoom the receive
	// buffer for each. Large reviews wait for one another unread, so the buffer of the
	// connection must hold what all have sent: otherwise the one that is read gets no more
	// data. That buffer must be smaller than 4 MiB.
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
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &Server{Address: l.Addr()}
	s.server = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s.leaving.Load() {
				w.Header().Set("Connection", "close")
			}
			handler.ServeHTTP(w, r)
		}),
		TLSConfig: c.Config(),
		// API servers close idle connections after 90 s. If the server did, a request could
		// be lost.
		IdleTimeout: 10 * time.Minute, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
		HTTP2:          &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerStream: streamRoom, MaxReceiveBufferPerConnection: streams * streamRoom},
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug), // handshakes of others
	}
	go func() {
		if err := s.server.ServeTLS(listener.Patient(l, log), "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return s, nil
}

// Leave closes every connection with its next answer, which announces it. Otherwise an API
// server could send a request on a connection that ends, and it does not send it again.
func (s *Server) Leave() { s.leaving.Store(true) }

// End waits for the requests under way, and stops serving.
func (s *Server) End() {
	ctx, cancel := context.WithTimeout(context.Background(), ending)
	defer cancel()
	_ = s.server.Shutdown(ctx) // the process ends anyway
}

// Config configures [Run].
type Config struct {
	// Bind is the address to listen on; empty for all addresses. Port is for reviews, and
	// HealthPort for /healthz, /readyz and /metrics, without TLS.
	Bind             string
	Port, HealthPort string
	// TLSDir is the directory of the certificate; see [Certificates].
	TLSDir string
	// Follower provides the rules; required.
	Follower *Follower
	// Log is required.
	Log *slog.Logger
}

// Run serves the rules of a cluster until ctx ends, in a Deployment of render/converter.
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
	unready := func() string {
		if ctx.Err() != nil {
			return "it is ending"
		}
		return c.Follower.Unready()
	}
	health, err := net.Listen("tcp", net.JoinHostPort(c.Bind, c.HealthPort))
	if err != nil {
		return fmt.Errorf("the port for health: %w", err)
	}
	beside := status.Serve(health, status.PodHandler(unready, status.MetricsHandler(handler.Conversions)), c.Log, failed)
	defer beside.Close()
	server, err := Listen(net.JoinHostPort(c.Bind, c.Port), handler, certificates, c.Log, failed)
	if err != nil {
		return err
	}
	defer server.End()
	c.Log.Info("serving conversions", "address", server.Address.String(), "health", health.Addr().String())
	// Until the last request has ended.
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
