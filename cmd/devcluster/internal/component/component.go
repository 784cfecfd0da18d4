// Package component runs one process of a control plane: etcd, kube-apiserver,
// kube-controller-manager or the kubelet stand-in, in this very process.
//
// It owns how each is configured ([Etcd], [APIServer], [ControllerManager] and
// [Kubelet] turn a configuration into arguments) and how it is run ([Run]).
// Which processes there are, in which order, is package controlplane's matter.
package component

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	if err := process.Enter(stdin); err != nil {
		return err
	}
	if err := setVersion(); err != nil {
		return err
	}
	name, args := args[0], args[1:]
	switch name {
	case NameAPIServer:
		return runCommand(apiserver.NewAPIServerCommand(), args)
	case NameControllerManager:
		return runCommand(controllermanager.NewControllerManagerCommand(), args)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	switch name {
	case NameEtcd:
		return runEtcd(ctx, args)
	case NameKubelet:
		return runKubelet(ctx, args)
	}
	return fmt.Errorf("unknown component %q", name)
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
