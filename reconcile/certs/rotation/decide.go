package rotation

import (
	"crypto/x509"
	"slices"
	"time"
)

// Policy is how long certificates live.
type Policy struct {
	// Authority is the lifetime of a CA, and Leaf the lifetime of a certificate. Both are
	// renewed when a third of it is left.
	Authority, Leaf time.Duration
	// Settle is how long a new CA must be in every bundle before it signs, because clients
	// cache bundles. It is shorter if the present certificate expires before.
	Settle time.Duration
}

// Skew is how far clocks may differ. Certificates are valid from Skew before they are made.
const Skew = 5 * time.Minute

// CA is a CA as the rotation sees it. CAs are comparable. The zero CA is none.
type CA struct {
	// ID is a hash of the certificate; "unmade" for a CA that has to be made.
	ID                  string
	NotBefore, NotAfter time.Time
	// Key reports whether gitopsd keeps the key.
	Key bool
}

// unmade is the ID of a CA that has to be made.
const unmade = "unmade"

// Former is a CA that no longer signs.
type Former struct {
	CA CA
	// Until is when the last certificate that it signed has expired.
	Until time.Time
}

// Journal is the content of the Secret of the CA. It is recorded before a CA is put into a
// bundle, and before a certificate is signed.
type Journal struct {
	// Signer signs. Next replaces it once every bundle has Next. Either may be zero.
	Signer, Next CA
	// Issued is when the last certificate of Signer expires. It is recorded before a
	// certificate is made.
	Issued time.Time
	// Spread is when every bundle was first seen to have Next. If it is wrong, Next signs
	// earlier or later, but still only once every bundle has it.
	Spread time.Time
	// Former stay in the bundles until their last certificates have expired.
	Former []Former
}

// Equal reports whether two journals record the same.
func (j *Journal) Equal(o *Journal) bool {
	return j.Signer == o.Signer && j.Next == o.Next && j.Issued.Equal(o.Issued) && j.Spread.Equal(o.Spread) &&
		slices.EqualFunc(j.Former, o.Former, func(a, b Former) bool { return a.CA == b.CA && a.Until.Equal(b.Until) })
}

// Trust returns the IDs of the CAs that belong in every bundle.
func (j *Journal) Trust() []string {
	var ids []string
	add := func(ca CA) {
		if ca.ID != "" && !slices.Contains(ids, ca.ID) {
			ids = append(ids, ca.ID)
		}
	}
	add(j.Signer)
	add(j.Next)
	for _, f := range j.Former {
		add(f.CA)
	}
	return ids
}

// Leaf is the present certificate. The zero Leaf is none, or one that cannot serve: without its
// key, for other names, or garbled. A client's certificate serves when it is presented.
type Leaf struct {
	// Issuer is the ID of the CA that signed it; empty if unknown.
	Issuer              string
	NotBefore, NotAfter time.Time
}

// Bundle is a CA bundle in force.
type Bundle struct {
	// Holder names the object that holds it.
	Holder string
	// CAs are the IDs of its certificates.
	CAs []string
}

// State is the present state.
type State struct {
	// Journal is nil if there is none, or if it is damaged.
	Journal *Journal
	// Brought is the operator's CA that must sign; zero if gitopsd makes its own.
	Brought CA
	Leaf    Leaf
	// Looked reports whether Bundles and Found are known.
	Looked  bool
	Bundles []Bundle
	// Found are CAs that may have signed the present certificate, though no journal has them.
	Found []CA
}

// Order is a certificate to make.
type Order struct {
	// By is the ID of the CA that signs.
	By       string
	NotAfter time.Time
}

