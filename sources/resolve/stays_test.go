package resolve

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/rules"
)

// A tag does not move in one cluster while another has it that may not want it to, or if it
// was not found out for one where it has moved.
func TestTagStays(t *testing.T) {
	t.Parallel()
	const repository, unread = "reg.io/a", "the former one stays while the declaration of it in cluster prod cannot be read"
	unreadable := func(r Request) Request {
		d := r.Declarations[0]
		d.Ref = sources.Ref{Repository: repository}
		return Request{Cluster: r.Cluster, Unreadable: []sources.Declaration{d}}
	}
	dev := func(change func(*sources.Declaration)) Request {
		r := request("dev", repository+":v1")
		d := &r.Declarations[0]
		if d.PullPolicy = sources.PullAlways; change != nil {
			change(d)
		}
		return r
	}
	prod := func(version string) Request { return request("prod", repository+":"+version) }
	for _, tt := range []struct {
		name      string
		prod, dev Request
		// failing are the pull secrets with which the tag cannot be looked up.
		failing  string
		selects  bool
		excludes bool
		text     string // in what waits, or in dev's error
	}{
		{name: "the cluster cannot be read", prod: Request{Cluster: "prod", Failed: true}, dev: dev(nil), text: unread},
		{name: "its declaration cannot be read", prod: unreadable(prod("v1")), dev: dev(nil), text: unread},
		{name: "no declaration can be read", prod: Request{Cluster: "prod", Unreadable: []sources.Declaration{{Name: "a"}}}, dev: dev(nil), text: unread},
		{name: "named elsewhere meanwhile", prod: Request{Cluster: "prod", Failed: true}, dev: dev(func(d *sources.Declaration) { d.Ref.Digest = sources.DigestOf([]byte("other")) }),
			text: "the tag stays while the declaration of it in cluster prod cannot be read, which may name another digest"},
		{name: "another version waits there", prod: func() Request {
			r := prod("v2")
			r.Declarations[0].ManualActivation = true
			return r
		}(), dev: dev(nil), text: "reg.io/a:v1 has a new revision NEW that waits for approval"},
		{name: "not found out for the first", prod: func() Request {
			r := prod("v1")
			r.Declarations[0].PullPolicy, r.Declarations[0].PullSecrets = sources.PullAlways, []string{"a"}
			return r
		}(), dev: dev(func(d *sources.Declaration) { d.PullSecrets = []string{"b"} }), failing: "a"},
		{name: "rules select its digest", prod: request("prod", "reg.io/p:v1"), dev: dev(nil), selects: true, text: "rules.yaml:1 names the former one"},
		{name: "what it is now is excluded", prod: prod("v1"), dev: dev(nil), excludes: true, text: "reg.io/a:v1 has a new revision NEW, which is excluded: stolen key (rules.yaml:2); the former one stays"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := new(shelf)
			old := s.put(repository+":v1", "old")
			s.put("reg.io/p:v1", "p", repository+" >=v0.0.1")
			lock := resolve(t, s.config(), new(lockfile.File), prod("v1"), request("dev", repository+":v1")).Lock
			s.packages[repository+":before"] = s.packages[repository+":v1"]
			now := s.put(repository+":v1", "new")
			s.put(repository+":v2", "two")
			cfg := s.config()
			lookUp := cfg.Digest
			cfg.Digest = func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
				if tt.failing != "" && from.PullSecrets == tt.failing {
					return "", errors.New("401 Unauthorized")
				}
				return lookUp(ctx, from, tag)
			}
			if tt.selects {
				cfg.Rules = rules.Rules{Selects: []rules.Select{{Ref: sources.Ref{Repository: repository, Tag: "v1", Digest: old}, Place: "rules.yaml:1"}}}
			}
			if tt.excludes {
				digest, err := rules.ParseRange(string(now))
				if err != nil {
					t.Fatal(err)
				}
				cfg.Rules = rules.Rules{Excludes: []rules.Exclude{{Repository: repository, Versions: digest, Reason: "stolen key", Place: "rules.yaml:2"}}}
			}
			res := resolve(t, cfg, lock, tt.prod, tt.dev)
			if got, _ := res.Lock.Digest(repository, "v1"); got != old {
				t.Errorf("the lock has %s, want %s", got, old)
			}
			var said []string
			for cluster, r := range res.Clusters {
				for _, selected := range slices.Concat(r.Selected, r.Held) {
					if d := selected.Pin.Digest; d == now {
						t.Errorf("%s gets %s", cluster, d)
					}
				}
				for _, e := range r.Errors {
					said = append(said, e.Error())
				}
			}
			for _, w := range res.Waiting {
				said = append(said, w.String())
			}
			if all := strings.ReplaceAll(strings.Join(said, "\n"), string(now), "NEW"); !strings.Contains(all, tt.text) || tt.text == "" && all != "" {
				t.Errorf("it says %q, want %q", all, tt.text)
			}
		})
	}
}

