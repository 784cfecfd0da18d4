package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

// cluster is a Store in memory with a clock. Tests can make its writes fail.
type cluster struct {
	t       *testing.T
	now     time.Time
	objects map[manifest.ID]Stored
	version int
	writes  int
	// dies is the write at which the process is killed, before it or after.
	dies  int
	after bool
	// refuses has the objects that cannot be written.
	refuses []manifest.ID
	wants   Wanted
	// policy is the Keeper's.
	policy rotation.Policy
}

var errKilled = errors.New("killed here")

func (c *cluster) Get(_ context.Context, id manifest.ID) (Stored, error) {
	s := c.objects[id]
	s.Data = maps.Clone(s.Data)
	return s, nil
}

func (c *cluster) Put(_ context.Context, id manifest.ID, data map[string][]byte, version string) error {
	if c.writes++; c.writes == c.dies && !c.after {
		return errKilled
	}
	if slices.Contains(c.refuses, id) {
		return Refused{fmt.Errorf("%s is immutable", id)}
	}
	have := c.objects[id]
	if have.Foreign != "" {
		c.t.Errorf("%s is somebody else's and is written", id)
	}
	if have.Version != version {
		return ErrChanged
	}
	c.version++
	c.objects[id] = Stored{Data: maps.Clone(data), Version: strconv.Itoa(c.version)}
	if c.writes == c.dies {
		return errKilled
	}
	return nil
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), objects: make(map[manifest.ID]Stored)}
	c.wants = Wanted{
		ID:      etcd.ID{Cluster: "prod", Namespace: "default", Name: "sample"},
		Service: manifest.Service.ID("default", "sample-etcd"), Proxy: manifest.Secret.ID("default", "sample-etcd-proxy"),
		Clients: []Client{
			{Secret: manifest.Secret.ID("default", "one")},
			{Secret: manifest.Secret.ID("default", "two"), Validity: 30 * 24 * time.Hour},
		},
		ConfigMaps: []manifest.ID{manifest.ConfigMap.ID("default", "ca")},
		Upstream:   c.upstream(),
	}
	return c
}

// upstream returns the CAs of an etcd, for 20 years.
func (c *cluster) upstream() Upstream {
	c.t.Helper()
	return c.upstreamUntil(c.now.Add(20 * 365 * 24 * time.Hour))
}

func (c *cluster) upstreamUntil(ends time.Time) Upstream {
	c.t.Helper()
	a, err := rotation.Profile{Name: "etcd"}.Mint(c.now.Add(-time.Hour), ends)
	if err != nil {
		c.t.Fatal(err)
	}
	key, err := rotation.EncodeKey(a.Key)
	if err != nil {
		c.t.Fatal(err)
	}
	return Upstream{ClientCACert: rotation.Encode(a.Cert), ClientCAKey: key, CA: rotation.Encode(a.Cert)}
}

func (c *cluster) keep() (Kept, error) {
	k := &Keeper{Policy: c.policy, Now: func() time.Time { return c.now }}
	return k.Keep(c.t.Context(), c, c.wants)
}

// rests calls keep until it writes nothing more.
func (c *cluster) rests() Kept {
	c.t.Helper()
	for range 10 {
		before := c.version
		kept, err := c.keep()
		if err != nil {
			c.t.Fatal(err)
		}
		if c.version == before {
			return kept
		}
	}
	c.t.Fatal("it writes all the time")
	return Kept{}
}

// certificates returns the certificates of the proxy and its clients.
func (c *cluster) certificates() (all []*x509.Certificate) {
	c.t.Helper()
	proxy := c.objects[c.wants.Proxy].Data
	texts := [][]byte{proxy["server.crt"], proxy["upstream.crt"]}
	for _, client := range c.wants.Clients {
		texts = append(texts, c.objects[client.Secret].Data[keyCert])
	}
	for _, text := range texts {
		chain, err := rotation.Parse(text)
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, chain[0])
	}
	return all
}

// mounted are the objects as a pod has them; it gets newer ones later.
type mounted map[manifest.ID]Stored

func (c *cluster) mounted() mounted { return maps.Clone(c.objects) }

