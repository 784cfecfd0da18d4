//go:build unix

package upstream

import (
	"os/exec"
	"syscall"
)

// endGroup has the end of the command's context end what the command started, too.
func endGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
