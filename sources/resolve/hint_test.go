package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

func resolveHinted(t *testing.T, cfg Config, lock, hint *lockfile.File, requests ...Request) *Result {
	t.Helper()
	res, err := Resolve(t.Context(), cfg, lock, hint, requests)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// The version of a dependency that an interrupted run selected stays, though the registry
// has a higher one.
func TestHintKeepsDependencies(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "a", "reg.io/lib >=v1.0.0")
	s.put("reg.io/lib:v1.0.0", "1")
	req := request("dev", "reg.io/app:v1")
	first := resolve(t, s.config(), new(lockfile.File), req)
	s.put("reg.io/lib:v2.0.0", "2")
	res := resolveHinted(t, s.config(), new(lockfile.File), first.Lock, req)
	if have := string(res.Lock.Format()); have != string(first.Lock.Format()) {
		t.Errorf("after the crash\n%s\nbefore\n%s", have, first.Lock.Format())
	}
	if left := string(res.Unsettled.Format()); left != "" {
		t.Errorf("not settled:\n%s", left)
	}
}

func TestHint(t *testing.T) {
	one := func(s *shelf, ref string) string { return string(s.packages[ref].Digest) }
	for _, tt := range []struct {
		name       string
		lock, hint func(s *shelf) string
		want       string // selected
		moved      string // in the error
		unsettled  string // the beginning of it
	}{
		{name: "a selection that does not suit", hint: func(s *shelf) string {
			return "@dev reg.io/lib v0.9.0 <- reg.io/app\nreg.io/lib v0.9.0 " + one(s, "reg.io/lib:v0.9.0") + "\n"
		}, want: "app:v1 lib:v2.0.0"},
		{name: "a selection that is nowhere", hint: func(*shelf) string {
			return "@dev reg.io/lib v1.7.0 <- reg.io/app\nreg.io/lib v1.7.0 " + digest0() + "\n"
		}, want: "app:v1 lib:v2.0.0"},
		{name: "a selection without a record", hint: func(*shelf) string { return "@dev reg.io/lib v1.0.0 <- reg.io/app\n" }, want: "app:v1 lib:v2.0.0"},
		{name: "another cluster's selection", hint: func(s *shelf) string {
			return "@prod reg.io/lib v1.0.0 <- reg.io/app\nreg.io/lib v1.0.0 " + one(s, "reg.io/lib:v1.0.0") + "\n"
		}, want: "app:v1 lib:v2.0.0"},
		{name: "the lock selects another", lock: func(s *shelf) string {
			return "@dev reg.io/lib v2.0.0 <- reg.io/app\nreg.io/lib v2.0.0 " + one(s, "reg.io/lib:v2.0.0") + "\n"
		}, hint: func(s *shelf) string {
			return "@dev reg.io/lib v1.0.0 <- reg.io/app\nreg.io/lib v1.0.0 " + one(s, "reg.io/lib:v1.0.0") + "\n"
		}, want: "app:v1 lib:v2.0.0"},
		{name: "the lock has another digest", lock: func(s *shelf) string { return "reg.io/app v1 " + one(s, "reg.io/app:v1") + "\n" },
			hint: func(*shelf) string { return "reg.io/app v1 " + digest0() + "\n" }, want: "app:v1 lib:v2.0.0"},
		{name: "a tag that moved", hint: func(*shelf) string { return "@dev reg.io/app v1\nreg.io/app v1 " + digest0() + "\n" },
			moved: "reg.io/app v1 was resolved by a run that was interrupted", unsettled: "@dev reg.io/app v1\nreg.io/app v1 sha256:000"},
		{name: "a dependency's tag that moved", hint: func(*shelf) string {
			return "@dev reg.io/lib v1.0.0 <- reg.io/app\nreg.io/lib v1.0.0 " + digest0() + "\nreg.io/other v1 " + digest0() + "\n"
		}, moved: "reg.io/app:v1 depends on reg.io/lib: reg.io/lib v1.0.0 was resolved by a run", unsettled: "@dev reg.io/lib v1.0.0 <- reg.io/app\nreg.io/lib v1.0.0 sha256:000"},
		{name: "other items than the digest", hint: func(s *shelf) string {
			return "reg.io/app v1 " + one(s, "reg.io/app:v1") + "\nreg.io/app v1/package.yaml " + digest0() + "\n"
		}, want: "app:v1 lib:v2.0.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			s.put("reg.io/app:v1", "a", "reg.io/lib >=v1.0.0")
			for _, v := range []string{"v0.9.0", "v1.0.0", "v2.0.0"} {
				s.put("reg.io/lib:"+v, v)
			}
			lock := new(lockfile.File)
			if tt.lock != nil {
				lock = parseLock(t, tt.lock(&s))
			}
			cfg := s.config()
			digest := cfg.Digest
			cfg.Digest = func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
				if s.packages[from.Repository+":"+tag] == nil {
					return "", sources.ErrNotFound
				}
				return digest(ctx, from, tag)
			}
			res := resolveHinted(t, cfg, lock, parseLock(t, tt.hint(&s)), request("dev", "reg.io/app:v1"))
			if have := selected(res, "dev"); have != tt.want {
				t.Errorf("selected %q, want %q", have, tt.want)
			}
			var moved *Moved
			if tt.moved == "" && faults(res) != nil || tt.moved != "" && (!errors.As(faults(res), &moved) || !strings.Contains(faults(res).Error(), tt.moved)) {
				t.Errorf("error %v", faults(res))
			}
			if have := string(res.Unsettled.Format()); !strings.HasPrefix(have, tt.unsettled) || tt.unsettled == "" && have != "" || strings.Contains(have, "other") {
				t.Errorf("not settled:\n%s", have)
			}
			if strings.Contains(string(res.Lock.Format()), digest0()) {
				t.Errorf("the hint is in the lock\n%s", res.Lock.Format())
			}
		})
	}
}

