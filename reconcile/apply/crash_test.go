package apply_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"gitopsd.dev/reconcile/apply"
)

// dying is a process that dies at its nth write: before it is sent, or before
// its answer arrives. From then on it sends nothing.
type dying struct {
	next      http.RoundTripper
	left      atomic.Int64
	dead      atomic.Bool
	persisted bool
}

var errDead = errors.New("the process is dead")

func (d *dying) RoundTrip(req *http.Request) (*http.Response, error) {
	if d.dead.Load() {
		return nil, errDead
	}
	write := req.Method != http.MethodGet && !req.URL.Query().Has("dryRun")
	if !write || d.left.Add(-1) > 0 {
		return d.next.RoundTrip(req)
	}
	if first := d.dead.CompareAndSwap(false, true); first && d.persisted {
		if resp, err := d.next.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
	return nil, errDead
}

// After a crash at any point, the next process completes the work, and leaves nothing
// behind: neither objects to prune nor kinds in the inventory.
func TestCrash(t *testing.T) {
	before := everything
	after := strings.NewReplacer("color: green", "color: red", "name: one,", "name: two,").Replace(everything) +
		"\n---\n{apiVersion: v1, kind: ServiceAccount, metadata: {name: new, namespace: $NAME}}"
	// The Secret and the ClusterRole leave with their kinds.
	parts := strings.Split(after, "---")
	after = strings.Join(append(append(append([]string{}, parts[:2]...), parts[3:5]...), parts[6:]...), "---")

	for _, start := range []struct {
		name, set string
		writes    int // at least, in an undisturbed pass
	}{{"empty cluster", "", 8}, {"older commit", before, 5}} {
		for _, persisted := range []bool{false, true} {
			what := "write"
			if persisted {
				what = "answer"
			}
			for n := 1; ; n++ {
				survived := false
				ok := t.Run(fmt.Sprintf("%s, %s %d lost", start.name, what, n), func(t *testing.T) {
					survived = crash(t, start.set, after, []string{parts[2], parts[5]}, n, persisted)
				})
				if !ok {
					return
				}
				if survived {
					if n <= start.writes {
						t.Errorf("%s: the pass made %d writes only", start.name, n-1)
					}
					break
				}
			}
		}
	}
}

// crash lets a process die at the nth write of the pass that brings a cluster
// from one state to another, has a second process complete it, and says whether
// the first survived.
func crash(t *testing.T, before, after string, gone []string, n int, persisted bool) (survived bool) {
	b := newBedSerial(t)
	if before != "" {
		b.apply(b.set(before))
	}
	d := &dying{persisted: persisted}
	d.left.Store(int64(n))
	doomed, err := apply.New(apply.Config{
		Cluster: b.connect(b.name, func(next http.RoundTripper) http.RoundTripper { d.next = next; return d }), Fleet: testFleet, Log: discard,
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := doomed.Plan(t.Context(), b.set(after), apply.PlanOptions{})
	if err == nil {
		_, err = doomed.Apply(t.Context(), p)
	}
	if err != nil && !errors.Is(err, errDead) {
		t.Fatal(err)
	}

	b.restart()
	eventually(t, "everything is as wanted", func(context.Context) bool {
		steps, results := b.apply(b.set(after))
		return len(steps)+len(results) == 0
	})
	b.settled(b.set(after))
	const want = "ConfigMap,CustomResourceDefinition.apiextensions.k8s.io,Deployment.apps,Namespace,Service,ServiceAccount,Widget.$NAME.example.org"
	if have := b.short(b.parent()[kinds]); have != want {
		t.Errorf("the inventory has %s\nwant %s", have, want)
	}
	for _, object := range append(gone, "{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: one}}") {
		if b.get(object) != nil {
			t.Errorf("%s is still there", b.set(object).All()[0].ID())
		}
	}
	return err == nil
}

// throttled answers each nth request with 429.
type throttled struct {
	next http.RoundTripper
	n    int64
	seen atomic.Int64
}

func (h *throttled) RoundTrip(req *http.Request) (*http.Response, error) {
	if h.seen.Add(1)%h.n != 0 {
		return h.next.RoundTrip(req)
	}
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Request: req, Body: io.NopCloser(bytes.NewReader(nil)),
		Header: http.Header{"Retry-After": {"1"}},
	}, nil
}

// Requests that the API server puts off are sent again when it says.
func TestThrottled(t *testing.T) {
	b := newBed(t)
	b.cluster = b.connect(b.name, func(next http.RoundTripper) http.RoundTripper { return &throttled{next: next, n: 5} })
	b.restart()
	_, results := b.apply(b.set(everything))
	b.wantNothing("results", results)
	b.cluster = b.connect(b.name, b.requests.wrap)
	b.restart()
	b.settled(b.set(everything))
}
