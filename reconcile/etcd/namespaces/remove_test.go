package namespaces

import (
	"errors"
	"testing"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/reconcile/etcd/registry"
	"gitopsd.dev/render/etcd"
)

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
