package resolve

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// What a tag is does not depend on the order of clusters, nor on which load is first: each
// case is resolved many times, and has one outcome. In it each cluster has a digest or an
// error, and the lock has the digest that clusters with the tag get.
func TestTagIsOnePackage(t *testing.T) {
	t.Parallel()
	const always, manual = "always", "manual"
	for _, tt := range []struct {
		name string
		// locked is the digest in the lock; the registry has moved the tag from old to new.
		locked string
		// clusters by what they declare: a digest or "", and policies.
		prod, dev []string
		approve   bool
		update    bool
		rules     rules.Rules
		want      string // prod, dev and lock
		text      string // in an error, or in what waits
	}{
		{name: "first, one named", prod: []string{"old"}, dev: []string{""}, want: "old old old"},
		{name: "first, the newer one named", prod: []string{"new"}, dev: []string{""}, want: "new new new"},
		{name: "first, one named and looked up each time", prod: []string{"old"}, dev: []string{"", always}, want: "old old old"},
		{name: "first, two named", prod: []string{"old"}, dev: []string{"new"}, want: "error error none", text: "declared with different digests"},
		{name: "first, two named, by a person", prod: []string{"old"}, dev: []string{"new"}, approve: true, want: "error error none", text: "cluster prod (prod.yaml)"},
		{name: "first, one named that is nowhere", prod: []string{"gone"}, dev: []string{""}, want: "error error none", text: "that cluster prod (prod.yaml) names for reg.io/a:v1"},
		{name: "named, and moved for another", locked: "old", prod: []string{"old"}, dev: []string{"", always}, want: "old old old",
			text: "has a new revision NEW, and cluster prod (prod.yaml) names the former one: declare reg.io/a:v1@NEW there, with packagePullPolicy: Always"},
		{name: "named, and waits for another", locked: "old", prod: []string{"old"}, dev: []string{"", always, manual}, want: "old old old", text: "names the former one"},
		{name: "named, and moved by another", locked: "old", prod: []string{"old"}, dev: []string{"new", always}, want: "old error old", text: "cluster prod (prod.yaml), clusters.lock"},
		{name: "named with Always, and moved by another", locked: "old", prod: []string{"old", always}, dev: []string{"new", always}, want: "old error old", text: "declared with different digests"},
		{name: "moved by both", locked: "old", prod: []string{"new", always}, dev: []string{"new"}, want: "new new new"},
		{name: "moved by both to different digests", locked: "old", prod: []string{"new", always}, dev: []string{"gone", always}, want: "error error old", text: "\n    OLD  clusters.lock"},
		{name: "moved by one, quiet in the other", locked: "old", prod: []string{""}, dev: []string{"new", always}, want: "new new new"},
		{name: "moved by one, waiting in the other", locked: "old", prod: []string{"", always, manual}, dev: []string{"new", always}, want: "new new new"},
		{name: "named by one, moving in the other", locked: "old", prod: []string{"new"}, dev: []string{"", always}, want: "new new new"},
		{name: "named by one, waiting in the other", locked: "old", prod: []string{"new"}, dev: []string{"", always, manual}, want: "error old old", text: "SECURITY ERROR"},
		{name: "named without Always", locked: "old", prod: []string{"new"}, dev: []string{""}, want: "error old old", text: "SECURITY ERROR"},
		{name: "moved by one to what is nowhere", locked: "old", prod: []string{""}, dev: []string{"gone", always}, want: "old error old", text: "which stays in all clusters, since "},
		{name: "moved by one to what is nowhere, looked up in the other", locked: "old", prod: []string{"", always}, dev: []string{"gone", always}, want: "old error old",
			text: "package reg.io/a:v1: the tag stays at OLD in all clusters, since GONE fails in cluster dev: reg.io/a@GONE: not found"},
		{name: "moved by both to what is nowhere", locked: "old", prod: []string{"gone", always}, dev: []string{"gone"}, want: "error error old", text: "reg.io/a@GONE: not found"},
		{name: "updated, one named", locked: "old", prod: []string{"new"}, dev: []string{""}, approve: true, update: true, want: "new new new"},
		{name: "updated, two named", locked: "old", prod: []string{"old"}, dev: []string{"new"}, approve: true, update: true, want: "error error old", text: "declared with different digests"},
		{name: "moved while it replaces another", locked: "old", prod: []string{""}, dev: []string{"", always}, rules: replacing(), want: "old old old",
			text: "rules.yaml:1 replaces another package with it: run `gitopsd lock`"},
		{name: "named while it replaces another", locked: "old", prod: []string{""}, dev: []string{"new", always}, rules: replacing(), want: "old error old", text: "which a person must approve"},
		{name: "named by a person while it replaces another", locked: "old", prod: []string{""}, dev: []string{"new", always}, approve: true, rules: replacing(), want: "new new new"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := new(shelf)
			digests := map[string]sources.Digest{"gone": sources.DigestOf([]byte("gone")), "old": s.put("reg.io/a:v1", "old")}
			lock := new(lockfile.File)
			if tt.locked != "" {
				lock = resolve(t, s.config(), lock, request("prod", "reg.io/a:v1"), request("dev", "reg.io/a:v1")).Lock
			}
			s.packages["reg.io/a:before"] = s.packages["reg.io/a:v1"]
			digests["new"] = s.put("reg.io/a:v1", "new")
			name := func(d sources.Digest) string {
				for name, digest := range digests {
					if digest == d {
						return name
					}
				}
				return "none"
			}
			declared := func(cluster, ref string, says []string) Request {
				req := request(cluster, ref)
				d := &req.Declarations[0]
				d.File, d.Ref.Digest = cluster+".yaml", digests[says[0]]
				if slices.Contains(says, always) {
					d.PullPolicy = sources.PullAlways
				}
				d.ManualActivation = slices.Contains(says, manual)
				return req
			}
			prod := "reg.io/a:v1"
			if len(tt.rules.Replaces) > 0 {
				prod = "reg.io/other:v1"
			}
			cfg := s.config()
			cfg.Approve, cfg.Rules = tt.approve, tt.rules
			if tt.update {
				cfg.Update = func(string, string) bool { return true }
			}
			requests := []Request{declared("prod", prod, tt.prod), declared("dev", "reg.io/a:v1", tt.dev)}
			for range 40 {
				slices.Reverse(requests)
				res := resolve(t, cfg, lock, requests...)
				var have, texts []string
				for _, cluster := range []string{"prod", "dev"} {
					if c := res.Clusters[cluster]; len(c.Errors) > 0 {
						have, texts = append(have, "error"), append(texts, c.Errors[0].Error())
					} else {
						have = append(have, name(c.Selected[0].Pin.Digest))
					}
				}
				locked, _ := res.Lock.Digest("reg.io/a", "v1")
				if have := strings.Join(append(have, name(locked)), " "); have != tt.want {
					t.Fatalf("prod, dev and the lock have %s, want %s; %v", have, tt.want, faults(res))
				}
				for _, w := range res.Waiting {
					texts = append(texts, w.String())
				}
				for _, e := range res.Unmoved {
					texts = append(texts, e.Error())
				}
				text := strings.NewReplacer(string(digests["old"]), "OLD", string(digests["new"]), "NEW", string(digests["gone"]), "GONE").Replace(strings.Join(texts, "\n"))
				if !strings.Contains(text, tt.text) || tt.text == "" && text != "" {
					t.Fatalf("errors and what waits: %q, want %q", text, tt.text)
				}
			}
		})
	}
}

