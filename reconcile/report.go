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
}

// reportKey is the same for reports that say the same, be it of other lines or places.
type reportKey struct{ unit, text string }

func (r report) key() reportKey { return reportKey{r.unit, r.problem.Key()} }

// reports are problems that [Daemon.Once] may return, and logs at its end if it does not. Nil
// takes none, and they are logged at once.
type reports struct {
	mu  sync.Mutex
	all []report
	// levels are those of all.
	levels []slog.Level
}

// take takes a report, or logs it.
func (rs *reports) take(log *slog.Logger, level slog.Level, r report) {
	if rs == nil {
		r.log(log, level)
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.all, rs.levels = append(rs.all, r), append(rs.levels, level)
}

// log logs all but those that are returned.
func (rs *reports) log(log *slog.Logger, returned map[reportKey]bool) {
	if rs == nil {
		return
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i, r := range rs.all {
		if !returned[r.key()] {
			r.log(log, rs.levels[i])
		}
	}
}

func (r report) log(log *slog.Logger, level slog.Level) {
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
	if level == slog.LevelInfo {
		message = "not ready yet"
	}
	log.Log(context.Background(), level, message, about...)
}
