// Package glance shows the status of a daemon and its fleet on a terminal: a summary
// (glance.go), a table of the clusters (table.go), and below it the problems, each once for
// all clusters in which they are the same (details.go).
//
// reconcile/status has the state, and decides whether a cluster is Ready.
package glance

import (
	"fmt"
	"io"
	"time"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/sources"
)

// stall is how long the daemon's loop may stand still before the text says so.
const stall = 10 * time.Minute

// mostOfFleet is how many problems of the whole fleet are shown, unless all are asked for.
const mostOfFleet = 10

// WriteText writes a snapshot. It returns errors of w.
func WriteText(w io.Writer, s *status.Snapshot, o show.Options) error {
	t := show.NewText(w, o)
	writeFleet(t, s)
	writeTable(t, s.Clusters)
	writeDetails(t, s.Clusters)
	return t.Flush()
}

// writeFleet writes the state and the problems of the whole fleet.
func writeFleet(t *show.Text, s *status.Snapshot) {
	t.Say(show.Plain, s.Repository+", branch "+s.Branch)
	if s.Commit != "" {
		line := "commit " + sources.ShortHash(s.Commit) + " " + s.Subject
		if s.LockCommit != "" && s.LockCommit == s.Head {
			line += ", lock committed as " + sources.ShortHash(s.LockCommit)
		}
		t.Say(show.Plain, line)
	}
	if s.Waiting != "" {
		t.Say(show.Yellow, "this daemon waits to become the leader, and knows nothing of the fleet: "+s.Waiting)
		return
	}
	verdict, colour := verdict(s)
	t.Say(colour, verdict)
	if s.Computing != "" {
		t.Say(show.Yellow, "commit "+sources.ShortHash(s.Computing)+" is being computed; clusters follow it after that")
	}
	if s.LeaseError != "" {
		t.Indented("! ", show.Red, "nothing is written: "+s.LeaseError)
	}
	if s.PollError != "" {
		since := "yet"
		if !s.Polled.IsZero() {
			since = "since " + at(s.Polled)
		}
		t.Indented("", show.Red, "no poll of the repository has succeeded "+since+": "+s.PollError)
	}
	if s.LockError != "" {
		t.Indented("! ", show.Red, s.LockError)
	}
	if stood := s.Time.Sub(s.Turned); stood > stall && !s.Turned.IsZero() {
		t.Say(show.Red, "the daemon's loop has stood still since "+at(s.Turned)+"; its log may say why")
	}
	shown, folded := t.Fold(len(s.Problems), mostOfFleet)
	for _, p := range s.Problems[:shown] {
		t.Indented("! ", show.Red, p.String())
	}
	if folded > 0 {
		t.Line("… and %s (--all)", prose.Count(folded, "more problem"))
	}
}

// verdict summarizes in one line how much of the fleet is Ready.
func verdict(s *status.Snapshot) (string, show.Colour) {
	ready, suspended, fine := 0, 0, show.Green
	for _, u := range s.Clusters {
		switch {
		case u.Phase == status.Suspended:
			if suspended++; len(u.Problems) > 0 {
				fine = show.Yellow
			}
		case u.Phase == status.Ready && u.Commit == s.Commit:
			ready++
		}
	}
	rest := ""
	if suspended > 0 {
		rest = ", " + prose.Agree(suspended, "is suspended", "are suspended")
	}
	of := len(s.Clusters) - suspended
	switch {
	case s.Commit == "":
		return "no commit was read yet", show.Yellow
	case len(s.Clusters) == 0:
		return "no cluster is registered", show.Yellow
	case ready < of:
		return fmt.Sprintf("%d of %s Ready%s", ready, prose.Agree(of, "cluster is", "clusters are"), rest), show.Yellow
	}
	return prose.Agree(ready, "cluster is Ready", "clusters are Ready") + rest, fine
}

// colourOf returns the colour of a phase.
func colourOf(p status.Phase) show.Colour {
	switch p {
	case status.Ready:
		return show.Green
	case status.Failed, status.Unreachable:
		return show.Red
	case status.Suspended:
		return show.Plain
	}
	return show.Yellow
}

// at formats a time.
func at(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") }
