package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gitopsd.dev/reconcile/certs/rotation"
)

// Lifetimes. The CA's key never leaves the directory, so the CA may live as long as the data.
// Certificates are renewed when a third of their lifetime is left.
const (
	lifeOfCA   = 20 * 365 * 24 * time.Hour
	lifeOfLeaf = 90 * 24 * time.Hour
)

// proxyDir is the directory of the proxy's certificate.
const proxyDir = "proxy"

// rootUser is etcd's root user, and the common name of its certificate.
const rootUser = "root"

// pki is the CA and the certificates in a directory.
type pki struct {
	dir   string
	names []string
	now   func() time.Time
}

// serving returns the profile of a serving certificate.
func (p pki) serving(name string) rotation.Profile {
	profile := rotation.Profile{Name: name, Host: "localhost", DNSNames: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}}
	for _, name := range p.names {
		switch ip := net.ParseIP(name); {
		case ip == nil && !slices.Contains(profile.DNSNames, name):
			profile.DNSNames = append(profile.DNSNames, name)
		case ip != nil && !ip.IsUnspecified() && !slices.ContainsFunc(profile.IPs, ip.Equal):
			profile.IPs = append(profile.IPs, ip)
		}
	}
	return profile
}

// ensure creates or renews certificates as necessary, and returns when to call it again.
func (p pki) ensure() (again time.Time, err error) {
	ca, err := p.authority()
	if err != nil {
		return time.Time{}, err
	}
	if err := p.proxy(ca); err != nil {
		return time.Time{}, err
	}
	for name, profile := range map[string]rotation.Profile{
		"server": p.serving("gitopsd etcd"), "root": {Name: rootUser}, proxyDir + "/tls": p.serving("gitopsd etcd proxy"),
	} {
		due, err := p.leaf(ca, name, profile)
		if err != nil {
			return time.Time{}, fmt.Errorf("certificate %s.crt: %w", name, err)
		}
		if again.IsZero() || due.Before(again) {
			again = due
		}
	}
	return again, nil
}

// proxy creates the proxy's directory, with the CA for its clients.
func (p pki) proxy(ca rotation.Authority) error {
	if err := os.MkdirAll(p.file(proxyDir), 0o700); err != nil {
		return err
	}
	want := rotation.Encode(ca.Cert)
	if have, err := os.ReadFile(p.file(proxyDir + "/ca.crt")); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return writeFile(p.file(proxyDir+"/ca.crt"), want)
}

// authority returns the CA, and creates it if there is none.
func (p pki) authority() (rotation.Authority, error) {
	crt, err := os.ReadFile(p.file("ca.crt"))
	if errors.Is(err, fs.ErrNotExist) {
		return p.mint()
	}
	if err != nil {
		return rotation.Authority{}, err
	}
	key, err := os.ReadFile(p.file("ca.key"))
	if err != nil {
		return rotation.Authority{}, fmt.Errorf("the CA's certificate is there without its key (%w); bring ca.key back, or remove ca.crt and a new CA is made, by which clients must be given new certificates", err)
	}
	chain, signer, err := rotation.ParsePair(crt, key)
	if err != nil || !rotation.IsCA(chain[0]) {
		return rotation.Authority{}, errors.New("ca.crt and ca.key are not a CA and its key; bring them back, or remove both and a new CA is made, by which clients must be given new certificates")
	}
	const anew = "correct the clock, or, if it is right, remove ca.crt and ca.key and a new CA is made, by which clients must be given new certificates"
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch now, ca := p.now(), chain[0]; {
	case now.Before(ca.NotBefore):
		return rotation.Authority{}, fmt.Errorf("ca.crt is valid only from %s on, and the clock says %s: it is behind, or was ahead when the CA was made; %s", at(ca.NotBefore), at(now), anew)
	case now.After(ca.NotAfter):
		return rotation.Authority{}, fmt.Errorf("ca.crt expired at %s, and the clock says %s: it is ahead, or was behind when the CA was made, or the CA's life has ended; %s", at(ca.NotAfter), at(now), anew)
	}
	return rotation.Authority{Cert: chain[0], Key: signer}, nil
}

// mint creates a CA. It writes the key first: a key without a certificate has signed nothing.
func (p pki) mint() (rotation.Authority, error) {
	now := p.now().UTC().Truncate(time.Second)
	ca, err := rotation.Profile{Name: "embedded etcd"}.Mint(now.Add(-rotation.Skew), now.Add(lifeOfCA))
	if err != nil {
		return ca, err
	}
	key, err := rotation.EncodeKey(ca.Key)
	if err != nil {
		return ca, err
	}
	if err := writeFile(p.file("ca.key"), key); err != nil {
		return ca, err
	}
	return ca, writeFile(p.file("ca.crt"), rotation.Encode(ca.Cert))
}

// leaf keeps one certificate, and returns when to renew it. The two files of a new pair are not replaced
// at once: readers have to retry if they do not match.
func (p pki) leaf(ca rotation.Authority, name string, profile rotation.Profile) (time.Time, error) {
	now := p.now().UTC().Truncate(time.Second)
	crtFile, keyFile := p.file(name+".crt"), p.file(name+".key")
	crt, _ := os.ReadFile(crtFile) // an unreadable pair is replaced
	key, _ := os.ReadFile(keyFile)
	chain, _, err := rotation.ParsePair(crt, key)
	if err == nil && !now.Before(chain[0].NotBefore) && profile.Fits(chain[0]) == nil && chain[0].CheckSignatureFrom(ca.Cert) == nil &&
		slices.Equal(chain[0].DNSNames, profile.DNSNames) && slices.EqualFunc(chain[0].IPAddresses, profile.IPs, net.IP.Equal) {
		if due := rotation.Renewal(chain[0].NotBefore, chain[0].NotAfter); now.Before(due) {
			return due, nil
		}
	}
	until := now.Add(lifeOfLeaf)
	if until.After(ca.Cert.NotAfter) {
		until = ca.Cert.NotAfter
	}
	if crt, key, err = profile.Issue(ca, now.Add(-rotation.Skew), until); err != nil {
		return time.Time{}, err
	}
	if err := writeFile(keyFile, key); err != nil {
		return time.Time{}, err
	}
	return rotation.Renewal(now.Add(-rotation.Skew), until), writeFile(crtFile, crt)
}

func (p pki) file(name string) string { return filepath.Join(p.dir, name) }

// writeFile replaces a file atomically, with mode 0600.
func writeFile(file string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // with mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	return err
}

// shortestRenewal is the shortest pause between renewals, also after a failed one, and longestRenewal the
// longest: the clock may be changed.
const (
	shortestRenewal = time.Minute
	longestRenewal  = time.Hour
)

// renew renews the certificates while the etcd runs, which reads them for each handshake.
func (s *Server) renew(ctx context.Context, p pki, again time.Time) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(again.Sub(s.cfg.Now()), longestRenewal)):
		}
		if s.cfg.Now().Before(again) {
			continue
		}
		due, err := p.ensure() // zero with an error
		if err != nil {
			s.cfg.Log.Error("the embedded etcd's certificates cannot be renewed", "directory", s.cfg.Dir, "error", err)
		}
		if again = s.cfg.Now().Add(shortestRenewal); due.After(again) {
			again = due
		}
	}
}
