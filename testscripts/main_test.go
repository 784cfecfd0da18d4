package testscripts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gitopsd.dev/cmd/gitopsd/cli"
	"gitopsd.dev/testscripts/confined"
	"gitopsd.dev/testscripts/etcdclient"
	"gitopsd.dev/testscripts/load"
	"gitopsd.dev/testscripts/webhookserver"
)

// programs are the programs that scripts run as processes: this test binary, under
// their names.
var programs = map[string]func(){
	"gitopsd": func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		os.Exit(cli.Run(ctx, cli.Env{
			Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv, Environ: os.Environ,
		}))
	},
	"webhookserver": webhookserver.Main,
	"load":          load.Main,
	"confined":      confined.Main,
	"etcdclient":    etcdclient.Main,
}

// supervisedVariable is set in the process that runs the tests.
const supervisedVariable = "TESTSCRIPTS_SUPERVISED"

// TestMain runs the tests in a child process, so that this one can clean up
// however they end: a test that panics or runs out of time ends its process.
func TestMain(m *testing.M) {
	isProgram := programs[filepath.Base(os.Args[0])] != nil
	if !isProgram && os.Getenv(supervisedVariable) == "" {
		code, err := supervise()
		if err != nil {
			fmt.Fprintln(os.Stderr, "testscripts:", err)
			code = max(code, 1)
		}
		os.Exit(code)
	}
	go endWithParent(os.Getppid())
	testscript.Main(suite{m}, programs)
}

// suite runs the tests, then brings the control planes down.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	if err := planes.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// endWithParent ends this process when its parent has ended.
func endWithParent(parent int) {
	for range time.Tick(200 * time.Millisecond) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// supervise runs this test binary again with a temporary directory of its own,
// waits until the child and all its descendants have ended, and removes the
// directory. It returns the exit status of the tests.
func supervise() (code int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	removeAbandoned()
	keep := slices.ContainsFunc(os.Args, func(arg string) bool { return strings.TrimLeft(arg, "-") == "testwork" })
	prefix := fmt.Sprintf("%s%d-", tmpPrefix, os.Getpid())
	if keep {
		prefix = "gitopsd-testwork-"
	}
	tmp, err := os.MkdirTemp("", prefix)
	if err != nil {
		return 1, err
	}
	if !keep {
		defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	}
	// Every descendant of the child inherits the write end of the pipe, so the read
	// end sees EOF once all of them have ended.
	lifeline, inherited, err := os.Pipe()
	if err != nil {
		return 1, err
	}
	defer lifeline.Close()

	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), supervisedVariable+"=1", "TMPDIR="+tmp, "GOTMPDIR="+tmp)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{inherited}
	// An interrupt from the terminal reaches the child as well. A signal to this
	// process alone, such as one from `go test`, is passed on.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT)
	defer signal.Stop(signals)
	err = cmd.Start()
	inherited.Close()
	if err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			cmd.Process.Signal(s) // it may have ended
		}
	}()
	if err := cmd.Wait(); err != nil {
		code = max(1, cmd.ProcessState.ExitCode())
	}
	const patience = time.Minute
	if err := lifeline.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return code, err
	}
	if _, err := io.Copy(io.Discard, lifeline); err != nil {
		return code, fmt.Errorf("processes that the tests started still run after %s: %w", patience, err)
	}
	return code, nil
}

// tmpPrefix starts the names of temporary directories, followed by the supervisor's
// process ID.
const tmpPrefix = "gitopsd-testscripts-"

// removeAbandoned removes the directories of killed supervisors.
func removeAbandoned() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tmpPrefix+"*"))
	for _, dir := range dirs {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), tmpPrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			os.RemoveAll(dir)
		}
	}
}
