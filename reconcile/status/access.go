package status

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Access says who may read the state of the fleet, which names clusters, packages
// and what is wrong with them. From the same machine or pod everybody may, so
// that `kubectl port-forward` needs nothing; from elsewhere nobody, unless one of
// the fields says otherwise. Whether the daemon lives and is ready, everybody may
// know.
type Access struct {
	// TokenFile holds a token; who sends it as a bearer token may read. It is
	// read for each request, so that it may be rotated.
	TokenFile string
	// Open lets everybody read.
	Open bool
}

// allowed says whether a request may read.
func (a Access) allowed(r *http.Request) bool {
	if a.Open {
		return true
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsLoopback() {
		return true
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || a.TokenFile == "" {
		return false
	}
	want, err := os.ReadFile(a.TokenFile)
	token := strings.TrimSpace(string(want))
	if err != nil || token == "" {
		return false
	}
	// Of equal length, so that the comparison tells nothing of the token's.
	g, w := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(g[:], w[:]) == 1
}

// guard lets h answer who may read.
func (a Access) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.allowed(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "from outside the daemon's machine or pod this needs the bearer token of --status-token-file, or --status-open", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Serve answers requests on a listener until the server that it returns is shut
// down, and then reports how that ended. A client that takes its time holds up
// nobody, and is let go.
func Serve(listener net.Listener, handler http.Handler, failed func(error)) *http.Server {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return server
}
