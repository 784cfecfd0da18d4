package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

func exclude(t *testing.T, repository, versions string) rules.Exclude {
	t.Helper()
	r, err := rules.ParseRange(versions)
	if err != nil {
		t.Fatal(err)
	}
	return rules.Exclude{Repository: repository, Versions: r, Reason: "loses data", Place: "clusters.yaml:4"}
}

// retract makes a package on the shelf retract versions of itself.
func (s *shelf) retract(ref, text string) {
	s.packages[ref].Meta.Document.Tree = map[string]any{"metadata": map[string]any{"annotations": map[string]any{rules.RetractAnnotation: text}}}
}

func bases() *shelf {
	s := new(shelf)
	for _, v := range []string{"v1.0.0", "v1.1.0", "v1.2.0", "v2.0.0"} {
		s.put("reg.io/base:"+v, v)
	}
	s.put("reg.io/app:v1.0.0", "app", "reg.io/base ^1")
	s.put("reg.io/exact:v1.0.0", "exact", "reg.io/base v1.2.0")
	s.put("reg.io/pinned:v1.0.0", "pinned", "reg.io/base "+string(s.packages["reg.io/base:v1.1.0"].Digest))
	return s
}

func TestRules(t *testing.T) {
	app := []Request{request("dev", "reg.io/app:v1.0.0")}
	s := bases()
	locked := resolve(t, s.config(), new(lockfile.File), app...).Lock
	if l := string(locked.Format()); !strings.Contains(l, "@dev reg.io/base v1.2.0 <- reg.io/app") {
		t.Fatal(l)
	}
	s.packages["reg.io/base:v1.2"] = s.packages["reg.io/base:v1.2.0"]
	aliased := resolve(t, s.config(), new(lockfile.File), request("prod", "reg.io/base:v1.2"), request("stage", "reg.io/base:v1.2.0")).Lock
	choose := func(ref string) rules.Select {
		return rules.Select{Ref: declare(ref)[0].Ref, Place: "clusters.yaml:9"}
	}
	for _, tt := range []struct {
		name    string
		rules   rules.Rules
		retract string // by base v2.0.0
		lock    *lockfile.File
		update  bool
		alias   bool // v1.2 is base v1.2.0, too
		declare []string
		want    string // selected
		err     string
		note    string
	}{
		{name: "an excluded version is not chosen", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "excluded by a range", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", ">=1.1.0")}}, want: "app:v1.0.0 base:v1.0.0"},
		{name: "another package's exclusion", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/other", "v1.2.0")}}, want: "app:v1.0.0 base:v1.2.0"},
		{name: "all are excluded", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "^1")}},
			err: "no version of reg.io/base satisfies ^1 (needed by reg.io/app:v1.0.0); the registry has v2.0.0, v1.2.0, v1.1.0, v1.0.0\nv1.0.0 is excluded: loses data (clusters.yaml:4)"},
		{name: "what is locked stays", lock: locked, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, want: "app:v1.0.0 base:v1.2.0",
			note: "reg.io/base v1.2.0 is excluded: loses data (clusters.yaml:4); it stays, since clusters.lock has it: `gitopsd lock --update=reg.io/base` chooses another version"},
		{name: "until it is updated", lock: locked, update: true, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "a declaration is refused", declare: []string{"reg.io/base:v1.2.0"}, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}},
			err: "package base: reg.io/base:v1.2.0 is excluded: loses data (clusters.yaml:4); declare another version"},
		{name: "a declaration by the same digest is refused", lock: locked, declare: []string{"reg.io/base@" + string(s.packages["reg.io/base:v1.2.0"].Digest)},
			rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, err: "is excluded: loses data (clusters.yaml:4); declare another version"},
		{name: "a digest is excluded", declare: []string{"reg.io/base:v1.2.0"},
			rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.2.0"].Digest))}}, err: "is excluded: loses data"},
		{name: "an excluded digest is not chosen", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.2.0"].Digest))}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "an excluded digest that is locked stays", lock: locked, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.2.0"].Digest))}}, want: "app:v1.0.0 base:v1.2.0",
			note: "reg.io/base v1.2.0 is excluded: loses data (clusters.yaml:4); it stays, since clusters.lock has it: `gitopsd lock --update=reg.io/base` chooses another version"},
		{name: "all digests are excluded", declare: []string{"reg.io/exact:v1.0.0"}, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.2.0"].Digest))}},
			err: "no version of reg.io/base satisfies v1.2.0 (needed by reg.io/exact:v1.0.0); the registry has v2.0.0, v1.2.0, v1.1.0, v1.0.0\nv1.2.0 is excluded: loses data"},
		{name: "a selected version with an excluded digest", rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.1.0")}, Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.1.0"].Digest))}},
			err: "clusters.yaml:9 selects reg.io/base v1.1.0, which is excluded: loses data (clusters.yaml:4); change one of the two"},
		{name: "a retracted digest is avoided", retract: string(s.packages["reg.io/base:v1.2.0"].Digest) + ": signed by mistake", want: "app:v1.0.0 base:v1.1.0"},
		{name: "a dependency by digest", declare: []string{"reg.io/pinned:v1.0.0"},
			rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.1.0"].Digest))}}, err: "(needed by reg.io/pinned:v1.0.0)"},
		{name: "a selected version", rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.0.0")}}, want: "app:v1.0.0 base:v1.0.0"},
		{name: "a selected version comes before the lock's", lock: locked, rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.1.0")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "a selected version that does not suit", rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v2.0.0")}},
			err: "clusters.yaml:9 selects reg.io/base v2.0.0, and reg.io/app:v1.0.0 needs ^1; change one of the two"},
		{name: "a selected version for a digest", declare: []string{"reg.io/pinned:v1.0.0"}, rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.1.0")}}, want: "base:v1.1.0 pinned:v1.0.0"},
		{name: "another version than that of a digest", declare: []string{"reg.io/pinned:v1.0.0"}, rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.0.0")}}, err: "clusters.yaml:9 selects reg.io/base v1.0.0, and reg.io/pinned:v1.0.0 needs sha256:"},
		{name: "a selected version by digest alone", rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base@" + string(s.packages["reg.io/base:v1.1.0"].Digest))}}, err: "names no semantic version"},
		{name: "a selected version of a declared package", declare: []string{"reg.io/base:v1.0.0", "reg.io/app:v1.0.0"}, rules: rules.Rules{Selects: []rules.Select{choose("reg.io/base:v1.1.0")}}, want: "app:v1.0.0 base:v1.0.0"},
		{name: "a retracted version is avoided", retract: "v1.2.0: wrong default", want: "app:v1.0.0 base:v1.1.0"},
		{name: "a retraction and an exclusion", retract: "v1.2.0: wrong default", rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.1.0")}}, want: "app:v1.0.0 base:v1.0.0"},
		{name: "a retracted version is kept", retract: "v1.2.0: wrong default", lock: locked, want: "app:v1.0.0 base:v1.2.0"},
		{name: "nothing but a retracted version suits", retract: "[v1.0.0, v1.2.0]: wrong default", declare: []string{"reg.io/exact:v1.0.0"}, want: "base:v1.2.0 exact:v1.0.0",
			note: "reg.io/base v1.2.0 is retracted: wrong default; no other version satisfies all packages that depend on it"},
		{name: "an alias of an excluded version", alias: true, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "an alias of an excluded range", alias: true, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", ">=1.2.0 <1.2.4")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "an alias of a retracted version", alias: true, retract: "v1.2.0: wrong default", want: "app:v1.0.0 base:v1.1.0"},
		{name: "an alias that another cluster has", alias: true, lock: aliased, rules: rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}}, want: "app:v1.0.0 base:v1.1.0"},
		{name: "a malformed retraction", retract: "v1.2.0", want: "app:v1.0.0 base:v1.2.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := bases()
			if tt.retract != "" {
				s.retract("reg.io/base:v2.0.0", tt.retract)
			}
			if tt.alias {
				s.packages["reg.io/base:v1.2"] = s.packages["reg.io/base:v1.2.0"]
			}
			cfg := s.config()
			cfg.Rules = tt.rules
			if tt.update {
				cfg.Update = func(string, string) bool { return true }
			}
			lock := tt.lock
			if lock == nil {
				lock = new(lockfile.File)
			}
			reqs := app
			if tt.declare != nil {
				reqs = []Request{request("dev", tt.declare...)}
			}
			res := resolve(t, cfg, lock, reqs...)
			err := faults(res)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v\nwant %q", err, tt.err)
				}
				return
			}
			if have := selected(res, "dev"); err != nil || have != tt.want {
				t.Errorf("have %s, %v; want %s", have, err, tt.want)
			}
			if notes := strings.Join(res.Clusters["dev"].Notes, "\n"); notes != tt.note {
				t.Errorf("notes %s\nwant  %s", notes, tt.note)
			}
			cfg.Update = nil
			again := resolve(t, cfg, res.Lock, reqs...)
			if string(again.Lock.Format()) != string(res.Lock.Format()) {
				t.Errorf("a second resolution changes the lock to\n%s", again.Lock.Format())
			}
		})
	}
}

