package sigstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
)

// Media types of attachments to an image.
const (
	SimpleType   = "application/vnd.dev.cosign.simplesigning.v1+json"
	EnvelopeType = "application/vnd.dsse.envelope.v1+json"
	BundleType   = "application/vnd.dev.sigstore.bundle.v0.3+json"

	manifestType = "application/vnd.oci.image.manifest.v1+json"
	emptyType    = "application/vnd.oci.empty.v1+json"
)

// SignPredicate is the predicate type of the statement with which cosign 3 signs
// an image.
const SignPredicate = "https://sigstore.dev/cosign/sign/v1"

// Layer is a stored signature.
type Layer struct {
	Type        string
	Content     []byte
	Annotations map[string]string
}

// Simple signs a digest in the simple signing format, as cosign 2 does.
func (s *Signer) Simple(d sources.Digest) (Layer, error) {
	return s.SimplePayload([]byte(fmt.Sprintf(`{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"},"optional":null}`, d)))
}

// SimplePayload signs any payload in the same way.
func (s *Signer) SimplePayload(payload []byte) (Layer, error) {
	sig, err := sign(s.key, payload)
	if err != nil {
		return Layer{}, err
	}
	l := Layer{Type: SimpleType, Content: payload, Annotations: map[string]string{"dev.cosignproject.cosign/signature": base64.StdEncoding.EncodeToString(sig)}}
	if s.cert == nil {
		return l, nil
	}
	hash := sha256.Sum256(payload)
	return l, s.annotate(&l, map[string]any{
		"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": map[string]any{
			"data":      map[string]any{"hash": map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(hash[:])}},
			"signature": map[string]any{"content": sig, "publicKey": map[string]any{"content": s.certificatePEM()}},
		},
	})
}

// annotate adds the certificate and the log's promise.
func (s *Signer) annotate(l *Layer, body map[string]any) error {
	l.Annotations["dev.sigstore.cosign/certificate"] = string(s.certificatePEM())
	if s.Unlogged {
		return nil
	}
	e, err := s.log(body)
	if err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{"SignedEntryTimestamp": e.promise, "Payload": s.payload(e)})
	l.Annotations["dev.sigstore.cosign/bundle"] = string(text)
	return err
}

// envelope signs a statement about a digest.
func (s *Signer) envelope(d sources.Digest, predicateType string) (envelope map[string]any, payload, sig []byte, err error) {
	payload, err = json.Marshal(map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "predicateType": predicateType, "predicate": map[string]any{"by": "test"},
		"subject": []any{map[string]any{"name": "image", "digest": map[string]any{"sha256": d.Hex()}}},
	})
	if err != nil {
		return nil, nil, nil, err
	}
	const payloadType = "application/vnd.in-toto+json"
	sig, err = sign(s.key, fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(payloadType), payloadType, len(payload), payload))
	return map[string]any{"payloadType": payloadType, "payload": payload, "signatures": []any{map[string]any{"sig": sig}}}, payload, sig, err
}

func (s *Signer) logEnvelope(envelope map[string]any, payload, sig []byte) (map[string]any, error) {
	text, err := json.Marshal(envelope)
	if err != nil {
		return nil, err
	}
	hash, payloadHash := sha256.Sum256(text), sha256.Sum256(payload)
	return map[string]any{
		"apiVersion": "0.0.1", "kind": "dsse", "spec": map[string]any{
			"envelopeHash": map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(hash[:])},
			"payloadHash":  map[string]any{"algorithm": "sha256", "value": hex.EncodeToString(payloadHash[:])},
			"signatures":   []any{map[string]any{"signature": base64.StdEncoding.EncodeToString(sig), "verifier": s.certificatePEM()}},
		},
	}, nil
}

// Attest signs a statement about a digest, as cosign 2 stores it.
func (s *Signer) Attest(d sources.Digest, predicateType string) (Layer, error) {
	envelope, payload, sig, err := s.envelope(d, predicateType)
	if err != nil {
		return Layer{}, err
	}
	l := Layer{Type: EnvelopeType, Annotations: map[string]string{"dev.cosignproject.cosign/signature": ""}}
	if l.Content, err = json.Marshal(envelope); err != nil || s.cert == nil {
		return l, err
	}
	body, err := s.logEnvelope(envelope, payload, sig)
	if err != nil {
		return l, err
	}
	return l, s.annotate(&l, body)
}

