package etcdproxy

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// resends is how often to resend a call that etcd refused because users or roles changed while it was under
// way. Without that, creating or removing a namespace would cause errors in the others.
//
// It is safe for writes, too. A request carries the revision of etcd's users at the time it was received, and
// is refused if that is not the current one (etcd's auth/store.go, isOpPermitted). For requests that go
// through the log each member decides this before it applies any part of them (etcdserver/apply/auth.go), so
// they were never applied and never will be. A read may have been executed; its response is dropped.
const resends = 12

// again reports, after a pause, whether to resend a call after an error, given how often it was resent before.
func again(ctx context.Context, err error, before int) bool {
	if before >= resends || !errors.Is(err, rpctypes.ErrGRPCAuthOldRevision) {
		return false
	}
	select {
	case <-time.After(time.Millisecond << min(before, 6)):
		return true
	case <-ctx.Done():
		return false
	}
}

// resend is a [grpc.UnaryClientInterceptor] that resends calls; see [resends]. It frees a request that is a
// frame.
func resend(ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	in, bytes := request.(*frame)
	if bytes {
		defer in.free()
	}
	for try := 0; ; try++ {
		if bytes {
			request = in.lend()
		}
		err := invoke(ctx, method, request, response, conn, options...)
		if lent, bytes := request.(*frame); bytes {
			lent.reclaim()
		}
		if !again(ctx, err, try) {
			return err
		}
	}
}
