// Package rotation keeps one certificate with the CA that signs it, of a server or of a
// client, so that whoever trusts a bundle that made it accepted goes on accepting it.
//
// It owns
//   - the rotation (decide.go), a pure function: what is there, now -> what should be
//     there, and when to look again;
//   - the steps of one turn (keep.go), by the Secret that records the CA (journal.go),
//     which is written on the condition that it is as it was read;
//   - keys and certificates: making, reading and checking them (pki.go).
//
// Where the Secrets and bundles are is the caller's: reconcile/certs keeps those of
// Services, and reconcile/etcd/identity those of etcd namespaces.
package rotation

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"time"
)

// Source reads what one rotation depends on, and records its journal. The errors of its
// methods end the rotation's turn.
type Source interface {
	// Leaf returns the content of the Secret with the certificate, as it is now.
	Leaf(context.Context) (map[string][]byte, error)
	// Journal returns the content of the Secret with the journal, as it is now; nil if
	// there is none.
	Journal(context.Context) (map[string][]byte, error)
	// Bundles returns the bundles in force.
	Bundles(context.Context) ([]Held, error)
	// Record makes a journal durable, if what Journal returned last is still what is
	// there. If it is not, nothing is done, which is no error.
	Record(ctx context.Context, data map[string][]byte) error
}

// Held is a CA bundle in force, in PEM. What is garbled trusts nothing.
type Held struct {
	Holder string
	PEM    []byte
}

// Rotation is one certificate with its CA.
type Rotation struct {
	Profile Profile
	Policy  Policy
	// Brought is the operator's CA, which is to sign; zero if one is made.
	Brought Authority
	// Frozen has what is there stay, since the rotation cannot go on.
	Frozen bool
	// Preview has nothing made.
	Preview bool
	// Now is taken before anything is read, so that nothing is made that is valid for
	// longer than what was recorded allows.
	Now time.Time
}

// Result is what there should be.
type Result struct {
	// Bundle has the CAs to trust; nil if they are not known yet.
	Bundle []byte
	// Cert and Key are the certificate; nil if it is not known yet.
	Cert, Key []byte
	// Expires is when the certificate does, and Signer who signs; zero if not known.
	Expires time.Time
	Signer  CA
	// Again is when to look again.
	Again time.Time
	// Lacking are the holders of bundles for which the next CA waits.
	Lacking []string
}

// ErrContended is returned if others write the journal all the time.
var ErrContended = errors.New("others write the record of the CA all the time")

// attempts bounds how often a journal is read again because another process wrote it.
const attempts = 6

// Keep records the journal until nothing is to be recorded, and returns what there
// should be then. The caller writes that; if it is not written, Keep returns it again.
func (r *Rotation) Keep(ctx context.Context, s Source) (Result, error) {
	t := &turn{Rotation: r}
	for range attempts {
		if err := t.look(ctx, s); err != nil {
			return Result{}, err
		}
		if r.Frozen {
			if t.state.Journal == nil {
				return t.result, nil
			}
			return t.settle(Decision{Journal: *t.state.Journal})
		}
		d := Decide(t.state, r.Now, r.Policy)
		if d.Look {
			if err := t.lookAtBundles(ctx, s); err != nil {
				return Result{}, err
			}
			d = Decide(t.state, r.Now, r.Policy)
		}
		switch {
		case t.state.Journal != nil && d.Journal.Equal(t.state.Journal):
			return t.settle(d)
		case r.Preview:
			return t.result, nil
		}
		// From here on the CAs are durable, or somebody else's are.
		if err := t.record(ctx, s, d.Journal); err != nil {
			return Result{}, err
		}
		t.again(r.Now.Add(Soon))
	}
	return Result{}, ErrContended
}

// turn is one call of Keep.
type turn struct {
	*Rotation
	state State
	cas   material
	// damaged are the CAs in the journal if it is damaged.
	damaged []CA
	// leaf is the content of the Secret with the certificate. It can serve unless
	// state.Leaf is zero.
	leaf   map[string][]byte
	result Result
}

