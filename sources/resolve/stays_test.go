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

// A dependency that an unread cluster selects, too, is looked up if the lock has lost its digest: no declaration forbids that.
func TestUnreadDependency(t *testing.T) {
	t.Parallel()
	s := new(shelf)
	digest := s.put("reg.io/a:v1", "a")
	s.put("reg.io/p:v1", "p", "reg.io/a v1")
	lock := resolve(t, s.config(), new(lockfile.File), request("prod", "reg.io/p:v1"), request("dev", "reg.io/p:v1")).Lock
	lock.Forget("reg.io/a", "v1")
	res := resolve(t, s.config(), lock, Request{Cluster: "prod", Failed: true}, request("dev", "reg.io/p:v1"))
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
