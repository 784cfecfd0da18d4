package git

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/testscripts/gitserver"
)

// Errors of a repository say what to do.
func TestPollErrors(t *testing.T) {
	t.Parallel()
	https := gitserver.Config{TLS: true, Username: "fleet", Password: "s3cr3t-token"}
	for _, tt := range []struct {
		name   string
		server gitserver.Config
		config func(f *fixture, c *Config)
		is     error
		want   []string
	}{
		{
			name: "no credentials", server: https, is: ErrAuthentication,
			config: func(f *fixture, c *Config) { c.CAFile = f.server.CAFile },
			want:   []string{"authentication failed (HTTP 401", "these credentials are not known here", "give a user name and a password or token that may read it"},
		},
		{
			name: "wrong password", server: https, is: ErrAuthentication,
			config: func(f *fixture, c *Config) {
				c.CAFile, c.Username, c.Password = f.server.CAFile, "fleet", "s3cr3t"
			},
			want: []string{"authentication failed (HTTP 401", "not accepted"},
		},
		{
			name: "wrong password in the URL", server: https, is: ErrAuthentication,
			config: func(f *fixture, c *Config) {
				c.CAFile = f.server.CAFile
				c.URL = strings.Replace(c.URL, "https://", "https://fleet:s3cr3t@", 1)
			},
			want: []string{"git repository https://127.0.0.1:", "/fleet.git: authentication failed"},
		},
		{
			name: "empty password file", server: https,
			config: func(f *fixture, c *Config) {
				c.CAFile, c.PasswordFile = f.server.CAFile, filepath.Join(f.TempDir(), "token")
				os.WriteFile(c.PasswordFile, []byte("\n"), 0o600)
			},
			want: []string{"password file", "is empty"},
		},
		{
			name: "unknown CA", server: https,
			want: []string{"certificate signed by unknown authority", "if this server is the right one, name a PEM file with its CA's certificate (--git-ca-file)"},
		},
		{
			name: "https for http", config: func(_ *fixture, c *Config) { c.URL = strings.Replace(c.URL, "http:", "https:", 1) },
			want: []string{"server gave HTTP response to HTTPS client"},
		},
		{
			name: "no such repository", config: func(_ *fixture, c *Config) { c.URL = strings.Replace(c.URL, "fleet", "flet", 1) },
			is: ErrRepositoryNotFound, want: []string{"flet.git: repository not found (HTTP 404", "check the URL"},
		},
		{
			name: "no such directory", config: func(f *fixture, c *Config) { c.URL = filepath.Join(f.TempDir(), "nope") },
			is: ErrRepositoryNotFound, want: []string{"nope: repository not found", "does not appear to be a git repository"},
		},
		{
			name: "a directory that is no repository", config: func(f *fixture, c *Config) { c.URL = f.TempDir() },
			is: ErrRepositoryNotFound, want: []string{"repository not found", "does not appear to be a git repository"},
		},
		{
			name: "nobody there", config: func(f *fixture, c *Config) { c.URL = "http://" + deadAddress(f.T) + "/fleet.git" },
			want: []string{"connection refused"},
		},
		{
			name: "server in trouble", config: func(f *fixture, _ *Config) {
				f.server.Fail(gitserver.Fault{Status: 503, Discovery: true})
			},
			want: []string{"the server answers HTTP 503 Service Unavailable: the server was told to fail"},
		},
		{
			name: "connection cut", config: func(f *fixture, _ *Config) {
				f.server.Fail(gitserver.Fault{CutAfter: 20, Discovery: true})
			},
			want: []string{"unexpected EOF"},
		},
		{
			name: "ssh, unknown host", is: ErrHostKey, config: func(f *fixture, c *Config) {
				c.URL, c.SSHKeyFile = f.server.SSHURL("fleet"), f.server.SSHKeyFile
				c.KnownHostsFile = filepath.Join(f.TempDir(), "known_hosts")
				os.WriteFile(c.KnownHostsFile, nil, 0o600)
			},
			want: []string{"host key not accepted", "host key ssh-ed25519 SHA256:", "is not in", "compare it with what the forge publishes and add it there"},
		},
		{
			name: "ssh, another host key", is: ErrHostKey, config: func(f *fixture, c *Config) {
				c.URL, c.SSHKeyFile = f.server.SSHURL("fleet"), f.server.SSHKeyFile
				other := gitserver.Start(f, gitserver.Config{})
				line, _ := os.ReadFile(other.KnownHostsFile)
				mine, _ := os.ReadFile(f.server.KnownHostsFile)
				host, _, _ := strings.Cut(string(mine), " ")
				_, key, _ := strings.Cut(string(line), " ")
				c.KnownHostsFile = filepath.Join(f.TempDir(), "known_hosts")
				os.WriteFile(c.KnownHostsFile, []byte(host+" "+key), 0o600)
			},
			want: []string{"host key not accepted", "another one", "somebody may be in between"},
		},
		{
			name: "ssh, unknown key", is: ErrAuthentication, config: func(f *fixture, c *Config) {
				other := gitserver.Start(f, gitserver.Config{})
				c.URL, c.SSHKeyFile, c.KnownHostsFile = f.server.SSHURL("fleet"), other.SSHKeyFile, f.server.KnownHostsFile
			},
			want: []string{"authentication failed", "does not let in git with the key", "SHA256:"},
		},
		{
			name: "ssh, no such repository", is: ErrRepositoryNotFound, config: func(f *fixture, c *Config) {
				c.URL, c.SSHKeyFile, c.KnownHostsFile = f.server.SSHURL("flet"), f.server.SSHKeyFile, f.server.KnownHostsFile
			},
			want: []string{"repository not found", "ERROR: Repository not found."},
		},
		{
			name: "ssh, connection cut", config: func(f *fixture, c *Config) {
				c.URL, c.SSHKeyFile, c.KnownHostsFile = f.server.SSHURL("fleet"), f.server.SSHKeyFile, f.server.KnownHostsFile
				f.server.Fail(gitserver.Fault{CutAfter: 20})
			},
			want: []string{"the server ended the conversation"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, way{server: tt.server, config: func(s *gitserver.Server, _ *gitserver.Repo, name string) Config {
				return Config{URL: s.URL(name)}
			}})
			f.commit("A fleet", fleet)
			if tt.config != nil {
				tt.config(f, &f.cfg)
			}
			r := f.open()
			_, _, err := r.Poll(t.Context(), "")
			wantError(t, err, append(tt.want, "git repository "+r.Describe()+": ")...)
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("%v is not %v", err, tt.is)
			}
			if strings.Contains(r.Describe(), "s3cr3t") {
				t.Errorf("Describe: %s", r.Describe())
			}
		})
	}
}

