package cli

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"gitopsd.dev/reconcile/applications"
	"gitopsd.dev/reconcile/certs"
	"gitopsd.dev/reconcile/certs/rotation"
	"gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/unit"
)

// certificateOptions say how long serving certificates live, and who signs them. The
// zero value has the defaults.
type certificateOptions struct {
	authority            string
	lifetime, caLifetime time.Duration
	settle               time.Duration
}

func (o *certificateOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.authority, "certificate-authority", "", "Secret in each cluster's namespace gitopsd-system with the CA (tls.crt, tls.key) that signs serving certificates, unless the cluster (spec.certificates.authority) or the package names another (default: gitopsd makes a CA for each Service)")
	f.DurationVar(&o.lifetime, "certificate-lifetime", certs.DefaultLeaf, "lifetime of serving certificates; a new one is made when a third of it is left")
	f.DurationVar(&o.caLifetime, "ca-lifetime", certs.DefaultAuthority, "lifetime of CAs that gitopsd makes, at least three times --certificate-lifetime; a new one is made when a third of it is left")
	f.DurationVar(&o.settle, "certificate-settle", 0, "how long a new CA has been in every bundle before it signs; it should not be shorter than an attempt at a cluster (default --cluster-timeout, but at most a third of --certificate-lifetime)")
}

// completers returns the completers of units. attempt is the longest time for an attempt at
// a unit. converter is the daemon's conversion server, nil if there is none.
func (o *certificateOptions) completers(attempt time.Duration, converter *serve.Daemon) ([]unit.Completer, error) {
	p := rotation.Policy{Leaf: cmp.Or(o.lifetime, certs.DefaultLeaf), Authority: cmp.Or(o.caLifetime, certs.DefaultAuthority), Settle: o.settle}
	if p.Settle == 0 {
		p.Settle = min(attempt, p.Leaf/3)
	}
	completer, err := certs.New(certs.Config{Policy: p, Authority: o.authority})
	if err != nil {
		return nil, fmt.Errorf("--certificate-lifetime, --ca-lifetime, --certificate-settle and --certificate-authority: %w", err)
	}
	if converter == nil {
		converter = &serve.Daemon{}
	}
	all := []unit.Completer{completer, converter, applications.Preview{}}
	if converter.Certificates != nil {
		all = append(all, converter.Certificates)
	}
	return all, nil
}
