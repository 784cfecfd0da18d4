package render

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	strict "sigs.k8s.io/json"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

// imageConfigSpec is the spec of an ImageConfig (pkg.crossplane.io/v1beta1).
type imageConfigSpec struct {
	MatchImages []struct {
		Type   string `json:"type"`
		Prefix string `json:"prefix"`
	} `json:"matchImages"`
	Registry *struct {
		Authentication *struct {
			PullSecretRef struct {
				Name string `json:"name"`
			} `json:"pullSecretRef"`
		} `json:"authentication"`
	} `json:"registry"`
	RewriteImage *struct {
		Prefix string `json:"prefix"`
	} `json:"rewriteImage"`
	Runtime *struct {
		ConfigRef *struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
		} `json:"configRef"`
	} `json:"runtime"`
	Verification *struct {
		Provider string `json:"provider"`
		Cosign   *struct {
			Authorities []authoritySpec `json:"authorities"`
		} `json:"cosign"`
	} `json:"verification"`
}

type authoritySpec struct {
	Name string `json:"name"`
	Key  *struct {
		SecretRef struct {
			Name string `json:"name"`
			Key  string `json:"key"`
		} `json:"secretRef"`
		HashAlgorithm string `json:"hashAlgorithm"`
	} `json:"key"`
	Keyless *struct {
		Identities []struct {
			Issuer        string `json:"issuer"`
			IssuerRegExp  string `json:"issuerRegExp"`
			Subject       string `json:"subject"`
			SubjectRegExp string `json:"subjectRegExp"`
		} `json:"identities"`
		InsecureIgnoreSCT bool `json:"insecureIgnoreSCT"`
	} `json:"keyless"`
	Attestations []struct {
		Name          string `json:"name"`
		PredicateType string `json:"predicateType"`
	} `json:"attestations"`
}