// What rules select and replace has the name that packages use for its registry, and their digests count for tags under all its names.
func TestRulesForNamesOfARegistry(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	one := s.put("docker.io/base:v1", "one")
	s.put("docker.io/base:v2", "two")
	s.put("docker.io/app:v1", "app", "docker.io/base >=v0.0.1")
	for _, tt := range []struct {
		name  string
		rules rules.Rules
	}{
		{"select", rules.Rules{Selects: []rules.Select{{Ref: sources.Ref{Repository: "index.docker.io/base", Tag: "v1"}, Place: "rules.yaml:1"}}}},
		{"select a digest", rules.Rules{Selects: []rules.Select{{Ref: sources.Ref{Repository: "index.docker.io/base", Tag: "v1", Digest: one}, Place: "rules.yaml:1"}}}},
		{"replace", rules.Rules{Replaces: []rules.Replace{{Repository: "docker.io:443/base", Version: "v2", With: sources.Ref{Repository: "docker.io/base", Tag: "v1"}, Place: "rules.yaml:1"}}}},
		{"exclude", rules.Rules{Excludes: []rules.Exclude{exclude(t, "registry-1.docker.io/base", "v2")}}},
	} {
		cfg := s.config()
		cfg.Rules, cfg.Approve = tt.rules, true
		res := resolve(t, cfg, new(lockfile.File), request("dev", "docker.io/app:v1"))
		if _, ok := res.Lock.Digest("docker.io/base", "v1"); !ok || faults(res) != nil {
			t.Errorf("%s: %v\n%s", tt.name, faults(res), res.Lock.Format())
		}
	}
	// The tag does not follow the registry for one while the other has what is selected.
	lock := resolve(t, s.config(), new(lockfile.File), request("dev", "docker.io/base:v1"), request("prod", "docker.io/app:v1")).Lock
	s.packages["docker.io/base:before"] = s.packages["docker.io/base:v1"]
	s.put("docker.io/base:v1", "moved")
	cfg := s.config()
	cfg.Rules = rules.Rules{Selects: []rules.Select{{Ref: sources.Ref{Repository: "index.docker.io/base", Tag: "v1", Digest: one}, Place: "rules.yaml:1"}}}
	dev := request("dev", "docker.io/base:v1")
	dev.Declarations[0].PullPolicy = sources.PullAlways
	res := resolve(t, cfg, lock, dev, request("prod", "docker.io/app:v1"))
	if got, _ := res.Lock.Digest("docker.io/base", "v1"); got != one || faults(res) != nil {
		t.Errorf("the lock has %s: %v", got, faults(res))
	}
}

