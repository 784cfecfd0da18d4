package namespaces

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/identity"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/render/etcd"
)

// going is an etcd with a namespace whose keys are being deleted, some with each call.
type going struct {
	Admin
	record registry.Record
	left   int64
	made   bool
}

func (g *going) Provision(context.Context, []admin.Wanted) ([]admin.Provisioned, error) {
	if g.left > 0 {
		return []admin.Provisioned{{ID: g.record.ID, Err: errors.New("its keys are being deleted")}}, nil
	}
	g.made = true
	return nil, errors.New("the test ends here")
}

func (g *going) Overview(context.Context) (admin.Overview, error) {
	return admin.Overview{Namespaces: []admin.Status{{Record: g.record}}}, nil
}

func (g *going) Remove(_ context.Context, w admin.Wanted, how admin.Deletion) (admin.Removal, error) {
	if w.ID != g.record.ID || w.UID != "uid" || how != admin.Delete {
		return admin.Removal{}, fmt.Errorf("%s of %+v", how, w)
	}
	g.left--
	return admin.Removal{Done: g.left == 0, Left: g.left}, nil
}

// A removal that had begun before the object was declared again is continued, and the namespace is made anew. One of
// another cluster is not.
func TestFinish(t *testing.T) {
	t.Parallel()
	id := etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}
	for owner, want := range map[string]bool{"uid": true, "before": false} {
		sample := newSample(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
		g := &going{record: registry.Record{ID: id, Owner: registry.Owner{Fleet: "fleet", UID: owner}, State: registry.Deleting}, left: 3}
		c := New(Config{Etcd: &Etcd{Admin: g, Upstream: func() (u identity.Upstream, err error) { return u, errors.New("none") }, Keeper: new(identity.Keeper)}})
		k := newKnown()
		now := time.Now()
		for range 4 {
			p := sample.pass(c, now)
			s := subject{declared: true, declaration: new(etcd.Declaration), etcd: true, finalized: true}
			if err := p.work(t.Context(), []*task{{known: k, key: "key", subject: s}}); err != nil {
				t.Fatal(err)
			}
			if g.left == 2 && (!strings.Contains(sample.status, "2 keys are not gone yet") || !p.again.Equal(now.Add(goingPause))) {
				t.Errorf("the status is %s, again at %s", sample.status, p.again)
			}
		}
		if g.made != want {
			t.Errorf("owner %s: made anew is %v, %d keys left", owner, g.made, g.left)
		}
	}
}

// Only the object's own active namespace is removed from etcd, and the object stays while that is
// unknown.
func TestHas(t *testing.T) {
	t.Parallel()
	id := etcd.ID{Cluster: "dev", Namespace: "default", Name: "sample"}
	record := func(uid string, state registry.State) map[etcd.ID]admin.Status {
		return map[etcd.ID]admin.Status{id: {Record: registry.Record{ID: id, Owner: registry.Owner{Fleet: "fleet", UID: uid}, State: state}}}
	}
	damaged := errors.New("the record is garbled")
	for _, tt := range []struct {
		name string
		pass
		want bool
		err  error
	}{
		{"in use", pass{there: record("uid", registry.Active)}, true, nil},
		{"going", pass{there: record("uid", registry.Deleting)}, true, nil},
		{"left behind", pass{there: record("uid", registry.Retained)}, false, nil},
		{"another cluster's", pass{there: record("before", registry.Active)}, false, nil},
		{"another cluster's, going", pass{there: record("before", registry.Deleting)}, false, nil},
		{"nothing", pass{}, false, nil},
		{"damaged", pass{damaged: map[etcd.ID]error{id: damaged}}, false, damaged},
		{"another is damaged", pass{damaged: map[etcd.ID]error{{Cluster: "dev"}: damaged}}, false, nil},
	} {
		if got, err := tt.has(admin.Wanted{ID: id, UID: "uid"}); got != tt.want || err != tt.err {
			t.Errorf("%s: %v, %v", tt.name, got, err)
		}
	}
}
