// Command bench measures gitopsd against rivals on the same servers, in one run. `make
// bench` runs it.
//
// bench.go has the table of benchmarks, each with a goal, and each experiment has a file
// of its own. Measured work runs in child processes: child.go runs them, server.go reads
// the CPU clocks of servers, and fixture.go starts the servers.
//
// Wall times are noise on shared machines, so most benchmarks compare CPU time, memory or
// requests. Rounds are interleaved and the median counts. The program ends with one line
// for each benchmark, sorted by name:
//
//	bench name=<name> ours=<value> rival=<value> unit=<unit> ratio=<ours/rival> goal=<ratio> <ok|short>
//
// The lines before show parts of our side's value, or values without a goal such as a
// rival's (part=rival:<name>):
//
//	note name=<name> part=<what> ours=<value> unit=<unit>
//
// The exit status is 0 even if goals are missed, and 2 if a measurement failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"go.etcd.io/etcd/server/v3/etcdmain"

	"gitopsd.dev/cmd/gitopsd/cli"
	"gitopsd.dev/reconcile/etcdproxy/proxytest"
	"gitopsd.dev/testscripts/webhookserver"
)

func main() {
	// Measured work runs in child processes: this program again, under another name.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case proxytest.ProxyChild:
			cli.TuneGC()
			proxytest.Main()
		case proxytest.EtcdChild:
			proxytest.Main()
		case grpcProxyChild:
			os.Args = append([]string{"etcd"}, os.Args[2:]...) // etcd's command reads os.Args
			etcdmain.Main(os.Args)
		case embeddedChild:
			cli.TuneGC()
			os.Exit(serveEmbedded(os.Args[2], os.Stdin, os.Stdout, os.Stderr))
		case oursChild:
			cli.TuneGC()
			os.Exit(runOurs(os.Args[2:], os.Stdout, os.Stderr))
		case workChild:
			os.Exit(runWork(os.Args[2:], os.Stdout, os.Stderr))
		case convertChild:
			os.Exit(serveConversions(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		case webhookChild:
			os.Args = os.Args[1:]
			webhookserver.Main()
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == daemonChild {
		cli.TuneGC()
		code := runDaemon(ctx, os.Args[2:])
		stop()
		os.Exit(code)
	}
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	pattern := flags.String("run", ".", "regular expression for the names of the benchmarks to run")
	rounds := flags.Int("n", 3, "rounds; the median counts")
	crds := flags.Int("crds", 900, "how many CRDs of provider-aws to apply; with fewer, constant costs weigh more")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	want, err := regexp.Compile(*pattern)
	if err != nil {
		fmt.Fprintf(stderr, "bench: -run: %v\n", err)
		return 2
	}
	b := &bench{want: want, rounds: *rounds, crds: *crds, out: stdout, say: stderr, samples: make(map[string]*samples), notes: make(map[string]map[string][]float64)}
	for _, e := range experiments {
		if err := b.experiment(ctx, e); err != nil {
			fmt.Fprintf(stderr, "bench: %v\n", err)
			return 2
		}
	}
	b.report()
	return 0
}