// A digest in a replacement counts as one that is named, also if only dependencies are replaced.
func TestReplacementNamesDigest(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	old := s.put("reg.io/a:v1", "old")
	s.put("reg.io/app:v1", "app", "reg.io/other >=v0.0.1")
	s.put("reg.io/other:v1", "other")
	s.packages["reg.io/a:before"] = s.packages["reg.io/a:v1"]
	now := s.put("reg.io/a:v1", "new")
	with := sources.Ref{Repository: "reg.io/a", Tag: "v1", Digest: old}
	for _, tt := range []struct {
		name    string
		locked  bool
		always  bool
		approve bool
		named   sources.Digest // by dev
		want    sources.Digest
		err     string
	}{
		{name: "first", approve: true, want: old},
		{name: "first, another named", approve: true, named: now, err: "rules.yaml:1"},
		{name: "locked", locked: true, want: old},
		{name: "locked, and followed", locked: true, always: true, want: old},
		{name: "locked, and followed, for a person", locked: true, always: true, approve: true, want: old},
	} {
		cfg := s.config()
		cfg.Approve = tt.approve
		cfg.Rules = rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/other", With: with, Place: "rules.yaml:1"}}}
		dev := request("dev", "reg.io/a:v1")
		dev.Declarations[0].Ref.Digest = tt.named
		if tt.always {
			dev.Declarations[0].PullPolicy = sources.PullAlways
		}
		lock := new(lockfile.File)
		if tt.locked {
			pinned := request("dev", "reg.io/a:v1")
			pinned.Declarations[0].Ref.Digest = old
			lock = resolve(t, s.config(), lock, pinned).Lock
		}
		requests := []Request{request("prod", "reg.io/app:v1"), dev}
		for range 10 {
			slices.Reverse(requests)
			res := resolve(t, cfg, lock, requests...)
			if err := faults(res); (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("%s: %v, want %q", tt.name, err, tt.err)
			}
			if got, _ := res.Lock.Digest("reg.io/a", "v1"); got != tt.want {
				t.Fatalf("%s: the lock has %q, want %q", tt.name, got, tt.want)
			}
		}
	}
}

// replacing replaces reg.io/other by reg.io/a:v1.
func replacing() rules.Rules {
	with, err := sources.ParseRef("reg.io/a:v1")
	if err != nil {
		panic(fmt.Sprint("a reference: ", err))
	}
	return rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/other", With: with, Place: "rules.yaml:1"}}}
}

// A tag has one digest under all names of its registry, and the first locks had hosts as declared.
func TestOneRegistry(t *testing.T) {
	var s shelf
	s.put("reg.io/a:v1", "a")
	lock := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1")).Lock
	s.put("reg.io/a:v2", "b")
	s.packages["reg.io/a:v1"] = s.packages["reg.io/a:v2"] // moved
	lock = parseLock(t, strings.ReplaceAll(string(lock.Format()), "reg.io/", "Reg.io/"))
	for _, ref := range []string{"reg.io/a:v1", "REG.io/a:v1", "reg.io:443/a:v1"} {
		res := resolve(t, s.config(), lock, request("dev", ref))
		if err := faults(res); err == nil || string(res.Lock.Format()) != string(lock.Format()) {
			t.Errorf("%s: the moved tag is taken: %v, lock\n%s", ref, err, res.Lock.Format())
		}
	}
	res := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/a:v1", "reg.io:443/a:v2"))
	if err := faults(res); err == nil || !strings.Contains(err.Error(), "both install reg.io/a; a cluster can have one of them") {
		t.Errorf("declared under two names: %v", err)
	}
}
