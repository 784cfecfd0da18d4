package servers

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"

	etcdversion "go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"gitopsd.dev/cmd/devcluster/internal/component"
)

// EtcdVersion is the version, such as 3.7.3, of the etcd in this binary.
var EtcdVersion = etcdversion.Version

func runEtcd(ctx context.Context, args []string) error {
	var c component.EtcdConfig
	if err := parse(args, &c); err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(etcdConfig(c))
	if err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	defer etcd.Close()
	select {
	case <-ctx.Done():
		return nil
	case err := <-etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	}
}

func etcdConfig(c component.EtcdConfig) *embed.Config {
	e := embed.NewConfig()
	e.Name = "devcluster"
	e.Dir = filepath.Join(c.Dir, "data")
	e.ListenClientUrls, e.AdvertiseClientUrls = loopback(c.ClientPort), loopback(c.ClientPort)
	e.ListenPeerUrls, e.AdvertisePeerUrls = loopback(c.PeerPort), loopback(c.PeerPort)
	// A port that serves HTTP too costs gRPC a third of its speed.
	e.ListenClientHttpUrls = loopback(c.HTTPPort)
	e.EnableGRPCGateway = false
	e.InitialCluster = e.InitialClusterFromName(e.Name)
	tls := transport.TLSInfo{
		CertFile:       filepath.Join(c.Dir, "server.crt"),
		KeyFile:        filepath.Join(c.Dir, "server.key"),
		TrustedCAFile:  filepath.Join(c.Dir, "ca.crt"),
		ClientCertAuth: true,
	}
	e.ClientTLSInfo, e.PeerTLSInfo = tls, tls
	e.SocketOpts.ReusePort = true
	// Without fsync, data survives kill -9, but not a power cut.
	e.UnsafeNoFsync = true
	// Milliseconds: the only member elects itself after the election timeout.
	e.TickMs, e.ElectionMs = 20, 200
	// Several API servers, each with all CRDs of a large provider, need room. Their
	// own compaction bounds the history.
	e.QuotaBackendBytes = 8 << 30
	e.LogLevel = "warn"
	return e
}

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "https", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}
}
