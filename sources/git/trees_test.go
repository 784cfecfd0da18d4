package git

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/gitserver"
)

// other is a server with a repository that is not the fleet's, and a commit in it
// that is not the newest.
func other(t *testing.T, cfg gitserver.Config) (s *gitserver.Server, repo *gitserver.Repo, of sources.Tree) {
	t.Helper()
	s = gitserver.Start(t, cfg)
	repo, err := s.Create(t.Context(), "bases")
	if err != nil {
		t.Fatal(err)
	}
	first, err := repo.Commit(t.Context(), "main", "first", map[string]string{"x/kustomization.yaml": "resources: []\n", "y": "1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Commit(t.Context(), "main", "second", map[string]string{"y": "2"}); err != nil {
		t.Fatal(err)
	}
	return s, repo, sources.Tree{Repository: s.URL("bases"), Commit: first}
}

func openTrees(t *testing.T, dir string) *Trees {
	t.Helper()
	trees, err := NewTrees(TreesConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return trees
}

func wantContent(t *testing.T, files fs.FS, name, want string) {
	t.Helper()
	have, err := fs.ReadFile(files, name)
	if err != nil || string(have) != want {
		t.Errorf("%s: have %q, %v, want %q", name, have, err, want)
	}
}

// A commit is fetched once, whoever asks how often; then no server is needed.
func TestTreesAreFetchedOnce(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]gitserver.Config{"protocol 2": {}, "TLS": {TLS: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, of := other(t, cfg)
			dir := t.TempDir()
			trees, err := NewTrees(TreesConfig{Dir: dir, CAFile: s.CAFile})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					files, err := trees.Fetch(t.Context(), of)
					if err != nil {
						t.Error(err)
						return
					}
					wantContent(t, files, "y", "1")
				})
			}
			wg.Wait()
			if have := s.Requests(); len(have) != 4 {
				t.Errorf("have %q, want a greeting, the commit, the refs and their history", have)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := openTrees(t, dir).Fetch(t.Context(), of)
			if err != nil {
				t.Fatal(err)
			}
			wantContent(t, files, "x/kustomization.yaml", "resources: []\n")
			if left, _ := filepath.Glob(filepath.Join(dir, partial+"*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// Two processes may fetch the same at the same time.
func TestTreesShareTheirCache(t *testing.T) {
	t.Parallel()
	_, _, of := other(t, gitserver.Config{})
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 4 {
		trees := openTrees(t, dir)
		wg.Go(func() {
			files, err := trees.Fetch(t.Context(), of)
			if err != nil {
				t.Error(err)
				return
			}
			wantContent(t, files, "y", "1")
		})
	}
	wg.Wait()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("have %v, %v", entries, err)
	}
}

// A damaged cache returns the right content or an error, and the next fetch repairs it.
func TestTreesMendTheirCache(t *testing.T) {
	t.Parallel()
	_, _, of := other(t, gitserver.Config{})
	for name, harm := range map[string]func(t *testing.T, dir string){
		"cut": func(t *testing.T, dir string) {
			packs, _ := filepath.Glob(filepath.Join(dir, "*", "*.pack"))
			if len(packs) != 1 || os.Truncate(packs[0], 40) != nil {
				t.Fatal(packs)
			}
		},
		"no commit": func(t *testing.T, dir string) {
			tips, _ := filepath.Glob(filepath.Join(dir, "*", "tips"))
			if len(tips) != 1 || os.WriteFile(tips[0], nil, 0o600) != nil {
				t.Fatal(tips)
			}
		},
		"gone": func(t *testing.T, dir string) {
			entries, err := os.ReadDir(dir)
			if err != nil || os.RemoveAll(filepath.Join(dir, entries[0].Name())) != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if _, err := openTrees(t, dir).Fetch(t.Context(), of); err != nil {
				t.Fatal(err)
			}
			harm(t, dir)
			files, err := openTrees(t, dir).Fetch(t.Context(), of)
			if err != nil {
				t.Fatal(err)
			}
			wantContent(t, files, "y", "1")
		})
	}
}

// The cache directory may be deleted while it is in use.
func TestTreesDeletedCache(t *testing.T) {
	t.Parallel()
	_, repo, of := other(t, gitserver.Config{})
	dir := filepath.Join(t.TempDir(), "git", "bases")
	trees := openTrees(t, dir)
	second := of
	var err error
	if second.Commit, err = repo.Git(t.Context(), "rev-parse", "main"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		of   sources.Tree
		want string
	}{{of, "1"}, {second, "2"}, {of, "1"}} {
		files, err := trees.Fetch(t.Context(), test.of)
		if err != nil {
			t.Fatal(err)
		}
		wantContent(t, files, "y", test.want)
		if err := os.RemoveAll(filepath.Dir(dir)); err != nil {
			t.Fatal(err)
		}
	}
}

// Errors say what to do. Servers that ask for credentials get none.
func TestTreesFaults(t *testing.T) {
	t.Parallel()
	s, repo, of := other(t, gitserver.Config{})
	private, _, secret := other(t, gitserver.Config{Username: "robot", Password: "s3cret"})
	if _, err := repo.Git(t.Context(), "-c", "user.name=x", "-c", "user.email=x@localhost", "tag", "-a", "-m", "x", "v1", of.Commit); err != nil {
		t.Fatal(err)
	}
	tag, err := repo.Git(t.Context(), "rev-parse", "v1")
	if err != nil {
		t.Fatal(err)
	}
	unknown := strings.Repeat("1", 40)
	for _, tt := range []struct {
		of   sources.Tree
		is   error
		want string
	}{
		{sources.Tree{Repository: of.Repository, Commit: unknown}, nil, "git repository " + of.Repository + ": commit " + unknown + ": the server does not have that commit"},
		{sources.Tree{Repository: of.Repository, Commit: tag}, nil, "is a tag, not a commit"},
		{sources.Tree{Repository: s.URL("none"), Commit: unknown}, ErrRepositoryNotFound, "it is private, or not there; remote bases are fetched without credentials"},
		{secret, ErrAuthentication, "it is private, or not there; remote bases are fetched without credentials"},
		{sources.Tree{Repository: s.SSHURL("bases"), Commit: of.Commit}, nil, "only HTTP and HTTPS need no credentials"},
		{sources.Tree{Repository: repo.Dir, Commit: of.Commit}, nil, "only HTTP and HTTPS need no credentials"},
	} {
		trees := openTrees(t, t.TempDir())
		_, err := trees.Fetch(t.Context(), tt.of)
		if err == nil || !strings.Contains(err.Error(), tt.want) || tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%v: have %v\nwant an error with %q", tt.of, err, tt.want)
		}
		// It stands for a while, so that a fleet of clusters asks once.
		longer(t, trees, tt.of)
		before := len(s.Requests()) + len(private.Requests())
		if _, again := trees.Fetch(t.Context(), tt.of); again == nil || again.Error() != err.Error() {
			t.Errorf("%v: have %v the second time", tt.of, again)
		}
		if after := len(s.Requests()) + len(private.Requests()); after > 0 {
			t.Errorf("%v: %d requests, then %d more", tt.of, before, after)
		}
	}
}

// Fetch waits for a server until the context ends. Right after that, others do not wait for
// the same server, unless the context was canceled.
func TestTreesWait(t *testing.T) {
	t.Parallel()
	s, _, of := other(t, gitserver.Config{})
	s.Fail(gitserver.Fault{Service: "git-upload-pack", Hang: true})
	trees := openTrees(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := trees.Fetch(ctx, of); !errors.Is(err, context.Canceled) {
		t.Errorf("have %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := trees.Fetch(ctx, of)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "took too long") {
		t.Errorf("have %v", err)
	}
	longer(t, trees, of)
	if _, again := trees.Fetch(t.Context(), of); again == nil || again.Error() != err.Error() {
		t.Errorf("have %v", again)
	}
	s.Heal()
	trees.get(of).again = time.Time{}
	if _, err := trees.Fetch(t.Context(), of); err != nil {
		t.Error(err)
	}
}

// longer makes the pause after a failure longer than any test.
func longer(t *testing.T, trees *Trees, of sources.Tree) {
	t.Helper()
	it := trees.get(of)
	if it.again.IsZero() {
		t.Errorf("%v: is asked for again at once", of)
	}
	it.again = time.Now().Add(time.Hour)
}

// Of many commits the ones used last stay open, and what was handed out stays
// readable.
func TestTreesForget(t *testing.T) {
	t.Parallel()
	_, _, of := other(t, gitserver.Config{})
	trees := openTrees(t, t.TempDir())
	files, err := trees.Fetch(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 * maxOpen {
		trees.get(sources.Tree{Repository: of.Repository, Commit: strings.Repeat("0", i)})
	}
	if len(trees.trees) > maxOpen || trees.trees[of] != nil {
		t.Errorf("%d are open", len(trees.trees))
	}
	wantContent(t, files, "y", "1")
}

// Commits that were not used for long are removed.
func TestTreesClean(t *testing.T) {
	t.Parallel()
	_, _, of := other(t, gitserver.Config{})
	dir := t.TempDir()
	for name, age := range map[string]time.Duration{"old": keepUnused + time.Hour, "used": time.Hour, partial + "dead": 2 * time.Hour, partial + "alive": time.Minute} {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(sub, then, then); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := openTrees(t, dir).Fetch(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old": false, "used": true, partial + "dead": false, partial + "alive": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A commit belongs to a repository if a branch or tag leads to it. The server has
// others, and hands them out: a forge keeps forks' in the same place.
func TestTreesBelong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, filter string
		v0           bool
	}{{"with a filter", "true", false}, {"without", "false", false}, {"protocol 0", "true", true}, {"protocol 0, without", "false", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, repo, old := other(t, gitserver.Config{OnlyProtocolV0: tt.v0})
			git := func(args ...string) string {
				t.Helper()
				out, err := repo.Git(t.Context(), append([]string{"-c", "user.name=x", "-c", "user.email=x@localhost"}, args...)...)
				if err != nil {
					t.Fatal(err)
				}
				return out
			}
			git("config", "uploadpack.allowFilter", tt.filter)
			git("config", "uploadpack.allowAnySHA1InWant", "true") // as forges have it
			tip := git("rev-parse", "main")
			foreign := git("commit-tree", "-m", "of a fork", "-p", "main", "main^{tree}")
			git("update-ref", "refs/pull/1/head", foreign)
			tagged := git("commit-tree", "-m", "released", "main^{tree}")
			git("tag", "-a", "-m", "x", "v1", tagged)
			light := git("commit-tree", "-m", "released, too", "main^{tree}")
			git("tag", "v2", light)
			git("tag", "tree", "main^{tree}") // which has no history

			dir := t.TempDir()
			trees := openTrees(t, dir)
			for what, commit := range map[string]string{"a tip": tip, "an annotated tag's": tagged, "a tag's": light} {
				s.Requests()
				if _, err := trees.Fetch(t.Context(), sources.Tree{Repository: old.Repository, Commit: commit}); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if have := s.Requests(); len(have) != 3 && !tt.v0 {
					t.Errorf("%s: have %q, want a greeting, the commit and the refs", what, have)
				}
			}
			if _, err := trees.Fetch(t.Context(), old); err != nil {
				t.Errorf("what comes before a tip: %v", err)
			}
			of := sources.Tree{Repository: old.Repository, Commit: foreign}
			for range 2 { // nor is it in the cache for the next process
				if _, err := openTrees(t, dir).Fetch(t.Context(), of); !errors.Is(err, errForeign) || !strings.Contains(err.Error(), foreign) {
					t.Errorf("a fork's: %v", err)
				}
			}
		})
	}
}

// A redirect leads no further than the operator allows.
func TestTreesRedirect(t *testing.T) {
	t.Parallel()
	s, _, of := other(t, gitserver.Config{})
	backend, err := url.Parse(strings.TrimSuffix(s.URL("bases"), "/bases.git"))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(backend)
	forge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.Path, "/renamed"); ok {
			http.Redirect(w, r, "/bases.git"+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		r.Host = backend.Host
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(forge.Close)
	moved := sources.Tree{Repository: forge.URL + "/renamed", Commit: of.Commit}
	var asked []string
	no := errors.New("not allowed")
	trees, err := NewTrees(TreesConfig{Dir: t.TempDir(), Allowed: func(repository string) error {
		asked = append(asked, repository)
		return no
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trees.Fetch(t.Context(), moved); !errors.Is(err, no) {
		t.Errorf("a redirect that is not allowed: %v", err)
	}
	if len(asked) != 1 || !strings.HasPrefix(asked[0], forge.URL+"/bases") || strings.Contains(asked[0], "info/refs") {
		t.Errorf("asked about %q", asked)
	}
	if have := s.Requests(); len(have) > 0 {
		t.Errorf("it was followed: %q", have)
	}
	if _, err := openTrees(t, t.TempDir()).Fetch(t.Context(), moved); err == nil || !strings.Contains(err.Error(), "the server redirects to") {
		t.Errorf("nothing is allowed: %v", err)
	}
	trees, err = NewTrees(TreesConfig{Dir: t.TempDir(), Allowed: func(string) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trees.Fetch(t.Context(), moved); err != nil {
		t.Errorf("a redirect that is allowed: %v", err)
	}
}