// A dependency that an unread cluster selects, too, is looked up for a person if the lock has lost its digest: no declaration forbids that.
func TestUnreadDependency(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	digest := s.put("reg.io/a:v1", "a")
	s.put("reg.io/p:v1", "p", "reg.io/a v1")
	lock := resolve(t, s.config(), new(lockfile.File), request("prod", "reg.io/p:v1"), request("dev", "reg.io/p:v1")).Lock
	lock.Forget("reg.io/a", "v1")
	cfg := s.config()
	cfg.Approve = true
	res := resolve(t, cfg, lock, Request{Cluster: "prod", Failed: true}, request("dev", "reg.io/p:v1"))
	if errs := res.Clusters["dev"].Errors; len(errs) > 0 {
		t.Errorf("dev: %v", errs)
	}
	if got, _ := res.Lock.Digest("reg.io/a", "v1"); got != digest {
		t.Errorf("the lock has %q", got)
	}
}

// What a tag is for one cluster is the same whether others are resolved, too, or only heard. Nothing is fetched for those.
func TestHeard(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	old := s.put("reg.io/a:v1", "old")
	lock := resolve(t, s.config(), new(lockfile.File), request("prod", "reg.io/a:v1"), request("dev", "reg.io/a:v1")).Lock
	s.packages["reg.io/a:before"] = s.packages["reg.io/a:v1"]
	now := s.put("reg.io/a:v1", "new")
	s.put("reg.io/b:v1", "b")
	for _, tt := range []struct {
		name   string
		prod   sources.Digest
		dev    sources.Digest
		always bool
		want   sources.Digest
	}{
		{"the other moves it", "", now, true, now},
		{"the other pins it", "", old, false, old},
		{"it moves itself", now, "", true, now},
	} {
		prod, dev := request("prod", "reg.io/a:v1"), request("dev", "reg.io/a:v1", "reg.io/b:v1")
		prod.Declarations[0].Ref.Digest, dev.Declarations[0].Ref.Digest = tt.prod, tt.dev
		if tt.always {
			prod.Declarations[0].PullPolicy, dev.Declarations[0].PullPolicy = sources.PullAlways, sources.PullAlways
		}
		whole := resolve(t, s.config(), lock, prod, dev)
		cfg := s.config()
		fetch := cfg.Fetch
		cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			if from.Repository == "reg.io/b" {
				t.Errorf("%s: a package of the other cluster is fetched", tt.name)
			}
			return fetch(ctx, from, d)
		}
		dev.Heard = true
		res := resolve(t, cfg, lock, prod, dev)
		if res.Clusters["dev"] != nil || len(res.Clusters["prod"].Selected) != 1 {
			t.Fatalf("%s: %+v", tt.name, res.Clusters)
		}
		for _, r := range []*Result{whole, res} {
			if got := r.Clusters["prod"].Selected[0].Pin.Digest; got != tt.want {
				t.Errorf("%s: prod gets %s, want %s", tt.name, got, tt.want)
			}
		}
	}
}

