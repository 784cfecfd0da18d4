package signed

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

const (
	tree   = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
	other  = "5b825dc642cb6eb9a060e54bf8d69288fbee4904"
	head   = "tree " + tree + "\nparent " + other + "\nauthor A <a@example.org> 1750000000 +0200\ncommitter C <c@example.org> 1750000000 +0200\n"
	commit = head + "\nSubject\n"
)

// made is when commit was made.
var made = time.Unix(1750000000, 0)

func newSigner(t testing.TB) *Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSigner(pem.EncodeToMemory(block))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// line is the signer's line of allowed signers.
func (s *Signer) line(options string) string {
	return "who@example.org " + options + " " + string(ssh.MarshalAuthorizedKey(s.key.PublicKey()))
}

func (s *Signer) sign(t testing.TB, object string) string {
	t.Helper()
	out, err := s.Sign([]byte(object))
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// in returns an armored signature in another namespace.
func (s *Signer) in(t *testing.T, object, namespace string) string {
	t.Helper()
	sig, err := sshsig.Sign(strings.NewReader(object), s.key, sshsig.HashSHA256, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return string(sshsig.Armor(sig))
}

// pgpKey is an OpenPGP key, which was made a year before commit.
func pgpKey(t testing.TB, change func(*packet.Config)) *openpgp.Entity {
	t.Helper()
	cfg := &packet.Config{Time: func() time.Time { return made.AddDate(-1, 0, 0) }, Algorithm: packet.PubKeyAlgoEdDSA}
	if change != nil {
		change(cfg)
	}
	e, err := openpgp.NewEntity("Somebody", "", "s@example.org", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func public(t testing.TB, keys ...*openpgp.Entity) string {
	t.Helper()
	var buf bytes.Buffer
	for _, e := range keys {
		w, err := armor.Encode(&buf, openpgp.PublicKeyType, nil)
		if err == nil {
			err = e.Serialize(w)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		buf.WriteString("\n")
	}
	return buf.String()
}

// detached returns an armored signature, however little the key may make it.
func detached(t testing.TB, key *packet.PrivateKey, object string, change func(*packet.Signature)) string {
	t.Helper()
	sig := &packet.Signature{Version: 4, PubKeyAlgo: key.PubKeyAlgo, Hash: crypto.SHA512, CreationTime: made, IssuerKeyId: &key.KeyId, IssuerFingerprint: key.Fingerprint}
	if change != nil {
		change(sig)
	}
	h := sig.Hash.New()
	h.Write([]byte(object))
	salted := false // there is none for SHA-1
	if err := sig.Sign(h, key, &packet.Config{NonDeterministicSignaturesViaNotation: &salted}); err != nil {
		t.Fatal(err)
	}
	return armored(t, sig.Serialize)
}

func armored(t testing.TB, write func(io.Writer) error) string {
	t.Helper()
	var buf bytes.Buffer
	w, err := armor.Encode(&buf, openpgp.SignatureType, nil)
	if err == nil {
		err = write(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

// with returns a commit with a header.
func with(object, header, value string) string {
	top, message, _ := strings.Cut(object, "\n\n")
	return top + "\n" + header + " " + strings.ReplaceAll(strings.TrimSuffix(value, "\n"), "\n", "\n ") + "\n\n" + message
}

func TestVerifySSH(t *testing.T) {
	t.Parallel()
	alice, bob, daemon, old := newSigner(t), newSigner(t), newSigner(t), newSigner(t)
	good := alice.sign(t, commit)
	armored := alice.in(t, commit, "git")
	for _, tt := range []struct {
		name    string
		allowed string // of alice by default
		object  string
		want    string // of the error
		lock    bool
	}{
		{name: "good", object: good},
		{name: "SHA-256", object: with(commit, "gpgsig", armored)},
		{name: "the second of two keys", allowed: bob.line("") + alice.line(""), object: good},
		{name: "namespaces", allowed: alice.line(`namespaces="file,git"`), object: good},
		{name: "a signature for SHA-256 names too", object: with(good, "gpgsig-sha256", armored)},
		{name: "further headers", object: alice.sign(t, with(with(commit, "encoding", "UTF-8"), "change-id", "x"))},
		{name: "a merge of a signed tag", object: alice.sign(t, with(commit, "mergetag", "object "+tree+"\ntype commit\ntag v1\n\ngpgsig x\n-----BEGIN PGP SIGNATURE-----\n\nx\n-----END PGP SIGNATURE-----"))},
		{name: "a message without a line break", object: alice.sign(t, head+"\nSubject")},
		{name: "a message with a signature", object: alice.sign(t, commit+"gpgsig "+armored)},
		{name: "no message", object: alice.sign(t, head)},
		{name: "CRLF in the message", object: alice.sign(t, head+"\nSubject\r\n\r\nText\r\n")},
		{name: "the daemon's", object: daemon.sign(t, commit), lock: true},
		{name: "the daemon's, listed", allowed: daemon.line(""), object: daemon.sign(t, commit)},
		{name: "the daemon's of before", allowed: old.line(`namespaces="gitopsd-lock"`), object: old.sign(t, commit), lock: true},

		{name: "not signed", object: commit, want: "it is not signed"},
		{name: "not signed, with a signature in the message", object: commit + "gpgsig " + armored, want: "it is not signed"},
		{name: "not signed, with a signature in a mergetag", object: with(commit, "mergetag", "object x\ngpgsig "+armored), want: "it is not signed"},
		{name: "only for SHA-256 names", object: with(commit, "gpgsig-sha256", armored), want: "it is not signed"},
		{name: "an unknown key", object: bob.sign(t, commit), want: "it is signed by a key that is not trusted, SSH key SHA256:"},
		{name: "another tree", object: strings.Replace(good, tree, other, 1), want: "does not verify"},
		{name: "another message", object: good + "x", want: "does not verify"},
		{name: "another parent", object: strings.Replace(good, "parent", "parent "+tree+"\nparent", 1), want: "does not verify"},
		{name: "for a file", object: with(commit, "gpgsig", alice.in(t, commit, "file")), want: `the namespace is "file", not "git"`},
		{name: "a key for files", allowed: alice.line(`namespaces="file"`), object: good, want: "a key that is not trusted"},
		{name: "a key for all but git", allowed: alice.line(`namespaces="*,!git"`), object: good, lock: true},
		{name: "expired later", allowed: alice.line(`valid-before="20250616Z"`), object: good},
		{name: "expired before", allowed: alice.line(`valid-before="20250615Z"`), object: good, want: "at a time when the key was not valid, 2025-06-15 15:06:40"},
		{name: "not valid yet", allowed: alice.line(`valid-after="202506151507Z"`), object: good, want: "not valid"},
		{name: "valid for a time, twice", allowed: alice.line(`valid-before="20240101"`) + alice.line(`valid-after="20250101",valid-before="20260101"`), object: good},
		{name: "two signatures", object: with(good, "gpgsig", armored), want: "two headers gpgsig"},
		{name: "two blocks", object: with(commit, "gpgsig", armored+armored), want: "not one armored block"},
		{name: "text before the block", object: with(commit, "gpgsig", "x\n"+armored), want: "not one armored block"},
		{name: "text after the block", object: with(commit, "gpgsig", armored+"x"), want: "not one armored block"},
		{name: "X.509", object: with(commit, "gpgsig", "-----BEGIN SIGNED MESSAGE-----\nx\n-----END SIGNED MESSAGE-----"), want: "not one armored block"},
		{name: "garbled", object: with(commit, "gpgsig", strings.Replace(armored, "U1NI", "U1NJ", 1)), want: "cannot be used"},
		{name: "an empty signature", object: with(commit, "gpgsig", ""), want: "not one armored block"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var k Keys
			k.Own(daemon)
			if tt.allowed == "" {
				tt.allowed = alice.line("")
			}
			if err := k.AddSSH([]byte("# people\n\n" + tt.allowed)); err != nil {
				t.Fatal(err)
			}
			c, err := k.Verify([]byte(tt.object), time.Now())
			wantErr(t, err, tt.want)
			if err == nil && (c.LockOnly != tt.lock || c.Tree != tree || !slices.Equal(c.Parents, []string{other}) || !strings.HasPrefix(c.By, "SSH key SHA256:")) {
				t.Errorf("%+v, want lock only: %t", c, tt.lock)
			}
		})
	}
}

func wantErr(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("error %v", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want one with %q", err, want)
	}
}

// What a signature covers can be read in one way only, whoever signed it.
func TestVerifyMalformed(t *testing.T) {
	t.Parallel()
	alice := newSigner(t)
	var k Keys
	if err := k.AddSSH([]byte(alice.line(""))); err != nil {
		t.Fatal(err)
	}
	for name, object := range map[string]string{
		"two trees":                     strings.Replace(commit, "tree "+tree, "tree "+tree+"\ntree "+other, 1),
		"a tree after the committer":    with(commit, "tree", other),
		"a parent after the committer":  with(commit, "parent", other),
		"two authors":                   strings.Replace(commit, "author ", "author B <b@example.org> 1 +0000\nauthor ", 1),
		"a tree continued":              strings.Replace(commit, "\nparent", "\n tree "+other+"\nparent", 1),
		"a committer continued":         strings.Replace(commit, "\n\n", "\n parent "+other+"\n\n", 1),
		"no tree":                       commit[strings.Index(commit, "\n")+1:],
		"no committer":                  "tree " + tree + "\nauthor A <a@example.org> 1 +0000\n\nSubject\n",
		"a short tree":                  strings.Replace(commit, tree, tree[1:], 1),
		"an upper-case tree":            strings.Replace(commit, tree, strings.ToUpper(tree), 1),
		"a header like gpgsig":          with(commit, "gpgsigx", "y"),
		"gpgsig before the committer":   strings.Replace(commit, "author ", "gpgsig x\nauthor ", 1),
		"CRLF":                          strings.ReplaceAll(commit, "\n", "\r\n"),
		"NUL":                           commit + "\x00",
		"NUL in a header":               with(commit, "encoding", "\x00"),
		"a header without a value":      strings.Replace(commit, "\n\n", "\nencoding\n\n", 1),
		"a space at first":              " " + commit,
		"a date that is none":           strings.Replace(commit, "1750000000", "soon", 2),
		"nothing":                       "",
		"an empty line":                 "\n",
		"two headers for SHA-256 names": with(with(commit, "gpgsig-sha256", "x"), "gpgsig-sha256", "y"),
	} {
		if _, err := alice.Sign([]byte(object)); err == nil {
			t.Errorf("%s: it is signed", name)
		}
		armored := alice.in(t, object, "git")
		for _, signed := range []string{with(object, "gpgsig", armored), object} {
			if _, err := k.Verify([]byte(signed), time.Now()); err == nil || !strings.Contains(err.Error(), "not as git writes it: ") {
				t.Errorf("%s: error %v", name, err)
			}
		}
	}
	if _, err := k.Verify([]byte(head+"encoding x"), time.Now()); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Error(err)
	}
	// The lines below gpgsig-sha256 are not signed, and are no headers.
	signed := strings.Replace(alice.sign(t, commit), "gpgsig ", "gpgsig-sha256 x\n tree "+other+"\ngpgsig ", 1)
	if c, err := k.Verify([]byte(signed), time.Now()); err != nil || c.Tree != tree {
		t.Error(c, err)
	}
}

func TestVerifyOpenPGP(t *testing.T) {
	t.Parallel()
	e, stranger := pgpKey(t, nil), pgpKey(t, nil)
	rsa := pgpKey(t, func(c *packet.Config) { c.Algorithm, c.RSABits = packet.PubKeyAlgoRSA, 2048 })
	day := uint32(24 * 60 * 60)
	lasting := pgpKey(t, func(c *packet.Config) { c.KeyLifetimeSecs = 366 * day })
	revoked := pgpKey(t, nil)
	if err := revoked.RevokeKey(packet.KeyRetired, "", &packet.Config{Time: func() time.Time { return made.AddDate(0, 1, 0) }}); err != nil {
		t.Fatal(err)
	}
	later := &packet.Config{Time: func() time.Time { return made.AddDate(0, -1, 0) }, Algorithm: packet.PubKeyAlgoEdDSA}
	for _, k := range []*openpgp.Entity{e, rsa} {
		if err := k.AddSigningSubkey(later); err != nil {
			t.Fatal(err)
		}
	}
	sub, encryption, subRevoked := e.Subkeys[1].PrivateKey, rsa.Subkeys[0].PrivateKey, &rsa.Subkeys[1]
	if err := rsa.RevokeSubkey(subRevoked, packet.KeySuperseded, "", nil); err != nil {
		t.Fatal(err)
	}
	at := func(when time.Time) func(*packet.Signature) {
		return func(s *packet.Signature) { s.CreationTime = when }
	}
	good := detached(t, e.PrivateKey, commit, nil)
	content := func(text string) []byte {
		block, err := armor.Decode(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(block.Body)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	of := func(content ...[]byte) string {
		return armored(t, func(w io.Writer) error { _, err := w.Write(slices.Concat(content...)); return err })
	}
	for _, tt := range []struct {
		name, signature, want string
		object                string // commit by default
	}{
		{name: "good", signature: good},
		{name: "RSA", signature: detached(t, rsa.PrivateKey, commit, nil)},
		{name: "by a subkey", signature: detached(t, sub, commit, nil)},
		{name: "expired since", signature: detached(t, lasting.PrivateKey, commit, nil)},
		{name: "CRLF in the armor", signature: strings.ReplaceAll(good, "\n", "\r\n")},
		{name: "an unknown key", signature: detached(t, stranger.PrivateKey, commit, nil), want: fmt.Sprintf("a key that is not trusted, OpenPGP key %X", stranger.PrimaryKey.Fingerprint)},
		{name: "another commit", signature: good, object: commit + "x", want: "does not verify: the commit is not what was signed"},
		{name: "expired before", signature: detached(t, lasting.PrivateKey, commit, at(made.AddDate(0, 1, 0))), want: "which had expired then or was made later"},
		{name: "before the key was made", signature: detached(t, lasting.PrivateKey, commit, at(made.AddDate(-2, 0, 0))), want: "which had expired then or was made later"},
		{name: "a revoked key", signature: detached(t, revoked.PrivateKey, commit, nil), want: "which is revoked"},
		{name: "a revoked subkey", signature: detached(t, subRevoked.PrivateKey, commit, nil), want: "which is revoked"},
		{name: "a subkey for encryption", signature: detached(t, encryption, commit, nil), want: "which is not for signing"},
		{name: "an expired signature", signature: detached(t, e.PrivateKey, commit, func(s *packet.Signature) { s.SigLifetimeSecs = &day }), want: "has expired"},
		{name: "a text signature", signature: detached(t, e.PrivateKey, commit, func(s *packet.Signature) { s.SigType = packet.SigTypeText }), want: "not over the bytes"},
		{name: "SHA-1", signature: detached(t, rsa.PrivateKey, commit, func(s *packet.Signature) { s.Hash = crypto.SHA1 }), want: "SHA-1 is not accepted"},
		{name: "a critical notation", signature: detached(t, e.PrivateKey, commit, func(s *packet.Signature) {
			s.Notations = []*packet.Notation{{Name: "only@example.org", Value: []byte("x"), IsCritical: true}}
		}), want: `critical notation "only@example.org"`},
		{name: "two packets", signature: of(content(good), content(good)), want: "more than one"},
		{name: "no packet", signature: of(), want: "cannot be used"},
		{name: "a key", signature: of(content(public(t, e))), want: "it is no signature"},
		{name: "a message", signature: strings.ReplaceAll(good, "PGP SIGNATURE", "PGP MESSAGE"), want: "not one armored block"},
		{name: "cut off", signature: of(content(good)[:60]), want: "cannot be used"},
		{name: "the wrong sum", signature: strings.Replace(good, "\n=", "\n=A", 1), want: "cannot be used"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var k Keys
			if err := k.AddOpenPGP([]byte(public(t, e, rsa, lasting, revoked))); err != nil {
				t.Fatal(err)
			}
			if tt.object == "" {
				tt.object = commit
			}
			c, err := k.Verify([]byte(with(tt.object, "gpgsig", tt.signature)), made.AddDate(0, 3, 0))
			wantErr(t, err, tt.want)
			if err == nil && (c.LockOnly || !strings.HasPrefix(c.By, "OpenPGP key ")) {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestAddOpenPGP(t *testing.T) {
	t.Parallel()
	a, b := pgpKey(t, nil), pgpKey(t, nil)
	block := public(t, a)
	for _, tt := range []struct{ name, text, want string }{
		{name: "one", text: block},
		{name: "two", text: block + "\n\n" + public(t, b)},
		{name: "nothing", text: "\n", want: "nobody is trusted"},
		{name: "a block without a key", text: strings.ReplaceAll(armored(t, func(io.Writer) error { return nil }), openpgp.SignatureType, openpgp.PublicKeyType), want: "nobody is trusted"},
		{name: "text", text: "alice\n", want: "line 1: expected an armored public key"},
		{name: "text between", text: "\n" + block + "alice\n" + public(t, b), want: fmt.Sprintf("line %d: expected", strings.Count("\n"+block, "\n")+1)},
		{name: "cut off", text: block[:len(block)-40], want: "line 1: expected"},
		{name: "twice", text: block + block, want: "is in the file twice"},
		{name: "garbled", text: strings.Replace(block, "\n\n", "\n\nAAAA", 1), want: "the key at line 1: "},
		{name: "a private key", text: strings.ReplaceAll(block, "PUBLIC", "PRIVATE"), want: "line 1: expected"},
	} {
		var k Keys
		wantErr(t, k.AddOpenPGP([]byte(tt.text)), tt.want)
	}
}

func TestAddSSH(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	key := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(s.key.PublicKey())))
	for _, tt := range []struct{ line, want string }{
		{line: "a@example.org " + key},
		{line: `"a b",c@example.org ` + key + " a comment"},
		{line: "* " + key},
		{line: "a\t" + key},
		{line: `a NAMESPACES="git",valid-after="20240101" ` + key},
		{line: key, want: "line 2: expected a public key after the principals"},
		{line: "a", want: "expected principals, options and a public key"},
		{line: "a ssh-ed25519 AAAA", want: "expected a public key"},
		{line: "a cert-authority " + key, want: "line 2: cert-authority: certificates are not supported"},
		{line: `a namespaces="git",cert-authority ` + key, want: "certificates are not supported"},
		{line: "a no-touch-required " + key, want: "there is no such option"},
		{line: `a valid-after="soon" ` + key, want: `"soon" is no time`},
		{line: `a valid-after="20241301" ` + key, want: "is no time"},
		{line: `a valid-after="20250101",valid-before="20240101" ` + key, want: "valid-before is not after valid-after"},
		{line: `a namespaces="git",namespaces="file" ` + key, want: "twice"},
		{line: "", want: "nobody is trusted"},
		{line: "# " + key, want: "nobody is trusted"},
	} {
		var k Keys
		wantErr(t, k.AddSSH([]byte("# comment\r\n"+tt.line+"\r\n")), tt.want)
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		patterns, name string
		want           bool
	}{
		{"git", "git", true}, {"", "git", false}, {"git", "gitopsd-lock", false}, {"g*", "git", true}, {"g?t", "git", true},
		{"*t", "git", true}, {"*i*", "git", true}, {"**", "git", true}, {"*x*", "git", false}, {"file,git", "git", true},
		{"*,!git", "git", false}, {"!git,*", "git", false}, {"!file", "git", false}, {"gi", "git", false}, {"git?", "git", false}, {"a*a", "aba", true}, {"a*ab", "aaab", true},
	} {
		if have := matches(tt.patterns, tt.name); have != tt.want {
			t.Errorf("%q matches %q: %t", tt.patterns, tt.name, have)
		}
	}
}

func FuzzVerify(f *testing.F) {
	s := newSigner(f)
	e := pgpKey(f, nil)
	var k Keys
	if err := k.AddSSH([]byte(s.line(""))); err != nil {
		f.Fatal(err)
	}
	if err := k.AddOpenPGP([]byte(public(f, e))); err != nil {
		f.Fatal(err)
	}
	good := s.sign(f, commit)
	f.Add(commit)
	f.Add(good)
	f.Add(with(commit, "gpgsig", detached(f, e.PrivateKey, commit, nil)))
	f.Add(with(good, "gpgsig-sha256", "x\ny"))
	f.Fuzz(func(t *testing.T, object string) {
		p, err := split([]byte(object))
		if err != nil {
			return
		}
		// The payload is the object without some lines, and says the same.
		q, err := split(p.payload)
		if err != nil || q.signature != nil || q.tree != p.tree || !slices.Equal(q.parents, p.parents) || !bytes.Equal(q.payload, p.payload) {
			t.Errorf("the payload of %q is %q: %v", object, p.payload, err)
		}
		// Nobody signed anything else than these two.
		if c, err := k.Verify([]byte(object), made); err == nil && string(p.payload) != commit {
			t.Errorf("%q is signed by %s", p.payload, c.By)
		}
	})
}

func FuzzAddSSH(f *testing.F) {
	s := newSigner(f)
	f.Add(s.line(""))
	f.Add(s.line(`namespaces="a,!b",valid-after="20240101Z",valid-before="202501010000"`))
	f.Add("\"a b\" cert-authority ssh-ed25519 AAAA\n#\n")
	f.Fuzz(func(_ *testing.T, text string) {
		var k Keys
		_ = k.AddSSH([]byte(text))
	})
}

func FuzzAddOpenPGP(f *testing.F) {
	f.Add(public(f, pgpKey(f, nil)))
	f.Fuzz(func(_ *testing.T, text string) {
		var k Keys
		_ = k.AddOpenPGP([]byte(text))
	})
}

// An error quotes a bounded part of what anybody may have pushed.
func TestVerifyLongError(t *testing.T) {
	t.Parallel()
	alice := newSigner(t)
	var k Keys
	if err := k.AddSSH([]byte(alice.line(""))); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("ü", 100_000)
	armored := strings.ReplaceAll(strings.TrimSuffix(alice.in(t, commit, long), "\n"), "\n", "\n ")
	for name, object := range map[string]string{
		"a namespace": strings.Replace(commit, "\n\n", "\ngpgsig "+armored+"\n\n", 1),
		"a line":      strings.Replace(commit, "\n\n", "\n"+long+"\n\n", 1),
	} {
		if _, err := k.Verify([]byte(object), made); err == nil || len(err.Error()) > 600 || !strings.HasSuffix(err.Error(), "…") {
			t.Errorf("%s: %.700v", name, err)
		}
	}
}
