// Package signed decides who signed a commit, and signs commits as git does.
//
// commit.go splits a commit object into what is signed and the signature, openpgp.go and ssh.go
// have the two kinds of keys. The package reads no files and fetches nothing: sources/git reads
// commits and keys, and decides what a key that may only lock has changed.
package signed

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
)

// Keys are the keys whose signatures are accepted. The zero value accepts none. It is safe for
// concurrent use once all keys are added.
type Keys struct {
	openpgp openpgp.EntityList
	ssh     []entry
	own     *Signer
}

// Commit is what a verified signature covers.
type Commit struct {
	// Tree and Parents are the names of objects, in hexadecimal.
	Tree    string
	Parents []string
	// By is the key, for people.
	By string
	// LockOnly reports whether the key is accepted only for commits that change nothing but the
	// lock. Whether this is one is not verified.
	LockOnly bool
}

// Own adds the key that this process signs with. It is accepted for commits of the lock.
func (k *Keys) Own(s *Signer) { k.own = s }

// Verify returns what a commit object says, if it is signed by one of the keys. The expiry of a key
// is compared with the time of the signature, and only that of a signature with now: whoever
// removes a key from the file withdraws the trust, and time does not. The error says what is
// wrong with the commit, as in "it is not signed", and names the key.
func (k *Keys) Verify(object []byte, now time.Time) (c Commit, err error) {
	parts, err := split(object)
	if err != nil {
		return Commit{}, short(fmt.Errorf("its object is not as git writes it: %w", err))
	}
	c = Commit{Tree: parts.tree, Parents: parts.parents}
	switch {
	case parts.signature == nil:
		err = errors.New("it is not signed")
	case isBlock(parts.signature, openPGPBlock):
		err = recovered(func() (err error) {
			c.By, err = k.verifyOpenPGP(parts, now)
			return err
		})
	case isBlock(parts.signature, sshBlock):
		err = recovered(func() (err error) {
			c.By, c.LockOnly, err = k.verifySSH(parts)
			return err
		})
	default:
		err = errors.New("its signature is not one armored block of OpenPGP or SSH")
	}
	if err != nil {
		return Commit{}, short(err)
	}
	return c, nil
}

// mostSaid bounds an error in bytes. It may quote what anybody may have pushed.
const mostSaid = 500

func short(err error) error {
	text := err.Error()
	if len(text) <= mostSaid {
		return err
	}
	return errors.New(strings.ToValidUTF8(text[:mostSaid], "") + "…")
}

// changed is the error for a signature that does not verify, by a trusted key.
const changed = "its signature by %s does not verify: the commit is not what was signed"

// errNoKey is the error for a file without keys.
var errNoKey = errors.New("it is empty: nobody is trusted")

const (
	openPGPBlock = "PGP SIGNATURE"
	sshBlock     = "SSH SIGNATURE"
)

// isBlock reports whether a text is one armored block of a kind, and nothing else. Git hands
// the whole text to a program, which may skip what is around a block, or verify two.
func isBlock(text []byte, kind string) bool {
	text = bytes.TrimRight(text, "\r\n")
	return bytes.HasPrefix(text, []byte("-----BEGIN "+kind+"-----")) &&
		bytes.HasSuffix(text, []byte("\n-----END "+kind+"-----")) &&
		bytes.Count(text, []byte("-----BEGIN ")) == 1 && bytes.Count(text, []byte("-----END ")) == 1
}

// recovered turns a panic into an error. The libraries parse what anybody may have pushed.
func recovered(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it cannot be read: %v", p)
		}
	}()
	return f()
}
