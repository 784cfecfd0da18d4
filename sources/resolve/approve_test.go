package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/sources"
)

// With manual activation a version is applied once a person has approved its digest,
// for this cluster; until then the one before stays.
func TestManualActivation(t *testing.T) {
	v2 := string(sources.DigestOf([]byte("reg.io/a:v22")))
	for _, tt := range []struct {
		name     string
		lock     string // beside what v1 resolves to
		declared string
		policy   sources.PullPolicy
		auto     bool // another cluster takes new versions by itself
		change   func(*Config)
		want     string
		lines    string // that the lock gets
		waits    string
		err      string
	}{
		{name: "the first of all", declared: "reg.io/a:v2", err: "reg.io/a:v2 waits for approval, as its revisionActivationPolicy says; run `gitopsd lock` and commit the change, or declare reg.io/a:v2@" + v2},
		{name: "the next", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", want: "a:v1 dep:v1.0.0",
			waits: "reg.io/a:v2 waits for approval in dev, where v1 stays: run `gitopsd lock` and commit the change, or declare reg.io/a:v2@" + v2},
		{name: "is not looked up where that is forbidden", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", policy: sources.PullNever, want: "a:v1 dep:v1.0.0",
			waits: "reg.io/a:v2 waits for approval in dev, where v1 stays: run `gitopsd lock` and commit the change"},
		{name: "with Always", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", policy: sources.PullAlways, want: "a:v1 dep:v1.0.0",
			waits: "reg.io/a:v2 waits for approval in dev, where v1 stays: run `gitopsd lock` and commit the change, or declare reg.io/a:v2@" + v2},
		{name: "what stays is not followed", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", policy: sources.PullAlways, want: "a:v1 dep:v1.0.0", waits: "reg.io/a:v2 waits"},
		{name: "by its digest", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2@" + v2, want: "a:v2@" + v2, lines: "@dev reg.io/a v2\n"},
		{name: "by a person's lock", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", change: func(c *Config) { c.Approve = true }, want: "a:v2", lines: "@dev reg.io/a v2\n"},
		{name: "locked", lock: "@dev reg.io/a v2\nreg.io/a v2 " + v2 + "\n", declared: "reg.io/a:v2", want: "a:v2"},
		{name: "selected without a record", lock: "@dev reg.io/a v2\n", declared: "reg.io/a:v2", err: "reg.io/a:v2 waits for approval"},
		{name: "another cluster's record approves nothing", lock: "@dev reg.io/a v1\n@auto reg.io/a v2\nreg.io/a v2 " + v2 + "\n", declared: "reg.io/a:v2", auto: true, want: "a:v1 dep:v1.0.0", waits: "or declare reg.io/a:v2@" + v2},
		{name: "another cluster takes it at once", lock: "@dev reg.io/a v1\n@auto reg.io/a v1\n", declared: "reg.io/a:v2", auto: true, want: "a:v1 dep:v1.0.0", lines: "@auto reg.io/a v2\n", waits: "in dev, where v1 stays"},
		{name: "readonly", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", change: func(c *Config) { c.Mode = Readonly }, err: "is not in clusters.lock, which is read-only here"},
		{name: "checked", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", change: func(c *Config) { c.Mode = Check }, want: "a:v2", lines: "@dev reg.io/a v2\n"},
		{name: "two before", lock: "@dev reg.io/a v1\n@dev reg.io/a v0\n", declared: "reg.io/a:v2", err: "clusters.lock selects both v0 and v1 of reg.io/a for cluster dev, and v2 waits for approval"},
		{name: "what was before has no record", lock: "@dev reg.io/a v0\n", declared: "reg.io/a:v2", err: "clusters.lock has no digest of reg.io/a v0, which stays in cluster dev while v2 waits for approval; restore the record from Git, or run `gitopsd lock` and commit the change"},
		{name: "by a person's lock, and the daemon may not look it up", lock: "@dev reg.io/a v1\n", declared: "reg.io/a:v2", policy: sources.PullNever, change: func(c *Config) { c.Approve = true }, want: "a:v2", lines: "@dev reg.io/a v2\n"},
		{name: "a dependency before", lock: "@dev reg.io/a v1 <- reg.io/gone\n", declared: "reg.io/a:v2", want: "a:v1 dep:v1.0.0", waits: "where v1 stays"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			v1 := s.put("reg.io/a:v1", "1", "reg.io/dep ^1")
			dep := s.put("reg.io/dep:v1.0.0", "dep")
			s.put("reg.io/a:v2", "2")
			s.put("reg.io/a:v0", "moved since")
			lock := parseLock(t, tt.lock+"reg.io/a v1 "+string(v1)+"\n@dev reg.io/dep v1.0.0 <- reg.io/a\nreg.io/dep v1.0.0 "+string(dep)+"\n")
			cfg := s.config()
			if tt.change != nil {
				tt.change(&cfg)
			}
			ds := declare(tt.declared)
			ds[0].ManualActivation, ds[0].PullPolicy = true, tt.policy
			requests := []Request{{Cluster: "dev", Declarations: ds}}
			if tt.auto {
				requests = append(requests, request("auto", "reg.io/a:v2"))
			}
			res := resolve(t, cfg, lock, requests...)
			if have := selected(res, "dev"); have != tt.want {
				t.Errorf("selected %q, want %q", have, tt.want)
			}
			if have := fmt.Sprint(faults(res)); tt.err == "" && faults(res) != nil || !strings.Contains(have, tt.err) {
				t.Errorf("error %s", have)
			}
			if unapproved := (*Unapproved)(nil); strings.Contains(tt.err, "waits for approval, as") && !errors.As(faults(res), &unapproved) {
				t.Errorf("error %T", faults(res))
			}
			var waits string
			for _, w := range res.Waiting {
				waits += w.String()
			}
			if (waits == "") != (tt.waits == "") || !strings.Contains(waits, tt.waits) {
				t.Errorf("waiting %q", waits)
			}
			if tt.auto && selected(res, "auto") != "a:v2" {
				t.Errorf("auto has %q", selected(res, "auto"))
			}
			if tt.lines == "" || tt.auto {
				if text := string(res.Lock.Format()); strings.Contains(text, "@dev reg.io/a v2") != strings.Contains(tt.lock, "@dev reg.io/a v2") {
					t.Errorf("the lock became\n%s", text)
				}
			}
			if !strings.Contains(string(res.Lock.Format()), tt.lines) {
				t.Errorf("the lock became\n%s", res.Lock.Format())
			}
			if (tt.waits != "" || tt.err != "") && !tt.auto {
				if _, there := res.Lock.Digest("reg.io/a", "v2"); there != strings.Contains(tt.lock, v2) {
					t.Errorf("what waits was recorded\n%s", res.Lock.Format())
				}
			}
			again := resolve(t, cfg, res.Lock, requests...)
			if string(again.Lock.Format()) != string(res.Lock.Format()) {
				t.Errorf("a second resolution makes\n%s\nof\n%s", again.Lock.Format(), res.Lock.Format())
			}
		})
	}
}

// Many clusters that wait for approval ask the registry once, also if it does not
// answer.
func TestWaitingAsksOnce(t *testing.T) {
	var s shelf
	d := s.put("reg.io/a:v1", "1")
	lock := "reg.io/a v1 " + string(d) + "\n"
	var requests []Request
	for i := range 20 {
		ds := declare("reg.io/a:v2")
		ds[0].ManualActivation = true
		requests = append(requests, Request{Cluster: fmt.Sprintf("c%d", i), Declarations: ds})
		lock += fmt.Sprintf("@c%d reg.io/a v1\n", i)
	}
	requests = append(requests, Request{Cluster: "new", Declarations: requests[0].Declarations})
	before := parseLock(t, lock)
	for name, answer := range map[string]func(ctx context.Context) error{
		"down":  func(context.Context) error { return errors.New("connection refused") },
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32
			cfg := s.config()
			cfg.Timeout = 50 * time.Millisecond
			cfg.Digest = func(ctx context.Context, _ sources.Origin, _ string) (sources.Digest, error) {
				asked.Add(1)
				return "", answer(ctx)
			}
			res := resolve(t, cfg, before, requests...)
			if asked.Load() != 1 || len(res.Waiting) != 1 || selected(res, "c7") != "a:v1" {
				t.Errorf("asked %d times, %v", asked.Load(), res.Waiting)
			}
		})
	}
}

// A dependent of a package that waits for approval says so.
func TestConflictWithWhatWaits(t *testing.T) {
	var s shelf
	d := s.put("reg.io/a:v1.0.0", "1")
	s.put("reg.io/a:v2.0.0", "2")
	s.put("reg.io/app:v1", "app", "reg.io/a >=2.0.0")
	lock := parseLock(t, "@dev reg.io/a v1.0.0\nreg.io/a v1.0.0 "+string(d)+"\n")
	ds := declare("reg.io/a:v2.0.0", "reg.io/app:v1")
	ds[0].ManualActivation = true
	res := resolve(t, s.config(), lock, Request{Cluster: "dev", Declarations: ds})
	want := "reg.io/app:v1 needs reg.io/a >=2.0.0, but v1.0.0 stays while reg.io/a:v2.0.0 waits for approval"
	if err := fmt.Sprint(faults(res)); !strings.Contains(err, want) || strings.Contains(err, "a declares v1.0.0") {
		t.Errorf("error %s", err)
	}
}