// connects returns an error if a client cannot connect to the proxy, each with its own mounted objects.
func (c *cluster) connects(proxy, client mounted, secret manifest.ID) error {
	p, own := proxy[c.wants.Proxy].Data, client[secret].Data
	server, err := tls.X509KeyPair(p["server.crt"], p["server.key"])
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(own["tls.crt"], own["tls.key"])
	if err != nil {
		return err
	}
	clients, servers := x509.NewCertPool(), x509.NewCertPool()
	clients.AppendCertsFromPEM(p["client-ca.crt"])
	servers.AppendCertsFromPEM(own["ca.crt"])
	now := func() time.Time { return c.now }
	left, right := net.Pipe()
	defer left.Close()
	defer right.Close()
	served := tls.Server(left, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, Time: now})
	done := make(chan error, 1)
	go func() {
		err := served.Handshake()
		left.Close()
		done <- err
	}()
	err = tls.Client(right, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: servers, ServerName: "sample-etcd.default.svc", Time: now}).Handshake()
	right.Close()
	if other := <-done; other != nil {
		return other
	}
	if err != nil {
		return err
	}
	if uri := served.ConnectionState().PeerCertificates[0].URIs[0]; uri.String() != c.wants.ID.URI().String() {
		return fmt.Errorf("the client is %v", uri)
	}
	return nil
}

// all fails the test unless all clients connect.
func (c *cluster) all(proxy, client mounted) {
	c.t.Helper()
	for _, secret := range c.wants.Clients {
		if err := c.connects(proxy, client, secret.Secret); err != nil {
			c.t.Fatalf("%s at %s: %v", secret.Secret, c.now, err)
		}
	}
}

// Everything exists after the first time, and nothing is written the second time.
func TestKeep(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	kept := c.rests()
	if !kept.Ready || len(kept.Problems) > 0 || len(kept.Expires) != 2 || !kept.Again.After(c.now) {
		t.Errorf("%+v", kept)
	}
	c.all(c.mounted(), c.mounted())
	p := c.objects[c.wants.Proxy].Data
	if want := []string{"client-ca.crt", "server.crt", "server.key", "upstream-ca.crt", "upstream.crt", "upstream.key"}; !slices.Equal(slices.Sorted(maps.Keys(p)), want) {
		t.Errorf("the proxy has %q", slices.Sorted(maps.Keys(p)))
	}
	chain, _, err := rotation.ParsePair(p["upstream.crt"], p["upstream.key"])
	if err != nil || chain[0].Subject.CommonName != c.wants.ID.User() || len(chain[0].URIs) > 0 || !slices.Equal(chain[0].ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
		t.Errorf("upstream %+v, %v", chain, err)
	}
	if !bytes.Equal(c.objects[c.wants.ConfigMaps[0]].Data["ca.crt"], c.objects[c.wants.Clients[0].Secret].Data["ca.crt"]) {
		t.Error("the ConfigMap has other CAs than the clients")
	}
	for _, id := range Records(c.wants) {
		if c.objects[id].Version == "" || id.Namespace == c.wants.Proxy.Namespace {
			t.Errorf("no record %s", id)
		}
	}
	if len(c.objects) != 4+len(Records(c.wants)) {
		t.Errorf("%d objects", len(c.objects))
	}
}

// Over three years, certificates and CAs are replaced, and clients can always connect, even if pods of
// either side still have objects from five minutes ago.
func TestRotation(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	type copied struct {
		at time.Time
		mounted
	}
	history := []copied{{c.now, c.mounted()}}
	end, turns := c.now.Add(3*365*24*time.Hour), 0
	seen := make(map[string]bool)
	for c.now.Before(end) {
		kept := c.rests()
		turns++
		if len(kept.Problems) > 0 || !kept.Ready {
			t.Fatalf("at %s: %+v", c.now, kept)
		}
		for _, cert := range c.certificates() {
			seen[Fingerprint(cert)] = true
			if !cert.NotAfter.After(c.now) {
				t.Fatalf("at %s: the certificate of %s has expired", c.now, cert.Subject)
			}
		}
		for _, client := range c.wants.Clients {
			if !kept.Expires[client.Secret].After(c.now) {
				t.Fatalf("at %s: %s expires at %s", c.now, client.Secret, kept.Expires[client.Secret])
			}
		}
		history = append(history, copied{c.now, c.mounted()})
		for len(history) > 1 && c.now.Sub(history[1].at) > 5*time.Minute {
			history = history[1:]
		}
		for _, p := range history {
			c.all(p.mounted, c.mounted())
			c.all(c.mounted(), p.mounted)
		}
		if kept.Again.IsZero() {
			t.Fatalf("at %s: never again", c.now)
		}
		c.now = kept.Again
		if c.now.Before(history[len(history)-1].at.Add(time.Minute)) {
			c.now = history[len(history)-1].at.Add(time.Minute)
		}
	}
	if len(seen) < 60 {
		t.Errorf("only %d certificates in %d turns", len(seen), turns)
	}
}

