package events

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
)

const (
	commit = "1111111111111111111111111111111111111111"
	newer  = "2222222222222222222222222222222222222222"
)

// A step is what happens, and what is told then.
type step struct {
	what   string
	change func(*status.Snapshot)
	want   []string
}

// play has steps happen a second apart.
func play(t *testing.T, steps []step) {
	t.Helper()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	known := teller{now: func() time.Time { return now }}
	var s status.Snapshot
	for _, step := range steps {
		step.change(&s)
		var have []string
		for _, e := range known.news(s) {
			kind := e.typ
			if kind == "" {
				kind = normal
			}
			have = append(have, fmt.Sprintf("%s %s %q %s", kind, e.reason, e.cluster, e.note))
		}
		if !slices.Equal(have, step.want) {
			t.Errorf("%s:\nhave %q\nwant %q", step.what, have, step.want)
		}
		if again := known.news(s); len(again) > 0 {
			t.Errorf("%s: told twice: %v", step.what, again)
		}
		now = now.Add(time.Second)
		if step.what == "a minute" {
			now = now.Add(time.Minute)
		}
	}
}

func set(phase status.Phase, message string) func(*status.Snapshot) {
	return func(s *status.Snapshot) { s.Clusters[0].Phase, s.Clusters[0].Message = phase, message }
}

func TestClusters(t *testing.T) {
	t.Parallel()
	registered := func(s *status.Snapshot) {
		s.Commit, s.Clusters = commit, []status.Unit{{Name: "prod", Phase: status.Pending, Commit: commit}}
	}
	changes := func(n uint64) func(*status.Snapshot) {
		return func(s *status.Snapshot) {
			s.Clusters[0].Phase, s.Clusters[0].Message = status.Ready, ""
			s.Clusters[0].Changes += n
		}
	}
	for name, steps := range map[string][]step{
		"a restart": {
			{"registered", registered, nil},
			{"at rest", set(status.Ready, ""), nil},
			{"drift is corrected", changes(1), []string{`Normal Ready "prod" cluster prod: Ready with commit 1111111111, 1 object changed`}},
			{"suspended", set(status.Suspended, "the repository suspends it"), []string{`Normal Suspended "prod" cluster prod: the repository suspends it`}},
		},
		"suspended at the start": {
			{"registered", registered, nil},
			{"suspended", set(status.Suspended, "the repository suspends it"), nil},
			{"resumed", set(status.Ready, ""), []string{`Normal Ready "prod" cluster prod: Ready with commit 1111111111`}},
		},
		"trouble": {
			{"registered", registered, nil},
			{"under way", set(status.Applying, ""), nil},
			{"fails", func(s *status.Snapshot) {
				set(status.Failed, "4 of 9 objects failed to apply")(s)
				for i := range 5 {
					s.Clusters[0].Problems = append(s.Clusters[0].Problems, problem.Problem{Cluster: "prod", Object: fmt.Sprintf("configmap/default/%d", i), Reason: "it is refused\nwith details"})
				}
			}, []string{"Warning Failed \"prod\" cluster prod: 4 of 9 objects failed to apply: configmap/default/0: it is refused\nconfigmap/default/1: it is refused\nconfigmap/default/2: it is refused\nand 2 problems more"}},
			{"tries again", set(status.Applying, ""), nil},
			{"fails in other words", func(s *status.Snapshot) {
				s.Clusters[0].Problems = nil
				set(status.Failed, "3 of 9 objects failed to apply")(s)
			}, nil},
			{"a minute", func(*status.Snapshot) {}, nil},
			{"still fails", func(*status.Snapshot) {}, []string{`Warning Failed "prod" cluster prod: 3 of 9 objects failed to apply`}},
			{"a newer commit fails too", func(s *status.Snapshot) { s.Commit, s.Clusters[0].Commit = newer, newer }, []string{`Warning Failed "prod" cluster prod: 3 of 9 objects failed to apply`}},
			{"does not answer", set(status.Unreachable, "it does not answer"), []string{`Warning Unreachable "prod" cluster prod: it does not answer`}},
			{"works", changes(12), []string{`Normal Ready "prod" cluster prod: Ready with commit 2222222222, 12 objects changed`}},
			{"leaves", set(status.Leaving, "it is being emptied"), []string{`Normal Leaving "prod" cluster prod: it is being emptied`}},
			{"is gone", func(s *status.Snapshot) { s.Clusters = nil }, nil},
			{"is registered again", func(s *status.Snapshot) { registered(s); set(status.Ready, "")(s) }, nil},
		},
	} {
		t.Run(name, func(t *testing.T) { play(t, steps) })
	}
}

func TestFleet(t *testing.T) {
	t.Parallel()
	play(t, []step{
		{"it waits to be the leader", func(s *status.Snapshot) { s.Waiting, s.PollError = "another one is", "x" }, nil},
		{"the repository fails", func(s *status.Snapshot) { s.Waiting, s.PollError = "", "dial tcp: refused" }, []string{`Warning RepositoryUnavailable "" dial tcp: refused`}},
		{"in another way", func(s *status.Snapshot) { s.PollError = "dial tcp: timeout" }, nil},
		{"it answers", func(s *status.Snapshot) { s.Commit, s.PollError = commit, "" }, []string{`Normal RepositoryAvailable "" the repository answers again`}},
		{"the newest commit is not signed", func(s *status.Snapshot) { s.PollError, s.PollLasting = "it is not signed", true }, []string{`Warning CommitNotTrusted "" it is not signed`}},
		{"the next one is", func(s *status.Snapshot) { s.PollError, s.PollLasting = "", false }, nil},
		{"a commit with errors", func(s *status.Snapshot) {
			s.Problems = []problem.Shared{{Problem: problem.Problem{Reason: "clusters.yaml:3: unknown key \"pth\""}}}
		}, []string{`Warning CommitHasErrors "" commit 1111111111: clusters.yaml:3: unknown key "pth"`}},
		{"they are mended", func(s *status.Snapshot) { s.Commit, s.Problems = newer, nil }, nil},
		{"the lock cannot be pushed", func(s *status.Snapshot) { s.LockError = "refused" }, []string{`Warning LockNotCommitted "" refused`}},
		{"it is", func(s *status.Snapshot) { s.LockCommit, s.LockError = newer, "" }, []string{`Normal LockCommitted "" clusters.lock is committed: 2222222222`}},
	})
}

// Clusters that change together share Events, so that a fleet does not fill the hub.
func TestMany(t *testing.T) {
	t.Parallel()
	known := teller{now: time.Now}
	var s status.Snapshot
	for i := range 1000 {
		s.Clusters = append(s.Clusters, status.Unit{Name: fmt.Sprintf("c%03d", i), Phase: status.Ready, Commit: commit, Changes: 1})
	}
	s.Clusters[0].Phase, s.Clusters[0].Message = status.Unreachable, "it does not answer"
	all := known.news(s)
	if len(all) != 2 || all[0].reason != "Unreachable" || all[0].typ != warning || all[1].reason != "Ready" || !strings.HasPrefix(all[1].note, "999 clusters: c001, c002, ") || !strings.HasSuffix(all[1].note, " and 979 more") {
		t.Errorf("%q", all)
	}
}
