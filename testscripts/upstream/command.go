package upstream

import (
	"context"
	"os/exec"
	"testing"
	"time"
)

// beforeDeadline is how long before the deadline of all tests a command is ended. What is
// still running when go test gives up stays behind, since nothing is cleaned up then.
const beforeDeadline = 30 * time.Second

// Command returns a command that is ended, with all that it started, when the test ends or
// the deadline of all tests is near: a go command starts compilers and tests, which outlive
// it otherwise.
func Command(t testing.TB, name string, args ...string) *exec.Cmd {
	ctx := t.Context()
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if deadline, ok := d.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, deadline.Add(-beforeDeadline))
			t.Cleanup(cancel)
		}
	}
	cmd := exec.CommandContext(ctx, name, args...)
	endGroup(cmd)
	// Whatever got out of the group may hold the output open.
	cmd.WaitDelay = beforeDeadline / 3
	return cmd
}
