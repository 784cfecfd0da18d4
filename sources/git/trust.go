package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/signed"
	"gitopsd.dev/sources/git/wire"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// maxLocks bounds how many commits of the lock may follow each other, so that a bounded number
// of commits is fetched to verify one. It holds for a process that knows them too: it must not
// commit what the next process refuses.
const maxLocks = 100

// trust decides which commits are acted upon, and signs those of the daemon. A commit must be
// signed by a trusted key, or by the daemon's, if it changes the lock alone, on a parent for
// which this holds again. The signature of the head counts: the parents of a commit that is
// signed by a trusted key are not looked at.
type trust struct {
	openPGP, ssh, signing string // files; may be empty

	mu      sync.Mutex
	content [][]byte // of the files, in that order
	current keyring
	err     error
}

// keyring is what the files had when they were read last.
type keyring struct {
	keys   *signed.Keys
	signer *signed.Signer // nil without a signing key
	// verdicts are about commits, by these keys. trust.mu guards them.
	verdicts map[plumbing.Hash]verdict
}

// verdict is whether a commit may be acted upon.
type verdict struct {
	refused *refusal // nil if it may
	locks   int      // how many commits of the lock end with it
}

// openTrust returns nil if no files are named.
func openTrust(cfg Config) (*trust, error) {
	if cfg.TrustedOpenPGPKeys == "" && cfg.TrustedSSHSigners == "" && cfg.SigningKeyFile == "" {
		return nil, nil
	}
	t := &trust{openPGP: cfg.TrustedOpenPGPKeys, ssh: cfg.TrustedSSHSigners, signing: cfg.SigningKeyFile}
	_, err := t.keyring()
	return t, err
}

// verifies reports whether commits must be signed.
func (t *trust) verifies() bool { return t != nil && (t.openPGP != "" || t.ssh != "") }