// Bundle signs a statement about a digest in a Sigstore bundle, as cosign 3 does.
func (s *Signer) Bundle(d sources.Digest, predicateType string) (Layer, error) {
	envelope, payload, sig, err := s.envelope(d, predicateType)
	if err != nil {
		return Layer{}, err
	}
	material := map[string]any{"publicKey": map[string]any{"hint": "test"}}
	if s.cert != nil {
		material = map[string]any{"certificate": map[string]any{"rawBytes": s.cert.Raw}}
		if !s.Unlogged {
			body, err := s.logEnvelope(envelope, payload, sig)
			if err != nil {
				return Layer{}, err
			}
			e, err := s.log(body)
			if err != nil {
				return Layer{}, err
			}
			proof, err := s.proof(e)
			if err != nil {
				return Layer{}, err
			}
			material["tlogEntries"] = []any{map[string]any{
				"logIndex": "0", "logId": map[string]any{"keyId": logID(s.by.logKey)}, "kindVersion": map[string]any{"kind": "dsse", "version": "0.0.1"},
				"integratedTime": strconv.FormatInt(e.at, 10), "inclusionPromise": map[string]any{"signedEntryTimestamp": e.promise},
				"inclusionProof": proof, "canonicalizedBody": e.body,
			}}
		}
	}
	text, err := json.Marshal(map[string]any{"mediaType": BundleType, "verificationMaterial": material, "dsseEnvelope": envelope})
	return Layer{Type: BundleType, Content: text}, err
}

// Push attaches layers to a digest of a repository: bundles as referrers, one
// each; the others replace what is under the tags that cosign 2 gives them.
func Push(ctx context.Context, c *oci.Client, repository string, d sources.Digest, layers ...Layer) error {
	byTag := make(map[string][]Layer)
	for _, l := range layers {
		tag := strings.Replace(string(d), ":", "-", 1)
		switch l.Type {
		case BundleType:
			if err := push(ctx, c, sources.Ref{Repository: repository}, d, l); err != nil {
				return err
			}
		case EnvelopeType:
			byTag[tag+".att"] = append(byTag[tag+".att"], l)
		default:
			byTag[tag+".sig"] = append(byTag[tag+".sig"], l)
		}
	}
	for tag, layers := range byTag {
		if err := push(ctx, c, sources.Ref{Repository: repository, Tag: tag}, "", layers...); err != nil {
			return err
		}
	}
	return nil
}

// push pushes a manifest with layers, which refers to subject if there is one.
func push(ctx context.Context, c *oci.Client, ref sources.Ref, subject sources.Digest, layers ...Layer) error {
	blob := func(mediaType string, content []byte, annotations map[string]string) (map[string]any, error) {
		d := sources.DigestOf(content)
		err := c.PushBlob(ctx, ref.Repository, d, int64(len(content)), func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content)), nil
		})
		desc := map[string]any{"mediaType": mediaType, "digest": d, "size": len(content)}
		if annotations != nil {
			desc["annotations"] = annotations
		}
		return desc, err
	}
	config, err := blob(emptyType, []byte("{}"), nil)
	if err != nil {
		return err
	}
	manifest := map[string]any{"schemaVersion": 2, "mediaType": manifestType, "config": config}
	if subject != "" {
		raw, err := c.Manifest(ctx, ref.Repository, subject)
		if err != nil {
			return err
		}
		manifest["artifactType"] = layers[0].Type
		manifest["subject"] = map[string]any{"mediaType": manifestType, "digest": subject, "size": len(raw)}
	}
	var list []any
	for _, l := range layers {
		desc, err := blob(l.Type, l.Content, l.Annotations)
		if err != nil {
			return err
		}
		list = append(list, desc)
	}
	manifest["layers"] = list
	text, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	if subject != "" {
		ref.Digest = sources.DigestOf(text)
	}
	return c.PushManifest(ctx, ref, manifestType, text)
}
