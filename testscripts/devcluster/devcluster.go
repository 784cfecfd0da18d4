// Package devcluster runs the project's development control plane
// (cmd/devcluster: real etcd, kube-apiserver and controllers) for tests, benchmarks
// and the demo.
//
//   - Binary finds the binary, or builds it once and keeps it in the user's
//     cache (build.go);
//   - Up starts clusters that end with this process, however it ends;
//   - Start is for tests: the clusters of one test process are shared by all of
//     its tests, started when the first asks for them, and taken down by Main
//     (shared.go).
//
// Tests that share a cluster use distinct names.
package devcluster

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Config configures control planes.
type Config struct {
	// Dir holds everything, kubeconfigs included. It must exist.
	Dir string
	// Binary is the path of devcluster; if empty, [Binary] finds or builds it.
	Binary string
	// Log receives devcluster's messages; nil discards them.
	Log io.Writer
	// NoControllerManager saves 100 MB and some CPU per cluster. Deployments,
	// garbage collection and service accounts do not work then.
	NoControllerManager bool
	// StorageMigration has the clusters offer storagemigration.k8s.io, a beta.
	StorageMigration bool
	// Frugal has the servers use less CPU, but each one core at most, and more memory: for tests,
	// of which several run at a time.
	Frugal bool
	// Etcd is where the clusters keep their objects; nil is an etcd that devcluster runs.
	Etcd *Etcd
}

// Etcd is an etcd, or what speaks like one.
type Etcd struct {
	// Server is its URL.
	Server string
	// CAFile, CertFile and KeyFile have its CA and the certificate of a client.
	CAFile, CertFile, KeyFile string
}

// ControlPlanes are clusters that run in one directory. They are safe for
// concurrent use.
type ControlPlanes struct {
	cfg    Config
	cmd    *exec.Cmd
	output *tail
	ended  chan struct{} // closed once cmd has ended, with err
	err    error

	mu sync.Mutex // serializes Add, Stop and Resume
}

// readyLine is what devcluster prints when all clusters are ready.
const readyLine = "running until interrupted"

// Up starts clusters and waits until they are ready. They end with
// [ControlPlanes.Close], with this process, or with ctx.
func Up(ctx context.Context, cfg Config, names ...string) (*ControlPlanes, error) {
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	if cfg.Binary == "" {
		binary, err := Binary(ctx, cfg.Log)
		if err != nil {
			return nil, err
		}
		cfg.Binary = binary
	}
	p := &ControlPlanes{cfg: cfg, ended: make(chan struct{}), output: newTail(cfg.Log)}
	p.cmd = p.command(ctx, "up", "--foreground", "--clusters", strings.Join(names, ","))
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(os.Interrupt) }
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting devcluster: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	select {
	case <-p.output.ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("devcluster up: %v\n%s", p.err, p.output)
	}
}

// command returns a command of devcluster.
func (p *ControlPlanes) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.cfg.Binary, p.args(name, args...)...)
	if p.cfg.Frugal { // measured with two cores and the scenarios: 8 % less
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=400")
	}
	return cmd
}

func (p *ControlPlanes) args(command string, more ...string) []string {
	args := []string{command, "--dir", p.cfg.Dir}
	if p.cfg.NoControllerManager && (command == "up" || command == "add") {
		args = append(args, "--controller-manager=false")
	}
	if p.cfg.StorageMigration && (command == "up" || command == "add") {
		args = append(args, "--storage-migration")
	}
	if e := p.cfg.Etcd; e != nil && (command == "up" || command == "add") {
		args = append(args, "--etcd-servers", e.Server, "--etcd-cafile", e.CAFile, "--etcd-certfile", e.CertFile, "--etcd-keyfile", e.KeyFile)
	}
	return append(args, more...)
}

// Kubeconfig returns the path of a cluster's kubeconfig, which has all rights.
func (p *ControlPlanes) Kubeconfig(name string) string {
	return filepath.Join(p.cfg.Dir, name+".kubeconfig")
}

// Add starts more clusters.
func (p *ControlPlanes) Add(ctx context.Context, names ...string) error {
	return p.run(ctx, "add", names)
}

// Stop stops clusters; their data, ports and kubeconfigs stay.
func (p *ControlPlanes) Stop(ctx context.Context, names ...string) error {
	return p.run(ctx, "stop", names)
}

// Resume starts clusters again that Stop stopped.
func (p *ControlPlanes) Resume(ctx context.Context, names ...string) error {
	return p.run(ctx, "start", names)
}

// SetImage makes a command stand for the images of a repository in a cluster: their
// pods are then processes. See `devcluster image --help`.
func (p *ControlPlanes) SetImage(ctx context.Context, cluster, repository string, command ...string) error {
	return p.run(ctx, "image", append([]string{cluster, repository}, command...))
}

// RemoveImages undoes what SetImage did in a cluster for these repositories, or for
// all. One that stands for no command is an error.
func (p *ControlPlanes) RemoveImages(ctx context.Context, cluster string, repositories ...string) error {
	return p.run(ctx, "image", append([]string{"--remove", cluster}, repositories...))
}

// Stored returns the objects of a resource, "acme.example/widgets", as etcd has them:
// the bytes by "namespace/name", or by name.
func (p *ControlPlanes) Stored(ctx context.Context, name, resource string) (map[string][]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, p.cfg.Binary, "stored", "--dir", p.cfg.Dir, name, resource)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("devcluster stored %s %s: %w\n%s", name, resource, err, stderr.Bytes())
	}
	objects := make(map[string][]byte)
	for line := range bytes.Lines(out) {
		object, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		objects[string(object)] = value
	}
	return objects, nil
}

func (p *ControlPlanes) run(ctx context.Context, command string, names []string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	out, err := p.command(ctx, command, names...).CombinedOutput()
	p.cfg.Log.Write(out)
	if err != nil {
		return fmt.Errorf("devcluster %s %s: %w\n%s", command, strings.Join(names, " "), err, out)
	}
	return nil
}

// Close ends everything and removes the files that devcluster made.
func (p *ControlPlanes) Close() error {
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := p.run(ctx, "down", nil)
	select {
	case <-p.ended:
	case <-ctx.Done():
		err = errors.Join(err, p.cmd.Process.Kill())
		<-p.ended
	}
	return err
}

// tail passes on what is written to it, keeps the last lines for an error, and
// watches for readyLine.
type tail struct {
	to    io.Writer
	ready chan struct{}

	mu   sync.Mutex
	last []string
	rest bytes.Buffer
}

func newTail(to io.Writer) *tail { return &tail{to: to, ready: make(chan struct{})} }

func (t *tail) Write(b []byte) (int, error) {
	const most = 20
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest.Write(b)
	for bytes.IndexByte(t.rest.Bytes(), '\n') >= 0 {
		line, _ := bufio.NewReader(bytes.NewReader(t.rest.Bytes())).ReadString('\n')
		t.rest.Next(len(line))
		t.last = append(t.last, line)
		if len(t.last) > most {
			t.last = t.last[1:]
		}
		if strings.Contains(line, readyLine) {
			select {
			case <-t.ready:
			default:
				close(t.ready)
			}
		}
	}
	return t.to.Write(b)
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.last, "")
}
