// Package signature verifies that packages are signed, as cosign signs, by the
// authorities in a cluster's ImageConfigs: with a key, or keyless with a
// certificate of a Sigstore instance.
//
// It finds signatures (find.go), checks each (check.go) for all authorities
// (evaluate.go), explains a refusal (refusal.go), and keeps the evidence of a
// valid signature (record.go). Signatures are of digests: sources/resolve turns tags into
// digests. sources/oci reads from registries, and sources.ImageConfigs has the policy of a
// package.
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

// Registry reads signatures; *oci.Client is one. The error of each method is
// [sources.ErrNotFound] if the registry does not have the content.
type Registry interface {
	// Resolve returns the digest of a tag.
	Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error)
	// Manifest returns the manifest with digest d. It fails if the registry
	// sends anything else.
	Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error)
	// Blob returns the content of size bytes with digest d. Reading to the end
	// fails if the registry sends anything else.
	Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error)
	// Referrers returns the manifests of a type that refer to a digest.
	Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error)
}

// Config configures a [Verifier]. The zero value verifies signatures by keys in
// the policy, and keeps no evidence.
type Config struct {
	// Key returns a public key that is not in the policy itself, as PEM. If it is nil,
	// no such key is accepted.
	Key func(context.Context, *sources.VerificationKey) ([]byte, error)
	// TrustRootFile is the trusted_root.json of the Sigstore instance that
	// certifies keyless signers. It is read for each verification, so that it
	// may be replaced at any time. Without it no keyless signature is accepted.
	TrustRootFile string
	// Dir is the directory for evidence; empty to keep none.
	Dir string
	// Log gets a warning when Dir cannot be used. It may be nil.
	Log *slog.Logger
}

// Verifier verifies signatures. It is safe for concurrent use.
type Verifier struct {
	cfg     Config
	records *records
}

// New returns a Verifier. It reads no files.
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

// Verify checks that an authority of the policy has signed digest d of a
// repository, and returns a description, for instance "signed by key platform
// (ImageConfig cosign)".
//
// The evidence is kept under the digest and the policy with its keys and trust root, and
// is checked again the next time, without the registry. The error is a [*Refusal] if the
// package is not signed as required; other errors mean that this could not be
// determined.
func (v *Verifier) Verify(ctx context.Context, reg Registry, repository string, d sources.Digest, policy *sources.Verification) (string, error) {
	subject := repository + "@" + string(d)
	authorities, key := v.authorities(ctx, d, policy)
	if kept := v.records.read(key); kept != nil {
		b := newEvaluation(d, authorities)
		for _, e := range kept {
			if good := b.add(e); good != nil {
				return good.describe(policy), nil
			}
		}
	}
	b := newEvaluation(d, authorities)
	var good *result
	f := finder{reg: reg, repository: repository, digest: d, attestations: b.wantsAttestations()}
	err := f.find(ctx, func(e evidence) bool {
		good = b.add(e)
		return good == nil
	})
	switch {
	case good != nil:
		v.records.write(key, good.evidence)
		return good.describe(policy), nil
	case err != nil:
		return "", fmt.Errorf("looking for signatures: %w", err)
	}
	for _, a := range authorities {
		if a.err != nil {
			return "", fmt.Errorf("%s: ImageConfig %s: %w", subject, policy.ImageConfig, a.err)
		}
	}
	return "", &Refusal{Subject: subject, ImageConfig: policy.ImageConfig, Wanted: b.wanted(), Found: b.found(f.dropped)}
}

// authority is a sources.Authority with its key or trust root.
type authority struct {
	sources.Authority
	key  signature.Verifier
	root *root.TrustedRoot
	// err is why it has neither; then it accepts nothing.
	err error
}

// authorities returns the authorities of a policy with their keys and trust roots, and the
// key for the evidence in records.
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

// key loads a public key, and returns its text.
func (v *Verifier) key(ctx context.Context, k *sources.VerificationKey) (signature.Verifier, []byte, error) {
	text := []byte(k.PEM)
	if len(text) == 0 {
		if v.cfg.Key == nil {
			return nil, nil, fmt.Errorf("the public key in Secret %s cannot be read here", k.Secret)
		}
		var err error
		if text, err = v.cfg.Key(ctx, k); err != nil {
			return nil, nil, err
		}
	}
	where := fmt.Sprintf("key %q of Secret %s", k.Entry, k.Secret)
	// The causes may quote the text, which may be something else than a public
	// key.
	public, err := cryptoutils.UnmarshalPEMToPublicKey(bytes.TrimSpace(text))
	if err != nil || public == nil {
		return nil, nil, fmt.Errorf("%s is not a public key in PEM, as cosign generate-key-pair writes to cosign.pub", where)
	}
	verifier, err := signature.LoadVerifier(public, hashes[cmp.Or(k.Hash, "sha256")])
	if err != nil {
		return nil, nil, fmt.Errorf("%s is a public key of an unsupported type, or too small", where)
	}
	return verifier, text, nil
}

// maxTrustRoot bounds the file, in bytes. The public instance's has 7,000.
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
