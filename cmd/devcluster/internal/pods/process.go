package pods

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// spawner starts processes that the kernel kills when this process ends. The kernel does
// so when the thread that started them ends, so one permanent thread starts all.
type spawner struct {
	starts chan func()
}

func newSpawner() *spawner {
	s := &spawner{starts: make(chan func())}
	go func() {
		runtime.LockOSThread()
		// The channel is never closed.
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// start starts a process in a session of its own. The kernel does not kill the process's
// children with it; [wait] and [End] do.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	s.starts <- func() { started <- cmd.Start() }
	return <-started
}

// wait waits for the end of a process. When ctx ends, it asks the process to end, and kills
// it when killed is closed. It kills the process's group at the end.
func wait(ctx context.Context, cmd *exec.Cmd, killed <-chan struct{}) *os.ProcessState {
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		signal(cmd, syscall.SIGTERM)
		select {
		case <-ended:
		case <-killed:
			signal(cmd, syscall.SIGKILL)
		}
	}()
	// The exit status is in the ProcessState.
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		cmd.Process.Kill()
	}
	close(ended)
	<-stopped
	// The ID of a group is not reused while it has members.
	signal(cmd, syscall.SIGKILL)
	return cmd.ProcessState
}

// signal sends a signal to the process's group, which may be gone.
func signal(cmd *exec.Cmd, sig syscall.Signal) {
	if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		cmd.Process.Signal(sig)
	}
}

// exitOf returns a process's exit code as a container runtime reports it, and the
// signal that ended it, if one did.
func exitOf(state *os.ProcessState) (code, sig int32) {
	if state == nil { // the kernel did not say
		return 255, 0
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int32(status.Signal()), int32(status.Signal())
	}
	return int32(state.ExitCode()), 0
}
