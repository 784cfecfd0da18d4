package signed

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
)

const (
	// namespace is git's, in signatures and in allowed signers.
	namespace = "git"
	// lockNamespace in allowed signers is for a key that is accepted for commits of the lock
	// alone: the one that a daemon signed with before it got another one. Git does not accept it
	// for anything. With a namespace of its own, the key needs neither a file nor a place where
	// processes remember it, and two daemons may have different keys for a while.
	lockNamespace = "gitopsd-lock"
)

// entry is a line of allowed signers (ssh-keygen(1), ALLOWED SIGNERS).
type entry struct {
	key         []byte // as ssh.PublicKey.Marshal returns it
	full, lock  bool   // whether it is for git, and for the lock
	after, till time.Time
}

// AddSSH adds the keys in a file of allowed signers. It fails if there is none, and for lines
// that OpenSSH does not accept, or with certificate authorities; the error has the line. Names
// of principals are not compared: whoever has a key may sign.
func (k *Keys) AddSSH(text []byte) error {
	before, n := len(k.ssh), 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.Trim(line, " \t\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		var e entry
		if err := recovered(func() (err error) { e, err = parseEntry(line); return err }); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		k.ssh = append(k.ssh, e)
	}
	if len(k.ssh) == before {
		return errNoKey
	}
	return nil
}

// parseEntry parses a line: principals, options, key and comment.
func parseEntry(line string) (entry, error) {
	quoted := false
	end := strings.IndexFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t')
	})
	if end < 0 {
		return entry{}, errors.New("expected principals, options and a public key")
	}
	key, _, options, _, err := ssh.ParseAuthorizedKey([]byte(line[end:]))
	if err != nil {
		return entry{}, fmt.Errorf("expected a public key after the principals and options: %w", err)
	}
	if err := supported(key); err != nil {
		return entry{}, err
	}
	e := entry{key: key.Marshal(), full: true}
	seen := make(map[string]bool)
	for _, option := range options {
		name, value, _ := strings.Cut(option, "=")
		name = strings.ToLower(name)
		if seen[name] {
			return entry{}, fmt.Errorf("the option %s is there twice", name)
		}
		seen[name] = true
		if name == "cert-authority" {
			return entry{}, errors.New("cert-authority: certificates are not supported; name the keys themselves")
		}
		value = strings.Trim(value, `"`)
		switch name {
		case "namespaces":
			e.full, e.lock = matches(value, namespace), matches(value, lockNamespace)
		case "valid-after":
			e.after, err = parseTime(value)
		case "valid-before":
			e.till, err = parseTime(value)
		default:
			err = errors.New("there is no such option; there are namespaces, valid-after and valid-before")
		}
		if err != nil {
			return entry{}, fmt.Errorf("the option %s: %w", name, err)
		}
	}
	if !e.after.IsZero() && !e.till.IsZero() && !e.after.Before(e.till) {
		return entry{}, errors.New("valid-before is not after valid-after")
	}
	return e, nil
}

// supported returns an error for keys whose signatures are not accepted.
func supported(key ssh.PublicKey) error {
	switch t := key.Type(); t {
	case ssh.KeyAlgoRSA, ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return nil
	default:
		return fmt.Errorf("keys of the type %s are not supported", t)
	}
}

// matches reports whether a list of patterns, as in ssh_config(5), has a name.
func matches(patterns, name string) bool {
	found := false
	for pattern := range strings.SplitSeq(patterns, ",") {
		pattern, not := strings.CutPrefix(pattern, "!")
		if glob(pattern, name) {
			if not {
				return false
			}
			found = true
		}
	}
	return found
}