// A refused version leaves the lock's lines for what runs, and adds none.
func TestRefusedStays(t *testing.T) {
	s := bases()
	before := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/base:v1.1.0")).Lock
	cfg := s.config()
	cfg.Rules = rules.Rules{Excludes: []rules.Exclude{exclude(t, "reg.io/base", ">=1.1.0")}}
	for _, ref := range []string{"reg.io/base:v1.1.0", "reg.io/base:v1.2.0"} {
		s.asked = nil
		res := resolve(t, cfg, before, request("dev", ref))
		if err := faults(res); err == nil || string(res.Lock.Format()) != string(before.Format()) || len(s.asked) > 0 {
			t.Errorf("%s: %v, asked %q, lock\n%s", ref, err, s.asked, res.Lock.Format())
		}
	}
}

// While the rules cannot be read, nothing is resolved and nothing leaves the
// lock.
func TestUnknownRules(t *testing.T) {
	s := bases()
	before := resolve(t, s.config(), new(lockfile.File), request("dev", "reg.io/app:v1.0.0")).Lock
	cfg := s.config()
	cfg.Refuse = errors.New("the Packages document has errors")
	s.asked = nil
	res := resolve(t, cfg, before, request("dev", "reg.io/app:v1.0.0", "reg.io/exact:v1.0.0"), request("new", "reg.io/app:v1.0.0"))
	if string(res.Lock.Format()) != string(before.Format()) || len(s.asked) > 0 || len(res.Clusters["dev"].Selected) > 0 {
		t.Errorf("asked %q, lock\n%s", s.asked, res.Lock.Format())
	}
	if err := faults(res); err == nil || strings.Count(err.Error(), "the Packages document has errors") != 3 {
		t.Errorf("have %v", err)
	}
}

