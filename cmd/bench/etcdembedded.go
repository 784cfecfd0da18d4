package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// embeddedChild is the name under which this program is an etcd with a proxy.
const embeddedChild = "embedded-child"

// embedded is the output of such a process once it serves.
type embedded struct {
	Etcd    proxytest.Handle
	Address string // the proxy's
}

// etcdEmbedded compares the throughput of an etcd with the throughput of a proxy in the
// same process. The clients of both take turns after each batch. A note has the CPU, in
// seconds, that a request costs the process: it depends less on other load.
func (b *bench) etcdEmbedded(ctx context.Context, f *fixture) error {
	stdout, pid, err := f.serverChild(ctx, embeddedChild, f.dir)
	if err != nil {
		return err
	}
	var child embedded
	if err := json.NewDecoder(stdout).Decode(&child); err != nil {
		return fmt.Errorf("the embedded etcd does not start: %w", err)
	}
	server, err := proxytest.Connect(child.Etcd)
	if err != nil {
		return err
	}
	f.closes = append(f.closes, server.Close)
	direct, through := &etcdSide{name: "direct"}, &etcdSide{name: "embedded", prefix: benchNamespace.Prefix}
	if err := f.connect(ctx, direct, server.Endpoint, "root", server.Authority()); err != nil {
		return err
	}
	if err := f.connect(ctx, through, "https://"+child.Address, "client", server.Authority(), benchNamespace.ID.URI()); err != nil {
		return err
	}
	sides := []*etcdSide{direct, through}
	ours, rival := make(map[string][]float64), make(map[string][]float64)
	for round := range b.rounds {
		for _, r := range etcdRequests {
			fmt.Fprintf(b.say, "bench: etcd-embedded, %s, round %d of %d\n", r.name, round+1, b.rounds)
			var took, cpu [2]float64
			for batch := range etcdBatches {
				for i := range took {
					at := (i + batch) % len(took)
					c, err := spent([]serverProcess{pid}, func() error {
						begun := time.Now()
						defer func() { took[at] += time.Since(begun).Seconds() }()
						return sides[at].send(ctx, r, server.Root())
					})
					if err != nil {
						return err
					}
					cpu[at] += c[0]
				}
			}
			n := float64(etcdBatches * r.batch)
			ours[r.name], rival[r.name] = append(ours[r.name], n/took[0]), append(rival[r.name], n/took[1])
			b.note("etcd-embedded", "direct:"+r.name, n/took[0])
			b.note("etcd-embedded", r.name, n/took[1])
			b.note("etcd-embedded", "cpu-direct:"+r.name, cpu[0]/n)
			b.note("etcd-embedded", "cpu:"+r.name, cpu[1]/n)
		}
	}
	b.addWorst("etcd-embedded", ours, rival)
	return nil
}

// benchNamespace is the served namespace. Its throttle is higher than any load here.
var benchNamespace = etcd.Namespace{
	ID: etcd.ID{Cluster: "bench"}, Number: 1, Prefix: etcd.ID{Cluster: "bench"}.DefaultPrefix(),
	Throttle: etcd.Throttle{RequestsPerSecond: 1e6, Concurrent: 1000, Watches: 1000},
}

// serveEmbedded serves an etcd with a proxy until its standard input ends.
func serveEmbedded(dir string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := func() error {
		server, err := proxytest.Start(dir, proxytest.NewConfig())
		if err != nil {
			return err
		}
		defer server.Close()
		served, err := server.Serve(context.Background(), benchNamespace, server.Authority().PEM())
		if err != nil {
			return err
		}
		config, err := proxyConfig(server.Authority())
		if err != nil {
			return err
		}
		config.Tenants, config.Member = []proxytest.Served{served}, server.Member()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		proxy, err := config.Start(l)
		if err != nil {
			return err
		}
		defer proxy.Close()
		handle, err := server.Handle()
		if err != nil {
			return err
		}
		if err := json.NewEncoder(stdout).Encode(embedded{Etcd: handle, Address: proxy.Address}); err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, stdin)
		return nil
	}()
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// idleNamespaces is how many namespaces are served, each to one client that only watches.
const idleNamespaces = 500

// etcdNamespaces measures the memory of a proxy that serves many namespaces, each with a
// client that watches its keys, beyond a proxy that serves none.
func (b *bench) etcdNamespaces(ctx context.Context, f *fixture) error {
	server, _, err := f.etcdServer(ctx)
	if err != nil {
		return err
	}
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: etcd-namespaces, round %d of %d\n", round+1, b.rounds)
		config, err := proxyConfig(server.Authority())
		if err != nil {
			return err
		}
		none, err := restingProxy(ctx, config, server)
		if err != nil {
			return err
		}
		for i := range idleNamespaces {
			id := etcd.ID{Cluster: "idle", Namespace: "default", Name: fmt.Sprintf("namespace-%d", i)}
			user, err := server.User(id.User())
			if err != nil {
				return err
			}
			served := proxytest.Served{
				Namespace: etcd.Namespace{ID: id, Number: int64(i + 1), Prefix: id.DefaultPrefix()},
				Endpoints: []string{server.Endpoint}, CA: server.CA(), ClientCA: server.CA(),
			}
			if served.User, served.UserKey, err = proxytest.EncodePair(user); err != nil {
				return err
			}
			config.Tenants = append(config.Tenants, served)
		}
		many, err := restingProxy(ctx, config, server)
		if err != nil {
			return err
		}
		const goal = 150 // MB
		b.add("etcd-namespaces-rss", many-none, goal)
		b.note("etcd-namespaces-rss", "none", none)
	}
	return nil
}

// restingProxy returns the resident memory, in MB, of a proxy with a watching client for
// each tenant.
func restingProxy(ctx context.Context, config proxytest.Config, server *proxytest.Etcd) (mb float64, err error) {
	process, address, err := proxytest.StartProxy(ctx, "127.0.0.1:0", config)
	if err != nil {
		return 0, err
	}
	defer process.Kill()
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
	defer cancel()
	for _, t := range config.Tenants {
		tlsConfig, err := proxytest.ClientTLS(t.ID, server.Authority(), server.Authority())
		if err != nil {
			return 0, err
		}
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, TLS: tlsConfig, Logger: zap.NewNop()})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		select {
		case <-c.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithCreatedNotify()):
		case <-ctx.Done():
			return 0, fmt.Errorf("watch in %s: %w", t.ID, ctx.Err())
		}
	}
	return memoryMB(strconv.Itoa(process.PID()), "VmRSS")
}