// Decision is the desired state.
type Decision struct {
	// Look reports that the decision depends on bundles that are not known: they must be
	// read before another decision.
	Look bool
	// Journal is the desired journal. If it differs from the present one, it is recorded and
	// read again before anything else is done.
	Journal Journal
	// Issue is the certificate to make; zero if the present one stays.
	Issue Order
	// Again is when to decide again.
	Again time.Time
	// Signs is when the next CA begins to sign; zero if there is none, or a bundle lacks it.
	Signs time.Time
	// Lacking are the holders of bundles that lack the next signer.
	Lacking []string
	// Early is when the signer that gitopsd made, or the signer's present certificate, becomes
	// valid; zero if a new certificate would be of use. The clock is behind, or was ahead when
	// it was made, and nothing is done.
	Early time.Time
	// Restored reports that the present journal lacks the CA of the present certificate.
	Restored bool
}

// soon is the pause before something just written is read again.
const soon = time.Second

// longestPause is the longest pause before bundles that lack a CA are read again.
const longestPause = 10 * time.Minute

// pause returns the pause before bundles that lack a CA are read again.
func (r *rotation) pause() time.Duration { return min(max(r.policy.Settle, soon), longestPause) }

// Decide returns the next step of the rotation. Because it is pure, two daemons, or a daemon
// and its predecessor, agree on it:
//
//  1. A new CA is recorded as Next, and put into every bundle.
//  2. When every bundle with the CA of the present certificate has Next, and the settling
//     time has passed, or would outlast that certificate, Next becomes the Signer and
//     signs a new certificate. If no certificate serves and there is no other signer,
//     this happens at once.
//  3. A former CA is removed when its last certificate has expired.
//
// While the signer is not valid yet, nothing is done: a CA that replaces it at once is lost on
// those who read their bundle seldom. Nor is anything done while a new certificate would expire
// before the present one becomes valid: if the clock is behind, it has expired already.
//
// Times are in whole seconds, as in certificates.
func Decide(have State, now time.Time, p Policy) Decision {
	r := rotation{have: have, now: now, policy: p}
	if have.Journal != nil {
		r.Journal = *have.Journal
		r.Journal.Former = slices.Clone(have.Journal.Former)
		if r.early() {
			return r.Decision
		}
		r.restored()
	} else {
		r.recover()
	}
	r.retire()
	r.prepare()
	r.promote()
	r.issue()
	r.expire()
	return r.Decision
}

type rotation struct {
	Decision
	have   State
	now    time.Time
	policy Policy
}

// again schedules the next decision for a time, unless it is due earlier.
func (r *rotation) again(at time.Time) {
	if r.Again.IsZero() || at.Before(r.Again) {
		r.Again = at
	}
}

// early reports whether the signer is not valid yet, or would replace its present certificate
// by one that expires before that is valid. A CA that an operator brings replaces the signer.
func (r *rotation) early() bool {
	signer, l := r.Journal.Signer, r.have.Leaf
	switch {
	case r.have.Brought.ID == "" && signer.Key && r.now.Before(signer.NotBefore):
		r.Early = signer.NotBefore
	case r.fits(signer) && l.Issuer == signer.ID && r.now.Add(r.policy.Leaf).Before(l.NotBefore):
		r.Early = l.NotBefore
	default:
		return false
	}
	r.again(r.now.Add(r.pause())) // the clock may be corrected
	return true
}

// recover adds the found CAs to a journal that was lost. They stay trusted, so that the present certificate
// serves until a new CA has replaced them in order, but no longer than a certificate lives: a CA may live
// for decades.
func (r *rotation) recover() {
	if !r.have.Looked {
		r.Look = true
	}
	known := r.Journal.Trust()
	for _, ca := range r.have.Found {
		if r.now.Before(ca.NotAfter) && ca.ID != r.have.Brought.ID && !slices.Contains(known, ca.ID) {
			ca.Key = false
			until := r.now.Add(r.policy.Leaf)
			if until.After(ca.NotAfter) {
				until = ca.NotAfter
			}
			r.Journal.Former = append(r.Journal.Former, Former{ca, until})
		}
	}
}

