package resolve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// shelf is a registry with packages by "repository:tag". It records every request.
type shelf struct {
	mu       sync.Mutex
	packages map[string]*sources.Package
	asked    []string
	down     bool
}

func (s *shelf) ask(what string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, what)
	if s.down {
		return errors.New("connection refused")
	}
	return nil
}

// put publishes a package; equal contents have equal digests.
func (s *shelf) put(ref, content string, deps ...string) sources.Digest {
	r, err := sources.ParseRef(ref)
	if err != nil {
		panic(err)
	}
	pkg := &sources.Package{Repository: r.Repository, Digest: sources.DigestOf([]byte(ref + content)), Content: sources.DigestOf([]byte(content))}
	pkg.Meta = sources.PackageMeta{Kind: sources.Configuration, Name: "x"}
	for _, d := range deps {
		repo, constraint, _ := strings.Cut(d, " ")
		pkg.Meta.DependsOn = append(pkg.Meta.DependsOn, sources.Dependency{Repository: repo, Constraint: constraint})
	}
	if s.packages == nil {
		s.packages = make(map[string]*sources.Package)
	}
	s.packages[ref] = pkg
	return pkg.Digest
}

func (s *shelf) config() Config {
	return Config{
		Digest: func(_ context.Context, from sources.Origin, tag string) (sources.Digest, error) {
			ref := sources.Ref{Repository: from.Repository, Tag: tag}
			if err := s.ask("HEAD " + ref.String()); err != nil {
				return "", err
			}
			if pkg := s.packages[ref.String()]; pkg != nil {
				return pkg.Digest, nil
			}
			return "", fmt.Errorf("%s: not found", ref)
		},
		Fetch: func(_ context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			repo := from.Repository
			if err := s.ask("GET " + repo); err != nil {
				return nil, err
			}
			for _, pkg := range s.packages {
				if pkg.Repository == repo && pkg.Digest == d {
					return pkg, nil
				}
			}
			return nil, fmt.Errorf("%s@%s: %w", repo, d, sources.ErrNotFound)
		},
		Tags: func(_ context.Context, from sources.Origin) ([]string, error) {
			repo := from.Repository
			if err := s.ask("TAGS " + repo); err != nil {
				return nil, err
			}
			var tags []string
			for ref := range s.packages {
				if tag, ok := strings.CutPrefix(ref, repo+":"); ok {
					tags = append(tags, tag)
				}
			}
			return tags, nil
		},
	}
}

func declare(refs ...string) []sources.Declaration {
	var ds []sources.Declaration
	for _, ref := range refs {
		r, err := sources.ParseRef(ref)
		if err != nil {
			panic(err)
		}
		ds = append(ds, sources.Declaration{Kind: sources.Configuration, Name: r.Repository[strings.LastIndexByte(r.Repository, '/')+1:], Ref: r})
	}
	return ds
}

// request declares packages in a cluster.
func request(cluster string, refs ...string) Request {
	return Request{Cluster: cluster, Declarations: declare(refs...)}
}

func parseLock(t *testing.T, text string) *lockfile.File {
	t.Helper()
	f, err := lockfile.Parse("clusters.lock", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func resolve(t *testing.T, cfg Config, lock *lockfile.File, requests ...Request) *Result {
	t.Helper()
	return resolveHinted(t, cfg, lock, nil, requests...)
}

func selected(res *Result, cluster string) string {
	var names []string
	for _, s := range res.Clusters[cluster].Selected {
		names = append(names, strings.TrimPrefix(s.Pin.Ref.String(), "reg.io/"))
	}
	return strings.Join(names, " ")
}

// faults joins the errors of all clusters.
func faults(res *Result) error {
	var errs []error
	for _, name := range sortedKeys(res.Clusters) {
		for _, e := range res.Clusters[name].Errors {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}