// While it is unknown which versions are retracted, none is chosen from the registry, and
// what is locked stays. A tag that is no package, or is gone, does not hide retractions.
func TestUnknownRetractions(t *testing.T) {
	s := bases()
	locked := resolve(t, s.config(), new(lockfile.File), request("old", "reg.io/exact:v1.0.0")).Lock
	s.retract("reg.io/base:v2.0.0", "v1.2.0: loses data")
	s.put("reg.io/base:v3.0.0", "x")
	for i := range maxUnfit {
		s.put(fmt.Sprintf("reg.io/many:v3.0.%d", i), "x")
	}
	s.put("reg.io/many:v1.0.0", "x")
	s.put("reg.io/of-many:v1.0.0", "x", "reg.io/many ^1")
	down := errors.New("connection refused")
	for _, tt := range []struct {
		name        string
		digest, err error // of v3.x, its digest and its content
		lock        *lockfile.File
		declare     string
		want, fails string
	}{
		{name: "no package", err: sources.ErrUnfit, want: "app:v1.0.0 base:v1.1.0"},
		{name: "gone", digest: sources.ErrNotFound, want: "app:v1.0.0 base:v1.1.0"},
		{name: "unreachable", digest: down, fails: "it is unknown which versions the publisher retracts; name a version, or correct this first: connection refused"},
		{name: "unreachable content", err: down, fails: "correct this first: connection refused"},
		{name: "locked", digest: down, lock: locked, declare: "reg.io/exact:v1.0.0", want: "base:v1.2.0 exact:v1.0.0"},
		{name: "many that are no packages", err: sources.ErrUnfit, declare: "reg.io/of-many:v1.0.0", want: "many:v1.0.0 of-many:v1.0.0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := s.config()
			digest, fetch := cfg.Digest, cfg.Fetch
			cfg.Digest = func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
				if strings.HasPrefix(tag, "v3.") && tt.digest != nil {
					return "", tt.digest
				}
				return digest(ctx, from, tag)
			}
			cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
				for ref, pkg := range s.packages {
					if strings.Contains(ref, ":v3.") && pkg.Digest == d {
						return nil, tt.err
					}
				}
				return fetch(ctx, from, d)
			}
			lock, ref := cmp.Or(tt.lock, new(lockfile.File)), cmp.Or(tt.declare, "reg.io/app:v1.0.0")
			cluster := "new"
			if tt.lock != nil {
				cluster = "old"
			}
			res := resolve(t, cfg, lock, request(cluster, ref))
			if err := faults(res); tt.fails == "" && err != nil || tt.fails != "" && !strings.Contains(fmt.Sprint(err), tt.fails) {
				t.Errorf("error %v, want %q", err, tt.fails)
			}
			if have := selected(res, cluster); tt.fails == "" && have != tt.want {
				t.Errorf("selected %s, want %s", have, tt.want)
			}
		})
	}
	tags := []string{"v1.0.0"}
	for i := range maxUnfit + 1 {
		tags = append(tags, fmt.Sprintf("v3.0.%d", i))
	}
	_, err := Retractions(tags, func(string) (*sources.Package, error) { return nil, sources.ErrUnfit })
	if err == nil {
		t.Error("too many tags are passed over without an error")
	}
}

