package wire

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// HiddenText stands for a text of etcd that tenants do not see: one that is not among those that
// etcd always gives, and so might name another's key, user or address.
const HiddenText = "etcdserver: refused for a reason that is not shown to tenants"

// watchTexts are reasons for which etcd cancels watches beside its errors.
var watchTexts = map[string]bool{
	"":                             true,
	"mvcc: watcher range is empty": true,
	"mvcc: duplicate watch ID provided on the WatchStream": true,
	"mvcc: required revision has been compacted":           true,
	rpctypes.ErrCompacted.Error():                          true,
}

// Text returns what a tenant sees of a text in a response of etcd.
func Text(s string) string {
	if watchTexts[s] || KnownText(s) {
		return s
	}
	// The reason may be the text of an error of gRPC.
	if is := rpcErrors[s]; is {
		return s
	}
	return HiddenText
}

// rpcErrors are texts as etcd writes errors into responses, with the code before it.
var rpcErrors = map[string]bool{
	rpctypes.ErrGRPCPermissionDenied.Error(): true,
	rpctypes.ErrGRPCInvalidAuthToken.Error(): true,
	rpctypes.ErrGRPCAuthOldRevision.Error():  true,
	rpctypes.ErrGRPCUserEmpty.Error():        true,
}

// KnownText reports whether etcd has an error with this text; such texts hold nothing of a request.
func KnownText(s string) bool {
	var known rpctypes.EtcdError
	return errors.As(rpctypes.Error(status.Error(codes.Unknown, s)), &known)
}
