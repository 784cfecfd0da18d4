// Package serve is what is around an [etcdproxy.Proxy]. In a process of its own, the
// Deployment of render/etcd, it serves one namespace: a directory has everything that it
// needs (directory.go), read again when it is replaced, and the server has an end
// (server.go). In the daemon it serves all that are reached there (daemon.go).
package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/guard"
	"gitopsd.dev/reconcile/status"
)

const (
	// reloadPause is how often the directory is read again. A kubelet takes about a
	// minute to replace it.
	reloadPause = 5 * time.Second
	// leaving is how long a server goes on that is to end: until no client has its
	// address any more. Meanwhile it is not ready.
	leaving = 5 * time.Second
)

// Config configures [Run].
type Config struct {
	// Bind is the address to listen on; empty for all of the machine. Port is for etcd's
	// clients, HealthPort for /healthz, /readyz and /metrics, without TLS.
	Bind             string
	Port, HealthPort string
	// Dir is the directory; required. Its files are those of etcd.Files.
	Dir string
	// Log gets what happens; required.
	Log *slog.Logger
	// GRPCGo is that of [etcdproxy.Config].
	GRPCGo bool
	// Leaving is how long it goes on when it is to end; 0 means 5 s.
	Leaving time.Duration
}

// server is the process.
type server struct {
	Config
	proxy *etcdproxy.Proxy
	guard *guard.Guard
	// counted: the keys were counted once, and calls that grow need not wait.
	counted atomic.Bool
	// now is what is served.
	now atomic.Pointer[directory]
}

// Run serves the namespace of a directory until ctx ends. It fails if the directory
// cannot be read at the beginning.
func Run(ctx context.Context, c Config) error {
	s, err := newServer(c)
	if err != nil {
		return err
	}
	return s.run(ctx, func(address, health net.Addr) {
		c.Log.Info("serving an etcd namespace", "namespace", s.now.Load().tenant.ID.String(), "address", address.String(), "health", health.String())
	})
}

// newServer makes a server that serves what the directory has.
func newServer(c Config) (*server, error) {
	if c.Leaving == 0 {
		c.Leaving = leaving
	}
	s := &server{Config: c}
	var err error
	if s.guard, err = guard.New(guard.Config{Log: c.Log}); err != nil {
		return nil, err
	}
	s.proxy, err = etcdproxy.New(etcdproxy.Config{
		Log: c.Log, Gate: s.guard, Floors: s.guard, GRPCGo: c.GRPCGo,
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &s.now.Load().certificate, nil },
	})
	if err != nil {
		return nil, err
	}
	if _, err := s.reload(); err != nil {
		s.proxy.Close()
		return nil, fmt.Errorf("%s: %w", c.Dir, err)
	}
	return s, nil
}

// run serves until ctx ends. It calls listening once it does.
func (s *server) run(ctx context.Context, listening func(address, health net.Addr)) error {
	defer s.proxy.Close()
	listener, err := net.Listen("tcp", net.JoinHostPort(s.Bind, s.Port))
	if err != nil {
		return err
	}
	defer listener.Close()
	failures := make(chan error, 2)
	health, end, err := s.health(ctx, failures)
	if err != nil {
		return err
	}
	defer end()
	listening(listener.Addr(), health)
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { s.follow(serving) })
	all.Go(func() {
		if err := s.proxy.Serve(serving, listener); err != nil {
			failures <- err
		}
	})
	select {
	case err := <-failures:
		return err
	case <-ctx.Done():
	}
	s.Log.Info("ending; calls are served for a moment more", "for", s.Leaving)
	select {
	case err := <-failures:
		return err
	case <-time.After(s.Leaving):
	}
	return nil
}

// health serves what a kubelet and Prometheus ask for, until end is called.
func (s *server) health(ctx context.Context, failures chan<- error) (address net.Addr, end func(), err error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.unready(ctx, time.Now()); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("GET /metrics", status.EtcdHandler(s.counts))
	listener, err := net.Listen("tcp", net.JoinHostPort(s.Bind, s.HealthPort))
	if err != nil {
		return nil, nil, fmt.Errorf("the port for health: %w", err)
	}
	beside := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	go func() {
		if err := beside.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failures <- err
		}
	}()
	return listener.Addr(), func() { beside.Close() }, nil
}

// unready says why no new client should come; empty if it should.
func (s *server) unready(ctx context.Context, now time.Time) string {
	d := s.now.Load()
	switch {
	case ctx.Err() != nil:
		return "it is ending"
	case now.After(d.certificate.Leaf.NotAfter):
		return "the certificate that it serves with has expired"
	case now.After(d.tenant.Upstream.Certificate.Leaf.NotAfter):
		return "the certificate for etcd has expired"
	case s.counted.Load():
		return "" // also while etcd is away: no other pod has another
	}
	if err := s.guard.Ready(); err != nil {
		return err.Error()
	}
	s.counted.Store(true)
	return ""
}

func (s *server) counts() []status.EtcdNamespace { return counts(s.proxy, s.guard) }

// counts returns the numbers of what a proxy serves.
func counts(proxy *etcdproxy.Proxy, gate *guard.Guard) []status.EtcdNamespace {
	var all []status.EtcdNamespace
	states := gate.States()
	for id, n := range proxy.Counts() {
		g := states[id]
		all = append(all, status.EtcdNamespace{
			Namespace: id.String(), Connections: n.Connections, Calls: n.Calls,
			Done: n.Done, Failed: n.Failed, Refused: n.Refused, Foreign: n.Foreign,
			Keys: g.Usage.Keys, Bytes: g.Usage.Bytes, Watches: g.Watches, Leases: g.Leases,
			Throttled: int64(g.Throttled), Full: int64(g.Full),
		})
	}
	return all
}

// reload serves what the directory has now, and reports whether that is something else.
func (s *server) reload() (changed bool, err error) {
	next, err := read(s.Dir)
	if err != nil {
		return false, err
	}
	before := s.now.Load()
	if before != nil && before.same(next) {
		return false, nil
	}
	if before != nil && before.tenant.ID != next.tenant.ID {
		return false, fmt.Errorf("it is for %s now; %s is served until a restart", next.tenant.ID, before.tenant.ID)
	}
	// The certificate comes first: clients of a new CA's may come as soon as it is set.
	s.now.Store(next)
	if err := s.proxy.Set([]etcdproxy.Tenant{next.tenant}); err != nil {
		if before != nil {
			s.now.Store(before)
			err = errors.Join(err, s.proxy.Set([]etcdproxy.Tenant{before.tenant}))
		}
		return false, err
	}
	return true, nil
}

// follow takes up other files until ctx ends. Files that go together in no way change
// nothing.
func (s *server) follow(ctx context.Context) {
	told := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reloadPause):
		}
		changed, err := s.reload()
		text := ""
		if err != nil {
			text = err.Error()
		}
		switch {
		case changed:
			s.Log.Info("the directory has changed and is used", "expires", s.now.Load().certificate.Leaf.NotAfter)
		case text != "" && text != told:
			s.Log.Warn("the directory cannot be used; what it had before is served", "directory", s.Dir, "error", err)
		}
		told = text
	}
}
