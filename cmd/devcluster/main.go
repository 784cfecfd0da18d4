// Devcluster runs real Kubernetes control planes on one machine, for
// development, demos and tests: etcd, kube-apiserver, controllers of
// kube-controller-manager and a stand-in for a node, all from this one binary. The
// binary is also Kubernetes' sample-apiserver. Directory kubectl has the kubectl of the
// same version.
//
// commands.go has the command line. Below internal/, controlplane decides which
// processes run when, component configures them, servers runs one, process starts and
// finds them, statedir keeps the files, and pki makes certificates. Package controllers
// runs Kubernetes' controllers, and kubelet is the stand-in for a node. It runs pods as
// processes by package pods; podspec computes their environment, arguments and files,
// and egress connects the API server to them.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"gitopsd.dev/cmd/devcluster/internal/controlplane"
	"gitopsd.dev/cmd/devcluster/internal/servers"
)

func main() {
	// These handle signals themselves. Only devcluster itself starts components.
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case controlplane.Subcommand:
			os.Exit(servers.Run(os.Args[2:], os.Stdin, os.Stderr))
		case "sample-apiserver":
			os.Exit(servers.SampleAPIServer(os.Args[2:], os.Stdout, os.Stderr))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return 1
	}
	return 0
}