// A tag does not move if that breaks a cluster that works with the lock's digest. Nor does it go
// back if an interrupted run moved it: clusters may have the new digest.
func TestMoveFails(t *testing.T) {
	t.Parallel()
	const repository = "reg.io/a"
	for _, tt := range []struct {
		name string
		// refuse fails verification or fetching; what is the digest's name.
		refuse func(cluster, what string) error
		named  bool // dev names the new digest
		hinted bool
		late   bool   // the tag cannot be looked up
		manual bool   // dev waits for approval
		want   string // prod, dev and lock
		text   string
	}{
		{name: "the content is nowhere", refuse: func(_, what string) error { return errorIf(what == "new", "404 Not Found") }, want: "old old old", text: "since NEW fails in cluster dev: 404 Not Found"},
		{name: "the signature is not accepted in one", refuse: func(cluster, what string) error { return errorIf(cluster == "prod" && what == "new", "no signature") }, want: "old old old", text: "since NEW fails in cluster prod: no signature"},
		{name: "nor is that of what the other names", refuse: func(cluster, what string) error { return errorIf(cluster == "prod" && what == "new", "no signature") }, named: true, want: "old error old", text: "fails in cluster prod: no signature"},
		{name: "one works with neither", refuse: func(cluster, _ string) error { return errorIf(cluster == "prod", "401 Unauthorized") }, want: "error new new", text: "401 Unauthorized"},
		{name: "one works with neither, and the other names it", refuse: func(cluster, _ string) error { return errorIf(cluster == "prod", "401 Unauthorized") }, named: true, want: "error new new", text: "401 Unauthorized"},
		{name: "none works", refuse: func(string, string) error { return errors.New("no route") }, want: "error error old", text: "no route"},
		{name: "it was moved before", refuse: func(_, what string) error { return errorIf(what == "new", "404 Not Found") }, hinted: true, want: "error error old", text: "404 Not Found"},
		{name: "it was moved before, and cannot be looked up", refuse: func(string, string) error { return nil }, hinted: true, late: true, want: "error error old",
			text: "reg.io/a:v1 was moved to NEW by a run that was interrupted, and the registry cannot confirm that: 503 Service Unavailable"},
		{name: "it was not moved before, and cannot be looked up", refuse: func(string, string) error { return nil }, late: true, want: "old old old"},
		{name: "it was moved before, and waits now", refuse: func(string, string) error { return nil }, hinted: true, late: true, manual: true, want: "old old old"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := new(shelf)
			names := map[sources.Digest]string{s.put(repository+":v1", "old"): "old"}
			lock := resolve(t, s.config(), new(lockfile.File), request("prod", repository+":v1"), request("dev", repository+":v1")).Lock
			s.packages[repository+":before"] = s.packages[repository+":v1"]
			now := s.put(repository+":v1", "new")
			names[now] = "new"
			var requests []Request
			for _, cluster := range []string{"prod", "dev"} {
				r := request(cluster, repository+":v1")
				d := &r.Declarations[0]
				d.PullSecrets, d.PullPolicy = []string{cluster}, sources.PullAlways
				if tt.named && cluster == "dev" {
					d.Ref.Digest = now
				}
				requests = append(requests, r)
			}
			hint := new(lockfile.File)
			if tt.hinted {
				hint = lockfile.Added(lock, resolve(t, s.config(), lock, requests...).Lock)
			}
			cfg := s.config()
			fetch := cfg.Fetch
			cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
				if err := tt.refuse(from.PullSecrets, names[d]); err != nil {
					return nil, err
				}
				return fetch(ctx, from, d)
			}
			if tt.late {
				cfg.Digest = func(context.Context, sources.Origin, string) (sources.Digest, error) {
					return "", errors.New("503 Service Unavailable")
				}
			}
			requests[1].Declarations[0].ManualActivation = tt.manual
			for range 10 {
				slices.Reverse(requests)
				res := resolveHinted(t, cfg, lock, hint, requests...)
				var have, said []string
				for _, cluster := range []string{"prod", "dev"} {
					if c := res.Clusters[cluster]; len(c.Errors) > 0 {
						have, said = append(have, "error"), append(said, c.Errors[0].Error())
					} else {
						have = append(have, names[c.Selected[0].Pin.Digest])
					}
				}
				locked, _ := res.Lock.Digest(repository, "v1")
				if have := strings.Join(append(have, names[locked]), " "); have != tt.want {
					t.Fatalf("prod, dev and the lock have %s, want %s; %v", have, tt.want, faults(res))
				}
				if want := res.Lock.Records(repository, "v1")[lockfile.ItemContent]; want != string(sources.DigestOf([]byte(names[locked]))) {
					t.Errorf("the lock has other records than those of %s", names[locked])
				}
				for _, w := range res.Waiting {
					said = append(said, w.String())
				}
				for _, e := range res.Unmoved {
					said = append(said, e.Error())
				}
				if all := strings.ReplaceAll(strings.Join(said, "\n"), string(now), "NEW"); !strings.Contains(all, tt.text) || tt.text == "" && all != "" {
					t.Fatalf("it says %q, want %q", all, tt.text)
				}
				if was, _ := res.Unsettled.Digest(repository, "v1"); tt.hinted && !tt.manual && was != now {
					t.Fatal("what the interrupted run had is forgotten")
				}
			}
		})
	}
}

func errorIf(fails bool, text string) error {
	if fails {
		return errors.New(text)
	}
	return nil
}

// A tag that the lock selects and has lost the digest of is looked up for a person only, unless a declaration names a digest.
func TestLostRecords(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	old := s.put("reg.io/a:v1", "a")
	s.put("reg.io/p:v1", "p", "reg.io/a >=v0.0.1")
	lock := resolve(t, s.config(), new(lockfile.File), request("prod", "reg.io/p:v1"), request("dev", "reg.io/a:v1")).Lock
	lock.Forget("reg.io/a", "v1")
	named := request("prod", "reg.io/a:v1")
	named.Declarations[0].Ref.Digest = old
	for _, tt := range []struct {
		name     string
		requests []Request
		approve  bool
		lost     bool
	}{
		{name: "declared", requests: []Request{request("dev", "reg.io/a:v1")}, lost: true},
		{name: "a dependency", requests: []Request{request("prod", "reg.io/p:v1")}, lost: true},
		{name: "new in a cluster", requests: []Request{request("other", "reg.io/a:v1")}, lost: true},
		{name: "for a person", requests: []Request{request("dev", "reg.io/a:v1")}, approve: true},
		{name: "named", requests: []Request{request("dev", "reg.io/a:v1"), named}},
	} {
		cfg := s.config()
		cfg.Approve = tt.approve
		res := resolve(t, cfg, lock, tt.requests...)
		_, recorded := res.Lock.Digest("reg.io/a", "v1")
		if err := faults(res); recorded == tt.lost || tt.lost != (err != nil) || tt.lost && !strings.Contains(err.Error(), "clusters.lock selects reg.io/a v1 for cluster dev and has no digest of it") {
			t.Errorf("%s: it is recorded: %v; %v", tt.name, recorded, err)
		}
	}
}
