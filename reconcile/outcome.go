package reconcile

import (
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
)

// version is a version of a package, with its digest.
type version struct{ name, digest string }

// longestRetry is the longest pause until the units get their jobs again, however rare the polls
// are: somebody who has pushes told may poll once in an hour.
const longestRetry = time.Minute

// retryPause returns the pause after failures in a row, up to ten intervals, with jitter.
func retryPause(interval time.Duration, failures int) time.Duration {
	interval = min(interval, longestRetry)
	pause := min(interval<<min(failures-1, 10), 10*interval)
	return pause*9/10 + rand.N(pause/5+1)
}

// report notes the outcome of an attempt, and when the next one is due.
func (ws *workers) report(w *worker, j *job, o unit.Outcome) {
	now := time.Now()
	switch o.Phase {
	case status.Unreachable:
		// Up to ten intervals: a cluster that is down for long costs little, and
		// one that comes back is noticed soon.
		w.failures++
		w.nextTry = now.Add(retryPause(ws.cfg.Interval, w.failures))
	default:
		w.failures, w.nextTry = 0, time.Time{}
	}
	took := w.took
	w.took = 0
	if o.Actions != nil { // without a plan they are unknown, and expire all the same
		w.certificates = o.Certificates
	}
	commit := j.of.state.Commit.Hash // not the lock's commit on top of it
	var before status.Unit
	ws.cfg.Board.Update(w.id.String(), func(c *status.Unit) {
		before = *c
		c.Phase, c.Message, c.Actions, c.Problems, c.Stuck, c.WaitsFor = o.Phase, o.Message, o.Actions, o.Problems, o.Stuck, o.WaitsFor
		c.Commit, c.Tried, c.Failures, c.NextTry = commit, now, w.failures, w.nextTry
		if o.Phase == status.Ready {
			c.Applied, c.Succeeded = commit, now
		}
		if took > 0 {
			c.Seconds = took.Seconds()
		}
		if j.want.Objects != nil {
			c.Objects = j.want.Objects.Len()
		}
		if c.Certificates = w.certificates; o.Actions != nil {
			c.Drifted = o.Drifted
		}
		c.Packages, c.Notes = packages(j.want, o, w.running), slices.Concat(j.want.Waiting, j.want.Notes, o.Notes)
		if at := j.at(); at != nil {
			c.Objects, c.Packages = at.Objects, resumed(at.Packages, o.Phase)
		}
	})
	ws.cfg.Board.Attempted(w.id.String(), status.Attempt{Outcome: o.Phase, Actions: o.Actions, Changed: o.Changed, Corrected: o.Corrected, Took: took})
	ws.keep(w, j, o)
	ws.log(w, j, o, before)
}

// log logs an outcome if it is new, and each new problem.
func (ws *workers) log(w *worker, j *job, o unit.Outcome, before status.Unit) {
	log := ws.cfg.Log.With("cluster", w.id.String())
	phase := o.Phase
	if phase == status.Ready && len(o.Problems) > 0 {
		phase = status.Degraded // as the board shows it
	}
	outcome := log.With("commit", sources.ShortHash(j.of.commit.Hash), "phase", phase, "changed", o.Changed)
	if len(o.Problems) > 0 {
		outcome = outcome.With("problems", len(o.Problems))
	}
	level := slog.LevelInfo
	switch {
	case o.Phase == before.Phase && problem.Same(o.Message, before.Message) && o.Changed == 0 && problem.Unchanged(o.Problems, before.Problems):
		outcome.Debug("nothing to do")
		return
	case o.Phase == status.Failed || o.Phase == status.Unreachable:
		level = slog.LevelError
		outcome.Error(o.Message)
	case o.Phase == status.Suspended && len(o.Problems) > 0:
		level = slog.LevelWarn
		outcome.Warn(o.Message)
	case phase == status.Degraded:
		level = slog.LevelWarn
		outcome.Warn("applied, but for what has a problem")
	default:
		outcome.Info(summary(j, o))
	}
	for _, p := range problem.News(o.Problems, before.Problems, problem.Problem.String) {
		if r := (report{w.id.String(), p, level}); slices.Contains(fine, o.Phase) {
			r.log(ws.cfg.Log)
		} else {
			ws.reports.take(ws.cfg.Log, r)
		}
	}
}

// know notes which versions of packages the unit has after an attempt with a job; nil if
// the gate let none through.
func (w *worker) know(j *job, o unit.Outcome) {
	if j == nil || o.Moved {
		return
	}
	switch at := j.at(); {
	case at != nil:
		w.running = make(map[string]version)
		for _, p := range at.Packages { // a unit at rest has what it should
			w.running[p.Name] = version{p.Version, p.Digest}
		}
	case o.Actions != nil: // otherwise there was no plan
		known := w.running
		w.running = make(map[string]version)
		for _, name := range j.want.Incomplete {
			if v, ok := known[name]; ok {
				w.running[name] = v
			}
		}
		for _, p := range j.want.Packages {
			name := p.Declaration.Name
			if v, ok := known[name]; o.Behind[name] || slices.Contains(j.want.Incomplete, name) {
				if ok {
					w.running[name] = v
				}
				continue
			}
			w.running[name] = version{p.Pin.Ref.Version(), string(p.Pin.Digest)}
		}
	}
}

func summary(j *job, o unit.Outcome) string {
	switch {
	case o.Message != "":
		return o.Message
	case j.at() != nil:
		return "at rest, as it was left"
	}
	return "applied"
}

// running returns the version of a package that a unit has, for the status; empty if
// unknown.
func running(known map[string]version, name, wanted, digest string) string {
	v, ok := known[name]
	switch {
	case !ok:
		return ""
	case v.name == wanted && v.digest != digest:
		return v.name + "@sha256:" + sources.Digest(v.digest).Short()
	}
	return v.name
}

// packages returns a cluster's packages with their states, and the versions that it has.
func packages(want *desired.Unit, o unit.Outcome, known map[string]version) []status.PackageState {
	var list []status.PackageState
	for _, p := range want.Packages {
		state := "Ready"
		switch {
		case o.Packages[p.Declaration.Name] != "":
			state = o.Packages[p.Declaration.Name]
		case slices.Contains(want.Incomplete, p.Declaration.Name):
			state = "Failed"
		case o.Phase == status.Unreachable || o.Phase == status.Waiting || o.Phase == status.Suspended:
			state = string(o.Phase)
		}
		listed := status.PackageState{Name: p.Declaration.Name, Repository: p.Pin.Ref.Repository,
			Version: p.Pin.Ref.Version(), Digest: string(p.Pin.Digest), Revision: p.Revision(), Verified: p.Verified, Replaces: p.Replacement(), State: state}
		listed.Running = running(known, listed.Name, listed.Version, listed.Digest)
		if p.Origin.RewrittenBy != "" {
			listed.From = p.Origin.String()
		}
		list = append(list, listed)
	}
	for _, name := range want.Incomplete {
		if !slices.ContainsFunc(list, func(p status.PackageState) bool { return p.Name == name }) {
			list = append(list, status.PackageState{Name: name, Running: known[name].name, State: "Failed"})
		}
	}
	return list
}

// resumed returns the packages of a checkpoint with their states in a phase.
func resumed(left []status.PackageState, now status.Phase) []status.PackageState {
	list := slices.Clone(left)
	for i := range list {
		if now != status.Ready {
			list[i].State = string(now)
		}
	}
	return list
}
