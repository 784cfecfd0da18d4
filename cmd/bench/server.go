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

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// serverProcess is the process ID of a server, 0 for none.
type serverProcess int

// findServer finds the API server's process for a URL, by the port on its command line.
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

// cpu returns the CPU time of the process in seconds. It reads the clock of
// clock_getcpuclockid(3), which counts nanoseconds: /proc/<pid>/stat counts ticks of
// 10 ms, longer than a pass without changes.
func (p serverProcess) cpu() (float64, error) {
	const allThreads = 2 // CPUCLOCK_SCHED in the kernel's posix-timers.h
	var used unix.Timespec
	if err := unix.ClockGettime(^int32(p)<<3|allThreads, &used); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", p, err)
	}
	return time.Duration(used.Nano()).Seconds(), nil
}

// quiet waits until the server is idle (it serves a CRD, and publishes it in OpenAPI,
// some time after accepting it), and returns its CPU time.
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

// idle returns the CPU that the idle server uses per second. It measures for a while,
// since the server's background work is irregular.
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

// spent calls do, and returns the CPU, in seconds, that each process uses meanwhile.
func spent(processes []serverProcess, do func() error) ([]float64, error) {
	before, err := used(processes)
	if err == nil {
		err = do()
	}
	if err != nil {
		return nil, err
	}
	cpu, err := used(processes)
	for i := range cpu {
		cpu[i] -= before[i]
	}
	return cpu, err
}

// used returns the CPU time of processes in seconds.
func used(processes []serverProcess) ([]float64, error) {
	all := make([]float64, len(processes))
	for i, p := range processes {
		if p == 0 {
			continue
		}
		var err error
		if all[i], err = p.cpu(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// concurrently calls do n times, divided among workers. A worker stops at its first
// error. concurrently returns the first error of all.
func concurrently(workers, n int, do func(worker, i int) error) error {
	var g errgroup.Group
	for worker := range workers {
		g.Go(func() error {
			for i := range n / workers {
				if err := do(worker, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}
