package signed

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/testscripts/gitserver"
)

// repository is an empty Git repository with a home for its programs.
type repository struct {
	*testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	// The agent's socket is below it, and its path must be short.
	dir, err := os.MkdirTemp("", "signed")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	r := &repository{T: t, dir: dir}
	r.run("", "git", "init", "--quiet", "--initial-branch=main")
	return r
}

func (r *repository) run(input, name string, args ...string) string {
	r.Helper()
	cmd := exec.CommandContext(r.Context(), name, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = r.dir, append(gitserver.Env(r.dir), "GNUPGHOME="+r.dir), strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		r.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return string(out)
}

func (r *repository) file(name, content string) string {
	r.Helper()
	name = filepath.Join(r.dir, name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		r.Fatal(err)
	}
	return name
}

// head returns the object of the newest commit.
func (r *repository) head() []byte {
	r.Helper()
	return []byte(r.run("", "git", "cat-file", "commit", "HEAD"))
}

// Git and ssh-keygen sign what is accepted here, and accept what is signed here.
func TestGitSSH(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ed25519", "rsa", "ecdsa"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			r.run("", "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a comment", "-f", "key")
			public, err := os.ReadFile(filepath.Join(r.dir, "key.pub"))
			if err != nil {
				t.Fatal(err)
			}
			line := `*@example.com namespaces="git",valid-after="20200101" ` + string(public)
			r.run("", "git", "config", "gpg.format", "ssh")
			r.run("", "git", "config", "user.signingkey", filepath.Join(r.dir, "key"))
			r.run("", "git", "config", "gpg.ssh.allowedSignersFile", r.file("allowed", line))
			r.run("", "git", "commit", "--quiet", "--allow-empty", "-S", "-m", "Signed")
			r.run("", "git", "verify-commit", "HEAD")
			var k Keys
			if err := k.AddSSH([]byte(line)); err != nil {
				t.Fatal(err)
			}
			if _, err := k.Verify(r.head(), time.Now()); err != nil {
				t.Error(err)
			}

			private, err := os.ReadFile(filepath.Join(r.dir, "key"))
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewSigner(private)
			if err != nil {
				t.Fatal(err)
			}
			r.run("", "git", "commit", "--quiet", "--allow-empty", "-m", "Not signed\n\nText.")
			object, err := s.Sign(r.head())
			if err != nil {
				t.Fatal(err)
			}
			hash := strings.TrimSpace(r.run(string(object), "git", "hash-object", "-t", "commit", "-w", "--stdin"))
			r.run("", "git", "verify-commit", hash)
			r.run("", "git", "fsck", "--strict", hash)
			if _, err := k.Verify(object, time.Now()); err != nil {
				t.Error(err)
			}
			if _, err := s.Sign(object); err == nil {
				t.Error("it is signed twice")
			}
		})
	}
	r := newRepository(t)
	r.run("", "ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", "key")
	private, err := os.ReadFile(filepath.Join(r.dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewSigner(private)
	wantErr(t, err, "it has a passphrase")
}

// GnuPG signs what is accepted here, and exports keys as they are read here.
func TestGitOpenPGP(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	t.Cleanup(func() {
		cmd := exec.Command("gpgconf", "--kill", "gpg-agent")
		cmd.Env = append(gitserver.Env(r.dir), "GNUPGHOME="+r.dir)
		_ = cmd.Run() // it ends by itself when its directory is gone
	})
	r.run("", "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "Dev <dev@example.com>", "ed25519", "sign", "never")
	r.run("", "gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "Other <other@example.com>", "rsa2048", "sign", "1y")
	r.run("", "git", "config", "user.signingkey", "dev@example.com")
	r.run("", "git", "commit", "--quiet", "--allow-empty", "-S", "-m", "Signed")
	first := r.head()
	r.run("", "git", "config", "user.signingkey", "other@example.com")
	r.run("", "git", "commit", "--quiet", "--allow-empty", "-S", "-m", "Signed, too")
	var k, one Keys
	if err := k.AddOpenPGP([]byte(r.run("", "gpg", "--armor", "--export"))); err != nil {
		t.Fatal(err)
	}
	if err := one.AddOpenPGP([]byte(r.run("", "gpg", "--armor", "--export", "other@example.com"))); err != nil {
		t.Fatal(err)
	}
	for _, object := range [][]byte{first, r.head()} {
		if _, err := k.Verify(object, time.Now()); err != nil {
			t.Error(err)
		}
	}
	_, err := one.Verify(first, time.Now())
	wantErr(t, err, "a key that is not trusted")

	// The certificate of the revocation that gpg makes with each key.
	files, err := filepath.Glob(filepath.Join(r.dir, "openpgp-revocs.d", "*.rev"))
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		r.run(strings.Replace(string(text), ":-----BEGIN", "-----BEGIN", 1), "gpg", "--batch", "--quiet", "--import")
	}
	var revoked Keys
	if err := revoked.AddOpenPGP([]byte(r.run("", "gpg", "--armor", "--export"))); err != nil {
		t.Fatal(err)
	}
	_, err = revoked.Verify(first, time.Now())
	wantErr(t, err, "which is revoked")
}
