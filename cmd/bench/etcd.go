package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// grpcProxyChild is the name under which this program is etcd's own grpc-proxy.
const grpcProxyChild = "grpcproxy-child"

// Each side has etcdClients clients with a connection each. In a round, each side gets
// etcdBatches batches of requests of each kind. The sides take turns after each batch,
// since other load on the machine changes.
const (
	etcdClients = 16
	etcdBatches = 5
	// etcdKeys is how many keys of a value there are for each client.
	etcdKeys = 100
	// etcdLimit is how long a server may take to start, and an event to arrive.
	etcdLimit = time.Minute
)

// etcdValue is the value of all keys: 1 KiB.
var etcdValue = string(bytes.Repeat([]byte("0123456789abcdef"), 64))

// etcdSide is a way to an etcd.
type etcdSide struct {
	name    string
	clients []*clientv3.Client
	process serverProcess // the proxy; 0 for none
	// prefix begins its keys in etcd.
	prefix string
	events chan struct{} // one for each event of its watches
}

// etcdRequest is a kind of request.
type etcdRequest struct {
	name  string
	batch int // requests in a batch, of all clients
	// send sends the i-th request of a client in a batch.
	send func(ctx context.Context, s *etcdSide, root *clientv3.Client, worker, i int) error
}

func etcdKey(worker, i int) string { return fmt.Sprintf("client-%02d/key-%03d", worker, i%etcdKeys) }

// etcdKeyPrefix begins all keys of a client.
func etcdKeyPrefix(worker int) string { return fmt.Sprintf("client-%02d/", worker) }

var etcdRequests = []etcdRequest{
	{"get", 3200, func(ctx context.Context, s *etcdSide, _ *clientv3.Client, worker, i int) error {
		answer, err := s.clients[worker].Get(ctx, etcdKey(worker, i))
		if err == nil && len(answer.Kvs) != 1 {
			err = fmt.Errorf("%s: %d keys", s.name, len(answer.Kvs))
		}
		return err
	}},
	{"put", 3200, func(ctx context.Context, s *etcdSide, _ *clientv3.Client, worker, i int) error {
		_, err := s.clients[worker].Put(ctx, etcdKey(worker, i), etcdValue)
		return err
	}},
	{"txn", 3200, func(ctx context.Context, s *etcdSide, _ *clientv3.Client, worker, i int) error {
		key := etcdKey(worker, i)
		answer, err := s.clients[worker].Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), ">", 0)).
			Then(clientv3.OpPut(key, etcdValue)).Else(clientv3.OpGet(key)).Commit()
		if err == nil && !answer.Succeeded {
			err = fmt.Errorf("%s: %s does not exist", s.name, key)
		}
		return err
	}},
	{"range", 320, func(ctx context.Context, s *etcdSide, _ *clientv3.Client, worker, _ int) error {
		answer, err := s.clients[worker].Get(ctx, etcdKeyPrefix(worker), clientv3.WithPrefix())
		if err == nil && len(answer.Kvs) != etcdKeys {
			err = fmt.Errorf("%s: %d keys", s.name, len(answer.Kvs))
		}
		return err
	}},
	// Each client watches keys of its own, which are written without a proxy.
	{"watch", 1600, func(ctx context.Context, s *etcdSide, root *clientv3.Client, worker, i int) error {
		if _, err := root.Put(ctx, s.prefix+"watched/"+etcdKey(worker, i), etcdValue); err != nil {
			return err
		}
		select {
		case <-s.events:
			return nil
		case <-time.After(etcdLimit):
			return fmt.Errorf("%s: no event after %s", s.name, etcdLimit)
		}
	}},
}

