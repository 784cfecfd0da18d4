package certs

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
	"time"

	"gitopsd.dev/render/manifest"
)

// authority is a CA with its key; the key is nil if it is not at hand.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// idOf identifies a certificate.
func idOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.Raw)
	return hex.EncodeToString(sum[:16])
}

// names returns the DNS names of a Service.
func names(service manifest.ID) []string {
	name := service.Name + "." + service.Namespace
	return []string{name, name + ".svc", name + ".svc.cluster.local"}
}

// authorityName is the common name of a Service's CAs. Common names have at most 64
// characters (RFC 5280, ub-common-name).
func authorityName(service manifest.ID) string {
	name := service.Name + "." + service.Namespace
	return "gitopsd CA for " + name[:min(len(name), 49)]
}

// mint makes a CA that signs certificates of servers and no other CAs.
func mint(service manifest.ID, notBefore, notAfter time.Time) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, err
	}
	cert, err := sign(&x509.Certificate{ // without a serial number it gets a random one
		Subject: pkix.Name{CommonName: authorityName(service)}, NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, authority{key: key}, key.Public())
	return authority{cert, key}, err
}

// issue makes a serving certificate for a Service, and returns it and its key as PEM.
func issue(by authority, service manifest.ID, notBefore, notAfter time.Time) (crt, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if notBefore.Before(by.cert.NotBefore) {
		notBefore = by.cert.NotBefore
	}
	cert, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName(service)[len("gitopsd CA for "):]}, DNSNames: names(service),
		NotBefore: notBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}, by, pair.Public())
	if err != nil {
		return nil, nil, err
	}
	key, err = encodeKey(pair)
	return encode(cert), key, err
}

// try returns why API servers that trust a CA would refuse what it signs for a Service:
// a CA may be limited to some names or uses.
func (a authority) try(service manifest.ID, now time.Time) error {
	crt, _, err := issue(a, service, now, a.cert.NotAfter)
	if err != nil {
		return err
	}
	chain, err := parse(crt)
	if err != nil {
		return err
	}
	return accepted(chain, encode(a.cert), service, now)
}

// accepted returns why API servers with a bundle would refuse a certificate with its
// chain; nil if they accept it.
func accepted(chain []*x509.Certificate, bundle []byte, service manifest.ID, now time.Time) error {
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, DNSName: names(service)[1]})
	return err
}

func sign(template *x509.Certificate, by authority, public crypto.PublicKey) (*x509.Certificate, error) {
	parent := by.cert
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, by.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func encode(certs ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, cert := range certs {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // a buffer takes everything
	}
	return b.Bytes()
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// mostCertificates is the largest number of certificates that are read from one text.
const mostCertificates = 100

// parse reads the certificates of a PEM text. Text around the blocks is left out. The
// certificates before a fault are returned even with an error, which quotes nothing.
func parse(text []byte) ([]*x509.Certificate, error) {
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

// parsePair reads a certificate with its chain and its key. The error quotes nothing,
// and starts with the key of the Secret at fault.
func parsePair(crt, key []byte) (chain []*x509.Certificate, signer crypto.Signer, err error) {
	if chain, err = parse(crt); err != nil {
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

// isCA reports whether a certificate is that of a CA which may sign certificates.
func isCA(cert *x509.Certificate) bool {
	return cert.BasicConstraintsValid && cert.IsCA && (cert.KeyUsage == 0 || cert.KeyUsage&x509.KeyUsageCertSign != 0)
}

// signed reports whether a CA signed a certificate.
func signed(by, cert *x509.Certificate) bool {
	return bytes.Equal(by.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(by) == nil
}

// servesFor returns why a certificate cannot serve for a Service; nil if it can. API
// servers ask for <name>.<namespace>.svc. The certificate's dates and its issuer are not
// looked at.
func servesFor(cert *x509.Certificate, service manifest.ID) error {
	if name := names(service)[1]; cert.VerifyHostname(name) != nil {
		return fmt.Errorf("is not for %s", name)
	}
	for _, usage := range cert.ExtKeyUsage {
		if usage == x509.ExtKeyUsageServerAuth || usage == x509.ExtKeyUsageAny {
			return nil
		}
	}
	if len(cert.ExtKeyUsage) > 0 {
		return errors.New("is not for servers (extended key usage)")
	}
	return nil
}
