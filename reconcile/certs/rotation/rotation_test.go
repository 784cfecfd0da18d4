package rotation

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The rotation against a model of a cluster in which two daemons work, are killed and
// resume, others write, and time passes, as bytes choose. What is checked all the time
// is that a bundle which once made what serves accepted goes on doing so.

var policy = Policy{Authority: 365 * 24 * time.Hour, Leaf: 90 * 24 * time.Hour, Settle: time.Minute}

// reload is how long a pod serves a certificate after it was replaced.
const reload = 2 * time.Minute

// model is the cluster.
type model struct {
	t       testing.TB
	now     time.Time
	history []string

	version int // of the journal's Secret, 0 if there is none
	last    int // version given out
	journal *Journal
	backup  *Journal
	damaged []CA
	leaf    Leaf
	bundles [3][]string
	exists  [3]bool
	// covered are the bundles that made what serves accepted since it serves.
	covered [3]bool
	// mounted are certificates that were replaced.
	mounted []mounted
	// journalHurt and leafHurt: it is broken and not repaired, or an attempt
	// goes on that saw it broken. excused: both were, so that there was no signer and
	// nothing that served, and bundles and certificate come in any order.
	journalHurt, leafHurt, excused bool

	minted  int
	known   map[string]CA // recorded ones
	writes  int
	daemons [2]daemon
}

type mounted struct {
	leaf  Leaf
	until time.Time
	by    [3]bool
}

// daemon is one attempt at the cluster, step by step.
type daemon struct {
	step    int
	begun   time.Time
	state   State
	version int
	pending []func()
}

func newModel(t testing.TB) *model {
	m := &model{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), known: make(map[string]CA)}
	m.exists = [3]bool{true, true, false}
	return m
}

func (m *model) did(format string, args ...any) {
	m.history = append(m.history, m.now.Format("2006-01-02 15:04:05 ")+fmt.Sprintf(format, args...))
}