// Retractions count only if they are signed as the package must be, and cost no
// package that is wanted.
func TestRetractionsOfOthers(t *testing.T) {
	s := bases()
	s.retract("reg.io/base:v2.0.0", "v1.2.0: not mine")
	cfg := s.config()
	unsigned := s.packages["reg.io/base:v2.0.0"].Digest
	cfg.Verify = verifyAllBut(unsigned)
	images := sources.ImageConfigs{{Name: "signed", Prefixes: []string{"reg.io/"}, Verification: &sources.Verification{ImageConfig: "signed"}}}
	res := resolve(t, cfg, new(lockfile.File), Request{Cluster: "dev", Images: images, Declarations: declare("reg.io/app:v1.0.0")})
	if have := selected(res, "dev"); have != "app:v1.0.0 base:v1.2.0" || faults(res) != nil {
		t.Errorf("have %s, %v", have, faults(res))
	}
}

func verifyAllBut(d sources.Digest) VerifyFunc {
	return func(_ context.Context, _ sources.Origin, have sources.Digest, _ *sources.Verification) (string, error) {
		if have == d {
			return "", fmt.Errorf("is not signed: %w", sources.ErrUnfit)
		}
		return "by somebody", nil
	}
}

// The lock has a replacement under its own name, and dependents see the version of the
// replaced package.
func TestReplace(t *testing.T) {
	built := sources.DigestOf([]byte("reg.io/base:builtbuilt"))
	s := bases()
	for _, v := range []string{"v1.0.0", "v1.1.0", "v9.0.0"} {
		s.put("reg.io/fork:"+v, "fork "+v)
	}
	s.put("reg.io/old:v1.0.0", "old")
	s.put("reg.io/two:v1.0.0", "two", "reg.io/base ^1", "reg.io/old ^1")
	s.put("reg.io/forked:v1.0.0", "forked", "reg.io/fork ^1")
	s.put("reg.io/base:built", "built") // what the directory holds
	whole := func(with string) rules.Rules {
		ref := sources.Ref{Repository: with}
		if r, err := sources.ParseRef(with); err == nil {
			ref = r
		}
		return rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/base", With: ref, Place: "clusters.yaml:9"}}}
	}
	one := whole("reg.io/fork:v9.0.0")
	one.Replaces[0].Version = "v1.2.0"
	dir := rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/base", Directory: "packages/base", Place: "clusters.yaml:9"}}}
	oneDir := rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/base", Version: "v1.2.0", Directory: "packages/base", Place: "clusters.yaml:9"}}}
	local := rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/base", Directory: "packages/base", Local: true}}}
	signed := func(prefix string) sources.ImageConfigs {
		return sources.ImageConfigs{{Name: "signed", Prefixes: []string{prefix}, Verification: &sources.Verification{ImageConfig: "signed"}}}
	}
	for _, tt := range []struct {
		name     string
		rules    rules.Rules
		declare  []string
		images   sources.ImageConfigs
		readonly bool // by run, which records nothing
		lines    string
		err      string
	}{
		{name: "by a repository with the same versions", rules: whole("reg.io/fork"), lines: "@dev reg.io/app v1.0.0|@dev reg.io/fork v1.1.0 <- reg.io/app"},
		{name: "by one version", rules: whole("reg.io/fork:v9.0.0"), lines: "@dev reg.io/app v1.0.0|@dev reg.io/fork v9.0.0 <- reg.io/app"},
		{name: "one version by another", rules: one, lines: "@dev reg.io/app v1.0.0|@dev reg.io/fork v9.0.0 <- reg.io/app"},
		{name: "another version is not", rules: one, declare: []string{"reg.io/base:v1.1.0"}, lines: "@dev reg.io/base v1.1.0"},
		{name: "a declaration", rules: one, declare: []string{"reg.io/base:v1.2.0", "reg.io/exact:v1.0.0"}, lines: "@dev reg.io/exact v1.0.0|@dev reg.io/fork v9.0.0"},
		{name: "a declaration keeps its version for dependents", rules: whole("reg.io/fork"), declare: []string{"reg.io/base:v1.0.0", "reg.io/exact:v1.0.0"}, err: "needs reg.io/base v1.2.0, but base declares v1.0.0"},
		{name: "by a directory", rules: dir, lines: "@dev reg.io/app v1.0.0|@dev reg.io/base " + string(built) + " <- reg.io/app"},
		{name: "one version by a directory", rules: oneDir, lines: "@dev reg.io/app v1.0.0|@dev reg.io/base " + string(built) + " <- reg.io/app"},
		{name: "what has dependencies", rules: rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/app2", With: sources.Ref{Repository: "reg.io/app"}, Place: "clusters.yaml:9"}}}, declare: []string{"reg.io/app2:v1.0.0"},
			lines: "@dev reg.io/app v1.0.0|@dev reg.io/base v1.2.0 <- reg.io/app"},
		{name: "unlocked in run", rules: whole("reg.io/fork"), readonly: true, err: "reg.io/base:v1.1.0 is replaced by reg.io/fork:v1.1.0 (clusters.yaml:9), which clusters.lock does not record; run `gitopsd lock` and commit the change"},
		{name: "an unlocked directory in run", rules: dir, readonly: true, err: "reg.io/base is replaced by the directory packages/base as it is now (clusters.yaml:9), which clusters.lock does not record"},
		{name: "a directory for a plan", rules: local, readonly: true, lines: "@dev reg.io/app v1.0.0|@dev reg.io/base " + string(built) + " <- reg.io/app"},
		{name: "by two", rules: whole("reg.io/fork"), declare: []string{"reg.io/fork:v1.0.0", "reg.io/base:v1.0.0"}, err: "fork and base both install reg.io/fork, which replaces reg.io/base"},
		{name: "by what is declared", rules: whole("reg.io/fork"), declare: []string{"reg.io/fork:v1.0.0", "reg.io/app:v1.0.0"},
			err: "reg.io/fork would be installed twice, in place of reg.io/base (clusters.yaml:9) and as declared; a cluster can have one of them"},
		{name: "two by one", rules: rules.Rules{Replaces: append(whole("reg.io/fork").Replaces, rules.Replace{Repository: "reg.io/old", With: sources.Ref{Repository: "reg.io/fork"}, Place: "clusters.yaml:10"})}, declare: []string{"reg.io/two:v1.0.0"},
			err: "reg.io/fork would be installed twice, in place of reg.io/base (clusters.yaml:9) and in place of reg.io/old (clusters.yaml:10)"},
		{name: "by another dependency", rules: whole("reg.io/fork"), declare: []string{"reg.io/forked:v1.0.0", "reg.io/app:v1.0.0"},
			err: "package app: reg.io/app:v1.0.0 depends on reg.io/fork: reg.io/fork would be installed twice, in place of reg.io/base (clusters.yaml:9) and as a dependency by its own name"},
		{name: "by nothing that exists", rules: whole("reg.io/gone:v1.0.0"), err: "reg.io/gone:v1.0.0: not found\n(reg.io/base is replaced at clusters.yaml:9)"},
		{name: "without a version", rules: whole("reg.io/fork"), declare: []string{"reg.io/base@" + string(s.packages["reg.io/base:v1.2.0"].Digest)}, err: "names no version that reg.io/fork could have in its place"},
		{name: "unsigned, by the policy for what is replaced", rules: whole("reg.io/fork:v9.0.0"), images: signed("reg.io/base"), err: "is not signed"},
		{name: "a directory in place of what must be signed", rules: dir, images: signed("reg.io/base"), err: "ImageConfig signed asks for a signature, and the directory packages/base has none"},
		{name: "the same for a plan", rules: local, images: signed("reg.io/base"), lines: "@dev reg.io/app v1.0.0|@dev reg.io/base " + string(built) + " <- reg.io/app"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := s.config()
			cfg.Rules, cfg.Approve = tt.rules, !tt.readonly
			cfg.Directory = func(context.Context, string) (sources.Digest, error) { return built, nil }
			cfg.Verify = verifyAllBut(s.packages["reg.io/fork:v9.0.0"].Digest)
			if tt.declare == nil {
				tt.declare = []string{"reg.io/app:v1.0.0"}
			}
			req := Request{Cluster: "dev", Declarations: declare(tt.declare...), Images: tt.images}
			res := resolve(t, cfg, new(lockfile.File), req)
			err := faults(res)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "run `gitopsd lock` and commit the change\n(") {
					t.Errorf("error %v\nwant %q", err, tt.err)
				}
				return
			}
			var lines []string
			for line := range strings.Lines(string(res.Lock.Format())) {
				if line[0] == '@' {
					lines = append(lines, strings.TrimSuffix(line, "\n"))
				}
			}
			if have := strings.Join(lines, "|"); err != nil || have != tt.lines {
				t.Fatalf("have %s, %v\nwant %s", have, err, tt.lines)
			}
			// Locked, it is good enough for run, and stays.
			s.asked = nil
			cfg.Approve = false
			again := resolve(t, cfg, res.Lock, req)
			if err := faults(again); err != nil || string(again.Lock.Format()) != string(res.Lock.Format()) {
				t.Errorf("%v, and a second resolution changes the lock to\n%s", err, again.Lock.Format())
			}
			for _, q := range s.asked {
				if !strings.HasPrefix(q, "GET ") {
					t.Errorf("it was looked up: %s", q)
				}
			}
		})
	}
}

