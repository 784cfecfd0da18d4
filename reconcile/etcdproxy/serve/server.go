// Package serve runs an [etcdproxy.Proxy]. [Run] serves one namespace in a process of its own, the
// Deployment of render/etcd (server.go). Its directory has everything that it needs, and is read
// again when it is replaced (directory.go). [Daemon] serves many namespaces in the daemon
// (daemon.go).
package serve

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/etcdproxy/guard"
	"gitopsd.dev/reconcile/status"
)

const (
	// reloadPause is how often the directory is read again. A kubelet takes about a minute to
	// replace it.
	reloadPause = 5 * time.Second
	// leaving is how long a server goes on, without being ready, when it should end: until no
	// client has its address any more.
	leaving = 5 * time.Second
)

// Config configures [Run].
type Config struct {
	// Bind is the address to listen on; empty for all addresses. Port is for etcd's clients,
	// HealthPort for /healthz, /readyz and /metrics, without TLS.
	Bind             string
	Port, HealthPort string
	// Dir is the directory; required. Its files are those of [etcd.Files].
	Dir string
	// Log is required.
	Log *slog.Logger
	// GRPCGo is as in [etcdproxy.Config].
	GRPCGo bool
	// Leaving is how long to go on after ctx ends; 5 seconds if 0.
	Leaving time.Duration
}

// server is a call of Run.
type server struct {
	Config
	proxy *etcdproxy.Proxy
	guard *guard.Guard
	// counted reports whether the keys were counted once.
	counted atomic.Bool
	// now is the directory in use.
	now atomic.Pointer[directory]
}

// Run serves the namespace of a directory until ctx ends. It fails if the directory is invalid at the
// beginning, or a listener fails.
func Run(ctx context.Context, c Config) error {
	s, err := newServer(c)
	if err != nil {
		return err
	}
	return s.run(ctx, func(address, health net.Addr) {
		c.Log.Info("serving an etcd namespace", "namespace", s.now.Load().tenant.ID.String(), "address", address.String(), "health", health.String())
	})
}

// newServer returns a server that serves the directory.
func newServer(c Config) (*server, error) {
	c.Leaving = cmp.Or(c.Leaving, leaving)
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

// run serves until ctx ends. It calls listening once it listens.
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

// health serves the requests of a kubelet and Prometheus until end is called.
func (s *server) health(ctx context.Context, failures chan<- error) (address net.Addr, end func(), err error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(s.Bind, s.HealthPort))
	if err != nil {
		return nil, nil, fmt.Errorf("the port for health: %w", err)
	}
	unready := func() string { return s.unready(ctx, time.Now()) }
	beside := status.Serve(listener, status.PodHandler(unready, status.EtcdHandler(s.counts)), s.Log, func(err error) { failures <- err })
	return listener.Addr(), func() { beside.Close() }, nil
}

// unready returns why the server is not ready; empty if it is.
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
		return "" // even while etcd does not answer: other pods have the same etcd
	}
	if err := s.guard.Ready(); err != nil {
		return err.Error()
	}
	s.counted.Store(true)
	return ""
}

func (s *server) counts() []status.EtcdNamespace { return counts(s.proxy, s.guard) }

// counts returns the numbers of a proxy's namespaces.
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

// reload reads the directory again, serves it, and reports whether it has changed.
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
	// The certificate comes first: clients of a new CA may connect as soon as the proxy is set.
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

// follow reloads the directory until ctx ends. An invalid directory changes nothing.
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
