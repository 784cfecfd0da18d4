package component

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/url"
	"strconv"

	etcdversion "go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// EtcdVersion is the version, such as 3.7.3, of the etcd in this binary.
var EtcdVersion = etcdversion.Version

// EtcdConfig configures an etcd of one member whose data is throw-away.
type EtcdConfig struct {
	// DataDir is created when missing.
	DataDir string
	// Ports on 127.0.0.1: ClientPort serves gRPC, HTTPPort /health, PeerPort
	// is required by etcd and unused. SO_REUSEPORT is set on all.
	ClientPort, PeerPort, HTTPPort int
	// CAFile, CertFile and KeyFile identify the server and the clients that
	// may use it: all need a certificate of that CA.
	CAFile, CertFile, KeyFile string
}

// Etcd returns the arguments of [Run] for an etcd.
func Etcd(c EtcdConfig) []string {
	return []string{
		NameEtcd,
		"--data-dir=" + c.DataDir,
		"--client-port=" + strconv.Itoa(c.ClientPort),
		"--peer-port=" + strconv.Itoa(c.PeerPort),
		"--http-port=" + strconv.Itoa(c.HTTPPort),
		"--cafile=" + c.CAFile,
		"--certfile=" + c.CertFile,
		"--keyfile=" + c.KeyFile,
	}
}

func parseEtcd(args []string) (EtcdConfig, error) {
	var c EtcdConfig
	flags := flag.NewFlagSet(NameEtcd, flag.ContinueOnError)
	flags.StringVar(&c.DataDir, "data-dir", "", "")
	flags.IntVar(&c.ClientPort, "client-port", 0, "")
	flags.IntVar(&c.PeerPort, "peer-port", 0, "")
	flags.IntVar(&c.HTTPPort, "http-port", 0, "")
	flags.StringVar(&c.CAFile, "cafile", "", "")
	flags.StringVar(&c.CertFile, "certfile", "", "")
	flags.StringVar(&c.KeyFile, "keyfile", "", "")
	return c, flags.Parse(args)
}

func runEtcd(ctx context.Context, args []string) error {
	c, err := parseEtcd(args)
	if err != nil {
		return err
	}
	etcd, err := embed.StartEtcd(c.embed())
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

func (c EtcdConfig) embed() *embed.Config {
	e := embed.NewConfig()
	e.Name = "devcluster"
	e.Dir = c.DataDir
	e.ListenClientUrls, e.AdvertiseClientUrls = loopback(c.ClientPort), loopback(c.ClientPort)
	e.ListenPeerUrls, e.AdvertisePeerUrls = loopback(c.PeerPort), loopback(c.PeerPort)
	// A port that serves HTTP too costs gRPC a third of its speed.
	e.ListenClientHttpUrls = loopback(c.HTTPPort)
	e.EnableGRPCGateway = false
	e.InitialCluster = e.InitialClusterFromName(e.Name)
	tls := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile, ClientCertAuth: true}
	e.ClientTLSInfo, e.PeerTLSInfo = tls, tls
	e.SocketOpts.ReusePort = true
	// What survives kill -9 is what the kernel has; power cuts may lose it all.
	e.UnsafeNoFsync = true
	// The only member elects itself after these intervals, in milliseconds.
	e.TickMs, e.ElectionMs = 20, 200
	// Nobody needs history beyond what the API servers compact to, but several
	// of them, each with all of some provider's CRDs, need room.
	e.QuotaBackendBytes = 8 << 30
	e.LogLevel = "warn"
	return e
}

func loopback(port int) []url.URL {
	return []url.URL{{Scheme: "https", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}}
}