// A directory without a controller does not replace a package that has one, be it declared, in a
// version that the lock has or a new one, or a dependency.
func TestDirectoryWithoutController(t *testing.T) {
	s := bases()
	for _, p := range s.packages {
		if p.Repository == "reg.io/base" {
			p.Meta.Kind, p.Runnable = sources.Provider, true
		}
	}
	built := s.put("reg.io/base:built", "built")
	s.packages["reg.io/base:built"].Meta.Kind = sources.Provider
	provider := func(ref string) Request {
		req := request("dev", ref)
		req.Declarations[0].Kind = sources.Provider
		return req
	}
	for _, tt := range []struct{ was, now Request }{
		{provider("reg.io/base:v1.1.0"), provider("reg.io/base:v1.1.0")},
		{provider("reg.io/base:v1.1.0"), provider("reg.io/base:v1.2.0")},
		{request("dev", "reg.io/app:v1.0.0"), request("dev", "reg.io/app:v1.0.0")},
	} {
		before := resolve(t, s.config(), new(lockfile.File), tt.was).Lock
		cfg := s.config()
		cfg.Approve = true
		cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/base", Directory: "packages/base", Place: "clusters.yaml:9"}}
		cfg.Directory = func(context.Context, string) (sources.Digest, error) { return built, nil }
		res := resolve(t, cfg, before, tt.now)
		if err := faults(res); err == nil || !strings.Contains(err.Error(), "is built from the directory packages/base, which holds no controller") || string(res.Lock.Format()) != string(before.Format()) {
			t.Errorf("%s, then %s: %v, lock\n%s", tt.was.Declarations[0].Ref, tt.now.Declarations[0].Ref, err, res.Lock.Format())
		}
		cfg.Rules.Replaces[0].Local = true // for a plan, the published package will have one
		if res := resolve(t, cfg, before, tt.now); faults(res) != nil || !slices.ContainsFunc(res.Clusters["dev"].Selected, func(s sources.Selected) bool { return s.Runtime != "" }) {
			t.Errorf("%s, then %s for a plan: %v", tt.was.Declarations[0].Ref, tt.now.Declarations[0].Ref, faults(res))
		}
	}
}

