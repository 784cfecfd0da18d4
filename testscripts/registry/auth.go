package registry

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// tokens holds the tokens given out, with the scope of each.
type tokens struct {
	mu    sync.Mutex
	scope map[string]string
}

// RevokeTokens makes every token given out so far invalid, as if it had expired.
func (r *Registry) RevokeTokens() {
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	clear(r.tokens.scope)
}

// SetPassword changes the password; earlier passwords and tokens are refused.
func (r *Registry) SetPassword(password string) {
	r.mu.Lock()
	r.cfg.Password = password
	r.mu.Unlock()
	r.RevokeTokens()
}

func (r *Registry) passwordRight(req *http.Request) bool {
	user, password, ok := req.BasicAuth()
	r.mu.Lock()
	defer r.mu.Unlock()
	return ok && user == r.cfg.Username && subtle.ConstantTimeCompare([]byte(password), []byte(r.cfg.Password)) == 1
}

// authenticated reports whether a request may pass; otherwise it answers the
// request.
func (r *Registry) authenticated(w http.ResponseWriter, req *http.Request) bool {
	var challenge string
	switch r.cfg.Auth {
	case NoAuth:
		return true
	case BasicAuth:
		if r.passwordRight(req) {
			return true
		}
		challenge = `Basic realm="registry"`
	case TokenAuth:
		if req.URL.Path == "/token" {
			r.giveToken(w, req)
			return false
		}
		scope := neededScope(req)
		token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		r.tokens.mu.Lock()
		given, ok := r.tokens.scope[token]
		r.tokens.mu.Unlock()
		if ok && allows(given, scope) {
			return true
		}
		scheme := "http"
		if r.cfg.TLS {
			scheme = "https"
		}
		challenge = fmt.Sprintf(`Bearer realm="%s://%s/token",service="registry",scope="%s"`, scheme, r.addr, scope)
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprint(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
	return false
}

// neededScope returns the scope that a request needs, as "repository:name:pull"
// or "…:push".
func neededScope(req *http.Request) string {
	rest, _ := strings.CutPrefix(req.URL.Path, "/v2/")
	for _, part := range []string{"/manifests/", "/blobs/", "/tags/", "/referrers/"} {
		if name, _, ok := strings.Cut(rest, part); ok {
			if req.Method == http.MethodGet || req.Method == http.MethodHead {
				return "repository:" + name + ":pull"
			}
			return "repository:" + name + ":push,pull"
		}
	}
	return ""
}

// allows reports whether a token's scope covers the needed one.
func allows(given, needed string) bool {
	if needed == "" {
		return true
	}
	name, actions, _ := cutLast(given, ":")
	wantName, wantActions, _ := cutLast(needed, ":")
	return name == wantName && (strings.Contains(actions, "push") || wantActions == "pull" && strings.Contains(actions, "pull"))
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (r *Registry) giveToken(w http.ResponseWriter, req *http.Request) {
	if !r.passwordRight(req) {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	token := rand.Text()
	r.tokens.mu.Lock()
	if r.tokens.scope == nil {
		r.tokens.scope = make(map[string]string)
	}
	r.tokens.scope[token] = req.URL.Query().Get("scope")
	r.tokens.mu.Unlock()
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "expires_in": 300})
}

// certificate makes an authority and a certificate for loopback signed by it.
func certificate() (cert tls.Certificate, caPEM []byte, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "test registry authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return cert, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: "test registry"},
		NotBefore:    ca.NotBefore,
		NotAfter:     ca.NotAfter,
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return cert, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{leafDER}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), nil
}

// DockerConfig returns a Docker configuration (a pull secret's .dockerconfigjson)
// with the registry's credentials.
func (r *Registry) DockerConfig() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	auth := base64.StdEncoding.EncodeToString([]byte(r.cfg.Username + ":" + r.cfg.Password))
	return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, r.addr, auth)
}
