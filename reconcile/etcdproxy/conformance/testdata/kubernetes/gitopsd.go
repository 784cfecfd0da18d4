package testserver

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// RunEtcd starts an etcd, and a client of a namespace of it through gitopsd's proxy.
// Tests without TLS reach the proxy through a tunnel. Tests with TLS bring the
// certificates of the proxy and of the client.
func RunEtcd(t testing.TB, cfg *embed.Config) *kubernetes.Client {
	t.Helper()
	if cfg == nil {
		cfg = NewTestConfig(t)
	}
	brought := cfg.ClientTLSInfo
	server, err := proxytest.Start(t.TempDir(), cfg)
	check(t, err)
	t.Cleanup(func() { server.Close() })
	id := etcd.ID{Cluster: "kubernetes"}
	clients, err := proxytest.NewAuthority("clients")
	check(t, err)
	ca := clients.PEM()
	if !brought.Empty() {
		ca = read(t, brought.TrustedCAFile)
	}
	served, err := server.Serve(t.Context(), etcd.Namespace{ID: id, Number: 7, Prefix: id.DefaultPrefix()}, ca)
	check(t, err)
	config := proxytest.Config{Tenants: []proxytest.Served{served}, GRPCGo: proxytest.KindOfEnv().GRPCGo}
	if !brought.Empty() {
		config.Certificate, config.Key = read(t, brought.CertFile), read(t, brought.KeyFile)
		tlsConfig, err := brought.ClientConfig()
		check(t, err)
		return client(t, "https://localhost:"+port(t, serve(t, config)), tlsConfig)
	}
	servers, err := proxytest.NewAuthority("servers")
	check(t, err)
	certificate, err := servers.Server()
	check(t, err)
	config.Certificate, config.Key, err = proxytest.EncodePair(certificate)
	check(t, err)
	tlsConfig, err := proxytest.ClientTLS(id, clients, servers)
	check(t, err)
	return client(t, "http://"+plain(t, serve(t, config), tlsConfig), nil)
}

// serve starts the proxy, and returns its address.
func serve(t testing.TB, config proxytest.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	proxy, err := config.Start(l)
	check(t, err)
	t.Cleanup(func() { proxy.Close() })
	return proxy.Address
}

// plain returns an address that leads to the proxy without TLS.
func plain(t testing.TB, address string, config *tls.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	dialer := &tls.Dialer{Config: config}
	go proxytest.Tunnel(ctx, l, func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) })
	return l.Addr().String()
}

func client(t testing.TB, endpoint string, config *tls.Config) *kubernetes.Client {
	t.Helper()
	c, err := kubernetes.New(clientv3.Config{
		TLS:         config,
		Endpoints:   []string{endpoint},
		DialTimeout: 10 * time.Second,
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
	})
	check(t, err)
	recorder := storagetesting.NewKubernetesRecorder(c.Kubernetes)
	c.KV, c.Kubernetes = storagetesting.NewKVRecorder(c.KV, recorder), recorder
	return c
}

func port(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	check(t, err)
	return port
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	check(t, err)
	return text
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
