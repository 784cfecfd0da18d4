package status

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"gitopsd.dev/reconcile/listener"
)

// Access decides which requests may read the state of the fleet, which names clusters,
// packages and their problems. Requests from the same machine or pod to a name of it may, so that
// `kubectl port-forward` works; others only as the fields allow. /healthz and /readyz need no access.
type Access struct {
	// TokenFile is a file with a bearer token that grants access. It is read for each request,
	// so that the token can be rotated.
	TokenFile string
	// Open grants access to all requests.
	Open bool
}

// allowed reports whether a request may read.
func (a Access) allowed(r *http.Request) bool {
	if a.Open {
		return true
	}
	// A page on the web may have a name that leads here; a browser would let it read the answer.
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil && loopback(from) && own(r.Host) {
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
	// Hashes have equal length: the comparison reveals nothing about the token's.
	g, w := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(g[:], w[:]) == 1
}

// loopback reports whether an address is of this machine or pod.
func loopback(address string) bool {
	ip := net.ParseIP(address)
	return ip != nil && ip.IsLoopback()
}

// own reports whether a request's Host, with or without a port, can only be this machine or pod:
// an address, or localhost.
func own(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.EqualFold(host, "localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// guard returns a handler that passes allowed requests to h and refuses others.
func (a Access) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.allowed(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "from outside the daemon's machine or pod, and by another name than localhost, this needs the bearer token of --status-token-file, or --status-open", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Serve serves requests on a listener until the returned server is shut down. It calls failed
// if serving ends otherwise. Slow clients are disconnected.
func Serve(l net.Listener, handler http.Handler, log *slog.Logger, failed func(error)) *http.Server {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      time.Minute,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // clients that are gone
	}
	go func() {
		if err := server.Serve(listener.Patient(l, log)); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return server
}
