package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/render/etcd"
)

// embeddedChild is the name under which this program is an etcd and its proxy in one.
const embeddedChild = "embedded-child"

// embedded is what such a process says of itself.
type embedded struct {
	Etcd    proxytest.Handle
	Address string // the proxy's
}

// etcdEmbedded compares the throughput of an etcd with that of a proxy in the same
// process. Clients of both get their turn after each batch. The CPU that a request costs the
// process, in seconds, is noted beside it: it depends less on what else the machine does.
func (b *bench) etcdEmbedded(ctx context.Context, f *fixture) error {
	cmd := exec.CommandContext(ctx, self, embeddedChild, f.dir)
	cmd.Stderr = f.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	f.closes = append(f.closes, func() error { return errors.Join(stdin.Close(), cmd.Wait()) })
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
	if err := f.connect(ctx, direct, server.Endpoint, "root", server.Authority(), etcd.ID{}); err != nil {
		return err
	}
	if err := f.connect(ctx, through, "https://"+child.Address, "client", server.Authority(), benchNamespace.ID); err != nil {
		return err
	}
	process := []serverProcess{serverProcess(cmd.Process.Pid)}
	ours, rival := make(map[string][]float64), make(map[string][]float64)
	for round := range b.rounds {
		for _, r := range etcdRequests {
			fmt.Fprintf(b.say, "bench: etcd-embedded, %s, round %d of %d\n", r.name, round+1, b.rounds)
			var took, cpu [2]float64
			for batch := range etcdBatches {
				for i := range took {
					at := (i + batch) % len(took)
					before, err := used(process)
					if err != nil {
						return err
					}
					t, err := []*etcdSide{direct, through}[at].send(ctx, r, server.Root())
					if err != nil {
						return err
					}
					after, err := used(process)
					if err != nil {
						return err
					}
					took[at] += t.Seconds()
					cpu[at] += after[0] - before[0]
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

// benchNamespace is the one that is served. It may ask for as much as it likes.
var benchNamespace = etcd.Namespace{
	ID: etcd.ID{Cluster: "bench"}, Number: 1, Prefix: etcd.ID{Cluster: "bench"}.DefaultPrefix(),
	Throttle: etcd.Throttle{RequestsPerSecond: 1e6, Concurrent: 1000, Watches: 1000},
}

// serveEmbedded is an etcd with a proxy until its standard input ends.
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
		certificate, err := server.Authority().Server()
		if err != nil {
			return err
		}
		config := proxytest.Config{Tenants: []proxytest.Served{served}, Member: server.Member()}
		if config.Certificate, config.Key, err = proxytest.EncodePair(certificate); err != nil {
			return err
		}
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

// idleNamespaces is how many are served and used by nobody but one client that watches.
const idleNamespaces = 500

// etcdNamespaces measures the memory of a proxy that serves many namespaces, each with a
// client that watches its keys, beyond a proxy that serves none.
func (b *bench) etcdNamespaces(ctx context.Context, f *fixture) error {
	process, server, err := proxytest.StartEtcd(ctx, f.dir)
	if err != nil {
		return err
	}
	f.closes = append(f.closes, process.Kill, server.Close)
	certificate, err := server.Authority().Server()
	if err != nil {
		return err
	}
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: etcd-namespaces, round %d of %d\n", round+1, b.rounds)
		var config proxytest.Config
		if config.Certificate, config.Key, err = proxytest.EncodePair(certificate); err != nil {
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

// restingProxy returns the resident memory of a proxy, in MB, each of whose tenants has a
// client that watches.
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
	return residentMB(process.PID())
}

// residentMB returns the resident memory of a process, in MB.
func residentMB(pid int) (float64, error) {
	name := fmt.Sprintf("/proc/%d/status", pid)
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	var kb float64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		return 0, fmt.Errorf("%s: VmRSS: %w", name, err)
	}
	return kb / 1024, nil
}