// An API server reads the proxy's CAs only when it starts. It can connect for years after that. If the CA is
// one of a year, as an earlier version made it, there is time and a note to restart API servers.
func TestServingCA(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, tt := range []struct {
		name     string
		first    rotation.Policy // of the version that made the CA
		restarts time.Duration   // between restarts of the API server; 0 for none
		noted    bool
	}{
		{"this version", rotation.Policy{}, 0, false},
		{"an earlier version", defaults, 27 * day, true},
	} {
		c := newCluster(t)
		c.policy = tt.first
		c.rests()
		c.policy = rotation.Policy{}
		begun, started, since, noted := c.now, c.mounted(), c.now, false
		for c.now.Sub(begun) < 400*day {
			noted = slices.ContainsFunc(c.rests().Notes, func(n string) bool { return strings.Contains(n, "restart API servers before") }) || noted
			if tt.restarts > 0 && c.now.Sub(since) >= tt.restarts {
				started, since = c.mounted(), c.now
			}
			c.all(c.mounted(), c.runs(started))
			c.now = c.now.Add(3 * day)
		}
		if noted != tt.noted {
			t.Errorf("%s: noted %v", tt.name, noted)
		}
	}
}

// runs returns the objects of an API server that has the present certificates, and the proxy's CAs as they were
// when it started.
func (c *cluster) runs(started mounted) mounted {
	server := c.mounted()
	for _, client := range c.wants.Clients {
		held := server[client.Secret]
		held.Data = maps.Clone(held.Data)
		held.Data[keyBundle] = started[client.Secret].Data[keyBundle]
		server[client.Secret] = held
	}
	return server
}

// A clock that is behind for a while replaces no CA, so that running API servers can connect.
func TestClock(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	c.now = c.now.Add(24 * time.Hour)
	c.rests()
	started := c.mounted()
	for _, by := range []time.Duration{48 * time.Hour, 0} {
		c.now = c.now.Add(-by)
		kept := c.rests()
		noticed := slices.ContainsFunc(kept.Problems, func(p string) bool { return strings.Contains(p, "gitopsd's clock is behind") })
		if noticed != (by > 0) || !kept.Ready || kept.Again.IsZero() {
			t.Errorf("behind by %s: %+v", by, kept)
		}
		c.now = c.now.Add(by)
		c.all(c.mounted(), started)
		c.all(c.mounted(), c.runs(started))
	}
}

// Records from a backup of before the CAs were replaced lock nobody out: the proxy trusts the clients that it trusted,
// and people are told when it gets a certificate by the recorded CA.
func TestRestored(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	backup := maps.Clone(c.objects)
	c.objects = make(map[manifest.ID]Stored)
	c.now = c.now.Add(24 * time.Hour)
	c.rests() // declared anew
	started := c.mounted()
	c.now = c.now.Add(24 * time.Hour)
	for _, id := range Records(c.wants) {
		c.version++
		c.objects[id] = Stored{Data: backup[id].Data, Version: strconv.Itoa(c.version)}
	}
	kept, err := c.keep()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(strings.Join(kept.Notes, "\n"), " lacked the CA of the present certificate"); n != 3 || len(kept.Problems) > 0 {
		t.Errorf("%d of 3 notes: %+v", n, kept)
	}
	kept = c.rests()
	if !slices.ContainsFunc(kept.Notes, func(n string) bool { return strings.Contains(n, "restart API servers before") }) {
		t.Errorf("notes %q", kept.Notes)
	}
	for _, wait := range []time.Duration{0, time.Hour, 28 * 24 * time.Hour} {
		c.now = c.now.Add(wait)
		c.rests()
		if wait == 0 {
			c.all(c.mounted(), started)
		}
		c.all(c.mounted(), c.runs(started))
	}
	started = c.mounted() // restarted in time
	c.now = c.now.Add(3 * 24 * time.Hour)
	c.rests()
	c.all(c.mounted(), c.runs(started))
}

