package proxytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"time"
)

// Authority signs certificates that are valid for a day.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes a self-signed authority.
func NewAuthority(name string) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %q: %w", name, err)
	}
	return &Authority{cert: cert, key: key}, nil
}

// Parse returns an authority that [Authority.Encode] wrote.
func Parse(text []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("certificate authority: a key of type %T", pair.PrivateKey)
	}
	return &Authority{cert: pair.Leaf, key: key}, nil
}

// Encode returns the certificate and the key as PEM.
func (a *Authority) Encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	return append(a.PEM(), encode("PRIVATE KEY", der)...), nil
}

// PEM returns the authority's certificate.
func (a *Authority) PEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Pool returns a pool with the authority's certificate alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Server issues a certificate for a server on this machine. etcd also uses its own as a client; for
// a client of a proxy it needs a URI.
func (a *Authority) Server(uris ...*url.URL) (tls.Certificate, error) {
	return a.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "server"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2), net.IPv6loopback},
		URIs:        uris,
	})
}

// Client issues a certificate for a client, with a common name for etcd and URIs for
// the proxy.
func (a *Authority) Client(name string, uris ...*url.URL) (tls.Certificate, error) {
	return a.Issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		URIs:        uris,
	})
}

// Issue issues a certificate by a template, with a new key.
func (a *Authority) Issue(template *x509.Certificate) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	cert, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate of %q: %w", template.Subject.CommonName, err)
	}
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}, nil
}

func sign(template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) (*x509.Certificate, error) {
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Minute), now.Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// EncodePair returns a certificate and its key as PEM.
func EncodePair(c tls.Certificate) (crt, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", c.Certificate[0]), encode("PRIVATE KEY", der), nil
}

// WritePair writes a certificate and its key to NAME.crt and NAME.key.
func WritePair(name string, c tls.Certificate) error {
	crt, key, err := EncodePair(c)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".crt", crt, 0o600); err != nil {
		return err
	}
	return os.WriteFile(name+".key", key, 0o600)
}
