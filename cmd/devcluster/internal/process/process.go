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
	"slices"
	"syscall"
	"time"
)

// watchInterval is how often a process checks that another one is alive. A check reads
// one small file in /proc.
const watchInterval = 200 * time.Millisecond

// hello is the message that a child waits for on its standard input before it does
// anything. The starter sends it once it has recorded the child. If the starter is
// killed earlier, the pipe closes without a hello, and the child exits.
type hello struct {
	// Owner, if set, is the process with which the child ends.
	Owner ID `json:"owner"`
}

// Config configures a child.
type Config struct {
	// Args are the arguments; the program is this executable itself.
	Args []string
	// Dir is the working directory.
	Dir string
	// Log is the file that standard output and error are appended to.
	Log string
	// Env, as NAME=value, is added to this process's environment.
	Env []string
	// Owner is the process with which the child ends, if any.
	Owner ID
}

// Process is a child started by this process.
type Process struct {
	ID   ID
	done chan struct{}
}

// Start runs this executable again with cfg.Args, in a session of its own so that a
// terminal's signals do not reach it. It calls record with the child's identity before
// the child does anything. If record fails, the child exits at once.
func Start(cfg Config, record func(ID) error) (*Process, error) {
	log, err := os.OpenFile(cfg.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	// The child resolves the link, which points to this program even if its file was
	// replaced meanwhile.
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
	// Closing the pipe without a hello makes the child exit; Wait closes it too.
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

// Enter is the child's side of [Start]. It waits for the starter's hello on stdin, and
// from then on calls orphaned once the owner has ended. It returns an error if the
// starter died without a hello; then the caller should exit.
func Enter(stdin io.Reader, orphaned func()) error {
	line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadBytes('\n')
	if err != nil {
		return errors.New("the process that started this one ended before its start message")
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

// Stop sends SIGTERM to all processes at once, and SIGKILL to those that are alive after
// grace, and returns when all are gone. It returns those that it killed.
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
	// Only a process that is stuck in the kernel survives SIGKILL.
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
	left := slices.Clone(ids)
	for {
		left = slices.DeleteFunc(left, func(id ID) bool { return !id.Alive() })
		if len(left) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return left
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// WithParent returns a context that ends when the parent process ends, and has that as
// its cause.
func WithParent(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	// The kernel gives an orphan another parent. A parent-death signal may come too
	// early: it is sent when the thread that started this process ends.
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
