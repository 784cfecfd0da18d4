package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/certs"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/embedded"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/namespaces"
	"gitopsd.dev/reconcile/etcd/publish"
	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	names "gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/git"
)

// etcdOptions are the flags for the etcd that has the etcd namespaces.
type etcdOptions struct {
	servers                   []string
	caFile, certFile, keyFile string
	clientCACert, clientCAKey string
	embedded, listen          string
	advertise, prefixes       []string
	compact                   bool
	proxyListen, proxyTLSDir  string
	proxyGRPCGo               bool
	// intercept are called around each request to the etcd.
	intercept []grpc.UnaryClientInterceptor
}

// register adds the flags that locate the etcd, and registerDaemon also those about
// namespaces.
func (o *etcdOptions) register(f *pflag.FlagSet) {
	f.StringSliceVar(&o.servers, "etcd-servers", nil, "https URLs of the etcd that etcd namespaces are in, as kube-apiserver has them; gitopsd etcd --help says what it must be")
	f.StringVar(&o.caFile, "etcd-cafile", "", "PEM file of the CAs of its certificates")
	f.StringVar(&o.certFile, "etcd-certfile", "", "PEM file of the certificate of a user with etcd's root role; read again when it is replaced")
	f.StringVar(&o.keyFile, "etcd-keyfile", "", "PEM file of its key")
	f.StringVar(&o.embedded, "etcd-embedded", "", "directory of an etcd that runs in gitopsd itself, in place of --etcd-servers; for one daemon with a persistent volume, since the keys are nowhere else")
}

func (o *etcdOptions) registerDaemon(f *pflag.FlagSet) {
	o.register(f)
	f.StringVar(&o.clientCACert, "etcd-client-ca-cert", "", "PEM file of a CA that etcd trusts for clients (its --trusted-ca-file); gitopsd signs the certificate of each namespace's own user with it")
	f.StringVar(&o.clientCAKey, "etcd-client-ca-key", "", "PEM file of that CA's key")
	f.StringVar(&o.listen, "etcd-listen", "", "IP address and port of the etcd in --etcd-embedded (default a free port of this machine, which proxies in clusters do not reach)")
	f.StringSliceVar(&o.advertise, "etcd-advertise", nil, "https URLs by which proxies in clusters reach the etcd (default --etcd-servers, or where --etcd-embedded listens)")
	f.StringVar(&o.proxyListen, "etcd-proxy-listen", "", "address to serve etcd namespaces on, for clusters with spec.etcd.proxy.url (default: none)")
	f.BoolVar(&o.proxyGRPCGo, "etcd-proxy-grpc-go", false, "have the library grpc-go serve --etcd-proxy-listen, which takes more CPU than relaying frames of HTTP/2; the answers are the same")
	f.StringVar(&o.proxyTLSDir, "etcd-proxy-tls-dir", "", "directory with tls.crt and tls.key for --etcd-proxy-listen, and ca.crt, which API servers are told to trust; read again when they are replaced (default, with --etcd-embedded: of the embedded etcd's CA, for localhost, the address and the hosts of --etcd-advertise)")
	f.BoolVar(&o.compact, "etcd-compact", false, "compact the etcd in --etcd-servers at the lowest revision that a namespace needs, or that it had an hour ago; for everybody in it, so not if others use it who compact it themselves. The etcd in --etcd-embedded always is")
	f.StringSliceVar(&o.prefixes, "etcd-allow-prefixes", nil, "beginnings of the prefixes that an EtcdNamespace may name, such as /team/; keys there are handed to whoever can write to the repository (default none: gitopsd chooses a prefix)")
}

// compactPause is the time between looks for something to compact.
const compactPause = 5 * time.Minute

