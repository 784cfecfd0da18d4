package connect

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// check returns an error if the etcd must not be used.
func (s *Session) check(ctx context.Context, tls *tls.Config) error {
	if err := s.otherMembers(ctx, tls); err != nil {
		return err
	}
	for _, m := range s.Server.Members {
		if err := checkVersion(m.Version); err != nil {
			return fmt.Errorf("etcd %s: %w", m.Endpoint, err)
		}
	}
	state, err := s.AuthStatus(ctx)
	if err != nil {
		return fmt.Errorf("etcd: is authentication enabled? %w", err)
	}
	if !state.Enabled {
		return s.authOff()
	}
	user, err := s.UserGet(ctx, s.User)
	switch {
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return s.noCertAuth(s.Server.Members[0].Endpoint)
	case errors.Is(err, rpctypes.ErrUserNotFound), errors.Is(err, rpctypes.ErrPermissionDenied):
		return s.noRoot()
	case err != nil:
		return fmt.Errorf("etcd: user %s: %w", s.User, err)
	case !slices.Contains(user.Roles, rootRole):
		return s.noRoot()
	}
	return nil
}

// otherMembers checks the versions of the members that the configuration does not name: they do not get
// requests of tenants, but apply their writes.
func (s *Session) otherMembers(ctx context.Context, tls *tls.Config) error {
	list, err := s.MemberList(ctx)
	if errors.Is(err, rpctypes.ErrUserEmpty) {
		return s.noCertAuth(s.Server.Members[0].Endpoint)
	}
	if errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserNotFound) {
		return s.noRoot()
	}
	if err != nil {
		return fmt.Errorf("etcd: its members: %w", err)
	}
	var others []string
	for _, m := range list.Members {
		if slices.ContainsFunc(m.GetClientURLs(), func(u string) bool { return slices.Contains(s.Config.Endpoints, strings.TrimSuffix(u, "/")) }) {
			continue
		}
		for _, text := range m.GetClientURLs() {
			if u, err := url.Parse(text); err == nil && u.Scheme == "https" && u.Port() != "0" {
				others = append(others, text)
				break
			}
		}
	}
	if len(others) == 0 {
		return nil
	}
	more := &Session{Config: s.Config, User: s.User}
	if err := more.probe(ctx, tls, others); err != nil {
		s.Server.Notes = append(s.Server.Notes, err.Error())
	}
	for _, m := range more.Server.Members {
		if err := checkVersion(m.Version); err != nil {
			return fmt.Errorf("etcd %s: %w", m.Endpoint, err)
		}
	}
	s.Server.Notes = append(s.Server.Notes, more.Server.Notes...)
	return nil
}

// oldest has, by minor version, the first version in which a role cannot reach keys outside its range.
// Newer minor versions have the fixes.
var oldest = map[uint64]*semver.Version{6: semver.MustParse("3.6.14"), 7: semver.MustParse("3.7.1")}

const (
	newestMinor = 7
	tooOld      = `version %s lets a user reach keys that its role does not have (CVE-2026-33343, CVE-2026-33413, CVE-2026-44283, GHSA-xg4h).
Namespaces would not be apart. Upgrade every member to 3.6.14 or 3.7.1 at least; nothing was changed in this etcd`
)

// checkVersion returns an error if a version of etcd does not keep namespaces apart.
func checkVersion(text string) error {
	v, err := semver.StrictNewVersion(text)
	if err != nil {
		return fmt.Errorf("its version is %q, which is none", text)
	}
	if v.Major() > 3 || v.Major() == 3 && v.Minor() > newestMinor {
		return nil
	}
	if least := oldest[v.Minor()]; v.Major() < 3 || least == nil || v.LessThan(least) {
		return fmt.Errorf(tooOld, text)
	}
	return nil
}

// rootRole is the role with all rights.
const rootRole = "root"

// authOff says what to do about an etcd without authentication.
func (s *Session) authOff() error {
	return fmt.Errorf(`etcd %s does not authenticate its clients: whoever connects reads and writes every namespace.
gitopsd does not change that by itself, since clients without a user of their own would be locked out. Enable it:
  1. Start each member with --client-cert-auth and --trusted-ca-file=<CA of its clients>.
  2. etcdctl user add root --no-password
     etcdctl user grant-role root root
  3. Make the user of gitopsd's certificate, and one for each other client (for a kube-apiserver, the CN of --etcd-certfile):
     etcdctl user add %[2]s --no-password
     etcdctl user grant-role %[2]s root
  4. etcdctl auth enable`, s.Server.Members[0].Endpoint, s.User)
}

// noCertAuth says what to do about an etcd that does not take users from certificates.
func (s *Session) noCertAuth(endpoint string) error {
	return fmt.Errorf(`etcd %s does not take a client's certificate for its user (user %s was not recognised).
Start each member with --client-cert-auth and --trusted-ca-file=<CA that signed gitopsd's certificate>, and without --listen-client-urls that begin with http://, where nobody asks for one`,
		endpoint, s.User)
}

// noRoot says what to do about a user without the role root.
func (s *Session) noRoot() error {
	return fmt.Errorf(`etcd %s: user %s, the common name of gitopsd's certificate, does not have the role root, which is needed to make users and roles.
As root:
  etcdctl user add %[2]s --no-password
  etcdctl user grant-role %[2]s root`, s.Server.Members[0].Endpoint, s.User)
}
