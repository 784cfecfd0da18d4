// Command gitopsd keeps the APIs of a fleet of Kubernetes clusters as a Git repository declares
// and locks them. See `gitopsd help` and README.md.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"gitopsd.dev/cmd/gitopsd/cli"
)

func main() {
	cli.TuneGC()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	code := cli.Run(ctx, cli.Env{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv, Environ: os.Environ})
	stop()
	os.Exit(code)
}
