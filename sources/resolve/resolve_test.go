package resolve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// The registry is asked once for each reference, and not again once that is locked.
func TestLockedIsNotAskedAgain(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "1")
	s.put("reg.io/b:v2", "2", "reg.io/a >=v1")
	both := []Request{request("dev", "reg.io/a:v1", "reg.io/b:v2"), request("prod", "reg.io/b:v2")}
	res := resolve(t, s.config(), new(lockfile.File), both...)
	if err := faults(res); err != nil {
		t.Fatal(err)
	}
	slices.Sort(s.asked)
	want := []string{"GET reg.io/a", "GET reg.io/b", "HEAD reg.io/a:v1", "HEAD reg.io/b:v2"}
	if !slices.Equal(s.asked, want) {
		t.Errorf("asked %q\nwant %q", s.asked, want)
	}
	wantLock := fmt.Sprintf("@dev reg.io/a v1\n@dev reg.io/b v2\n@prod reg.io/a v1 <- reg.io/b\n@prod reg.io/b v2\n"+
		"reg.io/a v1 %s\nreg.io/a v1/package.yaml %s\nreg.io/b v2 %s\nreg.io/b v2/package.yaml %s\n",
		s.packages["reg.io/a:v1"].Digest, s.packages["reg.io/a:v1"].Content, s.packages["reg.io/b:v2"].Digest, s.packages["reg.io/b:v2"].Content)
	lines := strings.SplitAfter(strings.TrimSuffix(wantLock, "\n"), "\n")
	lines[len(lines)-1] += "\n"
	slices.Sort(lines)
	if have := string(res.Lock.Format()); have != strings.Join(lines, "") {
		t.Errorf("lock\n%s\nwant\n%s", have, strings.Join(lines, ""))
	}

	s.asked = nil
	again := resolve(t, s.config(), res.Lock, both...)
	if string(again.Lock.Format()) != string(res.Lock.Format()) {
		t.Errorf("a second resolution changes the lock to\n%s", again.Lock.Format())
	}
	for _, q := range s.asked {
		if !strings.HasPrefix(q, "GET ") { // by digest: the cache's business
			t.Errorf("a locked reference was looked up: %s", q)
		}
	}
}

func TestMovedTag(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Config, *sources.Declaration)
		moved  bool // the new package is selected
		errs   bool
		waits  bool
	}{
		{name: "is not looked at"},
		{name: "shows in a check", change: func(c *Config, _ *sources.Declaration) { c.Mode = Check }, errs: true},
		{name: "is taken by an update", change: func(c *Config, _ *sources.Declaration) { c.Update = func(_, r string) bool { return r == "reg.io/a" } }, moved: true},
		{name: "is not taken by another's update", change: func(c *Config, _ *sources.Declaration) { c.Update = func(_, r string) bool { return r == "reg.io/b" } }},
		{name: "is a new revision with Always", change: func(_ *Config, d *sources.Declaration) { d.PullPolicy = sources.PullAlways }, moved: true},
		{name: "waits with Always and Manual", change: func(_ *Config, d *sources.Declaration) {
			d.PullPolicy, d.ManualActivation = sources.PullAlways, true
		}, waits: true},
		{name: "is activated by its digest", change: func(_ *Config, d *sources.Declaration) {
			d.PullPolicy, d.ManualActivation, d.Ref.Digest = sources.PullAlways, true, sources.DigestOf([]byte("moved"))
		}, moved: true},
		{name: "is not activated by its digest without Always", change: func(_ *Config, d *sources.Declaration) {
			d.Ref.Digest = sources.DigestOf([]byte("moved"))
		}, errs: true},
		{name: "is not activated by its digest in a check", change: func(c *Config, d *sources.Declaration) {
			c.Mode, d.PullPolicy, d.Ref.Digest = Check, sources.PullAlways, sources.DigestOf([]byte("moved"))
		}, errs: true},
		{name: "is refused readonly with Always", change: func(c *Config, d *sources.Declaration) { d.PullPolicy, c.Mode = sources.PullAlways, Readonly }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			s.put("reg.io/a:v1", "old")
			old := *s.packages["reg.io/a:v1"]
			lock := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1")).Lock
			s.packages["reg.io/a:old"] = &old
			s.packages["reg.io/a:v1"] = &sources.Package{Repository: "reg.io/a", Digest: sources.DigestOf([]byte("moved")), Content: sources.DigestOf([]byte("new")), Meta: old.Meta}

			cfg, ds := s.config(), declare("reg.io/a:v1")
			if tt.change != nil {
				tt.change(&cfg, &ds[0])
			}
			res := resolve(t, cfg, lock, Request{Cluster: "dev", Declarations: ds})
			var m *lockfile.Mismatch
			if isMismatch := errors.As(faults(res), &m); isMismatch != tt.errs {
				t.Fatalf("error %v", faults(res))
			}
			if (len(res.Waiting) == 1) != tt.waits {
				t.Errorf("waiting: %v", res.Waiting)
			}
			now, _ := res.Lock.Digest("reg.io/a", "v1")
			if tt.moved != (now != old.Digest) {
				t.Errorf("the lock has %s, it had %s", now, old.Digest)
			}
			if !tt.errs && res.Clusters["dev"].Selected[0].Pin.Digest != now {
				t.Errorf("selected %s, locked %s", res.Clusters["dev"].Selected[0].Pin, now)
			}
		})
	}
}

