package git

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/signed"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/go-git/go-git/v5/plumbing"
	"golang.org/x/crypto/ssh"
)

// sshKey is a key in a file, and its line of allowed signers.
type sshKey struct {
	*signed.Signer
	file, line string
}

func (f *fixture) sshKey() sshKey {
	f.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		f.Fatal(err)
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		f.Fatal(err)
	}
	k := sshKey{file: f.file("key", string(pem.EncodeToMemory(block))), line: "dev@example.com " + string(ssh.MarshalAuthorizedKey(key))}
	if k.Signer, err = signed.NewSigner(pem.EncodeToMemory(block)); err != nil {
		f.Fatal(err)
	}
	return k
}

// file writes a file in a directory of its own.
func (f *fixture) file(name, content string) string {
	f.Helper()
	name = filepath.Join(f.TempDir(), name)
	f.write(name, content)
	return name
}

func (f *fixture) write(name, content string) {
	f.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		f.Fatal(err)
	}
}

var gpgsig = regexp.MustCompile(`(?m)^gpgsig .*\n( .*\n)*`)

// sign replaces the head of main by the same commit with another signature.
func (f *fixture) sign(k sshKey) string {
	f.Helper()
	object, err := k.Sign([]byte(gpgsig.ReplaceAllString(f.git("cat-file", "commit", "main"), "")))
	if err != nil {
		f.Fatal(err)
	}
	hash := f.input(string(object), "hash-object", "-t", "commit", "-w", "--stdin")
	f.git("update-ref", "refs/heads/main", hash)
	return hash
}

// trusting returns a fixture that accepts commits by alice, and commits the lock as daemon.
func trusting(f *fixture) (alice, daemon sshKey) {
	alice, daemon = f.sshKey(), f.sshKey()
	f.cfg.TrustedSSHSigners, f.cfg.SigningKeyFile = f.file("allowed", alice.line), daemon.file
	return alice, daemon
}

// refused checks that the head is not read, and that nothing is built on it.
func (f *fixture) refused(r *Repository, last string, texts ...string) {
	f.Helper()
	head := f.git("rev-parse", "main")
	texts = append(texts, "commit "+sources.ShortHash(head)+" is not acted upon: ", "push a commit that is signed by a trusted key")
	_, changed, err := r.Poll(f.Context(), last)
	wantError(f.T, err, texts...)
	_, wrote, err := r.Update(f.Context(), sources.LockFile, "Lock", constant("on what is not trusted\n"))
	wantError(f.T, err, texts...)
	if changed || wrote || f.git("rev-parse", "main") != head {
		f.Errorf("changed %t, wrote %t", changed, wrote)
	}
}

func (f *fixture) lock(r *Repository, content string) sources.Commit {
	f.Helper()
	c, wrote, err := r.Update(f.Context(), sources.LockFile, "Lock", constant(content))
	if err != nil || !wrote {
		f.Fatal(wrote, err)
	}
	return c
}

// sshV0 is the way by which a server gives nothing but the tips of refs, unless it is told to.
const sshV0 = "ssh, protocol 0"

func TestSignedCommits(t *testing.T) {
	t.Parallel()
	for _, w := range ways {
		if w.name == sshV0 {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			testSignedCommits(t, newFixture(t, w))
		})
	}
}

func testSignedCommits(t *testing.T, f *fixture) {
	alice, daemon := trusting(f)
	f.commit("A fleet", fleet)
	r := f.open()
	f.refused(r, "", "it is not signed")
	first := f.sign(alice)
	if c := f.poll(r, ""); c.Hash != first {
		t.Errorf("commit %s, want %s", c.Hash, first)
	}

	// The daemon's own commits are accepted, by a process without a cache too.
	f.lock(r, "lock 1\n")
	second := f.lock(r, "lock 2\n")
	f.fsck()
	for _, r := range []*Repository{r, f.open()} {
		if c := f.poll(r, ""); c.Hash != second.Hash || read(t, c)[sources.LockFile] != "lock 2\n" {
			t.Errorf("commit %s, want %s", c.Hash, second.Hash)
		}
	}
	if !strings.Contains(f.git("cat-file", "commit", "main"), "\ngpgsig -----BEGIN SSH SIGNATURE-----\n") {
		t.Error("it is not signed as git signs")
	}

	// An unsigned commit on top, and one by another key.
	f.commit("Not signed", map[string]string{"clusters/dev/a": "b"})
	f.refused(r, second.Hash, "it is not signed")
	f.refused(f.open(), "", "it is not signed")
	f.sign(f.sshKey())
	f.refused(r, second.Hash, "it is signed by a key that is not trusted, SSH key SHA256:")

	// The daemon's key is for the lock alone.
	f.git("update-ref", "refs/heads/main", second.Hash)
	f.commit("More than the lock", map[string]string{"clusters/dev/a": "b", sources.LockFile: "lock 3\n"})
	f.sign(daemon)
	f.refused(r, second.Hash, "it is signed by the daemon's key, which is accepted for changes of clusters.lock alone")
	f.git("update-ref", "refs/heads/main", second.Hash)
	unsigned := f.commit("Not signed", map[string]string{"clusters/dev/a": "b"})
	f.commit("Lock", map[string]string{sources.LockFile: "lock 3\n"})
	f.sign(daemon)
	for _, r := range []*Repository{r, f.open()} {
		f.refused(r, second.Hash, "it is of clusters.lock, by the daemon's key, on commit "+sources.ShortHash(unsigned)+", and that is not trusted: it is not signed")
	}

	// Whoever signs the head vouches for what it has.
	f.commit("Signed again", map[string]string{"c": "d"})
	third := f.sign(alice)
	if c := f.poll(r, second.Hash); c.Hash != third || read(t, c)["clusters/dev/a"] != "b" {
		t.Errorf("commit %s, want %s", c.Hash, third)
	}
	if c, ok, err := r.Parent(t.Context(), third); err != nil || !ok || c.Subject != "Lock" {
		t.Error("the parent is for the order of commits, whoever signed it:", c, ok, err)
	}
}

