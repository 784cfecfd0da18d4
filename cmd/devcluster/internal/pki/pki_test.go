package pki

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"slices"
	"testing"
)

func parse(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, err := NewAuthority("ca")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("ca")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := ca.Serving("server", []string{"kubernetes.default.svc"}, net.ParseIP("10.96.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.Client("somebody", "group-a", "group-b")
	if err != nil {
		t.Fatal(err)
	}
	roots := func(a *Authority) *x509.CertPool {
		pool := x509.NewCertPool()
		pool.AddCert(parse(t, a.Pair))
		return pool
	}
	for _, tt := range []struct {
		name  string
		cert  Pair
		roots *x509.CertPool
		usage x509.ExtKeyUsage
		host  string
		bad   bool
	}{
		{name: "by name", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, host: "localhost"},
		{name: "by service name", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, host: "kubernetes.default.svc"},
		{name: "by address", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, host: "127.0.0.1"},
		{name: "by service address", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, host: "10.96.0.1"},
		{name: "server as a client", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageClientAuth},
		{name: "other name", cert: serving, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, host: "example.org", bad: true},
		{name: "other authority of the same name", cert: serving, roots: roots(other), usage: x509.ExtKeyUsageServerAuth, host: "localhost", bad: true},
		{name: "client", cert: client, roots: roots(ca), usage: x509.ExtKeyUsageClientAuth},
		{name: "client as a server", cert: client, roots: roots(ca), usage: x509.ExtKeyUsageServerAuth, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(t, tt.cert).Verify(x509.VerifyOptions{
				Roots: tt.roots, DNSName: tt.host, KeyUsages: []x509.ExtKeyUsage{tt.usage},
			})
			if (err != nil) != tt.bad {
				t.Errorf("got %v", err)
			}
		})
	}
	subject := parse(t, client).Subject
	if subject.CommonName != "somebody" || !slices.Equal(subject.Organization, []string{"group-a", "group-b"}) {
		t.Errorf("subject %v", subject)
	}
	if a, b := parse(t, client), parse(t, serving); a.SerialNumber.Sign() <= 0 || a.SerialNumber.Cmp(b.SerialNumber) == 0 {
		t.Errorf("serial numbers %v and %v", a.SerialNumber, b.SerialNumber)
	}
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	text, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("no PEM: %q", text)
	}
	if _, err := x509.ParseECPrivateKey(block.Bytes); err != nil {
		t.Error(err)
	}
}
