package signed

import (
	"bytes"
	"crypto"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// AddOpenPGP adds the public keys in a text of armored blocks, as `gpg --armor --export` prints
// them. It fails if there is none, and if one of them cannot be read: a certificate that was left
// out could be the one that revokes a key.
func (k *Keys) AddOpenPGP(text []byte) error {
	begin, end := []byte("-----BEGIN "+openpgp.PublicKeyType+"-----"), []byte("-----END "+openpgp.PublicKeyType+"-----")
	before, rest := len(k.openpgp), bytes.TrimSpace(text)
	for at := bytes.Index(text, rest); len(rest) > 0; {
		line := 1 + bytes.Count(text[:at], []byte("\n"))
		size := bytes.Index(rest, end) + len(end)
		if !bytes.HasPrefix(rest, begin) || size < len(end) {
			return fmt.Errorf("line %d: expected an armored public key (gpg --armor --export KEY)", line)
		}
		if err := recovered(func() error { return k.addBlock(rest[:size]) }); err != nil {
			return fmt.Errorf("the key at line %d: %w", line, err)
		}
		after := bytes.TrimLeft(rest[size:], " \t\r\n")
		at, rest = at+len(rest)-len(after), after
	}
	if len(k.openpgp) == before {
		return errNoKey
	}
	return nil
}

func (k *Keys) addBlock(text []byte) error {
	block, err := armor.Decode(bytes.NewReader(text))
	if err != nil {
		return err
	}
	content, err := io.ReadAll(block.Body)
	if err != nil {
		return err
	}
	// ReadKeyRing leaves out keys with errors.
	for packets := packet.NewReader(bytes.NewReader(content)); ; {
		e, err := openpgp.ReadEntity(packets)
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if self, _ := e.PrimarySelfSignature(); self == nil {
			return fmt.Errorf("%s has no valid signature of its own", keyName(e.PrimaryKey))
		}
		same := func(other *openpgp.Entity) bool {
			return bytes.Equal(other.PrimaryKey.Fingerprint, e.PrimaryKey.Fingerprint)
		}
		if slices.ContainsFunc(k.openpgp, same) {
			return fmt.Errorf("%s is in the file twice, and one may be revoked or expired; keep the one that was exported last", keyName(e.PrimaryKey))
		}
		k.openpgp = append(k.openpgp, e)
	}
}

func keyName(key *packet.PublicKey) string { return fmt.Sprintf("OpenPGP key %X", key.Fingerprint) }

// strong are the hashes of signatures that are accepted.
var strong = []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512}

// verifyOpenPGP verifies a detached signature of a commit, and returns who signed.
func (k *Keys) verifyOpenPGP(c parts, now time.Time) (by string, err error) {
	sig, err := readSignature(c.signature)
	if err != nil {
		return "", fmt.Errorf("its OpenPGP signature cannot be used: %w", err)
	}
	known := k.openpgp.KeysById(*sig.IssuerKeyId) // several, if somebody made two with one ID
	if len(known) == 0 {
		id := fmt.Sprintf("%016X", *sig.IssuerKeyId)
		if len(sig.IssuerFingerprint) > 0 {
			id = fmt.Sprintf("%X", sig.IssuerFingerprint)
		}
		return "", fmt.Errorf("it is signed by a key that is not trusted, OpenPGP key %s", id)
	}
	for _, key := range known {
		h, err := sig.PrepareVerify()
		if err != nil {
			return "", err
		}
		h.Write(c.payload) // cannot fail
		if key.PublicKey.VerifySignature(h, sig) == nil {
			return keyName(key.PublicKey), usable(key, sig, now)
		}
	}
	return "", fmt.Errorf(changed, keyName(known[0].PublicKey))
}

// readSignature reads an armored signature. It must be the only one, and of the kind that git
// makes: a text signature would hold for other line breaks, too.
func readSignature(text []byte) (*packet.Signature, error) {
	block, err := armor.Decode(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(block.Body)
	if err != nil {
		return nil, err
	}
	r := bytes.NewReader(content)
	p, err := packet.Read(r)
	if err != nil {
		return nil, err
	}
	sig, ok := p.(*packet.Signature)
	switch {
	case !ok:
		return nil, errors.New("it is no signature")
	case r.Len() > 0:
		return nil, errors.New("there is more than one")
	case sig.SigType != packet.SigTypeBinary:
		return nil, errors.New("it is not over the bytes of a document")
	case sig.Version != 4 && sig.Version != 6:
		return nil, fmt.Errorf("version %d is not supported", sig.Version)
	case !slices.Contains(strong, sig.Hash):
		return nil, fmt.Errorf("its hash %s is not accepted; SHA-256, SHA-384 and SHA-512 are", sig.Hash)
	case sig.IssuerKeyId == nil:
		return nil, errors.New("it does not say which key made it")
	}
	for _, n := range sig.Notations {
		if n.IsCritical {
			return nil, fmt.Errorf("its critical notation %q is not known", n.Name)
		}
	}
	return sig, nil
}

// usable returns an error if a key that made a signature may not have done so.
func usable(key openpgp.Key, sig *packet.Signature, now time.Time) error {
	primary := key.Entity.PrimaryKey
	name := keyName(key.PublicKey)
	self, identity := key.Entity.PrimarySelfSignature()
	sub := key.PublicKey != primary
	// Flags may be absent on a primary key, which is for everything then. Only a subkey with
	// the flag has proven that it belongs to this primary key (VerifyKeySignature).
	if sub && !key.SelfSignature.FlagSign || !sub && self.FlagsValid && !self.FlagSign {
		return fmt.Errorf("it is signed by %s, which is not for signing", name)
	}
	// Who finds a revoked key may date a signature as they like, whatever the reason was.
	if len(key.Entity.Revocations)+len(key.Revocations) > 0 || identity != nil && identity.Revoked(now) {
		return fmt.Errorf("it is signed by %s, which is revoked", name)
	}
	made := sig.CreationTime
	if primary.KeyExpired(self, made) || sub && key.PublicKey.KeyExpired(key.SelfSignature, made) {
		return fmt.Errorf("it is signed by %s, which had expired then or was made later: the signature is of %s", name, made.UTC().Format(time.DateTime))
	}
	if sig.SigLifetimeSecs != nil && sig.SigExpired(now) {
		return fmt.Errorf("its signature by %s has expired", name)
	}
	return nil
}
