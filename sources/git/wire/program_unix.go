//go:build unix

package wire

import (
	"os/exec"
	"syscall"
)

// terminate lets the end of the command's context end its hooks too, and by SIGTERM: git
// then removes its lock files, which would keep everybody from the ref. In a session of
// its own the command has no terminal on which something could ask for a password.
func terminate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}
