// Package connect connects to an etcd as its administrator.
//
//   - connect.go: [Connect], over mutual TLS to the members that answer
//   - check.go: checks of the versions and of authentication by client certificates; the errors
//     say what to do, and gitopsd changes nothing
//   - snapshot.go: [Snapshot]
package connect

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

const (
	defaultDialTimeout = 5 * time.Second
	defaultTimeout     = 30 * time.Second
)

// Config configures a connection to an etcd.
type Config struct {
	// Log may be nil.
	Log *slog.Logger
	// Endpoints are the client URLs of the members, all https.
	Endpoints []string
	// CAFile has the CAs of the members' certificates. CertFile and KeyFile are the certificate of a
	// user with etcd's root role. They are read for each operation, so they can be replaced at any
	// time.
	CAFile, CertFile, KeyFile string
	// ClientCACertFile and ClientCAKeyFile are a CA that etcd trusts for clients. It signs the
	// certificates of namespaces' users.
	ClientCACertFile, ClientCAKeyFile string
	// Fleet distinguishes the records of this fleet from those of others.
	Fleet string
	// MayCompact reports whether gitopsd may compact the etcd, which affects all its clients.
	MayCompact bool
	// Embedded reports whether this process runs the etcd, which then has one member.
	Embedded bool
	// DialTimeout bounds how long a member may take to answer first, and Timeout a whole operation.
	// Zero means 5 and 30 seconds.
	DialTimeout, Timeout time.Duration
	// Intercept are called around each request, the first one outermost.
	Intercept []grpc.UnaryClientInterceptor
}

// Server is an etcd that passed the checks.
type Server struct {
	// Members are the members that answered.
	Members []Member
	// Notes say what people should know, such as members that do not answer.
	Notes []string
}

// Member is a member of an etcd.
type Member struct {
	Endpoint, Version string
	// Bytes is the size of its database, of which InUse are not free, and Quota the largest allowed size.
	Bytes, InUse, Quota int64
	// Revision is its current revision.
	Revision int64
}

// Complete returns the configuration with its defaults, or an error if it is invalid. It reads no file
// and sends nothing.
func (c Config) Complete() (Config, error) {
	if len(c.Endpoints) == 0 {
		return c, errors.New("etcd: no endpoints; name the client URLs of its members")
	}
	c.Endpoints = slices.Clone(c.Endpoints)
	for i, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" {
			return c, fmt.Errorf("etcd: endpoint %q; use https://HOST:PORT", redacted(e))
		}
		c.Endpoints[i] = strings.TrimSuffix(e, "/") // as it is compared with those that members name
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" {
		return c, errors.New("etcd: files with the CA, the certificate and the key of a user with the root role are needed")
	}
	if c.Fleet == "" {
		return c, errors.New("etcd: the name of the fleet is needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.DialTimeout, c.Timeout = cmp.Or(c.DialTimeout, defaultDialTimeout), cmp.Or(c.Timeout, defaultTimeout)
	if c.DialTimeout < 0 || c.Timeout < c.DialTimeout {
		return c, fmt.Errorf("etcd: %s for a member to answer and %s for an operation; use more for the operation", c.DialTimeout, c.Timeout)
	}
	return c, nil
}

// redacted returns an endpoint without its password; "(garbled)" if it is no URL.
func redacted(endpoint string) string {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "(garbled)"
	}
	return u.Redacted()
}

