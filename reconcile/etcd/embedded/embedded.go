// Package embedded is an etcd of one member inside gitopsd, in a directory of its own.
//
//   - embedded.go: starting and stopping the [Server]
//   - pki.go: its CA and certificates
//   - log.go: etcd's log
//   - snapshot.go: [Snapshot] and [Restore]
//
// The first start enables authentication by certificate, with a root user.
//
// The directory has
//
//	lock                  held while the etcd runs
//	ca.crt ca.key         the CA of the member's and the clients' certificates
//	server.crt server.key the member's certificate
//	root.crt root.key     the root user's certificate, for gitopsd and etcdctl
//	proxy/                tls.crt, tls.key and ca.crt for gitopsd's own proxy in front of it
//	endpoint              the URL while the etcd runs
//	etcd/                 etcd's data directory
//
// Only its owner can read it: with ca.key anybody can be root.
package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/connect"
	"gitopsd.dev/reconcile/etcdproxy/member"
)

// Config configures a [Server].
type Config struct {
	// Log may be nil.
	Log *slog.Logger
	// Dir is the directory; required. It is created if it does not exist, with mode 0700.
	Dir string
	// Listen is the address for clients: an IP address and a port. Empty means 127.0.0.1:0, a
	// free port of the loopback interface.
	Listen string
	// Names are more DNS names and IP addresses of the etcd, or of the proxy in front of it.
	Names []string
	// Now is the clock for certificates; nil means time.Now.
	Now func() time.Time
	// RestoreCommand is a command that calls [RestoreData] with its last two arguments, so that
	// [Restore] does so in a process of its own. Without it a crafted snapshot may end this process.
	RestoreCommand []string

	// intercept are called around each request of the first start, and quota replaces the quota, in tests.
	intercept []grpc.UnaryClientInterceptor
	quota     int64
}

// quota is the largest size of the database in bytes.
const quota = 2 << 30

// check returns the host and the port of Listen, and sets defaults.
func (c *Config) check() (host, port string, err error) {
	if c.Dir == "" {
		return "", "", errors.New("embedded etcd: a directory is needed")
	}
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	if host, port, err = net.SplitHostPort(c.Listen); err != nil || net.ParseIP(host) == nil {
		return "", "", fmt.Errorf("embedded etcd: cannot listen at %q; use an IP address and a port, such as 127.0.0.1:2379", c.Listen)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return host, port, nil
}

// Server is a running etcd.
type Server struct {
	cfg      Config
	lock     *flock.Flock
	etcd     *embed.Etcd
	member   *member.Member
	endpoint string
	stop     context.CancelFunc
	renewing sync.WaitGroup
	quiet    atomic.Bool
	closing  sync.Once
	ended    sync.Once
	done     chan struct{}
	err      error
}

// startTimeout bounds how long an etcd of one member may take to read its data and to elect itself.
const startTimeout = 2 * time.Minute

// Start starts the etcd, and sets it up if it is new. It returns once the etcd serves. After a crash at
// any point it can be called again. The error wraps [ErrInUse] if the etcd runs already.
func Start(ctx context.Context, c Config) (*Server, error) {
	host, port, err := c.check()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s := &Server{cfg: c, done: make(chan struct{})}
	if s.lock, err = acquire(c.Dir); err != nil {
		return nil, err
	}
	if err := s.start(ctx, host, port); err != nil {
		s.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", c.Dir, err)
	}
	return s, nil
}

// acquire creates a directory and locks it.
func acquire(dir string) (*flock.Flock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	lock := flock.New(filepath.Join(dir, "lock"), flock.SetPermissions(0o600))
	ok, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	if !ok {
		return nil, fmt.Errorf("embedded etcd: %s %w", dir, ErrInUse)
	}
	return lock, nil
}

// ErrInUse is the error for a directory with a running etcd.
var ErrInUse = errors.New("is in use by another process; stop that one, or give each its own directory")

func (s *Server) start(ctx context.Context, host, port string) error {
	pki := pki{dir: s.cfg.Dir, names: append([]string{host}, s.cfg.Names...), now: s.cfg.Now}
	again, err := pki.ensure()
	if err != nil {
		return err
	}
	if err := s.checkDatabase(); err != nil {
		return err
	}
	if err := s.listen(host, port); err != nil {
		return err
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
	case err := <-s.etcd.Err():
		return err
	case <-s.etcd.Server.StopNotify():
		return errors.New("it stopped at once; its log says why")
	case <-ctx.Done():
		return fmt.Errorf("it was not ready in time: %w", context.Cause(ctx))
	}
	if err := s.enableAuth(ctx); err != nil {
		return fmt.Errorf("enable authentication: %w", err)
	}
	// From here on every client needs a certificate with a user.
	if s.member, err = member.Serve(s.etcd); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(s.cfg.Dir, "endpoint"), []byte(s.endpoint+"\n")); err != nil {
		return err
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.renewing.Go(func() { s.renew(background, pki, again) })
	s.renewing.Go(func() { s.watch(background) })
	return nil
}

// checkDatabase returns an error if the database is cut or is none. etcd would end the process, or crash.
func (s *Server) checkDatabase() error {
	f, err := os.Open(filepath.Join(s.cfg.Dir, "etcd", "member", "snap", "db"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 { // etcd's first start was killed
		return err
	}
	if err := wholeDatabase(f, info.Size()); err != nil {
		return fmt.Errorf("the database %s is damaged: %w; restore a snapshot into a new directory (gitopsd etcd restore)", f.Name(), err)
	}
	return nil
}

// listen starts etcd. etcd tells clients its address, so a free port has to be chosen before. If another
// process takes it meanwhile, listen chooses another.
func (s *Server) listen(host, port string) (err error) {
	for range 10 {
		at := port
		if port == "0" {
			l, err := net.Listen("tcp", net.JoinHostPort(host, port))
			if err != nil {
				return err
			}
			_, at, _ = net.SplitHostPort(l.Addr().String())
			if err := l.Close(); err != nil {
				return err
			}
		}
		s.endpoint = "https://" + net.JoinHostPort(reachable(host), at)
		s.etcd, err = embed.StartEtcd(s.config(host, at))
		if err == nil || port != "0" || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return err
}

// reachable returns the address at which this machine reaches a listener on an address.
func reachable(host string) string {
	if ip := net.ParseIP(host); ip.IsUnspecified() {
		if ip.To4() == nil {
			return "::1"
		}
		return "127.0.0.1"
	}
	return host
}

// name and peerURL are the member's. Nothing uses them, since it is the only one.
const name, peerURL = "gitopsd", "https://127.0.0.1:2380"

// config returns etcd's configuration. All listeners require TLS and client certificates.
func (s *Server) config(host, port string) *embed.Config {
	c := embed.NewConfig()
	at := func(host, port string) []url.URL {
		return []url.URL{{Scheme: "https", Host: net.JoinHostPort(host, port)}}
	}
	c.Name, c.Dir = name, filepath.Join(s.cfg.Dir, "etcd")
	c.ListenClientUrls, c.AdvertiseClientUrls = at(host, port), at(reachable(host), port)
	c.ListenClientHttpUrls = at("127.0.0.1", "0") // apart, so that the port for clients is gRPC's alone
	c.EnableGRPCGateway = false
	c.ListenPeerUrls = at("127.0.0.1", "0")
	c.AdvertisePeerUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:2380"}}
	c.InitialCluster = name + "=" + peerURL
	file := func(name string) string { return filepath.Join(s.cfg.Dir, name) }
	c.ClientTLSInfo = transport.TLSInfo{CertFile: file("server.crt"), KeyFile: file("server.key"), TrustedCAFile: file("ca.crt"), ClientCertAuth: true}
	c.PeerTLSInfo = c.ClientTLSInfo
	c.PeerTLSInfo.AllowedCNs = []string{"a peer of gitopsd"} // there is no such certificate
	c.QuotaBackendBytes = cmp.Or(s.cfg.quota, quota)
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "0" // gitopsd compacts
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(s.cfg.Log, &s.quiet))
	return c
}

// enableAuth creates the root user, without a password, and enables authentication. It continues what an
// earlier start has begun.
func (s *Server) enableAuth(ctx context.Context) error {
	tls, err := connect.LoadTLS(s.Admin())
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.endpoint}, TLS: tls, Context: ctx, DialTimeout: startTimeout, Logger: logger(s.cfg.Log, &s.quiet),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.cfg.intercept...)}})
	if err != nil {
		return err
	}
	defer client.Close()
	state, err := client.AuthStatus(ctx)
	if err != nil || state.Enabled {
		return err
	}
	_, err = client.UserAddWithOptions(ctx, rootUser, "", &clientv3.UserAddOptions{NoPassword: true})
	if err != nil && !errors.Is(err, rpctypes.ErrUserAlreadyExist) {
		return err
	}
	if _, err := client.UserGrantRole(ctx, rootUser, "root"); err != nil {
		return err
	}
	_, err = client.AuthEnable(ctx)
	return err
}