// A tag has one digest in the fleet: a declaration activates a digest wherever the tag is
// declared, and two digests are an error.
func TestActivationIsTheFleets(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "old")
	lock := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1")).Lock
	s.put("reg.io/a:v1", "new")
	moved := s.packages["reg.io/a:v1"].Digest
	waiting, activating := declare("reg.io/a:v1"), declare("reg.io/a:v1")
	waiting[0].PullPolicy, waiting[0].ManualActivation = sources.PullAlways, true
	activating[0].PullPolicy, activating[0].Ref.Digest = sources.PullAlways, moved

	res := resolve(t, s.config(), lock, Request{Cluster: "dev", Declarations: waiting}, Request{Cluster: "prod", Declarations: activating})
	if faults(res) != nil || len(res.Waiting) > 0 {
		t.Fatalf("error %v, waiting %v", faults(res), res.Waiting)
	}
	for _, cluster := range []string{"dev", "prod"} {
		if d := res.Clusters[cluster].Selected[0].Pin.Digest; d != moved {
			t.Errorf("%s has %s, want %s", cluster, d, moved)
		}
	}
}

// A package is compared with its records in the lock, and a mismatch stops it in every
// cluster, and nothing else.
func TestMismatchStopsOnePackage(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "1")
	s.put("reg.io/b:v1", "2")
	reqs := []Request{request("dev", "reg.io/a:v1", "reg.io/b:v1"), request("prod", "reg.io/a:v1")}
	lock := resolve(t, s.config(), new(lockfile.File), reqs...).Lock
	text := strings.Replace(string(lock.Format()), "reg.io/a v1/package.yaml "+string(s.packages["reg.io/a:v1"].Content),
		"reg.io/a v1/package.yaml "+string(sources.DigestOf(nil)), 1)
	forged := parseLock(t, text)
	res := resolve(t, s.config(), forged, reqs...)
	if have := selected(res, "dev"); have != "b:v1" {
		t.Errorf("dev gets %q, want b:v1", have)
	}
	var m *lockfile.Mismatch
	for _, cluster := range []string{"dev", "prod"} {
		errs := res.Clusters[cluster].Errors
		if len(errs) != 1 || !errors.As(errs[0], &m) {
			t.Errorf("%s: errors %v", cluster, errs)
		}
	}
	if string(res.Lock.Format()) != text {
		t.Errorf("the lock became\n%s", res.Lock.Format())
	}
}

// The error for a digest that the registry does not have says whether it comes from the
// lock or the declaration, and other packages are resolved.
func TestDigestThatIsNowhere(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "a")
	s.put("reg.io/b:v1", "b")
	wrong := sources.DigestOf([]byte("edited"))
	lock := parseLock(t, "@dev reg.io/a v1\nreg.io/a v1 "+string(wrong)+"\n")
	res := resolve(t, s.config(), lock, request("dev", "reg.io/a:v1", "reg.io/b:v1"))
	if have := selected(res, "dev"); have != "b:v1" {
		t.Errorf("selected %s", have)
	}
	text := fmt.Sprint(faults(res))
	for _, want := range []string{string(wrong), "clusters.lock:2 records for reg.io/a v1", "restore it from Git", "gitopsd lock --update=reg.io/a"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
	res = resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a@"+string(wrong)))
	if text := fmt.Sprint(faults(res)); !strings.Contains(text, string(wrong)) || strings.Contains(text, "clusters.lock") {
		t.Errorf("a digest in the declaration is blamed on the lock: %s", text)
	}
}

