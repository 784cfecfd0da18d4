package statedir

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// Ports come from below Linux's default range for outgoing connections
// (ip_local_port_range starts at 32768), so that no client's socket takes the
// port of a cluster that is stopped for a while.
const (
	firstPort = 20000
	lastPort  = 32000
)

// Reservation holds free ports until their servers listen on them.
type Reservation struct {
	// Ports are the reserved ports, on 127.0.0.1.
	Ports   []int
	sockets []int
}

// Reserve finds n free ports and keeps other processes from using them, without a gap.
// Only a server of the same user that sets SO_REUSEPORT can listen on them, which etcd and
// kube-apiserver can do. Release the reservation once the servers listen.
func Reserve(n int) (*Reservation, error) {
	r := &Reservation{}
	for range 1000 {
		if len(r.Ports) == n {
			return r, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		fd, err := reserve(port)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			r.Release()
			return nil, fmt.Errorf("reserve port %d: %w", port, err)
		}
		r.Ports, r.sockets = append(r.Ports, port), append(r.sockets, fd)
	}
	r.Release()
	return nil, fmt.Errorf("found only %d of %d free ports between %d and %d", len(r.Ports), n, firstPort, lastPort)
}

// reserve returns a socket that is bound to the port and does not listen.
func reserve(port int) (fd int, err error) {
	fd, err = syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	// Without SO_REUSEPORT, bind fails if any process has the port, even shared. The
	// option, set afterwards, lets our server listen.
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		const soReuseport = 0xf
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soReuseport, 1)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Release releases the ports. It may be called more than once.
func (r *Reservation) Release() {
	for _, fd := range r.sockets {
		syscall.Close(fd)
	}
	r.sockets = nil
}

// PortFree returns an error when a server listens on the port.
func PortFree(port int) error {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	return l.Close()
}
