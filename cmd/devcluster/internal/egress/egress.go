// Package egress forwards the API server's connections to Services and pods to the
// processes that run the pods: for webhooks, conversion, aggregated APIs and the proxy
// subresources.
//
// It has the role of konnectivity: kube-apiserver sends an HTTP CONNECT request for each
// connection to a Unix socket ([Serve]), and TLS is end to end through the tunnel. A
// Service's address is resolved as by kube-proxy ([Backend]), and the caller maps pods to
// processes. Nothing else can be reached.
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
	"strings"
	"sync"
	"time"
	"unicode"
)

const (
	// headerTimeout and headerSize bound a request.
	headerTimeout = 5 * time.Second
	headerSize    = 8 << 10
	// dialTimeout bounds connecting to a process on this machine.
	dialTimeout = 5 * time.Second
	// lingering is how long one direction of a tunnel may stay open after the other has
	// ended.
	lingering = time.Minute
)

// Route returns the address of the process behind an address of the cluster, or an error
// that says why there is none.
type Route func(to netip.AddrPort) (netip.AddrPort, error)

// Serve answers CONNECT requests on l until ctx ends. All tunnels end before it returns.
// The response to an address without a route, or without a listening process, is a 502
// with the reason in the status line, which kube-apiserver puts into its errors.
func Serve(ctx context.Context, l net.Listener, route Route) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel() // before it waits
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("egress proxy: %w", err)
		}
		connections.Go(func() { serve(ctx, conn, route) })
	}
}

func serve(ctx context.Context, client net.Conn, route Route) {
	defer client.Close()
	defer context.AfterFunc(ctx, func() { client.Close() })()
	host, early, err := readConnect(client)
	if err != nil {
		answer(client, "400 "+err.Error())
		return
	}
	process, err := dial(ctx, host, route)
	if err != nil {
		answer(client, "502 "+err.Error())
		return
	}
	defer process.Close()
	if answer(client, "200 connection established") == nil {
		tunnel(ctx, client, early, process)
	}
}

// readConnect reads a request. It returns the address to connect to, and the data that
// the client sent right after the request.
func readConnect(client net.Conn) (host string, early io.Reader, err error) {
	if err := client.SetReadDeadline(time.Now().Add(headerTimeout)); err != nil {
		return "", nil, err
	}
	buffer := bufio.NewReader(io.LimitReader(client, headerSize))
	r, err := http.ReadRequest(buffer)
	if err != nil {
		return "", nil, fmt.Errorf("not an HTTP request of at most %d bytes: %w", headerSize, err)
	}
	if r.Method != http.MethodConnect {
		return "", nil, fmt.Errorf("%s: only CONNECT is served here", r.Method)
	}
	early = io.LimitReader(buffer, int64(buffer.Buffered()))
	return r.URL.Host, early, client.SetReadDeadline(time.Time{})
}

// answer writes a response without a body. It replaces control characters in the status,
// so that it is one line.
func answer(w net.Conn, status string) error {
	if err := w.SetWriteDeadline(time.Now().Add(headerTimeout)); err != nil {
		return err
	}
	status = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, status)
	if _, err := fmt.Fprintf(w, "HTTP/1.1 %s\r\n\r\n", status); err != nil {
		return err
	}
	return w.SetWriteDeadline(time.Time{})
}

func dial(ctx context.Context, host string, route Route) (net.Conn, error) {
	to, err := netip.ParseAddrPort(host)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address and port of this cluster: only Services and pods can be reached", host)
	}
	process, err := route(to)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	if !process.Addr().IsLoopback() {
		return nil, fmt.Errorf("%s: %s is not on this machine", to, process)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", process.String())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", to, err)
	}
	return conn, nil
}

// tunnel copies both ways until both have ended, one has failed, or ctx ends. early is
// data that the client has sent already.
func tunnel(ctx context.Context, client net.Conn, early io.Reader, process net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		client.Close()
		process.Close()
	})()
	oneWay := func(dst, src net.Conn, text io.Reader) {
		_, err := io.Copy(dst, text)
		if err == nil {
			err = closeWrite(dst)
		}
		if err == nil {
			end := time.Now().Add(lingering)
			err = errors.Join(dst.SetReadDeadline(end), src.SetWriteDeadline(end))
		}
		if err != nil {
			cancel()
		}
	}
	var both sync.WaitGroup
	both.Go(func() { oneWay(process, client, io.MultiReader(early, client)) })
	both.Go(func() { oneWay(client, process, process) })
	both.Wait()
}

func closeWrite(conn net.Conn) error {
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T cannot be closed in one direction", conn)
	}
	return half.CloseWrite()
}
