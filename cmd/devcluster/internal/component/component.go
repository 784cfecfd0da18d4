// Package component runs one process of a control plane: etcd, kube-apiserver,
// kube-controller-manager or the kubelet stand-in, in this very process.
//
// It owns how each is configured ([Etcd], [APIServer], [ControllerManager] and
// [Kubelet] turn a configuration into arguments) and how it is run ([Run]).
// Package controlplane decides which processes run, and in which order.
package component

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"

	"gitopsd.dev/cmd/devcluster/internal/kubelet"
	"gitopsd.dev/cmd/devcluster/internal/process"
)

// Names of the components: the first argument of [Run] and the end of the
// names of log files.
const (
	NameEtcd              = "etcd"
	NameAPIServer         = "kube-apiserver"
	NameControllerManager = "kube-controller-manager"
	NameKubelet           = "kubelet"
)

// Environment returns additions to a component's environment.
//
// Where API servers are used for tests, processors are scarcer than memory:
// while an API server takes in 100 large CRDs, GOGC=200 saves it a fifth of the
// time of its processors, for a third more memory (measured with Kubernetes
// 1.36). A GOGC of the user's own has precedence.
func Environment(name string) []string {
	if _, set := os.LookupEnv("GOGC"); set || name != NameAPIServer {
		return nil
	}
	return []string{"GOGC=200"}
}

// Run is the component until SIGTERM, or until the end of the process that
// [process.Enter] is told about on stdin. args are the component's name and
// what the functions of this package return. The result is an exit status.
func Run(args []string, stdin io.Reader, stderr io.Writer) int {
	if err := run(args, stdin); err != nil {
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return 1
	}
	return 0
}

func run(args []string, stdin io.Reader) error {
	if len(args) == 0 {
		return errors.New("no component named")
	}
	components := map[string]func(args []string) error{
		NameEtcd:              untilSignal(runEtcd),
		NameAPIServer:         func(args []string) error { return runCommand(apiserver.NewAPIServerCommand(), args) },
		NameControllerManager: func(args []string) error { return runCommand(controllermanager.NewControllerManagerCommand(), args) },
		NameKubelet:           untilSignal(runKubelet),
	}
	component, ok := components[args[0]]
	if !ok {
		return fmt.Errorf("unknown component %q", args[0])
	}
	if err := process.Enter(stdin); err != nil {
		return err
	}
	version, err := KubernetesVersion()
	if err != nil {
		return err
	}
	if err := setVersion(version); err != nil {
		return err
	}
	return component(args[1:])
}

// untilSignal gives a component a context that ends with SIGTERM.
func untilSignal(run func(context.Context, []string) error) func([]string) error {
	return func(args []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return run(ctx, args)
	}
}

// runCommand runs a component that is made of a cobra command and handles
// signals by itself.
func runCommand(cmd *cobra.Command, args []string) error {
	cmd.SetArgs(args)
	return cli.RunNoErrOutput(cmd)
}

func runKubelet(ctx context.Context, args []string) error {
	var cfg kubelet.Config
	flags := flag.NewFlagSet(NameKubelet, flag.ContinueOnError)
	flags.StringVar(&cfg.Kubeconfig, "kubeconfig", "", "")
	flags.StringVar(&cfg.NodeName, "node-name", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return kubelet.Run(ctx, cfg)
}
