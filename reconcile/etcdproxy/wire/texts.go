package wire

import (
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// HiddenText replaces texts of etcd that tenants do not see, since they may name the key, user or address of
// another.
const HiddenText = "etcdserver: refused for a reason that is not shown to tenants"

// texts are the texts in responses of etcd, besides [KnownText], that tenants see.
var texts = map[string]bool{
	// Reasons to cancel a watch.
	"":                             true,
	"mvcc: watcher range is empty": true,
	"mvcc: duplicate watch ID provided on the WatchStream": true,
	"mvcc: required revision has been compacted":           true,
	rpctypes.ErrCompacted.Error():                          true,
	// Errors with their gRPC codes.
	rpctypes.ErrGRPCPermissionDenied.Error(): true,
	rpctypes.ErrGRPCInvalidAuthToken.Error(): true,
	rpctypes.ErrGRPCAuthOldRevision.Error():  true,
	rpctypes.ErrGRPCUserEmpty.Error():        true,
}

// Text returns a text in a response of etcd as a tenant sees it.
func Text(s string) string {
	if texts[s] || KnownText(s) {
		return s
	}
	return HiddenText
}

// KnownText reports whether etcd has an error with this text. Such texts are constants.
func KnownText(s string) bool {
	_, known := errors.AsType[rpctypes.EtcdError](rpctypes.Error(status.Error(codes.Unknown, s)))
	return known
}
