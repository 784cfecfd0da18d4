package etcdproxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// refused returns the error for a request that cannot be rewritten.
func refused(err error) error {
	if e, ok := errors.AsType[*wire.Error](err); ok && e.TooMany {
		return rpctypes.ErrGRPCTooManyOps
	}
	return status.Errorf(codes.InvalidArgument, "gitopsd: request refused: %v", err)
}

// foreign returns the error for a response that is not passed on: it had something that is not the tenant's,
// or that this proxy does not know. An operator should look at both.
func (p *Proxy) foreign(t *tenant, method string, err error) error {
	t.counts.foreign.Add(1)
	p.alarm(t, "response of etcd not passed on", method, err.Error())
	return status.Error(codes.Internal, "gitopsd: response of etcd not passed on")
}

// alarm logs what should never happen, at most once a minute for each tenant.
func (p *Proxy) alarm(t *tenant, what, method, err string) {
	now := time.Now().Unix()
	if last := t.alarmed.Load(); now-last < 60 || !t.alarmed.CompareAndSwap(last, now) {
		return
	}
	p.cfg.Log.Error(what, "namespace", t.id.String(), "method", method, "error", err)
}

// told returns the error for a tenant after an error of etcd or of the connection to it: the same code, and
// the same text if it says nothing about others. It returns nil for [io.EOF].
func (p *Proxy) told(t *tenant, method string, err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	s := status.Convert(err)
	switch {
	case wire.KnownText(s.Message()):
		if s.Code() == codes.PermissionDenied || s.Code() == codes.Unauthenticated {
			// The rewriting kept to the namespace, so its user lacks rights, or the
			// rewriting is wrong.
			p.alarm(t, "etcd denied a request", method, s.Message())
		}
		return status.Error(s.Code(), s.Message())
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	}
	p.cfg.Log.Debug("call of etcd failed", "namespace", t.id.String(), "method", method, "code", s.Code().String(), "error", s.Message())
	return status.Error(s.Code(), cmp.Or(hidden[s.Code()], wire.HiddenText))
}

// hidden has texts, by code, in place of those that may name addresses or other tenants.
var hidden = map[codes.Code]string{
	codes.Unavailable:       "gitopsd: etcd is unavailable",
	codes.Canceled:          "gitopsd: the call was canceled",
	codes.DeadlineExceeded:  "gitopsd: the call took longer than its deadline",
	codes.ResourceExhausted: "gitopsd: the message is larger than allowed; use a limit",
	codes.Unimplemented:     "gitopsd: etcd does not have this call or option",
}
