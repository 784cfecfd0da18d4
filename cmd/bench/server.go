package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// serverProcess is the API server's process.
type serverProcess int

// findServer finds the process that serves a URL, by the port on its command
// line.
func findServer(address string) (serverProcess, error) {
	u, err := url.Parse(address)
	if err != nil {
		return 0, err
	}
	flag := []byte("--secure-port=" + u.Port() + "\x00")
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, name := range all {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // the process is gone
		}
		if bytes.Contains(append(text, 0), flag) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return serverProcess(pid), err
		}
	}
	return 0, fmt.Errorf("no process serves %s", address)
}

// cpu returns the CPU that the process has used so far, in seconds, to the
// nanosecond: the clock of clock_getcpuclockid(3). /proc/<pid>/stat counts in
// ticks of 10 ms, longer than a pass without changes.
func (p serverProcess) cpu() (float64, error) {
	const allThreads = 2 // CPUCLOCK_SCHED in the kernel's posix-timers.h
	var used unix.Timespec
	if err := unix.ClockGettime(^int32(p)<<3|allThreads, &used); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", p, err)
	}
	return time.Duration(used.Nano()).Seconds(), nil
}

// quiet waits until the server is idle (a CRD is served, and published in
// OpenAPI, after it was accepted), and returns its CPU time.
func (p serverProcess) quiet(ctx context.Context) (float64, error) {
	last, err := p.cpu()
	if err != nil {
		return 0, err
	}
	const calm = 0.10 // of one core, over a period
	const period = 2 * time.Second
	for calmFor := 0; calmFor < 2; {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(period):
		}
		now, err := p.cpu()
		if err != nil {
			return 0, err
		}
		if now-last < calm*period.Seconds() {
			calmFor++
		} else {
			calmFor = 0
		}
		last = now
	}
	return last, nil
}

// idle returns the CPU that the idle server takes per second, over some seconds,
// since its background work is irregular.
func (p serverProcess) idle(ctx context.Context) (float64, error) {
	before, err := p.quiet(ctx)
	if err != nil {
		return 0, err
	}
	const while = 20 * time.Second
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(while):
	}
	after, err := p.cpu()
	return (after - before) / while.Seconds(), err
}