func (t *turn) again(at time.Time) {
	if !at.IsZero() && (t.result.Again.IsZero() || at.Before(t.result.Again)) {
		t.result.Again = at
	}
}

// look reads both Secrets.
func (t *turn) look(ctx context.Context, s Source) (err error) {
	t.state, t.cas, t.damaged = State{}, make(material), nil
	if t.leaf, err = s.Leaf(ctx); err != nil {
		return err
	}
	record, err := s.Journal(ctx)
	if err != nil {
		return err
	}
	if t.Brought.Cert != nil {
		t.state.Brought = t.cas.add(t.Brought, false)
	}
	if record != nil {
		t.state.Journal, t.damaged = t.cas.read(record, t.Profile)
	}
	t.assess()
	return nil
}

// assess finds out whether the certificate that is there can serve, and who signed it.
func (t *turn) assess() {
	chain, _, err := ParsePair(t.leaf[keyCert], t.leaf[keyKey])
	if err != nil || t.Profile.Fits(chain[0]) != nil {
		return
	}
	t.state.Leaf = Leaf{Issuer: t.cas.issuer(chain[0]), NotBefore: chain[0].NotBefore, NotAfter: chain[0].NotAfter}
}

// lookAtBundles reads the bundles in force, and the CAs in them that may have signed
// what serves. It may cost a request for each, and is done only while CAs change.
func (t *turn) lookAtBundles(ctx context.Context, s Source) error {
	held, err := s.Bundles(ctx)
	if err != nil {
		return err
	}
	candidates := t.damaged
	for _, h := range held {
		b := Bundle{Holder: h.Holder}
		certs, err := Parse(h.PEM)
		if err != nil { // a bundle is taken as a whole
			certs = nil
		}
		for _, cert := range certs {
			ca := t.cas.add(Authority{Cert: cert}, false)
			b.CAs = append(b.CAs, ca.ID)
			candidates = append(candidates, ca)
		}
		t.state.Bundles = append(t.state.Bundles, b)
	}
	t.state.Looked = true
	t.assess()                      // it may be signed by one of these
	for _, ca := range candidates { // one of somebody else's is not trusted any longer
		cert := t.cas[ca.ID].Cert
		known := slices.ContainsFunc(t.state.Found, func(f CA) bool { return f.ID == ca.ID })
		if !known && IsCA(cert) && (ca.ID == t.state.Leaf.Issuer || t.ours(cert)) {
			t.state.Found = append(t.state.Found, ca)
		}
	}
	return nil
}

// ours reports whether a CA has the name of those that are made here.
func (t *turn) ours(cert *x509.Certificate) bool {
	return cert.Subject.CommonName == t.Profile.AuthorityName()
}

// record makes the CA that a journal lacks, and the journal durable.
func (t *turn) record(ctx context.Context, s Source, j Journal) error {
	if j.Next.ID == Unmade || j.Signer.ID == Unmade {
		made := &j.Next
		if j.Signer.ID == Unmade {
			made = &j.Signer
		}
		a, err := t.Profile.Mint(made.NotBefore, made.NotAfter)
		if err != nil {
			return err
		}
		*made = t.cas.add(a, true)
	}
	data, err := t.cas.write(&j)
	if err != nil {
		return err
	}
	return s.Record(ctx, data)
}

// settle returns what there should be once the journal is durable.
func (t *turn) settle(d Decision) (Result, error) {
	t.again(d.Again)
	t.result.Lacking = d.Lacking
	t.result.Bundle = t.cas.bundle(d.Journal.Trust())
	crt, key, expires := t.leaf[keyCert], t.leaf[keyKey], t.state.Leaf.NotAfter
	if d.Issue.By != "" {
		if t.Preview {
			return t.result, nil
		}
		var err error
		if crt, key, err = t.Profile.Issue(t.cas[d.Issue.By], t.Now.Add(-Skew), d.Issue.NotAfter); err != nil {
			return Result{}, err
		}
		expires = d.Issue.NotAfter
	}
	t.result.Expires, t.result.Signer = expires, d.Journal.Signer
	if len(crt) > 0 && len(key) > 0 {
		t.result.Cert, t.result.Key = crt, key
	}
	return t.result, nil
}
