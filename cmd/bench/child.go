package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"gitopsd.dev/cmd/gitopsd/cli"
)

// workChild is the name under which this program does one piece of work and nothing else,
// to measure the CPU time and memory of the work.
const workChild = "work-child"

// works holds the pieces of work by name. The child prints the number that the work
// returns, and its own peak memory.
var works = map[string]func(args []string) (float64, error){
	"idle":          func([]string) (float64, error) { return 0, nil },
	"parse":         parse,
	"parse-rival":   parseRival,
	"digest-types":  digestTypes,
	"compare":       compare,
	"convert":       convertReviews,
	"convert-rival": convertReviewsRival,
	"render":        renderOne,
	"krusty":        runKrusty,
	"desired-heap":  desiredHeap,
	"resolve":       resolveRefs,
	"heads":         headRefs,
	"live-heap":     liveHeap,
	"follow":        followOnce,
	"pull":          pullOurs,
	"pull-rival":    pullRival,
	"soak":          soakHeap,
	"survey":        surveyOnce,
}

// rivals are the pieces of work that run without the setup of gitopsd's main.
var rivals = map[string]bool{"parse-rival": true, "krusty": true, "heads": true, "pull-rival": true, "convert-rival": true}

func runWork(args []string, stdout, stderr io.Writer) int {
	if !rivals[args[0]] {
		cli.TuneGC()
	}
	n, err := works[args[0]](args[1:])
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	// The peak of getrusage would be at least the parent's memory when it started this
	// process (getrusage(2), ru_maxrss).
	peak, err := memoryMB("self", "VmHWM")
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	fmt.Fprintln(stdout, n, peak)
	return 0
}

// memoryMB returns a field of /proc/<process>/status, in MB: VmRSS is the resident memory,
// VmHWM its peak.
func memoryMB(process, field string) (float64, error) {
	name := filepath.Join("/proc", process, "status")
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), field+":")
	var kb float64
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		return 0, fmt.Errorf("%s: %s: %w", name, field, err)
	}
	return kb / 1024, nil
}

// usage is the cost of a piece of work: seconds of CPU, MB of peak memory, and
// the number that it returned.
type usage struct{ cpu, rss, result float64 }

// work does a piece of work in a child.
func work(ctx context.Context, name string, args ...string) (usage, error) {
	out, cpu, err := child(ctx, self, append([]string{workChild, name}, args...)...)
	if err != nil {
		return usage{}, err
	}
	u := usage{cpu: cpu}
	if _, err := fmt.Fscan(bytes.NewReader(out), &u.result, &u.rss); err != nil {
		return usage{}, fmt.Errorf("%s: %w", name, err)
	}
	return u, nil
}

// self is this program.
const self = "/proc/self/exe"

// child runs a program to its end, and returns its stdout and the CPU, in seconds, that it
// used.
func child(ctx context.Context, program string, args ...string) (out []byte, cpu float64, err error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes()[:min(stderr.Len(), 2000)])
	}
	return stdout.Bytes(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(), nil
}

// each does several pieces of work in turn, in another order every round, and returns the
// cost of each beyond the cost of a child that does nothing.
func each(ctx context.Context, round int, commands [][]string) ([]usage, error) {
	idle, err := work(ctx, "idle")
	if err != nil {
		return nil, err
	}
	all := make([]usage, len(commands))
	for i := range commands {
		at := (i + round) % len(commands)
		u, err := work(ctx, commands[at][0], commands[at][1:]...)
		if err != nil {
			return nil, err
		}
		all[at] = usage{cpu: u.cpu - idle.cpu, rss: u.rss - idle.rss, result: u.result}
	}
	return all, nil
}

// eachRound calls [each] in every round, and passes the result to add.
func (b *bench) eachRound(ctx context.Context, what string, commands [][]string, add func([]usage) error) error {
	for round := range b.rounds {
		fmt.Fprintf(b.say, "bench: %s, round %d of %d\n", what, round+1, b.rounds)
		u, err := each(ctx, round, commands)
		if err == nil {
			err = add(u)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
