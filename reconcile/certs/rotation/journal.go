package rotation

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"slices"
	"time"
)

// Keys of the Secret of a CA. The signer has the usual keys of a TLS Secret. The private key of
// a CA that an operator brought is not stored.
const (
	keyCert    = "tls.crt"
	keyKey     = "tls.key"
	keyNext    = "next.crt"
	keyNextKey = "next.key"
	keyFormer  = "former.crt"
	keyTimes   = "times.json"
)

// times are the times of a journal that are not in its certificates.
type times struct {
	Issued time.Time `json:"issued,omitzero"`
	Spread time.Time `json:"spread,omitzero"`
	// Former has Former.Until by the ID of the CA.
	Former map[string]time.Time `json:"former,omitempty"`
}

// material are CAs by their IDs.
type material map[string]Authority

// add adds a CA, and returns it as the rotation sees it. A known key is kept.
func (m material) add(a Authority, key bool) CA {
	id := idOf(a.Cert)
	if a.Key == nil {
		a.Key = m[id].Key
	}
	m[id] = a
	return CA{ID: id, NotBefore: a.Cert.NotBefore, NotAfter: a.Cert.NotAfter, Key: key}
}

// read reads the Secret of a CA. j is nil if the Secret is damaged: something in it is missing,
// garbled, or of another profile. found has the CAs that could be read in any case.
func (m material) read(data map[string][]byte, p Profile) (j *Journal, found []CA) {
	sound := true
	pair := func(crt, key string) CA {
		text, private := data[crt], data[key]
		if len(text) == 0 {
			sound = sound && len(private) == 0
			return CA{}
		}
		chain, signer, err := ParsePair(text, private)
		if len(chain) != 1 || !IsCA(chain[0]) {
			sound = false
			return CA{}
		}
		ca := m.add(Authority{chain[0], signer}, err == nil)
		found = append(found, ca)
		// Only an operator's CA has its key elsewhere, or another name.
		if len(private) > 0 && (err != nil || chain[0].Subject.CommonName != p.authorityName()) {
			sound = false
		}
		return ca
	}
	j = &Journal{Signer: pair(keyCert, keyKey), Next: pair(keyNext, keyNextKey)}
	var t times
	if json.Unmarshal(data[keyTimes], &t) != nil {
		sound = false
	}
	second := func(at time.Time) time.Time { return at.UTC().Truncate(time.Second) }
	j.Issued, j.Spread = second(t.Issued), second(t.Spread)
	if text := data[keyFormer]; len(text) > 0 {
		certs, err := Parse(text)
		sound = sound && err == nil
		for _, cert := range certs {
			if !IsCA(cert) {
				sound = false
				continue
			}
			ca := m.add(Authority{Cert: cert}, false)
			found = append(found, ca)
			until, known := t.Former[ca.ID]
			if !known || until.After(ca.NotAfter) {
				until = ca.NotAfter
			}
			j.Former = append(j.Former, Former{ca, second(until)})
		}
	}
	if !sound || j.Signer.ID == "" && j.Next.ID == "" && len(j.Former) == 0 {
		return nil, found
	}
	return j, found
}

// write returns the content of the Secret for a journal.
func (m material) write(j *Journal) (map[string][]byte, error) {
	data := make(map[string][]byte)
	put := func(crt, key string, ca CA) error {
		if ca.ID == "" {
			return nil
		}
		data[crt] = Encode(m[ca.ID].Cert)
		if !ca.Key {
			return nil
		}
		text, err := EncodeKey(m[ca.ID].Key)
		data[key] = text
		return err
	}
	if err := put(keyCert, keyKey, j.Signer); err != nil {
		return nil, err
	}
	if err := put(keyNext, keyNextKey, j.Next); err != nil {
		return nil, err
	}
	t := times{Issued: j.Issued, Spread: j.Spread, Former: make(map[string]time.Time)}
	for _, f := range j.Former {
		t.Former[f.CA.ID] = f.Until
		data[keyFormer] = append(data[keyFormer], Encode(m[f.CA.ID].Cert)...)
	}
	var err error
	data[keyTimes], err = json.Marshal(t)
	return data, err
}

// bundle returns the certificates of CAs as PEM.
func (m material) bundle(ids []string) []byte {
	var b bytes.Buffer
	for _, id := range slices.Sorted(slices.Values(ids)) {
		b.Write(Encode(m[id].Cert))
	}
	return b.Bytes()
}

// issuer returns the ID of the CA that signed a certificate, empty if none of them did.
func (m material) issuer(cert *x509.Certificate) string {
	for id, a := range m {
		if signed(a.Cert, cert) {
			return id
		}
	}
	return ""
}
