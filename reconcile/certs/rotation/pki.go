package rotation

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"
)

// Authority is a CA with its key; the key may be nil.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// idOf identifies a certificate.
func idOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:16])
}

// Profile describes the certificates of a rotation. A CA signs for one profile only.
type Profile struct {
	// Name is the common name of certificates, and follows "gitopsd CA for " in the one of
	// CAs. A common name has at most 64 characters (RFC 5280, ub-common-name), so the first
	// 49 bytes are used.
	Name string
	// DNSNames and IPs are the names of a server. Host is the name that clients connect to;
	// empty for certificates of clients.
	DNSNames []string
	IPs      []net.IP
	Host     string
	// URI identifies a client; nil if its Name does.
	URI *url.URL
}

// name returns the common name of certificates.
func (p Profile) name() string { return p.Name[:min(len(p.Name), 49)] }

// authorityName returns the common name of the CAs.
func (p Profile) authorityName() string { return "gitopsd CA for " + p.name() }

// usage returns the extended key usage of certificates.
func (p Profile) usage() x509.ExtKeyUsage {
	if p.Host == "" {
		return x509.ExtKeyUsageClientAuth
	}
	return x509.ExtKeyUsageServerAuth
}

// Mint makes a CA that may not sign other CAs.
func (p Profile) Mint(notBefore, notAfter time.Time) (Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, err
	}
	cert, err := sign(&x509.Certificate{ // without a serial number it gets a random one
		Subject: pkix.Name{CommonName: p.authorityName()}, NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, Authority{Key: key}, key.Public())
	return Authority{cert, key}, err
}

// Issue makes a certificate, and returns it and its key as PEM.
func (p Profile) Issue(by Authority, notBefore, notAfter time.Time) (crt, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if notBefore.Before(by.Cert.NotBefore) {
		notBefore = by.Cert.NotBefore
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: p.name()}, DNSNames: p.DNSNames, IPAddresses: p.IPs,
		NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{p.usage()}, BasicConstraintsValid: true,
	}
	if p.URI != nil {
		template.URIs = []*url.URL{p.URI}
	}
	cert, err := sign(template, by, pair.Public())
	if err != nil {
		return nil, nil, err
	}
	key, err = EncodeKey(pair)
	return Encode(cert), key, err
}

// Try returns an error if a certificate that a CA signs would not be accepted: a CA may be
// limited to some names or uses.
func (p Profile) Try(a Authority, now time.Time) error {
	crt, _, err := p.Issue(a, now, a.Cert.NotAfter)
	if err != nil {
		return err
	}
	chain, err := Parse(crt)
	if err != nil {
		return err
	}
	return p.Accepted(chain, Encode(a.Cert), now)
}

// Accepted returns an error unless clients that trust a bundle accept a certificate with its
// chain.
func (p Profile) Accepted(chain []*x509.Certificate, bundle []byte, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, DNSName: p.Host, KeyUsages: []x509.ExtKeyUsage{p.usage()},
	})
	return err
}

func sign(template *x509.Certificate, by Authority, public crypto.PublicKey) (*x509.Certificate, error) {
	parent := by.Cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by.Key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// Encode returns certificates as PEM.
func Encode(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, cert := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer takes everything
	}
	return b.Bytes()
}

// EncodeKey returns a key as PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// mostCertificates bounds the certificates that are read from one text.
const mostCertificates = 100

// Parse reads the certificates of a PEM text, and ignores text between the blocks. With an
// error it returns the certificates before the fault. Errors quote nothing of the text.
func Parse(text []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		switch {
		case block == nil && len(certs) == 0:
			return nil, errors.New("has no certificate in PEM")
		case block == nil:
			return certs, nil
		case len(certs) == mostCertificates:
			return certs, fmt.Errorf("has more than %d certificates", mostCertificates)
		case block.Type == "CERTIFICATE":
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return certs, errors.New("has a certificate that is garbled")
			}
			certs = append(certs, cert)
		}
		text = rest
	}
}

// ParsePair reads a certificate with its chain and its key. Errors quote no content, and begin
// with the key of the Secret at fault.
func ParsePair(crt, key []byte) (chain []*x509.Certificate, signer crypto.Signer, err error) {
	if chain, err = Parse(crt); err != nil {
		return nil, nil, fmt.Errorf("tls.crt %w", err)
	}
	if len(bytes.TrimSpace(key)) == 0 {
		return chain, nil, errors.New("tls.key is missing")
	}
	pair, err := tls.X509KeyPair(crt, key)
	if err != nil {
		return chain, nil, errors.New("tls.key is not the key of the first certificate in tls.crt")
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return chain, nil, errors.New("tls.key cannot sign")
	}
	return chain, signer, nil
}

// IsCA reports whether a certificate may sign others.
func IsCA(cert *x509.Certificate) bool {
	return cert.BasicConstraintsValid && cert.IsCA && (cert.KeyUsage == 0 || cert.KeyUsage&x509.KeyUsageCertSign != 0)
}

// signed reports whether a CA signed a certificate.
func signed(by, cert *x509.Certificate) bool {
	return bytes.Equal(by.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(by) == nil
}

// Fits returns an error unless a certificate matches the profile. It does not check dates and
// the issuer.
func (p Profile) Fits(cert *x509.Certificate) error {
	switch {
	case p.Host != "" && cert.VerifyHostname(p.Host) != nil:
		return fmt.Errorf("is not for %s", p.Host)
	case p.Host == "" && p.URI == nil && cert.Subject.CommonName != p.name():
		return fmt.Errorf("is not for %s", p.name())
	case p.URI != nil && (len(cert.URIs) != 1 || cert.URIs[0].String() != p.URI.String()):
		return fmt.Errorf("is not for %s", p.URI)
	}
	switch usages := cert.ExtKeyUsage; {
	case len(usages) == 0, slices.Contains(usages, p.usage()), slices.Contains(usages, x509.ExtKeyUsageAny):
		return nil
	case p.Host == "":
		return errors.New("is not for clients (extended key usage)")
	}
	return errors.New("is not for servers (extended key usage)")
}