// The CA file may be replaced at any time.
func TestRotatedCA(t *testing.T) {
	t.Parallel()
	f := newFixture(t, way{server: gitserver.Config{TLS: true}, config: overHTTP})
	f.commit("A fleet", fleet)
	right, err := os.ReadFile(f.cfg.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := os.ReadFile(gitserver.Start(t, gitserver.Config{TLS: true}).CAFile)
	if err != nil {
		t.Fatal(err)
	}
	f.cfg.CAFile = filepath.Join(t.TempDir(), "ca.crt")
	replace := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(f.cfg.CAFile, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace(wrong)
	r := f.open()
	_, _, err = r.Poll(t.Context(), "")
	wantError(t, err, "certificate signed by unknown authority", "): if this server")
	replace(right)
	last := f.poll(r, "").Hash
	replace(nil)
	f.commit("Another", map[string]string{"n": "1"})
	f.poll(r, last)
	replace(wrong)
	_, _, err = r.Poll(t.Context(), last)
	wantError(t, err, "certificate signed by unknown authority")
	replace(nil)
	_, _, err = r.Poll(t.Context(), last)
	wantError(t, err, "the file with authorities has changed, and cannot be used: "+f.cfg.CAFile+" holds no PEM certificate: if this server")
}

// Open checks the configuration without connecting.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{cfg: Config{}, want: "the URL is empty"},
		{cfg: Config{URL: "git://example.com/x"}, want: "git is not supported; use https or ssh"},
		{cfg: Config{URL: "https:///x"}, want: "names no host"},
		{cfg: Config{URL: "https://user:s3cr3t@host:port/x"}, want: "the URL https://… does not parse"},
		{cfg: Config{URL: "git://user:s3cr3t@host/x"}, want: "git repository git://…@host/x: git is not supported"},
		{cfg: Config{URL: "user:s3cr3t@host:x.git"}, want: "git repository …@host:x.git: an address with user@host:path takes no password"},
		{cfg: Config{URL: "file://host/x"}, want: "a file URL names no host"},
		{cfg: Config{URL: "https://example.com/x", Branch: "a b"}, want: `"a b" is not the name of a branch`},
		{cfg: Config{URL: "https://example.com/x"}, want: "it needs a directory for its cache"},
		{cfg: Config{URL: "https://example.com/x", Dir: dir, CAFile: file}, want: "holds no PEM certificate"},
		{cfg: Config{URL: "https://example.com/x", Dir: dir, Name: "a\nb"}, want: "cannot be the identity of a commit"},
		{cfg: Config{URL: "git@example.com:x", Dir: dir}, want: "ssh needs a private key: name the file of a deploy key with --ssh-key"},
		{cfg: Config{URL: "git@example.com:x", Dir: dir, SSHKeyFile: file}, want: "name it with --ssh-known-hosts"},
	} {
		if tt.cfg.Branch == "" {
			tt.cfg.Branch = "main"
		}
		r, err := Open(tt.cfg)
		if err == nil {
			r.Close()
		}
		wantError(t, err, tt.want)
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://example.com/a/b.git": "", "https://example.com:8443/@scope/x": "", "/srv/a@b": "", "git@example.com:org/repo.git": "", "example.com:80": "", "./a:b": "",
		"https://u:s3cr3t@example.com/x":     "https://…@example.com/x",
		"https://s3cr3t@example.com/x":       "https://…@example.com/x",
		"https://u:s3c/r3t@example.com/x":    "https://…@example.com/x",
		"http://u:s3@cr3t@example.com:80":    "http://…@example.com:80",
		"u:s3cr3t@example.com:x.git":         "…@example.com:x.git",
		"u:s3c/r3t@example.com:80":           "…@example.com:80",
		"registry=http://u:s3cr3t@mirror:80": "registry=http://…@mirror:80",
		"https://u:s3cr3t@host:port/x":       "https://…@host:port/x",
	} {
		if have := Shown(in); have != want && (want != "" || have != in) {
			t.Errorf("%s is shown as %s, want %s", in, have, want)
		}
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, describe, url, username, password string }{
		{in: "https://example.com/a/b.git", describe: "https://example.com/a/b.git", url: "https://example.com/a/b.git"},
		{in: "https://u:p@example.com:8443/b?x#y", describe: "https://example.com:8443/b", url: "https://example.com:8443/b", username: "u", password: "p"},
		{in: "http://token@example.com/b", describe: "http://example.com/b", url: "http://example.com/b", username: "token"},
		{in: "ssh://git:pw@example.com:22/b", describe: "ssh://git@example.com:22/b", url: "ssh://git@example.com:22/b"},
		{in: "git@example.com:org/repo.git", describe: "git@example.com:org/repo.git", url: "ssh:org/repo.git"},
		{in: "example.com:/srv/repo", describe: "example.com:/srv/repo", url: "ssh://example.com/srv/repo"},
		{in: "git+ssh://example.com/~me/x", describe: "ssh://example.com/~me/x", url: "ssh://example.com/~me/x"},
	} {
		loc, err := parseURL(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		if loc.describe != tt.describe || loc.url.String() != tt.url || loc.username != tt.username || loc.password != tt.password {
			t.Errorf("%s: %+v with URL %s", tt.in, loc, loc.url)
		}
	}
	for _, dir := range []string{".", "/srv/x", "x", "file:///srv/x"} {
		if loc, err := parseURL(dir); err != nil || !filepath.IsAbs(loc.dir) {
			t.Errorf("%s: %+v, %v", dir, loc, err)
		}
	}
}

// A token that is replaced while the daemon runs.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	f := newFixture(t, way{server: gitserver.Config{Username: "git", Password: "s3cr3t-1"}, config: overHTTP})
	first := f.commit("A fleet", fleet)
	f.cfg.PasswordFile = filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(f.cfg.PasswordFile, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("s3cr3t-1")
	r := f.open()
	f.poll(r, "")
	f.server.SetPassword("s3cr3t-2")
	if _, _, err := r.Poll(t.Context(), first); !errors.Is(err, ErrAuthentication) {
		t.Errorf("error %v, want ErrAuthentication", err)
	}
	write("s3cr3t-2")
	if _, changed, err := r.Poll(t.Context(), first); changed || err != nil {
		t.Error(changed, err)
	}
}

// A token that is made for a request. Without one there is no request.
func TestToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t, way{server: gitserver.Config{Username: "x-access-token", Password: "s3cr3t-1"}, config: overHTTP})
	first := f.commit("A fleet", fleet)
	var token string
	var none error
	f.cfg.Username, f.cfg.Password = "x-access-token", "other"
	f.cfg.Token = func(context.Context) (string, error) { return token, none }
	r := f.open()
	token = "s3cr3t-1"
	f.poll(r, "")
	f.server.SetPassword("s3cr3t-2")
	if _, _, err := r.Poll(t.Context(), first); !errors.Is(err, ErrAuthentication) {
		t.Errorf("error %v, want ErrAuthentication", err)
	}
	token = "s3cr3t-2"
	if _, changed, err := r.Poll(t.Context(), first); changed || err != nil {
		t.Error(changed, err)
	}
	none = errors.New("no token is given")
	f.server.Requests()
	if _, _, err := r.Poll(t.Context(), first); !errors.Is(err, none) {
		t.Errorf("without a token: %v", err)
	}
	if sent := f.server.Requests(); len(sent) > 0 {
		t.Errorf("without a token: %v", sent)
	}
}

