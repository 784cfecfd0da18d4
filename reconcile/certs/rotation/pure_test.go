package rotation

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// serving is the profile of a Service.
func serving(namespace, name string) Profile {
	host := name + "." + namespace + ".svc"
	return Profile{Name: name + "." + namespace, DNSNames: []string{host}, Host: host}
}

// A hint in the journal that is wrong takes no CA away that is needed.
func TestHints(t *testing.T) {
	t.Parallel()
	old := CA{ID: "old", NotBefore: noon.Add(-300 * 24 * time.Hour), NotAfter: noon.Add(65 * 24 * time.Hour)}
	signer := CA{ID: "signer", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(365 * 24 * time.Hour), Key: true}
	next := CA{ID: "next", NotBefore: noon.Add(-10 * time.Minute), NotAfter: noon.Add(365 * 24 * time.Hour), Key: true}
	leaf := Leaf{Issuer: "old", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(30 * 24 * time.Hour)}
	lacking := []Bundle{{"webhook", []string{"old"}}}
	for _, tt := range []struct {
		name  string
		state State
		trust []string
		by    string
	}{
		{"a former CA that is said to have expired", State{Journal: &Journal{Signer: signer, Former: []Former{{old, noon.Add(-time.Hour)}}}, Leaf: leaf, Looked: true, Bundles: lacking},
			[]string{"signer", "old"}, ""},
		{"a CA that is said to be everywhere", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(-5 * time.Minute)}, Leaf: leaf, Looked: true, Bundles: lacking},
			[]string{"old", "next"}, ""},
		{"a CA that is said to have signed nothing", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(-5 * time.Minute)}, Leaf: leaf, Looked: true},
			[]string{"next", "old"}, "next"},
		{"a CA that will be everywhere", State{Journal: &Journal{Signer: old, Next: next, Spread: noon.Add(time.Hour)}, Leaf: leaf, Looked: true},
			[]string{"old", "next"}, ""},
	} {
		d := Decide(tt.state, noon, policy)
		if have := d.Journal.Trust(); !slices.Equal(have, tt.trust) || d.Issue.By != tt.by {
			t.Errorf("%s: trusts %q, issues by %q; want %q, %q", tt.name, have, d.Issue.By, tt.trust, tt.by)
		}
	}
}

// A certificate that cannot be written is not recorded anew each time. One from the future is
// replaced, but no CA: if the clock is behind, those who read their bundle seldom do not trust
// another one.
func TestDecideAgain(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	signer := CA{ID: "signer", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(365 * day), Key: true}
	brought := CA{ID: "brought", NotBefore: noon.Add(-time.Hour), NotAfter: noon.Add(365 * day)}
	ahead := CA{ID: "ahead", NotBefore: noon.Add(400 * day), NotAfter: noon.Add(765 * day), Key: true}
	for _, tt := range []struct {
		name   string
		state  State
		signer string
		until  time.Time
		same   bool
		early  time.Time
	}{
		{"one that was recorded and not written", State{Journal: &Journal{Signer: signer, Issued: noon.Add(89 * day)}}, "signer", noon.Add(89 * day), true, time.Time{}},
		{"long ago", State{Journal: &Journal{Signer: signer, Issued: noon.Add(60 * day)}}, "signer", noon.Add(90 * day), false, time.Time{}},
		{"a certificate from the future", State{Journal: &Journal{Signer: signer, Issued: noon.Add(90 * day)}, Leaf: Leaf{"signer", noon.Add(time.Hour), noon.Add(90 * day)}},
			"signer", noon.Add(90 * day), true, time.Time{}},
		{"a CA from the future", State{Journal: &Journal{Signer: ahead, Issued: noon.Add(490 * day)}, Leaf: Leaf{"ahead", noon.Add(400 * day), noon.Add(490 * day)}},
			"ahead", time.Time{}, true, ahead.NotBefore},
		{"a certificate that begins when a new one has expired", State{Journal: &Journal{Signer: signer, Issued: noon.Add(190 * day)}, Leaf: Leaf{"signer", noon.Add(100 * day), noon.Add(190 * day)}},
			"signer", time.Time{}, true, noon.Add(100 * day)},
		{"such a certificate of the operator's CA", State{Journal: &Journal{Signer: brought, Issued: noon.Add(190 * day)}, Brought: brought, Leaf: Leaf{"brought", noon.Add(100 * day), noon.Add(190 * day)}},
			"brought", time.Time{}, true, noon.Add(100 * day)},
		{"such a certificate, for which the operator brings a CA", State{Journal: &Journal{Signer: signer, Issued: noon.Add(190 * day)}, Brought: brought, Leaf: Leaf{"signer", noon.Add(100 * day), noon.Add(190 * day)}},
			"brought", noon.Add(90 * day), false, time.Time{}},
		{"a CA from the future, for which the operator brings another", State{Journal: &Journal{Signer: ahead, Issued: noon.Add(490 * day)}, Brought: signer},
			"signer", noon.Add(90 * day), false, time.Time{}},
	} {
		d := Decide(tt.state, noon, policy)
		by := tt.signer
		if !tt.early.IsZero() {
			by = ""
		}
		if d.Journal.Signer.ID != tt.signer || d.Issue.By != by || !d.Early.Equal(tt.early) || !d.Issue.NotAfter.Equal(tt.until) || d.Journal.Equal(tt.state.Journal) != tt.same {
			t.Errorf("%s: %+v", tt.name, d)
		}
	}
}

