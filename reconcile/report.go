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

// reported are problems that are logged when [Daemon.Once] ends, unless it returns them. Nil
// has none.
type reported struct {
	mu  sync.Mutex
	all []report
	// levels are those of all.
	levels []slog.Level
}

// logProblem logs a problem, at once or when Once ends.
func (ws *workers) logProblem(level slog.Level, unit string, p problem.Problem) {
	r := report{unit, p}
	if ws.reported == nil {
		r.log(ws.cfg.Log, level)
		return
	}
	ws.reported.mu.Lock()
	defer ws.reported.mu.Unlock()
	ws.reported.all, ws.reported.levels = append(ws.reported.all, r), append(ws.reported.levels, level)
}

// log logs all problems but those that are returned.
func (r *reported) log(log *slog.Logger, returned map[report]bool) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.all {
		if !returned[p] {
			p.log(log, r.levels[i])
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
