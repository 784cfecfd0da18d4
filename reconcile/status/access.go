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
// packages and their problems. Requests from the same machine or pod to localhost may, so that
// `kubectl port-forward` works, but not those that a proxy there passes on; others only as the
// fields allow. /healthz and /readyz need no access.
type Access struct {
	// TokenFile is a file with bearer tokens that grant access, in a line each. It is read for
	// each request, so that a token can be rotated.
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
	if err == nil && loopback(from) && own(r.Host) && !passedOn(r) {
		return true
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || a.TokenFile == "" {
		return false
	}
	want, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return false
	}
	// Hashes have equal length: the comparison reveals nothing about the token's.
	g, granted := sha256.Sum256([]byte(given)), 0
	for token := range strings.Lines(string(want)) {
		if token = strings.TrimSpace(token); token != "" {
			w := sha256.Sum256([]byte(token))
			granted |= subtle.ConstantTimeCompare(g[:], w[:])
		}
	}
	return granted == 1
}

// loopback reports whether an address is of this machine or pod.
func loopback(address string) bool {
	ip := net.ParseIP(address)
	return ip != nil && ip.IsLoopback()
}

// own reports whether a request's Host, with or without a port, can only be this machine or pod:
// localhost, or an address of it.
func own(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.EqualFold(host, "localhost") || loopback(strings.Trim(host, "[]"))
}

// passedOn reports whether a proxy says that a request is somebody else's. Behind a proxy on the
// same machine, such as the sidecar of a service mesh, all requests come from there.
func passedOn(r *http.Request) bool {
	for name := range r.Header {
		if name == "Forwarded" || name == "Via" || strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Envoy-") || name == "X-Real-Ip" {
			return true
		}
	}
	return false
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