func TestDependencies(t *testing.T) {
	publish := func(s *shelf) {
		s.put("reg.io/lib:v1.0.0", "1")
		s.put("reg.io/lib:v1.2.0", "2")
		s.put("reg.io/lib:v1.3.0-rc.1", "2")
		s.put("reg.io/lib:v2.0.0", "3", "reg.io/base ^1")
		s.put("reg.io/base:v1.0.0", "b")
		s.put("reg.io/app:v1", "a", "reg.io/lib >=v1.0.0")
		s.put("reg.io/old:v1", "o", "reg.io/lib ^1.0.0")
		s.put("reg.io/older:v1", "o", "reg.io/lib <1.0.0")
		s.put("reg.io/lost:v1", "l", "reg.io/nowhere ^1")
		s.put("reg.io/above:v1", "l", "reg.io/lost v1")
		s.put("reg.io/odd:v1", "l", "reg.io/lib ^^1")
		s.put("reg.io/exact:v1", "e", "reg.io/lib "+string(s.packages["reg.io/lib:v1.0.0"].Digest))
		s.put("reg.io/ring1:v1", "r", "reg.io/ring2 *")
		s.put("reg.io/ring2:v1.0.0", "r", "reg.io/ring3 *")
		s.put("reg.io/ring3:v1.0.0", "r", "reg.io/ring2 *")
	}
	lib100 := "reg.io/lib v1.0.0 " + string(sources.DigestOf([]byte("reg.io/lib:v1.0.01"))) + "\n"
	lib1 := func(s *shelf) string { return "lib@" + string(s.packages["reg.io/lib:v1.0.0"].Digest) }
	for _, tt := range []struct {
		name     string
		declared []string
		lock     string
		want     func(*shelf) string
		errs     []string
	}{
		{name: "highest, with its own", declared: []string{"reg.io/app:v1"}, want: func(*shelf) string { return "app:v1 base:v1.0.0 lib:v2.0.0" }},
		{name: "highest for all", declared: []string{"reg.io/app:v1", "reg.io/old:v1"}, want: func(*shelf) string { return "app:v1 lib:v1.2.0 old:v1" }},
		{name: "locked stays", declared: []string{"reg.io/app:v1"}, lock: "@dev reg.io/lib v1.0.0 <- reg.io/app\n" + lib100, want: func(*shelf) string { return "app:v1 lib:v1.0.0" }},
		{name: "locked that no longer does is replaced", declared: []string{"reg.io/old:v1"}, lock: "@dev reg.io/lib v2.0.0 <- reg.io/old\n", want: func(*shelf) string { return "lib:v1.2.0 old:v1" }},
		{name: "what was recorded before comes back", declared: []string{"reg.io/old:v1"}, lock: "@dev reg.io/lib v2.0.0 <- reg.io/old\n" + lib100, want: func(*shelf) string { return "lib:v1.0.0 old:v1" }},
		{name: "what was declared before stays", declared: []string{"reg.io/old:v1"}, lock: "@dev reg.io/lib v1.0.0\n" + lib100, want: func(*shelf) string { return "lib:v1.0.0 old:v1" }},
		{name: "other clusters' selections come before newer versions", declared: []string{"reg.io/old:v1"}, lock: "@prod reg.io/lib v1.0.0 <- reg.io/old\n" + lib100, want: func(*shelf) string { return "lib:v1.0.0 old:v1" }},
		{name: "records alone do not decide", declared: []string{"reg.io/old:v1"}, lock: lib100, want: func(*shelf) string { return "lib:v1.2.0 old:v1" }},
		{name: "declared wins", declared: []string{"reg.io/app:v1", "reg.io/lib:v1.0.0"}, want: func(*shelf) string { return "app:v1 lib:v1.0.0" }},
		{name: "by digest", declared: []string{"reg.io/exact:v1"}, want: func(s *shelf) string { return "exact:v1 " + lib1(s) }},
		{name: "conflict between dependents", declared: []string{"reg.io/app:v1", "reg.io/older:v1"}, want: func(*shelf) string { return "" },
			errs: []string{"no version of reg.io/lib satisfies >=v1.0.0 (needed by reg.io/app:v1) and <1.0.0 (needed by reg.io/older:v1); the registry has v2.0.0, v1.3.0-rc.1, v1.2.0, v1.0.0"}},
		{name: "conflict with a declaration", declared: []string{"reg.io/old:v1", "reg.io/lib:v2.0.0"}, want: func(*shelf) string { return "base:v1.0.0 lib:v2.0.0" },
			errs: []string{"reg.io/old:v1 needs reg.io/lib ^1.0.0, but lib declares v2.0.0"}},
		{name: "missing, and nobody else suffers", declared: []string{"reg.io/above:v1", "reg.io/app:v1"}, want: func(*shelf) string { return "app:v1 base:v1.0.0 lib:v2.0.0" },
			errs: []string{"reg.io/above:v1 depends on reg.io/lost: reg.io/lost:v1.0.0 depends on reg.io/nowhere: no version of reg.io/nowhere satisfies ^1 (needed by reg.io/lost:v1.0.0)"}},
		{name: "cycle", declared: []string{"reg.io/ring1:v1", "reg.io/old:v1"}, want: func(*shelf) string { return "lib:v1.2.0 old:v1" },
			errs: []string{"packages depend on each other: reg.io/ring2 -> reg.io/ring3 -> reg.io/ring2", "reg.io/ring1:v1 depends on reg.io/ring2"}},
		{name: "no stable choice, and nobody else suffers", declared: []string{"reg.io/flaps:v1", "reg.io/app:v1"}, want: func(*shelf) string { return "app:v1 base:v1.0.0 lib:v2.0.0" },
			errs: []string{"package flaps: its dependencies have no stable choice: each choice of a version of reg.io/flap, reg.io/flop requires another"}},
		{name: "no range", declared: []string{"reg.io/odd:v1"}, want: func(*shelf) string { return "" }, errs: []string{`"^^1", which is neither a version range nor a digest`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			publish(&s)
			s.put("reg.io/lost:v1.0.0", "l", "reg.io/nowhere ^1")
			s.put("reg.io/flaps:v1", "fs", "reg.io/flap *")
			s.put("reg.io/flap:v1.0.0", "f1")
			s.put("reg.io/flap:v2.0.0", "f2", "reg.io/flop ^1")
			s.put("reg.io/flop:v1.0.0", "fl", "reg.io/flap <2")
			lock := parseLock(t, tt.lock)
			req := request("dev", tt.declared...)
			res := resolve(t, s.config(), lock, req)
			if have := selected(res, "dev"); have != tt.want(&s) {
				t.Errorf("selected %q, want %q (%v)", have, tt.want(&s), faults(res))
			}
			if (faults(res) != nil) != (tt.errs != nil) {
				t.Errorf("error %v", faults(res))
			}
			for _, want := range tt.errs {
				if !strings.Contains(fmt.Sprint(faults(res)), want) {
					t.Errorf("error\n%v\nwant one with\n%s", faults(res), want)
				}
			}
			again := resolve(t, s.config(), res.Lock, req)
			if string(again.Lock.Format()) != string(res.Lock.Format()) {
				t.Errorf("a second resolution changes the lock from\n%s\nto\n%s", res.Lock.Format(), again.Lock.Format())
			}
		})
	}
}

