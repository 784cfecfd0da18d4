package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// watchInterval is how often a process looks whether another one still lives.
// A look is one read of a small file in /proc.
const watchInterval = 200 * time.Millisecond

// hello is what a child waits for on its standard input before it does
// anything. By then its starter has written down who it is: a starter that is
// killed earlier closes the pipe without a hello, and the child leaves.
type hello struct {
	// Owner, when set, is the process whose end is also the child's.
	Owner ID `json:"owner"`
}

// Config says what to start.
type Config struct {
	// Args are the arguments; the program is this executable itself.
	Args []string
	// Dir is the working directory.
	Dir string
	// Log is the file that standard output and error are appended to.
	Log string
	// Env, as NAME=value, is added to this process's environment.
	Env []string
	// Owner is the process that the child dies with; the zero ID is nobody.
	Owner ID
}

// Process is a child started by this process.
type Process struct {
	// ID is valid for good, also after the end.
	ID   ID
	done chan struct{}
}

// Start runs this executable again with cfg.Args, in a session of its own so
// that a terminal's signals do not reach it. Before the child does anything,
// record is called with its identity; when that fails the child ends at once.
func Start(cfg Config, record func(ID) error) (*Process, error) {
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The link is resolved in the child, where it still points to this very
	// program, whatever has happened to its file meanwhile.
	cmd := exec.Command("/proc/self/exe", cfg.Args...)
	cmd.Args[0] = "devcluster"
	cmd.Dir = cfg.Dir
	cmd.Env = append(os.Environ(), cfg.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	// Closing the pipe without a hello makes the child leave; Wait closes it too.
	defer stdin.Close()
	if p.ID, err = Identify(cmd.Process.Pid); err != nil {
		return nil, fmt.Errorf("just started: %w", err)
	}
	if err := record(p.ID); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(stdin).Encode(hello{Owner: cfg.Owner}); err != nil {
		return nil, fmt.Errorf("pid %d did not take its start message: %w", p.ID.PID, err)
	}
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Enter is the child's side of [Start]: it waits for the starter's hello on
// stdin and from then on calls orphaned when its owner has ended. Without a
// hello, when the starter died, it returns an error and the caller should end.
func Enter(stdin io.Reader, orphaned func()) error {
	line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadBytes('\n')
	if err != nil {
		return errors.New("the process that started this one ended before it said go")
	}
	var h hello
	if err := json.Unmarshal(line, &h); err != nil {
		return fmt.Errorf("start message: %w", err)
	}
	if h.Owner != (ID{}) {
		go func() {
			for h.Owner.Alive() {
				time.Sleep(watchInterval)
			}
			orphaned()
		}()
	}
	return nil
}

// Stop asks the processes to end with SIGTERM, all at the same time, sends
// SIGKILL to those that are alive after grace, and returns when all are gone.
// It returns the ones that had to be killed.
func Stop(ctx context.Context, grace time.Duration, ids ...ID) (killed []ID, err error) {
	if err := signalAll(syscall.SIGTERM, ids); err != nil {
		return nil, err
	}
	graceful, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	left := waitGone(graceful, ids)
	if len(left) == 0 {
		return nil, nil
	}
	if err := signalAll(syscall.SIGKILL, left); err != nil {
		return nil, err
	}
	// SIGKILL cannot be refused; only a process stuck in the kernel stays.
	final, cancelFinal := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancelFinal()
	if stuck := waitGone(final, left); len(stuck) > 0 {
		return left, fmt.Errorf("pid %d still runs after SIGKILL", stuck[0].PID)
	}
	return left, nil
}

func signalAll(sig syscall.Signal, ids []ID) error {
	var errs []error
	for _, id := range ids {
		if err := id.Signal(sig); err != nil && !errors.Is(err, ErrGone) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// waitGone returns the processes that are still alive when ctx ends.
func waitGone(ctx context.Context, ids []ID) []ID {
	left := append([]ID(nil), ids...)
	for {
		alive := left[:0]
		for _, id := range left {
			if id.Alive() {
				alive = append(alive, id)
			}
		}
		if left = alive; len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// WithParent returns a context that ends when the parent process ends, with
// that as its cause.
func WithParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	// The kernel gives an orphan another parent. A parent-death signal would
	// come too early: it is bound to the thread that started this process.
	parent := os.Getppid()
	go func() {
		tick := time.NewTicker(watchInterval)
		defer tick.Stop()
		for os.Getppid() == parent {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel(errors.New("the parent process has ended"))
	}()
	return ctx, func() { cancel(nil) }
}
