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

// session is a connection of a tenant's client, and the [credentials.AuthInfo] of its calls.
type session struct {
	net.Conn
	tenant *tenant
	chain  []*x509.Certificate // as the client sent them, its own first
	expiry *time.Timer
	once   sync.Once
}

// AuthType implements [credentials.AuthInfo].
func (*session) AuthType() string { return "tls" }

// GetCommonAuthInfo tells gRPC that the connection has privacy and integrity.
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

// CloseWrite closes the writing side of the connection.
func (s *session) CloseWrite() error {
	if half, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// close ends a connection that is no longer trusted, and with it its calls. It does not wait: the alert that
// TLS sends at the end could block behind a client that does not read.
func (s *session) close() {
	if raw, ok := s.Conn.(interface{ NetConn() net.Conn }); ok {
		raw.NetConn().Close()
	}
	s.Close()
}

// sessionOf returns the connection of a call; nil if it is not authenticated.
func sessionOf(ctx context.Context) *session {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	s, _ := p.AuthInfo.(*session)
	return s
}
