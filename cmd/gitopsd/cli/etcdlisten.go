package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	certificates "gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/reconcile/etcdproxy/serve"
	names "gitopsd.dev/render/etcd"
)

// etcdProxy serves etcd namespaces in the daemon. It is a [namespaces.Proxy].
type etcdProxy struct {
	*serve.Daemon
	certificates *certificates.Certificates
}

// Trust implements [namespaces.Proxy].
func (p *etcdProxy) Trust() []byte { return p.certificates.Authority() }

// Serves implements [namespaces.Proxy].
func (p *etcdProxy) Serves(host string) error {
	if err := p.certificates.Serves(host, time.Now()); err != nil {
		return fmt.Errorf("the daemon's certificate is not one for spec.etcd.proxy.url of the Cluster (--etcd-proxy-tls-dir; with --etcd-embedded, the hosts of --etcd-advertise): %w", err)
	}
	return nil
}

// checkProxy checks the flags of the proxy in the daemon.
func (o *etcdOptions) checkProxy() error {
	switch {
	case o.proxyListen == "" && o.proxyTLSDir != "":
		return errors.New("--etcd-proxy-tls-dir is for --etcd-proxy-listen, which is not set")
	case o.proxyListen == "" && o.proxyGRPCGo:
		return errors.New("--etcd-proxy-grpc-go is for --etcd-proxy-listen, which is not set")
	case o.proxyListen != "" && !o.set():
		return errors.New("--etcd-proxy-listen needs an etcd: set --etcd-servers or --etcd-embedded")
	case o.proxyListen != "" && o.proxyTLSDir == "" && o.embedded == "":
		return errors.New("--etcd-proxy-tls-dir is required with --etcd-proxy-listen: only the etcd of --etcd-embedded makes a certificate for it")
	}
	return nil
}

// loadProxy loads the proxy's certificates.
func (o *etcdOptions) loadProxy(log *slog.Logger) (*certificates.Certificates, error) {
	loaded, err := certificates.LoadCertificates(o.proxyTLSDir, log)
	if err != nil {
		return nil, fmt.Errorf("--etcd-proxy-tls-dir: %w", err)
	}
	if loaded.Authority() == nil {
		return nil, fmt.Errorf("--etcd-proxy-tls-dir: %s: has no ca.crt, without which API servers trust no etcd", o.proxyTLSDir)
	}
	return loaded, nil
}

// startProxy serves namespaces until stop is called; fail is told if serving ends by itself. They
// are in local, an etcd in this process, if that is not nil.
func (o *etcdOptions) startProxy(ctx context.Context, local *member.Member, log *slog.Logger, fail func(error)) (_ *etcdProxy, stop func(), err error) {
	p := new(etcdProxy)
	if p.certificates, err = o.loadProxy(log); err != nil {
		return nil, nil, err
	}
	p.Daemon, err = serve.NewDaemon(serve.DaemonConfig{Certificate: p.certificates.Config().GetCertificate, Log: log, Member: local, GRPCGo: o.proxyGRPCGo})
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", o.proxyListen)
	if err != nil {
		return nil, nil, fmt.Errorf("--etcd-proxy-listen: %w", err)
	}
	log.Info("serving etcd namespaces", "address", listener.Addr().String())
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { p.certificates.Follow(serving) })
	all.Go(func() {
		if err := p.Listen(serving, listener); err != nil {
			fail(fmt.Errorf("serving etcd namespaces: %w", err))
		}
	})
	return p, func() {
		cancel()
		all.Wait()
	}, nil
}

// measured reports whether the proxy knows how large a namespace is.
func (s *etcdService) measured(id names.ID) bool {
	if s.proxy == nil {
		return false
	}
	_, known := s.proxy.Bytes(id)
	return known
}
