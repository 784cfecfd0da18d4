// Package etcdserver runs a real etcd inside a test: with authentication by client certificates, as
// namespaces need it, or open to everybody.
package etcdserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// Server is an etcd of one member.
type Server struct {
	// Endpoint is as in "https://127.0.0.1:12345".
	Endpoint string
	// Authority signs its certificate and those of its users; nil for an open one.
	Authority *Authority
	// Root is a client that may do everything.
	Root *clientv3.Client

	etcd *embed.Etcd
	cfg  *embed.Config
	dir  string
}

// Start starts an etcd on loopback that knows its users by their certificates' common names.
func Start() (*Server, error) { return start(true) }

// StartOpen starts an etcd on loopback that asks nobody who he is.
func StartOpen() (*Server, error) { return start(false) }

func start(secure bool) (_ *Server, err error) {
	s := new(Server)
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.dir, err = os.MkdirTemp("", "etcd"); err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(s.dir, "data")
	cfg.UnsafeNoFsync = true
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	scheme := "http"
	if secure {
		scheme = "https"
		if err := s.secure(cfg); err != nil {
			return nil, err
		}
	}
	client := url.URL{Scheme: scheme, Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	s.cfg = cfg
	if err := s.run(); err != nil {
		return nil, err
	}
	s.Endpoint = scheme + "://" + s.etcd.Clients[0].Addr().String()
	if !secure {
		s.Root, err = s.Client(tls.Certificate{})
		return s, err
	}
	return s, s.enableAuth()
}

// run starts the etcd and waits until it is ready.
func (s *Server) run() (err error) {
	if s.etcd, err = embed.StartEtcd(s.cfg); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case err := <-s.etcd.Err():
		return fmt.Errorf("etcd: %w", err)
	case <-time.After(time.Minute):
		return errors.New("etcd: not ready after a minute")
	}
}

// Etcd is the etcd as this process runs it, until Restart or Close.
func (s *Server) Etcd() *embed.Etcd { return s.etcd }

// Restart stops the etcd, runs between with the directory of its data, and starts it again at the same
// address.
func (s *Server) Restart(between func(data string) error) error {
	at := url.URL{Scheme: s.cfg.ListenClientUrls[0].Scheme, Host: s.etcd.Clients[0].Addr().String()}
	s.etcd.Close()
	s.etcd = nil
	if err := between(s.cfg.Dir); err != nil {
		return err
	}
	s.cfg.ListenClientUrls = []url.URL{at}
	return s.run()
}

// secure writes certificates and has etcd use them.
func (s *Server) secure(cfg *embed.Config) (err error) {
	if s.Authority, err = NewAuthority("etcd"); err != nil {
		return err
	}
	cert, err := s.Authority.Issue(Serving())
	if err != nil {
		return err
	}
	info := &cfg.ClientTLSInfo
	info.ClientCertAuth = true
	info.TrustedCAFile, info.CertFile, info.KeyFile = filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "tls.crt"), filepath.Join(s.dir, "tls.key")
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	return errors.Join(err,
		write(info.TrustedCAFile, "CERTIFICATE", s.Authority.Certificate.Raw),
		write(info.CertFile, "CERTIFICATE", cert.Certificate[0]),
		write(info.KeyFile, "PRIVATE KEY", key),
	)
}

func write(name, kind string, der []byte) error {
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// enableAuth makes root and has etcd ask for users.
func (s *Server) enableAuth() error {
	cert, err := s.Authority.Issue(User("root"))
	if err != nil {
		return err
	}
	if s.Root, err = s.Client(cert); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err1 := s.Root.UserAddWithOptions(ctx, "root", "", &clientv3.UserAddOptions{NoPassword: true})
	_, err2 := s.Root.UserGrantRole(ctx, "root", "root")
	_, err3 := s.Root.AuthEnable(ctx)
	return errors.Join(err1, err2, err3)
}

// AddUser makes a user who may read and write the keys with a prefix, and returns the user's
// certificate.
func (s *Server) AddUser(ctx context.Context, name, prefix string) (tls.Certificate, error) {
	_, err1 := s.Root.RoleAdd(ctx, name)
	_, err2 := s.Root.RoleGrantPermission(ctx, name, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	_, err3 := s.Root.UserAddWithOptions(ctx, name, "", &clientv3.UserAddOptions{NoPassword: true})
	_, err4 := s.Root.UserGrantRole(ctx, name, name)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return tls.Certificate{}, fmt.Errorf("user %s of etcd: %w", name, err)
	}
	return s.Authority.Issue(User(name))
}

// Client returns a client with a certificate.
func (s *Server) Client(cert tls.Certificate) (*clientv3.Client, error) {
	cfg := clientv3.Config{Endpoints: []string{s.Endpoint}, Logger: zap.NewNop(), DialTimeout: time.Minute}
	if s.Authority != nil {
		cfg.TLS = &tls.Config{RootCAs: s.Authority.Pool(), Certificates: []tls.Certificate{cert}}
	}
	return clientv3.New(cfg)
}

// Close stops the etcd and removes its data.
func (s *Server) Close() {
	if s.Root != nil {
		s.Root.Close()
	}
	if s.etcd != nil {
		s.etcd.Close()
	}
	os.RemoveAll(s.dir)
}
