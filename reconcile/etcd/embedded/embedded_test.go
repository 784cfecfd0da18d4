package embedded

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"gitopsd.dev/reconcile/certs/rotation"
	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/connect"
)

// TestMain also runs the process that reads a snapshot; see restoreCommand.
func TestMain(m *testing.M) {
	if len(os.Args) != 4 || os.Args[1] != "restore" {
		os.Exit(m.Run())
	}
	if err := RestoreData(os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "gitopsd:", err)
		os.Exit(1)
	}
}

// restoreCommand runs this program to read a snapshot.
func restoreCommand(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{self, "restore"}
}

func start(t *testing.T, c Config) *Server {
	t.Helper()
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// client connects as the root user, or with another TLS configuration.
func client(t *testing.T, s *Server, config *tls.Config) *clientv3.Client {
	t.Helper()
	if config == nil {
		var err error
		if config, err = connect.LoadTLS(s.Admin()); err != nil {
			t.Fatal(err)
		}
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, TLS: config, Logger: zap.NewNop(), Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// good fails the test unless the etcd is as Start documents.
func good(t *testing.T, s *Server) {
	t.Helper()
	cfg := s.Admin()
	cfg.Fleet = "test"
	a, err := admin.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	server, err := a.Check(t.Context())
	if err != nil || len(server.Members) != 1 || len(server.Notes) > 0 || server.Members[0].Quota != quota {
		t.Errorf("%+v, %v", server, err)
	}
}

// A new etcd refuses clients without the certificate of a user, is locked, and keeps its data over a
// restart.
func TestStart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "etcd")
	s := start(t, Config{Dir: dir})
	good(t, s)
	if _, err := client(t, s, nil).Put(t.Context(), "/a", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Config{Dir: dir}); !errors.Is(err, ErrInUse) {
		t.Errorf("a second one in %s: %v", dir, err)
	}

	config, err := connect.LoadTLS(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	for name, pairs := range map[string][]tls.Certificate{"no certificate": nil, "another CA's": {pairOf(t, nil, "root")}} {
		refused := config.Clone()
		refused.Certificates = pairs
		if err := greet(s, refused); err == nil || !strings.Contains(err.Error(), "tls: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := greet(s, config); err != nil {
		t.Error(err)
	}
	for _, user := range []string{"nobody", "gitopsd"} { // the latter is the member's own name
		other := config.Clone()
		other.Certificates = []tls.Certificate{pairOf(t, s, user)}
		if _, err := client(t, s, other).Get(t.Context(), "/a"); !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s: %v", user, err)
		}
	}
	private(t, dir)
	private(t, filepath.Dir(dir))

	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-s.Done():
	default:
		t.Error("it is not done")
	}
	again := start(t, Config{Dir: dir})
	good(t, again)
	if r, err := client(t, again, nil).Get(t.Context(), "/a"); err != nil || r.Count != 1 {
		t.Errorf("%v, %v", r, err)
	}
}

// An etcd that is full keeps ten minutes of history, and takes writes again once that makes room. Until
// then the error says what to do.
func TestFull(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: t.TempDir(), quota: 32 << 20})
	cfg := s.Admin()
	cfg.Fleet = "test"
	a, err := admin.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	compactor, err := a.Compactor(func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	compact := func() {
		t.Helper()
		if _, err := compactor.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	db := filepath.Join(s.cfg.Dir, "etcd", "member", "snap", "db")
	c, value := client(t, s, nil), strings.Repeat("v", 10<<10)
	// fill writes until etcd is full, which it notices some writes later. Each time it writes the keys that
	// key returns for 0 to 99.
	fill := func(key func(n, i int) string) {
		t.Helper()
		for n := range 1000 {
			var puts []clientv3.Op
			for i := range 100 {
				puts = append(puts, clientv3.OpPut(key(n, i), value))
			}
			if _, err := c.Txn(t.Context()).Then(puts...).Commit(); errors.Is(err, rpctypes.ErrNoSpace) {
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("it is not full")
	}
	writes := func() error {
		_, err := c.Put(t.Context(), "/small", "1")
		return err
	}

	fill(func(_, i int) string { return fmt.Sprint("/same/", i) })
	if _, err := compactor.Compact(t.Context()); err == nil {
		t.Error("there is room at once")
	}
	if err := writes(); !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Errorf("with its history: %v", err)
	}
	now = now.Add(10 * time.Minute)
	compact()
	if err := writes(); err != nil {
		t.Errorf("without its history: %v", err)
	}

	fill(func(n, i int) string { return fmt.Sprintf("/other/%d/%d", n, i) })
	// It is not defragmented, which stops it, each time that something goes.
	for n, want := range []bool{false, true, false, false, true, false} {
		before, err := os.Stat(db)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := compactor.Compact(t.Context()); err == nil || !strings.Contains(err.Error(), "delete keys") {
			t.Errorf("without room: %v", err)
		}
		after, err := os.Stat(db)
		if err != nil {
			t.Fatal(err)
		}
		if have := !os.SameFile(before, after); have != want {
			t.Errorf("pass %d without room: defragmented %t, want %t", n, have, want)
		}
		if _, err := c.Delete(t.Context(), fmt.Sprintf("/other/0/%d", n)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(10 * time.Minute)
	}
	if o, err := a.Overview(t.Context()); err != nil || len(o.Problems) != 1 || !strings.Contains(o.Problems[0], "less than a tenth of its 33554432 bytes left") {
		t.Errorf("full: %v, %v", o.Problems, err)
	}
	if _, err := c.Delete(t.Context(), "/other/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if _, err := compactor.Compact(t.Context()); err == nil {
		t.Error("what was just deleted is not history")
	}
	now = now.Add(10 * time.Minute)
	compact()
	if err := writes(); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
	if o, err := a.Overview(t.Context()); err != nil || len(o.Problems) > 0 {
		t.Errorf("after a deletion: %v, %v", o.Problems, err)
	}
}

// greet connects and waits for data of the etcd: a server refuses a certificate after the client's
// handshake.
func greet(s *Server, config *tls.Config) error {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	u, err := url.Parse(s.Endpoint())
	if err != nil {
		return err
	}
	conn, err := tls.Dial("tcp", u.Host, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return err
}

// pairOf issues a client's certificate with the etcd's CA, or with another.
func pairOf(t *testing.T, s *Server, name string) tls.Certificate {
	t.Helper()
	profile := rotation.Profile{Name: name}
	ca, err := profile.Mint(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if s != nil {
		ca, err = pki{dir: s.cfg.Dir, now: time.Now}.authority()
	}
	if err != nil {
		t.Fatal(err)
	}
	crt, key, err := profile.Issue(ca, time.Now().Add(-time.Minute), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// private fails the test if others can read a file in a directory. The directory's mode protects etcd's
// own data.
func private(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

var errKilled = errors.New("killed here")

// After a first start that was killed at any point, the next one succeeds.
func TestKilledAtFirstStart(t *testing.T) {
	t.Parallel()
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, name := range names {
				if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	write := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	type point struct {
		name string
		// request fails, before or after it is sent; then the files are made as they are
		// at that point.
		request string
		after   bool
		files   func(*testing.T, string)
	}
	points := []point{
		{name: "the CA's key alone", files: remove("ca.crt", "server.crt", "server.key", "root.crt", "root.key", "etcd", "endpoint")},
		{name: "the CA alone", files: remove("server.crt", "server.key", "root.crt", "root.key", "etcd", "endpoint")},
		{name: "a key without its certificate", files: remove("root.crt", "etcd", "endpoint")},
		{name: "half a file", files: write(".ca.crt.123", "-----BEGIN")},
		{name: "a garbled certificate", files: write("server.crt", "-----BEGIN")},
		{name: "an endpoint of before", files: write("endpoint", "https://127.0.0.1:1\n")},
	}
	for _, request := range []string{"AuthStatus", "UserAdd", "UserGrantRole", "AuthEnable"} {
		points = append(points, point{name: "before " + request, request: request}, point{name: "after " + request, request: request, after: true})
	}
	for _, tt := range points {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fails := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if !strings.HasSuffix(method, "/"+tt.request) {
					return invoke(ctx, method, req, reply, cc, opts...)
				}
				if tt.after {
					if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
						return err
					}
				}
				return errKilled
			}
			c := Config{Dir: dir}
			if tt.request != "" {
				c.intercept = []grpc.UnaryClientInterceptor{fails}
			}
			s, err := Start(t.Context(), c)
			if (err != nil) != (tt.request != "") {
				t.Fatal(err)
			}
			if err == nil {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				tt.files(t, dir)
			}
			good(t, start(t, Config{Dir: dir}))
		})
	}
}

// Start fails for invalid configurations and directories, and says what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	garbled := t.TempDir()
	for name, content := range map[string]string{"ca.crt": "no", "ca.key": "no"} {
		if err := os.WriteFile(filepath.Join(garbled, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lost := t.TempDir()
	if _, err := (pki{dir: lost, now: time.Now}).authority(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(lost, "ca.key")); err != nil {
		t.Fatal(err)
	}
	// The clock was wrong when the CA was made.
	ahead, behind := t.TempDir(), t.TempDir()
	for dir, made := range map[string]time.Time{ahead: time.Now().Add(30 * 24 * time.Hour), behind: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		if _, err := (pki{dir: dir, now: func() time.Time { return made }}).authority(); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		config Config
		want   string
	}{
		{Config{}, "embedded etcd: a directory is needed"},
		{Config{Dir: lost, Listen: "localhost:0"}, `embedded etcd: cannot listen at "localhost:0"; use an IP address and a port, such as 127.0.0.1:2379`},
		{Config{Dir: lost}, "the CA's certificate is there without its key"},
		{Config{Dir: garbled}, "ca.crt and ca.key are not a CA and its key"},
		{Config{Dir: ahead}, ": it is behind, or was ahead when the CA was made; correct the clock"},
		{Config{Dir: behind}, "ca.crt expired at 2019-12-27T00:00:00Z, and the clock says "},
	} {
		if _, err := Start(t.Context(), tt.config); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// A damaged database does not end the process. Half of the metadata is enough, as after a crash.
func TestDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Config{Dir: dir})
	good(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "etcd", "member", "snap", "db")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	torn := func(pages ...int) []byte {
		db := slices.Clone(whole)
		for _, n := range pages {
			db[n*os.Getpagesize()+boltHeader+boltMeta-1] ^= 1
		}
		return db
	}
	for _, tt := range []struct {
		name, want string
		content    []byte
	}{
		{"garbage", "it is no database of etcd's; restore a snapshot into a new directory", bytes.Repeat([]byte("x"), 8192)},
		{"zeros", "it is no database of etcd's; ", make([]byte, len(whole))},
		{"cut", " bytes, and is smaller; ", whole[:4*os.Getpagesize()]},
		{"torn", "it is no database of etcd's; ", torn(0, 1)},
		{"half torn", "", torn(0)},
		{"the other half torn", "", torn(1)},
		{"as it was", "", whole},
	} {
		if err := os.WriteFile(file, tt.content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Start(t.Context(), Config{Dir: dir})
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The revision after a restoration is greater than any that clients may have seen.
func TestRestoredRevision(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	first := restoredRevision(1000, now)
	for name, next := range map[string]int64{
		"the same snapshot again":     restoredRevision(1000, now.Add(time.Minute)) - 60*100_000,
		"an older one":                restoredRevision(10, now.Add(time.Minute)) - 60*100_000,
		"one of the restored etcd":    restoredRevision(first+100_000, now.Add(time.Minute)) - 60*100_000,
		"while the clock is far back": restoredRevision(first+100_000, time.Unix(0, 0)) - 60*100_000,
	} {
		if next <= first {
			t.Errorf("%s: %d after %d", name, next, first)
		}
	}
}

// Other addresses and names get into the certificates at the next start, though there are as many.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := start(t, Config{Dir: dir, Listen: "127.0.0.2:0", Names: []string{"old.example.org"}}).Close(); err != nil {
		t.Fatal(err)
	}
	good(t, start(t, Config{Dir: dir, Listen: "127.0.0.3:0", Names: []string{"new.example.org"}}))
	for _, name := range []string{"server.crt", "proxy/tls.crt"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		chain, err := rotation.Parse(text)
		if err != nil || chain[0].VerifyHostname("new.example.org") != nil || chain[0].VerifyHostname("old.example.org") == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The member's certificate is replaced while the etcd runs, by the same CA.
func TestRenew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := start(t, Config{Dir: t.TempDir(), Names: []string{"etcd.example.org", "192.0.2.7"}, Now: func() time.Time { return now.Add(-70 * 24 * time.Hour) }})
	// The etcd's clock is behind, so nothing is renewed yet, though certificates are in their last third.
	serial := func() string {
		config, err := connect.LoadTLS(s.Admin())
		if err != nil {
			t.Fatal(err)
		}
		u, _ := url.Parse(s.Endpoint())
		conn, err := tls.Dial("tcp", u.Host, config)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		leaf := conn.ConnectionState().PeerCertificates[0]
		if leaf.VerifyHostname("etcd.example.org") != nil || leaf.VerifyHostname("192.0.2.7") != nil {
			t.Errorf("it is for %v, %v", leaf.DNSNames, leaf.IPAddresses)
		}
		return leaf.SerialNumber.String()
	}
	before := serial()
	p := pki{dir: s.cfg.Dir, names: []string{"127.0.0.1", "etcd.example.org", "192.0.2.7"}, now: time.Now}
	again, err := p.ensure()
	if err != nil || !again.After(now) {
		t.Fatal(again, err)
	}
	after := serial()
	if before == after {
		t.Error("the certificate is that of before")
	}
	if _, err := p.ensure(); err != nil || serial() != after {
		t.Errorf("it is renewed again, %v", err)
	}
	good(t, s)
}

// Renewal goes on while the etcd runs, and ends with it.
func TestRenewing(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Dir: t.TempDir()})
	root := func() string {
		text, err := os.ReadFile(filepath.Join(s.cfg.Dir, "root.crt"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := root()
	if err := os.Remove(filepath.Join(s.cfg.Dir, "root.key")); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		s.renew(ctx, pki{dir: s.cfg.Dir, names: []string{"127.0.0.1"}, now: time.Now}, time.Now())
		close(ended)
	}()
	for root() == before { // the test ends when its time does
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	<-ended
	good(t, s)
}

// A snapshot of a running or a stopped etcd is restored into another directory, with its data, and with
// revisions that no client has seen.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Config{Dir: dir})
	put, err := client(t, s, nil).Put(t.Context(), "/a", "1")
	if err != nil {
		t.Fatal(err)
	}
	files := t.TempDir()
	running, stopped := filepath.Join(files, "running"), filepath.Join(files, "stopped")
	if err := Snapshot(t.Context(), Config{Dir: dir}, running); err != nil {
		t.Fatal(err)
	}
	if err := Snapshot(t.Context(), Config{Dir: dir}, running); err == nil || !strings.Contains(err.Error(), "exists; name a new file") {
		t.Errorf("it is overwritten: %v", err)
	}
	if err := Restore(t.Context(), Config{Dir: dir}, running); !errors.Is(err, ErrInUse) {
		t.Errorf("restored under a running etcd: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), Config{Dir: dir}, running); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("restored over data: %v", err)
	}
	if err := Snapshot(t.Context(), Config{Dir: dir}, stopped); err != nil {
		t.Fatal(err)
	}
	private(t, files)
	if entries, err := os.ReadDir(files); err != nil || len(entries) != 2 {
		t.Errorf("files left: %v, %v", entries, err)
	}
	seen := put.Header.Revision
	for _, file := range []string{running, stopped, running} {
		to := filepath.Join(t.TempDir(), "restored")
		// The rest of a killed restoration is no data.
		if err := os.MkdirAll(filepath.Join(to, restoring+".1", "member"), 0o700); err != nil {
			t.Fatal(err)
		}
		// Nor is what a new volume has.
		if err := os.Mkdir(filepath.Join(to, "lost+found"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Restore(t.Context(), Config{Dir: to, RestoreCommand: restoreCommand(t)}, file); err != nil {
			t.Fatal(err)
		}
		restored := start(t, Config{Dir: to})
		good(t, restored)
		c := client(t, restored, nil)
		r, err := c.Get(t.Context(), "/a")
		if err != nil || r.Count != 1 || r.Header.GetRevision() <= seen {
			t.Errorf("%s: %+v, %v; a client has seen %d", file, r, err, seen)
		}
		for range 10 {
			again, err := c.Put(t.Context(), "/a", "2")
			if err != nil {
				t.Fatal(err)
			}
			seen = again.Header.Revision
		}
		private(t, to)
	}
}

// A file that is not a whole snapshot is refused, and nothing is left.
func TestGarbledSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, Config{Dir: dir})
	good(t, s)
	file := filepath.Join(t.TempDir(), "snapshot")
	if err := Snapshot(t.Context(), Config{Dir: dir}, file); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flipped := slices.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	hashed := func(text []byte) []byte { return append(text, sum(text)...) }
	crafted := func(craft func(root []byte, number uint64)) []byte {
		return hashed(withRoot(t, slices.Clone(whole[:len(whole)-32]), craft))
	}
	for name, tt := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":                   {nil, "is no complete snapshot"},
		"cut":                     {whole[:len(whole)-100], "is no complete snapshot"},
		"cut at a page":           {whole[:len(whole)-4096], "is garbled: its hash"},
		"flipped":                 {flipped, "is garbled: its hash"},
		"without its hash":        {whole[:len(whole)-32], "is no complete snapshot"},
		"no database":             {hashed(bytes.Repeat([]byte("x"), 8192)), "it is no database of etcd's"},
		"zeros":                   {hashed(make([]byte, 8192)), "it is no database of etcd's"},
		"a damaged one, hashed":   {hashed(bytes.Replace(whole[:len(whole)-32], whole[4096:8192], bytes.Repeat([]byte{0xff}, 4096), 1)), "cannot be restored"},
		"the first page, hashed":  {hashed(slices.Clone(whole[:4096])), "cannot be restored"},
		"the first pages, hashed": {hashed(slices.Clone(whole[:4*4096])), "cannot be restored"},
		// The key would be where no memory or other content is: the process crashes, or reports it.
		"a key behind the end": {crafted(func(root []byte, _ uint64) {
			binary.NativeEndian.PutUint32(root[boltHeader+4:], 1<<31-1)
		}), "cannot be restored"},
		"more keys than there is room for": {crafted(func(root []byte, _ uint64) {
			binary.NativeEndian.PutUint16(root[10:], 1<<16-2)
		}), "cannot be restored"},
		"buckets inside themselves": {crafted(func(root []byte, number uint64) {
			for i := range int(binary.NativeEndian.Uint16(root[10:])) {
				at := boltHeader + 16*i
				value := at + int(binary.NativeEndian.Uint32(root[at+4:])) + int(binary.NativeEndian.Uint32(root[at+8:]))
				binary.NativeEndian.PutUint64(root[value:], number)
			}
		}), "cannot be restored"},
	} {
		bad, to := filepath.Join(t.TempDir(), "bad"), filepath.Join(t.TempDir(), "to")
		if err := os.WriteFile(bad, tt.content, 0o600); err != nil {
			t.Fatal(err)
		}
		err := Restore(t.Context(), Config{Dir: to, RestoreCommand: restoreCommand(t)}, bad)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		entries, _ := os.ReadDir(to)
		if slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != "lock" }) {
			t.Errorf("%s: it left %v", name, entries)
		}
	}
	if err := Restore(t.Context(), Config{Dir: t.TempDir()}, t.TempDir()); err == nil {
		t.Error("a directory is restored")
	}
}

// withRoot changes the page of a database that lists its buckets, and has a number.
func withRoot(t *testing.T, db []byte, craft func(root []byte, number uint64)) []byte {
	t.Helper()
	var number, newest uint64
	for _, meta := range [][]byte{db[boltHeader:], db[os.Getpagesize()+boltHeader:]} {
		if txid := binary.NativeEndian.Uint64(meta[48:]); txid >= newest {
			number, newest = binary.NativeEndian.Uint64(meta[16:]), txid
		}
	}
	root := db[int(number)*os.Getpagesize():]
	if leaf := uint16(2); binary.NativeEndian.Uint16(root[8:]) != leaf {
		t.Fatal("the root is no leaf")
	}
	craft(root, number)
	return db
}

func sum(text []byte) []byte {
	hash := sha256.Sum256(text)
	return hash[:]
}