// An operator's CA of any lifetime signs certificates until its own end, and then none.
func TestBroughtEnds(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for life := day; life <= 730*day; life += day {
		ca := CA{ID: "ca", NotBefore: noon, NotAfter: noon.Add(life)}
		state := State{Brought: ca, Looked: true}
		issued := 0
		for now, step := noon, 0; now.Before(ca.NotAfter); step++ {
			if step == 100 {
				t.Fatalf("a CA of %s: still deciding at %s", life, now)
			}
			if step > 0 && state.Leaf.Issuer != "" && !now.Before(state.Leaf.NotAfter) {
				t.Fatalf("a CA of %s: the certificate expires %s before it", life, ca.NotAfter.Sub(state.Leaf.NotAfter))
			}
			d := Decide(state, now, policy)
			if state.Journal == nil || !d.Journal.Equal(state.Journal) {
				state.Journal = &d.Journal
				continue
			}
			if d.Issue.By != "" {
				issued++
				state.Leaf = Leaf{d.Issue.By, now.Add(-Skew), d.Issue.NotAfter}
				continue
			}
			now = d.Again
		}
		if most := 3 + int(life/(30*day)); issued > most {
			t.Errorf("a CA of %s: %d certificates, want at most %d", life, issued, most)
		}
		if d := Decide(state, ca.NotAfter, policy); d.Issue.By != "" || !d.Journal.Equal(state.Journal) {
			t.Errorf("a CA of %s has expired: %+v", life, d)
		}
	}
}

