package apply_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

const (
	fleetAnnotation  = "gitopsd.dev/fleet"
	commitAnnotation = "gitopsd.dev/commit"
)

// as another process: an applier of its own on the bed's cluster.
func (b *bed) process(cluster *kube.Client, fleet apply.Fleet) *apply.Applier {
	b.t.Helper()
	a, err := apply.New(apply.Config{Cluster: cluster, Fleet: fleet, Log: discard})
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// run plans and applies as a process does.
func run(ctx context.Context, a *apply.Applier, set *manifest.Set, commit string) error {
	p, err := a.Plan(ctx, set, apply.PlanOptions{Commit: commit})
	if err == nil {
		_, err = a.Apply(ctx, p)
	}
	return err
}

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Fatalf("error: %v\nwant %q", err, text)
		}
	}
}

// A cluster that two fleets register under one name is the first one's, until the other
// is started to take it over.
func TestAnotherFleet(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	if have := b.parent()[fleetAnnotation]; have != testFleet.Name {
		t.Errorf("the inventory belongs to %q", have)
	}
	less := b.set(strings.Split(two, "---")[0])
	fork := apply.Fleet{Name: "git.example.org/fork#main"}
	wantError(t, run(t.Context(), b.process(b.cluster, fork), less, "c1"),
		"belongs to another fleet, git.example.org/fleet#main", "--take-over-from=git.example.org/fleet#main")
	b.settled(set)

	// A plan is not bound to a branch.
	reader := b.process(b.cluster, apply.Fleet{Accepts: func(name string) bool { return strings.HasPrefix(name, "git.example.org/fleet#") }})
	if _, err := reader.Plan(t.Context(), set, apply.PlanOptions{}); err != nil {
		t.Error(err)
	}
	reader = b.process(b.cluster, apply.Fleet{Accepts: func(string) bool { return false }})
	_, err := reader.Plan(t.Context(), set, apply.PlanOptions{})
	wantError(t, err, "belongs to another fleet")

	fork.Accepts = func(name string) bool { return name == testFleet.Name }
	if err := run(t.Context(), b.process(b.cluster, fork), set, ""); err != nil {
		t.Fatal(err)
	}
	if have := b.parent()[fleetAnnotation]; have != fork.Name {
		t.Errorf("once taken over, the inventory belongs to %q", have)
	}
	b.restart()
	wantError(t, run(t.Context(), b.applier, less, ""), "belongs to another fleet, git.example.org/fork#main")

	// One that still runs finds out before it writes.
	fork.Accepts = nil
	second := b.process(b.cluster, fork)
	if err := run(t.Context(), second, set, ""); err != nil {
		t.Fatal(err)
	}
	third := apply.Fleet{Name: "third", Accepts: func(string) bool { return true }}
	if err := run(t.Context(), b.process(b.cluster, third), set, ""); err != nil {
		t.Fatal(err)
	}
	wantError(t, run(t.Context(), second, less, ""), "belongs to another fleet, third")
	if b.get(cm("a")) == nil || b.get(cm("b")) == nil {
		t.Error("objects are gone")
	}
}

// An inventory of an older gitopsd is taken as this fleet's; one that lost its fleet is
// refused.
func TestFleetUnknown(t *testing.T) {
	b := newBed(t)
	set := b.set(two)
	b.apply(set)
	b.edit("older", parentOf(b), `{"metadata":{"annotations":{"applyset.kubernetes.io/tooling":"gitopsd/v1","gitopsd.dev/fleet":null,"gitopsd.dev/commit":null}}}`)
	b.restart()
	steps, results := b.apply(set)
	b.wantNothing("steps", steps)
	b.wantNothing("results", results)
	if have := b.parent(); have[fleetAnnotation] != testFleet.Name || have["applyset.kubernetes.io/tooling"] != "gitopsd/v3" {
		t.Errorf("the inventory says %v", have)
	}
	b.settled(set)
	b.edit("somebody", parentOf(b), `{"metadata":{"annotations":{"gitopsd.dev/fleet":null}}}`)
	b.restart()
	wantError(t, run(t.Context(), b.applier, set, ""), "has no annotation gitopsd.dev/fleet, which says whose it is: somebody removed it; if it is this fleet's, restore gitopsd.dev/fleet: "+testFleet.Name)
}