// A server that does not give the parent of a commit says how it would.
func TestSignedCommitsParent(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy(sshV0))
	alice, _ := trusting(f)
	f.commit("A fleet", fleet)
	f.sign(alice)
	r := f.open()
	f.poll(r, "")
	last := f.lock(r, "lock 1\n")
	_, _, err := f.open().Poll(t.Context(), "")
	wantError(t, err, "to verify a commit of clusters.lock, its parent is needed", "uploadpack.allowReachableSHA1InWant")
	f.git("config", "uploadpack.allowReachableSHA1InWant", "true")
	if c := f.poll(f.open(), ""); c.Hash != last.Hash {
		t.Errorf("commit %s, want %s", c.Hash, last.Hash)
	}
}

// What a key that is for the lock alone is not accepted for.
func TestLockKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, tree, want string // tree: as git mktree takes it
		parents          string
	}{
		{name: "the lock", tree: "100644 blob L2 clusters.lock\n100644 blob F file\n"},
		{name: "a first lock", parents: "lockless", tree: "100644 blob L2 clusters.lock\n100644 blob F file\n"},
		{name: "another file", tree: "100644 blob L2 clusters.lock\n100644 blob L2 file\n", want: "for changes of clusters.lock alone"},
		{name: "a file more", tree: "100644 blob F a\n100644 blob L2 clusters.lock\n100644 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "a file less", tree: "100644 blob L2 clusters.lock\n", want: "for changes of clusters.lock alone"},
		{name: "a mode", tree: "100644 blob L2 clusters.lock\n100755 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "the lock's mode", tree: "100755 blob L2 clusters.lock\n100644 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "a link", tree: "120000 blob L2 clusters.lock\n100644 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "no lock", tree: "100644 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "nothing", tree: "100644 blob L1 clusters.lock\n100644 blob F file\n", want: "for changes of clusters.lock alone"},
		{name: "a merge", parents: "signed lockless", tree: "100644 blob L2 clusters.lock\n100644 blob F file\n", want: "for commits with one parent; it has 2"},
		{name: "no parent", parents: " ", tree: "100644 blob L2 clusters.lock\n100644 blob F file\n", want: "for commits with one parent; it has 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, wayBy("http"))
			alice, daemon := trusting(f)
			f.commit("Without a lock", map[string]string{"file": "content\n"})
			refs := map[string]string{"lockless": f.sign(alice)}
			f.commit("With a lock", map[string]string{sources.LockFile: "lock 1\n"})
			refs["signed"] = f.sign(alice)
			blobs := strings.NewReplacer("F ", f.git("rev-parse", "main:file")+"\t", "L1 ", f.git("rev-parse", "main:clusters.lock")+"\t",
				"L2 ", f.input("lock 2\n", "hash-object", "-w", "--stdin")+"\t")
			args := []string{"commit-tree", "-m", "Lock", f.input(blobs.Replace(tt.tree), "mktree")}
			if tt.parents == "" {
				tt.parents = "signed"
			}
			for p := range strings.FieldsSeq(tt.parents) {
				args = append(args, "-p", refs[p])
			}
			f.git("update-ref", "refs/heads/main", f.git(args...))
			f.sign(daemon)
			if tt.want != "" {
				f.refused(f.open(), "", tt.want)
			} else {
				f.poll(f.open(), "")
			}
			// A person may change anything.
			f.git("update-ref", "refs/heads/main", f.git(args...))
			f.sign(alice)
			f.poll(f.open(), "")
		})
	}
}

