package listener_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gitopsd.dev/reconcile/etcdproxy"
	"gitopsd.dev/reconcile/status"
)

// failing fails to accept with some errors first.
type failing struct {
	net.Listener
	mu     sync.Mutex
	errors []syscall.Errno
	// accepting is closed when there are none left.
	accepting chan struct{}
}

func (f *failing) Accept() (net.Conn, error) {
	f.mu.Lock()
	if len(f.errors) > 0 {
		defer f.mu.Unlock()
		err := f.errors[0]
		f.errors = f.errors[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	select {
	case <-f.accepting:
	default:
		close(f.accepting)
	}
	f.mu.Unlock()
	return f.Listener.Accept()
}

// Each server goes on after each error of accept(2), logs the first, and ends when its listener is closed.
func TestPatient(t *testing.T) {
	t.Parallel()
	proxy := func(grpcGo bool) func(net.Listener, *slog.Logger) error {
		return func(l net.Listener, log *slog.Logger) error {
			p, err := etcdproxy.New(etcdproxy.Config{
				Log: log, GRPCGo: grpcGo, Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") },
			})
			if err != nil {
				return err
			}
			return p.Serve(t.Context(), l)
		}
	}
	for name, serve := range map[string]func(net.Listener, *slog.Logger) error{
		"etcd namespaces":             proxy(false),
		"etcd namespaces, by grpc-go": proxy(true),
		"status": func(l net.Listener, log *slog.Logger) error {
			ended := make(chan error)
			status.Serve(l, http.NotFoundHandler(), log, func(err error) { ended <- err })
			return <-ended
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			f := &failing{Listener: l, errors: []syscall.Errno{syscall.ENOBUFS, syscall.ENOMEM, syscall.EMFILE}, accepting: make(chan struct{})}
			var log bytes.Buffer
			ended := make(chan error, 1)
			go func() { ended <- serve(f, slog.New(slog.NewTextHandler(&log, nil))) }()
			select {
			case <-f.accepting:
			case err := <-ended:
				t.Fatalf("it ends: %v", err)
			}
			l.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("after the listener was closed: %v", err)
			}
			if n := strings.Count(log.String(), "level=WARN"); n != 1 {
				t.Errorf("%d errors are logged, want the first of the row:\n%s", n, log.String())
			}
		})
	}
}
