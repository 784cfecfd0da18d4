//go:build !unix

package wire

import "os/exec"

// terminate does nothing: when its context ends, the command is killed.
func terminate(*exec.Cmd) {}
