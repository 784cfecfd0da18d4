package etcdproxy

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

// resends is how often a call is sent again that etcd refused because users or roles changed while it
// was on its way. Otherwise each namespace that is made or removed would show in the others.
//
// It is safe for writes, too. A request carries the revision of etcd's users from when it was
// received, and is refused if that is not the current one (etcd's auth/store.go, isOpPermitted).
// For what goes through the log this is found out by each member before it applies anything of the
// request (etcdserver/apply/auth.go): it never was, and never will be, done. A read may have been
// done, and its response is thrown away.
const resends = 12

// again reports, after a pause, whether to send a call again that failed so often before.
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

// resend has calls sent again; see [resends]. It is a [grpc.UnaryClientInterceptor], and frees a frame
// whatever comes of the call.
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