// A tag that may move is followed, as its declaration asks for.
func TestHintOfAlways(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "a")
	ds := declare("reg.io/app:v1")
	ds[0].PullPolicy = sources.PullAlways
	res := resolveHinted(t, s.config(), new(lockfile.File), parseLock(t, "reg.io/app v1 "+digest0()+"\n"), Request{Cluster: "dev", Declarations: ds})
	if faults(res) != nil || selected(res, "dev") != "app:v1" {
		t.Errorf("%v, selected %q", faults(res), selected(res, "dev"))
	}
}

// Lines of the hint stay while the registry cannot confirm them.
func TestHintStaysWhileTheRegistryIsDown(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "a")
	s.down = true
	hint := parseLock(t, "@dev reg.io/app v1\n@prod reg.io/b v1 <- reg.io/a\nreg.io/app v1 "+digest0()+"\nreg.io/b v1 "+digest0()+"\nreg.io/c v1 "+digest0()+"\n")
	res := resolveHinted(t, s.config(), new(lockfile.File), hint, request("dev", "reg.io/app:v1"), Request{Cluster: "prod", Failed: true})
	want := "@dev reg.io/app v1\n@prod reg.io/b v1 <- reg.io/a\nreg.io/app v1 " + digest0() + "\nreg.io/b v1 " + digest0() + "\n"
	if have := string(res.Unsettled.Format()); have != want {
		t.Errorf("not settled:\n%s", have)
	}
}