// compact compacts the etcd from time to time until ctx ends.
func compact(ctx context.Context, c *etcd.Compactor, log *slog.Logger) {
	told := ""
	for kube.Sleep(ctx, compactPause) == nil {
		text := ""
		if _, err := c.Compact(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		if text != "" && text != told {
			log.Warn("compacting the etcd failed; it is tried again", "error", text)
		}
		told = text
	}
}

// check returns an error if the flags do not go together.
func (o *etcdOptions) check() error {
	if len(o.servers) > 0 && o.embedded != "" {
		return errors.New("--etcd-servers and --etcd-embedded: name an etcd, or a directory for one in gitopsd, and not both")
	}
	const why = "gitopsd speaks to etcd by mutual TLS, as a user with the root role"
	if err := o.checkFiles(why, etcdFile{"etcd-cafile", o.caFile}, etcdFile{"etcd-certfile", o.certFile}, etcdFile{"etcd-keyfile", o.keyFile}); err != nil {
		return err
	}
	for _, server := range o.servers {
		if err := checkEtcdURL(server); err != nil {
			return fmt.Errorf("--etcd-servers %q: %w", git.Shown(server), err)
		}
	}
	return nil
}

// etcdFile is a flag that names a file for --etcd-servers.
type etcdFile struct{ flag, value string }

// checkFiles returns an error unless all files are named with --etcd-servers, and none
// without; why says what they are needed for.
func (o *etcdOptions) checkFiles(why string, files ...etcdFile) error {
	for _, f := range files {
		switch {
		case len(o.servers) > 0 && f.value == "":
			return fmt.Errorf("--%s is required with --etcd-servers: %s", f.flag, why)
		case len(o.servers) == 0 && f.value != "":
			return fmt.Errorf("--%s is for --etcd-servers, which is not set; the etcd of --etcd-embedded makes its own", f.flag)
		}
	}
	return nil
}

// checkDaemon checks the flags of the daemon.
func (o *etcdOptions) checkDaemon() error {
	if err := o.check(); err != nil {
		return err
	}
	const why = "each namespace has a user of its own in etcd, by a certificate of a CA that etcd trusts for clients"
	if err := o.checkFiles(why, etcdFile{"etcd-client-ca-cert", o.clientCACert}, etcdFile{"etcd-client-ca-key", o.clientCAKey}); err != nil {
		return err
	}
	if o.listen != "" && o.embedded == "" {
		return errors.New("--etcd-listen is for --etcd-embedded, which is not set")
	}
	if err := o.checkProxy(); err != nil {
		return err
	}
	if !o.set() && (len(o.advertise) > 0 || len(o.prefixes) > 0) {
		return errors.New("--etcd-advertise and --etcd-allow-prefixes need an etcd: set --etcd-servers or --etcd-embedded")
	}
	for _, address := range o.advertise {
		if err := checkEtcdURL(address); err != nil {
			return fmt.Errorf("--etcd-advertise %q: %w", git.Shown(address), err)
		}
	}
	for _, prefix := range o.prefixes {
		if !strings.HasPrefix(prefix, "/") || !strings.HasSuffix(prefix, "/") || len(prefix) < 3 || strings.HasPrefix(prefix, names.OwnPrefix) {
			return fmt.Errorf("--etcd-allow-prefixes %q: want the beginning of keys between slashes, such as /team/, and none of gitopsd's own (%s)", prefix, names.OwnPrefix)
		}
	}
	return nil
}

func checkEtcdURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return errors.New("want https://<host>:<port>")
	}
	return nil
}

// set reports whether there is an etcd.
func (o *etcdOptions) set() bool { return len(o.servers) > 0 || o.embedded != "" }

// external returns the configuration for the etcd in --etcd-servers.
func (o *etcdOptions) external(fleet string, log *slog.Logger) etcd.Config {
	return etcd.Config{
		Log: log, Fleet: fleet, Endpoints: o.servers, CAFile: o.caFile, CertFile: o.certFile, KeyFile: o.keyFile,
		ClientCACertFile: o.clientCACert, ClientCAKeyFile: o.clientCAKey, MayCompact: o.compact,
	}
}

// etcdService is the daemon's etcd. The zero value is none.
type etcdService struct {
	// config is nil if there is no etcd.
	config *namespaces.Etcd
	// proxy serves namespaces; nil if the daemon serves none.
	proxy *etcdProxy
	// proxyBrought and caBrought report whether an operator renews the proxy's certificate and
	// the CA that signs for etcd. An embedded etcd has its own.
	proxyBrought, caBrought bool

	own       *namespaces.Own
	publisher *publish.Keeper
	stops     []func()
}

