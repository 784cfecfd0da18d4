package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/devcluster/internal/controlplane"
	"gitopsd.dev/cmd/devcluster/internal/kubelet"
	"gitopsd.dev/cmd/devcluster/internal/process"
	"gitopsd.dev/cmd/devcluster/internal/servers"
	"gitopsd.dev/cmd/devcluster/internal/statedir"
)

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "devcluster",
		Short: "Real Kubernetes control planes on one machine",
		Long: `devcluster runs Kubernetes control planes for development, demos and tests: a
kube-apiserver, Kubernetes' controllers and a node for each cluster, one etcd
for all, on free ports of the loopback interface, with TLS, RBAC and admission
as usual. It needs neither containers nor root.

No container runs. The node is a stand-in that binds pods and reports them ready
at once. A pod with the annotation ` + kubelet.FailAnnotation + `: REASON does
not become ready, one with ` + kubelet.ImageIDAnnotation + `: ID
reports that image ID, and one of a Job completes.

"devcluster image" makes a command stand for an image: its pods are then processes
of this machine, with their environment, Secrets and ConfigMaps, ready when their
probe says so. The API server reaches them by Service, so that webhooks, conversion
and aggregated APIs work. Cluster IPs and pod IPs lead nowhere else.

Everything is kept in the directory that --dir names, logs in its logs/.

"devcluster sample-apiserver" is Kubernetes' example of an aggregated API server.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", "", "directory that holds the clusters (required)")
	run := func(do doFunc) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			d, err := statedir.Open(dir)
			if err != nil {
				return err
			}
			return do(cmd.Context(), controlplane.Config{Dir: d, Out: cmd.OutOrStdout()}, args)
		}
	}
	root.AddCommand(upCommand(run), addCommand(run), downCommand(run), stopCommand(run), startCommand(run),
		imageCommand(run), logsCommand(run), storedCommand(run), versionCommand())
	return root
}

// doFunc carries out a command.
type doFunc func(ctx context.Context, cfg controlplane.Config, args []string) error

// runFunc makes a cobra command's RunE of a doFunc. The configuration comes from the
// common flags.
type runFunc func(doFunc) func(*cobra.Command, []string) error

// newClusterFlags adds the flags of commands that make clusters. Call complete once the
// flags are parsed; it sets the remaining options.
func newClusterFlags(cmd *cobra.Command, o *controlplane.Options) (complete func() error) {
	var etcd statedir.ExternalEtcd
	cmd.Flags().StringSliceVar(&etcd.Servers, "etcd-servers", nil, "URLs of an etcd for new clusters, instead of devcluster's own; keys are below /registry")
	cmd.Flags().StringVar(&etcd.CAFile, "etcd-cafile", "", "file with the CA of that etcd")
	cmd.Flags().StringVar(&etcd.CertFile, "etcd-certfile", "", "file with a client certificate for that etcd")
	cmd.Flags().StringVar(&etcd.KeyFile, "etcd-keyfile", "", "file with its key")
	cmd.Flags().BoolVar(&o.ControllerManager, "controller-manager", true,
		"run Kubernetes' controllers in new clusters; without them there are no\nDeployments, no garbage collection and no service accounts, and 100 MB less")
	cmd.Flags().BoolVar(&o.StorageMigration, "storage-migration", false,
		"have new clusters offer storagemigration.k8s.io, by which Kubernetes stores objects again")
	return func() error {
		files := []*string{&etcd.CAFile, &etcd.CertFile, &etcd.KeyFile}
		if len(etcd.Servers) == 0 {
			if slices.ContainsFunc(files, func(f *string) bool { return *f != "" }) {
				return errors.New("files for an etcd, but no --etcd-servers")
			}
			return nil
		}
		for _, f := range files {
			if *f == "" {
				continue
			}
			if _, err := os.Stat(*f); err != nil {
				return err
			}
			// Components run in another directory.
			abs, err := filepath.Abs(*f)
			if err != nil {
				return err
			}
			*f = abs
		}
		o.Etcd = &etcd
		return nil
	}
}

func upCommand(run runFunc) *cobra.Command {
	var o controlplane.Options
	var foreground bool
	var complete func() error
	cmd := &cobra.Command{
		Use:   "up --dir DIR --clusters NAME,...",
		Short: "Bring clusters up and wait until they are ready",
		Long: `Brings up etcd and the named clusters, waits until they are ready, and leaves
them running. DIR/NAME.kubeconfig is a kubeconfig with the rights of cluster-admin.

Running processes are left alone and missing ones are started, so the same
command repairs clusters after a crash, with their data. Without --clusters
it brings up the clusters in DIR.