// LoadTLS reads the files of a configuration. It uses no other fields.
func LoadTLS(c Config) (*tls.Config, error) {
	cas, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("etcd's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cas) {
		return nil, fmt.Errorf("etcd's CA: %s has no certificate in PEM", c.CAFile)
	}
	// The two files of a pair may be replaced one after the other.
	var pair tls.Certificate
	for range 3 {
		if pair, err = tls.LoadX509KeyPair(c.CertFile, c.KeyFile); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate for etcd, %s and %s: %w", c.CertFile, c.KeyFile, err)
	}
	if pair.Leaf.Subject.CommonName == "" {
		return nil, fmt.Errorf("the certificate for etcd, %s, has no common name, which is the name of its user in etcd; use one with CN=<user>", c.CertFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}, nil
}

// Session is the connection of one operation to an etcd that passed the checks.
type Session struct {
	*clientv3.Client
	Config Config
	Server Server
	// User is gitopsd's user in the etcd.
	User string
}

// Connect connects to the members that answer, and checks the etcd. The configuration must be from
// [Config.Complete]. The caller closes the session.
func Connect(ctx context.Context, c Config) (*Session, error) {
	tls, err := LoadTLS(c)
	if err != nil {
		return nil, err
	}
	s := &Session{Config: c, User: tls.Certificates[0].Leaf.Subject.CommonName}
	if err := s.probe(ctx, tls, c.Endpoints); err != nil {
		return nil, err
	}
	var live []string
	for _, m := range s.Server.Members {
		live = append(live, m.Endpoint)
	}
	if s.Client, err = s.dial(ctx, tls, live, false); err != nil {
		return nil, err
	}
	if err := s.check(ctx, tls); err != nil {
		_ = s.Close()
		return nil, err
	}
	for _, note := range s.Server.Notes {
		c.Log.Debug("a member of etcd", "note", note)
	}
	return s, nil
}

// dial returns a client, which connects in the background. Calls of an impatient one fail without a
// connection, instead of waiting.
func (s *Session) dial(ctx context.Context, tls *tls.Config, endpoints []string, impatient bool) (*clientv3.Client, error) {
	around, attempts := slices.Clone(s.Config.Intercept), uint(0)
	if impatient {
		around, attempts = append(around, fail), 1
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: tls.Clone(), Context: ctx, Logger: zap.NewNop(), MaxUnaryRetries: attempts,
		DialTimeout: s.Config.DialTimeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: s.Config.DialTimeout,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(append(around, again)...)},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return c, nil
}

// fail makes a request fail if there is no connection.
func fail(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(slices.Clone(opts), grpc.WaitForReady(false))...)
}

// again resends a request that etcd refused because users or roles changed while it was under way. etcd
// has not applied it.
func again(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for pause := 5 * time.Millisecond; ; pause *= 2 {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil || !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthOldRevision) || pause > time.Second {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// probe gets the status of all endpoints concurrently. It leaves out those that have no leader or do not
// answer in time, and fails if none is left.
func (s *Session) probe(ctx context.Context, tls *tls.Config, endpoints []string) error {
	type answer struct {
		member Member
		err    error
	}
	answers := make([]answer, len(endpoints))
	var wait sync.WaitGroup
	for i, endpoint := range endpoints {
		wait.Go(func() { answers[i].member, answers[i].err = s.ask(ctx, tls, endpoint) })
	}
	wait.Wait()
	var failed []error
	for i, a := range answers {
		switch {
		case errors.Is(a.err, rpctypes.ErrUserEmpty):
			return s.noCertAuth(endpoints[i])
		case a.err != nil:
			failed = append(failed, fmt.Errorf("etcd %s does not answer: %w", endpoints[i], a.err))
		default:
			s.Server.Members = append(s.Server.Members, a.member)
		}
	}
	if len(s.Server.Members) == 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		s.Server.Notes = append(s.Server.Notes, err.Error())
	}
	return nil
}

var errNoLeader = errors.New("it has no leader; most of the members must run and reach each other")

// ask gets the status of one member.
func (s *Session) ask(ctx context.Context, tls *tls.Config, endpoint string) (Member, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Config.DialTimeout)
	defer cancel()
	c, err := s.dial(ctx, tls, []string{endpoint}, true)
	if err != nil {
		return Member{}, err
	}
	defer c.Close()
	r, err := c.Status(ctx, endpoint)
	if err != nil {
		return Member{}, err
	}
	if r.Leader == 0 {
		return Member{}, errNoLeader
	}
	return Member{Endpoint: endpoint, Version: r.Version, Bytes: r.DbSize, InUse: r.DbSizeInUse, Quota: r.DbSizeQuota, Revision: r.Header.GetRevision()}, nil
}
