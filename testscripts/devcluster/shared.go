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

// shared are the control planes of this test process.
var shared struct {
	mu    sync.Mutex
	p     *ControlPlanes
	dir   string
	names []string
	err   error
}

// dirPrefix starts the names of temporary directories; the process's ID follows.
const dirPrefix = "gitopsd-devcluster-"

// Start returns the control planes of this test process with the named clusters
// among them, which all tests of the process share. The test fails when they do
// not come up. The package's TestMain must call Main, which takes them down.
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
	// Binary may have something to say that explains a wait; what devcluster
	// says is in the error if there is one.
	binary, err := Binary(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	if shared.dir, err = os.MkdirTemp("", fmt.Sprintf("%s%d-", dirPrefix, os.Getpid())); err != nil {
		return nil, err
	}
	return Up(ctx, Config{Dir: shared.dir, Binary: binary}, names...)
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

// Main runs the tests of a package and takes the control planes down, for
//
//	func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }
//
// Should the process die before, the control planes notice and end.
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
