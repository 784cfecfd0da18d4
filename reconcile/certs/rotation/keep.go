// Package rotation renews a certificate of a server or a client, and the CA that signs it, so
// that everyone who trusts the CA bundle accepts the certificate at any time.
//
// It owns
//   - the decision (decide.go), a pure function from the state and the time to the desired
//     state and the time of the next decision;
//   - the steps of one turn (keep.go), with the Secret that records the CA (journal.go), which
//     is written on the condition that it is as it was read;
//   - keys and certificates: making, reading and checking them (pki.go).
//
// Callers decide where the Secrets and bundles are: reconcile/certs keeps those of Services,
// and reconcile/etcd/identity those of etcd namespaces.
package rotation

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Source reads the Secrets and bundles of a rotation, and records its journal. Its methods may
// fail with any error, which [Rotation.Keep] returns.
type Source interface {
	// Leaf returns the content of the Secret with the certificate, as it is now.
	Leaf(context.Context) (map[string][]byte, error)
	// Journal returns the content of the Secret with the journal, as it is now; nil if
	// there is none.
	Journal(context.Context) (map[string][]byte, error)
	// Bundles returns the bundles in force.
	Bundles(context.Context) ([]Held, error)
	// Record makes a journal durable if the present one is still the one that Journal
	// returned last. Otherwise it does nothing and returns nil.
	Record(ctx context.Context, data map[string][]byte) error
}

// Held is a CA bundle in force, in PEM. A garbled bundle trusts nothing.
type Held struct {
	Holder string
	PEM    []byte
	// Unread reports that the bundle may exist, and cannot be read. A new CA waits for it.
	Unread bool
}

// Rotation is one certificate with its CA.
type Rotation struct {
	Profile Profile
	Policy  Policy
	// Brought is the operator's CA that must sign; zero if gitopsd makes one.
	Brought Authority
	// Frozen leaves everything as it is.
	Frozen bool
	// Preview makes and records nothing.
	Preview bool
	// Now is taken before anything is read, so that no certificate outlives the time that
	// was recorded for it.
	Now time.Time
}

// Result is the desired state.
type Result struct {
	// Bundle has the CAs to trust; nil if they are not known yet.
	Bundle []byte
	// Cert and Key are the certificate; nil if it is not known yet.
	Cert, Key []byte
	// Expires is when the certificate expires, and Signer the CA that signs; zero if
	// unknown.
	Expires time.Time
	Signer  CA
	// Again is when to call Keep again.
	Again time.Time
	// Signs is when the next CA begins to sign; zero if there is none, or a bundle lacks it.
	Signs time.Time
	// Lacking are the holders of bundles that lack the next CA, which waits for them.
	Lacking []string
	// Early is when the signer, or its present certificate, becomes valid; see [Decision].
	// While it is set, everything stays as it is.
	Early time.Time
	// Restored reports that the journal lacked the CA of the present certificate, and has it now.
	Restored bool
}

// Stale is what people are told once a journal was restored. record names its Secret.
func (r *Result) Stale(record string) string {
	return fmt.Sprintf("Secret %s lacked the CA of the present certificate: it, or the certificate, is older than the other, as after a restore; both CAs are trusted, and the recorded one signs again once it has settled", record)
}

// Behind returns what people are to do while Early is set. record names the Secret with the
// journal.
func (r *Result) Behind(record string) string {
	subject, made, remove := fmt.Sprintf("the CA in Secret %s", record), "the CA", "the Secret"
	if r.Signer.NotBefore.Before(r.Early) { // it is the certificate that is early
		subject, made, remove = fmt.Sprintf("the certificate of the CA in Secret %s", record), "the certificate", "the certificate's Secret"
	}
	return fmt.Sprintf("%s is valid only from %s on, so gitopsd's clock is behind, or was ahead when it made %s: nothing is renewed; correct the clock, or, if it is right, delete %s",
		subject, r.Early.UTC().Format(time.RFC3339), made, remove)
}

// ErrContended is returned if others keep writing the journal.
var ErrContended = errors.New("others write the record of the CA all the time")

// attempts bounds how often a journal is read again because another process wrote it.
const attempts = 6

// Keep records the journal until it need not change, and returns the desired state. The caller
// writes that. If the caller does not, the next Keep returns the same.
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
		// From here on, the CAs of this process or of another are durable.
		t.result.Restored = t.result.Restored || d.Restored
		if err := t.record(ctx, s, d.Journal); err != nil {
			return Result{}, err
		}
		t.again(r.Now.Add(soon))
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

// assess decides whether the present certificate can serve, and which CA signed it.
func (t *turn) assess() {
	chain, _, err := ParsePair(t.leaf[keyCert], t.leaf[keyKey])
	if err != nil || t.Profile.Fits(chain[0]) != nil {
		return
	}
	t.state.Leaf = Leaf{Issuer: t.cas.issuer(chain[0]), NotBefore: chain[0].NotBefore, NotAfter: chain[0].NotAfter}
}

// lookAtBundles reads the bundles in force, and the CAs in them that may have signed the present
// certificate. It may cost a request for each, and is only called while CAs change.
func (t *turn) lookAtBundles(ctx context.Context, s Source) error {
	held, err := s.Bundles(ctx)
	if err != nil {
		return err
	}
	candidates, unread := t.damaged, []string(nil)
	for _, h := range held {
		if h.Unread {
			unread = append(unread, h.Holder)
			continue
		}
		b := Bundle{Holder: h.Holder}
		certs, err := Parse(h.PEM)
		if err != nil { // a garbled bundle trusts nothing
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
	t.assess() // it may be signed by one of these
	if l := t.state.Leaf; len(unread) > 0 && l.Issuer == "" && t.Now.Before(l.NotAfter) {
		return fmt.Errorf("the CA of the present certificate is not recorded, and those who trust it cannot be read: %s", strings.Join(unread, ", "))
	}
	for _, holder := range unread { // it may trust the present certificate, and nothing else
		t.state.Bundles = append(t.state.Bundles, Bundle{Holder: holder, CAs: []string{t.state.Leaf.Issuer}})
	}
	for i, ca := range candidates { // CAs of others are not trusted any longer
		cert := t.cas[ca.ID].Cert
		known := slices.ContainsFunc(t.state.Found, func(f CA) bool { return f.ID == ca.ID })
		// Clients share a bundle, in which the CAs of all have the same name.
		named := t.ours(cert) && (i < len(t.damaged) || t.Profile.Host != "")
		if !known && IsCA(cert) && (ca.ID == t.state.Leaf.Issuer || named) {
			t.state.Found = append(t.state.Found, ca)
		}
	}
	return nil
}

// ours reports whether a CA has the name of those that are made here.
func (t *turn) ours(cert *x509.Certificate) bool {
	return cert.Subject.CommonName == t.Profile.authorityName()
}

// record makes the CA that a journal lacks, and the journal durable.
func (t *turn) record(ctx context.Context, s Source, j Journal) error {
	for _, ca := range []*CA{&j.Signer, &j.Next} {
		if ca.ID != unmade {
			continue
		}
		a, err := t.Profile.Mint(ca.NotBefore, ca.NotAfter)
		if err != nil {
			return err
		}
		*ca = t.cas.add(a, true)
	}
	data, err := t.cas.write(&j)
	if err != nil {
		return err
	}
	return s.Record(ctx, data)
}

// settle returns the desired state once the journal is durable.
func (t *turn) settle(d Decision) (Result, error) {
	t.again(d.Again)
	t.result.Lacking, t.result.Signs, t.result.Early = d.Lacking, d.Signs, d.Early
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
