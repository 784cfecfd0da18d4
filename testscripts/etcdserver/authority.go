package etcdserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

// Authority is a certificate authority.
type Authority struct {
	Certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// NewAuthority returns an authority that signs itself.
func NewAuthority(name string) (*Authority, error) {
	return newAuthority(name, nil)
}

// Intermediate returns an authority that this one signed.
func (a *Authority) Intermediate(name string) (*Authority, error) { return newAuthority(name, a) }

func newAuthority(name string, by *Authority) (*Authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cert, key, err := sign(template, by)
	if err != nil {
		return nil, err
	}
	return &Authority{cert, key}, nil
}

// Pool returns the authority as what to trust.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.Certificate)
	return pool
}

// Issue returns a certificate from a template, whose times are filled in if they are zero.
// Intermediates are sent with it. A nil authority has it sign itself.
func (a *Authority) Issue(template *x509.Certificate, intermediates ...*Authority) (tls.Certificate, error) {
	cert, key, err := sign(template, a)
	if err != nil {
		return tls.Certificate{}, err
	}
	out := tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	for _, i := range intermediates {
		out.Certificate = append(out.Certificate, i.Certificate.Raw)
	}
	return out, nil
}

// Serving returns a template for a server on loopback.
func Serving(names ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: append(names, "localhost"), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// User returns a template for a user of etcd.
func User(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

// Client returns a template for a client that URIs name.
func Client(uris ...*url.URL) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: "client"}, URIs: uris, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
}

func sign(template *x509.Certificate, by *Authority) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, err
	}
	if template.NotAfter.IsZero() {
		template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.Certificate, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of %s: %w", template.Subject.CommonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, err
}

// Leaf returns what is no authority, but signs: to see that nobody accepts that.
func (a *Authority) Leaf(template *x509.Certificate) (*Authority, error) {
	cert, key, err := sign(template, a)
	if err != nil {
		return nil, err
	}
	return &Authority{cert, key}, nil
}