// After a crash at any write, at first and in a rotation, the next Keep continues, and clients that could
// connect still can.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		for dies := 1; ; dies++ {
			reached := false
			for _, after := range []bool{false, true} {
				c := newCluster(t)
				if old {
					c.rests()
					c.now = c.now.Add(300 * 24 * time.Hour) // everything has to be renewed
					c.rests()
					c.now = c.now.Add(20 * time.Minute)
				}
				before := c.mounted()
				c.writes, c.dies, c.after = 0, dies, after
				_, err := c.keep()
				if reached = errors.Is(err, errKilled); err != nil && !reached {
					t.Fatal(err)
				}
				if old {
					c.all(c.mounted(), before)
					c.all(before, c.mounted())
				}
				if kept := c.rests(); !kept.Ready || len(kept.Problems) > 0 {
					t.Errorf("killed at write %d: %+v", dies, kept)
				}
				c.all(c.mounted(), c.mounted())
			}
			if !reached {
				if dies < 4 {
					t.Errorf("only %d writes", dies-1)
				}
				break
			}
		}
	}
}

// A client that is no longer declared is refused at once, and others are not.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	before, gone := c.mounted(), c.wants.Clients[0].Secret
	c.wants.Clients = c.wants.Clients[1:]
	c.rests()
	if err := c.connects(c.mounted(), before, gone); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("it connects: %v", err)
	}
	c.all(c.mounted(), before)
}

// If one object cannot be written, that is reported, and the certificates in the others are renewed.
func TestRefused(t *testing.T) {
	t.Parallel()
	began := newCluster(t)
	began.rests()
	one, two := began.wants.Clients[0], began.wants.Clients[1]
	for _, id := range append(Records(began.wants), began.wants.Proxy, one.Secret, began.wants.ConfigMaps[0]) {
		c := newCluster(t)
		c.rests()
		c.refuses = []manifest.ID{id}
		c.wants.Trust = c.upstream().CA // the ConfigMap changes
		told := false
		for range 100 { // days; two has a certificate of 30
			kept := c.rests()
			told = told || len(kept.Refused) == 1 && strings.Contains(kept.Refused[0].Error(), id.String())
			if id == c.wants.Proxy && kept.Written && len(kept.Refused) > 0 {
				t.Errorf("%s: told as written", id)
			}
			if leaf := kept.Expires[two.Secret]; id != recordOfClient(c.wants, two) && !c.now.Before(leaf) {
				t.Fatalf("%s: %s expired at %s", id, two.Secret, leaf)
			}
			c.now = c.now.Add(24 * time.Hour)
		}
		if !told {
			t.Errorf("%s: not told", id)
		}
	}
}

// A withdrawn client is refused, though the record of another cannot be read or written.
func TestWithdrawnBesideRefused(t *testing.T) {
	t.Parallel()
	for _, foreign := range []bool{false, true} {
		c := newCluster(t)
		c.rests()
		before := c.mounted()
		one, two := c.wants.Clients[0], c.wants.Clients[1]
		c.now = c.now.Add(25 * 24 * time.Hour) // two is to be renewed
		record := recordOfClient(c.wants, two)
		if foreign {
			c.objects[record] = Stored{Version: "theirs", Foreign: record.String() + " is not gitopsd's"}
		} else {
			c.refuses = []manifest.ID{record}
		}
		c.wants.Clients = []Client{two}
		c.wants.Withdrawn = Recorded(c.objects[recordOfClient(c.wants, one)].Data)
		c.rests()
		if err := c.connects(c.mounted(), before, one.Secret); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("foreign %v: it connects: %v", foreign, err)
		}
		c.all(c.mounted(), before)
	}
}