// A dependency that only a failed package needs in another version stays with that package's.
func TestDependencyOfFailed(t *testing.T) {
	var s shelf
	s.put("reg.io/app:v1", "1", "reg.io/lib ^1")
	s.put("reg.io/app:v2", "2", "reg.io/lib ^2", "reg.io/more *")
	s.put("reg.io/lib:v1.0.0", "1")
	s.put("reg.io/lib:v2.0.0", "2", "reg.io/base *")
	s.put("reg.io/base:v1.0.0", "b")
	before := resolve(t, s.config(), parseLock(t, ""), request("dev", "reg.io/app:v1")).Lock
	res := resolve(t, s.config(), before, request("dev", "reg.io/app:v2"))
	if have := selected(res, "dev"); have != "" || faults(res) == nil {
		t.Errorf("selected %q, error %v", have, faults(res))
	}
	if have, want := res.Lock.Selections("dev"), before.Selections("dev"); !slices.Equal(have, want) {
		t.Errorf("the lock selects %v, and not %v", have, want)
	}
	// One that another package needs, too, moves.
	s.put("reg.io/other:v1", "o", "reg.io/lib ^2")
	res = resolve(t, s.config(), before, request("dev", "reg.io/app:v2", "reg.io/other:v1"))
	if have := selected(res, "dev"); have != "base:v1.0.0 lib:v2.0.0 other:v1" {
		t.Errorf("selected %q, error %v", have, faults(res))
	}
	// All of it follows as soon as the package can.
	s.put("reg.io/more:v1.0.0", "m")
	if have := selected(resolve(t, s.config(), res.Lock, request("dev", "reg.io/app:v2")), "dev"); have != "app:v2 base:v1.0.0 lib:v2.0.0 more:v1.0.0" {
		t.Errorf("at last selected %q", have)
	}

	// One that was declared stays as well, and what is selected has a line.
	delete(s.packages, "reg.io/more:v1.0.0")
	before = resolve(t, s.config(), parseLock(t, ""), request("dev", "reg.io/lib:v1.0.0", "reg.io/base:v1.0.0")).Lock
	res = resolve(t, s.config(), before, request("dev", "reg.io/app:v2"))
	var lines []string
	for _, l := range res.Lock.Selections("dev") {
		lines = append(lines, l.String())
	}
	if have, want := selected(res, "dev"), []string{"@dev reg.io/base v1.0.0 <- reg.io/lib", "@dev reg.io/lib v1.0.0"}; have != "base:v1.0.0" || !slices.Equal(lines, want) {
		t.Errorf("no longer declared: selected %q, the lock selects %q, error %v", have, lines, faults(res))
	}
}

// A registry that is down takes nothing out of the lock.
func TestRegistryDownKeepsTheLock(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "1", "reg.io/b *")
	s.put("reg.io/b:v1.0.0", "2")
	req := request("dev", "reg.io/a:v1")
	lock := resolve(t, s.config(), new(lockfile.File), req).Lock
	s.down = true
	res := resolve(t, s.config(), lock, req, Request{Cluster: "prod", Failed: true})
	if faults(res) == nil || !strings.Contains(faults(res).Error(), "connection refused") {
		t.Errorf("error %v", faults(res))
	}
	if string(res.Lock.Format()) != string(lock.Format()) {
		t.Errorf("the lock became\n%s\nit was\n%s", res.Lock.Format(), lock.Format())
	}
}

// A repository that is misspelled takes nothing out of the lock. Without an error a
// declaration that is gone does.
func TestMisspelledRepositoryKeepsTheLock(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "1", "reg.io/b *")
	s.put("reg.io/b:v1.0.0", "2")
	s.put("reg.io/c:v1", "3")
	before := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1", "reg.io/c:v1")).Lock
	res := resolve(t, s.config(), before, request("dev", "reg.io/aa:v1", "reg.io/c:v1"))
	if faults(res) == nil {
		t.Error("reg.io/aa is found")
	}
	if string(res.Lock.Format()) != string(before.Format()) {
		t.Errorf("the lock became\n%s\nit was\n%s", res.Lock.Format(), before.Format())
	}
	res = resolve(t, s.config(), before, request("dev", "reg.io/c:v1"))
	if lines := res.Lock.Selections("dev"); len(lines) != 1 || lines[0].Repository != "reg.io/c" {
		t.Errorf("lines %v", lines)
	}
}