// The error for a push that a hook refuses has the hook's text, and there is no other try.
func TestUpdateRefused(t *testing.T) {
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.commit("A fleet", fleet)
			err := f.repo.Hook("pre-receive", "#!/bin/sh\necho called >>calls\necho 'Changes go through a pull request.' >&2\necho >&2\nprintf '\\033[1mAsk\\033[0m platform\\n' >&2\nexit 1\n")
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock\n"))
			wantError(t, err, "the server refused the push to refs/heads/main: pre-receive hook declined\nChanges go through a pull request.\n[1mAsk[0m platform")
			var refused *RefusedError
			if !errors.As(err, &refused) || !refused.ByHook() {
				t.Errorf("%v is not a *RefusedError by a hook", err)
			}
			if calls, err := os.ReadFile(filepath.Join(f.repo.Dir, "calls")); err != nil || string(calls) != "called\n" {
				t.Errorf("the hook: %q, %v, want one call", calls, err)
			}
		})
	}
}

// A gc removes empty directories of objects while a push moves objects there. The
// hook makes a push fail as that does, with files where directories should be.
func TestUpdateBesideGC(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		err := f.repo.Hook("pre-receive", `#!/bin/sh
objects=$(git rev-parse --git-common-dir)/objects
if [ -e calls ]; then find "$objects" -maxdepth 1 -type f -delete; exit; fi
echo called >calls
for a in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do for b in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do
	[ -e "$objects/$a$b" ] || : >"$objects/$a$b"
done; done
`)
		if err != nil {
			t.Fatal(err)
		}
		if _, wrote, err := f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock\n")); err != nil || !wrote {
			t.Errorf("wrote %t, error %v", wrote, err)
		}
		if _, err := os.Stat(filepath.Join(f.repo.Dir, "calls")); err != nil {
			t.Error("the hook was not called:", err)
		}
	})
}

