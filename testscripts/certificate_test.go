package testscripts

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// makeAuthority writes the certificate and the key of a CA named after the file.
func makeAuthority(_ context.Context, _ *scenario, c *call) error {
	return c.writePair(c.args[0], &x509.Certificate{
		Subject: pkix.Name{CommonName: filepath.Base(c.args[0])},
		IsCA:    true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
}

// makeServing writes a serving certificate, signed by a CA that makeAuthority wrote.
func makeServing(_ context.Context, _ *scenario, c *call) error {
	authority := c.ts.MkAbs(c.args[1])
	pair, err := tls.LoadX509KeyPair(authority+".crt", authority+".key")
	if err != nil {
		return err
	}
	return c.writePair(c.args[0], &x509.Certificate{
		Subject:  pkix.Name{CommonName: c.args[2]},
		DNSNames: []string{c.args[2]}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, &pair)
}

// writePair writes FILE.crt and FILE.key. Without a signer the certificate signs itself.
func (c *call) writePair(file string, template *x509.Certificate, signer *tls.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(24*time.Hour)
	parent, by := template, crypto.PrivateKey(key)
	if signer != nil {
		parent, by = signer.Leaf, signer.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	file = c.ts.MkAbs(file)
	return errors.Join(
		os.WriteFile(file+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
		os.WriteFile(file+".key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
}

// showCertificate prints the issuer of the certificate in a Secret, and the CAs that the
// Secret tells clients to trust.
func showCertificate(ctx context.Context, s *scenario, c *call) error {
	cluster, secret := c.args[0], c.args[1]
	namespace, name, _ := strings.Cut(secret, "/")
	text, err := s.kubectl(ctx, c, "--context", cluster, "get", "secret", "-n", namespace, name, "-o", "json")
	if err != nil {
		return err
	}
	var object struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		return err
	}
	names := func(key string, of func(*x509.Certificate) pkix.Name) (names []string) {
		rest, _ := base64.StdEncoding.DecodeString(object.Data[key])
		for len(rest) > 0 {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				return append(names, "garbage")
			}
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return append(names, "garbage")
			}
			names = append(names, of(cert).CommonName)
		}
		slices.Sort(names)
		return names
	}
	_, err = fmt.Fprintf(c.out, "signed by %s, trusted: %s\n",
		strings.Join(names("tls.crt", func(c *x509.Certificate) pkix.Name { return c.Issuer }), ", "),
		strings.Join(names("ca.crt", func(c *x509.Certificate) pkix.Name { return c.Subject }), ", "))
	return err
}

// kubectl runs kubectl and returns its output.
func (s *scenario) kubectl(ctx context.Context, c *call, args ...string) (string, error) {
	var out strings.Builder
	if err := runKubectl(ctx, s, &call{ts: c.ts, args: args, out: &out, errOut: c.errOut}); err != nil {
		return "", err
	}
	return out.String(), nil
}
