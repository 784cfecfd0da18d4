package etcd_test

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/connect"
)

// external is an etcd of several members over mutual TLS, as an operator runs it.
type external struct {
	dir     string
	members []*embed.Etcd
	// stop stops a member.
	stop []func()
}

func (e *external) file(name string) string { return filepath.Join(e.dir, name) }

// newExternal starts an etcd without users, with authentication by certificate if certAuth.
func newExternal(t *testing.T, members int, certAuth bool) *external {
	t.Helper()
	e := &external{dir: t.TempDir()}
	ca, err := rotation.Profile{Name: "external"}.Mint(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	key, err := rotation.EncodeKey(ca.Key)
	if err != nil {
		t.Fatal(err)
	}
	e.write(t, "ca.crt", rotation.Encode(ca.Cert))
	e.write(t, "ca.key", key)
	e.pair(t, "server", rotation.Profile{Name: "member", Host: "localhost", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}})
	e.pair(t, "gitopsd", rotation.Profile{Name: "gitopsd"})
	e.pair(t, "root", rotation.Profile{Name: "root"})
	e.pair(t, "nobody", rotation.Profile{Name: "nobody"})
	e.pair(t, "nameless", rotation.Profile{})

	peers := make([]string, members)
	for i := range peers {
		l, err := net.Listen("tcp", "127.0.0.1:0") // members must know the addresses of the others
		if err != nil {
			t.Fatal(err)
		}
		peers[i] = "http://" + l.Addr().String()
		l.Close()
	}
	for i, peer := range peers {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprint("m", i), filepath.Join(e.dir, fmt.Sprint("m", i))
		u, _ := url.Parse(peer)
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*u}, []url.URL{*u}
		c.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
		c.AdvertiseClientUrls = c.ListenClientUrls
		c.ClientTLSInfo = transport.TLSInfo{CertFile: e.file("server.crt"), KeyFile: e.file("server.key"), TrustedCAFile: e.file("ca.crt"), ClientCertAuth: certAuth}
		var initial []string
		for j, other := range peers {
			initial = append(initial, fmt.Sprintf("m%d=%s", j, other))
		}
		c.InitialCluster = strings.Join(initial, ",")
		c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		m, err := embed.StartEtcd(c)
		if err != nil {
			t.Fatal(err)
		}
		once := sync.OnceFunc(m.Close)
		t.Cleanup(once)
		e.members, e.stop = append(e.members, m), append(e.stop, once)
	}
	for _, m := range e.members {
		<-m.Server.ReadyNotify()
	}
	return e
}