// A server that refuses a push before it has read all of it says why.
func TestUpdateTooLarge(t *testing.T) {
	everyWay(t, func(t *testing.T, f *fixture) {
		f.commit("A fleet", fleet)
		f.git("config", "receive.maxInputSize", "1000")
		large := make([]byte, 4<<20) // more than pipes hold
		rand.NewChaCha8([32]byte{}).Read(large)
		_, _, err := f.open().Update(t.Context(), sources.LockFile, "Lock", constant(string(large)))
		wantError(t, err, "refused the push to refs/heads/main: unpack")
	})
}

// Forges that take pushes to branches only.
func TestPendingFallback(t *testing.T) {
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.commit("A fleet", fleet)
			hook := "#!/bin/sh\ncase $1 in refs/heads/*) exit 0;; esac\necho \"$1 is no branch\" >&2\nexit 1\n"
			if err := f.repo.Hook("update", hook); err != nil {
				t.Fatal(err)
			}
			f.git("config", "receive.denyDeletes", "true")
			f.git("config", "receive.denyNonFastForwards", "true")
			r := f.open()
			for _, content := range []string{"one\n", "two\n"} {
				if err := r.WritePending(t.Context(), []byte(content)); err != nil {
					t.Fatal(err)
				}
				r := f.open() // another process finds it
				if have, err := r.ReadPending(t.Context()); err != nil || string(have) != content {
					t.Errorf("%q, %v, want %q", have, err, content)
				}
			}
			if err := r.ClearPending(t.Context()); err != nil {
				t.Fatal(err)
			}
			r = f.open()
			if have, err := r.ReadPending(t.Context()); err != nil || have != nil {
				t.Errorf("after the records are cleared: %q, %v", have, err)
			}
			if err := r.WritePending(t.Context(), []byte("three\n")); err != nil {
				t.Fatal(err)
			}
			if have := f.git("for-each-ref", "--format=%(refname)"); have != pendingBranchRef+"\nrefs/heads/main" {
				t.Errorf("refs:\n%s", have)
			}

			// By the setting, the other ref is not even tried.
			if err := os.Remove(filepath.Join(f.repo.Dir, "hooks", "update")); err != nil {
				t.Fatal(err)
			}
			f.cfg.PendingBranch = true
			r = f.open()
			if have, err := r.ReadPending(t.Context()); err != nil || string(have) != "three\n" {
				t.Errorf("%q, %v", have, err)
			}
			f.fsck()

			// Where nothing is taken, both refusals are shown.
			if err := f.repo.Hook("update", "#!/bin/sh\necho \"not $1\" >&2\nexit 1\n"); err != nil {
				t.Fatal(err)
			}
			f.git("config", "receive.denyDeletes", "false")
			f.git("update-ref", "-d", pendingBranchRef)
			f.cfg.PendingBranch = false
			err := f.open().WritePending(t.Context(), []byte("four\n"))
			wantError(t, err, "pending records: ", "not "+pendingRef, "not "+pendingBranchRef)
		})
	}
}

