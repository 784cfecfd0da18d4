// Package signature verifies that packages are signed by those whom a cluster's
// ImageConfigs name, as cosign signs: with a key, or keyless with a certificate
// of a Sigstore instance.
//
// It owns where signatures are looked for (find.go), what makes one good
// (check.go), what a person reads of one that is not (refusal.go), and the
// evidence that is kept of one that was (record.go). What is signed is a digest,
// the one that is pulled next; how tags become digests is sources/resolve's
// business, how bytes come here sources/oci's, and which policy a package has
// is decided in sources.ImageConfigs.
//
// It is the only package that imports sigstore's libraries.
package signature

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"gitopsd.dev/sources"
)

// Registry is what signatures are read from; *oci.Client is one.
type Registry interface {
	// Resolve returns the digest of a tag.
	Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error)
	// Manifest returns a manifest that has digest d.
	Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error)
	// Blob returns size bytes that have digest d: reading to the end fails if
	// they do not.
	Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error)
	// Referrers lists the manifests of a type that refer to a digest.
	Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error)
}

// Config is what a Verifier works with. The zero value verifies signatures by
// keys that stand in the policy, and keeps nothing.
type Config struct {
	// Key returns a public key that does not stand in the policy, as PEM.
	Key func(context.Context, *sources.VerificationKey) ([]byte, error)
	// TrustRootFile is the trusted_root.json of the Sigstore instance that
	// certifies keyless signers. It is read for each verification, so that one
	// that was renewed is taken up. Without one no keyless signature is good.
	TrustRootFile string
	// Dir is where evidence is kept; empty for nowhere.
	Dir string
	// Log gets a warning when Dir cannot be used. Default: none.
	Log *slog.Logger
}

// Verifier verifies signatures. It is safe for concurrent use.
type Verifier struct {
	cfg     Config
	records *records
}

// New makes a Verifier. It reads nothing.
func New(cfg Config) *Verifier {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	v := &Verifier{cfg: cfg}
	if cfg.Dir != "" {
		v.records = &records{dir: cfg.Dir, log: cfg.Log}
	}
	return v
}

// Verify checks that one authority of the policy has signed digest d of a
// repository, and says which, for instance "signed by key platform (ImageConfig
// cosign)".
//
// The signatures that it was satisfied with are kept under the digest and all of
// the policy, keys and trust root included, and are enough the next time: the
// registry is not asked again, but they are checked again. A package that is not
// signed as it must be is a *Refusal; other errors say that it could not be
// found out.
func (v *Verifier) Verify(ctx context.Context, reg Registry, repository string, d sources.Digest, policy *sources.Verification) (string, error) {
	subject := repository + "@" + string(d)
	authorities, key := v.authorities(ctx, d, policy)
	if kept := v.records.read(key); kept != nil {
		c := newChecks(d, authorities)
		for _, e := range kept {
			if good := c.check(e); good != nil {
				return good.says(policy), nil
			}
		}
	}
	c := newChecks(d, authorities)
	var good *verdict
	f := finder{reg: reg, repository: repository, digest: d, attestations: c.wantsAttestations()}
	err := f.find(ctx, func(e evidence) bool {
		good = c.check(e)
		return good == nil
	})
	switch {
	case good != nil:
		v.records.write(key, good.evidence)
		return good.says(policy), nil
	case err != nil:
		return "", fmt.Errorf("looking for signatures: %w", err)
	}
	for _, a := range authorities {
		if a.err != nil {
			return "", fmt.Errorf("%s: ImageConfig %s: %w", subject, policy.ImageConfig, a.err)
		}
	}
	return "", &Refusal{Subject: subject, ImageConfig: policy.ImageConfig, Wanted: c.wanted(), Found: c.found(f.dropped)}
}

// authority is a sources.Authority with its key or trust root at hand.
type authority struct {
	sources.Authority
	key  signature.Verifier
	root *root.TrustedRoot
	// err is why it has neither, and can accept nothing.
	err error
}

// authorities gets everything at hand that a policy needs, as far as it can, and
// the key of the evidence that satisfies it.
func (v *Verifier) authorities(ctx context.Context, d sources.Digest, policy *sources.Verification) ([]authority, sources.Digest) {
	material := []any{d, policy}
	var all []authority
	for _, a := range policy.Authorities {
		ready := authority{Authority: a}
		var used []byte
		if a.Key != nil {
			ready.key, used, ready.err = v.key(ctx, a.Key)
		} else {
			ready.root, used, ready.err = v.trustRoot()
		}
		if ready.err != nil {
			ready.err = fmt.Errorf("authority %s: %w", a.Name, ready.err)
		}
		all = append(all, ready)
		material = append(material, sources.DigestOf(used))
	}
	text, _ := json.Marshal(material) // of strings, which cannot fail
	return all, sources.DigestOf(text)
}

var hashes = map[string]crypto.Hash{"sha224": crypto.SHA224, "sha256": crypto.SHA256, "sha384": crypto.SHA384, "sha512": crypto.SHA512}

// key loads a public key, and returns the text that it was loaded from.
func (v *Verifier) key(ctx context.Context, k *sources.VerificationKey) (signature.Verifier, []byte, error) {
	text := []byte(k.PEM)
	if len(text) == 0 {
		if v.cfg.Key == nil {
			return nil, nil, fmt.Errorf("there is no place to look for the public key in Secret %s", k.Secret)
		}
		var err error
		if text, err = v.cfg.Key(ctx, k); err != nil {
			return nil, nil, err
		}
	}
	where := fmt.Sprintf("key %q of Secret %s", k.Entry, k.Secret)
	// The causes may quote what was read, which may be something else.
	public, err := cryptoutils.UnmarshalPEMToPublicKey(bytes.TrimSpace(text))
	if err != nil || public == nil {
		return nil, nil, fmt.Errorf("%s is not a public key in PEM, as cosign generate-key-pair writes to cosign.pub", where)
	}
	verifier, err := signature.LoadVerifier(public, hashes[cmp.Or(k.Hash, "sha256")])
	if err != nil {
		return nil, nil, fmt.Errorf("%s is a public key of a kind that is not known, or too small a one", where)
	}
	return verifier, text, nil
}

// maxTrustRoot bounds the file, in bytes; the public instance's has 7,000.
const maxTrustRoot = 4 << 20

var errNoTrustRoot = errors.New("keyless signatures need the trusted_root.json of the Sigstore instance that certifies their signers: name the file with --trust-root " +
	"(`cosign trusted-root create` writes one, with --with-default-services for the public instance)")

// trustRoot loads the trust root.
func (v *Verifier) trustRoot() (*root.TrustedRoot, []byte, error) {
	if v.cfg.TrustRootFile == "" {
		return nil, nil, errNoTrustRoot
	}
	f, err := os.Open(v.cfg.TrustRootFile)
	if err != nil {
		return nil, nil, fmt.Errorf("--trust-root: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTrustRoot+1))
	if err == nil && len(text) > maxTrustRoot {
		err = fmt.Errorf("more than %d bytes", maxTrustRoot)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("--trust-root %s: %w", v.cfg.TrustRootFile, err)
	}
	r, err := root.NewTrustedRootFromJSON(text)
	if err != nil {
		return nil, nil, fmt.Errorf("--trust-root %s: not a trusted_root.json: %s", v.cfg.TrustRootFile, printable(err.Error()))
	}
	return r, text, nil
}
