package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/spf13/pflag"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/convert/serve"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/conversion"
)

// conversionOptions say where the daemon converts objects, for clusters that reach it by URL.
type conversionOptions struct {
	listen, tlsDir string
}

func (o *conversionOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "conversion-listen", "", "address to convert objects on, by HTTPS, for clusters with spec.conversion.url (default: none)")
	f.StringVar(&o.tlsDir, "conversion-tls-dir", "", "directory with tls.crt and tls.key for --conversion-listen, and ca.crt, which API servers are told to trust; read again when they are replaced")
}

// conversions is the server. The zero value serves nothing.
type conversions struct {
	daemon  *serve.Daemon
	counts  func() []status.Conversions
	stopped func()
}

// load loads the server's certificates; nil if there is to be none.
func (o *conversionOptions) load(log *slog.Logger) (*serve.Certificates, error) {
	if (o.listen == "") != (o.tlsDir == "") {
		return nil, errors.New("--conversion-listen and --conversion-tls-dir go together: set both")
	}
	if o.listen == "" {
		return nil, nil
	}
	certificates, err := serve.LoadCertificates(o.tlsDir, log)
	if err != nil {
		return nil, fmt.Errorf("--conversion-tls-dir: %w", err)
	}
	return certificates, nil
}

// start serves until stop is called; fail is told if serving ends by itself.
func (o *conversionOptions) start(ctx context.Context, log *slog.Logger, fail func(error)) (*conversions, error) {
	certificates, err := o.load(log)
	if certificates == nil {
		return &conversions{}, err
	}
	table := &convert.Table{}
	handler, err := convert.New(convert.Config{Table: table, Log: log})
	if err != nil {
		return nil, err
	}
	server, err := serve.Listen(o.listen, handler, certificates, log, func(err error) { fail(fmt.Errorf("serving conversions: %w", err)) })
	if err != nil {
		return nil, fmt.Errorf("--conversion-listen: %w", err)
	}
	log.Info("serving conversions", "address", server.Address.String())
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var follower sync.WaitGroup
	follower.Go(func() { certificates.Follow(following) })
	return &conversions{
		daemon: &serve.Daemon{Table: table, Certificates: certificates, Log: log}, counts: handler.Conversions,
		stopped: func() {
			server.End()
			cancel()
			follower.Wait()
		},
	}, nil
}

// computed gives the server the rules of a state.
func (c *conversions) computed(s *desired.State) {
	if c.daemon == nil {
		return
	}
	wanted := make(map[string][]*conversion.Set)
	for _, u := range s.Clusters {
		name := u.ID.String()
		if u.Err != nil {
			continue // its earlier rules stay
		}
		if spec := u.Spec.Conversion; spec == nil || spec.URL == "" {
			wanted[name] = nil
			continue
		}
		for _, v := range u.Conversions {
			wanted[name] = append(wanted[name], v.Set)
		}
	}
	c.daemon.Want(wanted)
}

// left stops serving a unit that left the fleet.
func (c *conversions) left(id desired.ID) {
	if c.daemon != nil {
		c.daemon.Leave(id.String())
	}
}

// stop finishes the requests under way.
func (c *conversions) stop() {
	if c.stopped != nil {
		c.stopped()
	}
}
