package etcdproxy

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
)

// clients decides who is a client of a tenant.
type clients struct {
	cas     *x509.CertPool
	revoked map[string]bool // by fingerprint
}

func clientsOf(t Tenant) clients {
	c := clients{cas: t.ClientCAs, revoked: make(map[string]bool)}
	for _, fingerprint := range t.Revoked {
		c.revoked[strings.ToLower(fingerprint)] = true
	}
	return c
}

// verify returns an error unless the certificates that a client sent, its own first, make it a client
// of the tenant. The URI is the caller's to compare.
func (c clients) verify(chain []*x509.Certificate) error {
	if c.cas == nil {
		return errors.New("the namespace is not served")
	}
	intermediates := x509.NewCertPool()
	for _, cert := range chain[1:] {
		intermediates.AddCert(cert)
	}
	chains, err := chain[0].Verify(x509.VerifyOptions{
		Roots:         c.cas,
		Intermediates: intermediates,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	// A revoked intermediate revokes each chain that it is in.
	for _, verified := range chains {
		if !c.anyRevoked(verified) {
			return nil
		}
	}
	return errors.New("the certificate is revoked")
}

func (c clients) anyRevoked(chain []*x509.Certificate) bool {
	for _, cert := range chain {
		sum := sha256.Sum256(cert.Raw)
		if c.revoked[hex.EncodeToString(sum[:])] {
			return true
		}
	}
	return false
}

// identify authenticates clients. It implements [credentials.TransportCredentials] for servers.
type identify struct{ proxy *Proxy }

// ServerHandshake authenticates a connection. The session is both the connection and the AuthInfo. grpc-go
// needs [pongs]; h2 holds answers to pings by itself.
func (i *identify) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p := i.proxy
	defer p.handshakes.begin(raw)()
	ctx, cancel := context.WithTimeout(context.Background(), p.cfg.Limits.Handshake)
	defer cancel()
	conn := tls.Server(raw, p.tlsConfig())
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		p.cfg.Log.Debug("etcd client refused", "client", raw.RemoteAddr().String(), "error", err)
		return nil, nil, err
	}
	s, err := p.admitted(conn)
	if err != nil {
		conn.Close()
		p.cfg.Log.Debug("etcd client refused", "client", raw.RemoteAddr().String(), "error", err)
		return nil, nil, err
	}
	if p.cfg.GRPCGo {
		return &pongs{session: s}, s, nil
	}
	return s, s, nil
}

// tlsConfig returns the configuration of a handshake. There are no session tickets: each connection is fully
// verified, and no ticket outlives a revocation.
func (p *Proxy) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         p.cfg.Certificate,
		ClientAuth:             tls.RequireAnyClientCert,
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := p.identity(state)
			return err
		},
	}
}

// identity returns the tenant that a client certificate names and is valid for. The error is for the log; the
// client only learns that it is refused.
func (p *Proxy) identity(state tls.ConnectionState) (*tenant, error) {
	if len(state.PeerCertificates) == 0 {
		return nil, errors.New("no client certificate")
	}
	leaf := state.PeerCertificates[0]
	if len(leaf.URIs) != 1 {
		return nil, fmt.Errorf("the client certificate has %d URIs, not exactly one", len(leaf.URIs))
	}
	t := p.tenantOf(leaf.URIs[0].String())
	if t == nil {
		return nil, errors.New("the client certificate names no namespace that is served here")
	}
	t.mu.Lock()
	c := t.clients
	t.mu.Unlock()
	if err := c.verify(state.PeerCertificates); err != nil {
		return nil, fmt.Errorf("client certificate for %s: %w", t.id, err)
	}
	return t, nil
}

// admitted records an authenticated connection, so that it is closed once its client is no longer trusted.
// It verifies again: the tenants may have changed since the handshake began.
func (p *Proxy) admitted(conn *tls.Conn) (*session, error) {
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != "h2" {
		return nil, errors.New("the client does not speak HTTP/2")
	}
	t, err := p.identity(state)
	if err != nil {
		return nil, err
	}
	s := &session{Conn: conn, tenant: t, chain: state.PeerCertificates}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.sessions) >= p.cfg.Limits.Connections {
		return nil, fmt.Errorf("%s has %d connections already", t.id, len(t.sessions))
	}
	if err := t.clients.verify(s.chain); err != nil {
		return nil, fmt.Errorf("client certificate for %s: %w", t.id, err)
	}
	t.sessions[s] = struct{}{}
	// An open connection ends with its certificate.
	s.expiry = time.AfterFunc(time.Until(s.chain[0].NotAfter), s.close)
	return s, nil
}

// ClientHandshake implements [credentials.TransportCredentials]. It fails.
func (*identify) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

// Info implements [credentials.TransportCredentials].
func (*identify) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements [credentials.TransportCredentials].
func (i *identify) Clone() credentials.TransportCredentials { return i }

// OverrideServerName implements [credentials.TransportCredentials].
func (*identify) OverrideServerName(string) error { return nil }
