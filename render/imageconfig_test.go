package render

import (
	"reflect"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// imageConfigYAML returns an ImageConfig with a spec in flow style.
func imageConfigYAML(spec string) string {
	return "apiVersion: pkg.crossplane.io/v1beta1\nkind: ImageConfig\nmetadata: {name: ic}\nspec: " + spec + "\n"
}

func TestImageConfig(t *testing.T) {
	t.Parallel()
	const key = "---\napiVersion: v1\nkind: Secret\nmetadata: {name: cosign, namespace: crossplane-system}\n"
	for _, tt := range []struct {
		name, doc string
		want      sources.ImageConfig
	}{
		{"everything else", imageConfigYAML("{matchImages: [{type: Prefix, prefix: a.example.org/}, {prefix: b.example.org/x}], rewriteImage: {prefix: m.example.org/}, runtime: {configRef: {name: rc}}}"),
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.example.org/", "b.example.org/x"}, Rewrite: "m.example.org/", RuntimeConfig: "rc"}},
		{"usual form", imageConfigYAML("{matchImages: [{prefix: A.example.org/}], rewriteImage: {prefix: M.Example.org/acme/}}"),
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.example.org/"}, Rewrite: "m.example.org/acme/"}},
		{"default registry", imageConfigYAML("{matchImages: [{prefix: a.example.org/}], rewriteImage: {prefix: acme/}}"),
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.example.org/"}, Rewrite: "xpkg.crossplane.io/acme/"}},
		{"key in the hub", imageConfigYAML("{matchImages: [{prefix: a.io/}], verification: {provider: Cosign, cosign: {authorities: [{name: us, key: {secretRef: {name: cosign, key: cosign.pub}}}]}}}"),
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.io/"}, Verification: &sources.Verification{ImageConfig: "ic", Authorities: []sources.Authority{
				{Name: "us", Key: &sources.VerificationKey{Secret: "cosign", Entry: "cosign.pub", Hash: "sha256"}}}}}},
		{"key in the manifests", imageConfigYAML("{matchImages: [{prefix: a.io/}], verification: {provider: Cosign, cosign: {authorities: [{name: us, key: {hashAlgorithm: SHA512, secretRef: {name: cosign, key: cosign.pub}}}]}}}") + key + "data: {cosign.pub: UEVN}\n",
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.io/"}, Verification: &sources.Verification{ImageConfig: "ic", Authorities: []sources.Authority{
				{Name: "us", Key: &sources.VerificationKey{Secret: "cosign", Entry: "cosign.pub", Hash: "sha512", PEM: "PEM"}}}}}},
		{"keyless", imageConfigYAML("{matchImages: [{prefix: a.io/}], verification: {provider: Cosign, cosign: {authorities: [{name: ci, keyless: {insecureIgnoreSCT: true, identities: [{issuer: i, subjectRegExp: 's.*'}]}, attestations: [{name: n, predicateType: p}]}]}}}"),
			sources.ImageConfig{Name: "ic", Prefixes: []string{"a.io/"}, Verification: &sources.Verification{ImageConfig: "ic", Authorities: []sources.Authority{
				{Name: "ci", Keyless: &sources.Keyless{IgnoreSCT: true, Identities: []sources.Identity{{Issuer: "i", SubjectRegExp: "s.*"}}}, Attestations: []sources.Attestation{{Name: "n", PredicateType: "p"}}}}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, err := new(Renderer).Want(t.Context(), input(t, tt.doc))
			if err != nil || w.Faults() != nil {
				t.Fatal(err, w.Faults())
			}
			if len(w.Images) != 1 || !reflect.DeepEqual(w.Images[0], tt.want) {
				t.Errorf("have %+v\nwant %+v", w.Images, tt.want)
			}
		})
	}
}

