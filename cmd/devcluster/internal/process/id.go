// Package process starts child processes that may outlive their starter, finds
// them again and ends them.
//
// It owns the identity of a process ([ID]), the hand-over between starter and
// child ([Start] and [Enter]) and the orderly end ([Stop]). It knows nothing of
// Kubernetes: package controlplane decides which processes run, and package
// statedir keeps their identities on disk.
//
// It reads /proc, so it works on Linux only.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// ID identifies one process for good: a reused pid has another start time, and the boot
// ID differs after a reboot. IDs are comparable. The zero ID is no process.
type ID struct {
	// PID is the process ID.
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot: field 22 of
	// /proc/PID/stat, see proc_pid_stat(5).
	Start uint64 `json:"start"`
	// Boot is the kernel's random ID of this boot.
	Boot string `json:"boot"`
}

// ErrGone is returned if the process with an ID no longer runs.
var ErrGone = errors.New("process is gone")

// bootID returns the kernel's ID of this boot, which cannot change while this process
// runs.
var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
})

// Identify returns the ID of the running process pid, or [ErrGone].
func Identify(pid int) (ID, error) {
	boot, err := bootID()
	if err != nil {
		return ID{}, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return ID{}, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	if err != nil {
		return ID{}, err
	}
	s, err := parseStat(text)
	if err != nil {
		return ID{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	if s.gone() {
		return ID{}, fmt.Errorf("pid %d: %w", pid, ErrGone)
	}
	return ID{PID: pid, Start: s.start, Boot: boot}, nil
}

// stat has fields of /proc/PID/stat; see proc_pid_stat(5).
type stat struct {
	state   byte   // field 3
	threads uint64 // field 20
	start   uint64 // field 22
}

// gone reports whether the process has released its files, memory and ports. A zombie
// has, unless it has several threads: then only the first one has ended so far.
func (s stat) gone() bool {
	return s.state == 'X' || s.state == 'Z' && s.threads <= 1
}

// parseStat parses /proc/PID/stat. The second field, the command's name, may contain
// spaces and parentheses, so counting starts after the last closing one.
func parseStat(text []byte) (stat, error) {
	const stateField, threadsField, startField = 0, 17, 19 // counted from the third
	_, rest, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(") "))
	fields := bytes.Fields(rest)
	if !ok || len(fields) <= startField || len(fields[stateField]) != 1 {
		return stat{}, fmt.Errorf("unexpected format %q", text)
	}
	threads, err := strconv.ParseUint(string(fields[threadsField]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("number of threads: %w", err)
	}
	start, err := strconv.ParseUint(string(fields[startField]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("start time: %w", err)
	}
	return stat{state: fields[stateField][0], threads: threads, start: start}, nil
}

// Alive reports whether exactly this process still runs. The zero ID is never
// alive.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	now, err := Identify(id.PID)
	return err == nil && now == id
}

// Signal sends sig to exactly this process, or returns [ErrGone].
func (id ID) Signal(sig syscall.Signal) error {
	if id.PID <= 0 {
		return ErrGone
	}
	// FindProcess opens a pidfd, which refers to the process that has the pid now. The
	// check after it makes sure that the signal reaches no other process.
	p, err := os.FindProcess(id.PID)
	if err != nil {
		return err
	}
	defer p.Release()
	if !id.Alive() {
		return fmt.Errorf("pid %d: %w", id.PID, ErrGone)
	}
	if err := p.Signal(sig); errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("pid %d: %w", id.PID, ErrGone)
	} else if err != nil {
		return fmt.Errorf("signal %v to pid %d: %w", sig, id.PID, err)
	}
	return nil
}
