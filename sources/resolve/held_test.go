package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// A declaration that cannot be read keeps what the lock selects for it, and its
// dependents go on with that.
func TestUnreadableDeclaration(t *testing.T) {
	publish := func(s *shelf) {
		s.put("reg.io/lib:v1.0.0", "lib", "reg.io/base ^1")
		s.put("reg.io/base:v1.0.0", "base")
		s.put("reg.io/app:v1", "app", "reg.io/lib >=v1.0.0")
		s.put("reg.io/app:v2", "app", "reg.io/lib >=v2.0.0")
		s.put("reg.io/app:v3", "app", "reg.io/lib >=v1.0.0", "reg.io/new *")
		s.put("reg.io/other:v1", "other")
	}
	unreadable := func(repository string) []sources.Declaration {
		return []sources.Declaration{{Kind: sources.Configuration, Name: "bad", Ref: sources.Ref{Repository: repository}}}
	}
	everything := []string{"reg.io/app:v1", "reg.io/lib:v1.0.0", "reg.io/other:v1"}
	for _, tt := range []struct {
		name       string
		locked     []string // declared when the lock was made
		declared   []string
		unreadable string
		change     func(*Config)
		want       string
		errs       []string
		drops      string // the lines that the lock loses
		down       bool
	}{
		{name: "its dependents go on", locked: everything, declared: []string{"reg.io/app:v1", "reg.io/other:v1"}, unreadable: "reg.io/lib", want: "app:v1 base:v1.0.0 other:v1"},
		{name: "nor its repository", locked: everything, declared: []string{"reg.io/app:v1", "reg.io/other:v1"}, want: "app:v1 base:v1.0.0 other:v1"},
		{name: "an update leaves it", locked: everything, declared: []string{"reg.io/app:v1", "reg.io/other:v1"}, unreadable: "reg.io/lib",
			change: func(c *Config) { c.Update = func(_, r string) bool { return r == "reg.io/lib" } }, want: "app:v1 base:v1.0.0 other:v1"},
		{name: "another's removal is one", locked: everything, declared: []string{"reg.io/app:v1"}, unreadable: "reg.io/lib", want: "app:v1 base:v1.0.0", drops: "@dev reg.io/other v1\n"},
		{name: "another's removal may be it", locked: everything, declared: []string{"reg.io/app:v1"}, want: "app:v1 base:v1.0.0"},
		{name: "a dependent that needs another version waits", locked: everything, declared: []string{"reg.io/app:v2", "reg.io/other:v1"}, unreadable: "reg.io/lib", want: "base:v1.0.0 other:v1",
			errs: []string{"reg.io/app:v2 needs reg.io/lib >=v2.0.0, but the lock has v1.0.0, which stays while the declaration of bad cannot be read"}},
		{name: "a dependency that is declared now", locked: []string{"reg.io/app:v1"}, declared: []string{"reg.io/app:v1"}, unreadable: "reg.io/lib", want: "app:v1 base:v1.0.0 lib:v1.0.0"},
		{name: "and needed in another version", locked: []string{"reg.io/app:v1"}, declared: []string{"reg.io/app:v2"}, unreadable: "reg.io/lib", want: "",
			errs: []string{"clusters.lock decides on no version of it while the declaration of bad cannot be read; correct that first: >=v2.0.0 (needed by reg.io/app:v2)"}},
		{name: "nothing is locked", declared: []string{"reg.io/app:v1", "reg.io/other:v1"}, unreadable: "reg.io/lib", want: "other:v1",
			errs: []string{"decides on no version of it while the declaration of bad cannot be read"}},
		{name: "a new dependency may be it", locked: everything, declared: []string{"reg.io/app:v3", "reg.io/other:v1"}, want: "base:v1.0.0 other:v1",
			errs: []string{"decides on no version of it while the declaration of bad cannot be read; correct that first: * (needed by reg.io/app:v3)"}},
		{name: "a new dependency is another", locked: everything, declared: []string{"reg.io/app:v3", "reg.io/other:v1"}, unreadable: "reg.io/lib", want: "app:v3 base:v1.0.0 new:v1.0.0 other:v1", drops: "@dev reg.io/app v1\n"},
		{name: "the registry is down too", locked: everything, declared: []string{"reg.io/app:v1", "reg.io/other:v1"}, unreadable: "reg.io/lib", down: true, want: "", errs: []string{"connection refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s shelf
			publish(&s)
			lock := new(lockfile.File)
			if tt.locked != nil {
				lock = resolve(t, s.config(), lock, request("dev", tt.locked...)).Lock
			}
			s.put("reg.io/lib:v1.9.0", "newer", "reg.io/base ^1")
			s.put("reg.io/lib:v2.0.0", "newest")
			s.put("reg.io/new:v1.0.0", "new")
			s.down = tt.down
			cfg := s.config()
			if tt.change != nil {
				tt.change(&cfg)
			}
			res := resolve(t, cfg, lock, Request{Cluster: "dev", Declarations: declare(tt.declared...), Unreadable: unreadable(tt.unreadable)})
			if have := selected(res, "dev"); have != tt.want {
				t.Errorf("selected %q, want %q (%v)", have, tt.want, faults(res))
			}
			if (faults(res) != nil) != (tt.errs != nil) {
				t.Errorf("error %v", faults(res))
			}
			for _, want := range tt.errs {
				if !strings.Contains(fmt.Sprint(faults(res)), want) {
					t.Errorf("error\n%v\nwant one with\n%s", faults(res), want)
				}
			}
			if lost := string(lockfile.Added(res.Lock, lock).Format()); tt.errs == nil && lost != tt.drops {
				t.Errorf("the lock lost\n%s\nand is\n%s", lost, res.Lock.Format())
			}
			if !strings.Contains(string(res.Lock.Format()), "@dev reg.io/lib v1.0.0") && tt.locked != nil {
				t.Errorf("the lock became\n%s", res.Lock.Format())
			}
			if strings.Contains(string(res.Lock.Format()), "lib v1.9.0") || strings.Contains(string(res.Lock.Format()), "lib v2.0.0") {
				t.Errorf("a version was resolved anew\n%s", res.Lock.Format())
			}
		})
	}
}

// A held package whose replacement cannot be built fails in its cluster, and stops nothing else.
func TestHeldReplacementFails(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "a")
	s.put("reg.io/b:v1", "b")
	lock := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1"), request("prod", "reg.io/b:v1")).Lock
	cfg := s.config()
	cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/a", Directory: "packages/a", Place: "clusters.yaml:9"}}
	cfg.Directory = func(context.Context, string) (sources.Digest, error) { return "", errors.New("garbled") }
	dev := Request{Cluster: "dev", Unreadable: []sources.Declaration{{Kind: sources.Configuration, Name: "a", Ref: sources.Ref{Repository: "reg.io/a"}}}}
	res := resolve(t, cfg, lock, dev, request("prod", "reg.io/b:v1"))
	if selected(res, "prod") != "b:v1" || selected(res, "dev") != "" || len(res.Clusters["dev"].Held) > 0 {
		t.Errorf("dev: %q, prod: %q, %v", selected(res, "dev"), selected(res, "prod"), faults(res))
	}
	if string(res.Lock.Format()) != string(lock.Format()) {
		t.Errorf("the lock became\n%s", res.Lock.Format())
	}
}