// The error of an invalid ImageConfig has its place, and affects the packages that it may
// be for.
func TestImageConfigFaults(t *testing.T) {
	t.Parallel()
	authority := func(a string) string {
		return imageConfigYAML("{matchImages: [{prefix: a.io/}], verification: {provider: Cosign, cosign: {authorities: [" + a + "]}}}")
	}
	for _, tt := range []struct{ name, doc, want, prefixes string }{
		{"version", strings.Replace(imageConfigYAML("{matchImages: [{prefix: a.io/}]}"), "v1beta1", "v1alpha1", 1), "apiVersion: pkg.crossplane.io/v1alpha1 is not known; write pkg.crossplane.io/v1beta1", ""},
		{"root", imageConfigYAML("{matchImages: [{prefix: a.io/}]}") + "status: {}\n", "status: is not a field of a ImageConfig", ""},
		{"no spec", "apiVersion: pkg.crossplane.io/v1beta1\nkind: ImageConfig\nmetadata: {name: ic}\n", "spec: is missing", ""},
		{"unknown field", imageConfigYAML("{matchImages: [{prefix: a.io/}], registry: {authenticaton: {}}}"), `spec: unknown field "registry.authenticaton"`, "a.io/"},
		{"unknown field in a match", imageConfigYAML("{matchImages: [{prefix: a.io/}, {prefx: b.io/}]}"), `spec: unknown field "matchImages[1].prefx"`, ""},
		{"wrong type", imageConfigYAML("{matchImages: a}"), "spec: cannot unmarshal string", ""},
		{"no match", imageConfigYAML("{matchImages: []}"), "spec.matchImages: want one at least", ""},
		{"empty prefix", imageConfigYAML("{matchImages: [{prefix: ''}]}"), "spec.matchImages[0].prefix: is missing", ""},
		{"match type", imageConfigYAML("{matchImages: [{type: Glob, prefix: a.io/}]}"), `spec.matchImages[0].type: want Prefix, have "Glob"`, "a.io/"},
		{"pull secret", imageConfigYAML("{matchImages: [{prefix: a.io/}], registry: {authentication: {pullSecretRef: {name: 'a,b'}}}}"), `spec.registry.authentication.pullSecretRef.name: "a,b" is not the name of a Secret`, "a.io/"},
		{"rewrite", imageConfigYAML("{matchImages: [{prefix: a.io/}], rewriteImage: {}}"), "spec.rewriteImage.prefix: is missing", "a.io/"},
		{"runtime", imageConfigYAML("{matchImages: [{prefix: a.io/}], runtime: {configRef: {kind: X, name: y}}}"), "spec.runtime.configRef: want a DeploymentRuntimeConfig", "a.io/"},
		{"provider", imageConfigYAML("{matchImages: [{prefix: a.io/}], verification: {provider: Notary}}"), `spec.verification.provider: want Cosign, have "Notary"`, "a.io/"},
		{"no authority", authority(""), "spec.verification.cosign.authorities: want one at least", "a.io/"},
		{"no name", authority("{}"), "spec.verification.cosign.authorities[0].name: is missing", "a.io/"},
		{"neither key nor keyless", authority("{name: a}"), "authorities[0].key: want either key or keyless", "a.io/"},
		{"hash", authority("{name: a, key: {hashAlgorithm: md5, secretRef: {name: a, key: b}}}"), "key.hashAlgorithm: want sha224, sha256, sha384 or sha512", "a.io/"},
		{"key's path", authority("{name: a, key: {secretRef: {name: a, key: ../b}}}"), "key.secretRef: want {name: <Secret>, key: <entry>}", "a.io/"},
		{"key that the Secret does not have", authority("{name: a, key: {secretRef: {name: a, key: b}}}") + "---\napiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: gitopsd-system}\n", `authorities[0].key.secretRef: key "b" is missing in Secret gitopsd-system/a (c/all.yaml:`, "a.io/"},
		{"no identity", authority("{name: a, keyless: {identities: []}}"), "authorities[0].keyless.identities: want one at least", "a.io/"},
		{"half an identity", authority("{name: a, keyless: {identities: [{issuer: a}]}}"), "keyless.identities[0]: want issuer or issuerRegExp, and subject or subjectRegExp", "a.io/"},
		{"expression", authority("{name: a, keyless: {identities: [{issuer: a, subjectRegExp: '('}]}}"), "keyless.identities[0]: error parsing regexp", "a.io/"},
		{"attestation", authority("{name: a, keyless: {identities: [{issuer: a, subject: b}]}, attestations: [{name: x}]}"), "attestations[0]: want name and predicateType", "a.io/"},
		{"trust root", authority("{name: a, ctlog: {url: x}, keyless: {identities: [{issuer: a, subject: b}]}}"), `unknown field "verification.cosign.authorities[0].ctlog"`, "a.io/"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, err := new(Renderer).Want(t.Context(), input(t, plainObject+declare("Configuration", "good", "")+tt.doc))
			if err != nil || len(w.Packages) != 1 || len(w.Images) != 1 {
				t.Fatalf("have %v, %+v", err, w)
			}
			faults := w.Faults()
			if len(faults) != 1 || !strings.Contains(faults[0].Error(), tt.want) || !strings.HasPrefix(faults[0].Error(), "c/all.yaml:") {
				t.Errorf("have %v, want %q", faults, tt.want)
			}
			if have := strings.Join(w.Images[0].Prefixes, " "); have != tt.prefixes {
				t.Errorf("it concerns %q, want %q", have, tt.prefixes)
			}
		})
	}
}
