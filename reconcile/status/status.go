// Package status holds the state of the daemon and its fleet. The loop and the workers
// update a [Board]; readers get copies of its [Snapshot].
//
// http.go serves it over HTTP, to clients that access.go admits. metrics.go, durations.go,
// conversions.go and etcd.go are the metrics for Prometheus. ready.go decides whether the
// fleet is Ready.
package status

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
)

// Phase is the state of a cluster in one word.
type Phase string

// The phases of a cluster.
const (
	// Pending: no attempt was made yet.
	Pending Phase = "Pending"
	// Applying: an attempt is under way.
	Applying Phase = "Applying"
	// Ready: everything is applied and healthy.
	Ready Phase = "Ready"
	// Degraded: everything is applied that may be, and there are problems that need a
	// person, such as reported drift or a held prune. Clusters that depend on it go on.
	Degraded Phase = "Degraded"
	// Progressing: everything is applied, and something is not healthy yet.
	Progressing Phase = "Progressing"
	// Failed: objects or packages have errors, or a controller gave up on an applied
	// object.
	Failed Phase = "Failed"
	// Unreachable: the cluster did not answer.
	Unreachable Phase = "Unreachable"
	// Waiting: it waits for a cluster that it depends on, or for its turn.
	Waiting Phase = "Waiting"
	// Suspended: its declaration suspends it, and nothing is changed in it.
	Suspended Phase = "Suspended"
	// Leaving: it is being emptied, as its declaration asks.
	Leaving Phase = "Leaving"
)

// phases lists all phases, for metrics.
var phases = []Phase{Pending, Applying, Ready, Degraded, Progressing, Failed, Unreachable, Waiting, Suspended, Leaving}

// PackageState is a package in a cluster.
type PackageState struct {
	Name       string `json:"name"`
	Repository string `json:"repository"`
	Version    string `json:"version"`
	Digest     string `json:"digest"`
	// Running is the version that the cluster has; empty if unknown. It differs from Version
	// while that is being applied or is refused, and after a rollback of the controller. If
	// only the digests differ, it has the first digits of its digest.
	Running string `json:"running,omitempty"`
	// Revision is the name with the first digits of the digest.
	Revision string `json:"revision,omitempty"`
	// From is the repository that it is fetched from, if that is not Repository.
	From string `json:"from,omitempty"`
	// Verified is the signature that was verified, if one is required.
	Verified string `json:"verified,omitempty"`
	// Replaces is the package that it replaces by the fleet's rules, in words.
	Replaces string `json:"replaces,omitempty"`
	// State is Ready, or why it is not.
	State string `json:"state"`
}

// Certificate is a certificate in a cluster.
type Certificate struct {
	// Secret holds it, "namespace/name". For the daemon's own certificate it is the flag that
	// names its directory.
	Secret string `json:"secret"`
	// Use is Serving or Authority.
	Use     string    `json:"use"`
	Expires time.Time `json:"expires"`
	// Brought reports whether others must renew it.
	Brought bool `json:"brought,omitempty"`
}

// The values of Certificate.Use.
const (
	Serving   = "serving"
	Authority = "authority"
)

// Migration is a storage migration that is not done: objects of a CRD are stored again
// in its storage version.
type Migration struct {
	// Definition is the CRD's name.
	Definition string `json:"definition"`
	// State is one of the states below.
	State string `json:"state"`
	// Kubernetes reports whether the cluster's own migrator works on it. Then there are no
	// numbers.
	Kubernetes bool `json:"kubernetes,omitempty"`
	// Done of Objects were tried, and Failed of these were not stored again.
	Done    int `json:"done"`
	Objects int `json:"objects"`
	Failed  int `json:"failed,omitempty"`
	// Message is why the last attempt failed.
	Message string `json:"message,omitempty"`
	// Next is when a wait ends, or the next attempt is due.
	Next time.Time `json:"next,omitzero"`
}

// The values of Migration.State.
const (
	// MigrationWaiting: the CRD has just changed, and requests under way may still store in
	// the old version.
	MigrationWaiting = "Waiting"
	MigrationRunning = "Running"
	MigrationFailed  = "Failed"
)

