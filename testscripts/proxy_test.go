package testscripts

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"k8s.io/client-go/rest"
)

// proxy stands between gitopsd and a real API server. It counts requests, and fails
// some of them on demand. It does not authenticate its clients and has all rights.
// Impersonation headers pass through.
type proxy struct {
	url string
	ca  []byte // PEM

	server *httptest.Server

	mu       sync.Mutex
	faults   []*apiFault
	requests map[string]int
	hanging  chan struct{} // closed when hanging requests may end
}

// apiFault fails requests.
type apiFault struct {
	method string         // empty for any
	path   *regexp.Regexp // matches path and query
	left   int            // how many more requests fail, unless always
	always bool

	status int // answered instead
	hang   bool
	lose   bool   // carried out but not answered
	then   func() // called after that; may be nil
}

// parse reads a path pattern and a fault as scripts write them.
func (f *apiFault) parse(path, fault string) (err error) {
	if f.path, err = regexp.Compile(path); err != nil {
		return err
	}
	kind, value, _ := strings.Cut(fault, "=")
	switch kind {
	case "status":
		f.status, err = number(value)
	case "hang":
		f.hang = true
	case "lose":
		f.lose = true
	default:
		err = fmt.Errorf("fault %q: want status=CODE, hang or lose", fault)
	}
	return err
}

func (f *apiFault) done() {
	if f.then != nil {
		f.then()
	}
}

// discard is a ResponseWriter that discards the response.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(p []byte) (int, error) { return len(p), nil }

func newProxy(config *rest.Config) (*proxy, error) {
	// The user agent of each request passes through, since it is the default field
	// manager.
	config = rest.CopyConfig(config)
	config.UserAgent, config.Timeout = "", 0
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	p := &proxy{requests: make(map[string]int), hanging: make(chan struct{})}
	reverse := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) {
			panic(http.ErrAbortHandler) // the API server is down: drop the connection too
		},
	}
	p.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := p.take(r)
		switch {
		case f == nil:
			reverse.ServeHTTP(w, r)
		case f.lose:
			reverse.ServeHTTP(discard{make(http.Header)}, r)
			f.done()
			panic(http.ErrAbortHandler)
		default:
			f.done()
			p.answer(w, r, f)
		}
	}))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	p.url = p.server.URL
	p.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
	return p, nil
}

func (p *proxy) close() {
	p.heal()
	p.server.CloseClientConnections() // watches never end on their own
	p.server.Close()
}

// take counts a request and returns the fault for it, if any.
func (p *proxy) take(r *http.Request) *apiFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests[r.Method+" "+r.URL.RequestURI()]++
	for _, f := range p.faults {
		if f.method != "" && f.method != r.Method || !f.path.MatchString(r.URL.RequestURI()) || !f.always && f.left == 0 {
			continue
		}
		f.left--
		return f
	}
	return nil
}

func (p *proxy) answer(w http.ResponseWriter, r *http.Request, f *apiFault) {
	if f.hang {
		p.mu.Lock()
		healed := p.hanging
		p.mu.Unlock()
		select {
		case <-r.Context().Done():
		case <-healed:
		}
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.status)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the proxy was told to fail","code":%d}`, f.status)
}

func (p *proxy) fail(f *apiFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
}

// heal removes every fault; requests that hang are cut off.
func (p *proxy) heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = nil
	close(p.hanging)
	p.hanging = make(chan struct{})
}

// takeRequests returns the requests since the last call.
func (p *proxy) takeRequests() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := maps.Clone(p.requests)
	clear(p.requests)
	return taken
}