// start starts the embedded etcd and the proxy, if these are configured, provisions the clusters'
// own key spaces, and compacts the etcd. All of them run until stop is called; fail is told if the
// embedded etcd or the proxy ends by itself.
func (o *etcdOptions) start(ctx context.Context, fleet string, log *slog.Logger, fail func(error)) (*etcdService, error) {
	s := &etcdService{proxyBrought: o.proxyTLSDir != "", caBrought: o.embedded == ""}
	if !o.set() {
		return s, nil
	}
	cfg := o.external(fleet, log)
	var local *member.Member
	if o.embedded != "" {
		var hosts []string
		for _, address := range o.advertise {
			u, _ := url.Parse(address) // checked by checkDaemon
			hosts = append(hosts, u.Hostname())
		}
		if host, _, err := net.SplitHostPort(o.proxyListen); err == nil && host != "" {
			hosts = append(hosts, host)
		}
		server, err := embedded.Start(ctx, embedded.Config{Log: log, Dir: o.embedded, Listen: o.listen, Names: hosts})
		if err != nil {
			return nil, fmt.Errorf("--etcd-embedded: %w", err)
		}
		log.Info("an etcd runs in this process", "address", server.Endpoint(), "directory", o.embedded)
		go func() {
			select {
			case <-server.Done():
				fail(errors.New("the etcd in this process has stopped by itself; the log says why"))
			case <-ctx.Done():
			}
		}()
		s.stops = append(s.stops, func() {
			if err := server.Close(); err != nil {
				log.Error("the etcd in this process", "error", err)
			}
		})
		if o.proxyTLSDir == "" {
			o.proxyTLSDir = server.ProxyDir()
		}
		cfg, local = server.Admin(), server.Member()
		cfg.Log, cfg.Fleet = log, fleet
	}
	cfg.Intercept = o.intercept
	admin, err := etcd.Open(cfg)
	if err != nil {
		s.stop()
		return nil, err
	}
	endpoints := o.advertise
	if len(endpoints) == 0 {
		endpoints = cfg.Endpoints
	}
	s.config = &namespaces.Etcd{
		Admin: namespaces.Share(admin), Keeper: new(identity.Keeper), Endpoints: endpoints, Prefixes: o.prefixes,
		Upstream: func() (identity.Upstream, error) { return upstream(cfg) },
	}
	if o.proxyListen != "" {
		var stop func()
		if s.proxy, stop, err = o.startProxy(ctx, local, log, fail); err != nil {
			s.stop()
			return nil, err
		}
		s.stops = append(s.stops, stop)
		s.config.Proxy = s.proxy
	}
	s.own = namespaces.NewOwn(admin, log)
	s.publisher = publish.NewKeeper(admin, s.own, log)
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var own sync.WaitGroup
	own.Go(func() { s.own.Run(running) })
	own.Go(func() { s.publisher.Run(running) })
	own.Go(func() { admin.Measure(running, s.measured) })
	if cfg.MayCompact {
		compactor, err := admin.Compactor(nil)
		if err != nil {
			cancel()
			s.stop()
			return nil, err
		}
		own.Go(func() { compact(running, compactor, log) })
	}
	s.stops = append(s.stops, func() {
		cancel()
		own.Wait()
	})
	return s, nil
}

// upstream reads the CA that etcd trusts for clients, with its key, and the CA of etcd.
func upstream(c etcd.Config) (identity.Upstream, error) {
	var u identity.Upstream
	for _, f := range []struct {
		name string
		into *[]byte
	}{{c.ClientCACertFile, &u.ClientCACert}, {c.ClientCAKeyFile, &u.ClientCAKey}, {c.CAFile, &u.CA}} {
		var err error
		if *f.into, err = os.ReadFile(f.name); err != nil {
			return identity.Upstream{}, err
		}
	}
	return u, nil
}

// computed provisions the clusters' own key spaces.
func (s *etcdService) computed(state *desired.State) {
	if s.own != nil {
		s.own.Want(state.Registry)
	}
}

// left stops serving the namespaces of a cluster that left the fleet, and publishing for it.
func (s *etcdService) left(cluster desired.ID) {
	if cluster.Name != "" {
		return
	}
	if s.proxy != nil {
		s.proxy.Withdraw(func(id names.ID) bool { return id.Cluster == cluster.Cluster })
	}
	if s.publisher != nil {
		s.publisher.Forget(cluster.Cluster)
	}
}

// attempted publishes what a cluster was given in its own key space.
func (s *etcdService) attempted(u *desired.Unit) {
	if s.publisher != nil {
		s.publisher.Want(u)
	}
}

// Complete implements [unit.Completer]. It adds nothing to a unit, and tells those with etcd
// namespaces when the certificates expire that an operator brings for them.
func (s *etcdService) Complete(_ context.Context, r unit.Request) (unit.Completion, error) {
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	spec := r.Unit.Spec.Etcd
	if s.config == nil || spec == nil || spec.Proxy == nil {
		return done, nil
	}
	if s.proxy != nil && s.proxyBrought && spec.Proxy.URL != "" {
		s.proxy.certificates.Tell(&done, "--etcd-proxy-tls-dir")
	}
	if s.caBrought {
		u, err := s.config.Upstream()
		chain, garbled := rotation.Parse(u.ClientCACert)
		if err == nil && garbled == nil { // if not, the namespaces say so
			certs.Tell(&done, "--etcd-client-ca-cert", status.Authority, chain[0])
		}
	}
	return done, nil
}

// problems returns the problems with a cluster's own key space.
func (s *etcdService) problems(cluster string) []problem.Problem {
	if s.own == nil {
		return nil
	}
	return append(s.own.Problems(cluster), s.publisher.Problems(cluster)...)
}

// stop stops everything, in reverse order.
func (s *etcdService) stop() {
	for _, stop := range slices.Backward(s.stops) {
		stop()
	}
}
