package etcd_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/connect"
	"gitopsd.dev/reconcile/etcd/embedded"
	"gitopsd.dev/render/etcd"
)

// shared is an etcd for tests that do not affect each other, one per binary.
var shared *embedded.Server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gitopsd-etcd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if shared, err = embedded.Start(context.Background(), embedded.Config{Dir: dir}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// own starts an etcd for one test.
func own(t *testing.T) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// open returns an Admin of an etcd for a fleet.
func open(t *testing.T, s *embedded.Server, fleet string) *admin.Admin {
	t.Helper()
	cfg := s.Admin()
	cfg.Fleet = fleet
	return openAs(t, cfg)
}

func openAs(t *testing.T, cfg admin.Config) *admin.Admin {
	t.Helper()
	a, err := admin.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// root returns a client with all rights.
func root(t *testing.T, s *embedded.Server) *clientv3.Client {
	t.Helper()
	config, err := connect.LoadTLS(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return dial(t, s.Endpoint(), config)
}

// as returns a client with the certificate of a namespace's user.
func as(t *testing.T, s *embedded.Server, user string) *clientv3.Client {
	t.Helper()
	cfg := s.Admin()
	config, err := connect.LoadTLS(cfg)
	if err != nil {
		t.Fatal(err)
	}
	config.Certificates = []tls.Certificate{leaf(t, cfg, rotation.Profile{Name: user})}
	return dial(t, s.Endpoint(), config)
}

// leaf issues a certificate with the CA of a configuration.
func leaf(t *testing.T, cfg admin.Config, p rotation.Profile) tls.Certificate {
	t.Helper()
	crt, err := os.ReadFile(cfg.ClientCACertFile)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(cfg.ClientCAKeyFile)
	if err != nil {
		t.Fatal(err)
	}
	chain, signer, err := rotation.ParsePair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	crt, key, err = p.Issue(rotation.Authority{Cert: chain[0], Key: signer}, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func dial(t *testing.T, endpoint string, config *tls.Config) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: config, Logger: zap.NewNop(), Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var serial atomic.Int64

// fresh returns a namespace that no other test has.
func fresh(t *testing.T) admin.Wanted {
	t.Helper()
	name := fmt.Sprintf("n%d", serial.Add(1))
	return admin.Wanted{ID: etcd.ID{Cluster: "dev", Namespace: strings.ToLower(strings.ReplaceAll(filepath.Base(t.Name()), "/", "-")), Name: name}, UID: "uid-" + name}
}

// provision provisions one namespace, which must succeed.
func provision(t *testing.T, a *admin.Admin, w admin.Wanted) admin.Provisioned {
	t.Helper()
	all, err := a.Provision(t.Context(), []admin.Wanted{w})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Err != nil || all[0].ID != w.ID || all[0].Number < 1 {
		t.Fatalf("%+v", all)
	}
	return all[0]
}

// refused provisions one namespace, which must be refused, and returns why.
func refused(t *testing.T, a *admin.Admin, w admin.Wanted) string {
	t.Helper()
	all, err := a.Provision(t.Context(), []admin.Wanted{w})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Err == nil {
		t.Fatalf("it is not refused: %+v", all)
	}
	return all[0].Err.Error()
}

// remove removes a namespace completely.
func remove(t *testing.T, a *admin.Admin, w admin.Wanted, how admin.Deletion) {
	t.Helper()
	for {
		r, err := a.Remove(t.Context(), w, how)
		if err != nil {
			t.Fatal(err)
		}
		if r.Done {
			return
		}
	}
}

func get(t *testing.T, c *clientv3.Client, key string, opts ...clientv3.OpOption) *clientv3.GetResponse {
	t.Helper()
	r, err := c.Get(t.Context(), key, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func put(t *testing.T, c *clientv3.Client, key, value string, opts ...clientv3.OpOption) {
	t.Helper()
	if _, err := c.Put(t.Context(), key, value, opts...); err != nil {
		t.Fatal(err)
	}
}
