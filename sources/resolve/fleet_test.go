package resolve

import (
	"slices"
	"testing"

	"gitopsd.dev/sources/lockfile"
)

// A new cluster gets the versions of the fleet that satisfy its packages, rather than newer
// ones, in any order of clusters.
func TestNewClusterGetsWhatTheFleetHas(t *testing.T) {
	publish := func(s *shelf, versions ...string) {
		for _, v := range versions {
			s.put("reg.io/lib:"+v, v)
		}
	}
	type clusters map[string][]string // declarations by name
	for _, tt := range []struct {
		name   string
		first  clusters // resolved before v1.9.0 is published
		second clusters
		update func(cluster, repository string) bool
		want   map[string]string
	}{
		{
			name:   "one",
			first:  clusters{"dev": {"reg.io/app:v1"}},
			second: clusters{"dev": {"reg.io/app:v1"}, "prod": {"reg.io/app:v1"}},
			want:   map[string]string{"dev": "app:v1 lib:v1.5.0", "prod": "app:v1 lib:v1.5.0"},
		},
		{
			name:   "two at once, and the highest that suits each",
			first:  clusters{"dev": {"reg.io/app:v1"}, "old": {"reg.io/app:v1", "reg.io/low:v1"}},
			second: clusters{"dev": {"reg.io/app:v1"}, "old": {"reg.io/app:v1", "reg.io/low:v1"}, "a": {"reg.io/app:v1"}, "z": {"reg.io/low:v1"}},
			want:   map[string]string{"a": "app:v1 lib:v1.5.0", "dev": "app:v1 lib:v1.5.0", "z": "lib:v1.2.0 low:v1"},
		},
		{
			name:   "what another declares",
			first:  clusters{"dev": {"reg.io/lib:v1.2.0"}},
			second: clusters{"dev": {"reg.io/lib:v1.2.0"}, "prod": {"reg.io/app:v1"}},
			want:   map[string]string{"prod": "app:v1 lib:v1.2.0"},
		},
		{
			name:   "not what another declared until now",
			first:  clusters{"dev": {"reg.io/lib:v1.2.0"}},
			second: clusters{"dev": {"reg.io/lib:v1.5.0"}, "prod": {"reg.io/app:v1"}},
			want:   map[string]string{"prod": "app:v1 lib:v1.5.0"},
		},
		{
			name:   "not what goes away with its dependent",
			first:  clusters{"dev": {"reg.io/app:v1"}},
			second: clusters{"dev": {"reg.io/none:v1"}, "prod": {"reg.io/app:v1"}},
			want:   map[string]string{"prod": "app:v1 lib:v1.9.0"},
		},
		{
			name:   "nothing of it suits",
			first:  clusters{"dev": {"reg.io/low:v1"}},
			second: clusters{"dev": {"reg.io/low:v1"}, "prod": {"reg.io/high:v1"}},
			want:   map[string]string{"dev": "lib:v1.2.0 low:v1", "prod": "high:v1 lib:v1.9.0"},
		},
		{
			name:   "an update moves all",
			first:  clusters{"dev": {"reg.io/app:v1"}, "prod": {"reg.io/app:v1"}},
			second: clusters{"dev": {"reg.io/app:v1"}, "prod": {"reg.io/app:v1"}, "new": {"reg.io/app:v1"}},
			update: func(_, _ string) bool { return true },
			want:   map[string]string{"dev": "app:v1 lib:v1.9.0", "prod": "app:v1 lib:v1.9.0", "new": "app:v1 lib:v1.9.0"},
		},
		{
			name:   "an update of one cluster moves that",
			first:  clusters{"dev": {"reg.io/app:v1"}, "prod": {"reg.io/app:v1"}},
			second: clusters{"dev": {"reg.io/app:v1"}, "prod": {"reg.io/app:v1"}, "new": {"reg.io/app:v1"}},
			update: func(cluster, _ string) bool { return cluster == "dev" },
			want:   map[string]string{"dev": "app:v1 lib:v1.9.0", "prod": "app:v1 lib:v1.5.0", "new": "app:v1 lib:v1.5.0"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			s.put("reg.io/app:v1", "app", "reg.io/lib ^1")
			s.put("reg.io/low:v1", "low", "reg.io/lib <1.5.0")
			s.put("reg.io/high:v1", "high", "reg.io/lib >1.5.0")
			s.put("reg.io/none:v1", "none")
			publish(&s, "v1.2.0", "v1.5.0")
			requests := func(c clusters) []Request {
				var all []Request
				for _, name := range sortedKeys(c) {
					all = append(all, request(name, c[name]...))
				}
				return all
			}
			lock := resolve(t, s.config(), new(lockfile.File), requests(tt.first)...).Lock
			publish(&s, "v1.9.0")
			cfg := s.config()
			cfg.Update = tt.update
			reversed := requests(tt.second)
			slices.Reverse(reversed)
			var before string
			for _, order := range [][]Request{requests(tt.second), reversed} {
				res := resolve(t, cfg, lock, order...)
				if faults(res) != nil {
					t.Fatal(faults(res))
				}
				for cluster, want := range tt.want {
					if have := selected(res, cluster); have != want {
						t.Errorf("%s has %q, want %q", cluster, have, want)
					}
				}
				if now := string(res.Lock.Format()); before != "" && now != before {
					t.Errorf("another order makes\n%s\nof\n%s", now, before)
				} else {
					before = now
				}
				again := resolve(t, s.config(), res.Lock, order...)
				if string(again.Lock.Format()) != before {
					t.Errorf("a second resolution makes\n%s\nof\n%s", again.Lock.Format(), before)
				}
			}
		})
	}
}

// A tag has one digest in the fleet: an update of one cluster replaces it only if no
// other cluster selects the version.
func TestUpdateOfOneClustersTag(t *testing.T) {
	for _, tt := range []struct {
		prod string
		want bool
	}{{"reg.io/a:v1", false}, {"reg.io/a:v2", true}} {
		var s shelf
		s.put("reg.io/a:v1", "old")
		s.put("reg.io/a:v2", "old")
		requests := []Request{request("dev", "reg.io/a:v1"), request("prod", tt.prod)}
		lock := resolve(t, s.config(), new(lockfile.File), requests...).Lock
		before, _ := lock.Digest("reg.io/a", "v1")
		s.put("reg.io/a:v1", "moved")
		// What prod selects is fetched by its digest.
		s.put("reg.io/a:kept", "old")
		s.packages["reg.io/a:kept"].Digest = before
		cfg := s.config()
		cfg.Update = func(cluster, _ string) bool { return cluster == "dev" }
		res := resolve(t, cfg, lock, requests...)
		now, _ := res.Lock.Digest("reg.io/a", "v1")
		if faults(res) != nil || (now != before) != tt.want {
			t.Errorf("prod with %s: updated %t, %v", tt.prod, now != before, faults(res))
		}
	}
}

// A version that another cluster declares, and that it cannot have, is no choice for
// a new dependency.
func TestNewDependencyIsNothingThatFailsElsewhere(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "app", "reg.io/lib ^1")
	s.put("reg.io/lib:v1.2.0", "lib")
	requests := []Request{request("dev", "reg.io/lib:v1.9.0"), request("prod", "reg.io/app:v1")}
	res := resolve(t, s.config(), new(lockfile.File), requests...)
	if have := selected(res, "prod"); have != "app:v1 lib:v1.2.0" {
		t.Errorf("prod has %q (%v)", have, faults(res))
	}
}
