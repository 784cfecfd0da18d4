// Package sigstore is a Sigstore instance for tests: a certificate authority like
// Fulcio, the certificate log that witnesses it, a transparency log like Rekor,
// and the trust root of all three. It signs as cosign does, in its older and its
// newer format, with keys and keyless, and does each step wrong on demand.
//
// It is the counterpart that sources/signature is tested against, so the two
// share no code: this package follows the documents of the formats.
package sigstore

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/url"
	"time"
)

// Instance is a Sigstore instance.
type Instance struct {
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	ctKey  *ecdsa.PrivateKey
	logKey *ecdsa.PrivateKey
}

// New makes an instance.
func New() (*Instance, error) {
	i := new(Instance)
	for _, key := range []**ecdsa.PrivateKey{&i.caKey, &i.ctKey, &i.logKey} {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		*key = k
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-240 * time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, i.caKey.Public(), i.caKey)
	if err != nil {
		return nil, err
	}
	i.ca, err = x509.ParseCertificate(der)
	return i, err
}

func publicDER(k *ecdsa.PrivateKey) []byte {
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		panic(err) // impossible for a key that was just made
	}
	return der
}

func logID(k *ecdsa.PrivateKey) []byte {
	id := sha256.Sum256(publicDER(k))
	return id[:]
}

// TrustRoot returns the instance's trusted_root.json.
func (i *Instance) TrustRoot() []byte {
	start := time.Now().Add(-240 * time.Hour).UTC().Format(time.RFC3339)
	log := func(k *ecdsa.PrivateKey) any {
		return map[string]any{
			"baseUrl": "https://log.example.org", "hashAlgorithm": "SHA2_256", "logId": map[string]any{"keyId": logID(k)},
			"publicKey": map[string]any{"rawBytes": publicDER(k), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": map[string]any{"start": start}},
		}
	}
	text, err := json.MarshalIndent(map[string]any{
		"mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
		"tlogs":     []any{log(i.logKey)},
		"ctlogs":    []any{log(i.ctKey)},
		"certificateAuthorities": []any{map[string]any{
			"subject": map[string]any{"commonName": "test authority"}, "uri": "https://ca.example.org",
			"certChain": map[string]any{"certificates": []any{map[string]any{"rawBytes": i.ca.Raw}}},
			"validFor":  map[string]any{"start": start},
		}},
	}, "", "  ")
	if err != nil {
		panic(err) // impossible for plain values
	}
	return text
}

// Signer signs with a private key.
type Signer struct {
	key *ecdsa.PrivateKey
	// cert is a keyless signer's certificate.
	cert *x509.Certificate
	// by is the instance that certified it.
	by *Instance
	// At is the time at which the transparency log logs a keyless signer's
	// signatures; zero means now.
	At time.Time
	// Unlogged keeps signatures out of the transparency log.
	Unlogged bool
}

// NewKey makes a signer with a key of its own.
func NewKey() (*Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &Signer{key: key}, err
}

// PublicKey returns the signer's public key in PEM, the content of cosign.pub.
func (s *Signer) PublicKey() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER(s.key)})
}

// Keyless makes a signer with a certificate, valid for ten minutes, that its key
// belongs to subject (a URL) of issuer. If witnessed is false, no log has seen
// the certificate.
func (i *Instance) Keyless(issuer, subject string, witnessed bool) (*Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	name, err := url.Parse(subject)
	if err != nil {
		return nil, err
	}
	issuerValue, err := asn1.MarshalWithParams(issuer, "utf8")
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(10 * time.Minute),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
		URIs:            []*url.URL{name},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 8}, Value: issuerValue}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.ca, key.Public(), i.caKey)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil || !witnessed {
		return &Signer{key: key, cert: cert, by: i}, err
	}
	// The certificate is made twice: the log signs it without the extension that
	// holds the log's signature (RFC 6962, 3.2).
	sct, err := i.witness(cert.RawTBSCertificate)
	if err != nil {
		return nil, err
	}
	template.ExtraExtensions = append(template.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11129, 2, 4, 2}, Value: sct})
	if der, err = x509.CreateCertificate(rand.Reader, template, i.ca, key.Public(), i.caKey); err != nil {
		return nil, err
	}
	cert, err = x509.ParseCertificate(der)
	return &Signer{key: key, cert: cert, by: i}, err
}

// witness makes a list of one signed certificate timestamp.
func (i *Instance) witness(tbs []byte) ([]byte, error) {
	millis := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixMilli()))
	issuer := sha256.Sum256(i.ca.RawSubjectPublicKeyInfo)
	signed := append([]byte{0, 0}, millis...) // version 1, certificate_timestamp
	signed = append(signed, 0, 1)             // precert_entry
	signed = append(signed, issuer[:]...)
	signed = append(signed, byte(len(tbs)>>16), byte(len(tbs)>>8), byte(len(tbs)))
	signed = append(signed, tbs...)
	signed = append(signed, 0, 0) // no extensions
	sig, err := sign(i.ctKey, signed)
	if err != nil {
		return nil, err
	}
	sct := append([]byte{0}, logID(i.ctKey)...)
	sct = append(sct, millis...)
	sct = append(sct, 0, 0, 4, 3) // no extensions; SHA-256 with ECDSA
	sct = append(binary.BigEndian.AppendUint16(sct, uint16(len(sig))), sig...)
	list := binary.BigEndian.AppendUint16(nil, uint16(len(sct)+2))
	list = append(binary.BigEndian.AppendUint16(list, uint16(len(sct))), sct...)
	return asn1.Marshal(list)
}

func sign(key *ecdsa.PrivateKey, message []byte) ([]byte, error) {
	digest := sha256.Sum256(message)
	return key.Sign(rand.Reader, digest[:], crypto.SHA256)
}

func (s *Signer) certificatePEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Raw})
}

func (s *Signer) at() int64 {
	if s.At.IsZero() {
		return time.Now().Unix()
	}
	return s.At.Unix()
}

// entry is an entry of the transparency log.
type entry struct {
	body    []byte
	at      int64
	promise []byte
}

// log adds a body to the log, with a signed promise of inclusion.
func (s *Signer) log(body map[string]any) (entry, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return entry{}, err
	}
	e := entry{body: raw, at: s.at()}
	payload, err := json.Marshal(s.payload(e))
	if err != nil {
		return entry{}, err
	}
	e.promise, err = sign(s.by.logKey, payload)
	return e, err
}

// payload returns what the log's promise signs; marshalling sorts its keys, as
// the canonical form requires.
func (s *Signer) payload(e entry) map[string]any {
	return map[string]any{"body": e.body, "integratedTime": e.at, "logID": hex.EncodeToString(logID(s.by.logKey)), "logIndex": 0}
}

// proof proves that an entry is the only one in a log, whose size and root the
// log signs; the number after the log's name is that of Rekor's first version.
func (s *Signer) proof(e entry) (map[string]any, error) {
	leaf := sha256.Sum256(append([]byte{0}, e.body...))
	note := fmt.Sprintf("log.example.org - 1\n1\n%s\n", base64.StdEncoding.EncodeToString(leaf[:]))
	sig, err := sign(s.by.logKey, []byte(note))
	if err != nil {
		return nil, err
	}
	line := base64.StdEncoding.EncodeToString(append(logID(s.by.logKey)[:4:4], sig...))
	return map[string]any{
		"logIndex": "0", "treeSize": "1", "rootHash": leaf[:], "hashes": []any{},
		"checkpoint": map[string]any{"envelope": note + "\n— log.example.org " + line + "\n"},
	}, nil
}
