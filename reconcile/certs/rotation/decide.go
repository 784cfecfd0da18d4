package rotation

import (
	"slices"
	"time"
)

// Policy is how long certificates live.
type Policy struct {
	// Authority is the lifetime of a CA and Leaf that of a certificate. Both
	// are renewed when a third of it is left.
	Authority, Leaf time.Duration
	// Settle is how long a new CA has been in every bundle before it signs: API servers
	// read bundles from caches.
	Settle time.Duration
}

// Skew is how far clocks may differ: certificates are valid from so long before they
// are made.
const Skew = 5 * time.Minute

// CA is a CA as the rotation sees it. CAs are comparable. The zero CA is none.
type CA struct {
	// ID is a hash of the certificate; [Unmade] for a CA that is to be made.
	ID                  string
	NotBefore, NotAfter time.Time
	// Key reports whether gitopsd keeps the key.
	Key bool
}

// Unmade is the ID of a CA that is to be made.
const Unmade = "unmade"

// Former is a CA that signs no more.
type Former struct {
	CA CA
	// Until is when the last certificate that it signed has expired.
	Until time.Time
}

// Journal is what the Secret of the CA records. Nothing is in a bundle, and nothing is
// signed, that is not in the journal first.
type Journal struct {
	// Signer signs, and Next is to replace it once every bundle has it. Either may be
	// zero.
	Signer, Next CA
	// Issued is the time after which no certificate of Signer's is valid. It is
	// recorded before a certificate is made.
	Issued time.Time
	// Spread is when every bundle was first seen to have Next. It is a hint: if it is
	// wrong, Next signs earlier or later, and still only once every bundle has it.
	Spread time.Time
	// Former are in the bundles until the last that they signed has expired.
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

// Leaf is the certificate that is there. The zero Leaf is none, or one that cannot
// serve: without its key, for other names, or garbled. A client's serves by being shown.
type Leaf struct {
	// Issuer is the ID of the CA that signed it, empty if that is not known.
	Issuer              string
	NotBefore, NotAfter time.Time
}

// Bundle is a CA bundle in force in the cluster.
type Bundle struct {
	// Holder names the object that holds it.
	Holder string
	// CAs are the IDs of its certificates.
	CAs []string
}

// State is what is there.
type State struct {
	// Journal is nil if there is none, or if it is damaged.
	Journal *Journal
	// Brought is the operator's CA, which is to sign; zero if gitopsd makes its own.
	Brought CA
	Leaf    Leaf
	// Looked reports whether Bundles and Found are known.
	Looked  bool
	Bundles []Bundle
	// Found are CAs that may have signed what serves, though no journal has them.
	Found []CA
}

// Order is a certificate to be made.
type Order struct {
	// By is the ID of the CA that signs.
	By       string
	NotAfter time.Time
}

// Decision is what should be there.
type Decision struct {
	// Look reports that the decision depends on bundles, which are not known: find out
	// and decide again.
	Look bool
	// Journal is to be recorded. If it differs from the one that is there, nothing else
	// is done before it is recorded and read again.
	Journal Journal
	// Issue is the certificate to be made; zero if the one that is there stays.
	Issue Order
	// Again is when to decide again.
	Again time.Time
	// Lacking are the holders whose bundles lack the CA that is to sign.
	Lacking []string
}

// Soon is the pause before something is looked at that was just written.
const Soon = time.Second

// pause is the pause before bundles are looked at again that lack a CA although they
// should have it.
func (r *rotation) pause() time.Duration { return max(r.policy.Settle, Soon) }

// Decide returns the next step of the rotation. It is pure, and it is the whole of what
// two daemons, or a daemon and its predecessor, need to agree on:
//
//  1. A new CA is recorded as Next, and put into every bundle.
//  2. When every bundle that the served certificate needs has Next, and the settling
//     time has passed, Next becomes the Signer and signs a new certificate. If nothing
//     serves and there is no other signer, this is done at once.
//  3. A former CA leaves when the last certificate that it signed has expired.
//
// The times are in whole seconds, as in certificates.
func Decide(have State, now time.Time, p Policy) Decision {
	r := rotation{have: have, now: now, policy: p}
	if have.Journal != nil {
		r.Journal = *have.Journal
		r.Journal.Former = slices.Clone(have.Journal.Former)
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

// again has the decision made again at a time.
func (r *rotation) again(at time.Time) {
	if r.Again.IsZero() || at.Before(r.Again) {
		r.Again = at
	}
}

// recover makes a journal of what is found without one. The found CAs stay trusted, so
// that what serves goes on until a new CA has replaced them in order.
func (r *rotation) recover() {
	if !r.have.Looked {
		r.Look = true
	}
	for _, ca := range r.have.Found {
		if r.now.Before(ca.NotAfter) && ca.ID != r.have.Brought.ID {
			ca.Key = false
			r.Journal.Former = append(r.Journal.Former, Former{ca, ca.NotAfter})
		}
	}
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

// serves reports whether what is there can serve: API servers with the journal's CAs
// accept it.
func (r *rotation) serves() bool {
	l := r.have.Leaf
	return l.Issuer != "" && !r.now.Before(l.NotBefore) && r.now.Before(l.NotAfter) && slices.Contains(r.Journal.Trust(), l.Issuer)
}

// prepare records a CA that is to sign.
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
		j.Next = CA{ID: Unmade, NotBefore: r.now.Add(-Skew), NotAfter: r.now.Add(r.policy.Authority), Key: true}
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
	case idle: // the signer repairs what serves first
		r.again(r.now.Add(Soon))
		return
	case !r.spread(j.Next.ID):
		j.Spread = time.Time{}
		r.again(r.now.Add(r.pause()))
		return
	case j.Spread.IsZero() || j.Spread.After(r.now) || j.Spread.Before(j.Next.NotBefore):
		j.Spread = r.now
		fallthrough
	default:
		if settled := j.Spread.Add(r.policy.Settle); r.now.Before(settled) {
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

// spread reports whether a CA is in every bundle that makes what is there served.
// Others are broken now, and do not hold the rotation up.
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

// issue orders a certificate if none serves, or the one that does is to be renewed.
func (r *rotation) issue() {
	j, l := &r.Journal, r.have.Leaf
	if !r.fits(j.Signer) {
		return
	}
	until := r.now.Add(r.policy.Leaf)
	if until.After(j.Signer.NotAfter) {
		until = j.Signer.NotAfter
	}
	if j.Issued.Before(until) && until.Sub(j.Issued) < r.policy.Leaf/8 {
		until = j.Issued // one that could not be written is not recorded anew each time
	}
	if r.serves() {
		if l.Issuer == j.Signer.ID {
			if due := Renewal(l.NotBefore, l.NotAfter); r.now.Before(due) {
				r.again(due)
				return
			}
			if !until.After(l.NotAfter) {
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

// retire drops former CAs whose certificates have all expired.
func (r *rotation) retire() {
	j, l := &r.Journal, r.have.Leaf
	j.Former = slices.DeleteFunc(j.Former, func(f Former) bool {
		return !r.now.Before(f.Until) && (f.CA.ID != l.Issuer || !r.now.Before(l.NotAfter))
	})
}

// expire has the decision made again when a CA or what serves expires.
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

// Renewal is when a third of a certificate's life is left.
func Renewal(notBefore, notAfter time.Time) time.Time {
	life := notAfter.Sub(notBefore)
	if life > Skew {
		life -= Skew
	}
	return notAfter.Add(-life / 3).Truncate(time.Second)
}
