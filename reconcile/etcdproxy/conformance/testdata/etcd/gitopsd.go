package integration

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// ThroughProxy has tests skip what etcd's own proxy cannot do.
const ThroughProxy = false

// proxied are the clients of proxies by the clients that tests have.
var proxied sync.Map // of *clientv3.Client by *clientv3.Client

// ToGRPC returns a client's services. What belongs to a namespace goes through
// gitopsd's proxy, and what administers the cluster does not.
func ToGRPC(c *clientv3.Client) GRPCAPI {
	through := c
	if p, ok := proxied.Load(c); ok {
		through = p.(*clientv3.Client)
	}
	return GRPCAPI{
		pb.NewClusterClient(c.ActiveConnection()),
		pb.NewKVClient(through.ActiveConnection()),
		pb.NewLeaseClient(through.ActiveConnection()),
		pb.NewWatchClient(through.ActiveConnection()),
		pb.NewMaintenanceClient(c.ActiveConnection()),
		pb.NewAuthClient(c.ActiveConnection()),
		v3lockpb.NewLockClient(c.ActiveConnection()),
		v3electionpb.NewElectionClient(c.ActiveConnection()),
	}
}

// newClientV3 returns a client of a cluster whose keys, watches and leases are those of
// a namespace, by a proxy of its own.
func newClientV3(cfg clientv3.Config) (*clientv3.Client, error) {
	direct, err := clientv3.New(cfg)
	if err != nil {
		return nil, err
	}
	front, err := newFront(cfg)
	if err != nil {
		direct.Close()
		return nil, err
	}
	cfg.Endpoints, cfg.TLS = []string{"https://" + front.proxy.Address}, front.client
	through, err := clientv3.New(cfg)
	if err != nil {
		direct.Close()
		front.close()
		return nil, err
	}
	front.through = through
	direct.Watcher.Close()
	direct.Lease.Close()
	direct.KV, direct.Lease, direct.Watcher = through.KV, open{through.Lease}, &closer{Watcher: through.Watcher, front: front}
	proxied.Store(direct, through)
	return direct, nil
}

// open is closed together with the watcher.
type open struct{ clientv3.Lease }

func (open) Close() error { return nil }

// closer closes the proxy with its client.
type closer struct {
	clientv3.Watcher
	front *front
	once  sync.Once
}

func (c *closer) Close() error {
	c.once.Do(c.front.close)
	return nil
}

// front is a proxy on a cluster. The members do not have certificates as the proxy needs
// them, so tunnels are between them.
type front struct {
	proxy   *proxytest.Proxy
	client  *tls.Config
	through *clientv3.Client
	stop    context.CancelFunc
	tunnels sync.WaitGroup
}

func newFront(cfg clientv3.Config) (f *front, err error) {
	ctx, stop := context.WithCancel(context.Background())
	f = &front{stop: stop}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	authority, err := proxytest.NewAuthority("tests")
	if err != nil {
		return nil, err
	}
	certificate, err := authority.Server()
	if err != nil {
		return nil, err
	}
	crt, key, err := proxytest.EncodePair(certificate)
	if err != nil {
		return nil, err
	}
	id := etcd.ID{Cluster: "tests"}
	served := proxytest.Served{
		Namespace: etcd.Namespace{ID: id, Number: 1, Prefix: id.DefaultPrefix()},
		User:      crt, UserKey: key, CA: authority.PEM(), ClientCA: authority.PEM(),
	}
	for _, endpoint := range cfg.Endpoints {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}})
		if err != nil {
			return nil, err
		}
		f.tunnels.Go(func() { proxytest.Tunnel(ctx, l, dialMember(endpoint, cfg.TLS)) })
		served.Endpoints = append(served.Endpoints, "https://"+l.Addr().String())
	}
	if f.client, err = proxytest.ClientTLS(id, authority, authority); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.proxy, err = proxytest.Config{Certificate: crt, Key: key, Tenants: []proxytest.Served{served}, GRPCGo: proxytest.KindOfEnv().GRPCGo}.Start(l)
	if err == nil {
		f.proxy.Settle(time.Second) // before a test takes members away
	}
	return f, err
}

func (f *front) close() {
	if f.through != nil {
		f.through.Close()
	}
	if f.proxy != nil {
		f.proxy.Close()
	}
	f.stop()
	f.tunnels.Wait()
}

// dialMember connects to a member as etcd's client does.
func dialMember(endpoint string, config *tls.Config) func(context.Context) (net.Conn, error) {
	network, address := "tcp", endpoint
	if scheme, rest, ok := strings.Cut(endpoint, "://"); ok {
		address = rest
		if strings.HasPrefix(scheme, "unix") {
			network = "unix"
		}
	}
	name, _, _ := strings.Cut(address, ":")
	return func(ctx context.Context) (net.Conn, error) {
		if config == nil {
			return new(net.Dialer).DialContext(ctx, network, address)
		}
		c := config.Clone()
		c.NextProtos = []string{"h2"}
		if c.ServerName == "" {
			c.ServerName = name
		}
		return (&tls.Dialer{Config: c}).DialContext(ctx, network, address)
	}
}