// A dependency keeps its version when it is replaced, if there is the same.
func TestReplacedKeepsVersion(t *testing.T) {
	app := request("dev", "reg.io/app:v1.0.0")
	for was, want := range map[string]string{"v1.0.0": "app:v1.0.0 fork:v1.0.0", "v1.1.0": "app:v1.0.0 fork:v1.9.0"} {
		s := bases()
		s.put("reg.io/fork:v1.0.0", "fork")
		s.put("reg.io/fork:v1.9.0", "fork 9")
		cfg := s.config()
		cfg.Digest = func(_ context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			pkg := s.packages[from.Repository+":"+tag]
			if pkg == nil {
				return "", sources.ErrNotFound
			}
			return pkg.Digest, nil
		}
		cfg.Rules.Selects = []rules.Select{{Ref: sources.Ref{Repository: "reg.io/base", Tag: was}}}
		before := resolve(t, cfg, new(lockfile.File), app).Lock
		cfg.Rules = rules.Rules{Replaces: []rules.Replace{{Repository: "reg.io/base", With: sources.Ref{Repository: "reg.io/fork"}}}}
		cfg.Approve = true
		if res := resolve(t, cfg, before, app); faults(res) != nil || selected(res, "dev") != want {
			t.Errorf("%s: have %s, %v; want %s", was, selected(res, "dev"), faults(res), want)
		}
	}
}