// A controller's image is under the policies too, by its tag as by its digest.
func TestRuntimeImageSigned(t *testing.T) {
	var s shelf
	s.put("reg.io/p:v1", "p")
	s.put("ctl.io/c:v1", "c")
	pkg := s.packages["reg.io/p:v1"]
	pkg.Meta.Kind, pkg.Meta.Image = sources.Provider, "ctl.io/c:v1"
	d := declare("reg.io/p:v1")
	d[0].Kind = sources.Provider
	images := sources.ImageConfigs{{Name: "signed", Prefixes: []string{"ctl.io/"}, Verification: &sources.Verification{ImageConfig: "signed"}}}
	var verified []string
	var refuse error
	cfg := s.config()
	cfg.Verify = func(_ context.Context, from sources.Origin, d sources.Digest, _ *sources.Verification) (string, error) {
		verified = append(verified, from.Repository+"@"+string(d))
		return "signed", refuse
	}
	res := resolve(t, cfg, new(lockfile.File), Request{Cluster: "dev", Declarations: d, Images: images})
	if err := faults(res); err != nil {
		t.Fatal(err)
	}
	if want := "ctl.io/c@" + string(s.packages["ctl.io/c:v1"].Digest); !slices.Equal(verified, []string{want}) {
		t.Errorf("verified %q, want %s", verified, want)
	}
	// Again once it is locked: a key may have been withdrawn.
	refuse = errors.New("not signed")
	res = resolve(t, cfg, res.Lock, Request{Cluster: "dev", Declarations: d, Images: images})
	if err := faults(res); err == nil || !strings.Contains(err.Error(), "spec.controller.image: not signed") || selected(res, "dev") != "" {
		t.Errorf("selected %q, %v", selected(res, "dev"), err)
	}
}

// A registry that is late costs its own packages, and each of them less time
// than the one before: the rest of the fleet does not wait for all of it.
func TestLateRegistry(t *testing.T) {
	var s shelf
	refs := []string{"reg.io/good:v1"}
	s.put(refs[0], "good")
	for i := range 20 {
		refs = append(refs, fmt.Sprintf("slow.io/p%02d:v1", i))
		s.put(refs[len(refs)-1], "slow")
	}
	s.put("reg.io/needy:v1", "needy", "slow.io/dep >=v1")
	refs = append(refs, "reg.io/needy:v1")
	cfg := s.config()
	cfg.Parallel, cfg.Timeout = 1, time.Hour
	var given []time.Duration
	slow := func(ctx context.Context, from sources.Origin) error {
		if !strings.HasPrefix(from.Repository, "slow.io/") {
			return nil
		}
		deadline, _ := ctx.Deadline()
		given = append(given, time.Until(deadline))
		return fmt.Errorf("%s: %w", from, sources.ErrLate)
	}
	digest, tags := cfg.Digest, cfg.Tags
	cfg.Digest = func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
		if err := slow(ctx, from); err != nil {
			return "", err
		}
		return digest(ctx, from, tag)
	}
	cfg.Tags = func(ctx context.Context, from sources.Origin) ([]string, error) {
		if err := slow(ctx, from); err != nil {
			return nil, err
		}
		return tags(ctx, from)
	}
	res := resolve(t, cfg, new(lockfile.File), request("dev", refs...))
	if have := selected(res, "dev"); have != "good:v1" {
		t.Errorf("selected %s, want good:v1", have)
	}
	if n := len(res.Clusters["dev"].Errors); n != 22 { // with the dependency and who needs it
		t.Errorf("%d errors, want 22: %v", n, faults(res))
	}
	var total time.Duration
	for _, d := range given {
		total += d
	}
	if len(given) != 21 || total <= 0 || total > 3*time.Hour {
		t.Errorf("%d questions may take %s altogether", len(given), total)
	}
}

// A package that takes too long is late, whatever it waits for.
func TestTimeout(t *testing.T) {
	var s shelf
	s.put("reg.io/good:v1", "good")
	s.put("slow.io/bad:v1", "bad")
	cfg := s.config()
	cfg.Timeout = 20 * time.Millisecond
	fetch := cfg.Fetch
	cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		if strings.HasPrefix(from.Repository, "slow.io/") {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return fetch(ctx, from, d)
	}
	res := resolve(t, cfg, new(lockfile.File), request("dev", "slow.io/bad:v1", "reg.io/good:v1"))
	if have := selected(res, "dev"); have != "good:v1" {
		t.Errorf("selected %s, want good:v1", have)
	}
	if err := faults(res); err == nil || !strings.Contains(err.Error(), "--package-timeout") {
		t.Errorf("error %v", err)
	}
}

func TestRuntimeImage(t *testing.T) {
	for image, want := range map[string]string{
		"":                              "reg.io/p@" + string(sources.DigestOf([]byte("reg.io/p:v1x"))),
		"ghcr.io/acme/ctl:v1":           "ghcr.io/acme/ctl@" + string(sources.DigestOf([]byte("ctl"))),
		"ghcr.io/acme/ctl@" + digest0(): "ghcr.io/acme/ctl@" + digest0(),
		"acme/ctl:v1":                   "docker.io/acme/ctl@" + string(sources.DigestOf([]byte("hub"))),
		"ctl":                           "docker.io/library/ctl@" + string(sources.DigestOf([]byte("library"))),
	} {
		t.Run(image, func(t *testing.T) {
			var s shelf
			s.put("reg.io/p:v1", "x")
			s.packages["reg.io/p:v1"].Meta.Kind = sources.Provider
			s.packages["reg.io/p:v1"].Meta.Image = image
			s.packages["reg.io/p:v1"].Runnable = image == ""
			s.packages["ghcr.io/acme/ctl:v1"] = &sources.Package{Digest: sources.DigestOf([]byte("ctl"))}
			s.packages["docker.io/acme/ctl:v1"] = &sources.Package{Digest: sources.DigestOf([]byte("hub"))}
			s.packages["docker.io/library/ctl:latest"] = &sources.Package{Digest: sources.DigestOf([]byte("library"))}
			ds := declare("reg.io/p:v1")
			ds[0].Kind = sources.Provider
			res := resolve(t, s.config(), new(lockfile.File), Request{Cluster: "dev", Declarations: ds})
			if faults(res) != nil {
				t.Fatal(faults(res))
			}
			if have := res.Clusters["dev"].Selected[0].Runtime; have != want {
				t.Errorf("runtime %s, want %s", have, want)
			}
			sum, _ := res.Lock.Lookup(lockfile.Key{Repository: "reg.io/p", Version: "v1", Item: lockfile.ItemRuntime})
			if !strings.HasSuffix(want, sum) || sum == "" {
				t.Errorf("recorded %q, want the digest of %s", sum, want)
			}
			s.asked = nil
			resolve(t, s.config(), res.Lock, Request{Cluster: "dev", Declarations: ds})
			if i := slices.IndexFunc(s.asked, func(q string) bool { return strings.HasPrefix(q, "HEAD") }); i >= 0 {
				t.Errorf("a locked image was looked up: %s", s.asked[i])
			}
		})
	}
}

