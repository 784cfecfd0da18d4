//go:build unix

package oci

import (
	"os/exec"
	"syscall"
)

// killGroup has the programs that a credential helper started end with it: many helpers are
// scripts.
func killGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