// Unit is the state of one cluster.
type Unit struct {
	Name  string `json:"name"`
	Phase Phase  `json:"phase"`
	// Commit is the last one tried, Applied the last one applied completely.
	Commit  string `json:"commit,omitempty"`
	Applied string `json:"applied,omitempty"`
	// Message is one line on why the unit is not Ready.
	Message string `json:"message,omitempty"`
	// Stuck reports whether the unit stays as it is until somebody changes the repository or
	// an object: what is held or refused does not pass, or the repository's files are wrong.
	Stuck bool `json:"stuck,omitempty"`
	// WaitsFor is the cluster that a Waiting unit depends on and that is not Ready; empty if
	// it waits for something else.
	WaitsFor string `json:"waitsFor,omitempty"`
	// Objects is the number of the unit's desired objects.
	Objects int `json:"objects"`
	// Drifted is the number of objects that others changed and that stay as they are.
	Drifted int `json:"drifted,omitempty"`
	// Actions of the last attempt by name ("create", "configure", …).
	Actions map[string]int `json:"actions,omitempty"`
	// Changes counts the objects that this process wrote or deleted in the cluster.
	Changes uint64 `json:"-"`
	// Problems are the objects with errors and their reasons, at most 50. Those of objects that
	// are not in the repository are others': see [problem.Problem].
	Problems []problem.Problem `json:"problems,omitempty"`
	// Notes are worth reading, but not problems.
	Notes    []string       `json:"notes,omitempty"`
	Packages []PackageState `json:"packages,omitempty"`
	// Certificates are those that gitopsd keeps for Services, and those that others brought.
	Certificates []Certificate `json:"certificates,omitempty"`
	// Migrations are the storage migrations that are not done.
	Migrations []Migration `json:"migrations,omitempty"`
	// Tried is when the last attempt ended, Succeeded when one last succeeded. Seconds is
	// how long the last attempt took.
	Tried     time.Time `json:"tried,omitzero"`
	Succeeded time.Time `json:"succeeded,omitzero"`
	Seconds   float64   `json:"seconds,omitempty"`
	// Failures counts failures in a row, and NextTry is when the next attempt is due after
	// them.
	Failures int       `json:"failures,omitempty"`
	NextTry  time.Time `json:"nextTry,omitzero"`
}

// own returns the problems that keep the unit from being Ready.
func (u *Unit) own() []problem.Problem {
	return slices.DeleteFunc(slices.Clone(u.Problems), func(p problem.Problem) bool { return p.Outside })
}