// A package with types alone has no controller's image. An older lock that has the
// package itself as one stays valid, and as it is.
func TestTypesAlone(t *testing.T) {
	var s shelf
	digest := s.put("reg.io/p:v1", "x")
	s.packages["reg.io/p:v1"].Meta.Kind = sources.Provider
	ds := declare("reg.io/p:v1")
	ds[0].Kind = sources.Provider
	key := lockfile.Key{Repository: "reg.io/p", Version: "v1", Item: lockfile.ItemRuntime}
	res := resolve(t, s.config(), new(lockfile.File), Request{Cluster: "dev", Declarations: ds})
	if _, recorded := res.Lock.Lookup(key); faults(res) != nil || recorded || res.Clusters["dev"].Selected[0].Runtime != "" {
		t.Errorf("%v, %+v\n%s", faults(res), res.Clusters["dev"].Selected, res.Lock.Format())
	}
	for sum, want := range map[string]string{string(digest): "", digest0(): "has no runtime, which clusters.lock records for it"} {
		older := res.Lock.Clone()
		if err := older.Record(key, sum, "the registry"); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []Mode{Add, Readonly, Check} {
			cfg := s.config()
			cfg.Mode = mode
			again := resolve(t, cfg, older, Request{Cluster: "dev", Declarations: ds})
			err := faults(again)
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) || want == "" && (err != nil || string(again.Lock.Format()) != string(older.Format()) || again.Clusters["dev"].Selected[0].Runtime != "") {
				t.Errorf("mode %v, %s: %v\n%s", mode, sum, err, again.Lock.Format())
			}
		}
	}
}

// The platforms of a controller's image go into the lock with it, and are compared
// like any other record, unless the image cannot be read from here.
func TestRuntimePlatforms(t *testing.T) {
	var s shelf
	s.put("reg.io/p:v1", "x")
	s.packages["reg.io/p:v1"].Meta.Kind = sources.Provider
	s.packages["reg.io/p:v1"].Meta.Image = "ghcr.io/acme/ctl:v1"
	s.packages["ghcr.io/acme/ctl:v1"] = &sources.Package{Digest: sources.DigestOf([]byte("ctl"))}
	ds := declare("reg.io/p:v1")
	ds[0].Kind = sources.Provider
	cfg := s.config()
	platforms := []sources.Child{{Platform: "linux/amd64", Digest: sources.DigestOf([]byte("amd64"))}}
	cfg.Platforms = func(_ context.Context, from sources.Origin, d sources.Digest) ([]sources.Child, error) {
		if from.Repository != "ghcr.io/acme/ctl" || d != sources.DigestOf([]byte("ctl")) {
			return nil, fmt.Errorf("asked for %s@%s", from.Repository, d)
		}
		return platforms, nil
	}
	request := Request{Cluster: "dev", Declarations: ds}
	first := resolve(t, cfg, new(lockfile.File), request)
	if faults(first) != nil {
		t.Fatal(faults(first))
	}
	line := "reg.io/p v1/runtime/linux/amd64 " + string(platforms[0].Digest) + "\n"
	if !strings.Contains(string(first.Lock.Format()), line) {
		t.Fatalf("no line %q in\n%s", line, first.Lock.Format())
	}
	for _, mode := range []Mode{Add, Readonly, Check} {
		cfg.Mode = mode
		again := resolve(t, cfg, first.Lock, request)
		if faults(again) != nil || string(again.Lock.Format()) != string(first.Lock.Format()) {
			t.Errorf("mode %d: a second resolution has %v, and makes the lock\n%s", mode, faults(again), again.Lock.Format())
		}
		right := platforms[0].Digest
		platforms[0].Digest = sources.DigestOf([]byte("evil"))
		var mismatch *lockfile.Mismatch
		if res := resolve(t, cfg, first.Lock, request); !errors.As(faults(res), &mismatch) || mismatch.Key.Item != "runtime/linux/amd64" {
			t.Errorf("mode %d: another platform is no mismatch: %v", mode, faults(res))
		}
		platforms[0].Digest = right
	}
	cfg.Platforms = func(context.Context, sources.Origin, sources.Digest) ([]sources.Child, error) {
		return nil, errors.New("denied")
	}
	cfg.Mode = Add
	if res := resolve(t, cfg, first.Lock, request); faults(res) != nil || string(res.Lock.Format()) != string(first.Lock.Format()) {
		t.Errorf("out of reach: %v", faults(res))
	}
	cfg.Mode = Check
	if res := resolve(t, cfg, first.Lock, request); faults(res) == nil {
		t.Error("a check passes that could not look")
	}
}

