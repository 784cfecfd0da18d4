package gitserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// git runs a user's git in dir.
func git(t *testing.T, dir string, env []string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, append(Env(dir), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

func start(t *testing.T, cfg Config) (*Server, *Repo) {
	t.Helper()
	cfg.Root = t.TempDir()
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	repo, err := s.Create(t.Context(), "team/fleet")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := repo.Commit(t.Context(), "main", "First", map[string]string{"a": "1", "dir/b": "2"}); err != nil {
		t.Fatal(err)
	}
	return s, repo
}

// Git itself clones, pushes and is refused, as with any server.
func TestServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		cfg  Config
		url  func(s *Server) string
		env  func(s *Server) []string
	}{
		{name: "http", url: func(s *Server) string { return s.URL("team/fleet") }},
		{
			name: "https", cfg: Config{TLS: true, Username: "u", Password: "p"},
			url: func(s *Server) string { return strings.Replace(s.URL("team/fleet"), "://", "://u:p@", 1) },
			env: func(s *Server) []string { return []string{"GIT_SSL_CAINFO=" + s.CAFile} },
		},
		{
			name: "ssh", url: func(s *Server) string { return s.SSHURL("team/fleet") },
			env: func(s *Server) []string {
				return []string{"GIT_SSH_COMMAND=ssh -F none -o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile=" + s.KnownHostsFile + " -i " + s.SSHKeyFile}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath("ssh"); tt.name == "ssh" && err != nil {
				t.Fatal("ssh is not installed; `make test` installs it")
			}
			s, repo := start(t, tt.cfg)
			var env []string
			if tt.env != nil {
				env = tt.env(s)
			}
			dir := t.TempDir()
			must := func(args ...string) {
				t.Helper()
				if _, err := git(t, dir, env, args...); err != nil {
					t.Fatal(err)
				}
			}
			must("clone", "--quiet", tt.url(s), "tree")
			dir = filepath.Join(dir, "tree")
			if content, err := os.ReadFile(filepath.Join(dir, "dir", "b")); err != nil || string(content) != "2" {
				t.Errorf("%q, %v", content, err)
			}
			// Large enough that git sends it in chunks.
			if err := os.WriteFile(filepath.Join(dir, "large"), []byte(strings.Repeat("x", 3<<20)), 0o644); err != nil {
				t.Fatal(err)
			}
			must("add", "large")
			must("-c", "core.compression=0", "commit", "--quiet", "-m", "Second")
			must("push", "--quiet", "origin", "main")
			if log, err := repo.Log(t.Context(), "main"); err != nil || !slices.Equal(log, []string{"Second", "First"}) {
				t.Errorf("%v, %v", log, err)
			}

			if err := repo.Hook("pre-receive", "#!/bin/sh\necho 'not today' >&2; exit 1\n"); err != nil {
				t.Fatal(err)
			}
			must("commit", "--quiet", "--allow-empty", "-m", "Third")
			if _, err := git(t, dir, env, "push", "origin", "main"); err == nil || !strings.Contains(err.Error(), "not today") {
				t.Errorf("a push that a hook refuses: %v", err)
			}
			if err := repo.Hook("pre-receive", ""); err != nil {
				t.Fatal(err)
			}
			s.RejectPushes(repo, "main", 1)
			if _, err := git(t, dir, env, "push", "origin", "main"); err == nil {
				t.Error("a push that loses a race succeeds")
			}
			must("pull", "--quiet", "--rebase")
			must("push", "--quiet", "origin", "main")
			if log, err := repo.Log(t.Context(), "main"); err != nil || !slices.Equal(log, []string{"Third", "Somebody else was faster", "Second", "First"}) {
				t.Errorf("%v, %v", log, err)
			}
			s.Requests()
			must("ls-remote", "--quiet", "origin")
			if have := s.Requests(); len(have) == 0 || !strings.Contains(have[0], "git-upload-pack") || !strings.Contains(have[0], "v2") {
				t.Errorf("requests %q", have)
			}
		})
	}
}

func TestCommit(t *testing.T) {
	t.Parallel()
	_, repo := start(t, Config{})
	if _, err := repo.Commit(t.Context(), "main", "Change one", map[string]string{"dir/b": "3"}); err != nil {
		t.Fatal(err)
	}
	hash, err := repo.Remove(t.Context(), "main", "Remove one", "a")
	if err != nil {
		t.Fatal(err)
	}
	if have, err := repo.Git(t.Context(), "rev-parse", "main"); err != nil || have != hash {
		t.Errorf("main is at %s, %v, want %s", have, err, hash)
	}
	if have, err := repo.Git(t.Context(), "ls-tree", "-r", "--name-only", "main"); err != nil || have != "dir/b" {
		t.Errorf("main holds %s, %v", have, err)
	}
	if have, err := repo.Git(t.Context(), "show", "main:dir/b"); err != nil || have != "3" {
		t.Errorf("dir/b is %s, %v", have, err)
	}
	if _, err := repo.Git(t.Context(), "fsck", "--strict"); err != nil {
		t.Error(err)
	}
	if log, err := repo.Log(t.Context(), "main"); err != nil || len(log) != 3 {
		t.Errorf("%v, %v", log, err)
	}
}

// Only repositories are served, and only to authenticated clients.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s, _ := start(t, Config{Username: "u", Password: "p"})
	base := strings.TrimSuffix(s.URL("team/fleet"), "/team/fleet.git")
	for path, want := range map[string]int{
		"/team/fleet.git/info/refs?service=git-upload-pack":                      http.StatusOK,
		"/nope.git/info/refs?service=git-upload-pack":                            http.StatusNotFound,
		"/team/info/refs?service=git-upload-pack":                                http.StatusNotFound,
		"/.gitserver/id_ed25519":                                                 http.StatusNotFound,
		"/team/..%2f.gitserver%2fid_ed25519":                                     http.StatusNotFound,
		"/team/fleet.git/../../.gitserver/info/refs?service=git-upload-pack":     http.StatusNotFound,
		"/team/fleet.git/..%2f..%2f.gitserver/info/refs?service=git-upload-pack": http.StatusNotFound,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without credentials: %s", path, res.Status)
		}
		req.SetBasicAuth("u", "p")
		if res, err = http.DefaultClient.Do(req); err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, res.Status, want)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	s, _ := start(t, Config{})
	lsRemote := func() error {
		_, err := git(t, t.TempDir(), nil, "ls-remote", s.URL("team/fleet"))
		return err
	}
	s.Fail(Fault{Status: 503, Discovery: true, Times: 2})
	for range 2 {
		if err := lsRemote(); err == nil || !strings.Contains(err.Error(), "503") {
			t.Errorf("%v, want a 503", err)
		}
	}
	if err := lsRemote(); err != nil {
		t.Errorf("after the faults: %v", err)
	}
	s.Fail(Fault{CutAfter: 10})
	for range 2 {
		if err := lsRemote(); err == nil {
			t.Error("no error from half an answer")
		}
	}
	s.Fail(Fault{Before: func() error { return context.Canceled }})
	s.Heal()
	if err := lsRemote(); err != nil {
		t.Errorf("after the faults: %v", err)
	}
}
