package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

type conversionServerOptions struct {
	bind, port, health string
	tlsDir             string
	kubeconfig         string
	required           []string
}

func newConversionServer(g *global) *cobra.Command {
	var o conversionServerOptions
	cmd := &cobra.Command{
		Use:   "conversion-server --tls-dir DIR",
		Short: "Convert a cluster's objects by conversion rules, for its API servers",
		Long: `Conversion-server answers the ConversionReviews of a cluster's API servers, by the
conversion rules in ConfigMaps of the namespace gitopsd-system (with the label
` + manifest.ConversionLabel + `: "true"). The daemon puts them there, and renders a
Deployment of this command for clusters with spec.conversion.service; there is no
need to run it by hand.

It serves HTTPS with tls.crt and tls.key in --tls-dir, and reads them again when they
are replaced. On --health-port it serves /healthz, /readyz and /metrics (Prometheus).
It is ready when it has compiled all rules that --require names.

On SIGTERM it is no longer ready, goes on for five seconds, and finishes the requests
under way.`,
		Example: `  gitopsd conversion-server --tls-dir /tls`,
		Args:    cobra.NoArgs, ValidArgsFunction: completeNothing,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	f.StringVar(&o.bind, "bind", "", "address to listen on (default: all of the machine)")
	f.StringVar(&o.port, "https-port", "9443", "port for conversion reviews")
	f.StringVar(&o.health, "health-port", "8080", "port for /healthz, /readyz and /metrics, without TLS")
	f.StringVar(&o.tlsDir, "tls-dir", "", "directory with tls.crt and tls.key (required)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file of the cluster (default: $KUBECONFIG, or the cluster that it runs in)")
	f.StringArrayVar(&o.required, "require", nil, "rules without which it is not ready, as <definition>/<digest in hex>; may be given more than once")
	return cmd
}

func (o *conversionServerOptions) run(cmd *cobra.Command, g *global) error {
	if o.tlsDir == "" {
		return errors.New("--tls-dir is required: the directory with tls.crt and tls.key")
	}
	if err := serve.CheckRequired(o.required); err != nil {
		return fmt.Errorf("--require %w", err)
	}
	var content []byte
	if o.kubeconfig != "" {
		var err error
		if content, err = os.ReadFile(o.kubeconfig); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	client, err := kube.New(kube.Config{Name: "the cluster", Kubeconfig: content, Trusted: true, UserAgent: userAgent()})
	if err != nil {
		return err
	}
	defer client.Close()
	log := g.log(true)
	table := &convert.Table{}
	return serve.Run(cmd.Context(), serve.Config{
		Bind: o.bind, Port: o.port, HealthPort: o.health, TLSDir: o.tlsDir, Log: log,
		Follower: &serve.Follower{Client: client, Table: table, Required: o.required, Log: log},
	})
}
