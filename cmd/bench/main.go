// Command bench measures gitopsd against a rival on the same servers, in one
// run. `make bench` runs it.
//
// Each benchmark has a name, a rival and a goal (bench.go). Wall times are noise
// on shared machines, so benchmarks compare CPU time (getrusage of a child
// process, the CPU clock of the API server), requests and allocations. Rounds are
// interleaved and the median counts. The program ends with one line for each
// benchmark, sorted by name:
//
//	bench name=<name> ours=<value> rival=<value> unit=<unit> ratio=<ours/rival> goal=<ratio> <ok|short>
//
// Lines before it show notable parts of our side's value, or the value of a rival that
// sets no goal (part=rival:<name>):
//
//	note name=<name> part=<what> ours=<value> unit=<unit>
//
// It exits with 0 whatever falls short, and with 2 when it could not measure.
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
	// Work that is compared by CPU or memory runs in processes of its own: this
	// program again, under another name.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case proxytest.ProxyChild:
			cli.TuneGC()
			proxytest.Main()
		case proxytest.EtcdChild:
			proxytest.Main()
		case grpcProxyChild:
			os.Args = append([]string{"etcd"}, os.Args[2:]...) // where its command looks for arguments
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
	crds := flags.Int("crds", 900, "how many CRDs of provider-aws are applied; with fewer, what is the same for any number weighs more")
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
