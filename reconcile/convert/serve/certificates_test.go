package serve

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/certs"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/status"
)

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, block("CERTIFICATE", der)}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// writeCertificate replaces the files of a directory as a kubelet does: all at once.
func writeCertificate(t testing.TB, dir string, by *authority, host string) {
	t.Helper()
	writeExpiring(t, dir, by, host, time.Hour)
}

// writeExpiring writes a certificate that began an hour ago and has a time left.
func writeExpiring(t testing.TB, dir string, by *authority, host string, left time.Duration) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left)}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, map[string][]byte{"tls.crt": block("CERTIFICATE", der), "tls.key": block("PRIVATE KEY", private), "ca.crt": by.pem})
}

func writeFiles(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	version, err := os.MkdirTemp(dir, "..version-")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(version, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// A certificate is replaced when its files are, and kept while they go together in no
// way.
func TestCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	if _, err := LoadCertificates(dir, log); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an empty directory: %v", err)
	}
	ca := newAuthority(t)
	writeCertificate(t, dir, ca, "gitopsd.example.org")
	c, err := LoadCertificates(dir, log)
	if err != nil {
		t.Fatal(err)
	}
	serial := func() string { return c.now.Load().certificate.Leaf.SerialNumber.String() }
	first := serial()
	for host, ok := range map[string]bool{"gitopsd.example.org": true, "other.example.org": false} {
		if err := c.Serves(host, time.Now()); (err == nil) != ok {
			t.Errorf("%s: %v", host, err)
		}
	}
	if err := c.Serves("gitopsd.example.org", time.Now().Add(2*time.Hour)); err == nil {
		t.Error("it goes on after it has expired")
	}
	if changed, err := c.reload(); changed || err != nil {
		t.Errorf("nothing changed: %t %v", changed, err)
	}
	read := func() (files [2][]byte) {
		for i := range files {
			files[i] = []byte(c.now.Load().files[i])
		}
		return files
	}
	files := read()
	for name, files := range map[string]map[string][]byte{
		"nothing":  {},
		"no key":   {"tls.crt": ca.pem, "tls.key": []byte("secret"), "ca.crt": ca.pem},
		"no match": {"tls.crt": ca.pem, "tls.key": files[1], "ca.crt": ca.pem},
		"no CA":    {"tls.crt": files[0], "tls.key": files[1], "ca.crt": []byte("secret")},
	} {
		writeFiles(t, dir, files)
		if changed, err := c.reload(); changed || err == nil || strings.Contains(err.Error(), "secret") || serial() != first {
			t.Errorf("%s: %t %v", name, changed, err)
		}
	}
	writeCertificate(t, dir, newAuthority(t), "gitopsd.example.org")
	if changed, err := c.reload(); !changed || err != nil || serial() == first || c.Serves("gitopsd.example.org", time.Now()) != nil {
		t.Errorf("replaced: %t %v", changed, err)
	}
	files = read()
	writeFiles(t, dir, map[string][]byte{"tls.crt": files[0], "tls.key": files[1]})
	if changed, err := c.reload(); changed || err == nil || c.Authority() == nil {
		t.Errorf("the CA is gone for a moment: %t %v", changed, err)
	}
	writeCertificate(t, dir, newAuthority(t), "gitopsd.example.org")
	data := func(name string) []byte {
		text, err := os.ReadFile(filepath.Join(dir, "..data", name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	writeFiles(t, dir, map[string][]byte{"tls.crt": data("tls.crt"), "tls.key": data("tls.key")})
	if _, err := c.reload(); err != nil || c.Authority() != nil || c.Serves("gitopsd.example.org", time.Now()) != nil {
		t.Errorf("without a CA: %v", err)
	}
	for d, want := range map[time.Duration]string{2 * time.Hour: "expired", -2 * time.Hour: "valid only from"} {
		if err := c.Serves("gitopsd.example.org", time.Now().Add(d)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("without a CA, after %s: %v", d, err)
		}
	}
}

// Of ca.crt, only the certificates are published, and a private key in it is reported.
func TestKeyBesideAuthority(t *testing.T) {
	t.Parallel()
	dir, ca := t.TempDir(), newAuthority(t)
	key, err := rotation.EncodeKey(ca.key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := ca.pem
	ca.pem = slices.Concat([]byte("Our CA\n"), certificate, key)
	writeCertificate(t, dir, ca, "gitopsd.example.org")
	var log bytes.Buffer
	c, err := LoadCertificates(dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(c.Authority(), certificate) {
		t.Errorf("published: %q", c.Authority())
	}
	if text := log.String(); strings.Count(text, "ca.crt has a private key") != 1 || strings.Contains(text, "BEGIN") {
		t.Errorf("log %q", text)
	}
}

// The units that the daemon serves are told when its certificate expires, and anew each
// minute once that is near.
func TestExpires(t *testing.T) {
	t.Parallel()
	b := &bed{T: t, group: "example.io"}
	_, set := b.compile(liveRules)
	ca := newAuthority(t)
	for _, tt := range []struct {
		left        time.Duration
		near, noted bool
	}{
		{3 * time.Hour, false, false},
		{10 * time.Minute, true, true},
		{-time.Minute, true, false}, // the Daemon notes that
	} {
		dir := t.TempDir()
		writeExpiring(t, dir, ca, "gitopsd.example.org", tt.left)
		c, err := LoadCertificates(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		r := byURL(t, set, "https://gitopsd.example.org")
		before := time.Now()
		done, err := c.Complete(t.Context(), r)
		if err != nil || len(done.Objects) > 0 || done.Relied == nil {
			t.Fatalf("%s: %+v %v", tt.left, done, err)
		}
		expires := []status.Certificate{{Secret: "--conversion-tls-dir", Use: status.Serving, Expires: c.Expires().UTC(), Brought: true}}
		if !slices.Equal(done.Certificates, expires) || (len(done.Notes) == 1 && strings.Contains(done.Notes[0], "expires on ")) != tt.noted {
			t.Errorf("%s: %+v", tt.left, done)
		}
		from, to := before.Add(certs.FilesPause), time.Now().Add(certs.FilesPause)
		if !tt.near {
			from = rotation.Notice(c.now.Load().certificate.Leaf)
			to = from
		}
		if done.Again.Before(from) || done.Again.After(to) {
			t.Errorf("%s: again at %s, want %s", tt.left, done.Again, from)
		}
		r.Unit.Spec.Conversion.URL = ""
		if done, err = c.Complete(t.Context(), r); err != nil || len(done.Certificates) > 0 || !done.Again.IsZero() {
			t.Errorf("another cluster: %+v %v", done, err)
		}
	}
}