With --foreground it prints "running until interrupted" when all is ready, and
stays until it is interrupted or its parent ends. Then all processes end, even
if it is killed. The data stays; see "down".`,
		Example: `  devcluster up --dir /tmp/fleet --clusters hub,dev,prod
  kubectl --kubeconfig /tmp/fleet/hub.kubeconfig get nodes`,
		Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, cfg controlplane.Config, _ []string) error {
			if err := complete(); err != nil {
				return err
			}
			if !foreground {
				return controlplane.Up(ctx, cfg, o)
			}
			ctx, cancel := process.WithParent(ctx)
			defer cancel()
			return controlplane.Foreground(ctx, cfg, o)
		}),
	}
	cmd.Flags().StringSliceVar(&o.Clusters, "clusters", nil, "names of the clusters")
	cmd.Flags().BoolVar(&foreground, "foreground", false, "stay, and end everything when this process or its parent ends")
	complete = newClusterFlags(cmd, &o)
	return cmd
}

func addCommand(run runFunc) *cobra.Command {
	var o controlplane.Options
	var complete func() error
	cmd := &cobra.Command{
		Use:     "add --dir DIR NAME...",
		Short:   "Add clusters to a directory that is up",
		Example: `  devcluster add --dir /tmp/fleet staging`,
		Args:    cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, cfg controlplane.Config, names []string) error {
			if err := complete(); err != nil {
				return err
			}
			o.Clusters = names
			return controlplane.Add(ctx, cfg, o)
		}),
	}
	complete = newClusterFlags(cmd, &o)
	return cmd
}

func downCommand(run runFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "down --dir DIR",
		Short: "Stop everything and remove the files of up",
		Long: `Stops all clusters of DIR and etcd, makes sure that no process and no port is
left, and removes data, keys, logs and kubeconfigs. Files that others have put
into DIR stay, and so does a kubeconfig that was changed.`,
		Args: cobra.NoArgs,
		RunE: run(func(ctx context.Context, cfg controlplane.Config, _ []string) error {
			return controlplane.Down(ctx, cfg)
		}),
	}
}

func stopCommand(run runFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "stop --dir DIR NAME...",
		Short: "Stop clusters for a while",
		Long: `Ends the processes of these clusters. Their data, ports and kubeconfigs stay;
"start" or "up" brings them back as they were.`,
		Args: cobra.MinimumNArgs(1),
		RunE: run(controlplane.Stop),
	}
}

func startCommand(run runFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "start --dir DIR NAME...",
		Short: "Bring stopped clusters back",
		Long: `Starts clusters that "stop" stopped, on the same ports and with the same data, and
waits until they are ready. "add" makes new clusters.`,
		Args: cobra.MinimumNArgs(1),
		RunE: run(controlplane.Start),
	}
}

func imageCommand(run runFunc) *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "image --dir DIR NAME [REPOSITORY COMMAND [ARG...]]",
		Short: "Run pods of an image as processes",
		Long: `Makes COMMAND stand for the entry point of the images of REPOSITORY, with any tag
or digest, in the cluster NAME, until "down". Pods with such an image run it as a
process, including existing pods. Without REPOSITORY it lists the images.
With --remove it forgets these repositories, or all; their pods are then reported ready
again without running.

The arguments of a process are ARGs, its container's command without the first word, and
its args. Its environment is its container's, and

  POD_IP                    the address of this machine that it must listen on;
                            the field status.podIP has the same value
  KUBECONFIG                a kubeconfig of its service account
  KUBERNETES_SERVICE_HOST   the API server's address on this machine, and
  KUBERNETES_SERVICE_PORT   its port

Volumes are directories with the files of Secrets, ConfigMaps, tokens and fields,
replaced within a second of a change. Paths at or below a mountPath are rewritten to
them in arguments and in the environment. The container waits for objects that are
missing and not optional. It is ready when its readiness probe (httpGet or tcpSocket)
passes, and is restarted when it ends. "devcluster logs" prints its output.

Init containers do not run, nor do liveness and startup probes. Flags of devcluster
come before NAME.`,
		Example: `  devcluster image --dir /tmp/fleet dev ghcr.io/example/webhook ./webhook -v
  devcluster image --dir /tmp/fleet --remove dev ghcr.io/example/webhook`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("which cluster?")
			case len(args) == 2 && !remove:
				return fmt.Errorf("which command stands for %s?", args[1])
			}
			return nil
		},
		RunE: run(func(ctx context.Context, cfg controlplane.Config, args []string) error {
			switch {
			case remove:
				return controlplane.RemoveImages(ctx, cfg, args[0], args[1:])
			case len(args) == 1:
				return controlplane.ListImages(ctx, cfg, args[0])
			}
			return controlplane.SetImage(ctx, cfg, args[0], args[1], args[2:])
		}),
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "forget images")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

func logsCommand(run runFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "logs --dir DIR NAME [NAMESPACE/POD]",
		Short: "Print the output of pods that are processes",
		Long: `Prints the output of the processes of a pod, or of all pods of the cluster NAME,
including pods that have ended. The files are DIR/NAME/logs/NAMESPACE/POD/CONTAINER.log.
A file that becomes longer than 10 MiB is cut to its last MiB.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: run(func(ctx context.Context, cfg controlplane.Config, args []string) error {
			return controlplane.Logs(ctx, cfg, args[0], append(args, "")[1])
		}),
	}
}

func storedCommand(run runFunc) *cobra.Command {
	return &cobra.Command{
		Use:   "stored --dir DIR NAME GROUP/RESOURCE",
		Short: "Print objects as etcd has them",
		Long: `Prints a line for each object of a resource: NAMESPACE/NAME or NAME, and the
stored bytes. Objects of CRDs are stored as JSON, in the storage version at their
last write; most of Kubernetes' own are protobuf.`,
		Example: `  devcluster stored --dir /tmp/fleet dev acme.example/widgets`,
		Args:    cobra.ExactArgs(2),
		RunE: run(func(ctx context.Context, cfg controlplane.Config, args []string) error {
			return controlplane.Stored(ctx, cfg, args[0], args[1])
		}),
	}
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of Kubernetes and etcd in this binary",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kubernetes, err := servers.KubernetesVersion()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "kubernetes %s\netcd v%s\n", kubernetes, servers.EtcdVersion)
			return err
		},
	}
}
