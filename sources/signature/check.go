package signature

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protodsse "github.com/sigstore/protobuf-specs/gen/pb-go/dsse"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"gitopsd.dev/sources"
)

// signPredicate is the type of cosign 3's statement that only says that an image is
// signed.
const signPredicate = "https://sigstore.dev/cosign/sign/v1"

// proven is the content of a valid signature.
type proven struct {
	// predicateType of the signed statement; signPredicate for a plain
	// signature.
	predicateType string
	// issuer and subject of the signer's certificate; empty for a key.
	issuer, subject string
}

// check verifies that the authority signed the evidence, and that the evidence
// is about digest d. The evidence is untrusted until then.
func (a *authority) check(e evidence, d sources.Digest) (p proven, err error) {
	// If the libraries panic, the evidence is refused: it may be an attack.
	defer func() {
		if r := recover(); r != nil {
			p, err = proven{}, fmt.Errorf("it is malformed: %v", r)
		}
	}()
	switch e.Type {
	case simpleType:
		return a.checkSimple(e, d)
	case envelopeType:
		b, err := e.envelopeBundle(a.Key != nil)
		if err != nil {
			return proven{}, err
		}
		return a.checkBundle(b, artifact(d))
	default:
		b := new(bundle.Bundle)
		if err := b.UnmarshalJSON(e.Content); err != nil {
			return proven{}, fmt.Errorf("it is not a Sigstore bundle: %w", err)
		}
		return a.checkBundle(b, artifact(d))
	}
}

func artifact(d sources.Digest) verify.ArtifactPolicyOption {
	raw, _ := hex.DecodeString(d.Hex()) // a Digest is hexadecimal
	return verify.WithArtifactDigest("sha256", raw)
}

// checkSimple verifies a signature of the simple signing format: the payload is
// signed, and names the digest.
func (a *authority) checkSimple(e evidence, d sources.Digest) (proven, error) {
	claimed, err := parsePayload(e.Content)
	if err != nil {
		return proven{}, err
	}
	if claimed != d {
		return proven{}, fmt.Errorf("it is a signature of %s", claimed)
	}
	raw, err := base64.StdEncoding.DecodeString(e.Annotations[signatureAnnotation])
	if err != nil || len(raw) == 0 {
		return proven{}, errors.New("it has no signature")
	}
	if a.Key != nil {
		if err := a.key.VerifySignature(bytes.NewReader(raw), bytes.NewReader(e.Content)); err != nil {
			return proven{}, errOtherKey
		}
		return proven{predicateType: signPredicate}, nil
	}
	b, err := e.simpleBundle(raw)
	if err != nil {
		return proven{}, err
	}
	p, err := a.checkBundle(b, verify.WithArtifact(bytes.NewReader(e.Content)))
	p.predicateType = signPredicate
	return p, err
}

var errOtherKey = errors.New("it is not by this key")

