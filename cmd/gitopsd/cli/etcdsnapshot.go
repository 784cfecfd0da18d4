package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/embedded"
)

func newEtcd(g *global) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Save and restore the etcd that etcd namespaces are in",
		Long: `Etcd saves and restores the etcd of etcd namespaces.

The etcd in --etcd-servers must be 3.6.14 or 3.7.1 at least, since older versions let a
role escape its range of keys. It must ask clients for certificates (--client-cert-auth,
--trusted-ca-file) and have authentication enabled. gitopsd's certificate must be for a
user with the root role:

  etcdctl user add root --no-password
  etcdctl user grant-role root root
  etcdctl auth enable

gitopsd changes neither by itself; the condition of each EtcdNamespace says what is
missing. With --etcd-embedded there is nothing to prepare.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEtcdSnapshot(g), newEtcdRestore(g), newEtcdRestoreData())
	return cmd
}

func newEtcdSnapshot(g *global) *cobra.Command {
	var o etcdOptions
	cmd := &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Write a snapshot of the etcd into a new file",
		Long: `Snapshot writes the whole content of the etcd into a new file: all namespaces, the keys
of others who use it, and its users. A daemon with --etcd-embedded may go on running
meanwhile.`,
		Example: `  gitopsd etcd snapshot --etcd-embedded /var/lib/gitopsd/etcd etcd.snapshot`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			switch {
			case o.embedded != "":
				return embedded.Snapshot(cmd.Context(), embedded.Config{Log: g.log(false), Dir: o.embedded}, args[0])
			case len(o.servers) == 0:
				return errors.New("name the etcd: --etcd-embedded DIR, or --etcd-servers")
			}
			admin, err := etcd.Open(o.external("snapshot", g.log(false)))
			if err != nil {
				return err
			}
			return admin.Snapshot(cmd.Context(), args[0])
		},
	}
	f := cmd.Flags()
	o.register(f)
	annotate(f, "etcd-servers", yields, "etcd-embedded")
	annotate(f, "etcd-embedded", yields, "etcd-servers")
	for _, file := range []string{"etcd-cafile", "etcd-certfile", "etcd-keyfile"} {
		annotate(f, file, needs, "etcd-servers")
	}
	return cmd
}

func newEtcdRestore(g *global) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "restore FILE --etcd-embedded DIR",
		Short: "Make the directory of an embedded etcd from a snapshot",
		Long: `Restore makes a directory for run --etcd-embedded from a snapshot. The directory must
not exist, or must be empty except for lost+found. Clients of namespaces get new
certificates from the daemon, and read everything again: the revisions that they know
count as compacted. The etcd makes a new CA. Unless --etcd-proxy-tls-dir is set, it also
signs the certificate of the daemon as the proxy: restart API servers that connect to the
daemon once their Secrets have the new CA.

A snapshot of an etcd of several members is restored with etcdutl.`,
		Example: `  gitopsd etcd restore etcd.snapshot --etcd-embedded /var/lib/gitopsd/restored`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return errors.New("--etcd-embedded is required: the directory to make")
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			c := embedded.Config{Log: g.log(false), Dir: dir, RestoreCommand: []string{self, cmd.Parent().Name(), restoreData}}
			if err := embedded.Restore(cmd.Context(), c, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is ready for gitopsd run --etcd-embedded %s\n", dir, dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "etcd-embedded", "", "directory to make (required)")
	_ = cmd.MarkFlagDirname("etcd-embedded") // an error means that the flag does not exist
	return cmd
}

const restoreData = "restore-data"

// newEtcdRestoreData returns the command that restore runs as a separate process, since a
// crafted snapshot may crash it.
func newEtcdRestoreData() *cobra.Command {
	return &cobra.Command{
		Use:    restoreData + " FILE DIR",
		Hidden: true,
		Short:  "Make etcd's data directory from a snapshot",
		Long: `Restore runs restore-data to read the snapshot. It makes only etcd's own data
directory. There is no need to run it by hand.`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: completeNothing,
		RunE: func(_ *cobra.Command, args []string) error { return embedded.RestoreData(args[0], args[1]) },
	}
}