// glob reports whether a name matches a pattern with * and ?.
func glob(pattern, name string) bool {
	star, from := -1, 0 // the last *, and where what it stands for ends
	p := 0
	for i := 0; i < len(name); {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[i]):
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// parseTime parses a date, or a time, which is local or with a Z at its end in UTC.
func parseTime(s string) (time.Time, error) {
	zone := time.Local
	if u, ok := strings.CutSuffix(s, "Z"); ok {
		s, zone = u, time.UTC
	}
	layout := map[int]string{8: "20060102", 12: "200601021504", 14: "20060102150405"}[len(s)]
	t, err := time.ParseInLocation(cmp.Or(layout, "-"), s, zone)
	if err != nil {
		return t, fmt.Errorf("%q is no time: want YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with a Z at the end for UTC", s)
	}
	return t, nil
}

// verifySSH verifies an SSH signature (PROTOCOL.sshsig of OpenSSH) of a commit, and returns who
// signed. A signature has no time: as for git, it is the committer's.
func (k *Keys) verifySSH(c parts) (by string, lockOnly bool, err error) {
	sig, err := sshsig.Unarmor(c.signature)
	if err == nil {
		err = supported(sig.PublicKey)
	}
	if err != nil {
		return "", false, fmt.Errorf("its SSH signature cannot be used: %w", err)
	}
	key, name := sig.PublicKey.Marshal(), sshName(sig.PublicKey)
	full, lock := false, k.own != nil && bytes.Equal(key, k.own.key.PublicKey().Marshal())
	known := lock
	for _, e := range k.ssh {
		if !bytes.Equal(e.key, key) {
			continue
		}
		known = known || e.full || e.lock
		if c.committed.Before(e.after) || !e.till.IsZero() && c.committed.After(e.till) {
			continue
		}
		full, lock = full || e.full, lock || e.lock
	}
	switch {
	case !known:
		return "", false, fmt.Errorf("it is signed by a key that is not trusted, %s", name)
	case sig.Namespace != namespace:
		return "", false, fmt.Errorf("its signature by %s is for something else: the namespace is %q, not %q", name, sig.Namespace, namespace)
	case sshsig.Verify(bytes.NewReader(c.payload), sig, sig.PublicKey, sig.HashAlgorithm, namespace) != nil:
		return "", false, fmt.Errorf(changed, name)
	case !full && !lock:
		return "", false, fmt.Errorf("it is signed by %s at a time when the key was not valid, %s (valid-after, valid-before)", name, c.committed.UTC().Format(time.DateTime))
	}
	return name, !full, nil
}

func sshName(key ssh.PublicKey) string {
	return "SSH key " + ssh.FingerprintSHA256(key) + " (" + key.Type() + ")"
}

// Signer signs commits by an SSH key.
type Signer struct{ key ssh.Signer }

// NewSigner returns the signer of a private key, as ssh-keygen writes it. It fails if the key
// has a passphrase.
func NewSigner(private []byte) (*Signer, error) {
	key, err := ssh.ParsePrivateKey(private)
	if _, locked := errors.AsType[*ssh.PassphraseMissingError](err); locked {
		return nil, errors.New("it has a passphrase, which nobody can be asked for here: use a key without")
	}
	if err == nil {
		err = supported(key.PublicKey())
	}
	if err != nil {
		return nil, err
	}
	return &Signer{key: key}, nil
}

// Sign returns a commit object with a signature. It fails if it has one already, or is malformed.
func (s *Signer) Sign(object []byte) ([]byte, error) {
	parts, err := split(object)
	if err != nil {
		return nil, err
	}
	if len(parts.payload) != len(object) {
		return nil, errors.New("it is signed already")
	}
	sig, err := sshsig.Sign(bytes.NewReader(object), s.key, sshsig.HashSHA512, namespace)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSuffix(string(sshsig.Armor(sig)), "\n")
	header := signatureHeader + " " + strings.ReplaceAll(text, "\n", "\n ") + "\n"
	// After all other headers, as git puts it.
	at := len(object) - len(parts.message)
	return append(append(bytes.Clone(object[:at]), header...), object[at:]...), nil
}
