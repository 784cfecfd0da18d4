package devcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// shared holds the control planes of this test process.
var shared struct {
	mu    sync.Mutex
	p     *ControlPlanes
	dir   string
	names []string
	err   error
}

// dirPrefix starts the names of temporary directories; the process's ID follows.
const dirPrefix = "gitopsd-devcluster-"

// Start returns the control planes of this test process, which all its tests
// share, with the named clusters among them. The test fails if they do not start.
// The package's TestMain must call [Main], which stops them.
func Start(t testing.TB, names ...string) *ControlPlanes {
	t.Helper()
	ctx := context.Background() // they outlive the test
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.err != nil {
		t.Fatalf("control planes: %v", shared.err)
	}
	missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(shared.names, n) })
	if len(missing) == 0 {
		return shared.p
	}
	start := time.Now()
	if shared.p == nil {
		shared.p, shared.err = up(ctx, missing)
	} else {
		shared.err = shared.p.Add(ctx, missing...)
	}
	if shared.err != nil {
		t.Fatalf("control planes: %v", shared.err)
	}
	fmt.Fprintf(os.Stderr, "# control planes %s are up after %s\n", strings.Join(missing, ", "), time.Since(start).Round(100*time.Millisecond))
	shared.names = append(shared.names, missing...)
	return shared.p
}

func up(ctx context.Context, names []string) (*ControlPlanes, error) {
	removeAbandoned()
	// Binary may report something that explains a wait; an error has devcluster's
	// own output.
	binary, err := Binary(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	if shared.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", dirPrefix, os.Getpid())); err != nil {
		return nil, err
	}
	return Up(ctx, Config{Dir: shared.dir, Binary: binary, Frugal: true}, names...)
}

// removeAbandoned removes directories of test processes that were killed: their
// control planes ended with them.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			os.RemoveAll(dir)
		}
	}
}

// Main runs the tests of a package and stops the control planes, for
//
//	func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }
//
// If the process dies first, the control planes notice and end.
func Main(m *testing.M) int {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.p != nil {
		if err := shared.p.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
	return code
}
