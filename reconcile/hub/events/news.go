package events

import (
	"slices"
	"strings"
	"time"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
)

// event is an Event without where and when.
type event struct {
	// cluster is the one that it is about; empty for several, or the whole fleet.
	cluster string
	typ     string // normal if empty
	reason  string
	note    string
}

// Types of Events.
const (
	normal  = "Normal"
	warning = "Warning"
)

// Reasons of Events about the whole fleet. Those about clusters are their phases.
const (
	repositoryFails = "RepositoryUnavailable"
	repositoryWorks = "RepositoryAvailable"
	commitFails     = "CommitHasErrors"
	commitRefused   = "CommitNotTrusted"
	lockFails       = "LockNotCommitted"
	lockCommitted   = "LockCommitted"
)

const (
	// seldom is the shortest time between two Events that say the same of one cluster, or of
	// the fleet, in other words.
	seldom = time.Minute
	// most is how many clusters have Events of their own at a time; others share one.
	most = 20
	// mostNames and mostProblems bound what one Event lists.
	mostNames    = 20
	mostProblems = 3
)

// teller knows what was told.
type teller struct {
	now      func() time.Time
	clusters map[string]*told
	// fleet is what was told of the fleet, by the reason for trouble.
	fleet map[string]*told
	lock  string // the last commit of the lock
}

// told is what was told last.
type told struct {
	phase   status.Phase // empty for nothing
	commit  string
	text    string
	at      time.Time
	changes uint64 // of those so far, how many were told
}

// news returns what is new in a snapshot. While the daemon is no leader, nothing is.
func (t *teller) news(s status.Snapshot) []event {
	if s.Waiting != "" {
		return nil
	}
	if t.clusters == nil {
		t.clusters, t.fleet = make(map[string]*told), make(map[string]*told)
	}
	var all []event
	away, refused := s.PollError, ""
	if s.PollLasting {
		away, refused = "", s.PollError
	}
	all = append(all, t.trouble(repositoryFails, away, repositoryWorks, "the repository answers again")...)
	all = append(all, t.trouble(commitRefused, refused, "", "")...)
	var problems []string
	for _, p := range s.Problems {
		problems = append(problems, p.String())
	}
	text := ""
	if len(problems) > 0 {
		text = "commit " + sources.ShortHash(s.Commit) + ": " + listed(problems)
	}
	all = append(all, t.trouble(commitFails, text, "", "")...)
	all = append(all, t.trouble(lockFails, s.LockError, "", "")...)
	if s.LockCommit != t.lock {
		t.lock = s.LockCommit
		all = append(all, event{reason: lockCommitted, note: sources.LockFile + " is committed: " + sources.ShortHash(s.LockCommit)})
	}
	var of []event
	there := make(map[string]bool, len(s.Clusters))
	for i := range s.Clusters {
		u := &s.Clusters[i]
		there[u.Name] = true
		if e, ok := t.cluster(u); ok {
			of = append(of, e)
		}
	}
	for name := range t.clusters {
		if !there[name] {
			delete(t.clusters, name)
		}
	}
	return append(all, gather(of)...)
}

// trouble tells that something of the fleet fails, and that it works again; text is why, or
// empty. Nothing is told of the latter without a reason for it.
func (t *teller) trouble(reason, text, over, overText string) []event {
	last := t.fleet[reason]
	switch {
	case text == "" && last == nil:
		return nil
	case text == "":
		delete(t.fleet, reason)
		if over == "" {
			return nil
		}
		return []event{{reason: over, note: overText}}
	case last != nil && (last.text == text || t.now().Sub(last.at) < seldom):
		return nil
	}
	t.fleet[reason] = &told{text: text, at: t.now()}
	return []event{{typ: warning, reason: reason, note: text}}
}

// cluster tells what is new of a cluster: that it is in trouble, that it is Ready with what
// was changed in it, or after trouble, and that it is suspended or leaves. Phases on the way
// are not told.
func (t *teller) cluster(u *status.Unit) (event, bool) {
	last := t.clusters[u.Name]
	if last == nil {
		last = new(told)
		t.clusters[u.Name] = last
	}
	text := u.Message
	switch u.Phase {
	case status.Failed, status.Degraded, status.Unreachable:
		var problems []string
		for _, p := range u.Problems {
			problems = append(problems, p.WithoutCluster().String())
		}
		if len(problems) > 0 {
			text += ": " + listed(problems)
		}
		same := last.phase == u.Phase && last.commit == u.Commit
		if same && (last.text == text || t.now().Sub(last.at) < seldom) {
			return event{}, false
		}
	case status.Ready:
		changed := int(u.Changes - last.changes)
		last.changes = u.Changes
		if changed == 0 && (last.phase == "" || last.phase == status.Ready) {
			last.phase = u.Phase
			return event{}, false
		}
		text = "Ready with commit " + sources.ShortHash(u.Commit)
		if changed > 0 {
			text += ", " + prose.Count(changed, "object") + " changed"
		}
	case status.Suspended, status.Leaving:
		if last.phase == u.Phase || last.phase == "" && u.Phase == status.Suspended {
			last.phase = u.Phase
			return event{}, false
		}
	default:
		return event{}, false
	}
	last.phase, last.commit, last.text, last.at = u.Phase, u.Commit, text, t.now()
	e := event{cluster: u.Name, reason: string(u.Phase), note: "cluster " + u.Name + ": " + text}
	if u.Phase != status.Ready && u.Phase != status.Suspended && u.Phase != status.Leaving {
		e.typ = warning
	}
	return e, true
}

// gather has clusters share Events if there are too many: one for each reason.
func gather(all []event) []event {
	if len(all) <= most {
		return all
	}
	var shared []event
	names := make(map[string][]string)
	for _, e := range all {
		if names[e.reason] == nil {
			shared = append(shared, event{typ: e.typ, reason: e.reason})
		}
		names[e.reason] = append(names[e.reason], e.cluster)
	}
	for i := range shared {
		of := names[shared[i].reason]
		shared[i].note = prose.Count(len(of), "cluster") + ": " + prose.Some(of, mostNames)
	}
	return shared
}

// listed returns the headlines of the first problems.
func listed(problems []string) string {
	var lines []string
	for _, p := range problems[:min(len(problems), mostProblems)] {
		headline, _, _ := strings.Cut(p, "\n")
		if !slices.Contains(lines, headline) {
			lines = append(lines, headline)
		}
	}
	if more := len(problems) - mostProblems; more > 0 {
		lines = append(lines, "and "+prose.Count(more, "problem")+" more")
	}
	return strings.Join(lines, "\n")
}
