//go:build unix

package wire

import (
	"os/exec"
	"syscall"
)

// terminate sends SIGTERM to the command and its hooks when its context ends, so that git
// removes its lock files, which would block the ref. In a session of its own the command
// has no terminal to ask for a password.
func terminate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
