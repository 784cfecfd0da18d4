package testscripts

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/testscripts/sigstore"
)

// signPackage signs a package with the key of the given name, or as an identity that the
// script's own Sigstore instance certifies.
func signPackage(ctx context.Context, s *scenario, c *call) error {
	if err := s.needRegistry(); err != nil {
		return err
	}
	var bundle bool
	var issuer string
	err := c.flags(func(f *flag.FlagSet) {
		f.BoolVar(&bundle, "bundle", false, "")
		f.StringVar(&issuer, "issuer", "", "")
	}, 2, 2)
	if err != nil {
		return err
	}
	signer, err := s.signer(issuer, c.args[0])
	if err != nil {
		return err
	}
	client, err := s.registryClient()
	if err != nil {
		return err
	}
	defer client.Close()
	ref, err := sources.ParseRef(strings.Replace(c.args[1], registryName+"/", s.registry.Host()+"/", 1))
	if err != nil {
		return err
	}
	d, err := client.Resolve(ctx, ref)
	if err != nil {
		return err
	}
	var layer sigstore.Layer
	if bundle {
		layer, err = signer.Bundle(d, sigstore.SignPredicate)
	} else {
		layer, err = signer.Simple(d)
	}
	if err != nil {
		return err
	}
	return sigstore.Push(ctx, client, ref.Repository, d, layer)
}

// signer returns the signer with this name, making it on first use, and writes its
// public key or trust root into the script's directory.
func (s *scenario) signer(issuer, name string) (*sigstore.Signer, error) {
	if issuer == "" {
		if k := s.keys[name]; k != nil {
			return k, nil
		}
		k, err := sigstore.NewKey()
		if err != nil {
			return nil, err
		}
		if s.keys == nil {
			s.keys = make(map[string]*sigstore.Signer)
		}
		s.keys[name] = k
		return k, os.WriteFile(filepath.Join(s.work, name+".pub"), k.PublicKey(), 0o644)
	}
	if s.sigstore == nil {
		instance, err := sigstore.New()
		if err != nil {
			return nil, err
		}
		s.sigstore = instance
		if err := os.WriteFile(filepath.Join(s.work, "trusted_root.json"), instance.TrustRoot(), 0o644); err != nil {
			return nil, err
		}
	}
	return s.sigstore.Keyless(issuer, name, true)
}

// registryClient returns a client with all rights in the script's registry.
func (s *scenario) registryClient() (*oci.Client, error) {
	cfg := oci.Config{}
	if ca := s.registry.CA(); ca != nil {
		cfg.CAFile = filepath.Join(s.work, ".registry-ca.pem")
		if err := os.WriteFile(cfg.CAFile, ca, 0o600); err != nil {
			return nil, err
		}
	}
	client, err := oci.New(cfg)
	if err != nil {
		return nil, err
	}
	creds, err := oci.ParseCredentials("the script", s.registry.DockerConfig())
	if err != nil {
		return nil, err
	}
	return client.With(func(context.Context) ([]*oci.Credentials, error) { return []*oci.Credentials{creds}, nil }), nil
}
