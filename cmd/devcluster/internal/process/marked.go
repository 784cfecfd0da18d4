package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// KillMarked kills the processes with this path, or a path below it, in an environment
// variable, and returns when none is left. Processes inherit the variable, so KillMarked
// also finds those that left their parent's session or outlived it. It finds only
// processes of its own user.
func KillMarked(variable, path string) error {
	const patience = 10 * time.Second
	mark := []byte(variable + "=" + path)
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		ids, err := marked(mark)
		if err != nil || len(ids) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes with %s in their environment still run after SIGKILL, among them pid %d", len(ids), mark, ids[0].PID)
		}
		// Some may be starting others, so one round may not be enough.
		if err := signalAll(syscall.SIGKILL, ids); err != nil {
			return err
		}
	}
}

// marked returns the processes with an entry in their environment that is mark or a path
// below it.
func marked(mark []byte) (ids []ID, err error) {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		// Identify the process first, so that no other process with its pid is killed.
		id, err := Identify(pid)
		if err != nil {
			continue // it has ended
		}
		// The environment of another user's process, or of an ended one, is unreadable.
		environment, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for entry := range bytes.SplitSeq(environment, []byte{0}) {
			if rest, ok := bytes.CutPrefix(entry, mark); ok && (len(rest) == 0 || rest[0] == '/') {
				ids = append(ids, id)
				break
			}
		}
	}
	return ids, nil
}
