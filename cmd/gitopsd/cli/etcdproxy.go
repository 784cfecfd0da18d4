package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/etcdproxy/serve"
)

func newEtcdProxy(g *global) *cobra.Command {
	var c serve.Config
	cmd := &cobra.Command{
		Use:   "etcd-proxy --dir DIR",
		Short: "Serve an etcd namespace, as an etcd of its own",
		Long: `Etcd-proxy serves one etcd namespace to clients that have a certificate for it.
They see an etcd with only their own keys. The daemon renders a Deployment of this
command beside each EtcdNamespace, and writes its directory into a Secret; there is no
need to run it by hand.

It reads these files in --dir, again when they are replaced:

  namespace.json            the namespace: its prefix, number and limits
  endpoints                 URLs of etcd, one in a line
  upstream/{tls.crt,tls.key,ca.crt}
                            the certificate of the namespace's user in etcd, and
                            the CAs of etcd's certificates
  server/{tls.crt,tls.key}  what it serves with
  client-ca.crt             the CAs of clients' certificates

On --health-port it serves /healthz, /readyz and /metrics (Prometheus). On SIGTERM it
is no longer ready, goes on for five seconds, and lets the calls under way end.`,
		Example: `  gitopsd etcd-proxy --dir /etcd`,
		Args:    cobra.NoArgs, ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Dir == "" {
				return errors.New("--dir is required: the directory with namespace.json, endpoints and certificates")
			}
			c.Log = g.log(true)
			return serve.Run(cmd.Context(), c)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Bind, "bind", "", "address to listen on (default: all of the machine)")
	f.StringVar(&c.Port, "port", "2379", "port for etcd's clients")
	f.StringVar(&c.HealthPort, "health-port", "8080", "port for /healthz, /readyz and /metrics, without TLS")
	f.StringVar(&c.Dir, "dir", "", "directory of the namespace (required)")
	f.BoolVar(&c.GRPCGo, "grpc-go", false, "have the library grpc-go serve, which takes more CPU than relaying frames of HTTP/2; the answers are the same")
	_ = cmd.MarkFlagDirname("dir") // an error means that the flag does not exist
	return cmd
}