// etcd compares the CPU that a request costs gitopsd's proxy, with either of its transports,
// with the CPU that it costs etcd's own proxy, and etcd without a proxy. Etcd serves gRPC
// over TLS on a port of its own, and all clients have certificates. Authentication is not
// enabled: etcd's proxy cannot authenticate as a user by certificate.
func (b *bench) etcd(ctx context.Context, f *fixture) error {
	server, at, err := f.etcdServer(ctx)
	if err != nil {
		return err
	}
	sides, err := f.etcdSides(ctx, server)
	if err != nil {
		return err
	}
	// The CPU of each proxy, by kind of request.
	plain, fast, rival := make(map[string][]float64), make(map[string][]float64), make(map[string][]float64)
	for round := range b.rounds {
		for _, r := range etcdRequests {
			fmt.Fprintf(b.say, "bench: etcd-proxy, %s, round %d of %d\n", r.name, round+1, b.rounds)
			var proxies, servers [4]float64
			for batch := range etcdBatches {
				for i := range sides {
					side := (i + batch) % len(sides)
					cpu, err := sides[side].batch(ctx, r, server.Root(), sides[side].process, at)
					if err != nil {
						return err
					}
					proxies[side] += cpu[0] / etcdBatches
					servers[side] += cpu[1] / etcdBatches
				}
			}
			plain[r.name] = append(plain[r.name], proxies[1])
			fast[r.name] = append(fast[r.name], proxies[2])
			rival[r.name] = append(rival[r.name], proxies[3])
			const name = "etcd-proxy-vs-grpcproxy"
			b.note(name, r.name, proxies[1])
			b.note(name, "fast:"+r.name, proxies[2])
			b.note(name, "rival:"+r.name, proxies[3])
			b.note(name, "etcd:"+r.name, servers[0])
			if r.name == "get" || r.name == "put" {
				b.add("etcd-proxy-"+r.name+"-cpu", proxies[1], servers[0])
				b.add("etcd-proxy-fast-"+r.name+"-cpu", proxies[2], servers[0])
			}
		}
	}
	b.addWorst("etcd-proxy-vs-grpcproxy", plain, rival)
	b.addWorst("etcd-proxy-fast-vs-grpcproxy", fast, rival)
	return nil
}

// etcdServer starts an etcd in a process of its own.
func (f *fixture) etcdServer(ctx context.Context) (*proxytest.Etcd, serverProcess, error) {
	process, server, err := proxytest.StartEtcd(ctx, f.dir)
	if err != nil {
		return nil, 0, err
	}
	f.closes = append(f.closes, process.Kill, server.Close)
	return server, serverProcess(process.PID()), nil
}

// proxyConfig returns the configuration of a proxy with a serving certificate.
func proxyConfig(authority *proxytest.Authority) (config proxytest.Config, err error) {
	certificate, err := authority.Server()
	if err != nil {
		return config, err
	}
	config.Certificate, config.Key, err = proxytest.EncodePair(certificate)
	return config, err
}

// addWorst adds the result of the kind of requests with the highest ratio.
func (b *bench) addWorst(name string, ours, rival map[string][]float64) {
	var worstOurs, worstRival float64
	for kind := range ours {
		o, r := median(ours[kind]), median(rival[kind])
		if worstRival == 0 || o/r > worstOurs/worstRival {
			worstOurs, worstRival = o, r
		}
	}
	b.add(name, worstOurs, worstRival)
}

// etcdSides connects clients without a proxy, through gitopsd's with either transport, and
// through etcd's.
func (f *fixture) etcdSides(ctx context.Context, server *proxytest.Etcd) ([]*etcdSide, error) {
	direct := &etcdSide{name: "direct"}
	if err := f.connect(ctx, direct, server.Endpoint, "direct", server.Authority()); err != nil {
		return nil, err
	}
	plain, fast := &etcdSide{name: "plain"}, &etcdSide{name: "fast"}
	other := benchNamespace
	other.ID, other.Number = etcd.ID{Cluster: "bench-fast"}, 2
	other.Prefix = other.ID.DefaultPrefix()
	if err := errors.Join(
		f.gitopsdProxy(ctx, plain, server, benchNamespace, false),
		f.gitopsdProxy(ctx, fast, server, other, true),
	); err != nil {
		return nil, err
	}
	rival := &etcdSide{name: "grpcproxy", prefix: "/rival/"}
	if err := f.grpcProxy(ctx, rival, server); err != nil {
		return nil, err
	}
	return []*etcdSide{direct, plain, fast, rival}, nil
}