// ProxyDir returns the directory with the certificate of gitopsd's own proxy in front of the etcd. Its
// files are named as in a Secret of type kubernetes.io/tls.
func (s *Server) ProxyDir() string { return filepath.Join(s.cfg.Dir, proxyDir) }

// Admin returns a configuration to administer the etcd. The caller sets Log and Fleet.
func (s *Server) Admin() admin.Config { return adminOf(s.cfg.Dir, s.endpoint) }

// Member returns the etcd for clients in this process. It stops with the Server.
func (s *Server) Member() *member.Member { return s.member }

// Endpoint returns the URL for clients.
func (s *Server) Endpoint() string { return s.endpoint }

func adminOf(dir, endpoint string) admin.Config {
	file := func(name string) string { return filepath.Join(dir, name) }
	return admin.Config{
		Endpoints: []string{endpoint}, CAFile: file("ca.crt"), CertFile: file("root.crt"), KeyFile: file("root.key"),
		ClientCACertFile: file("ca.crt"), ClientCAKeyFile: file("ca.key"), MayCompact: true, Embedded: true,
	}
}

// watch sets s.err if the etcd stops by itself.
func (s *Server) watch(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case err := <-s.etcd.Err():
		s.err = err
	case <-s.etcd.Server.StopNotify():
		s.err = errors.New("it stopped")
	}
	s.cfg.Log.Error("the embedded etcd has stopped", "directory", s.cfg.Dir, "error", s.err)
	s.stopped()
}

func (s *Server) stopped() { s.ended.Do(func() { close(s.done) }) }

// Done returns a channel that is closed once the etcd has stopped, by Close or by itself.
func (s *Server) Done() <-chan struct{} { return s.done }

// Close stops the etcd, and waits for that. The error says why it had stopped before, if it had.
func (s *Server) Close() error {
	s.closing.Do(s.close)
	if s.err != nil {
		return fmt.Errorf("embedded etcd in %s: %w", s.cfg.Dir, s.err)
	}
	return nil
}

func (s *Server) close() {
	if s.stop != nil {
		s.stop()
		s.renewing.Wait()
	}
	s.quiet.Store(true)
	if s.member != nil {
		s.member.Stop()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	s.stopped()
	if s.lock != nil {
		_ = os.Remove(filepath.Join(s.cfg.Dir, "endpoint")) // a stale one is harmless
		_ = s.lock.Unlock()                                 // the end of the process unlocks, too
	}
}
