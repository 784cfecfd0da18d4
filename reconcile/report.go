package reconcile

import (
	"context"
	"log/slog"
	"sync"

	"gitopsd.dev/reconcile/problem"
)

// report is a problem of a unit, or of the whole fleet if unit is empty.
type report struct {
	unit    string
	problem problem.Problem
	level   slog.Level
}

// reportKey is equal for reports that differ only in lines of files and in where packages are
// declared.
type reportKey struct{ unit, text string }

func (r report) key() reportKey { return reportKey{r.unit, r.problem.Key()} }

// reports collects problems until [Daemon.Once] knows whether it returns them. A nil reports
// collects nothing: problems are logged at once.
type reports struct {
	mu  sync.Mutex
	all []report
}

// take keeps a report, or logs it.
func (rs *reports) take(log *slog.Logger, r report) {
	if rs == nil {
		r.log(log)
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.all = append(rs.all, r)
}

// log logs the reports that are current and not returned.
func (rs *reports) log(log *slog.Logger, current, returned map[reportKey]bool) {
	if rs == nil {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.all {
		if key := r.key(); current[key] && !returned[key] {
			r.log(log)
		}
	}
}

func (r report) log(log *slog.Logger) {
	p := r.problem
	if r.unit != "" {
		log, p = log.With("cluster", r.unit), p.WithoutCluster()
	}
	var about []any
	for _, a := range [][2]string{{"cluster", p.Cluster}, {"package", p.Package}, {"object", p.Object}, {"reason", p.Reason}, {"origin", p.Origin}, {"advice", p.Advice}} {
		if a[1] != "" {
			about = append(about, a[0], a[1])
		}
	}
	message := "problem"
	if r.level == slog.LevelInfo {
		message = "not ready yet"
	}
	log.Log(context.Background(), r.level, message, about...)
}

// current returns the problems of the revision in charge and of the last attempts.
func (d *Daemon) current() map[reportKey]bool {
	keys := make(map[reportKey]bool)
	if d.now != nil {
		for _, p := range d.now.state.AllProblems() {
			keys[report{problem: p}.key()] = true
		}
	}
	for _, c := range d.cfg.Board.Snapshot().Clusters {
		for _, p := range c.Problems {
			keys[report{unit: c.Name, problem: p}.key()] = true
		}
	}
	return keys
}
