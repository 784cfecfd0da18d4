package namespaces

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/render/etcd"
)

// empty is an etcd without namespaces. It provisions none.
type empty struct{ Admin }

func (empty) Overview(context.Context) (admin.Overview, error) { return admin.Overview{}, nil }

// If an object may not get the finalizer, that is told, and tried again at growing intervals; nothing is
// made for it. If it only changed meanwhile, it is read again at once.
func TestFinalizerRefused(t *testing.T) {
	t.Parallel()
	var code int
	var reason string
	sample := newSample(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPatch {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.WriteHeader(code)
		io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "the finalizer is not allowed", "reason": "`+reason+`"}`)
	})
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	c := New(Config{Etcd: &Etcd{Admin: empty{}}})
	k := newKnown()
	work := func() *pass {
		p := sample.pass(c, now)
		if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: subject{declared: true, declaration: new(etcd.Declaration), etcd: true}}}); err != nil {
			t.Fatal(err)
		}
		return p
	}
	code, reason = http.StatusConflict, "Conflict"
	if p := work(); k.failures != 0 || sample.status != "" || !p.again.Equal(now.Add(time.Second)) {
		t.Errorf("after a change: %d failures, status %q, again at %s", k.failures, sample.status, p.again)
	}
	code, reason = http.StatusForbidden, "Forbidden"
	for n := range 3 {
		p := work()
		if wait := firstRetry << n; k.failures != n+1 || !k.retry.Equal(now.Add(wait)) || !p.again.Equal(now.Add(wait)) {
			t.Errorf("%d failures, again at %s and %s", k.failures, k.retry, p.again)
		}
		if !strings.Contains(k.failure, "the finalizer is not allowed") || !strings.Contains(sample.status, "the finalizer is not allowed") || !strings.Contains(sample.status, notProvisioned) {
			t.Errorf("the problem is %q, and the status %q", k.failure, sample.status)
		}
	}
}

// owned is an etcd that notes the owners of what it is to provision.
type owned struct {
	Admin
	by []string
}

func (o *owned) Provision(_ context.Context, wanted []admin.Wanted) ([]admin.Provisioned, error) {
	for _, w := range wanted {
		o.by = append(o.by, w.UID)
	}
	return nil, errors.New("etcd is down")
}

// A cluster that is made anew behind the same credentials is another owner: it does not get the keys of
// the one before.
func TestMadeAnew(t *testing.T) {
	t.Parallel()
	sample := newSample(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	o := new(owned)
	c := New(Config{Etcd: &Etcd{Admin: o, Upstream: func() (u identity.Upstream, err error) { return u, errors.New("none") }, Keeper: new(identity.Keeper)}})
	for _, uid := range []string{"old", "new"} {
		sample.uid = uid
		s := subject{declared: true, declaration: new(etcd.Declaration), etcd: true, finalized: true}
		if err := sample.pass(c, time.Now()).work(t.Context(), []*task{{known: newKnown(), key: "key", subject: s}}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(o.by, []string{"old", "new"}) {
		t.Errorf("provisioned for %q", o.by)
	}
}
