package testscripts

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gitopsd.dev/testscripts/gitserver"
	"gitopsd.dev/testscripts/sigstore"
)

var update = flag.Bool("update", false, "rewrite the expected files in scripts where cmp finds a difference")

// TestScripts runs every scenario.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, ".")
}

// TestHarness runs the script that tests the commands of scenarios.
func TestHarness(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata")
}

func runScripts(t *testing.T, dir string) {
	ctx, cancel := testContext(t)
	t.Cleanup(cancel)
	testscript.Run(t, testscript.Params{
		Dir:                dir,
		Cmds:               scriptCommands(ctx),
		UpdateScripts:      *update,
		RequireUniqueNames: true,
		Setup:              setup,
	})
}

// testContext returns a context that ends a little before the test deadline, so that
// tests can stop what they have started.
func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	deadline, ok := t.Deadline()
	if !ok {
		return context.WithCancel(context.Background())
	}
	return context.WithDeadline(context.Background(), deadline.Add(-30*time.Second))
}

// scenarioKey is the key of the scenario in a script's values.
type scenarioKey struct{}

// scenario is the state of a script. A script runs in one goroutine.
type scenario struct {
	work     string // $WORK
	clusters map[string]*leased
	git      *gitserver.Server
	repo     *gitserver.Repo
	bases    *gitserver.Server // serves the second repository
	clone    string            // the fleet's directory
	user     string            // the user name at the Git server
	registry *scriptRegistry
	keys     map[string]*sigstore.Signer // by the script's names for them
	sigstore *sigstore.Instance
	running  map[string]*process
	cas      []byte // CAs of the script's servers, PEM
}

// setup prepares a script's environment. Scripts inherit nothing from the machine or the
// user. Variables set the flags of gitopsd that all scripts share.
func setup(env *testscript.Env) error {
	s := &scenario{work: env.WorkDir, clusters: make(map[string]*leased), running: make(map[string]*process)}
	env.Values[scenarioKey{}] = s
	home := filepath.Join(env.WorkDir, ".home")
	kubeconfigs := filepath.Join(env.WorkDir, "kubeconfigs")
	for _, dir := range []string{home, kubeconfigs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	for _, v := range gitserver.Env(home) {
		if !strings.HasPrefix(v, "PATH=") {
			env.Vars = append(env.Vars, v)
		}
	}
	examples, err := filepath.Abs("../examples")
	if err != nil {
		return err
	}
	env.Vars = append(env.Vars,
		"EXAMPLES="+examples,
		"KUBECONFIG="+filepath.Join(env.WorkDir, ".kubeconfig"),
		"DOCKER_CONFIG="+filepath.Join(env.WorkDir, ".docker"),
		"XDG_CACHE_HOME="+filepath.Join(env.WorkDir, ".cache"),
		"SSL_CERT_FILE="+s.caFile(),
		"SSL_CERT_DIR="+home, // none there
		"GITOPSD_KUBECONFIG_DIR="+kubeconfigs,
		"GITOPSD_INTERVAL=500ms",
		"GITOPSD_LISTEN=127.0.0.1:0",
	)
	env.Defer(func() { s.close(env.T()) })
	return nil
}

// close ends everything that the script started, and gives its clusters back. If the
// script failed, it logs the last output of its processes.
func (s *scenario) close(t testscript.T) {
	for _, p := range s.running {
		p.kill()
	}
	if tb, ok := t.(testing.TB); ok && tb.Failed() {
		logs, _ := filepath.Glob(filepath.Join(s.work, "*.log"))
		for _, log := range logs {
			t.Log(fmt.Sprintf("%s ends with:\n%s", filepath.Base(log), lastLines(log, 40)))
		}
	}
	if s.registry != nil {
		s.registry.Close()
	}
	for _, server := range []*gitserver.Server{s.git, s.bases} {
		if server == nil {
			continue
		}
		if err := server.Close(); err != nil {
			t.Log("closing a Git server:", err)
		}
	}
	for _, l := range s.clusters {
		l.giveBack()
	}
}

func (s *scenario) caFile() string { return filepath.Join(s.work, ".ca.pem") }

// trust makes the script's programs trust a CA.
func (s *scenario) trust(ca []byte) error {
	s.cas = append(s.cas, ca...)
	return os.WriteFile(s.caFile(), s.cas, 0o644)
}

// lastLines returns at most n lines from the end of a file.
func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