// keyring returns the keys in the files, which are parsed when they have changed. With an error
// in any of them nobody is trusted: which key it was to be is not known.
func (t *trust) keyring() (keyring, error) {
	var content [][]byte
	for _, name := range []string{t.openPGP, t.ssh, t.signing} {
		var text []byte
		if name != "" {
			var err error
			if text, err = os.ReadFile(name); err != nil {
				return keyring{}, fmt.Errorf("keys of signed commits: %w", err)
			}
		}
		content = append(content, text)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.content == nil || !slices.EqualFunc(content, t.content, bytes.Equal) {
		t.content = content
		t.current, t.err = t.parse(content)
	}
	return t.current, t.err
}

func (t *trust) parse(content [][]byte) (keyring, error) {
	k := keyring{keys: new(signed.Keys), verdicts: make(map[plumbing.Hash]verdict)}
	for i, f := range []struct {
		what, name string
		add        func([]byte) error
	}{
		{"trusted OpenPGP keys", t.openPGP, k.keys.AddOpenPGP},
		{"trusted SSH signers", t.ssh, k.keys.AddSSH},
		{"signing key", t.signing, func(text []byte) (err error) {
			if k.signer, err = signed.NewSigner(text); err == nil {
				k.keys.Own(k.signer)
			}
			return err
		}},
	} {
		if f.name == "" {
			continue
		}
		if err := f.add(content[i]); err != nil {
			return keyring{}, fmt.Errorf("%s: %s: %w", f.what, f.name, err)
		}
	}
	return k, nil
}

// known returns the verdict on a commit, if there is one.
func (t *trust) known(k keyring, h plumbing.Hash) (v verdict, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	v, ok = k.verdicts[h]
	return v, ok
}

// maxVerdicts bounds the memory for verdicts.
const maxVerdicts = 10 * maxLocks

func (t *trust) note(k keyring, h plumbing.Hash, v verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(k.verdicts) >= maxVerdicts {
		clear(k.verdicts)
	}
	k.verdicts[h] = v
}

// verify returns an error unless a commit may be acted upon, by the keys that the files have
// now. The second time with the same keys, it reads the files, and nothing else.
func (r *Repository) verify(ctx context.Context, h plumbing.Hash) error {
	if !r.trust.verifies() {
		return nil
	}
	k, err := r.trust.keyring()
	if err != nil {
		return err
	}
	_, err = r.verifyBy(ctx, k, h, 0)
	if refused, ok := errors.AsType[*refusal](err); ok {
		// Not those below, which may be refused only for the number of commits on them.
		r.trust.note(k, h, verdict{refused: refused})
		why := refused.why.Error()
		if refused.commit != h {
			why = fmt.Sprintf("it is of %s, by the daemon's key, on commit %s, and that is not trusted: %s", sources.LockFile, sources.ShortHash(refused.commit.String()), why)
		}
		return fmt.Errorf("commit %s %w: %s; look at what the branch has, and if it is right, push a commit that is signed by a trusted key (git commit --allow-empty -S)", sources.ShortHash(h.String()), ErrNotTrusted, why)
	}
	return err
}

// refusal is the reason why a commit is not acted upon: what is wrong with it, or with a commit
// below it.
type refusal struct {
	commit plumbing.Hash
	why    error
}

func (r *refusal) Error() string { return r.why.Error() }

// verifyBy verifies a commit, on which above commits of the lock were made, and returns the
// number of commits of the lock that end with it.
func (r *Repository) verifyBy(ctx context.Context, k keyring, h plumbing.Hash, above int) (locks int, err error) {
	if v, ok := r.trust.known(k, h); ok && v.refused != nil {
		return 0, v.refused
	} else if ok {
		return v.locks, nil
	}
	o, err := r.origin.snapshot(ctx, h)
	if errors.Is(err, wire.ErrUnknownObject) && above > 0 {
		err = fmt.Errorf("to verify a commit of %s, its parent is needed: %w; let the server speak version 2 of Git's protocol, or set uploadpack.allowReachableSHA1InWant there", sources.LockFile, err)
	}
	if err != nil {
		return 0, err
	}
	used, err := objects.ReadCommit(o, h)
	if err != nil {
		return 0, err
	}
	raw, err := o.Read(plumbing.CommitObject, h)
	if err != nil {
		return 0, err
	}
	c, err := k.keys.Verify(raw, time.Now())
	if err != nil {
		return 0, &refusal{h, err}
	}
	// The files are those of the commit as other code reads it.
	sameParents := slices.EqualFunc(used.ParentHashes, c.Parents, func(h plumbing.Hash, s string) bool { return h.String() == s })
	if used.TreeHash.String() != c.Tree || !sameParents {
		return 0, &refusal{h, errors.New("its object can be read in two ways")}
	}
	if c.LockOnly {
		if locks, err = r.verifyLock(ctx, k, o, used, above); err != nil {
			return 0, err
		}
	}
	r.trust.note(k, h, verdict{locks: locks})
	return locks, nil
}

// verifyLock verifies a commit by the daemon's key: it must change the lock alone, on a verified
// parent.
func (r *Repository) verifyLock(ctx context.Context, k keyring, o objects.Reader, c *object.Commit, above int) (locks int, err error) {
	if len(c.ParentHashes) != 1 {
		return 0, &refusal{c.Hash, fmt.Errorf("it is signed by the daemon's key, which is accepted for commits with one parent; it has %d", len(c.ParentHashes))}
	}
	if above == maxLocks {
		return 0, &refusal{c.Hash, fmt.Errorf("it is signed by the daemon's key, as the %d commits after it; somebody has to sign one of them, too", maxLocks)}
	}
	parent := c.ParentHashes[0]
	before, err := r.verifyBy(ctx, k, parent, above+1)
	if err != nil {
		return 0, err
	}
	if before >= maxLocks {
		return 0, &refusal{c.Hash, fmt.Errorf("it is signed by the daemon's key, as the %d commits before it; somebody has to sign one of them, too", maxLocks)}
	}
	alone, err := r.changesLock(ctx, o, c, parent)
	if err != nil {
		return 0, err
	}
	if !alone {
		return 0, &refusal{c.Hash, fmt.Errorf("it is signed by the daemon's key, which is accepted for changes of %s alone; see what it changes with git show %s", sources.LockFile, sources.ShortHash(c.Hash.String()))}
	}
	return before + 1, nil
}

// changesLock reports whether a commit differs from its parent in the lock alone.
func (r *Repository) changesLock(ctx context.Context, o objects.Reader, c *object.Commit, parent plumbing.Hash) (bool, error) {
	po, err := r.origin.snapshot(ctx, parent)
	if err != nil {
		return false, err
	}
	p, err := objects.ReadCommit(po, parent)
	if err != nil {
		return false, err
	}
	before, err := po.Read(plumbing.TreeObject, p.TreeHash)
	if err != nil {
		return false, err
	}
	after, err := o.Read(plumbing.TreeObject, c.TreeHash)
	if err != nil {
		return false, err
	}
	return objects.DifferOnly(before, after, sources.LockFile)
}

// sign returns the commit of the daemon on a verified head, signed if there is a key.
func (r *Repository) sign(ctx context.Context, head plumbing.Hash, c objects.Raw) (objects.Raw, error) {
	if r.trust == nil {
		return c, nil
	}
	k, err := r.trust.keyring()
	if err != nil {
		return c, err
	}
	if r.trust.verifies() {
		if k.signer == nil {
			return c, errors.New("only signed commits are acted upon, and there is no key to sign this one with (--signing-key)")
		}
		locks, err := r.verifyBy(ctx, k, head, 0)
		if err != nil {
			return c, err
		}
		if locks == maxLocks {
			return c, fmt.Errorf("the last %d commits are the daemon's own, and it does not accept one more: push a commit that is signed by a trusted key (git commit --allow-empty -S)", maxLocks)
		}
	}
	if k.signer == nil {
		return c, nil
	}
	raw, err := k.signer.Sign(c.Content)
	return objects.NewRaw(plumbing.CommitObject, raw), err
}
