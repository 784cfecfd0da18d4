// Command demo shows gitopsd at work on this machine: a fleet of three real control
// planes that follows a Git repository. `make demo` runs it.
//
// stage.go starts the servers: control planes, a registry with packages made of
// real projects, and a Git server with this project's own clusters.yaml and
// examples/. story.go plays the steps, one after the other, with the gitopsd binary
// that was just built. conversion.go has the step with conversion rules, etcd.go the
// steps with three more control planes that share the daemon's etcd. look.go prints
// commands to look around with (--keep).
//
// Images do not run here: this program serves Cluster API's webhooks in place of its
// controller, and says so. Everything is on loopback and in one directory, which is
// removed at the end unless a step fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/testscripts/webhookserver"
)

func main() {
	// The stand-in for Cluster API's controller is this program, too.
	if len(os.Args) > 1 && os.Args[1] == standIn {
		os.Args = os.Args[1:]
		webhookserver.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends it at once
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	keep := flags.Bool("keep", false, "leave everything running at the end, until it is interrupted")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	t := &teller{w: stdout, start: time.Now()}
	switch err := demo(ctx, t, *keep); {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "demo: interrupted; everything was stopped")
	default:
		fmt.Fprintf(stderr, "demo: %v\n", err)
	}
	return 1
}

func demo(ctx context.Context, t *teller, keep bool) (err error) {
	repo, err := repositoryRoot()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gitopsd-demo-")
	if err != nil {
		return err
	}
	s := &stage{dir: dir, source: repo, teller: t}
	defer func() {
		s.close()
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w\nThe logs are in %s", err, dir)
			return
		}
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err := s.set(ctx); err != nil {
		return err
	}
	if err := s.story(ctx); err != nil {
		return err
	}
	if !keep {
		t.say("\n%s, all told. `make demo KEEP=1` leaves it running to look around.", time.Since(t.start).Round(time.Second))
		return nil
	}
	if err := s.lookAround(ctx); err != nil {
		return err
	}
	s.keep(ctx)
	return nil
}

// repositoryRoot returns the checkout that the demo runs in.
func repositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for _, need := range []string{"clusters.yaml", "examples", "bin/gitopsd", "bin/devcluster", "bin/kubectl"} {
		if _, err := os.Stat(filepath.Join(dir, need)); err != nil {
			return "", fmt.Errorf("%s is missing in %s: run `make demo` at the root of the checkout", need, dir)
		}
	}
	return dir, nil
}

// teller writes the story.
type teller struct {
	w     io.Writer
	start time.Time
	n     int
}

// step starts a step with one line that says what it shows.
func (t *teller) step(format string, args ...any) {
	t.n++
	fmt.Fprintf(t.w, "\n== %d. %s\n", t.n, fmt.Sprintf(format, args...))
}

func (t *teller) say(format string, args ...any) { fmt.Fprintf(t.w, format+"\n", args...) }

// columns is the width of the story.
const columns = 100

// indent writes the output of a program, indented and wrapped.
func (t *teller) indent(text string) {
	const margin = "   | "
	var wrapped strings.Builder
	w := show.NewText(&wrapped, show.Options{Width: columns - len(margin)})
	w.Indented("", show.Plain, text)
	_ = w.Flush() // a Builder takes everything
	for line := range lines(wrapped.String()) {
		fmt.Fprintf(t.w, "%s%s\n", margin, line)
	}
}
