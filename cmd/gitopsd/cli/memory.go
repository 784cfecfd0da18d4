package cli

import (
	"os"
	"runtime/debug"
)

// collectAt is the percentage by which the heap grows from one collection of
// garbage to the next. Go's own is 100. What gitopsd makes is either short-lived
// (a parser's nodes, bodies of requests) or small, since equal parts of packages
// are in memory once: with 200 a package of 900 CRDs is rendered with a tenth
// less of CPU time, and 25 MB more at the peak.
const collectAt = 200

// TuneGC is for main, at the start: it is the whole process's. Who sets GOGC
// means it, and a memory limit (GOMEMLIMIT) holds as it does for every Go program.
func TuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}
