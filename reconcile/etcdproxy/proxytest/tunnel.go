package proxytest

import (
	"context"
	"io"
	"net"
	"sync"
)

// Tunnel forwards connections to a listener through connections that dial opens, until ctx ends. It is
// for clients or servers that do not speak TLS. When one side closes, the other is closed.
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
