package etcd

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

// Open makes an Admin. It reads no file and asks nobody.
func Open(c Config) (*Admin, error) {
	if len(c.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoints; name the client URLs of its members")
	}
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" {
			return nil, fmt.Errorf("etcd: endpoint %q; use https://HOST:PORT", e)
		}
	}
	if c.CAFile == "" || c.CertFile == "" || c.KeyFile == "" {
		return nil, errors.New("etcd: files with the CA, the certificate and the key of a user with the root role are needed")
	}
	if c.Fleet == "" {
		return nil, errors.New("etcd: the name of the fleet is needed")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.DialTimeout, c.Timeout = cmp.Or(c.DialTimeout, defaultDialTimeout), cmp.Or(c.Timeout, defaultTimeout)
	if c.DialTimeout < 0 || c.Timeout < c.DialTimeout {
		return nil, fmt.Errorf("etcd: %s for a member to answer and %s for an operation; use more for the operation", c.DialTimeout, c.Timeout)
	}
	return &Admin{c}, nil
}

// LoadTLS reads the files of a configuration. It needs no others of its fields.
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

// session is one operation's connection, to an etcd that was found fit.
type session struct {
	*clientv3.Client
	cfg    *Config
	user   string // our own
	server Server
}

// connect connects to the members that answer, and checks the etcd. The caller closes
// the session.
func (a *Admin) connect(ctx context.Context) (*session, error) {
	tls, err := LoadTLS(a.cfg)
	if err != nil {
		return nil, err
	}
	s := &session{cfg: &a.cfg, user: tls.Certificates[0].Leaf.Subject.CommonName}
	if err := s.probe(ctx, tls, a.cfg.Endpoints); err != nil {
		return nil, err
	}
	var live []string
	for _, m := range s.server.Members {
		live = append(live, m.Endpoint)
	}
	if s.Client, err = s.dial(ctx, tls, live); err != nil {
		return nil, err
	}
	if err := s.check(ctx, tls); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// dial makes a client; it connects by and by.
func (s *session) dial(ctx context.Context, tls *tls.Config, endpoints []string) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: tls.Clone(), Context: ctx, Logger: zap.NewNop(),
		DialTimeout: s.cfg.DialTimeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: s.cfg.DialTimeout,
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(append(s.cfg.intercept, again)...)},
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return c, nil
}

// again sends a request again that etcd refused because users or roles were changed
// while it was on its way; it did nothing.
func again(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for pause := 5 * time.Millisecond; ; pause *= 2 {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil || !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthOldRevision) || pause > time.Second {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// sleep waits, and returns an error if the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// probe asks all endpoints at the same time who they are. Those that have no leader or do
// not answer in time are left out.
func (s *session) probe(ctx context.Context, tls *tls.Config, endpoints []string) error {
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
			s.server.Members = append(s.server.Members, a.member)
		}
	}
	if len(s.server.Members) == 0 {
		return errors.Join(failed...)
	}
	for _, err := range failed {
		s.server.Notes = append(s.server.Notes, err.Error())
	}
	return nil
}

var errNoLeader = errors.New("it has no leader; most of the members must run and reach each other")

// ask asks one member who it is.
func (s *session) ask(ctx context.Context, tls *tls.Config, endpoint string) (Member, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.DialTimeout)
	defer cancel()
	c, err := s.dial(ctx, tls, []string{endpoint})
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
	return Member{Endpoint: endpoint, Version: r.Version, Bytes: r.DbSize, Quota: r.DbSizeQuota, Revision: r.Header.GetRevision()}, nil
}
