package etcdproxy

import (
	"net"
	"slices"
	"sync"
)

// handshakes are the connections that are not authenticated yet. Anybody who reaches the proxy can
// open as many as they like.
type handshakes struct {
	most int

	mu  sync.Mutex
	all int
	of  map[string][]net.Conn // by the client's address without the port, the oldest first
}

// begin adds a connection until end is called. If there are too many, begin closes the oldest of the
// address that has the most, so that those of one client keep no other client out, and a client that
// completes its handshakes not even behind the same address.
func (h *handshakes) begin(raw net.Conn) (end func()) {
	address := raw.RemoteAddr().String()
	if host, _, err := net.SplitHostPort(address); err == nil {
		address = host
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = make(map[string][]net.Conn)
	}
	h.of[address] = append(h.of[address], raw)
	if h.all++; h.all > h.most {
		greedy := address
		for other, conns := range h.of {
			if len(conns) >= len(h.of[greedy]) { // any of several, and rarely the new one
				greedy = other
			}
		}
		oldest := h.of[greedy][0]
		h.remove(greedy, oldest)
		oldest.Close()
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(address, raw)
	}
}

// remove forgets a connection if it is still known. The caller holds h.mu.
func (h *handshakes) remove(address string, raw net.Conn) {
	i := slices.Index(h.of[address], raw)
	if i < 0 {
		return
	}
	h.all--
	if h.of[address] = slices.Delete(h.of[address], i, i+1); len(h.of[address]) == 0 {
		delete(h.of, address)
	}
}

// count returns the number of connections.
func (h *handshakes) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all
}