// Two lines of one key are an error of the package in the cluster, and both stay;
// everything else goes on.
func TestContestedLock(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "a", "reg.io/lib >=v1.0.0")
	s.put("reg.io/old:v1", "o", "reg.io/lib <v10.0.0")
	libs := ""
	for _, v := range []string{"v8.0.0", "v9.0.0", "v10.0.0"} {
		libs += "reg.io/lib " + v + " " + string(s.put("reg.io/lib:"+v, v)) + "\n"
	}
	s.put("reg.io/lib:v11.0.0", "v11.0.0")
	s.put("reg.io/b:v1", "b")
	two := "@dev reg.io/lib v10.0.0 <- reg.io/app\n@dev reg.io/lib v9.0.0 <- reg.io/app\n"
	records := "reg.io/b v1 " + digest0() + "\nreg.io/b v1 " + string(s.packages["reg.io/b:v1"].Digest) + "\n"
	app, b, old := declare("reg.io/app:v1"), declare("reg.io/b:v1"), declare("reg.io/app:v1", "reg.io/old:v1")
	all := func(_, _ string) bool { return true }
	for _, tt := range []struct {
		name, lock string
		declared   []sources.Declaration
		update     func(_, _ string) bool
		want, err  string
	}{
		{name: "two selections", lock: two, declared: app, err: "two lines for the dependency reg.io/lib of cluster dev: v10.0.0 in clusters.lock:2, v9.0.0 in clusters.lock:3"},
		{name: "one of them suits", lock: two, declared: old, want: "app:v1 lib:v9.0.0 old:v1"},
		{name: "selections, decided anew", lock: two, declared: app, update: all, want: "app:v1 lib:v11.0.0"},
		{name: "two records", lock: records, declared: b, err: "two lines for reg.io/b v1: sha256:"},
		{name: "records, decided anew", lock: records, declared: b, update: all, want: "b:v1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := s.config()
			cfg.Update = tt.update
			lock := parseLock(t, "@prod reg.io/lib v8.0.0 <- reg.io/app\n"+tt.lock+libs)
			res := resolve(t, cfg, lock, Request{Cluster: "dev", Declarations: tt.declared}, request("prod", "reg.io/app:v1"))
			if have := selected(res, "dev"); have != tt.want {
				t.Errorf("selected %q, want %q (%v)", have, tt.want, faults(res))
			}
			if have := selected(res, "prod"); tt.update == nil && have != "app:v1 lib:v8.0.0" {
				t.Errorf("prod selected %q", have)
			}
			if tt.err == "" {
				if faults(res) != nil || len(res.Lock.Contradictions()) > 0 {
					t.Errorf("error %v, the lock is\n%s", faults(res), res.Lock.Format())
				}
				return
			}
			var contradiction *lockfile.Contradiction
			if !errors.As(faults(res), &contradiction) || !strings.Contains(faults(res).Error(), tt.err) {
				t.Errorf("error %v", faults(res))
			}
			for line := range strings.Lines(tt.lock) {
				if !strings.Contains(string(res.Lock.Format()), line) {
					t.Errorf("%q is gone from\n%s", line, res.Lock.Format())
				}
			}
		})
	}
}

// The digest to which an interrupted run moved a tag is kept while the cluster that has it cannot be read.
func TestHintKeepsMovedTag(t *testing.T) {
	t.Parallel()
	var s shelf
	s.put("reg.io/a:v1", "old")
	req := request("dev", "reg.io/a:v1")
	req.Declarations[0].PullPolicy = sources.PullAlways
	lock := resolve(t, s.config(), new(lockfile.File), req).Lock
	now := s.put("reg.io/a:v1", "new")
	hint := lockfile.Added(lock, resolve(t, s.config(), lock, req).Lock)
	res := resolveHinted(t, s.config(), lock, hint, Request{Cluster: "dev", Failed: true})
	if got, _ := res.Unsettled.Digest("reg.io/a", "v1"); got != now {
		t.Errorf("the hint has %q", got)
	}
	if res = resolveHinted(t, s.config(), lock, hint, req); len(res.Unsettled.Format()) > 0 {
		t.Errorf("the hint has %s", res.Unsettled.Format())
	}
}

// A tag that an interrupted run moved, and that has moved since to a digest that fails, does not go
// back: clusters may have the run's digest.
func TestHintDoesNotGoBack(t *testing.T) {
	t.Parallel()
	var s shelf
	first := s.put("reg.io/a:v1", "first")
	s.packages["reg.io/a:first"] = s.packages["reg.io/a:v1"]
	req := request("dev", "reg.io/a:v1")
	req.Declarations[0].PullPolicy = sources.PullAlways
	lock := resolve(t, s.config(), new(lockfile.File), req).Lock
	second := s.put("reg.io/a:v1", "second")
	hint := lockfile.Added(lock, resolve(t, s.config(), lock, req).Lock)
	third := s.put("reg.io/a:v1", "third")
	cfg := s.config()
	fetch := cfg.Fetch
	cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		if d == third {
			return nil, errors.New("garbled")
		}
		return fetch(ctx, from, d)
	}
	res := resolveHinted(t, cfg, lock, hint, req)
	if text := fmt.Sprint(faults(res)); selected(res, "dev") != "" || len(res.Unmoved) > 0 || !strings.Contains(text, "was moved to "+string(second)+" by a run that was interrupted, and is "+string(third)+" now, which fails in cluster dev: garbled") {
		t.Errorf("selected %q, %s, unmoved %v", selected(res, "dev"), text, res.Unmoved)
	}
	if now, _ := res.Lock.Digest("reg.io/a", "v1"); now != first || string(res.Unsettled.Format()) != string(hint.Format()) {
		t.Errorf("the lock has %s, and not settled is\n%s", now, res.Unsettled.Format())
	}
}
