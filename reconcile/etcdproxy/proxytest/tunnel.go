package proxytest

import (
	"context"
	"io"
	"net"
	"sync"
)

// Tunnel passes on what connections to a listener carry to those that dial makes, and
// back, until ctx ends. It is for clients that do not speak TLS, or servers. A
// connection that one side ends is ended on the other.
func Tunnel(ctx context.Context, l net.Listener, dial func(context.Context) (net.Conn, error)) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer in.Close()
			out, err := dial(ctx)
			if err != nil {
				return
			}
			defer out.Close()
			defer context.AfterFunc(ctx, func() { in.Close(); out.Close() })()
			all.Go(func() {
				_, _ = io.Copy(out, in)
				in.Close()
				out.Close()
			})
			_, _ = io.Copy(in, out)
		})
	}
}