// If the proxy's Secret is not gitopsd's, it is still known which CAs are those of clients.
func TestForeignProxy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	one, two := c.objects[recordOfClient(c.wants, c.wants.Clients[0])], c.objects[recordOfClient(c.wants, c.wants.Clients[1])]
	c.objects[c.wants.Proxy] = Stored{Version: "theirs", Foreign: "it is not gitopsd's"}
	if got, want := c.rests().Proxy["client-ca.crt"], append(Recorded(one.Data), Recorded(two.Data)...); !bytes.Equal(got, want) {
		t.Errorf("the CAs are\n%s\nwant\n%s", got, want)
	}
	c.wants.Clients = c.wants.Clients[1:]
	if got, want := c.rests().Proxy["client-ca.crt"], Recorded(two.Data); !bytes.Equal(got, want) {
		t.Errorf("the CAs are\n%s\nwant\n%s", got, want)
	}
}

// A client that is added, or whose record is lost, does not take over the CAs of others: a client that is
// withdrawn later is refused with every certificate that it ever had.
func TestWithdrawnLater(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		c := newCluster(t)
		one, two := c.wants.Clients[0], c.wants.Clients[1]
		if !lost {
			c.wants.Clients = []Client{one}
		}
		c.rests()
		before := c.mounted()
		c.now = c.now.Add(70 * 24 * time.Hour) // of 90
		c.rests()
		if bytes.Equal(c.objects[one.Secret].Data[keyCert], before[one.Secret].Data[keyCert]) {
			t.Fatal("the certificate was not renewed")
		}
		if err := c.connects(c.mounted(), before, one.Secret); err != nil {
			t.Fatalf("the earlier certificate does not connect: %v", err)
		}
		if lost {
			before[two.Secret] = c.objects[two.Secret]
			delete(c.objects, recordOfClient(c.wants, two))
			c.rests()
			if err := c.connects(c.mounted(), before, two.Secret); err != nil {
				t.Errorf("the loss of its record cuts a client off: %v", err)
			}
		} else {
			c.wants.Clients = []Client{one, two}
			c.rests()
		}
		c.all(c.mounted(), c.mounted())
		c.wants.Clients = []Client{two}
		c.rests()
		if err := c.connects(c.mounted(), before, one.Secret); err == nil || !strings.Contains(err.Error(), "unknown authority") {
			t.Errorf("lost %v: an earlier certificate connects: %v", lost, err)
		}
		c.all(c.mounted(), c.mounted())
	}
}

// Objects of others stay, and are reported. No CA is removed from a bundle because its record cannot be
// read.
func TestForeign(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	before := c.mounted()
	for _, id := range append(Records(c.wants), c.wants.Proxy, c.wants.Clients[0].Secret, c.wants.Clients[1].Secret, c.wants.ConfigMaps[0]) {
		c.objects = maps.Clone(before)
		c.objects[id] = Stored{Data: map[string][]byte{"tls.crt": []byte("theirs")}, Version: "theirs", Foreign: id.String() + " is not gitopsd's"}
		kept := c.rests()
		if len(kept.Problems) != 1 || !strings.Contains(kept.Problems[0], "is not gitopsd's") {
			t.Errorf("%s: %+v", id, kept.Problems)
		}
		if string(c.objects[id].Data["tls.crt"]) != "theirs" {
			t.Errorf("%s was written", id)
		}
		for _, client := range c.wants.Clients {
			if id == client.Secret || id == c.wants.Proxy {
				continue
			}
			if err := c.connects(c.mounted(), before, client.Secret); err != nil {
				t.Errorf("%s: %s cannot connect any longer: %v", id, client.Secret, err)
			}
		}
	}
}

