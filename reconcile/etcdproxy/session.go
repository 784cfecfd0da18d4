package etcdproxy

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// session is a connection of a tenant's client. It is what gRPC reads and writes, and what it
// hands to each call as the identity of its peer.
type session struct {
	net.Conn
	tenant *tenant
	chain  []*x509.Certificate // as the client sent them, its own first
	expiry *time.Timer
	once   sync.Once
}

// AuthType implements [credentials.AuthInfo].
func (*session) AuthType() string { return "tls" }

// GetCommonAuthInfo tells gRPC that the connection is private and not to be tampered with.
func (*session) GetCommonAuthInfo() credentials.CommonAuthInfo {
	return credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
}

// Close closes the connection and forgets it.
func (s *session) Close() error {
	s.once.Do(func() {
		s.expiry.Stop()
		s.tenant.mu.Lock()
		delete(s.tenant.sessions, s)
		s.tenant.mu.Unlock()
	})
	return s.Conn.Close()
}

// CloseWrite tells the client that nothing more comes.
func (s *session) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// close ends a connection whose client is no longer to be trusted, and with it its calls. It waits
// for nothing: the alert that TLS sends at the end could block behind a client that reads
// nothing.
func (s *session) close() {
	if raw, ok := s.Conn.(interface{ NetConn() net.Conn }); ok {
		raw.NetConn().Close()
	}
	s.Close()
}

// sessionOf returns the connection that a call came by; nil if it was not authenticated.
func sessionOf(ctx context.Context) *session {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	s, _ := p.AuthInfo.(*session)
	return s
}
