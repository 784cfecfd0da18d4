package proxytest

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy/member"
	"gitopsd.dev/render/etcd"
)

// startLimit is how long an etcd may take to start.
const startLimit = time.Minute

// Etcd is an etcd of one member. It serves gRPC over TLS, requires client certificates and
// has authentication enabled: a certificate's common name is the user.
type Etcd struct {
	server   *embed.Etcd // nil if it runs in another process
	member   *member.Member
	clients  *Authority
	root     *clientv3.Client
	Endpoint string // its URL
}

// NewConfig returns a configuration for an etcd without durable data.
func NewConfig() *embed.Config {
	cfg := embed.NewConfig()
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 20, 200 // the only member elects itself
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	return cfg
}

// Start starts an etcd with its data and keys in dir. It sets the directory, addresses and TLS in
// cfg.
func Start(dir string, cfg *embed.Config) (*Etcd, error) {
	e, err := startWithoutAuth(dir, cfg)
	if err != nil {
		return nil, err
	}
	if err := e.enableAuth(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// startWithoutAuth is Start without authentication: every client with a certificate has all rights.
func startWithoutAuth(dir string, cfg *embed.Config) (e *Etcd, err error) {
	e = new(Etcd)
	if e.clients, err = NewAuthority("etcd"); err != nil {
		return nil, err
	}
	if err := e.configure(cfg, dir); err != nil {
		return nil, err
	}
	if e.server, err = embed.StartEtcd(cfg); err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	select {
	case <-e.server.Server.ReadyNotify():
	case err := <-e.server.Err():
		return nil, fmt.Errorf("etcd: %w", err)
	case <-time.After(startLimit):
		return nil, fmt.Errorf("etcd is not ready after %s", startLimit)
	}
	for _, l := range e.server.Clients {
		if addr, ok := l.Addr().(*net.TCPAddr); ok && addr.IP.Equal(net.IPv4(127, 0, 0, 1)) {
			e.Endpoint = "https://" + addr.String()
		}
	}
	if e.member, err = member.Serve(e.server); err != nil {
		return e, err
	}
	return e, e.connect()
}

// Member returns the etcd for clients in its process.
func (e *Etcd) Member() *member.Member { return e.member }

// Handle has what another process needs to connect to an etcd of this process.
type Handle struct {
	Endpoint string
	// Authority signs the certificates of etcd and its clients.
	Authority []byte
}

// Handle returns a Handle for [Connect].
func (e *Etcd) Handle() (Handle, error) {
	authority, err := e.clients.Encode()
	return Handle{Endpoint: e.Endpoint, Authority: authority}, err
}

// Connect connects to an etcd in another process.
func Connect(h Handle) (*Etcd, error) {
	clients, err := Parse(h.Authority)
	if err != nil {
		return nil, err
	}
	e := &Etcd{clients: clients, Endpoint: h.Endpoint}
	return e, e.connect()
}

// connect connects as root.
func (e *Etcd) connect() error {
	tls, err := e.userTLS("root")
	if err != nil {
		return err
	}
	e.root, err = clientv3.New(clientv3.Config{Endpoints: []string{e.Endpoint}, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	return nil
}

// configure writes keys, and sets ports that the kernel chooses.
func (e *Etcd) configure(cfg *embed.Config, dir string) error {
	server, err := e.clients.Server()
	if err != nil {
		return err
	}
	if err := WritePair(filepath.Join(dir, "server"), server); err != nil {
		return err
	}
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, e.clients.PEM(), 0o600); err != nil {
		return err
	}
	cfg.Dir = filepath.Join(dir, "data")
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	// A port that serves HTTP too costs gRPC a third of its speed.
	cfg.ListenClientHttpUrls = []url.URL{{Scheme: "http", Host: "127.0.0.2:0"}}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.ClientTLSInfo = transport.TLSInfo{
		CertFile: filepath.Join(dir, "server.crt"), KeyFile: filepath.Join(dir, "server.key"), TrustedCAFile: ca, ClientCertAuth: true,
	}
	return nil
}

// enableAuth makes the user root, and enables authentication.
func (e *Etcd) enableAuth() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if _, err := e.root.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true}); err != nil {
		return fmt.Errorf("etcd: user root: %w", err)
	}
	if _, err := e.root.UserGrantRole(ctx, "root", "root"); err != nil {
		return fmt.Errorf("etcd: role of root: %w", err)
	}
	if _, err := e.root.AuthEnable(ctx); err != nil {
		return fmt.Errorf("etcd: enable authentication: %w", err)
	}
	return nil
}

// Root returns a client with all rights, directly to the etcd.
func (e *Etcd) Root() *clientv3.Client { return e.root }

// Authority returns the authority of the certificates of the etcd and of its clients.
func (e *Etcd) Authority() *Authority { return e.clients }

// CA returns the certificate of [Etcd.Authority].
func (e *Etcd) CA() []byte { return e.clients.PEM() }

// User issues a certificate for a user of etcd.
func (e *Etcd) User(name string) (tls.Certificate, error) { return e.clients.Client(name) }

// userTLS returns the configuration of a client that is this user.
func (e *Etcd) userTLS(name string) (*tls.Config, error) {
	cert, err := e.User(name)
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: e.clients.Pool(), Certificates: []tls.Certificate{cert}}, nil
}

// Provision makes the user and the role of a namespace.
func (e *Etcd) Provision(ctx context.Context, ns etcd.Namespace) error {
	user := ns.ID.User()
	if _, err := e.root.RoleAdd(ctx, user); err != nil {
		return fmt.Errorf("etcd: role of %s: %w", ns.ID, err)
	}
	rights := clientv3.PermissionType(clientv3.PermReadWrite)
	if _, err := e.root.RoleGrantPermission(ctx, user, ns.Prefix, clientv3.GetPrefixRangeEnd(ns.Prefix), rights); err != nil {
		return fmt.Errorf("etcd: rights of %s: %w", ns.ID, err)
	}
	if _, err := e.root.UserAddWithOptions(ctx, user, "", &clientv3.UserAddOptions{NoPassword: true}); err != nil {
		return fmt.Errorf("etcd: user of %s: %w", ns.ID, err)
	}
	if _, err := e.root.UserGrantRole(ctx, user, user); err != nil {
		return fmt.Errorf("etcd: role of the user of %s: %w", ns.ID, err)
	}
	return nil
}

// Close closes the client, and stops the etcd if it runs in this process. Its files stay.
func (e *Etcd) Close() error {
	var err error
	if e.root != nil {
		err = e.root.Close()
	}
	if e.member != nil {
		e.member.Stop()
	}
	if e.server != nil {
		e.server.Close()
	}
	return err
}
