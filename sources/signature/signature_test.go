package signature

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/testscripts/registry"
	"gitopsd.dev/testscripts/sigstore"
)

const (
	issuer  = "https://issuer.example.org"
	subject = "https://git.example.org/acme/widgets/.ci/release"
)

// shop is a registry with one package to sign.
type shop struct {
	*registry.Registry
	client     *oci.Client
	repository string
	digest     sources.Digest
}

// newShop is a registry with a package, and a client of it that waits so long.
func newShop(t *testing.T, patience time.Duration) *shop {
	t.Helper()
	reg := registry.Start(t, registry.Config{})
	client, err := oci.New(oci.Config{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	s := &shop{Registry: reg, client: client, repository: reg.Host() + "/acme/widgets"}
	image := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"` + string(sources.DigestOf(nil)) + `","size":0},"layers":[]}`)
	s.digest = sources.DigestOf(image)
	if err := client.PushManifest(t.Context(), sources.Ref{Repository: s.repository, Tag: "v1"}, "application/vnd.oci.image.manifest.v1+json", image); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shop) push(t *testing.T, layers ...sigstore.Layer) {
	t.Helper()
	if err := sigstore.Push(t.Context(), s.client, s.repository, s.digest, layers...); err != nil {
		t.Fatal(err)
	}
}

// must returns a value that was made without an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func byKey(name string, s *sigstore.Signer, attestations ...sources.Attestation) sources.Authority {
	return sources.Authority{Name: name, Key: &sources.VerificationKey{Secret: name, Entry: "cosign.pub", Hash: "sha256", PEM: string(s.PublicKey())}, Attestations: attestations}
}

func keyless(id sources.Identity, attestations ...sources.Attestation) sources.Authority {
	return sources.Authority{Name: "ci", Keyless: &sources.Keyless{Identities: []sources.Identity{id}}, Attestations: attestations}
}

func policy(authorities ...sources.Authority) *sources.Verification {
	return &sources.Verification{ImageConfig: "signed", Authorities: authorities}
}

func trustRoot(t *testing.T, i *sigstore.Instance) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trusted_root.json")
	if err := os.WriteFile(name, i.TrustRoot(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// Verify accepts signatures of trusted authorities, and refuses others.
func TestVerify(t *testing.T) {
	t.Parallel()
	key, other := must(sigstore.NewKey()), must(sigstore.NewKey())
	instance, elsewhere := must(sigstore.New()), must(sigstore.New())
	signer := func(change func(*sigstore.Signer)) *sigstore.Signer {
		s := must(instance.Keyless(issuer, subject, true))
		if change != nil {
			change(s)
		}
		return s
	}
	me := sources.Identity{Issuer: issuer, Subject: subject}
	sbom := sources.Attestation{Name: "parts", PredicateType: "spdx"}
	const spdx = "https://spdx.dev/Document"
	huge := sigstore.Layer{Type: sigstore.SimpleType, Content: make([]byte, maxSignatureBytes+1)}
	annotated := func(l sigstore.Layer, key, value string) sigstore.Layer {
		l.Annotations[key] = value
		return l
	}
	type layers = []sigstore.Layer

	for _, tt := range []struct {
		name        string
		layers      func(d sources.Digest) layers
		authorities []sources.Authority
		want        string // a part of what is said, or
		refused     string // a part of what was found
	}{
		// By key.
		{"key", func(d sources.Digest) layers { return layers{must(key.Simple(d))} }, []sources.Authority{byKey("us", key)}, "signed by key us (ImageConfig signed)", ""},
		{"key, bundle", func(d sources.Digest) layers { return layers{must(key.Bundle(d, sigstore.SignPredicate))} }, []sources.Authority{byKey("us", key)}, "signed by key us (ImageConfig signed)", ""},
		{"nothing", func(sources.Digest) layers { return nil }, []sources.Authority{byKey("us", key)}, "", "found   no signature"},
		{"another key", func(d sources.Digest) layers { return layers{must(other.Simple(d))} }, []sources.Authority{byKey("us", key)}, "", "not authority us's: it is not by this key"},
		{"another key, bundle", func(d sources.Digest) layers { return layers{must(other.Bundle(d, sigstore.SignPredicate))} }, []sources.Authority{byKey("us", key)}, "", "not authority us's: failed to verify signature"},
		{"one of many", func(d sources.Digest) layers {
			return layers{must(other.Simple(d)), {Type: sigstore.SimpleType, Content: []byte("{")}, huge, must(key.Simple(d))}
		}, []sources.Authority{byKey("us", key)}, "signed by key us", ""},
		{"one authority of two", func(d sources.Digest) layers { return layers{must(key.Simple(d))} }, []sources.Authority{byKey("them", other), byKey("us", key)}, "signed by key us", ""},
		{"an authority whose key is missing, and one that signed", func(d sources.Digest) layers { return layers{must(key.Simple(d))} },
			[]sources.Authority{{Name: "hub", Key: &sources.VerificationKey{Secret: "x", Entry: "y"}}, byKey("us", key)}, "signed by key us", ""},
		{"tampered payload", func(d sources.Digest) layers {
			l := must(key.Simple(d))
			l.Content = append(l.Content, ' ')
			return layers{l}
		}, []sources.Authority{byKey("us", key)}, "", "it is not by this key"},
		{"for another digest", func(sources.Digest) layers { return layers{must(key.Simple(sources.DigestOf([]byte("x"))))} }, []sources.Authority{byKey("us", key)}, "", "it is a signature of " + string(sources.DigestOf([]byte("x")))},
		{"for another digest, bundle", func(sources.Digest) layers {
			return layers{must(key.Bundle(sources.DigestOf([]byte("x")), sigstore.SignPredicate))}
		}, []sources.Authority{byKey("us", key)}, "", "not authority us's: "},
		{"payload of another kind", func(d sources.Digest) layers {
			return layers{must(key.SimplePayload([]byte(`{"critical":{"image":{"docker-manifest-digest":"` + string(d) + `"},"type":"atomic container signature"}}`)))}
		}, []sources.Authority{byKey("us", key)}, "", `of type "atomic container signature"`},
		{"replaced annotation", func(d sources.Digest) layers {
			return layers{annotated(must(key.Simple(d)), signatureAnnotation, must(other.Simple(d)).Annotations[signatureAnnotation])}
		}, []sources.Authority{byKey("us", key)}, "", "it is not by this key"},
		{"garbage annotation", func(d sources.Digest) layers { return layers{annotated(must(key.Simple(d)), signatureAnnotation, "*")} }, []sources.Authority{byKey("us", key)}, "", "it has no signature"},
		{"empty layer", func(sources.Digest) layers { return layers{{Type: sigstore.SimpleType, Content: []byte{}}} }, []sources.Authority{byKey("us", key)}, "", "1 that were not looked at"},
		{"huge layer", func(sources.Digest) layers { return layers{huge} }, []sources.Authority{byKey("us", key)}, "", "1 that were not looked at"},
		{"too many", func(d sources.Digest) layers {
			var all layers
			for range maxSignatures {
				all = append(all, must(other.Simple(d)))
			}
			return append(all, must(key.Simple(d)))
		}, []sources.Authority{byKey("us", key)}, "", "1 that were not looked at"},
		{"garbage bundle", func(sources.Digest) layers { return layers{{Type: sigstore.BundleType, Content: []byte(`{"a":`)}} }, []sources.Authority{byKey("us", key)}, "", "it is not a Sigstore bundle"},
		{"keyless, by somebody with a key wanted", func(d sources.Digest) layers { return layers{must(signer(nil).Bundle(d, sigstore.SignPredicate))} }, []sources.Authority{byKey("us", key)}, "", "expected key signature, not certificate"},

		// Keyless.
		{"keyless", func(d sources.Digest) layers { return layers{must(signer(nil).Simple(d))} }, []sources.Authority{keyless(me)}, "signed keyless by " + subject + ", certified by " + issuer + " (authority ci, ImageConfig signed)", ""},
		{"keyless, bundle", func(d sources.Digest) layers { return layers{must(signer(nil).Bundle(d, sigstore.SignPredicate))} }, []sources.Authority{keyless(me)}, "signed keyless by " + subject, ""},
		{"keyless, expressions", func(d sources.Digest) layers { return layers{must(signer(nil).Simple(d))} },
			[]sources.Authority{keyless(sources.Identity{IssuerRegExp: `^https://issuer\.`, Issuer: "not looked at", SubjectRegExp: "/acme/"})}, "signed keyless", ""},
		{"another subject", func(d sources.Digest) layers { return layers{must(signer(nil).Simple(d))} }, []sources.Authority{keyless(sources.Identity{Issuer: issuer, Subject: subject + "x"})}, "", "its certificate is for " + subject + ", certified by " + issuer},
		{"another issuer", func(d sources.Digest) layers { return layers{must(signer(nil).Bundle(d, sigstore.SignPredicate))} }, []sources.Authority{keyless(sources.Identity{Issuer: "x", Subject: subject})}, "", "its certificate is for "},
		{"another instance", func(d sources.Digest) layers {
			return layers{must(must(elsewhere.Keyless(issuer, subject, true)).Simple(d))}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"not in the log", func(d sources.Digest) layers {
			return layers{must(signer(func(s *sigstore.Signer) { s.Unlogged = true }).Simple(d))}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"not in the log, bundle", func(d sources.Digest) layers {
			return layers{must(signer(func(s *sigstore.Signer) { s.Unlogged = true }).Bundle(d, sigstore.SignPredicate))}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"signed after the certificate's time", func(d sources.Digest) layers {
			return layers{must(signer(func(s *sigstore.Signer) { s.At = time.Now().Add(time.Hour) }).Simple(d))}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"promise of the log for another signature", func(d sources.Digest) layers {
			s := signer(nil)
			return layers{annotated(must(s.Simple(d)), logAnnotation, must(s.SimplePayload([]byte("x"))).Annotations[logAnnotation])}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"certificate of somebody else's", func(d sources.Digest) layers {
			return layers{annotated(must(signer(nil).Simple(d)), certificateAnnotation, must(signer(nil).Simple(d)).Annotations[certificateAnnotation])}
		}, []sources.Authority{keyless(me)}, "", "not authority ci's: failed to verify"},
		{"garbage in the log's promise", func(d sources.Digest) layers {
			return layers{annotated(must(signer(nil).Simple(d)), logAnnotation, "{}")}
		}, []sources.Authority{keyless(me)}, "", "its entry of the transparency log is malformed"},
		{"garbage time stamp", func(d sources.Digest) layers {
			return layers{annotated(must(signer(nil).Simple(d)), timestampAnnotation, "{}")}
		}, []sources.Authority{keyless(me)}, "", "its timestamp is malformed"},
		{"by key, with keyless wanted", func(d sources.Digest) layers { return layers{must(key.Simple(d))} }, []sources.Authority{keyless(me)}, "", "it has no certificate"},
		{"certificate that no log has seen", func(d sources.Digest) layers {
			return layers{must(must(instance.Keyless(issuer, subject, false)).Simple(d))}
		}, []sources.Authority{keyless(me)}, "", "signed certificate timestamp"},
		{"certificate that no log has seen, which is fine", func(d sources.Digest) layers {
			return layers{must(must(instance.Keyless(issuer, subject, false)).Simple(d))}
		}, []sources.Authority{{Name: "ci", Keyless: &sources.Keyless{Identities: []sources.Identity{me}, IgnoreSCT: true}}}, "signed keyless", ""},

		// Statements.
		{"statement by key", func(d sources.Digest) layers { return layers{must(key.Attest(d, spdx))} }, []sources.Authority{byKey("us", key, sbom)}, "attested by key us", ""},
		{"statement by key, bundle", func(d sources.Digest) layers { return layers{must(key.Bundle(d, spdx))} }, []sources.Authority{byKey("us", key, sbom)}, "attested by key us", ""},
		{"statement, keyless", func(d sources.Digest) layers { return layers{must(signer(nil).Attest(d, spdx))} }, []sources.Authority{keyless(me, sbom)}, "attested keyless by", ""},
		{"two statements", func(d sources.Digest) layers {
			return layers{must(key.Attest(d, spdx)), must(key.Attest(d, "https://example.org/tested"))}
		}, []sources.Authority{byKey("us", key, sbom, sources.Attestation{Name: "tests", PredicateType: "https://example.org/tested"})}, "attested by key us", ""},
		{"one statement of two", func(d sources.Digest) layers { return layers{must(key.Attest(d, spdx))} },
			[]sources.Authority{byKey("us", key, sbom, sources.Attestation{Name: "tests", PredicateType: "https://example.org/tested"})}, "", "1 of authority us's statements, but none of type https://example.org/tested"},
		{"a signature is no statement", func(d sources.Digest) layers { return layers{must(key.Simple(d))} }, []sources.Authority{byKey("us", key, sbom)}, "", "it is a statement of type " + sigstore.SignPredicate},
		{"a statement is no signature", func(d sources.Digest) layers { return layers{must(key.Bundle(d, spdx))} }, []sources.Authority{byKey("us", key)}, "", "it is a statement of type " + spdx},
		{"statement by another key", func(d sources.Digest) layers { return layers{must(other.Attest(d, spdx))} }, []sources.Authority{byKey("us", key, sbom)}, "", "not authority us's: failed to verify signature"},
		{"statement about another digest", func(sources.Digest) layers { return layers{must(key.Attest(sources.DigestOf([]byte("x")), spdx))} }, []sources.Authority{byKey("us", key, sbom)}, "", "not authority us's: failed to verify signature"},
		{"tampered statement", func(d sources.Digest) layers {
			l := must(key.Attest(d, spdx))
			l.Content = []byte(strings.Replace(string(l.Content), base64.StdEncoding.EncodeToString([]byte(`{"_ty`))[:6], "eyJfdH", 1))
			l.Content = []byte(strings.Replace(string(l.Content), `"payloadType":"application/vnd.in-toto+json"`, `"payloadType":"application/vnd.in-toto+jsom"`, 1))
			return layers{l}
		}, []sources.Authority{byKey("us", key, sbom)}, "", "not authority us's: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, oci.DefaultTimeout)
			s.push(t, tt.layers(s.digest)...)
			v := New(Config{TrustRootFile: trustRoot(t, instance)})
			how, err := v.Verify(t.Context(), s.client, s.repository, s.digest, policy(tt.authorities...))
			if tt.want != "" {
				if err != nil || !strings.Contains(how, tt.want) {
					t.Errorf("have %q, %v; want %q", how, err, tt.want)
				}
				return
			}
			var refusal *Refusal
			if !errors.As(err, &refusal) || !strings.Contains(err.Error(), tt.refused) || !strings.HasPrefix(err.Error(), "SECURITY ERROR: "+s.repository+"@"+string(s.digest)) {
				t.Errorf("have %q, %v; want one with %q", how, err, tt.refused)
			}
		})
	}
}

// Errors of a verification are not refusals, and say what to do.
func TestVerifyErrors(t *testing.T) {
	t.Parallel()
	key := must(sigstore.NewKey())
	me := sources.Identity{Issuer: issuer, Subject: subject}
	inHub := sources.Authority{Name: "us", Key: &sources.VerificationKey{Secret: "cosign", Entry: "cosign.pub"}}
	garbage := filepath.Join(t.TempDir(), "root.json")
	if err := os.WriteFile(garbage, []byte(`{"a": "s3cret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	hub := func(text string, err error) func(context.Context, *sources.VerificationKey) ([]byte, error) {
		return func(context.Context, *sources.VerificationKey) ([]byte, error) { return []byte(text), err }
	}
	for _, tt := range []struct {
		name      string
		cfg       Config
		authority sources.Authority
		fault     registry.Fault
		want      string
	}{
		{name: "no trust root", authority: keyless(me), want: "ImageConfig signed: authority ci: keyless signatures need the trusted_root.json"},
		{name: "no such trust root", cfg: Config{TrustRootFile: "/nowhere.json"}, authority: keyless(me), want: "--trust-root: open /nowhere.json"},
		{name: "garbage trust root", cfg: Config{TrustRootFile: garbage}, authority: keyless(me), want: "not a trusted_root.json"},
		{name: "no hub", authority: inHub, want: "the public key in Secret cosign cannot be read here"},
		{name: "hub fails", cfg: Config{Key: hub("", errors.New("Secret x/cosign is not in the hub"))}, authority: inHub, want: "authority us: Secret x/cosign is not in the hub"},
		{name: "no key", cfg: Config{Key: hub("s3cret", nil)}, authority: inHub, want: `key "cosign.pub" of Secret cosign is not a public key in PEM`},
		{name: "registry fails", authority: byKey("us", key), fault: registry.Fault{Path: "/v2/acme/widgets/referrers/*", Status: 503}, want: "looking for signatures: "},
		{name: "registry hangs", authority: byKey("us", key), fault: registry.Fault{Path: "/v2/acme/widgets/referrers/*", Hang: true}, want: "was silent for"},
		{name: "tag fails", authority: byKey("us", key), fault: registry.Fault{Path: "/v2/acme/widgets/manifests/*", Status: 500}, want: "looking for signatures: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			patience := oci.DefaultTimeout
			if tt.fault.Hang {
				patience = 2 * time.Second
			}
			s := newShop(t, patience)
			s.push(t, must(must(sigstore.NewKey()).Simple(s.digest)))
			if tt.fault.Path != "" {
				s.Break(tt.fault)
			}
			how, err := New(tt.cfg).Verify(t.Context(), s.client, s.repository, s.digest, policy(tt.authority))
			var refusal *Refusal
			if err == nil || errors.As(err, &refusal) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("have %q, %v; want %q", how, err, tt.want)
			}
		})
	}
}

// A registry that lies about signatures, or has no referrers API.
func TestHostileRegistry(t *testing.T) {
	t.Parallel()
	key := must(sigstore.NewKey())
	for _, tt := range []struct {
		name  string
		fault registry.Fault
		good  bool
	}{
		{"no referrers API", registry.Fault{Path: "/v2/acme/widgets/referrers/*", Status: 404}, true},
		{"referrers API is not allowed", registry.Fault{Path: "/v2/acme/widgets/referrers/*", Status: 400}, true},
		{"corrupt layers", registry.Fault{Path: "/v2/acme/widgets/blobs/*", Method: "GET", Corrupt: true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t, oci.DefaultTimeout)
			s.push(t, must(key.Simple(s.digest)))
			s.Break(tt.fault)
			how, err := New(Config{}).Verify(t.Context(), s.client, s.repository, s.digest, policy(byKey("us", key)))
			if tt.good != (err == nil) {
				t.Errorf("have %q, %v", how, err)
			}
		})
	}
}

// Recorded evidence satisfies a policy without the registry, and is checked again.
func TestRecords(t *testing.T) {
	t.Parallel()
	key, next := must(sigstore.NewKey()), must(sigstore.NewKey())
	s := newShop(t, oci.DefaultTimeout)
	s.push(t, must(key.Simple(s.digest)))
	dir := filepath.Join(t.TempDir(), "signatures")
	verify := func(p *sources.Verification) error {
		_, err := New(Config{Dir: dir}).Verify(t.Context(), s.client, s.repository, s.digest, p)
		return err
	}
	if err := verify(policy(byKey("us", key))); err != nil {
		t.Fatal(err)
	}
	heal := s.Break(registry.Fault{Path: "/v2/**", Status: 503})
	if err := verify(policy(byKey("us", key))); err != nil {
		t.Errorf("with the registry down: %v", err)
	}
	for name, p := range map[string]*sources.Verification{
		"another key":       policy(byKey("us", next)),
		"another name":      policy(byKey("them", key)),
		"another statement": policy(byKey("us", key, sources.Attestation{Name: "a", PredicateType: "b"})),
	} {
		if err := verify(p); err == nil {
			t.Errorf("%s is satisfied with what another policy was", name)
		}
	}
	// Whoever writes to the directory gets nothing for it.
	files := must(os.ReadDir(dir))
	if len(files) != 1 {
		t.Fatalf("have %d records", len(files))
	}
	name := filepath.Join(dir, files[0].Name())
	kept := must(os.ReadFile(name))
	for _, text := range []string{"", "[]", "null", "[{}]", `[{"type":"` + simpleType + `"}]`, strings.Replace(string(kept), `"content":"ey`, `"content":"eyAg`, 1)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(policy(byKey("us", key))); err == nil {
			t.Errorf("satisfied with %.40q", text)
		}
	}
	heal()
	if err := verify(policy(byKey("us", key))); err != nil {
		t.Error(err)
	}
	if string(must(os.ReadFile(name))) != string(kept) {
		t.Error("the record was not mended")
	}
	// A directory that cannot be written to costs a warning.
	if _, err := New(Config{Dir: name}).Verify(t.Context(), s.client, s.repository, s.digest, policy(byKey("us", key))); err != nil {
		t.Error(err)
	}
}

func FuzzParsePayload(f *testing.F) {
	d := sources.DigestOf(nil)
	f.Add([]byte(`{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":"` + string(d) + `"},"type":"cosign container image signature"},"optional":{"a":1}}`))
	f.Add([]byte(`{"critical":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := parsePayload(raw)
		if err != nil {
			return
		}
		if _, err := sources.ParseDigest(string(got)); err != nil {
			t.Errorf("%q gives %q", raw, got)
		}
	})
}

// Evidence of every kind, garbled anyhow, is neither accepted nor a panic.
func FuzzEvidence(f *testing.F) {
	instance := must(sigstore.New())
	signer, key := must(instance.Keyless(issuer, subject, true)), must(sigstore.NewKey())
	d := sources.DigestOf([]byte("signed"))
	for _, l := range []sigstore.Layer{must(signer.Simple(d)), must(signer.Attest(d, "x")), must(signer.Bundle(d, "x")), must(key.Simple(d)), must(key.Bundle(d, "x"))} {
		f.Add(l.Type, l.Content, l.Annotations[signatureAnnotation], l.Annotations[certificateAnnotation], l.Annotations[logAnnotation], l.Annotations[timestampAnnotation])
	}
	file := filepath.Join(f.TempDir(), "root.json")
	if err := os.WriteFile(file, instance.TrustRoot(), 0o600); err != nil {
		f.Fatal(err)
	}
	// Neither of them has signed anything of the seeds.
	stranger := must(sigstore.NewKey())
	authorities, _ := New(Config{TrustRootFile: file}).authorities(f.Context(), d, policy(byKey("us", stranger), keyless(sources.Identity{Issuer: "x", Subject: "y"})))
	f.Fuzz(func(t *testing.T, typ string, content []byte, sig, cert, log, stamp string) {
		e := evidence{Type: typ, Content: content, Annotations: map[string]string{signatureAnnotation: sig, certificateAnnotation: cert, logAnnotation: log, timestampAnnotation: stamp}}
		for _, a := range authorities {
			if p, err := a.check(e, d); err == nil {
				t.Errorf("%s accepts %+v as %+v", a.Name, e, p)
			}
		}
	})
}