// Files with keys are read again; with errors in one of them nobody is trusted.
func TestTrustRotation(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	alice, daemon := trusting(f)
	bob := f.sshKey()
	allowed := f.cfg.TrustedSSHSigners
	f.commit("A fleet", fleet)
	f.sign(alice)
	r := f.open()
	head := f.poll(r, "").Hash
	unchanged := func(last string) {
		t.Helper()
		if _, changed, err := r.Poll(t.Context(), last); changed || err != nil {
			t.Error(changed, err)
		}
	}
	unchanged(head)
	f.write(allowed, bob.line)
	f.refused(r, head, "a key that is not trusted")
	f.write(allowed, "")
	_, _, err := r.Poll(t.Context(), head)
	wantError(t, err, "trusted SSH signers: "+allowed+": it is empty: nobody is trusted")
	f.write(allowed, alice.line+"bob\n")
	_, _, err = r.Poll(t.Context(), head)
	wantError(t, err, allowed+": line 2: expected principals, options and a public key")
	os.Remove(allowed)
	_, _, err = r.Poll(t.Context(), head)
	wantError(t, err, allowed, "no such file")
	f.write(allowed, bob.line+alice.line)
	unchanged(head)

	// Another signing key: the last commit by the one before is accepted if that is listed, and
	// until there is one by a person.
	lock := f.lock(r, "lock 1\n").Hash
	next := f.sshKey()
	content, err := os.ReadFile(next.file)
	if err != nil {
		t.Fatal(err)
	}
	f.write(daemon.file, string(content))
	f.refused(r, lock, "a key that is not trusted")
	was := strings.Replace(daemon.line, " ", ` namespaces="gitopsd-lock" `, 1)
	f.write(allowed, alice.line+was)
	unchanged(lock)
	f.lock(r, "lock 2\n")
	f.commit("More", map[string]string{"a": "b"})
	f.sign(daemon)
	f.refused(r, lock, "for changes of clusters.lock alone")
	f.write(allowed, alice.line)
	f.sign(alice)
	f.poll(r, lock)

	// The daemon's key in the file is a key as any.
	f.commit("More", map[string]string{"a": "c"})
	f.sign(next)
	f.refused(r, lock, "for changes of clusters.lock alone")
	f.write(allowed, next.line)
	f.poll(r, lock)
}

// Verification asks the server for nothing that is known.
func TestTrustRequests(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	alice, _ := trusting(f)
	f.commit("A fleet", fleet)
	f.sign(alice)
	r := f.open()
	f.poll(r, "")
	c := f.lock(r, "lock 1\n")
	f.server.Requests()
	for range 3 {
		if _, changed, err := r.Poll(t.Context(), c.Hash); changed || err != nil {
			t.Fatal(changed, err)
		}
	}
	if have := f.server.Requests(); len(have) != 3 {
		t.Errorf("three polls made the requests\n%s", strings.Join(have, "\n"))
	}
	// The next process has what it needs in the cache.
	cfg := f.cfg
	cfg.Dir = f.origin(r).dir
	r.Close()
	r = f.openWith(cfg)
	f.poll(r, "")
	if have := f.server.Requests(); len(have) != 2 { // a greeting, and the ref
		t.Errorf("a restart made the requests\n%s", strings.Join(have, "\n"))
	}
	if err := r.WritePending(t.Context(), []byte("records\n")); err != nil {
		t.Fatal(err)
	}
	if have, err := f.open().ReadPending(t.Context()); err != nil || string(have) != "records\n" {
		t.Errorf("%q, %v: pending records need no signature", have, err)
	}
}

// The chain of the daemon's commits is bounded, also for the process that makes them.
func TestLockChain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	alice, daemon := trusting(f)
	f.commit("A fleet", map[string]string{"file": "content\n"})
	head := plumbing.NewHash(f.sign(alice))
	file := objects.Entry{Name: "file", Mode: 0o100644, Hash: plumbing.NewHash(f.git("rev-parse", "main:file"))}
	var list []objects.Raw
	var heads []plumbing.Hash
	for i := range maxLocks + 1 {
		blob := objects.NewRaw(plumbing.BlobObject, []byte(strings.Repeat("line\n", i+1)))
		tree := objects.EncodeTree([]objects.Entry{file, {Name: sources.LockFile, Mode: 0o100644, Hash: blob.Hash}})
		c, err := objects.EncodeCommit("gitopsd", "gitopsd@localhost", "Lock", tree.Hash, head)
		if err != nil {
			t.Fatal(err)
		}
		object, err := daemon.Sign(c.Content)
		if err != nil {
			t.Fatal(err)
		}
		c = objects.NewRaw(plumbing.CommitObject, object)
		list = append(list, blob, tree, c)
		head = c.Hash
		heads = append(heads, head)
	}
	pack, err := objects.EncodePack(list)
	if err != nil {
		t.Fatal(err)
	}
	f.input(string(pack), "unpack-objects", "-q")
	longest, tooLong := heads[maxLocks-1].String(), heads[maxLocks].String()
	f.git("update-ref", "refs/heads/main", longest)
	r := f.open()
	f.poll(r, "")
	_, wrote, err := r.Update(t.Context(), sources.LockFile, "Lock", constant("one more\n"))
	wantError(t, err, "the last 100 commits are the daemon's own", "push a commit that is signed by a trusted key")
	if wrote {
		t.Error("it was committed")
	}
	f.git("update-ref", "refs/heads/main", tooLong)
	f.refused(r, longest, "the 100 commits before it")
	f.refused(f.open(), "", "the 100 commits after it")
}