// An image that is named by its digest need not be readable from here.
func TestRuntimeOutOfReach(t *testing.T) {
	var s shelf
	image := "ghcr.io/acme/ctl@" + digest0()
	s.put("reg.io/p:v1", "x")
	s.packages["reg.io/p:v1"].Meta.Kind = sources.Provider
	s.packages["reg.io/p:v1"].Meta.Image = image
	ds := declare("reg.io/p:v1")
	ds[0].Kind = sources.Provider
	cfg := s.config()
	cfg.Platforms = func(context.Context, sources.Origin, sources.Digest) ([]sources.Child, error) {
		return nil, errors.New("denied")
	}
	res := resolve(t, cfg, new(lockfile.File), Request{Cluster: "dev", Declarations: ds})
	if faults(res) != nil || len(res.Clusters["dev"].Selected) != 1 || res.Clusters["dev"].Selected[0].Runtime != image {
		t.Errorf("%v, %+v", faults(res), res.Clusters["dev"])
	}
}

// A check looks the tag of a controller's image up again, unless nobody may be asked:
// then it says so.
func TestRuntimeTagInACheck(t *testing.T) {
	var s shelf
	s.put("reg.io/p:v1", "x")
	s.packages["reg.io/p:v1"].Meta.Kind = sources.Provider
	s.packages["reg.io/p:v1"].Meta.Image = "ghcr.io/acme/ctl:v1"
	s.put("ghcr.io/acme/ctl:v1", "controller")
	ds := declare("reg.io/p:v1")
	ds[0].Kind = sources.Provider
	request := Request{Cluster: "dev", Declarations: ds}
	lock := resolve(t, s.config(), new(lockfile.File), request).Lock
	cfg := s.config()
	cfg.Mode = Check
	if res := resolve(t, cfg, lock, request); faults(res) != nil || len(res.Unasked) > 0 {
		t.Errorf("unmoved: %v, %v", faults(res), res.Unasked)
	}
	s.put("ghcr.io/acme/ctl:v1", "another")
	var mismatch *lockfile.Mismatch
	res := resolve(t, cfg, lock, request)
	if !errors.As(faults(res), &mismatch) || mismatch.Key.String() != "reg.io/p v1/runtime" || string(res.Lock.Format()) != string(lock.Format()) {
		t.Errorf("moved: %v", faults(res))
	}
	cfg.Digest = func(context.Context, sources.Origin, string) (sources.Digest, error) {
		return "", fmt.Errorf("offline: %w", sources.ErrUnasked)
	}
	res = resolve(t, cfg, lock, request)
	if have := fmt.Sprint(res.Unasked); faults(res) != nil || have != "[ghcr.io/acme/ctl:v1 reg.io/p:v1]" {
		t.Errorf("offline: %v, %v", faults(res), have)
	}
	cfg.Mode = Add
	if res := resolve(t, cfg, lock, request); faults(res) != nil || len(res.Unasked) > 0 {
		t.Errorf("not a check: %v, %v", faults(res), res.Unasked)
	}
}

func digest0() string { return "sha256:" + strings.Repeat("0", 64) }

func TestDeclarationFaults(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "1")
	s.put("reg.io/b:v1", "1")
	s.put("reg.io/c:v1", "1", "reg.io/b >=v2")
	s.put("reg.io/d:v1", "1", "reg.io/none >=v1")
	s.put("reg.io/e:v1", "1", "reg.io/f >=v1")
	s.put("reg.io/f:v1", "1", "reg.io/e >=v1")
	provider := declare("reg.io/a:v1")
	provider[0].Kind = sources.Provider
	never := declare("reg.io/a:v1")
	never[0].PullPolicy = sources.PullNever
	for _, tt := range []struct {
		name     string
		declared []sources.Declaration
		mode     Mode
		want     string
		lasting  bool
	}{
		{"another kind", provider, Add, "is a Configuration, declared as Provider a", true},
		{"never", never, Add, "packagePullPolicy: Never forbids", true},
		{"readonly", declare("reg.io/a:v1"), Readonly, "reg.io/a:v1 is not in clusters.lock, which is read-only here", true},
		{"readonly by digest", declare("reg.io/a@" + digest0()), Readonly, "is not in clusters.lock", true},
		{"unknown tag", declare("reg.io/a:v9"), Add, "reg.io/a:v9: not found", false},
		{"one repository twice", declare("reg.io/a:v1", "reg.io/a@"+digest0()), Add, "both install reg.io/a", true},
		{"dependencies that do not go together", declare("reg.io/b:v1", "reg.io/c:v1"), Add, "reg.io/c:v1 needs reg.io/b >=v2, but b declares v1", true},
		{"a dependency that is missing", declare("reg.io/d:v1"), Add, "reg.io/d:v1 depends on reg.io/none", false},
		{"a cycle", declare("reg.io/e:v1"), Add, "packages depend on each other", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := s.config()
			cfg.Mode = tt.mode
			res := resolve(t, cfg, new(lockfile.File), Request{Cluster: "dev", Declarations: tt.declared}, request("prod", "reg.io/b:v1"))
			if err := res.Clusters["dev"].Errors; len(err) == 0 || !strings.Contains(err[0].Error(), tt.want) {
				t.Errorf("errors %v, want one with %q", err, tt.want)
			} else if err[0].Lasting() != tt.lasting {
				t.Errorf("%v: lasting is %v", err[0], !tt.lasting)
			}
			if selected := res.Clusters["dev"].Selected; len(selected) != 0 && selected[0].Pin.Ref.Repository != "reg.io/b" {
				t.Errorf("selected %v", res.Clusters["dev"].Selected)
			}
			if tt.mode == Add && selected(res, "prod") != "b:v1" {
				t.Errorf("prod suffers: %v", res.Clusters["prod"].Errors)
			}
		})
	}
	if len(slices.Collect(maps.Keys(s.packages))) != 6 {
		t.Fatal("the shelf changed")
	}
}

