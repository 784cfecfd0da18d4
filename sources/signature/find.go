package signature

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
)

// Limits for one package. Everyone who may write to a repository may put any number of
// signatures there.
const (
	// maxSignatures bounds the signatures that are read.
	maxSignatures = 100
	// maxSignatureBytes bounds one signature with its statement; an SBOM has
	// some megabytes.
	maxSignatureBytes = 16 << 20
	// maxSignaturesBytes bounds all of them.
	maxSignaturesBytes = 64 << 20
)

// Media types of evidence.
const (
	// bundleType is a Sigstore bundle (cosign 3), attached as a referrer.
	bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// simpleType is a payload of the simple signing format (cosign 1 and 2),
	// under the tag sha256-<hex>.sig; its signature is in annotations.
	simpleType = "application/vnd.dev.cosign.simplesigning.v1+json"
	// envelopeType is an attestation in a DSSE envelope (cosign 1 and 2), under
	// the tag sha256-<hex>.att.
	envelopeType = "application/vnd.dsse.envelope.v1+json"
)

// Annotations of a layer that holds a payload or an envelope.
const (
	signatureAnnotation   = "dev.cosignproject.cosign/signature"
	certificateAnnotation = "dev.sigstore.cosign/certificate"
	logAnnotation         = "dev.sigstore.cosign/bundle"
	timestampAnnotation   = "dev.sigstore.cosign/rfc3161timestamp"
)

// evidence is one signature, untrusted and complete.
type evidence struct {
	// Type is one of the media types above.
	Type    string `json:"type"`
	Content []byte `json:"content"`
	// Annotations of the layer that are about signatures.
	Annotations map[string]string `json:"annotations,omitempty"`
}

// finder looks for signatures of a digest.
type finder struct {
	reg          Registry
	repository   string
	digest       sources.Digest
	attestations bool // also look under the tag for attestations

	seen, bytes int64
	// dropped counts signatures that were not read.
	dropped int
}

// errEnough ends a search.
var errEnough = errors.New("enough")

// find passes evidence to take until that returns false. Evidence that is missing, too
// large or malformed is not an error, so that it cannot hide a valid signature.
func (f *finder) find(ctx context.Context, take func(evidence) bool) error {
	err := f.bundles(ctx, take)
	if err == nil {
		err = f.tagged(ctx, ".sig", simpleType, take)
	}
	if err == nil && f.attestations {
		err = f.tagged(ctx, ".att", envelopeType, take)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// descriptor is a layer of a manifest.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
}

// bundles finds bundles that refer to the digest.
func (f *finder) bundles(ctx context.Context, take func(evidence) bool) error {
	referrers, err := f.reg.Referrers(ctx, f.repository, f.digest, bundleType)
	if err != nil {
		return err
	}
	for _, d := range referrers {
		if f.full() {
			continue
		}
		f.seen++
		layers, err := f.layers(ctx, d)
		if errors.Is(err, sources.ErrNotFound) {
			f.dropped++
			continue
		} else if err != nil {
			return err
		}
		for _, l := range layers {
			if l.MediaType == bundleType {
				if err := f.layer(ctx, l, take); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// tagged finds evidence under the tag of the digest with a suffix.
func (f *finder) tagged(ctx context.Context, suffix, mediaType string, take func(evidence) bool) error {
	tag := strings.Replace(string(f.digest), ":", "-", 1) + suffix
	d, err := f.reg.Resolve(ctx, sources.Ref{Repository: f.repository, Tag: tag})
	if errors.Is(err, sources.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	layers, err := f.layers(ctx, d)
	if errors.Is(err, sources.ErrNotFound) {
		f.dropped++
		return nil
	} else if err != nil {
		return err
	}
	for _, l := range layers {
		if l.MediaType != mediaType || f.full() {
			continue
		}
		f.seen++
		if err := f.layer(ctx, l, take); err != nil {
			return err
		}
	}
	return nil
}

// full reports whether there are too many signatures, and counts the one left out.
func (f *finder) full() bool {
	if f.seen < maxSignatures {
		return false
	}
	f.dropped++
	return true
}

// layers returns the layers of a manifest. A malformed one has none.
func (f *finder) layers(ctx context.Context, d sources.Digest) ([]descriptor, error) {
	raw, err := f.reg.Manifest(ctx, f.repository, d)
	if err != nil {
		return nil, err
	}
	var manifest struct {
		Layers []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(raw, &manifest); err != nil {
		f.dropped++
		return nil, nil
	}
	return manifest.Layers, nil
}

// layer reads a layer and passes it on.
func (f *finder) layer(ctx context.Context, l descriptor, take func(evidence) bool) error {
	d, err := sources.ParseDigest(l.Digest)
	if err != nil || l.Size <= 0 || l.Size > maxSignatureBytes || f.bytes+l.Size > maxSignaturesBytes {
		f.dropped++
		return nil
	}
	f.bytes += l.Size
	content, err := f.blob(ctx, d, l.Size)
	var mismatch *oci.MismatchError
	switch {
	case errors.Is(err, sources.ErrNotFound), errors.As(err, &mismatch):
		f.dropped++
		return nil
	case err != nil:
		return err
	}
	e := evidence{Type: l.MediaType, Content: content}
	for _, key := range []string{signatureAnnotation, certificateAnnotation, logAnnotation, timestampAnnotation} {
		if v, ok := l.Annotations[key]; ok {
			if e.Annotations == nil {
				e.Annotations = make(map[string]string)
			}
			e.Annotations[key] = v
		}
	}
	if !take(e) {
		return errEnough
	}
	return nil
}

func (f *finder) blob(ctx context.Context, d sources.Digest, size int64) ([]byte, error) {
	r, err := f.reg.Blob(ctx, f.repository, d, size)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	content, err := io.ReadAll(io.LimitReader(r, size+1))
	if err == nil && int64(len(content)) != size {
		err = fmt.Errorf("%s@%s: have %d bytes, want %d", f.repository, d, len(content), size)
	}
	return content, err
}