// A server that hangs holds nothing up for longer than the caller allows.
func TestHang(t *testing.T) {
	for _, w := range remoteWays() {
		for _, fault := range []gitserver.Fault{
			{Hang: true, Service: "git-upload-pack", Discovery: true},
			{Hang: true, Service: "git-upload-pack"},
			{Hang: true, Service: "git-receive-pack"},
		} {
			t.Run(w.name+" "+fault.Service, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, w)
				f.commit("A fleet", fleet)
				r := f.open()
				f.server.Fail(fault)
				cause := errors.New("the caller has had enough")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
				defer cancel()
				_, _, err := r.Update(ctx, sources.LockFile, "Lock", constant("lock\n"))
				if !errors.Is(err, cause) && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("error %v, want the caller's", err)
				}
				f.server.Heal()
				f.poll(r, "")
			})
		}
	}
}

// A connection that breaks after the server took the commit.
func TestUpdateAnswerLost(t *testing.T) {
	for _, w := range remoteWays() {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, w)
			f.commit("A fleet", fleet)
			r := f.open()
			lose := gitserver.Fault{Service: "git-receive-pack", LoseAnswer: true, Times: 1}
			f.server.Fail(lose)
			c, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("lock\n"))
			if err != nil || !wrote || c.Hash != f.git("rev-parse", "main") {
				t.Errorf("%s, %t, %v", c.Hash, wrote, err)
			}
			f.server.Fail(lose)
			if err := r.WritePending(t.Context(), []byte("records\n")); err != nil {
				t.Error(err)
			}
			if have := f.git("show", pendingRef+":clusters.lock.main"); have != "records" {
				t.Errorf("pending: %q", have)
			}
			f.server.Fail(gitserver.Fault{Service: "git-receive-pack", CutAfter: 1, Times: 1, Discovery: true})
			_, _, err = f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock 2\n"))
			if err == nil {
				t.Error("a push that never was succeeds")
			}
		})
	}
}