// decodeSpec reads the spec of an object into a Go type, strictly: a field that the
// type does not have is an error with its path.
func decodeSpec(o *manifest.Object, version string, spec any) error {
	if o.APIVersion() != manifest.GroupPackages+"/"+version {
		return fmt.Errorf("apiVersion: %s is not known; write %s/%s", o.APIVersion(), manifest.GroupPackages, version)
	}
	for key := range o.Tree() {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "spec"}, key) {
			return fmt.Errorf("%s: is not a field of a %s", key, o.ID().Kind)
		}
	}
	tree, there := o.Tree()["spec"]
	if !there {
		return errors.New("spec: is missing")
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	unknown, err := strict.UnmarshalStrict(text, spec, strict.DisallowUnknownFields)
	if err != nil {
		return fmt.Errorf("spec: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if len(unknown) > 0 {
		return fmt.Errorf("spec: %w", errors.Join(unknown...))
	}
	return nil
}

// imageConfig reads an ImageConfig. If it is invalid, Err is set, and Prefixes has the
// prefixes if all of them can be read.
func imageConfig(o *manifest.Object, objects []*manifest.Object) sources.ImageConfig {
	c := sources.ImageConfig{Name: o.ID().Name}
	var spec imageConfigSpec
	err := decodeSpec(o, "v1beta1", &spec)
	if err == nil {
		err = spec.read(&c, objects)
	}
	if err != nil {
		c.Err = fmt.Errorf("%s: ImageConfig %s: %w", o.Origin(), c.Name, err)
		c.Prefixes = nil
		for _, m := range spec.MatchImages {
			p, err := sources.ParseImagePrefix(m.Prefix)
			if err != nil {
				c.Prefixes = nil // the intended prefix is unknown
				break
			}
			c.Prefixes = append(c.Prefixes, p)
		}
	}
	return c
}

func (s *imageConfigSpec) read(c *sources.ImageConfig, objects []*manifest.Object) error {
	var prefixes []string
	for i, m := range s.MatchImages {
		if m.Type != "" && m.Type != "Prefix" {
			return fmt.Errorf("spec.matchImages[%d].type: want Prefix, have %q", i, m.Type)
		}
		p, err := sources.ParseImagePrefix(m.Prefix)
		if err != nil {
			return fmt.Errorf("spec.matchImages[%d].prefix: %w", i, err)
		}
		prefixes = append(prefixes, p)
	}
	if len(prefixes) == 0 {
		return errors.New("spec.matchImages: want one at least")
	}
	c.Prefixes = prefixes
	if r := s.Registry; r != nil && r.Authentication != nil {
		if c.PullSecret = r.Authentication.PullSecretRef.Name; !secretName.MatchString(c.PullSecret) {
			return fmt.Errorf("spec.registry.authentication.pullSecretRef.name: %q is not the name of a Secret", c.PullSecret)
		}
	}
	if r := s.RewriteImage; r != nil {
		p, err := sources.ParseImagePrefix(r.Prefix)
		if err != nil {
			return fmt.Errorf("spec.rewriteImage.prefix: %w", err)
		}
		c.Rewrite = p
	}
	if r := s.Runtime; r != nil && r.ConfigRef != nil {
		ref := r.ConfigRef
		if ref.APIVersion != "" && ref.APIVersion != runtimeConfigVersion || ref.Kind != "" && ref.Kind != manifest.RuntimeConfig.Kind {
			return fmt.Errorf("spec.runtime.configRef: want a %s of %s", manifest.RuntimeConfig.Kind, runtimeConfigVersion)
		}
		if c.RuntimeConfig = ref.Name; ref.Name == "" {
			return errors.New("spec.runtime.configRef.name: is missing")
		}
	}
	v := s.Verification
	if v == nil {
		return nil
	}
	switch {
	case v.Provider != "Cosign":
		return fmt.Errorf("spec.verification.provider: want Cosign, have %q", v.Provider)
	case v.Cosign == nil || len(v.Cosign.Authorities) == 0:
		return errors.New("spec.verification.cosign.authorities: want one at least; without any nothing could be verified")
	}
	c.Verification = &sources.Verification{ImageConfig: c.Name}
	for i := range v.Cosign.Authorities {
		a, err := v.Cosign.Authorities[i].read(objects)
		if err != nil {
			return fmt.Errorf("spec.verification.cosign.authorities[%d].%w", i, err)
		}
		c.Verification.Authorities = append(c.Verification.Authorities, a)
	}
	return nil
}

// secretName matches the name of a Secret (RFC 1123).
var secretName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

// read validates an authority. Errors begin with the field.
func (s *authoritySpec) read(objects []*manifest.Object) (sources.Authority, error) {
	a := sources.Authority{Name: s.Name}
	switch {
	case s.Name == "":
		return a, errors.New("name: is missing")
	case (s.Key == nil) == (s.Keyless == nil):
		return a, errors.New("key: want either key or keyless")
	}
	if k := s.Key; k != nil {
		a.Key = &sources.VerificationKey{Secret: k.SecretRef.Name, Entry: k.SecretRef.Key, Hash: strings.ToLower(strings.TrimSpace(k.HashAlgorithm))}
		if a.Key.Hash == "" {
			a.Key.Hash = "sha256"
		}
		if !slices.Contains([]string{"sha224", "sha256", "sha384", "sha512"}, a.Key.Hash) {
			return a, fmt.Errorf("key.hashAlgorithm: want sha224, sha256, sha384 or sha512, have %q", k.HashAlgorithm)
		}
		if !secretName.MatchString(a.Key.Secret) || !secretEntry.MatchString(a.Key.Entry) {
			return a, errors.New("key.secretRef: want {name: <Secret>, key: <entry>}")
		}
		var err error
		if a.Key.PEM, err = publicKey(a.Key, objects); err != nil {
			return a, fmt.Errorf("key.secretRef: %w", err)
		}
	}
	if k := s.Keyless; k != nil {
		a.Keyless = &sources.Keyless{IgnoreSCT: k.InsecureIgnoreSCT}
		if len(k.Identities) == 0 {
			return a, errors.New("keyless.identities: want one at least; else anybody's signature would do")
		}
		for i, id := range k.Identities {
			if id.Issuer == "" && id.IssuerRegExp == "" || id.Subject == "" && id.SubjectRegExp == "" {
				return a, fmt.Errorf("keyless.identities[%d]: want issuer or issuerRegExp, and subject or subjectRegExp", i)
			}
			for _, expr := range []string{id.IssuerRegExp, id.SubjectRegExp} {
				if _, err := regexp.Compile(expr); err != nil {
					return a, fmt.Errorf("keyless.identities[%d]: %w", i, err)
				}
			}
			a.Keyless.Identities = append(a.Keyless.Identities, sources.Identity(id))
		}
	}
	for i, att := range s.Attestations {
		if att.Name == "" || att.PredicateType == "" {
			return a, fmt.Errorf("attestations[%d]: want name and predicateType", i)
		}
		a.Attestations = append(a.Attestations, sources.Attestation(att))
	}
	return a, nil
}

// secretEntry matches a key of a Secret's data.
var secretEntry = regexp.MustCompile(`^[A-Za-z0-9._-]{1,253}$`)

// publicKey finds a key in the cluster's own manifests, where readers of the repository
// see it and no hub is needed: in a Secret in gitopsd's namespace or in Crossplane's. It
// returns "" if there is no such Secret.
func publicKey(k *sources.VerificationKey, objects []*manifest.Object) (string, error) {
	for _, namespace := range []string{runtime.Namespace, "crossplane-system"} {
		secret := manifest.Find(objects, manifest.Secret.ID(namespace, k.Secret))
		if secret == nil {
			continue
		}
		if text, ok := manifest.Mapping(secret.Tree(), "stringData")[k.Entry].(string); ok {
			return text, nil
		}
		encoded, ok := manifest.Mapping(secret.Tree(), "data")[k.Entry].(string)
		if !ok {
			return "", fmt.Errorf("key %q is missing in Secret %s/%s (%s)", k.Entry, namespace, k.Secret, secret.Origin())
		}
		text, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil {
			return "", fmt.Errorf("key %q of Secret %s/%s (%s) is not base64", k.Entry, namespace, k.Secret, secret.Origin())
		}
		return string(text), nil
	}
	return "", nil
}
