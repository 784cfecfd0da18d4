// Package servers runs one component of a control plane in this process, with the
// arguments from package component. Only this package and package controllers import etcd
// and k8s.io/kubernetes.
package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	sampleapiserver "k8s.io/sample-apiserver/pkg/cmd/server"

	"gitopsd.dev/cmd/devcluster/internal/component"
	"gitopsd.dev/cmd/devcluster/internal/controllers"
	"gitopsd.dev/cmd/devcluster/internal/kubelet"
	"gitopsd.dev/cmd/devcluster/internal/process"
)

// Run runs a component until SIGTERM, or until the end of its owner, which
// [process.Enter] reads from stdin. args are the result of a function of package
// component. The result is an exit status.
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
		component.NameEtcd:              untilSignal(runEtcd),
		component.NameAPIServer:         func(args []string) error { return runCommand(apiserver.NewAPIServerCommand(), args) },
		component.NameControllerManager: untilSignal(runControllers),
		component.NameKubelet:           untilSignal(runKubelet),
	}
	start, ok := components[args[0]]
	if !ok {
		return fmt.Errorf("unknown component %q", args[0])
	}
	// Without its owner a component exits at once: nobody waits for an orderly end,
	// which takes an API server without etcd minutes. The kubelet stand-in must end the
	// processes of pods.
	orphaned := func() { os.Exit(1) }
	if args[0] == component.NameKubelet {
		orphaned = func() { syscall.Kill(os.Getpid(), syscall.SIGTERM) }
	}
	if err := process.Enter(stdin, orphaned); err != nil {
		return err
	}
	version, err := KubernetesVersion()
	if err != nil {
		return err
	}
	if err := setVersion(version); err != nil {
		return err
	}
	return start(args[1:])
}

// SampleAPIServer runs Kubernetes' example of an aggregated API server until SIGTERM, with
// the arguments of the program of that name. The result is an exit status.
func SampleAPIServer(args []string, stdout, stderr io.Writer) int {
	cmd := sampleapiserver.NewCommandStartWardleServer(genericapiserver.SetupSignalContext(), sampleapiserver.NewWardleServerOptions(stdout, stderr), false)
	cmd.SetArgs(args)
	return cli.Run(cmd)
}

// untilSignal runs a component with a context that ends at SIGTERM or an interrupt.
func untilSignal(run func(context.Context, []string) error) func([]string) error {
	return func(args []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return run(ctx, args)
	}
}

// runCommand runs a component that is a cobra command and handles signals itself.
func runCommand(cmd *cobra.Command, args []string) error {
	cmd.SetArgs(args)
	return cli.RunNoErrOutput(cmd)
}

func runControllers(ctx context.Context, args []string) error {
	var c component.ControllersConfig
	if err := parse(args, &c); err != nil {
		return err
	}
	return controllers.Run(ctx, c)
}

func runKubelet(ctx context.Context, args []string) error {
	var c kubelet.Config
	if err := parse(args, &c); err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	return kubelet.Run(ctx, c, reload)
}

// parse decodes the configuration in the arguments of a component.
func parse(args []string, config any) error {
	if len(args) != 1 {
		return fmt.Errorf("%d arguments, want a configuration as JSON", len(args))
	}
	return json.Unmarshal([]byte(args[0]), config)
}