// Clusters may reach a package in different ways; it is the same package, and one
// that cannot be reached, or was not signed as one of them wants, is that one's
// trouble.
func TestWaysToAPackage(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	d := s.put("reg.io/a:v1", "a")
	s.packages["mirror.io/a:v1"] = &sources.Package{Repository: "mirror.io/a", Digest: d, Content: s.packages["reg.io/a:v1"].Content, Meta: s.packages["reg.io/a:v1"].Meta}
	cfg := s.config()
	cfg.Verify = func(_ context.Context, from sources.Origin, seen sources.Digest, p *sources.Verification) (string, error) {
		if err := s.ask("VERIFY " + from.Repository); err != nil {
			return "", err
		}
		if p.Authorities[0].Name != "good" || seen != d {
			return "", errors.New("not signed")
		}
		return "signed", nil
	}
	rewrite := func(to string) sources.ImageConfig {
		return sources.ImageConfig{Name: "mirror", Prefixes: []string{"reg.io/"}, Rewrite: to, PullSecret: "pull"}
	}
	signed := func(by string) sources.ImageConfig {
		return sources.ImageConfig{Name: by, Prefixes: []string{"reg.io/"}, Verification: &sources.Verification{ImageConfig: by, Authorities: []sources.Authority{{Name: by}}}}
	}
	res := resolve(t, cfg, new(lockfile.File),
		request("direct", "reg.io/a:v1"),
		Request{Cluster: "mirrored", Declarations: declare("reg.io/a:v1"), Images: sources.ImageConfigs{rewrite("mirror.io/"), {Name: "pull", Prefixes: []string{"mirror.io/"}, PullSecret: "key"}, signed("good")}},
		Request{Cluster: "nowhere", Declarations: declare("reg.io/a:v1"), Images: sources.ImageConfigs{rewrite("nowhere.io/")}},
		Request{Cluster: "unsigned", Declarations: declare("reg.io/a:v1"), Images: sources.ImageConfigs{signed("bad")}},
	)
	for cluster, want := range map[string]string{"direct": "a:v1", "mirrored": "a:v1", "nowhere": "", "unsigned": ""} {
		if have := selected(res, cluster); have != want {
			t.Errorf("%s has %q", cluster, have)
		}
	}
	m := res.Clusters["mirrored"].Selected[0]
	if m.Pin.Ref.Repository != "reg.io/a" || m.Origin != (sources.Origin{Repository: "mirror.io/a", RewrittenBy: "mirror", PullSecrets: "key"}) || m.Verified != "signed" {
		t.Errorf("have %+v", m)
	}
	if text := fmt.Sprint(res.Clusters["nowhere"].Errors); !strings.Contains(text, "not found\n(reg.io/a is fetched from nowhere.io/a (by ImageConfig mirror))") {
		t.Errorf("have %s", text)
	}
	if lock := string(res.Lock.Format()); strings.Contains(lock, "mirror.io") || strings.Contains(lock, "@unsigned") || !strings.Contains(lock, "@mirrored reg.io/a v1\n") {
		t.Errorf("have %s", lock)
	}
	// One way was asked what the tag stands for.
	heads := 0
	for _, q := range s.asked {
		if strings.HasPrefix(q, "HEAD ") {
			heads++
		}
	}
	if heads != 1 {
		t.Errorf("asked %q", s.asked)
	}
}

// A tag that moved to what is refused keeps the records of what it stood for.
func TestMovedTagThatIsRefused(t *testing.T) {
	t.Parallel()
	s := &shelf{}
	s.put("reg.io/a:v1", "a")
	good := s.packages["reg.io/a:v1"].Digest
	cfg := s.config()
	cfg.Verify = func(_ context.Context, _ sources.Origin, d sources.Digest, _ *sources.Verification) (string, error) {
		if d != good {
			return "", errors.New("not signed")
		}
		return "signed", nil
	}
	req := Request{Cluster: "dev", Declarations: declare("reg.io/a:v1"), Images: sources.ImageConfigs{{Name: "i", Prefixes: []string{"reg.io/"}, Verification: &sources.Verification{ImageConfig: "i"}}}}
	req.Declarations[0].PullPolicy = sources.PullAlways
	before := resolve(t, cfg, new(lockfile.File), req).Lock
	s.put("reg.io/a:v1", "moved")
	res := resolve(t, cfg, before, req)
	if len(res.Clusters["dev"].Errors) != 1 || string(res.Lock.Format()) != string(before.Format()) {
		t.Errorf("have %v and\n%s", res.Clusters["dev"].Errors, res.Lock.Format())
	}
}
