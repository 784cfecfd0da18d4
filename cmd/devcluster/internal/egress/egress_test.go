package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveProxy starts a proxy and returns a function that connects to it. The proxy and all
// tunnels end before the test does.
func serveProxy(t *testing.T, route Route) (connect func() *net.UnixConn, stop func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, route) }()
	stop = func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		served <- nil
	}
	t.Cleanup(stop)
	return func() *net.UnixConn {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return conn.(*net.UnixConn)
	}, stop
}

// listen returns the address of a server that echoes the data of a connection once the
// client has closed its side.
func listen(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if text, err := io.ReadAll(conn); err == nil {
					fmt.Fprintf(conn, "heard %s", text)
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func TestConnect(t *testing.T) {
	t.Parallel()
	echo := listen(t)
	closed, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().(*net.TCPAddr).AddrPort()
	closed.Close()
	to := map[string]netip.AddrPort{
		"10.96.0.9:443":  echo,
		"10.96.0.10:443": nobody,
		"10.96.0.11:443": netip.MustParseAddrPort("192.0.2.7:443"),
	}
	connect, _ := serveProxy(t, func(addr netip.AddrPort) (netip.AddrPort, error) {
		if a, ok := to[addr.String()]; ok {
			return a, nil
		}
		return netip.AddrPort{}, errors.New("leads\r\nnowhere")
	})
	const request = "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	for _, tt := range []struct {
		name, request string
		status        string
	}{
		{"a process", fmt.Sprintf(request, "10.96.0.9:443"), "200 connection established"},
		{"nobody listens", fmt.Sprintf(request, "10.96.0.10:443"), "connection refused"},
		{"no route", fmt.Sprintf(request, "10.96.0.1:1"), "502 10.96.0.1:1: leads  nowhere"},
		{"a route that leaves the machine", fmt.Sprintf(request, "10.96.0.11:443"), "502 10.96.0.11:443: 192.0.2.7:443 is not on this machine"},
		{"a name", fmt.Sprintf(request, "example.org:443"), `502 "example.org:443" is not an address`},
		{"no port", fmt.Sprintf(request, "10.96.0.9"), "502"},
		{"not CONNECT", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "400 GET: only CONNECT"},
		{"not HTTP", "\x16\x03\x01\r\n\r\n", "400 not an HTTP request"},
		{"endless header", "CONNECT a:1 HTTP/1.1\r\nX: " + strings.Repeat("x", 2*headerSize), "400 not an HTTP request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			conn := connect()
			// The proxy need not read all of it.
			go io.WriteString(conn, tt.request)
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 ") || !strings.Contains(line, tt.status) {
				t.Errorf("got %q, %v; want %q", line, err, tt.status)
			}
		})
	}
}

func TestTunnel(t *testing.T) {
	t.Parallel()
	echo := listen(t)
	connect, _ := serveProxy(t, func(netip.AddrPort) (netip.AddrPort, error) { return echo, nil })
	conn := connect()
	// The client sends data before the response, and then closes its side.
	io.WriteString(conn, "CONNECT 10.0.0.1:1 HTTP/1.1\r\n\r\nearly ")
	buffer := bufio.NewReader(conn)
	response, err := http.ReadResponse(buffer, &http.Request{Method: http.MethodConnect})
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", response, err)
	}
	io.WriteString(conn, "late")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(buffer); string(got) != "heard early late" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestTunnelsEndWithTheProxy(t *testing.T) {
	t.Parallel()
	echo := listen(t)
	connect, stop := serveProxy(t, func(netip.AddrPort) (netip.AddrPort, error) { return echo, nil })
	idle, silent := connect(), connect()
	io.WriteString(idle, "CONNECT 10.0.0.1:1 HTTP/1.1\r\n\r\n")
	buffer := bufio.NewReader(idle)
	if _, err := http.ReadResponse(buffer, &http.Request{Method: http.MethodConnect}); err != nil {
		t.Fatal(err)
	}
	stop()
	for name, r := range map[string]io.Reader{"tunnel": buffer, "connection without a request": silent} {
		var netErr net.Error
		if _, err := io.ReadAll(r); errors.As(err, &netErr) && netErr.Timeout() {
			t.Errorf("%s: goes on", name)
		}
	}
}