func (m *model) fail(format string, args ...any) {
	m.t.Helper()
	last := m.history[max(0, len(m.history)-40):]
	for _, line := range last {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

// read takes the state for a decision at the daemon's own time.
func (m *model) read(d *daemon) {
	d.state = State{Leaf: m.leaf, Journal: m.journal}
	d.version = m.version
	if m.journal != nil {
		copied := *m.journal
		copied.Former = slices.Clone(copied.Former)
		d.state.Journal = &copied
	}
}

func (m *model) lookAtBundles(d *daemon) {
	d.state.Looked = true
	d.state.Bundles, d.state.Found = nil, slices.Clone(m.damaged)
	for i, b := range m.bundles {
		if !m.exists[i] {
			continue
		}
		d.state.Bundles = append(d.state.Bundles, Bundle{fmt.Sprint(i), slices.Clone(b)})
		for _, id := range b {
			if ca, ok := m.known[id]; ok && !slices.ContainsFunc(d.state.Found, func(f CA) bool { return f.ID == id }) {
				ca.Key = false
				d.state.Found = append(d.state.Found, ca)
			}
		}
	}
	// A certificate whose issuer nobody knows cannot be judged.
	if !slices.Contains(d.state.Journal.ids(), d.state.Leaf.Issuer) && !slices.ContainsFunc(d.state.Found, func(f CA) bool { return f.ID == d.state.Leaf.Issuer }) {
		d.state.Leaf.Issuer = ""
	}
}

func (j *Journal) ids() []string {
	if j == nil {
		return nil
	}
	return j.Trust()
}

// turn makes the next step of a daemon's attempt, and reports whether that ended.
func (m *model) turn(name int) (ended bool) {
	d := &m.daemons[name]
	if d.step > 0 && m.now.Sub(d.begun) >= policy.Settle {
		m.did("%d's attempt ran out of time", name)
		*d = daemon{}
		return true
	}
	switch d.step {
	case 0:
		d.begun = m.now
		m.read(d)
		d.step = 1
	case 1:
		decision := Decide(d.state, d.begun, policy)
		if decision.Look {
			m.lookAtBundles(d)
			decision = Decide(d.state, d.begun, policy)
			if decision.Look {
				m.fail("%d looked at the bundles and is to look again", name)
			}
		}
		if d.state.Journal == nil || !decision.Journal.Equal(d.state.Journal) {
			m.compareAndSwap(name, d, decision.Journal)
			begun := d.begun
			m.read(d) // decides again, at the same time
			d.begun = begun
			return false
		}
		m.prepareWrites(name, d, decision)
		d.step = 2
	default:
		if len(d.pending) == 0 {
			*d = daemon{}
			return true
		}
		d.pending[0]()
		d.pending = d.pending[1:]
	}
	return false
}

func (m *model) compareAndSwap(name int, d *daemon, j Journal) {
	if d.version != m.version {
		m.did("%d's journal was overtaken", name)
		return
	}
	for _, ca := range []*CA{&j.Signer, &j.Next} {
		if ca.ID == unmade {
			m.minted++
			ca.ID = fmt.Sprintf("CA%d", m.minted)
		}
		if ca.ID != "" {
			m.known[ca.ID] = *ca
		}
	}
	m.last++
	m.version, m.journal, m.damaged = m.last, &j, nil
	m.writes++
	m.did("%d records signer %s, next %s, former %v, issued %s, spread %s", name, j.Signer.ID, j.Next.ID, j.Former, j.Issued.Format(time.DateTime), j.Spread.Format(time.DateTime))
}

// prepareWrites queues what apply writes, in its order: CRDs, the certificate, webhook
// configurations.
func (m *model) prepareWrites(name int, d *daemon, decision Decision) {
	trust := decision.Journal.Trust()
	leaf := d.state.Leaf
	if decision.Issue.By != "" {
		if _, ok := m.known[decision.Issue.By]; !ok {
			m.fail("%d signs with %s, which was never recorded", name, decision.Issue.By)
		}
		leaf = Leaf{decision.Issue.By, d.begun.Add(-Skew), decision.Issue.NotAfter}
	}
	bundle := func(i int) func() {
		return func() {
			if slices.Equal(m.bundles[i], trust) && m.exists[i] || i == 2 && !m.exists[i] {
				return
			}
			m.writes++
			m.exists[i], m.bundles[i] = true, slices.Clone(trust)
			m.did("%d puts %v into bundle %d", name, trust, i)
		}
	}
	d.pending = []func(){bundle(0), func() {
		if m.leaf == leaf {
			return
		}
		m.writes++
		m.mounted = append(m.mounted, mounted{m.leaf, m.now.Add(reload), m.covered})
		m.leaf = leaf
		m.did("%d writes a certificate by %s until %s", name, leaf.Issuer, leaf.NotAfter.Format(time.DateTime))
	}, bundle(1), bundle(2)}
}

// check compares the model with what must always hold.
func (m *model) check() {
	m.t.Helper()
	for i, b := range m.bundles {
		for _, id := range b {
			if _, ok := m.known[id]; !ok && id != "garbage" {
				m.fail("bundle %d trusts %s, which was never recorded", i, id)
			}
		}
	}
	covers := func(i int, l Leaf) bool {
		return m.exists[i] && slices.ContainsFunc(m.bundles[i], func(id string) bool {
			return id == l.Issuer && m.now.Before(m.known[id].NotAfter)
		})
	}
	serves := m.leaf.Issuer != "" && m.now.Before(m.leaf.NotAfter)
	some := covers(0, m.leaf) || covers(1, m.leaf) || covers(2, m.leaf)
	m.leafHurt = m.leafHurt || !serves || m.journalHurt && !some // nobody knows its CA
	if m.excused = m.excused || m.journalHurt && m.leafHurt; m.excused {
		m.covered, m.mounted = [3]bool{}, nil
	}
	if m.daemons[0].step == 0 && m.daemons[1].step == 0 && serves {
		m.leafHurt = false
		if m.journal != nil && m.journal.Signer.ID == m.leaf.Issuer {
			m.journalHurt = false
		}
		all := true
		for i := range m.bundles {
			all = all && (!m.exists[i] || covers(i, m.leaf))
		}
		m.excused = m.excused && (!all || m.journalHurt)
	}
	for i := range m.bundles {
		switch {
		case !serves:
			m.covered[i] = false
		case covers(i, m.leaf):
			m.covered[i] = true
		case m.covered[i]:
			m.fail("bundle %d, %v, does not cover the certificate by %s any more", i, m.bundles[i], m.leaf.Issuer)
		}
	}
	m.mounted = slices.DeleteFunc(m.mounted, func(o mounted) bool { return !m.now.Before(o.until) || !m.now.Before(o.leaf.NotAfter) })
	for _, o := range m.mounted {
		for i := range m.bundles {
			if o.by[i] && m.covered[i] && !covers(i, o.leaf) {
				m.fail("bundle %d, %v, does not cover the certificate by %s, which a pod still serves", i, m.bundles[i], o.leaf.Issuer)
			}
		}
	}
}

// act does what a byte says.
func (m *model) act(b byte) {
	arg := int(b >> 4)
	switch b & 15 {
	case 0, 1, 2, 3, 4:
		m.turn(0)
	case 5, 6, 7, 8:
		m.turn(1)
	case 9:
		m.did("%d is killed", arg%2)
		m.daemons[arg%2] = daemon{}
	case 10:
		m.now = m.now.Add(time.Duration(1+arg) * 3 * time.Second)
	case 11:
		m.now = m.now.Add(time.Duration(1+arg) * 24 * time.Hour)
	case 12:
		m.did("others break the certificate")
		m.leaf = Leaf{}
	case 13:
		switch {
		case arg >= 14 && m.backup != nil:
			m.did("others restore the journal")
			copied := *m.backup
			m.last++
			m.version, m.journal, m.damaged, m.journalHurt = m.last, &copied, nil, true
			// Nothing tells which CAs were trusted beside that of the present certificate: those of a
			// certificate that a pod still serves, or that is about to be written.
			m.mounted, m.daemons = nil, [2]daemon{}
			return
		case arg >= 12:
			m.backup = m.journal
			return
		}
		m.did("others break the journal (%d)", arg%2)
		m.damaged = nil
		if arg%2 == 1 && m.journal != nil {
			for _, f := range m.journal.Former {
				m.damaged = append(m.damaged, f.CA)
			}
			m.last++
			m.version = m.last
		} else {
			m.version = 0
		}
		m.journal = nil
		m.journalHurt = true
	case 14:
		i := arg % 3
		m.did("others break bundle %d", i)
		m.covered[i] = false
		m.bundles[i] = [][]string{nil, {"garbage"}}[arg%2]
		m.exists[i] = m.exists[i] && arg%4 > 0
		for k := range m.mounted {
			m.mounted[k].by[i] = false
		}
	case 15:
		m.exists[2] = !m.exists[2]
		m.bundles[2], m.covered[2] = nil, false
		for k := range m.mounted {
			m.mounted[k].by[2] = false
		}
		m.did("bundle 2 exists: %v", m.exists[2])
	}
}

// run makes whole attempts of the first daemon until one writes nothing.
func (m *model) converge() {
	m.t.Helper()
	m.daemons = [2]daemon{}
	for attempt := 0; ; attempt++ {
		before := m.writes
		for !m.turn(0) {
			m.check()
		}
		settled := m.journal != nil && m.journal.Next.ID == ""
		if m.writes == before && settled {
			break
		}
		if attempt == 12 {
			m.fail("still writing after %d attempts: %+v", attempt, m.journal)
		}
		if m.writes == before {
			m.now = m.now.Add(policy.Settle)
		}
		m.check()
	}
	for i := range m.bundles {
		if i < 2 && !m.covered[i] || m.exists[i] && !m.covered[i] {
			m.fail("bundle %d, %v, does not cover the certificate by %q", i, m.bundles[i], m.leaf.Issuer)
		}
	}
	if m.leaf.Issuer != m.journal.Signer.ID {
		m.fail("the certificate is by %s and the signer is %s", m.leaf.Issuer, m.journal.Signer.ID)
	}
}

func play(t testing.TB, data []byte) {
	m := newModel(t)
	for _, b := range data {
		m.act(b)
		m.check()
	}
	m.converge()
}

func FuzzRotation(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfb, 0xfb, 0xfb, 0xfb, 0xfb, 0, 5, 0, 5, 0, 5, 0, 5})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2000 {
			return
		}
		play(t, data)
	})
}