func (e *external) write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(e.file(name), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// pair writes a certificate of the CA.
func (e *external) pair(t *testing.T, name string, p rotation.Profile) {
	t.Helper()
	pair := leaf(t, admin.Config{ClientCACertFile: e.file("ca.crt"), ClientCAKeyFile: e.file("ca.key")}, p)
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := rotation.EncodeKey(pair.PrivateKey.(crypto.Signer))
	if err != nil {
		t.Fatal(err)
	}
	e.write(t, name+".crt", rotation.Encode(cert))
	e.write(t, name+".key", key)
}

func (e *external) endpoint(i int) string {
	return "https://" + e.members[i].Clients[0].Addr().String()
}

func (e *external) config(user string) admin.Config {
	c := admin.Config{
		CAFile: e.file("ca.crt"), CertFile: e.file(user + ".crt"), KeyFile: e.file(user + ".key"),
		ClientCACertFile: e.file("ca.crt"), ClientCAKeyFile: e.file("ca.key"), Fleet: "fleet",
	}
	for i := range e.members {
		c.Endpoints = append(c.Endpoints, e.endpoint(i))
	}
	return c
}

// client returns a client with the certificate of a user.
func (e *external) client(t *testing.T, user string) *clientv3.Client {
	t.Helper()
	config, err := connect.LoadTLS(e.config(user))
	if err != nil {
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: e.config(user).Endpoints, TLS: config, Logger: zap.NewNop(), Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// The errors for an etcd that is not ready have commands for its operator, which make it ready. Check
// changes nothing.
func TestInstructions(t *testing.T) {
	t.Parallel()
	e := newExternal(t, 1, true)
	must := func(user, want string) {
		t.Helper()
		_, err := openAs(t, e.config(user)).Check(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s: %v, want %q", user, err, want)
		}
		if _, again := openAs(t, e.config(user)).Provision(t.Context(), []admin.Wanted{fresh(t)}); again == nil || again.Error() != err.Error() {
			t.Errorf("provisioned: %v", again)
		}
	}
	must("gitopsd", "does not authenticate its clients")
	must("gitopsd", "etcdctl user grant-role gitopsd root")
	must("nameless", "has no common name")
	c, ctx := e.client(t, "root"), t.Context()
	if users, err := c.UserList(ctx); err != nil || len(users.Users) > 0 {
		t.Fatalf("users were made: %v, %v", users, err)
	}
	run := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	nobody := &clientv3.UserAddOptions{NoPassword: true}
	run(c.UserAddWithOptions(ctx, "root", "", nobody))
	run(c.UserGrantRole(ctx, "root", "root"))
	run(c.AuthEnable(ctx))
	must("gitopsd", "user gitopsd, the common name of gitopsd's certificate, does not have the role root")
	run(c.UserAddWithOptions(ctx, "gitopsd", "", nobody))
	must("gitopsd", "does not have the role root")
	run(c.UserGrantRole(ctx, "gitopsd", "root"))
	if server, err := openAs(t, e.config("gitopsd")).Check(ctx); err != nil || len(server.Members) != 1 {
		t.Errorf("%+v, %v", server, err)
	}
	must("nobody", "user nobody, the common name")
	provision(t, openAs(t, e.config("gitopsd")), fresh(t))
}

// An etcd without authentication by certificate is an error.
func TestNoCertAuth(t *testing.T) {
	t.Parallel()
	e := newExternal(t, 1, false)
	c, ctx := e.client(t, "root"), t.Context()
	for _, err := range []error{
		second(c.UserAdd(ctx, "root", "secret")), second(c.UserGrantRole(ctx, "root", "root")), second(c.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := openAs(t, e.config("root")).Check(ctx)
	if err == nil || !strings.Contains(err.Error(), "--client-cert-auth") {
		t.Error(err)
	}
}

func second[T any](_ T, err error) error { return err }

// With one of three members stopped everything works; with two, operations fail within their timeout. A
// replaced certificate is used at once.
func TestMembers(t *testing.T) {
	t.Parallel()
	e := newExternal(t, 3, true)
	c, ctx := e.client(t, "root"), t.Context()
	nobody := &clientv3.UserAddOptions{NoPassword: true}
	for _, err := range []error{
		second(c.UserAddWithOptions(ctx, "root", "", nobody)), second(c.UserGrantRole(ctx, "root", "root")),
		second(c.UserAddWithOptions(ctx, "gitopsd", "", nobody)), second(c.UserGrantRole(ctx, "gitopsd", "root")), second(c.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := e.config("gitopsd")
	a := openAs(t, cfg)
	if server, err := a.Check(ctx); err != nil || len(server.Members) != 3 || len(server.Notes) > 0 {
		t.Fatalf("%+v, %v", server, err)
	}
	kept := fresh(t)
	provision(t, a, kept)

	e.stop[0]()
	server, err := a.Check(ctx)
	if err != nil || len(server.Members) != 2 || len(server.Notes) != 1 || !strings.Contains(server.Notes[0], e.endpoint(0)+" does not answer") {
		t.Errorf("%+v, %v", server, err)
	}
	w := fresh(t)
	p := provision(t, a, w)
	provision(t, a, kept)
	put(t, c, p.Prefix+"a", "1")
	remove(t, a, w, admin.Delete)
	file := filepath.Join(t.TempDir(), "snapshot")
	if err := a.Snapshot(ctx, file); err != nil {
		t.Error(err)
	}

	e.pair(t, "gitopsd", rotation.Profile{Name: "nobody"})
	if _, err := a.Check(ctx); err == nil || !strings.Contains(err.Error(), "user nobody") {
		t.Errorf("the new certificate is not used: %v", err)
	}
	e.pair(t, "gitopsd", rotation.Profile{Name: "gitopsd"})
	provision(t, a, kept)

	e.stop[1]()
	cfg.DialTimeout, cfg.Timeout = 2*time.Second, 4*time.Second
	if _, err := openAs(t, cfg).Provision(ctx, []admin.Wanted{fresh(t)}); err == nil {
		t.Error("it works without a majority")
	}
}

// Errors about unusable configurations name the file.
func TestOpen(t *testing.T) {
	t.Parallel()
	good := shared.Admin()
	good.Fleet = "fleet"
	for _, tt := range []struct {
		change func(*admin.Config)
		want   string
	}{
		{func(c *admin.Config) { c.Endpoints = nil }, "no endpoints"},
		{func(c *admin.Config) { c.Endpoints = []string{"http://127.0.0.1:1"} }, "use https://HOST:PORT"},
		{func(c *admin.Config) { c.Endpoints = []string{"127.0.0.1:1"} }, "use https://HOST:PORT"},
		{func(c *admin.Config) { c.Endpoints = []string{"https://me:PRIVATE KEY@127.0.0.1:1"} }, "use https://HOST:PORT"},
		{func(c *admin.Config) { c.Endpoints = []string{"https://me:xxPRIVATE%20KEYxx@127.0.0.1:1"} }, "https://me:xxxxx@127.0.0.1:1"},
		{func(c *admin.Config) { c.Fleet = "" }, "the name of the fleet"},
		{func(c *admin.Config) { c.CAFile = "" }, "are needed"},
		{func(c *admin.Config) { c.Timeout = time.Second }, "use more for the operation"},
		{func(c *admin.Config) { c.CAFile = "/nonexistent" }, "etcd's CA: open /nonexistent"},
		{func(c *admin.Config) { c.CAFile = c.KeyFile }, "has no certificate in PEM"},
		{func(c *admin.Config) { c.CertFile = c.CAFile }, "the certificate for etcd"},
		{func(c *admin.Config) { c.Endpoints = []string{"https://127.0.0.1:1"} }, "connection refused"},
		{func(c *admin.Config) { c.Endpoints = []string{"https://127.0.0.1:1"} }, "etcd https://127.0.0.1:1 does not answer"},
	} {
		c := good
		tt.change(&c)
		a, err := admin.Open(c)
		if err == nil {
			_, err = a.Check(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE KEY") {
			t.Errorf("it shows a key: %v", err)
		}
	}
}
