package etcdproxy

import (
	"context"
	"errors"
	"io"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gitopsd.dev/reconcile/etcdproxy/wire"
)

// refused returns what a tenant is told of a request that cannot be rewritten.
func refused(err error) error {
	var e *wire.Error
	if errors.As(err, &e) && e.TooMany {
		return rpctypes.ErrGRPCTooManyOps
	}
	return status.Errorf(codes.InvalidArgument, "gitopsd: request refused: %v", err)
}

// foreign returns what a tenant is told of a response that is not passed on. There was something in
// it that is not the tenant's, or that this proxy does not know: both are for the operator to
// look at.
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

// told returns what a tenant is told of an error of etcd, or of the connection to it: etcd's own
// code, and its text if that is one that holds nothing of others.
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
	return status.Error(s.Code(), hidden(s.Code()))
}

// hidden returns a text in place of one that may name addresses or others.
func hidden(c codes.Code) string {
	switch c {
	case codes.Unavailable:
		return "gitopsd: etcd is unavailable"
	case codes.Canceled:
		return "gitopsd: the call was canceled"
	case codes.DeadlineExceeded:
		return "gitopsd: the call took longer than its deadline"
	case codes.ResourceExhausted:
		return "gitopsd: the message is larger than allowed; use a limit"
	case codes.Unimplemented:
		return "gitopsd: etcd does not have this call or option"
	}
	return wire.HiddenText
}
