package status

import (
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/sources"
)

// Unready returns the reasons why the fleet is not Ready, one a line; nil if it is. It is Ready
// if the newest commit that was read is in charge and has no problems, its lock could be
// committed, and every cluster that is not suspended is Ready with it. If clusters are named,
// only these count, even if they are suspended, and only their problems and those of the whole
// fleet.
func (s *Snapshot) Unready(only ...string) []string {
	asked := func(cluster string) bool { return len(only) == 0 || slices.Contains(only, cluster) }
	if s.Waiting != "" {
		return []string{"this daemon waits to become the leader: " + s.Waiting}
	}
	var why []string
	for _, text := range []string{s.LeaseError, s.PollError, s.LockError} {
		if text != "" {
			why = append(why, text)
		}
	}
	switch {
	case s.Commit == "":
		return append(why, "no commit was read yet")
	case s.Computing != "":
		why = append(why, "commit "+sources.ShortHash(s.Computing)+" is being computed")
	}
	if s.LockDue && s.LockError == "" {
		why = append(why, sources.LockFile+" is not committed yet")
	}
	for _, p := range s.Problems {
		if p.Concerns(only) {
			why = append(why, p.String())
		}
	}
	for i := range s.Clusters {
		if u := &s.Clusters[i]; asked(u.Name) {
			reason := u.unready(s.Commit)
			if u.Phase == Suspended && len(only) > 0 {
				reason = "the repository suspends it"
			}
			if reason != "" {
				why = append(why, "cluster "+u.Name+": "+reason)
			}
		}
	}
	for _, name := range only {
		if !slices.ContainsFunc(s.Clusters, func(u Unit) bool { return u.Name == name }) {
			why = append(why, "cluster "+name+": no such cluster is registered in commit "+sources.ShortHash(s.Commit))
		}
	}
	return why
}

// Stuck reports whether waiting will not make the fleet Ready: the newest commit is in charge,
// something is not Ready, and every problem of the commit and every cluster that is not Ready
// stays so until somebody changes the repository or an object. Or the newest commit is refused or
// not trusted, and stays so; the clusters do not count then. If clusters are named, only these
// count, as in Unready.
func (s *Snapshot) Stuck(only ...string) bool {
	if s.PollLasting && s.LeaseError == "" {
		return true
	}
	if s.Commit == "" || s.Computing != "" || s.LeaseError != "" || s.PollError != "" {
		return false
	}
	if s.Refused {
		return !slices.ContainsFunc(s.Problems, func(p problem.Shared) bool { return !p.Lasting })
	}
	if s.LockDue || s.LockError != "" {
		return false
	}
	asked := func(cluster string) bool { return len(only) == 0 || slices.Contains(only, cluster) }
	stuck := 0
	for _, p := range s.Problems {
		if !p.Concerns(only) {
			continue
		}
		if !p.Lasting {
			return false
		}
		stuck++
	}
	for i := range s.Clusters {
		u := &s.Clusters[i]
		if !asked(u.Name) || u.unready(s.Commit) == "" {
			continue
		}
		if !s.stuck(u) {
			return false
		}
		stuck++
	}
	return stuck > 0
}

// stuck reports whether a cluster stays as it is, or waits for another one that does. Those that
// wait for a Degraded one go on.
func (s *Snapshot) stuck(u *Unit) bool {
	if u.Phase == Degraded {
		return u.Stuck && u.Commit == s.Commit
	}
	for range s.Clusters { // a chain is no longer
		switch {
		case u.Commit != s.Commit:
			return false
		case u.Phase != Waiting:
			return u.Phase == Suspended || u.Phase == Failed && u.Stuck
		}
		i := slices.IndexFunc(s.Clusters, func(other Unit) bool { return other.Name == u.WaitsFor })
		if i < 0 {
			return false
		}
		u = &s.Clusters[i]
	}
	return false
}

// unready returns why a cluster is not Ready with a commit; empty if it is Ready or suspended.
func (u *Unit) unready(commit string) string {
	switch {
	case u.Phase == Suspended:
		return ""
	case u.Phase == Ready && u.Commit == commit:
		return ""
	case u.Phase == Ready:
		return fmt.Sprintf("it is Ready with commit %s, and commit %s is next", sources.ShortHash(u.Commit), sources.ShortHash(commit))
	case u.Message == "":
		return string(u.Phase)
	}
	return string(u.Phase) + ": " + u.Message
}