// A new CA settles for the whole time while the signer can renew the certificate, and otherwise for half of
// what is left of it, so that there is always one that serves.
func TestSettle(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	p := Policy{Authority: 365 * day, Leaf: 90 * day, Settle: 30 * day}
	next := CA{ID: "next", NotBefore: noon.Add(-Skew), NotAfter: noon.Add(365 * day), Key: true}
	for _, tt := range []struct {
		name         string
		signer, leaf time.Duration // until they expire
		want         time.Duration
	}{
		{"long before the end", 122 * day, 80 * day, 30 * day},
		{"before a renewal", 122 * day, 50 * day, 30 * day},
		{"just before one", 122 * day, 31 * day, 30 * day},
		{"the signer expires", 40 * day, 40 * day, 20 * day},
		{"it is about to", time.Hour, time.Hour, 30 * time.Minute},
		{"it has expired", -time.Hour, -time.Hour, 0},
	} {
		signer := CA{ID: "old", NotBefore: noon.Add(tt.signer - 365*day), NotAfter: noon.Add(tt.signer), Key: true}
		state := State{
			Journal: &Journal{Signer: signer, Next: next, Spread: noon}, Leaf: Leaf{"old", noon.Add(tt.leaf - 90*day), noon.Add(tt.leaf)},
			Looked: true, Bundles: []Bundle{{"webhook", []string{"old", "next"}}},
		}
		now := noon
		for range 10 {
			d := Decide(state, now, p)
			if d.Journal.Next.ID == "" && d.Issue.By == "next" {
				break
			}
			if d.Signs.Before(now) || d.Again.After(d.Signs) {
				t.Fatalf("%s: after %s, it is to sign at %s, and is looked at again at %s", tt.name, now.Sub(noon), d.Signs, d.Again)
			}
			state.Journal = &d.Journal
			if d.Issue.By != "" {
				state.Leaf = Leaf{d.Issue.By, now.Add(-Skew), d.Issue.NotAfter}
			}
			now = d.Again
		}
		if settled := now.Sub(noon); settled != tt.want {
			t.Errorf("%s: it signs after %s, want %s", tt.name, settled, tt.want)
		}
	}

	// A bundle that lacks the CA is read again soon.
	d := Decide(State{
		Journal: &Journal{Signer: CA{ID: "old", NotBefore: noon.Add(-300 * day), NotAfter: noon.Add(65 * day), Key: true}, Next: next},
		Leaf:    Leaf{"old", noon.Add(-day), noon.Add(60 * day)}, Looked: true, Bundles: []Bundle{{"webhook", []string{"old"}}},
	}, noon, p)
	if len(d.Lacking) != 1 || !d.Signs.IsZero() || d.Again.After(noon.Add(time.Hour)) {
		t.Errorf("a bundle lacks it: %+v", d)
	}
}

// A CA that was found without a record is trusted for as long as a certificate of it may live, not for as
// long as the CA does.
func TestFound(t *testing.T) {
	t.Parallel()
	day := 24 * time.Hour
	for _, life := range []time.Duration{10 * day, 7000 * day} {
		found := CA{ID: "old", NotBefore: noon.Add(-day), NotAfter: noon.Add(life)}
		d := Decide(State{Looked: true, Found: []CA{found}}, noon, policy)
		if f := d.Journal.Former; len(f) != 1 || f[0].CA != found || !f[0].Until.Equal(noon.Add(min(life, policy.Leaf))) {
			t.Errorf("a CA that lives for %s: %+v", life, f)
		}
	}
}

// unread is a [Source] without a journal, whose bundles cannot be read.
type unread struct{ leaf, recorded map[string][]byte }

func (u *unread) Leaf(context.Context) (map[string][]byte, error)    { return u.leaf, nil }
func (u *unread) Journal(context.Context) (map[string][]byte, error) { return u.recorded, nil }
func (u *unread) Bundles(context.Context) ([]Held, error) {
	return []Held{{Holder: "every webhook", Unread: true}}, nil
}
func (u *unread) Record(_ context.Context, data map[string][]byte) error {
	u.recorded = data
	return nil
}

