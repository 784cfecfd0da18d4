package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

// fleet is a directory with clusters of the real binary.
type fleet struct {
	binary string
	dir    statedir.Dir
}

// binary is the path at which TestMain wants the binary, and the result of build.
var binary struct {
	once sync.Once
	path string
	err  error
}

func TestMain(m *testing.M) {
	if os.Getenv(serverVariable) != "" {
		os.Exit(runServer())
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "devcluster-test-*")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary.path = filepath.Join(dir, "devcluster")
		return m.Run()
	}())
}

// build builds the binary once, without the race detector even if the tests have it: an
// API server with it would take minutes to start.
func build(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		out, err := exec.Command("go", "build", "-ldflags=-s", "-o", binary.path, ".").CombinedOutput()
		if err != nil {
			binary.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if binary.err != nil {
		t.Fatal(binary.err)
	}
	return binary.path
}

// newFleet returns an empty fleet. All its processes are gone at the end of the test.
func newFleet(t *testing.T, binary string) *fleet {
	t.Helper()
	dir, err := statedir.Open(filepath.Join(t.TempDir(), "fleet whose path has spaces and more bytes than the 107 that the path of a Unix socket can have"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{binary: binary, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			f.logTails(t)
		}
		if out, err := f.try("down"); err != nil {
			t.Errorf("cleaning up: %v\n%s", err, out)
		}
	})
	return f
}

func (f *fleet) logTails(t *testing.T) {
	logs, _ := filepath.Glob(f.dir.Path("logs", "*.log"))
	for _, path := range logs {
		component := strings.TrimSuffix(filepath.Base(path), ".log")
		t.Logf("the end of %s:\n%s", path, f.dir.LogTail(component, 0, 5))
	}
}

func (f *fleet) command(args ...string) *exec.Cmd {
	return exec.Command(f.binary, append(args, "--dir", string(f.dir))...)
}

// try runs a command and returns its output.
func (f *fleet) try(args ...string) (string, error) {
	out, err := f.command(args...).CombinedOutput()
	return string(out), err
}

// must runs a command that must succeed.
func (f *fleet) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.try(args...)
	if err != nil {
		t.Fatalf("devcluster %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// processes returns the recorded processes by component.
func (f *fleet) processes(t *testing.T) map[string]process.ID {
	t.Helper()
	paths, err := filepath.Glob(f.dir.Path("run", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]process.ID{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var id process.ID
		if err := json.Unmarshal(text, &id); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		ids[strings.TrimSuffix(filepath.Base(path), ".json")] = id
	}
	return ids
}

func (f *fleet) state(t *testing.T) *statedir.State {
	t.Helper()
	state, err := f.dir.Load()
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// ports returns the ports that are in use while everything runs.
func (f *fleet) ports(t *testing.T) []int {
	t.Helper()
	state := f.state(t)
	ports := []int{state.Etcd.ClientPort, state.Etcd.PeerPort, state.Etcd.HTTPPort}
	for _, c := range state.Clusters {
		ports = append(ports, c.Port)
	}
	return ports
}

func (f *fleet) client(t *testing.T, cluster string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", f.dir.Kubeconfig(cluster))
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// eventually repeats check until it returns nil.
func eventually(t *testing.T, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// gone waits until none of the processes runs and all ports are free.
func gone(t *testing.T, processes map[string]process.ID, ports []int) {
	t.Helper()
	eventually(t, "no process and no port is left", func(context.Context) error {
		for name, id := range processes {
			if id.Alive() {
				return fmt.Errorf("%s runs, pid %d", name, id.PID)
			}
		}
		for _, port := range ports {
			if err := statedir.PortFree(port); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestFleet does with two clusters everything that tests do with clusters.
func TestFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters")
	}
	t.Parallel()
	f := newFleet(t, build(t))
	out := f.must(t, "up", "--clusters", "a,b")
	for _, cluster := range []string{"a", "b"} {
		if !strings.Contains(out, f.dir.Kubeconfig(cluster)) {
			t.Errorf("up does not say where %s's kubeconfig is:\n%s", cluster, out)
		}
	}
	if n := len(f.processes(t)); n != 7 {
		t.Errorf("%d processes, want etcd and three for each cluster", n)
	}
	t.Run("is a cluster", func(t *testing.T) { testWorkloads(t, f) })
	t.Run("pods are processes", func(t *testing.T) { testProcesses(t, f) })
	t.Run("clusters are apart", func(t *testing.T) { testApart(t, f) })
	t.Run("up again changes nothing", func(t *testing.T) {
		before := f.processes(t)
		out := f.must(t, "up")
		if after := f.processes(t); fmt.Sprint(after) != fmt.Sprint(before) || !strings.Contains(out, "up already") {
			t.Errorf("before %v, after %v\n%s", before, after, out)
		}
	})
	t.Run("stop and start", func(t *testing.T) { testStopStart(t, f) })
	t.Run("add", func(t *testing.T) {
		f.must(t, "add", "c", "--controller-manager=false")
		if _, ok := f.processes(t)["c.kube-controller-manager"]; ok {
			t.Error("c has a controller manager")
		}
		eventually(t, "c answers", version(f.client(t, "c")))
	})
	t.Run("recovers from kill -9", func(t *testing.T) { testRecovery(t, f) })
	t.Run("failures", func(t *testing.T) { testFailures(t, f) })
	t.Run("down", func(t *testing.T) {
		processes, ports := f.processes(t), f.ports(t)
		f.must(t, "down")
		for name, id := range processes {
			if id.Alive() {
				t.Errorf("%s runs, pid %d", name, id.PID)
			}
		}
		for _, port := range ports {
			if err := statedir.PortFree(port); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(string(f.dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the directory: %v", err)
		}
	})
}

// version checks that the API server answers.
func version(client kubernetes.Interface) func(context.Context) error {
	return func(context.Context) error {
		_, err := client.Discovery().ServerVersion()
		return err
	}
}

func testStopStart(t *testing.T, f *fleet) {
	before := f.processes(t)
	mark(t, f, "b", "stop")
	f.must(t, "stop", "b")
	if _, err := f.client(t, "b").Discovery().ServerVersion(); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("b, stopped: %v", err)
	}
	eventually(t, "a answers while b is away", version(f.client(t, "a")))
	for name, id := range before {
		if runs := id.Alive(); runs == strings.HasPrefix(name, "b.") {
			t.Errorf("%s: running is %v", name, runs)
		}
	}
	f.must(t, "start", "b")
	// The same kubeconfig reaches the same data.
	checkMark(t, f, "b", "stop")
}

func testRecovery(t *testing.T, f *fleet) {
	mark(t, f, "a", "crash")
	before := f.processes(t)
	kill := func(match func(string) bool) {
		for name, id := range before {
			if !match(name) {
				continue
			}
			if err := id.Signal(syscall.SIGKILL); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	// Immediately, while the process still ends.
	kill(func(name string) bool { return name == "a.kube-apiserver" })
	f.must(t, "up")
	after := f.processes(t)
	if after["a.kube-apiserver"] == before["a.kube-apiserver"] || after["etcd"] != before["etcd"] {
		t.Errorf("before %v, after %v", before, after)
	}
	before = after
	pod := pidOf(t, f, "server-2")
	kill(func(string) bool { return true })
	eventually(t, "a pod's process ends with its kubelet", func(context.Context) error {
		if _, err := os.Stat(pod); err == nil {
			return errors.New("it runs")
		}
		return nil
	})
	f.must(t, "up")
	checkMark(t, f, "a", "crash")
	eventually(t, "the pod's process runs again", answers(f.client(t, "a"), "file/greeting", "goodbye"))
}

func testFailures(t *testing.T, f *fleet) {
	f.must(t, "stop", "b")
	port := f.state(t).Cluster("b").Port
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	out, err := f.try("start", "b")
	if err == nil || !strings.Contains(out, strconv.Itoa(port)) {
		t.Errorf("port taken: %v\n%s", err, out)
	}
	l.Close()

	if err := os.WriteFile(f.dir.Path("b", "apiserver.crt"), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	const older = "a word of the process before"
	log, err := os.OpenFile(f.dir.Log("b.kube-apiserver"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fmt.Fprintln(log, older)
	if err := errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	out, err = f.try("start", "b")
	if err == nil || strings.Contains(out, older) || !strings.Contains(out, f.dir.Log("b.kube-apiserver")) || !strings.Contains(out, "failed to find any PEM data") {
		t.Errorf("the API server does not start, but the error has no log: %v\n%s", err, out)
	}
	if id, err := f.dir.Running("b.kube-apiserver"); err != nil || id != (process.ID{}) {
		t.Errorf("left running: %v, %v", id, err)
	}
	if out, err := f.try("start", "nobody"); err == nil || !strings.Contains(out, `"nobody"`) {
		t.Errorf("unknown cluster: %v\n%s", err, out)
	}
	if out, err := f.try("up", "--foreground"); err == nil || !strings.Contains(out, "background") {
		t.Errorf("foreground over background: %v\n%s", err, out)
	}
}

// TestForeground checks which processes end with which.
func TestForeground(t *testing.T) {
	if testing.Short() {
		t.Skip("starts clusters")
	}
	t.Parallel()
	binary := build(t)
	up := []string{"up", "--foreground", "--clusters", "a", "--controller-manager=false"}
	for _, tt := range []struct {
		name string
		// start returns the process to hit, with devcluster below or in it.
		start func(f *fleet) *exec.Cmd
		hit   syscall.Signal
		// status is the process's own, -1 when the signal ends it.
		status int
	}{
		{"interrupted", func(f *fleet) *exec.Cmd { return f.command(up...) }, syscall.SIGINT, 0},
		{"killed", func(f *fleet) *exec.Cmd { return f.command(up...) }, syscall.SIGKILL, -1},
		{"parent killed", func(f *fleet) *exec.Cmd {
			c := f.command(up...)
			// The second command keeps the shell from becoming devcluster.
			return exec.Command("sh", append([]string{"-c", `"$@"; true`, "sh"}, c.Args...)...)
		}, syscall.SIGKILL, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFleet(t, binary)
			cmd := tt.start(f)
			var out syncBuffer
			cmd.Stdout, cmd.Stderr = &out, &out
			// Its grandchildren hold the other end of the pipe until they end.
			cmd.WaitDelay = time.Minute
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			eventually(t, "it is up", func(context.Context) error {
				if !strings.Contains(out.String(), "running until interrupted") {
					return errors.New(out.String())
				}
				return nil
			})
			// What another command starts belongs to it as well.
			f.must(t, "stop", "a")
			f.must(t, "start", "a")
			processes, ports := f.processes(t), f.ports(t)
			if len(processes) != 4 {
				t.Errorf("processes %v, want etcd, API server, kubelet and owner", processes)
			}
			if out, err := f.try(up...); err == nil || !strings.Contains(out, "already") {
				t.Errorf("a second one: %v\n%s", err, out)
			}
			if err := cmd.Process.Signal(tt.hit); err != nil {
				t.Fatal(err)
			}
			<-ended
			if got := cmd.ProcessState.ExitCode(); got != tt.status {
				t.Errorf("exit status %d, want %d\n%s", got, tt.status, out.String())
			}
			gone(t, processes, ports)
			if strings.Contains(out.String(), "ended by itself") {
				t.Errorf("a stop was taken for a crash:\n%s", out.String())
			}
		})
	}
	t.Run("down ends it, and crashes are told", func(t *testing.T) {
		f := newFleet(t, binary)
		cmd := f.command(up...)
		var out syncBuffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is up", func(context.Context) error {
			if !strings.Contains(out.String(), "running until interrupted") {
				return errors.New(out.String())
			}
			return nil
		})
		processes, ports := f.processes(t), f.ports(t)
		if err := processes["a.kubelet"].Signal(syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		eventually(t, "the crash is told", func(context.Context) error {
			if !strings.Contains(out.String(), "a.kubelet: it ended by itself") {
				return errors.New(out.String())
			}
			return nil
		})
		f.must(t, "down")
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v\n%s", err, out.String())
		}
		gone(t, processes, ports)
	})
}

// syncBuffer is a buffer that is read while a process writes to it.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