// A tag that moves is not followed in place of a package, but by a person.
func TestReplacementMoves(t *testing.T) {
	s := bases()
	s.put("reg.io/fork:v1.1.0", "fork")
	cfg := s.config()
	cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/base", With: sources.Ref{Repository: "reg.io/fork"}}}
	cfg.Approve = true
	req := request("dev", "reg.io/base:v1.1.0")
	req.Declarations[0].PullPolicy = sources.PullAlways
	before := resolve(t, cfg, new(lockfile.File), req).Lock
	moved := s.put("reg.io/fork:v1.1.0", "moved")
	cfg.Approve = false
	if res := resolve(t, cfg, before, req); faults(res) == nil || string(res.Lock.Format()) != string(before.Format()) {
		t.Errorf("have %s, %v", selected(res, "dev"), faults(res)) // the shelf has lost what is locked
	}
	cfg.Approve = true
	if res := resolve(t, cfg, before, req); faults(res) != nil || res.Clusters["dev"].Selected[0].Pin.Digest != moved {
		t.Errorf("have %s, %v", selected(res, "dev"), faults(res))
	}
}

// A new digest beside the tag is not followed in place of a package, but by a
// person; also if a declaration elsewhere activates it.
func TestReplacementByDigest(t *testing.T) {
	s := bases()
	old := s.put("reg.io/fork:v1.1.0", "fork")
	moved := s.put("reg.io/fork:v1.1.1", "moved")
	by := func(d sources.Digest) []rules.Replace {
		return []rules.Replace{{Repository: "reg.io/base", With: sources.Ref{Repository: "reg.io/fork", Tag: "v1.1.0", Digest: d}, Place: "clusters.yaml:9"}}
	}
	always := func(cluster, ref string) Request {
		req := request(cluster, ref)
		req.Declarations[0].PullPolicy = sources.PullAlways
		return req
	}
	req := always("dev", "reg.io/base:v1.1.0")
	cfg := s.config()
	cfg.Rules.Replaces, cfg.Approve = by(old), true
	before := resolve(t, cfg, new(lockfile.File), req).Lock
	cfg.Rules.Replaces, cfg.Approve = by(moved), false
	for _, reqs := range [][]Request{{req}, {req, always("prod", "reg.io/fork:v1.1.0@"+string(moved))}} {
		res := resolve(t, cfg, before, reqs...)
		if err := faults(res); err == nil || !strings.Contains(err.Error(), "clusters.yaml:9") || len(res.Clusters["dev"].Selected) > 0 {
			t.Errorf("dev has %s, %v", selected(res, "dev"), err)
		}
		if len(reqs) == 1 && string(res.Lock.Format()) != string(before.Format()) {
			t.Errorf("the lock is\n%s", res.Lock.Format())
		}
	}
	cfg.Approve = true
	if res := resolve(t, cfg, before, req); faults(res) != nil || res.Clusters["dev"].Selected[0].Pin.Digest != moved {
		t.Errorf("have %s, %v", selected(res, "dev"), faults(res))
	}
}

// A replacement that fails takes nothing of what it replaces out of the lock.
func TestReplacementFails(t *testing.T) {
	s := bases()
	req := request("dev", "reg.io/base:v1.1.0")
	before := resolve(t, s.config(), new(lockfile.File), req).Lock
	cfg := s.config()
	cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/base", With: sources.Ref{Repository: "reg.io/gone"}}}
	cfg.Approve = true
	res := resolve(t, cfg, before, req)
	if faults(res) == nil || string(res.Lock.Format()) != string(before.Format()) {
		t.Errorf("%v, lock\n%s", faults(res), res.Lock.Format())
	}
}

// An excluded version that another cluster has is not a new cluster's.
func TestExcludedElsewhere(t *testing.T) {
	s := bases()
	dev := request("dev", "reg.io/app:v1.0.0")
	before := resolve(t, s.config(), new(lockfile.File), dev).Lock
	cfg := s.config()
	cfg.Rules.Excludes = []rules.Exclude{exclude(t, "reg.io/base", "v1.2.0")}
	res := resolve(t, cfg, before, dev, request("new", "reg.io/app:v1.0.0"))
	if old, now := selected(res, "dev"), selected(res, "new"); faults(res) != nil || old != "app:v1.0.0 base:v1.2.0" || now != "app:v1.0.0 base:v1.1.0" {
		t.Errorf("dev has %s, new %s, %v", old, now, faults(res))
	}
}