// gitopsdProxy connects clients through gitopsd's proxy in a process of its own.
func (f *fixture) gitopsdProxy(ctx context.Context, s *etcdSide, server *proxytest.Etcd, ns etcd.Namespace, fast bool) error {
	authority := server.Authority()
	s.prefix = ns.Prefix
	served, err := server.Serve(ctx, ns, authority.PEM())
	if err != nil {
		return err
	}
	config, err := proxyConfig(authority)
	if err != nil {
		return err
	}
	config.Tenants, config.GRPCGo = []proxytest.Served{served}, !fast
	process, address, err := proxytest.StartProxy(ctx, "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	f.closes = append(f.closes, process.Kill)
	s.process = serverProcess(process.PID())
	return f.connect(ctx, s, "https://"+address, "client", authority, ns.ID.URI())
}

// grpcProxy connects clients through etcd's own proxy.
func (f *fixture) grpcProxy(ctx context.Context, s *etcdSide, server *proxytest.Etcd) error {
	authority := server.Authority()
	client, err := authority.Client("") // the proxy refuses a certificate with a name
	if err != nil {
		return err
	}
	certificate, err := authority.Server()
	if err != nil {
		return err
	}
	ca, files, serving := filepath.Join(f.dir, "ca.crt"), filepath.Join(f.dir, "grpcproxy-client"), filepath.Join(f.dir, "grpcproxy")
	if err := errors.Join(os.WriteFile(ca, authority.PEM(), 0o600), proxytest.WritePair(files, client), proxytest.WritePair(serving, certificate)); err != nil {
		return err
	}
	free, err := unused("127.0.0.1")
	if err != nil {
		return err
	}
	address := free.String()
	cmd := exec.CommandContext(ctx, self, grpcProxyChild, "grpc-proxy", "start", "--endpoints", server.Endpoint, "--listen-addr", address,
		"--namespace", s.prefix, "--data-dir", filepath.Join(f.dir, "grpcproxy-data"),
		"--cacert", ca, "--cert", files+".crt", "--key", files+".key",
		"--trusted-ca-file", ca, "--cert-file", serving+".crt", "--key-file", serving+".key")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	f.closes = append(f.closes, func() error { cmd.Process.Kill(); cmd.Wait(); return nil })
	s.process = serverProcess(cmd.Process.Pid)
	if err := f.connect(ctx, s, "https://"+address, "client", authority); err != nil {
		return fmt.Errorf("%w\n%s", err, said.Bytes())
	}
	return nil
}

// connect connects a side's clients, writes the keys that they read, and starts their
// watches. The clients' certificate has the name and URIs; clients of a namespace need the
// URI of its ID.
func (f *fixture) connect(ctx context.Context, s *etcdSide, endpoint, name string, authority *proxytest.Authority, uris ...*url.URL) error {
	s.events = make(chan struct{}, etcdClients*etcdKeys)
	certificate, err := authority.Client(name, uris...)
	if err != nil {
		return err
	}
	config := &tls.Config{RootCAs: authority.Pool(), Certificates: []tls.Certificate{certificate}}
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
	defer cancel()
	for worker := range etcdClients {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: config, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		f.closes = append(f.closes, func() error { c.Close(); return nil })
		s.clients = append(s.clients, c)
		for i := range etcdKeys {
			if _, err := c.Put(ctx, etcdKey(worker, i), etcdValue); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		// The first response says that the watch is created.
		created := c.Watch(context.Background(), "watched/"+etcdKeyPrefix(worker), clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		select {
		case <-created:
		case <-ctx.Done():
			return fmt.Errorf("%s: watch: %w", s.name, ctx.Err())
		}
		go func() {
			for answer := range created {
				for range answer.Events {
					s.events <- struct{}{}
				}
			}
		}()
	}
	return nil
}

// batch sends a batch, and returns the CPU that each request costs the processes.
func (s *etcdSide) batch(ctx context.Context, r etcdRequest, root *clientv3.Client, processes ...serverProcess) ([]float64, error) {
	cpu, err := spent(processes, func() error { return s.send(ctx, r, root) })
	for i := range cpu {
		cpu[i] /= float64(r.batch)
	}
	return cpu, err
}

// send sends a batch by all clients at once.
func (s *etcdSide) send(ctx context.Context, r etcdRequest, root *clientv3.Client) error {
	return concurrently(etcdClients, r.batch, func(worker, i int) error { return r.send(ctx, s, root, worker, i) })
}
