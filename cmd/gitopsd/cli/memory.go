package cli

import (
	"os"
	"runtime/debug"
)

// collectAt is the percentage by which the heap grows from one garbage collection to the
// next (GOGC). Go's default is 100. gitopsd's garbage is mostly short-lived (parser nodes,
// request bodies). With 200, rendering a package of 900 CRDs takes a tenth less CPU time, and
// 25 MB more at the peak.
const collectAt = 200

// TuneGC sets the garbage collector of the process, unless GOGC is set. A memory limit
// (GOMEMLIMIT) holds as in every Go program.
func TuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
}
