package applications

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"gitopsd.dev/render/application"
	"gitopsd.dev/render/target/placement"
)

// Applications and targets that arrive together, in whatever order, are placed as a plan
// shows it, which sees all of them.
func TestSettle(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g"}
	var planned []placement.Application
	for _, name := range names {
		planned = append(planned, placement.Application{Name: name, Selector: labels.Everything()})
	}
	want := make(map[string]string)
	for name, d := range placement.Decide("team", planned, []placement.Target{{Name: "one"}, {Name: "two"}, {Name: "three"}}) {
		want[name] = d.Target
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		now := time.Now()
		c := &Controller{settling: make(map[string]time.Time)}
		targets := make(map[string]*target)
		var all []*known
		pass := func() {
			place("team", all, targets, !c.settle("team", all, targets, now).IsZero())
		}
		arrivals := slices.Concat(names, []string{"one", "two", "three", "one ready", "two ready", "three ready"})
		r.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
		for _, name := range arrivals {
			if targets[name] != nil {
				continue // it was ready when it was first seen
			}
			now = now.Add(time.Duration(r.IntN(900)) * time.Millisecond)
			if of, ready := strings.CutSuffix(name, " ready"); ready {
				targets[of] = &target{name: of, since: now}
			} else if len(name) > 1 {
				targets[name] = &target{name: name, since: now, unready: "nothing is known of its cluster yet"}
			} else {
				all = append(all, &known{
					meta: &metav1.PartialObjectMetadata{}, seen: now,
					app: &application.Application{Namespace: "team", Name: name, Selector: labels.Everything()},
				})
			}
			pass()
		}
		now = now.Add(settlePause)
		pass()
		have := make(map[string]string)
		for _, k := range all {
			have[k.app.Name] = k.decision.Target
		}
		if !maps.Equal(have, want) {
			t.Errorf("they arrive as %v: %v, want %v", arrivals, have, want)
		}
	}
}

// What never stops arriving holds up nobody for long, and a placement that needs no choice
// is not held up at all.
func TestSettleAtLast(t *testing.T) {
	c := &Controller{settling: make(map[string]time.Time)}
	began := time.Now()
	targets := map[string]*target{"one": {name: "one", since: began}}
	named := &known{meta: &metav1.PartialObjectMetadata{}, seen: began, app: &application.Application{Namespace: "team", Name: "named", TargetRef: "one"}}
	first := &known{meta: &metav1.PartialObjectMetadata{}, seen: began, app: &application.Application{Namespace: "team", Name: "first", Selector: labels.Everything()}}
	all := []*known{named, first}
	now := began
	for i := 0; first.decision.Target == "" && i < 100; i++ {
		place("team", all, targets, !c.settle("team", all, targets, now).IsZero())
		if named.decision.Target != "one" {
			t.Fatalf("the one that names its target waits: %+v", named.decision)
		}
		now = now.Add(settlePause / 2)
		name := fmt.Sprint("more", i)
		all = append(all, &known{meta: &metav1.PartialObjectMetadata{}, seen: now, app: &application.Application{Namespace: "team", Name: name, Selector: labels.Everything()}})
	}
	if waited := now.Sub(began); first.decision.Target != "one" || waited > longestSettle+settlePause {
		t.Errorf("after %s it is on %q", waited, first.decision.Target)
	}
}

// A target that was just made is waited for, and says so; one that does not get ready is
// not waited for for long, and one that has been there for longer not at all.
func TestSettleUnready(t *testing.T) {
	began := time.Now()
	for _, tt := range []struct {
		name   string
		labels map[string]string
		since  time.Time
		waits  time.Duration
	}{
		{name: "just made", labels: map[string]string{"all": "true"}, since: began, waits: longestSettle},
		{name: "not selected", since: began, waits: settlePause},
		{name: "there before", labels: map[string]string{"all": "true"}, since: began.Add(-time.Hour), waits: settlePause},
	} {
		c := &Controller{settling: make(map[string]time.Time)}
		targets := map[string]*target{
			"one": {name: "one", labels: map[string]string{"all": "true"}, since: began.Add(-time.Hour)},
			"two": {name: "two", labels: tt.labels, since: tt.since, unready: "cluster two is not ready"},
		}
		k := &known{meta: &metav1.PartialObjectMetadata{}, seen: began, app: &application.Application{Namespace: "team", Name: "web", Selector: labels.SelectorFromSet(labels.Set{"all": "true"})}}
		until := c.settle("team", []*known{k}, targets, began)
		if have := until.Sub(began); have != tt.waits {
			t.Errorf("%s: it waits for %s, want %s", tt.name, have, tt.waits)
		}
		if says := strings.Contains(k.decision.Why, "waits for target two, which was just made: cluster two is not ready"); says != (tt.waits == longestSettle) {
			t.Errorf("%s: it says %q", tt.name, k.decision.Why)
		}
		place("team", []*known{k}, targets, !c.settle("team", []*known{k}, targets, until).IsZero())
		if k.decision.Target != "one" {
			t.Errorf("%s: it is on %q in the end: %s", tt.name, k.decision.Target, k.decision.Why)
		}
	}
}

// A target that goes away is not one that was just made.
func TestSince(t *testing.T) {
	ready, unready := &target{secret: "s", secretVersion: "1"}, &target{secret: "s", secretVersion: "1", unready: "it is away"}
	began := time.Now()
	later := began.Add(time.Second)
	made := *unready
	made.since = since(nil, &made, began)
	still := *unready
	still.since = since(&made, &still, later)
	became := *ready
	became.since = since(&still, &became, later)
	away := *unready
	away.since = since(&became, &away, later)
	if made.since != began || still.since != began || became.since != later || !away.since.IsZero() {
		t.Errorf("made %v, still unready %v, ready %v, away %v", made.since, still.since, became.since, away.since)
	}
}