// The same with bytes that are mostly steps, so that CAs are replaced often.
func TestRotation(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 1))
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(r.UintN(256))
			if data[i]&15 > 11 && r.UintN(uint(seed%8)*8+1) > 0 {
				data[i] &= 0xf3 // seldom written by others
			}
		}
		play(t, data)
	}
}

// A year and a half without disturbance: each step in its order, and nothing written
// between steps.
func TestUndisturbed(t *testing.T) {
	t.Parallel()
	m := newModel(t)
	m.converge()
	first, signers := m.writes, []string{m.journal.Signer.ID}
	if m.converge(); m.writes != first {
		t.Errorf("%d writes at rest", m.writes-first)
	}
	for end := m.now.Add(548 * 24 * time.Hour); m.now.Before(end); m.now = m.now.Add(6 * time.Hour) {
		m.check()
		for !m.turn(0) {
			m.check()
		}
		if s := m.journal.Signer.ID; !slices.Contains(signers, s) {
			signers = append(signers, s)
		}
		if !m.now.Before(m.leaf.NotAfter) {
			t.Fatalf("at %s the certificate has expired", m.now)
		}
	}
	if len(signers) != 3 || len(m.journal.Former) > 1 {
		t.Errorf("signers %v, journal %+v", signers, m.journal)
	}
	if m.writes > first+60 {
		t.Errorf("%d writes", m.writes)
	}
}