// Nor is one that another cluster declares, and that is refused there for its digest.
func TestExcludedDigestElsewhere(t *testing.T) {
	s := bases()
	cfg := s.config()
	cfg.Rules.Excludes = []rules.Exclude{exclude(t, "reg.io/base", string(s.packages["reg.io/base:v1.1.0"].Digest))}
	res := resolve(t, cfg, new(lockfile.File), request("dev", "reg.io/base:v1.1.0"), request("new", "reg.io/app:v1.0.0"))
	if now := selected(res, "new"); now != "app:v1.0.0 base:v1.2.0" || selected(res, "dev") != "" {
		t.Errorf("new has %s, dev %s, %v", now, selected(res, "dev"), faults(res))
	}
}

// A replaced package whose declaration cannot be read stays as the lock has it.
func TestReplacedIsHeld(t *testing.T) {
	s := bases()
	s.put("reg.io/fork:v1.1.0", "fork")
	cfg := s.config()
	cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/base", With: sources.Ref{Repository: "reg.io/fork"}, Place: "clusters.yaml:9"}}
	cfg.Approve = true
	before := resolve(t, cfg, new(lockfile.File), request("dev", "reg.io/base:v1.1.0", "reg.io/app:v1.0.0")).Lock
	cfg.Approve = false
	broken := declare("reg.io/base:v1.1.0")[0]
	broken.Ref = sources.Ref{Repository: "reg.io/base"}
	res := resolve(t, cfg, before, Request{Cluster: "dev", Declarations: declare("reg.io/app:v1.0.0"), Unreadable: []sources.Declaration{broken}})
	if string(res.Lock.Format()) != string(before.Format()) || selected(res, "dev") != "app:v1.0.0" {
		t.Errorf("have %s, %v, and the lock\n%s\nwas\n%s", selected(res, "dev"), faults(res), res.Lock.Format(), before.Format())
	}
}

// A merge may leave both a version and the replacement of another in the lock. The higher one
// stays.
func TestVersionAndReplacement(t *testing.T) {
	var s shelf
	p, lib, fork := s.put("reg.io/p:v1", "p", "reg.io/lib >=1.0.0"), s.put("reg.io/lib:v1.2.0", "lib"), s.put("reg.io/fork:v1.3.1", "fork")
	lock := parseLock(t, "@dev reg.io/p v1\n@dev reg.io/lib v1.2.0 <- reg.io/p\n@dev reg.io/fork v1.3.1 <- reg.io/p\nreg.io/p v1 "+string(p)+"\nreg.io/lib v1.2.0 "+string(lib)+"\nreg.io/fork v1.3.1 "+string(fork)+"\n")
	for version, want := range map[string]string{"v1.3.0": "fork:v1.3.1 p:v1", "v1.1.0": "lib:v1.2.0 p:v1"} {
		cfg := s.config()
		cfg.Rules.Replaces = []rules.Replace{{Repository: "reg.io/lib", Version: version, With: sources.Ref{Repository: "reg.io/fork", Tag: "v1.3.1"}, Place: "clusters.yaml:1"}}
		res := resolve(t, cfg, lock, request("dev", "reg.io/p:v1"))
		if have := selected(res, "dev"); have != want || faults(res) != nil {
			t.Errorf("%s is replaced: selected %q, %v, want %q", version, have, faults(res), want)
		}
	}
}

// A tag that cannot be looked up stays, and people are told.
func TestUnknownTagIsNoted(t *testing.T) {
	var s shelf
	d := s.put("reg.io/a:v1", "a")
	req := request("dev", "reg.io/a:v1")
	req.Declarations[0].PullPolicy = sources.PullAlways
	lock := resolve(t, s.config(), new(lockfile.File), req).Lock
	for _, tt := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{sources.ErrUnasked, nil},
		{errors.New("unauthorized\nlog in again"), []string{"reg.io/a:v1 stays at " + string(d) + ", since the registry does not tell whether the tag has moved: unauthorized"}},
	} {
		cfg := s.config()
		cfg.Digest = func(context.Context, sources.Origin, string) (sources.Digest, error) { return d, tt.err }
		res := resolve(t, cfg, lock, req)
		if have := res.Clusters["dev"].Notes; !slices.Equal(have, tt.want) || selected(res, "dev") != "a:v1" || faults(res) != nil {
			t.Errorf("%v: notes %q, selected %q, %v", tt.err, have, selected(res, "dev"), faults(res))
		}
	}
}
