package namespaces

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admin "gitopsd.dev/reconcile/etcd"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/sources/clusters"
)

// answers is an [Admin] with given results.
type answers struct {
	Admin
	all   []admin.Provisioned
	err   error
	asked int
}

func (a *answers) Provision(context.Context, []admin.Wanted) ([]admin.Provisioned, error) {
	a.asked++
	return a.all, a.err
}

func (a *answers) Overview(context.Context) (admin.Overview, error) { return admin.Overview{}, a.err }

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

// Key spaces are provisioned again after a pause.
func TestOwnAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := new(answers)
		o := NewOwn(a, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			o.Run(ctx)
			close(ended)
		}()
		r := new(clusters.Registry)
		r.Clusters = []clusters.Cluster{{Name: "one"}}
		r.Clusters[0].Spec.Etcd = &clusters.Etcd{Namespace: "one"}
		o.Want(r)
		time.Sleep(10*time.Minute + time.Second)
		cancel()
		<-ended
		if a.asked != 2 {
			t.Errorf("%d times in ten minutes", a.asked)
		}
	})
}
