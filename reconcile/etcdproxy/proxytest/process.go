package proxytest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// First arguments that make [Main] run a child.
const (
	ProxyChild = "proxytest-proxy"
	EtcdChild  = "proxytest-etcd"
)

// Main runs a child and exits if this process was started as one. Programs and tests that start
// processes call it first.
func Main() {
	if len(os.Args) < 2 {
		return
	}
	var run func([]string) error
	switch os.Args[1] {
	case ProxyChild:
		run = proxyMain
	case EtcdChild:
		run = etcdMain
	default:
		return
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// instruction is the first line of a child's input.
type instruction struct {
	// Listen is where a proxy listens.
	Listen string
	Config Config
}

func proxyMain([]string) error {
	in := bufio.NewReader(os.Stdin)
	var told instruction
	if err := json.NewDecoder(in).Decode(&told); err != nil {
		return err
	}
	l, err := listen(told.Listen)
	if err != nil {
		return err
	}
	p, err := told.Config.Start(l)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(p.Address); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent ends
	return p.Close()
}

// listen listens, and retries while connections of a killed proxy hold the port.
func listen(address string) (net.Listener, error) {
	const patience = 10 * time.Second
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		l, err := net.Listen("tcp", address)
		if err == nil || time.Now().After(deadline) {
			return l, err
		}
	}
}

func etcdMain(args []string) error {
	e, err := startWithoutAuth(args[0], NewConfig())
	if err != nil {
		return err
	}
	h, err := e.Handle()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(h); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return e.Close()
}

// Process is a child of this process. It ends when this process does.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// StartProxy starts a proxy in a process of its own, and returns the address at which it listens. listen is host
// and port; port 0 is any. The end of ctx kills it.
func StartProxy(ctx context.Context, listen string, c Config) (p *Process, address string, err error) {
	p, err = start(ctx, &instruction{Listen: listen, Config: c}, &address, ProxyChild)
	return p, address, err
}

// StartEtcd starts an etcd in a process of its own, with its files in dir, and without
// authentication.
func StartEtcd(ctx context.Context, dir string) (*Process, *Etcd, error) {
	var h Handle
	p, err := start(ctx, nil, &h, EtcdChild, dir)
	if err != nil {
		return nil, nil, err
	}
	e, err := Connect(h)
	if err != nil {
		return nil, nil, fmt.Errorf("%w; %w", err, p.Kill())
	}
	return p, e, nil
}

// start starts this program as a child, and reads its answer.
func start(ctx context.Context, tell, answer any, args ...string) (*Process, error) {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, stdin: stdin}
	if tell != nil {
		if err := json.NewEncoder(stdin).Encode(tell); err != nil {
			return nil, fmt.Errorf("%s: %w; %w", args[0], err, p.Kill())
		}
	}
	if err := json.NewDecoder(stdout).Decode(answer); err != nil {
		return nil, fmt.Errorf("%s does not start: %w; %w", args[0], err, p.Kill())
	}
	return p, nil
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process as kill -9 does.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return err
}

// Close ends the process, and waits for it.
func (p *Process) Close() error {
	p.stdin.Close()
	return p.cmd.Wait()
}