// If the CA of a certificate that serves is in no record, and bundles cannot be read, nothing replaces the
// certificate.
func TestUnread(t *testing.T) {
	t.Parallel()
	p := serving("acme", "hooks")
	a, err := p.Mint(noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	crt, key, err := p.Issue(a, noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		leaf  map[string][]byte
		now   time.Time
		fails bool
	}{
		{"it serves", map[string][]byte{keyCert: crt, keyKey: key}, noon, true},
		{"it has expired", map[string][]byte{keyCert: crt, keyKey: key}, noon.Add(time.Hour), false},
		{"none", nil, noon, false},
	} {
		s := &unread{leaf: tt.leaf}
		r := Rotation{Profile: p, Policy: policy, Now: tt.now}
		kept, err := r.Keep(t.Context(), s)
		if tt.fails {
			if err == nil || !strings.Contains(err.Error(), "cannot be read: every webhook") || s.recorded != nil {
				t.Errorf("%s: %v, recorded %v", tt.name, err, s.recorded != nil)
			}
		} else if err != nil || kept.Cert == nil || bytes.Equal(kept.Cert, crt) {
			t.Errorf("%s: %v, replaced %v", tt.name, err, kept.Cert != nil)
		}
	}
}

// A CA that API servers would not accept for a Service is not tried out on them.
func TestLimitedAuthority(t *testing.T) {
	t.Parallel()
	p := serving("acme", "hooks")
	for _, tt := range []struct {
		name  string
		limit func(*x509.Certificate)
		want  string
	}{
		{"none", func(*x509.Certificate) {}, ""},
		{"servers", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, ""},
		{"clients", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }, "incompatible key usage"},
		{"its names", func(c *x509.Certificate) {
			c.PermittedDNSDomains = []string{"acme", "acme.svc", "acme.svc.cluster.local"}
		}, ""},
		{"other names", func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }, "not authorized to sign"},
	} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{Subject: pkix.Name{CommonName: "operator"}, NotBefore: noon, NotAfter: noon.Add(time.Hour), KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}
		tt.limit(template)
		cert, err := sign(template, Authority{Key: key}, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Try(Authority{cert, key}, noon); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

// A CA and what it signs are what they should be.
func TestMint(t *testing.T) {
	t.Parallel()
	p := serving(strings.Repeat("n", 63), strings.Repeat("s", 63))
	a, err := p.Mint(noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	again, err := p.Mint(noon, noon.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if !IsCA(a.Cert) || a.Cert.MaxPathLen != 0 || !a.Cert.MaxPathLenZero || len(a.Cert.Subject.CommonName) > 64 || a.Cert.SerialNumber.Cmp(again.Cert.SerialNumber) == 0 {
		t.Errorf("CA %+v", a.Cert.Subject)
	}
	crt, key, err := p.Issue(a, noon.Add(-time.Hour), noon.Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	chain, _, err := ParsePair(crt, key)
	if err != nil || IsCA(chain[0]) || p.Fits(chain[0]) != nil || !signed(a.Cert, chain[0]) || signed(again.Cert, chain[0]) || chain[0].NotBefore.Before(noon) {
		t.Errorf("certificate %+v, %v", chain, err)
	}
	if serving("n", "s").Fits(chain[0]) == nil {
		t.Error("it is for every Service")
	}
}

// Whatever a Secret holds is read without a panic, and what was written is read back.
func FuzzJournal(f *testing.F) {
	p := serving("acme", "hooks")
	a, err := p.Mint(noon, noon.Add(time.Hour))
	if err != nil {
		f.Fatal(err)
	}
	b, err := p.Mint(noon, noon.Add(2*time.Hour))
	if err != nil {
		f.Fatal(err)
	}
	m := make(material)
	j := Journal{Signer: m.add(a, true), Issued: noon.Add(time.Minute), Former: []Former{{m.add(Authority{Cert: b.Cert}, false), noon.Add(time.Hour)}}}
	data, err := m.write(&j)
	if err != nil {
		f.Fatal(err)
	}
	if read, _ := make(material).read(data, p); read == nil || !read.Equal(&j) {
		f.Fatalf("read %+v, want %+v", read, j)
	}
	f.Add(data[keyCert], data[keyKey], data[keyFormer], data[keyTimes])
	f.Add([]byte{}, []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, crt, key, former, times []byte) {
		m := make(material)
		j, _ := m.read(map[string][]byte{keyCert: crt, keyKey: key, keyFormer: former, keyTimes: times}, p)
		if j == nil {
			return
		}
		data, err := m.write(j)
		if err != nil {
			t.Fatal(err)
		}
		again, _ := make(material).read(data, p)
		if again == nil || !again.Equal(j) || !bytes.Equal(m.bundle(j.Trust()), m.bundle(again.Trust())) {
			t.Errorf("read %+v, and once written %+v", j, again)
		}
	})
}
