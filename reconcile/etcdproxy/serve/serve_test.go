package serve

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/embedded"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// secrets are the Secrets of a cluster, in memory.
type secrets map[manifest.ID]identity.Stored

func (s secrets) Get(_ context.Context, id manifest.ID) (identity.Stored, error) { return s[id], nil }

func (s secrets) Put(_ context.Context, id manifest.ID, data map[string][]byte, version string) error {
	if s[id].Version != version {
		return identity.ErrChanged
	}
	n, _ := strconv.Atoi(version)
	s[id] = identity.Stored{Data: maps.Clone(data), Version: strconv.Itoa(n + 1)}
	return nil
}

// world is a namespace in a real etcd, with its certificates.
type world struct {
	*testing.T
	dir       string
	secrets   secrets
	wanted    identity.Wanted
	namespace etcd.Namespace
	endpoint  string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Config{Log: slog.New(slog.DiscardHandler), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg := server.Admin()
	cfg.Log, cfg.Fleet = slog.New(slog.DiscardHandler), "test"
	a, err := admin.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	id := etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}
	made, err := a.Provision(t.Context(), []admin.Wanted{{ID: id}})
	if err != nil || made[0].Err != nil {
		t.Fatal(err, made)
	}
	w := &world{
		T: t, dir: t.TempDir(), secrets: make(secrets), endpoint: server.Endpoint(),
		namespace: etcd.Namespace{ID: id, Number: made[0].Number, Prefix: made[0].Prefix},
		wanted: identity.Wanted{
			ID: id, Service: manifest.Service.ID("default", "sample-etcd"), Proxy: manifest.Secret.ID("default", etcd.ProxySecret("sample")),
			Clients: []identity.Client{{Secret: manifest.Secret.ID("default", "client")}},
		},
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	w.wanted.Upstream = identity.Upstream{ClientCACert: read(cfg.ClientCACertFile), ClientCAKey: read(cfg.ClientCAKeyFile), CA: read(cfg.CAFile)}
	w.keep()
	return w
}

// keep creates the certificates, and writes the directory.
func (w *world) keep() {
	w.Helper()
	kept, err := new(identity.Keeper).Keep(w.Context(), w.secrets, w.wanted)
	if err != nil || !kept.Ready {
		w.Fatal(err, kept)
	}
	w.write()
}

func (w *world) write() {
	w.Helper()
	text, err := json.Marshal(w.namespace)
	if err != nil {
		w.Fatal(err)
	}
	data := maps.Clone(w.secrets[w.wanted.Proxy].Data)
	data[etcd.NamespaceFile], data[etcd.EndpointsFile] = text, []byte(w.endpoint+"\n")
	for _, f := range etcd.Files {
		w.file(f.Path, data[f.Key])
	}
}

func (w *world) file(name string, text []byte) {
	w.Helper()
	name = filepath.Join(w.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(name, text, 0o600); err != nil {
		w.Fatal(err)
	}
}

// client connects with the certificate in the client's Secret, to the name of the Service.
func (w *world) client(address string) *clientv3.Client {
	w.Helper()
	data := w.secrets[w.wanted.Clients[0].Secret].Data
	pair, err := tls.X509KeyPair(data["tls.crt"], data["tls.key"])
	if err != nil {
		w.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(data["ca.crt"])
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://sample-etcd.default.svc:2379"}, Logger: zap.NewNop(),
		TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		})},
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	return c
}

func answer(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(text)
}

// patience bounds everything that a test waits for.
const patience = 2 * time.Minute

// The directory that the controller writes serves the namespace, also after it is replaced while clients are
// connected. An invalid directory changes nothing.
func TestServe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, err := newServer(Config{Bind: "127.0.0.1", Port: "0", HealthPort: "0", Dir: w.dir, Log: slog.New(slog.DiscardHandler), Leaving: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	addresses := make(chan [2]string, 1)
	var ran sync.WaitGroup
	defer ran.Wait()
	defer cancel()
	ran.Go(func() {
		if err := s.run(ctx, func(a, h net.Addr) { addresses <- [2]string{a.String(), h.String()} }); err != nil {
			t.Error(err)
		}
	})
	within, cancelAll := context.WithTimeout(t.Context(), patience)
	defer cancelAll()
	at := <-addresses
	c := w.client(at[0])
	if _, err := c.Put(within, "/a", "1"); err != nil {
		t.Fatal(err)
	}
	get := func(c *clientv3.Client) {
		t.Helper()
		all, err := c.Get(within, "", clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		if len(all.Kvs) != 1 || string(all.Kvs[0].Key) != "/a" {
			t.Errorf("%v", all.Kvs)
		}
	}
	get(c)
	for {
		code, text := answer(t, "http://"+at[1]+"/readyz")
		if code == http.StatusOK {
			break // the keys are counted
		}
		if !strings.Contains(text, "dev/default/sample") {
			t.Fatalf("not ready: %s", text)
		}
		if within.Err() != nil {
			t.Fatalf("not ready after %v: %s", patience, text)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, text := answer(t, "http://"+at[1]+"/metrics"); !strings.Contains(text, `gitopsd_etcd_connections{namespace="dev/default/sample"} 1`) {
		t.Errorf("metrics are\n%s", text)
	}

	for name, text := range map[string]string{
		"server/tls.crt": "", "upstream/tls.key": "garbled", "client-ca.crt": "none", "endpoints": "http://a\n", "namespace.json": `{"prefx": "/"}`,
	} {
		w.file(name, []byte(text))
		if changed, err := s.reload(); changed || err == nil || !strings.Contains(err.Error(), strings.TrimSuffix(strings.TrimSuffix(name, ".crt"), ".key")) {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
		w.write()
	}
	own := w.namespace
	w.namespace.ID.Name = "other"
	w.write()
	if changed, err := s.reload(); changed || err == nil || !strings.Contains(err.Error(), "dev/default/sample is served until a restart") {
		t.Errorf("another namespace: changed %v, %v", changed, err)
	}
	w.namespace = own
	w.write()
	if changed, err := s.reload(); changed || err != nil {
		t.Errorf("as it was: changed %v, %v", changed, err)
	}
	get(c)

	// The serving certificate is lost and created again, and a client is revoked.
	proxy := w.secrets[w.wanted.Proxy]
	before := proxy.Data["server.crt"]
	delete(proxy.Data, "server.crt")
	delete(proxy.Data, "server.key")
	w.keep()
	if bytes.Equal(before, w.secrets[w.wanted.Proxy].Data["server.crt"]) {
		t.Fatal("the certificate is the same")
	}
	if changed, err := s.reload(); !changed || err != nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	get(c)
	get(w.client(at[0]))

	// Nobody may connect once the last client is withdrawn, also on connections that are open.
	client := w.wanted.Clients
	w.wanted.Clients = nil
	w.keep()
	if changed, err := s.reload(); !changed || err != nil {
		t.Errorf("without clients: changed %v, %v", changed, err)
	}
	refused := func(c *clientv3.Client) {
		t.Helper()
		short, cancel := context.WithTimeout(within, time.Second)
		defer cancel()
		if got, err := c.Get(short, "/a"); err == nil {
			t.Errorf("a withdrawn client reads %v", got.Kvs)
		}
	}
	w.wanted.Clients = client // its Secret is still there
	withdrawn := w.client(at[0])
	refused(c)
	refused(withdrawn)
}

// The error for an invalid directory names the file.
func TestMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := newServer(Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "namespace.json") {
		t.Errorf("%v", err)
	}
}