// parsePayload returns the digest in a payload of the simple signing format. The name
// of the image is ignored: packages are signed under one name and copied to others.
func parsePayload(raw []byte) (sources.Digest, error) {
	var p struct {
		Critical struct {
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
			Type string `json:"type"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(raw, &p); err != nil {
		return "", errors.New("its payload is not in the simple signing format")
	}
	if p.Critical.Type != "cosign container image signature" {
		return "", fmt.Errorf("its payload is of type %q, not an image's signature", printable(p.Critical.Type))
	}
	return sources.ParseDigest(p.Critical.Image.Digest)
}

// checkBundle verifies a bundle by sigstore's rules.
func (a *authority) checkBundle(b *bundle.Bundle, about verify.ArtifactPolicyOption) (proven, error) {
	var material root.TrustedMaterial
	var options []verify.VerifierOption
	var policy []verify.PolicyOption
	if a.Key != nil {
		material = &keyMaterial{key: root.NewExpiringKey(a.key, time.Time{}, time.Time{})}
		options = append(options, verify.WithNoObserverTimestamps())
		policy = append(policy, verify.WithKey())
	} else {
		material = a.root
		// A certificate is valid for minutes: a trusted log or timestamp must
		// prove that the signature is from that time.
		options = append(options, verify.WithObserverTimestamps(1))
		if len(a.root.RekorLogs()) > 0 {
			options = append(options, verify.WithTransparencyLog(1))
		}
		if !a.Keyless.IgnoreSCT {
			options = append(options, verify.WithSignedCertificateTimestamps(1))
		}
		// The identity is checked below, where an error can name it.
		policy = append(policy, verify.WithoutIdentitiesUnsafe())
	}
	verifier, err := verify.NewVerifier(material, append(options, verify.WithoutStatementPredicate())...)
	if err != nil {
		return proven{}, err
	}
	result, err := verifier.Verify(b, verify.NewPolicy(about, policy...))
	if err != nil {
		return proven{}, err
	}
	p := proven{predicateType: signPredicate}
	if result.Statement != nil {
		p.predicateType = result.Statement.GetPredicateType()
	}
	if a.Keyless == nil {
		return p, nil
	}
	if result.Signature == nil || result.Signature.Certificate == nil {
		return proven{}, errors.New("it has no certificate")
	}
	p.issuer, p.subject = result.Signature.Certificate.Issuer, result.Signature.Certificate.SubjectAlternativeName
	if !a.Keyless.Allows(p.issuer, p.subject) {
		return proven{}, fmt.Errorf("its certificate is for %s, certified by %s", printable(p.subject), printable(p.issuer))
	}
	return p, nil
}

// keyMaterial trusts one key and nothing else.
type keyMaterial struct {
	root.BaseTrustedMaterial
	key root.TimeConstrainedVerifier
}

func (m *keyMaterial) PublicKeyVerifier(string) (root.TimeConstrainedVerifier, error) {
	return m.key, nil
}

// oldBundle is the version of bundles that, like the annotations of older signatures,
// has the log's promise instead of a proof.
const oldBundle = "application/vnd.dev.sigstore.bundle+json;version=0.1"

// simpleBundle makes a bundle of a payload's signature and annotations.
func (e evidence) simpleBundle(raw []byte) (*bundle.Bundle, error) {
	digest := sha256.Sum256(e.Content)
	material, err := e.material(false)
	if err != nil {
		return nil, err
	}
	return bundle.NewBundle(&protobundle.Bundle{
		MediaType:            oldBundle,
		VerificationMaterial: material,
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: digest[:]},
			Signature:     raw,
		}},
	})
}

// envelopeBundle makes a bundle of a DSSE envelope and its annotations.
func (e evidence) envelopeBundle(byKey bool) (*bundle.Bundle, error) {
	var envelope struct {
		PayloadType string `json:"payloadType"`
		Payload     []byte `json:"payload"`
		Signatures  []struct {
			Sig []byte `json:"sig"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(e.Content, &envelope); err != nil {
		return nil, errors.New("it is not a DSSE envelope")
	}
	content := &protodsse.Envelope{PayloadType: envelope.PayloadType, Payload: envelope.Payload}
	for _, s := range envelope.Signatures {
		content.Signatures = append(content.Signatures, &protodsse.Signature{Sig: s.Sig})
	}
	material, err := e.material(byKey)
	if err != nil {
		return nil, err
	}
	return bundle.NewBundle(&protobundle.Bundle{
		MediaType:            oldBundle,
		VerificationMaterial: material,
		Content:              &protobundle.Bundle_DsseEnvelope{DsseEnvelope: content},
	})
}

// material returns the certificate and the times in the annotations, or an empty key
// identifier for a key.
func (e evidence) material(byKey bool) (*protobundle.VerificationMaterial, error) {
	if byKey {
		return &protobundle.VerificationMaterial{Content: &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}}}, nil
	}
	block, _ := pem.Decode([]byte(e.Annotations[certificateAnnotation]))
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("it has no certificate")
	}
	m := &protobundle.VerificationMaterial{Content: &protobundle.VerificationMaterial_X509CertificateChain{
		X509CertificateChain: &protocommon.X509CertificateChain{Certificates: []*protocommon.X509Certificate{{RawBytes: block.Bytes}}},
	}}
	if text := e.Annotations[logAnnotation]; text != "" {
		entry, err := parseLogEntry([]byte(text))
		if err != nil {
			return nil, err
		}
		m.TlogEntries = append(m.TlogEntries, entry)
	}
	if text := e.Annotations[timestampAnnotation]; text != "" {
		var stamp struct {
			SignedRFC3161Timestamp []byte
		}
		if err := json.Unmarshal([]byte(text), &stamp); err != nil || len(stamp.SignedRFC3161Timestamp) == 0 {
			return nil, errors.New("its timestamp is malformed")
		}
		m.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp.SignedRFC3161Timestamp}},
		}
	}
	return m, nil
}

// parseLogEntry reads the annotation with a log's promise.
func parseLogEntry(text []byte) (*protorekor.TransparencyLogEntry, error) {
	var entry struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			Body           []byte `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogIndex       int64  `json:"logIndex"`
			LogID          string `json:"logID"`
		}
	}
	var kind struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	err := json.Unmarshal(text, &entry)
	if err == nil {
		err = json.Unmarshal(entry.Payload.Body, &kind)
	}
	id, hexErr := hex.DecodeString(entry.Payload.LogID)
	if err != nil || hexErr != nil {
		return nil, errors.New("its entry of the transparency log is malformed")
	}
	return &protorekor.TransparencyLogEntry{
		LogIndex:          entry.Payload.LogIndex,
		LogId:             &protocommon.LogId{KeyId: id},
		KindVersion:       &protorekor.KindVersion{Kind: kind.Kind, Version: kind.APIVersion},
		IntegratedTime:    entry.Payload.IntegratedTime,
		InclusionPromise:  &protorekor.InclusionPromise{SignedEntryTimestamp: entry.SignedEntryTimestamp},
		CanonicalizedBody: entry.Payload.Body,
	}, nil
}