// Snapshot is the state of the daemon and its fleet.
type Snapshot struct {
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	// Time is when the snapshot was taken, by the daemon's clock.
	Time       time.Time `json:"time"`
	Repository string    `json:"repository"`
	Branch     string    `json:"branch"`
	// Commit is the current commit, Subject its subject.
	Commit  string `json:"commit,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Computing is a newer commit that clusters do not follow yet.
	Computing string `json:"computing,omitempty"`
	// Head is the newest commit of the branch: Commit, the commit of its lock, or Computing.
	Head string `json:"head,omitempty"`
	// LockCommit is the last commit of the lock that this process made. The one that it
	// belongs to stays in charge. LockError is why the lock, or its pending lines, cannot be
	// read or committed. LockDue reports whether it is to be committed.
	LockCommit string `json:"lockCommit,omitempty"`
	LockDue    bool   `json:"lockDue,omitempty"`
	LockError  string `json:"lockError,omitempty"`
	// Polled is when the last successful poll began. PollError is why the last poll failed, and
	// PollFailed when that began. PollLasting reports whether it stays so until somebody
	// pushes a commit, or changes the trusted keys.
	Polled      time.Time `json:"polled,omitzero"`
	PollError   string    `json:"pollError,omitempty"`
	PollFailed  time.Time `json:"pollFailed,omitzero"`
	PollLasting bool      `json:"pollLasting,omitempty"`
	// Lease is the Lease by which one of several daemons is the leader, "namespace/name"; empty
	// if there is just one. Waiting is why this one is not, and works on nothing. LeaseError is
	// why the leader may not write.
	Lease      string `json:"lease,omitempty"`
	Waiting    string `json:"waiting,omitempty"`
	LeaseError string `json:"leaseError,omitempty"`
	// Turned is when the loop last ran.
	Turned time.Time `json:"turned,omitzero"`
	// Refused reports whether the commit cannot be used at all. The clusters stay at the one
	// before.
	Refused bool `json:"refused,omitempty"`
	// Problems of the commit itself: the registry, the lock, packages. One that clusters share
	// is listed once.
	Problems []problem.Shared `json:"problems,omitempty"`
	Clusters []Unit           `json:"clusters"`
}

// Board holds the snapshot. It is safe for concurrent use.
type Board struct {
	// Election is this daemon's part in choosing one of several; nil if there is just one. Set
	// it before Handler is called.
	Election Election
	// Conversions returns the counts of conversions by this process; nil if it makes none.
	// Set it before Handler is called.
	Conversions func() []Conversions
	// EtcdNamespaces returns the counts of the etcd namespaces that this process serves; nil
	// if it serves none. Set it before Handler is called.
	EtcdNamespaces func() []EtcdNamespace
	// Page shows a snapshot to people; nil if nothing does. Set it before Handler is called.
	Page func(http.ResponseWriter, *http.Request, Snapshot)

	mu       sync.Mutex
	spaces   func(cluster string) []problem.Problem
	snapshot Snapshot
	clusters map[string]*Unit
	// known are the names that Know added since the last commit.
	known []string
	// homes are problems reported by the controllers of homes, by cluster.
	homes    map[string][]problem.Problem
	counters counters
	// changed is closed with the next change.
	changed chan struct{}
}

// Election is a daemon's part in choosing the one that works.
type Election interface {
	// String names the Lease, "namespace/name".
	String() string
	// Waiting returns why this daemon waits; empty if it works. ok reports whether it could
	// take over.
	Waiting() (why string, ok bool)
	// Problem returns why the daemon that works may not write; empty if it may.
	Problem() string
}

// counters only grow; metrics read them.
type counters struct {
	passes, lockCommits, lockErrors, pollErrors uint64
	attempts                                    map[[2]string]uint64 // cluster, outcome
	actions                                     map[[2]string]uint64 // cluster, action
	corrected, changes                          map[string]uint64    // cluster
	attempt, compute                            durations
}

// NewBoard makes a board for a daemon that starts now.
func NewBoard(version, repository, branch string) *Board {
	now := time.Now()
	return &Board{
		snapshot: Snapshot{Version: version, Repository: repository, Branch: branch, Started: now, Turned: now},
		clusters: make(map[string]*Unit), homes: make(map[string][]problem.Problem),
		counters: counters{attempts: make(map[[2]string]uint64), actions: make(map[[2]string]uint64), corrected: make(map[string]uint64), changes: make(map[string]uint64)},
		changed:  make(chan struct{}),
	}
}

// change locks the board until the returned function is called. That also closes the channel
// of Changed.
func (b *Board) change() (end func()) {
	b.mu.Lock()
	return func() {
		close(b.changed)
		b.changed = make(chan struct{})
		b.mu.Unlock()
	}
}

// Changed returns a channel that is closed with the next change.
func (b *Board) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

// Turn records a turn of the loop.
func (b *Board) Turn() {
	defer b.change()()
	b.snapshot.Turned = time.Now()
	b.counters.passes++
}

// Spaces has snapshots add the problems of clusters' own etcd namespaces, by cluster, to those of
// the cluster.
func (b *Board) Spaces(problems func(cluster string) []problem.Problem) {
	defer b.change()()
	b.spaces = problems
}

// Lead records that this daemon became the leader.
func (b *Board) Lead() {
	defer b.change()()
	b.snapshot.Turned = time.Now()
}

// Polled records the result of a poll of the repository, and when it began. lasting reports
// whether an error stays until somebody changes something.
func (b *Board) Polled(began time.Time, err error, lasting bool) {
	defer b.change()()
	if err != nil {
		b.snapshot.PollError, b.snapshot.PollFailed, b.snapshot.PollLasting = err.Error(), began, lasting
		b.counters.pollErrors++
		return
	}
	b.snapshot.Polled, b.snapshot.PollError, b.snapshot.PollFailed, b.snapshot.PollLasting = began, "", time.Time{}, false
}

// Computing records that the repository has a newer commit, until Commit is called with that.
func (b *Board) Computing(hash string) {
	defer b.change()()
	b.snapshot.Computing, b.snapshot.Head = hash, hash
}

// Computed counts the computation of a commit, failed or not.
func (b *Board) Computed(took time.Duration) {
	defer b.change()()
	b.counters.compute.observe(took)
}

// Commit records the current commit, its problems and its clusters. Other clusters are
// removed.
func (b *Board) Commit(hash, subject string, problems []problem.Problem, clusters []string) {
	defer b.change()()
	b.commit(hash, subject, problems)
	b.snapshot.Refused = false
	b.known = nil
	maps.DeleteFunc(b.clusters, func(name string, _ *Unit) bool { return !slices.Contains(clusters, name) })
	for _, name := range clusters {
		if b.clusters[name] == nil {
			b.clusters[name] = &Unit{Name: name, Phase: Pending}
		}
	}
	b.forget()
}

// forget removes the counters of clusters that are gone.
func (b *Board) forget() {
	gone := func(key [2]string, _ uint64) bool { return b.clusters[key[0]] == nil }
	maps.DeleteFunc(b.counters.attempts, gone)
	maps.DeleteFunc(b.counters.actions, gone)
	for _, counts := range []map[string]uint64{b.counters.corrected, b.counters.changes} {
		maps.DeleteFunc(counts, func(name string, _ uint64) bool { return b.clusters[name] == nil })
	}
}

// Refuse records a commit that cannot be used, and why.
func (b *Board) Refuse(hash, subject string, problems []problem.Problem) {
	defer b.change()()
	b.commit(hash, subject, problems)
	b.snapshot.Refused = true
}

func (b *Board) commit(hash, subject string, problems []problem.Problem) {
	b.snapshot.Commit, b.snapshot.Subject, b.snapshot.Problems = hash, subject, problem.Gather(problems)
	if b.snapshot.Computing == hash {
		b.snapshot.Computing = ""
	}
}

// Know adds clusters beside those of the commit, for example of an earlier process before a
// commit is known. They replace those that it added before.
func (b *Board) Know(clusters []string) {
	defer b.change()()
	for _, name := range b.known {
		if !slices.Contains(clusters, name) {
			delete(b.clusters, name)
		}
	}
	b.known = clusters
	for _, name := range clusters {
		if b.clusters[name] == nil {
			b.clusters[name] = &Unit{Name: name, Phase: Pending}
		}
	}
	b.forget()
}

// LockCommitted records a commit of the lock.
func (b *Board) LockCommitted(hash string) {
	defer b.change()()
	b.snapshot.LockCommit, b.snapshot.Head = hash, hash
	b.counters.lockCommits++
}

// Lock records whether the lock is to be committed, and why that, or reading its pending
// lines, failed. An error stays until nothing is due.
func (b *Board) Lock(due bool, err error) {
	defer b.change()()
	b.snapshot.LockDue = due
	switch {
	case err != nil:
		b.snapshot.LockError = err.Error()
		b.counters.lockErrors++
	case !due:
		b.snapshot.LockError = ""
	}
}

// Update changes the state of a cluster, if it is registered.
func (b *Board) Update(name string, change func(*Unit)) {
	defer b.change()()
	if c := b.clusters[name]; c != nil {
		change(c)
	}
}

// Home records the problems that the controllers of a home report; nil for none. Snapshots add
// them to those of the cluster, which is not Ready there unless all are Outside. State ignores
// them.
func (b *Board) Home(name string, problems []problem.Problem) {
	defer b.change()()
	if len(problems) == 0 {
		delete(b.homes, name)
		return
	}
	b.homes[name] = problems
}

// State returns the phase of a cluster, and why it is not Ready. An unknown cluster is
// Pending.
func (b *Board) State(name string) (phase Phase, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.clusters[name]; c != nil {
		return c.Phase, c.Message
	}
	return Pending, ""
}

// Attempt is an attempt at a cluster, for metrics.
type Attempt struct {
	Outcome Phase
	// Actions are the steps of its plan, by action.
	Actions map[string]int
	// Changed is the number of objects that were written or deleted.
	Changed int
	// Corrected is the number of objects whose drift was corrected.
	Corrected int
	// Took is how long it took; 0 if nothing was tried.
	Took time.Duration
}

// Attempted counts an attempt. One at a cluster that is gone by now has no counters.
func (b *Board) Attempted(name string, a Attempt) {
	defer b.change()()
	if a.Took > 0 {
		b.counters.attempt.observe(a.Took)
	}
	if b.clusters[name] == nil {
		return
	}
	b.counters.attempts[[2]string{name, string(a.Outcome)}]++
	for action, n := range a.Actions {
		b.counters.actions[[2]string{name, action}] += uint64(n)
	}
	b.counters.corrected[name] += uint64(a.Corrected)
	b.counters.changes[name] += uint64(a.Changed)
}

// Snapshot returns a copy of the state, clusters sorted by name.
func (b *Board) Snapshot() Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.snapshot
	s.Time = time.Now()
	if b.Election != nil {
		s.Lease, s.LeaseError = b.Election.String(), b.Election.Problem()
		s.Waiting, _ = b.Election.Waiting()
	}
	s.Problems = slices.Clone(s.Problems)
	s.Clusters = make([]Unit, 0, len(b.clusters))
	for _, c := range b.clusters {
		cp := *c
		cp.Changes = b.counters.changes[c.Name]
		cp.Actions, cp.Problems, cp.Packages = maps.Clone(c.Actions), slices.Concat(c.Problems, b.homes[c.Name]), slices.Clone(c.Packages)
		cp.Certificates, cp.Migrations = slices.Clone(c.Certificates), slices.Clone(c.Migrations)
		if b.spaces != nil {
			cp.Problems = append(cp.Problems, b.spaces(c.Name)...)
		}
		if n := len(cp.own()); cp.Phase == Ready && n > 0 {
			cp.Phase, cp.Message = Degraded, "everything is applied that may be; "+prose.Agree(n, "problem is left", "problems are left")
		}
		s.Clusters = append(s.Clusters, cp)
	}
	slices.SortFunc(s.Clusters, func(a, b Unit) int { return strings.Compare(a.Name, b.Name) })
	return s
}