// restored mends a journal that lacks the CA of the present certificate, though bundles have it: one of the
// Secrets comes from a backup. The found CAs stay trusted, as if there were no journal, and the signer settles
// like a new CA.
func (r *rotation) restored() {
	l, j := r.have.Leaf, &r.Journal
	if r.now.Before(l.NotBefore) || !r.now.Before(l.NotAfter) || slices.Contains(j.Trust(), l.Issuer) {
		return
	}
	if !r.have.Looked {
		r.Look = true
		return
	}
	if !slices.ContainsFunc(r.have.Found, func(ca CA) bool { return ca.ID == l.Issuer }) {
		return
	}
	r.Restored = true
	if signer := j.Signer; signer.ID != "" {
		if j.Next.ID == "" {
			j.Next = signer
		}
		signer.Key = false
		j.Former = append(j.Former, Former{signer, j.Issued})
	}
	j.Signer, j.Issued, j.Spread = CA{}, time.Time{}, time.Time{}
	r.recover()
}

// fits reports whether a CA may sign now.
func (r *rotation) fits(ca CA) bool {
	switch {
	case ca.ID == "" || r.now.Before(ca.NotBefore) || !r.now.Before(ca.NotAfter):
		return false
	case r.have.Brought.ID != "":
		return ca.ID == r.have.Brought.ID
	}
	return ca.Key
}

// serves reports whether clients that trust the journal's CAs accept the present certificate.
func (r *rotation) serves() bool {
	l := r.have.Leaf
	return l.Issuer != "" && !r.now.Before(l.NotBefore) && r.now.Before(l.NotAfter) && slices.Contains(r.Journal.Trust(), l.Issuer)
}

// prepare sets the next signer, if there must be one.
func (r *rotation) prepare() {
	j := &r.Journal
	if j.Next.ID != "" && !r.fits(j.Next) { // it has signed nothing
		j.Next, j.Spread = CA{}, time.Time{}
	}
	if j.Next.ID != "" {
		return
	}
	if r.fits(j.Signer) {
		if r.have.Brought.ID != "" {
			return // its owner renews it
		}
		if due := Renewal(j.Signer.NotBefore, j.Signer.NotAfter); r.now.Before(due) {
			r.again(due)
			return
		}
	}
	if r.have.Brought.ID != "" {
		j.Next = r.have.Brought
	} else {
		j.Next = CA{ID: unmade, NotBefore: r.now.Add(-Skew), NotAfter: r.now.Add(r.policy.Authority), Key: true}
	}
	if !r.fits(j.Next) {
		j.Next = CA{} // the operator's has expired
	}
}

// promote makes Next the Signer when it may sign.
func (r *rotation) promote() {
	j := &r.Journal
	if j.Next.ID == "" {
		return
	}
	idle := !r.serves()
	switch {
	case idle && !r.fits(j.Signer):
	case idle: // the signer issues a certificate first
		r.again(r.now.Add(soon))
		return
	case !r.spread(j.Next.ID):
		j.Spread = time.Time{}
		r.again(r.now.Add(r.pause()))
		return
	case j.Spread.IsZero() || j.Spread.After(r.now) || j.Spread.Before(j.Next.NotBefore):
		j.Spread = r.now
		fallthrough
	default:
		if settled := j.Spread.Add(r.settling()); r.now.Before(settled) {
			r.Signs = settled
			r.again(settled)
			return
		}
	}
	issued := time.Time{}
	j.Former = slices.DeleteFunc(j.Former, func(f Former) bool {
		if f.CA.ID == j.Next.ID { // signed before
			issued = f.Until
		}
		return f.CA.ID == j.Next.ID
	})
	until := j.Issued
	if l := r.have.Leaf; l.Issuer == j.Signer.ID && l.NotAfter.After(until) {
		until = l.NotAfter
	}
	if until.After(j.Signer.NotAfter) {
		until = j.Signer.NotAfter
	}
	if j.Signer.ID != "" && r.now.Before(until) {
		former := j.Signer
		former.Key = false
		j.Former = append(j.Former, Former{former, until})
	}
	j.Signer, j.Next, j.Issued, j.Spread = j.Next, CA{}, issued, time.Time{}
}

