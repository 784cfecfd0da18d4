package etcdserver

import (
	"io"
	"net"
	"net/url"
	"sync"
)

// Relay passes connections on to a server, until it is told to fail.
type Relay struct {
	// Endpoint is where it listens, as in "https://127.0.0.1:12345".
	Endpoint string

	listener net.Listener
	to       string

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
	ever  int
}

// NewRelay returns a relay to an endpoint.
func NewRelay(endpoint string) (*Relay, error) {
	to, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &Relay{Endpoint: to.Scheme + "://" + l.Addr().String(), listener: l, to: to.Host, conns: make(map[net.Conn]struct{})}
	go r.accept()
	return r, nil
}

func (r *Relay) accept() {
	for {
		from, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.pass(from)
	}
}

func (r *Relay) pass(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	r.mu.Lock()
	down := r.down
	if !down {
		r.ever++
		r.conns[from], r.conns[to] = struct{}{}, struct{}{}
	}
	r.mu.Unlock()
	if down {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		both.Go(func() {
			io.Copy(way[0], way[1])
			from.Close()
			to.Close()
		})
	}
	both.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, from)
	delete(r.conns, to)
}

// Cut closes the connections that are open.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// SetDown has it refuse connections, and closes those that are open; or accept them again.
func (r *Relay) SetDown(down bool) {
	r.mu.Lock()
	r.down = down
	r.mu.Unlock()
	if down {
		r.Cut()
	}
}

// Open returns how many connections are open, and how many there ever were.
func (r *Relay) Open() (open, ever int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) / 2, r.ever
}

// Close ends it.
func (r *Relay) Close() {
	r.listener.Close()
	r.SetDown(true)
}