// An operator's CA that cannot sign is reported, and existing certificates stay.
func TestUpstream(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.rests()
	good, before := c.wants.Upstream, c.objects[c.wants.Proxy].Data["upstream.crt"]
	other := c.upstream()
	for name, tt := range map[string]struct {
		upstream Upstream
		want     string
	}{
		"none":      {Upstream{}, "tls.crt has no certificate in PEM"},
		"no key":    {Upstream{ClientCACert: good.ClientCACert, CA: good.CA}, "tls.key is missing"},
		"other key": {Upstream{ClientCACert: good.ClientCACert, ClientCAKey: other.ClientCAKey, CA: good.CA}, "tls.key is not the key"},
		"no CA":     {Upstream{ClientCACert: c.objects[c.wants.Proxy].Data["server.crt"], ClientCAKey: c.objects[c.wants.Proxy].Data["server.key"], CA: good.CA}, "is no CA"},
		"no server": {Upstream{ClientCACert: good.ClientCACert, ClientCAKey: good.ClientCAKey}, "the CA of etcd (--etcd-cafile) has no certificate"},
	} {
		c.wants.Upstream = tt.upstream
		kept := c.rests()
		if len(kept.Problems) != 1 || !strings.Contains(kept.Problems[0], tt.want) || strings.Contains(kept.Problems[0], "PRIVATE") {
			t.Errorf("%s: %q, want %q", name, kept.Problems, tt.want)
		}
		if !bytes.Equal(c.objects[c.wants.Proxy].Data["upstream.crt"], before) {
			t.Errorf("%s: the certificate is gone", name)
		}
	}
	c.wants.Upstream = other // the operator replaced it, or the etcd was restored: at once etcd may trust no other
	c.rests()
	chain, err := rotation.Parse(c.objects[c.wants.Proxy].Data["upstream.crt"])
	if err != nil {
		t.Fatal(err)
	}
	by, err := rotation.Parse(other.ClientCACert)
	if err != nil || chain[0].CheckSignatureFrom(by[0]) != nil {
		t.Errorf("the new CA does not sign: %v", err)
	}
}

// The certificate for etcd lives as long as the CA that signs it. The namespace says 30 days before when that
// is. Then it is a problem, and nothing is written.
func TestUpstreamEnds(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	c := newCluster(t)
	ends := c.now.Add(100 * day)
	c.wants.Upstream = c.upstreamUntil(ends)
	for c.now.Before(ends) {
		kept, left := c.rests(), ends.Sub(c.now)
		noted := slices.ContainsFunc(kept.Notes, func(n string) bool { return strings.Contains(n, "(--etcd-client-ca-cert) expires on ") })
		if soon := left <= 30*day; !kept.Ready || len(kept.Problems) > 0 || noted != soon || !soon && kept.Again.After(ends.Add(-30*day)) || kept.Again.After(ends) {
			t.Errorf("%s before: %+v", left, kept)
		}
		if upstream := c.certificates()[1]; !c.now.Before(upstream.NotAfter) {
			t.Fatalf("at %s: the certificate expired %s before the CA", c.now, ends.Sub(upstream.NotAfter))
		}
		c.now = c.now.Add(2 * day)
	}
	before := c.objects[c.wants.Proxy].Data["upstream.crt"]
	kept := c.rests()
	if len(kept.Problems) != 1 || !strings.Contains(kept.Problems[0], "(--etcd-client-ca-cert, --etcd-client-ca-key) is valid from ") {
		t.Errorf("problems %q", kept.Problems)
	}
	if !bytes.Equal(c.objects[c.wants.Proxy].Data["upstream.crt"], before) {
		t.Error("an expired CA signs")
	}
}

// Clients also trust the daemon's own proxy while it serves the namespace, through changes of its CAs.
func TestTrust(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	holders := append(slices.Clone(c.wants.ConfigMaps), c.wants.Clients[0].Secret, c.wants.Clients[1].Secret)
	c.rests()
	own := c.objects[holders[0]].Data["ca.crt"]
	for _, trust := range [][]byte{c.upstream().CA, append(c.upstream().CA, c.upstream().CA...), nil} {
		c.wants.Trust = trust
		c.rests()
		for _, id := range holders {
			if have := c.objects[id].Data["ca.crt"]; !bytes.Equal(have, slices.Concat(own, trust)) {
				t.Errorf("%s has\n%s\nwant\n%s and\n%s", id, have, own, trust)
			}
		}
	}
}