// A process that is a commit behind writes and prunes nothing of a newer one's.
func TestCommitBehind(t *testing.T) {
	b := newBed(t)
	order := []string{"c1", "c2", "c3"}
	fleet := testFleet
	var asked []string
	fleet.Supersedes = func(_ context.Context, commit, applied string) error {
		asked = append(asked, commit+" after "+applied)
		if slices.Index(order, commit) < slices.Index(order, applied) {
			return errors.New(commit + " is older than " + applied)
		}
		return nil
	}
	older := b.process(b.cluster, fleet)
	newer := b.process(b.connect(b.name, nil), fleet)
	one, both := b.set(strings.Join(strings.Split(two, "---")[:2], "---")), b.set(two)
	for _, step := range []struct {
		by     *apply.Applier
		set    *manifest.Set
		commit string
		fails  bool
	}{
		{by: older, set: one, commit: "c1"},
		{by: newer, set: both, commit: "c2"},
		{by: older, set: one, commit: "c1", fails: true}, // it would prune
		{by: older, set: both, commit: "c1"},             // there is nothing to do
		{by: b.process(b.cluster, fleet), set: one, commit: "c1", fails: true},
		{by: older, set: both, commit: "c2"},
	} {
		err := run(t.Context(), step.by, step.set, step.commit)
		if !step.fails && err != nil {
			t.Fatal(err)
		}
		if step.fails {
			wantError(t, err, "c1 is older than c2")
		}
		if step.commit == "c2" && (b.get(cm("a")) == nil || b.get(cm("b")) == nil) {
			t.Fatal("an object is gone")
		}
	}
	if have := b.parent()[commitAnnotation]; have != "c2" {
		t.Errorf("the inventory is of %q", have)
	}
	// Nobody else has written the inventory since this process did.
	asked = nil
	if err := run(t.Context(), newer, one, "c3"); err != nil || len(asked) > 0 {
		t.Fatalf("after its own commit it asked %q, %v", asked, err)
	}
	if b.get(cm("b")) != nil {
		t.Error("nothing was pruned for the newest commit")
	}
	if err := run(t.Context(), newer, both, "c3"); err != nil || len(asked) > 0 {
		t.Errorf("at its own commit it asked %q, %v", asked, err)
	}
}

// meddler does something before the first request of a kind goes on.
type meddler struct {
	next   http.RoundTripper
	method string
	once   sync.Once
	meddle func()
}

func (m *meddler) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == m.method && strings.Contains(r.URL.Path, "/configmaps") && !strings.Contains(r.URL.RawQuery, "dryRun") {
		m.once.Do(m.meddle)
	}
	return m.next.RoundTrip(r)
}

// Two processes that write the inventory at the same time lose nothing of each
// other's, whether it is there already or not; and a fleet that comes second is
// refused.
func TestWrittenAtTheSameTime(t *testing.T) {
	for _, tt := range []struct {
		name, method string
		before       bool
		other        apply.Fleet
		refused      bool
	}{
		{name: "new", method: http.MethodPost, other: testFleet},
		{name: "there", method: http.MethodPatch, before: true, other: testFleet},
		{name: "new and anothers", method: http.MethodPost, other: apply.Fleet{Name: "other"}, refused: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			namespace := strings.Split(two, "---")[0]
			if tt.before {
				b.apply(b.set(namespace))
			}
			secret := b.set(namespace + "\n---\n{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: $NAME}}")
			other := b.process(b.connect(b.name, nil), tt.other)
			m := &meddler{method: tt.method, meddle: func() {
				if err := run(t.Context(), other, secret, ""); err != nil {
					t.Error(err)
				}
			}}
			a := b.process(b.connect(b.name, func(next http.RoundTripper) http.RoundTripper { m.next = next; return m }), testFleet)
			err := run(t.Context(), a, b.set(two), "")
			if tt.refused {
				wantError(t, err, "belongs to another fleet, other")
				if b.get(cm("a")) != nil {
					t.Error("an object was applied")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if have := b.parent()[kinds]; have != "ConfigMap,Namespace,Secret" {
				t.Errorf("the inventory has %s", have)
			}
		})
	}
}