// settling returns how long a CA that is in every bundle waits until it signs. If the signer cannot renew
// the present certificate, that is half of what is left of it.
func (r *rotation) settling() time.Duration {
	return min(r.policy.Settle, r.have.Leaf.NotAfter.Sub(r.Journal.Spread)/2).Truncate(time.Second)
}

// spread reports whether a CA is in every bundle that has the CA of the present certificate.
// Other bundles do not work anyway, and do not delay the rotation.
func (r *rotation) spread(id string) bool {
	if !r.have.Looked {
		r.Look = true
		return false
	}
	r.Lacking = nil
	for _, b := range r.have.Bundles {
		if slices.Contains(b.CAs, r.have.Leaf.Issuer) && !slices.Contains(b.CAs, id) {
			r.Lacking = append(r.Lacking, b.Holder)
		}
	}
	return len(r.Lacking) == 0
}

// issue orders a certificate if none serves, or the present one is due for renewal.
func (r *rotation) issue() {
	j, l := &r.Journal, r.have.Leaf
	if !r.fits(j.Signer) {
		return
	}
	until := r.now.Add(r.policy.Leaf)
	switch {
	case until.After(j.Signer.NotAfter): // which stays the same, and is recorded once
		until = j.Signer.NotAfter
	case j.Issued.Before(until) && until.Sub(j.Issued) < r.policy.Leaf/8:
		until = j.Issued // if a certificate cannot be written, do not record each attempt
	}
	if r.serves() {
		if l.Issuer == j.Signer.ID {
			if due := Renewal(l.NotBefore, l.NotAfter); r.now.Before(due) {
				r.again(due)
				return
			}
			if !l.NotAfter.Before(j.Signer.NotAfter) {
				return // as long as the signer lasts
			}
		}
		if !r.spread(j.Signer.ID) {
			r.again(r.now.Add(r.pause()))
			return
		}
	}
	if j.Issued.Before(until) {
		j.Issued = until
	}
	r.Issue = Order{By: j.Signer.ID, NotAfter: until}
	r.again(Renewal(r.now.Add(-Skew), until))
}

// retire removes former CAs once all their certificates have expired.
func (r *rotation) retire() {
	j, l := &r.Journal, r.have.Leaf
	j.Former = slices.DeleteFunc(j.Former, func(f Former) bool {
		return !r.now.Before(f.Until) && (f.CA.ID != l.Issuer || !r.now.Before(l.NotAfter))
	})
}

// expire schedules a decision for when a CA or the present certificate expires.
func (r *rotation) expire() {
	for _, f := range r.Journal.Former {
		at := f.Until
		if l := r.have.Leaf; f.CA.ID == l.Issuer && l.NotAfter.After(at) {
			at = l.NotAfter
		}
		r.again(at)
	}
	if r.serves() {
		r.again(r.have.Leaf.NotAfter)
	}
	if r.Again.IsZero() && r.Journal.Signer.ID != "" && r.now.Before(r.Journal.Signer.NotAfter) {
		r.again(r.Journal.Signer.NotAfter)
	}
}

// Renewal returns when a third of a certificate's life is left.
func Renewal(notBefore, notAfter time.Time) time.Time {
	life := notAfter.Sub(notBefore)
	if life > Skew {
		life -= Skew
	}
	return notAfter.Add(-life / 3).Truncate(time.Second)
}

// noticeBefore is the longest time from [Notice] to the expiry.
const noticeBefore = 30 * 24 * time.Hour

// Notice returns when people are told that a certificate expires which they must renew: 30
// days before, or when a third of a short life is left.
func Notice(cert *x509.Certificate) time.Time {
	return cert.NotAfter.Add(-min(noticeBefore, cert.NotAfter.Sub(cert.NotBefore)/3))
}