func TestTrustConfig(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	key := f.sshKey()
	for _, tt := range []struct {
		openPGP, ssh, signing string
		want                  string
	}{
		{ssh: f.file("allowed", "\n"), want: "it is empty: nobody is trusted"},
		{openPGP: f.file("keys.asc", key.line), want: "keys.asc: line 1: expected an armored public key"},
		{ssh: filepath.Join(t.TempDir(), "nowhere"), want: "nowhere: no such file"},
		{ssh: f.file("allowed", key.line), signing: f.file("key", key.line), want: "signing key: "},
	} {
		cfg := f.cfg
		cfg.Dir = t.TempDir()
		cfg.TrustedOpenPGPKeys, cfg.TrustedSSHSigners, cfg.SigningKeyFile = tt.openPGP, tt.ssh, tt.signing
		_, err := Open(cfg)
		wantError(t, err, tt.want)
	}

	// Without trusted keys commits are signed, and any are read.
	f.commit("A fleet", fleet)
	f.cfg.SigningKeyFile = key.file
	r := f.open()
	f.poll(r, "")
	f.lock(r, "lock 1\n")
	var keys signed.Keys
	if err := keys.AddSSH([]byte(key.line)); err != nil {
		t.Fatal(err)
	}
	f.git("config", "gpg.ssh.allowedSignersFile", f.file("allowed", key.line))
	f.git("verify-commit", "main")
	// Without a key to sign with, nothing is committed that would not be read.
	f.cfg.TrustedSSHSigners, f.cfg.SigningKeyFile = f.file("allowed", key.line), ""
	_, _, err := f.open().Update(t.Context(), sources.LockFile, "Lock", constant("lock 2\n"))
	wantError(t, err, "there is no key to sign this one with (--signing-key)")
}

// Keys of both kinds are trusted side by side.
func TestTrustOpenPGP(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	alice, _ := trusting(f)
	e, err := openpgp.NewEntity("Bob", "", "bob@example.com", &packet.Config{Time: func() time.Time { return time.Now().Add(-time.Hour) }})
	if err != nil {
		t.Fatal(err)
	}
	var key strings.Builder
	w, err := armor.Encode(&key, openpgp.PublicKeyType, nil)
	if err == nil {
		err = errors.Join(e.Serialize(w), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	f.cfg.TrustedOpenPGPKeys = f.file("keys.asc", key.String())
	f.commit("A fleet", fleet)
	object := f.git("cat-file", "commit", "main")
	var sig strings.Builder
	if err := openpgp.ArmoredDetachSign(&sig, e, strings.NewReader(object), nil); err != nil {
		t.Fatal(err)
	}
	top, message, _ := strings.Cut(object, "\n\n")
	object = top + "\ngpgsig " + strings.ReplaceAll(sig.String(), "\n", "\n ") + "\n\n" + message
	f.git("update-ref", "refs/heads/main", f.input(object, "hash-object", "-t", "commit", "-w", "--stdin"))
	r := f.open()
	c := f.poll(r, "")
	f.lock(r, "lock 1\n")
	f.commit("More", map[string]string{"a": "b"})
	f.sign(alice)
	f.poll(r, c.Hash)
}

// Headers with very many lines are refused, although nobody signed them: decoding them could take
// hours, and could not be stopped.
func TestHugeHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, wayBy("http"))
	first := f.commit("A fleet", fleet)
	r := f.open()
	f.poll(r, "")
	top, message, _ := strings.Cut(f.git("cat-file", "commit", "main"), "\n\n")
	object := top + "\ngpgsig x" + strings.Repeat("\n ", 5<<20) + "\n\n" + message
	f.git("update-ref", "refs/heads/main", f.input(object, "hash-object", "-t", "commit", "-w", "--stdin"))
	_, _, err := r.Poll(t.Context(), first)
	wantError(t, err, "its headers have 10", "more than 65536")
}
