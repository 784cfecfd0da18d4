package apply

import (
	"testing"
	"time"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	id := manifest.ID{Kind: "ConfigMap", Name: "a"}
	for _, tt := range []struct {
		name    string
		correct []time.Duration // when
		ask     time.Duration
		held    bool
	}{
		{"never corrected", nil, 0, false},
		{"twice", []time.Duration{0, time.Second}, 2 * time.Second, false},
		{"three times", []time.Duration{0, time.Second, 2 * time.Second}, 3 * time.Second, true},
		{"after the wait", []time.Duration{0, time.Second, 2 * time.Second}, 33 * time.Second, false},
		{"the next wait is longer", []time.Duration{0, time.Second, 2 * time.Second, 33 * time.Second}, 90 * time.Second, true},
		{"rarely", []time.Duration{0, 11 * time.Minute, 22 * time.Minute, 33 * time.Minute}, 33*time.Minute + time.Second, false},
	} {
		a := unconnected()
		c := subject{id, plan.Configure}
		for _, at := range tt.correct {
			a.corrected(c, start.Add(at))
		}
		v := &view{desired: new(manifest.Set)}
		v.live.Drifted, v.live.Disputed = map[manifest.ID]string{id: "x changed by y"}, make(map[manifest.ID]string)
		a.findDisputes(v, start.Add(tt.ask))
		if why := v.live.Disputed[id]; (why != "") != tt.held {
			t.Errorf("%s: %q, want it held: %t", tt.name, why, tt.held)
		}
	}
	d := &dispute{corrections: 1000}
	if d.backoff() != longestBackoff {
		t.Errorf("a wait of %s", d.backoff())
	}
}

// Many webhooks that nothing serves hold up a pass no longer than one.
func TestCutoff(t *testing.T) {
	t.Parallel()
	c, now := new(cutoff), time.Now()
	for _, tt := range []struct {
		at   time.Duration
		want bool
	}{{0, false}, {time.Second, false}, {2 * time.Second, true}, {-time.Second, false}} {
		if have := c.over(now.Add(tt.at), time.Second); have != tt.want {
			t.Errorf("after %s: %t", tt.at, have)
		}
	}
}
