package namespaces

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources/clusters"
)

// answers is an [Admin] with given results.
type answers struct {
	Admin
	all []admin.Provisioned
	err error
}

func (a *answers) Provision(context.Context, []admin.Wanted) ([]admin.Provisioned, error) {
	return a.all, a.err
}

// A problem of a cluster's own key space is reported for that cluster, until it is solved.
func TestOwnProblems(t *testing.T) {
	t.Parallel()
	a := new(answers)
	o := NewOwn(a, slog.New(slog.DiscardHandler))
	r := new(clusters.Registry)
	for _, name := range []string{"one", "two"} {
		c := clusters.Cluster{Name: name}
		c.Spec.Etcd = &clusters.Etcd{Namespace: name}
		r.Clusters = append(r.Clusters, c)
	}
	o.Want(r)
	check := func(one, two string) {
		t.Helper()
		o.provision(t.Context())
		for name, want := range map[string]string{"one": one, "two": two, "three": ""} {
			got := o.Problems(name)
			if (len(got) > 0) != (want != "") || want != "" && !strings.Contains(got[0].Reason, want) {
				t.Errorf("%s: %v, want %q", name, got, want)
			}
		}
	}
	of := func(name string, err error) admin.Provisioned {
		return admin.Provisioned{ID: etcd.ID{Cluster: name}, Err: err}
	}
	a.err = errors.New("no etcd answers")
	check("spec.etcd.namespace: no etcd answers", "no etcd answers")
	a.all = []admin.Provisioned{of("one", nil)} // was reached before it went away
	check("", "no etcd answers")
	a.all, a.err = []admin.Provisioned{of("one", nil), of("two", errors.New("it belongs to another fleet"))}, nil
	check("", "spec.etcd.namespace: it belongs to another fleet")
	a.all = []admin.Provisioned{of("one", nil), of("two", nil)}
	check("", "")
}
