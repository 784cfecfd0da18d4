package sources

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ImageConfig is an ImageConfig of pkg.crossplane.io: settings for all packages
// whose references begin alike. Fields that it does not set are empty.
type ImageConfig struct {
	Name string
	// Prefixes of the references that it applies to (matchImages), as
	// [ParseImagePrefix] returns them.
	Prefixes []string
	// PullSecret is the Secret with credentials for the registry.
	PullSecret string
	// Rewrite replaces the prefix when a package is fetched.
	Rewrite string
	// RuntimeConfig is the DeploymentRuntimeConfig of controllers.
	RuntimeConfig string
	// Verification says who must have signed.
	Verification *Verification
	// Err is the document's error, if it has one. It is an error of every package
	// that the document applies to, and of all packages if Prefixes could not be
	// read.
	Err error
}

// Verification says who must have signed a package. One authority's signature is
// enough, as in Crossplane.
type Verification struct {
	// ImageConfig that asks for it.
	ImageConfig string
	Authorities []Authority
}

// Authority is a signer. Exactly one of Key and Keyless is set.
type Authority struct {
	Name    string
	Key     *VerificationKey `json:",omitempty"`
	Keyless *Keyless         `json:",omitempty"`
	// Attestations are the statements about the package that the authority must have
	// signed. If there are any, no signature of the package itself is needed.
	Attestations []Attestation `json:",omitempty"`
}

// VerificationKey is a public key.
type VerificationKey struct {
	// Secret has the key in its data, under Entry.
	Secret, Entry string
	// Hash is the signatures' hash algorithm: sha224, sha256, sha384 or sha512.
	Hash string
	// PEM is the key itself, if the Secret is in the cluster's manifests.
	PEM string `json:",omitempty"`
}

// Keyless accepts certificates, as Fulcio issues them, by their owner.
type Keyless struct {
	// Identities that are accepted. The certificate must have one of them.
	Identities []Identity
	// IgnoreSCT accepts a certificate without proof that it was logged.
	IgnoreSCT bool `json:",omitempty"`
}

// Identity is the owner of a certificate. A regular expression takes precedence
// over the plain text and, as in Crossplane, matches anywhere unless it has ^
// and $.
type Identity struct {
	Issuer, IssuerRegExp   string `json:",omitempty"`
	Subject, SubjectRegExp string `json:",omitempty"`
}

// Allows reports whether a certificate with this issuer and subject has one of the
// identities.
func (k *Keyless) Allows(issuer, subject string) bool {
	is := func(expr, text, value string) bool {
		if expr == "" {
			return text != "" && value == text
		}
		r, err := regexp.Compile(expr)
		return err == nil && r.MatchString(value)
	}
	return slices.ContainsFunc(k.Identities, func(id Identity) bool {
		return is(id.IssuerRegExp, id.Issuer, issuer) && is(id.SubjectRegExp, id.Subject, subject)
	})
}

// Attestation is one type of statement about a package.
type Attestation struct {
	Name string
	// PredicateType is the URI of its type.
	PredicateType string
}

// Origin is where a package is fetched from, and with which credentials. The
// package's identity is its declared name, not its Origin. Origins are
// comparable.
type Origin struct {
	// Repository holds the package: the declared one, or an ImageConfig's.
	Repository string
	// RewrittenBy is the name of that ImageConfig; empty if Repository is the
	// declared one.
	RewrittenBy string
	// Directory is the directory that the package is built from; empty for packages
	// of registries.
	Directory string
	// PullSecrets are the names of Secrets with credentials, in the order in which
	// they are tried, joined by commas.
	PullSecrets string
}

// Secrets returns the names in PullSecrets.
func (o Origin) Secrets() []string {
	if o.PullSecrets == "" {
		return nil
	}
	return strings.Split(o.PullSecrets, ",")
}

// String returns the directory, or the repository and the name of the ImageConfig
// that chose it, if any.
func (o Origin) String() string {
	if o.Directory != "" {
		return "the directory " + o.Directory
	}
	if o.RewrittenBy == "" {
		return o.Repository
	}
	return fmt.Sprintf("%s (by ImageConfig %s)", o.Repository, o.RewrittenBy)
}

// ImageConfigs are the ImageConfigs of one cluster. For each setting, the one with the
// longest prefix among those with the setting applies to a reference. Two with the
// same prefix and different values are an error.
type ImageConfigs []ImageConfig

// Origin returns the origin of a reference: its repository as the ImageConfigs rewrite
// it, with the declaration's pullSecrets, followed by the secret that an ImageConfig
// has for that repository. It fails if the ImageConfigs contradict each other or
// cannot be read.
func (c ImageConfigs) Origin(ref Ref, pullSecrets []string) (Origin, error) {
	o := Origin{Repository: ref.Repository}
	by, prefix, err := c.find(ref, "rewriteImage", func(i *ImageConfig) string { return i.Rewrite })
	if err != nil {
		return o, err
	}
	if by != nil {
		rest, ok := after(ref.Repository, prefix)
		if !ok {
			return o, fmt.Errorf("ImageConfig %s: prefix %q reaches into the version of %s, and rewriteImage is for repositories", by.Name, prefix, ref)
		}
		o.Repository, o.RewrittenBy = by.Rewrite+rest, by.Name
		if err := checkRepository(o.Repository); err != nil {
			return o, fmt.Errorf("ImageConfig %s: rewriteImage makes %q of %s: %w", by.Name, o.Repository, ref.Repository, err)
		}
	}
	by, _, err = c.find(at(ref, o), "registry.authentication", func(i *ImageConfig) string { return i.PullSecret })
	if err != nil {
		return o, err
	}
	secrets := slices.Clone(pullSecrets)
	if by != nil && !slices.Contains(secrets, by.PullSecret) {
		secrets = append(secrets, by.PullSecret)
	}
	o.PullSecrets = strings.Join(secrets, ",")
	return o, nil
}

// Runtime returns the name of the DeploymentRuntimeConfig that the ImageConfigs
// have for a package's controller, or "". It fails as Origin does.
func (c ImageConfigs) Runtime(ref Ref, o Origin) (string, error) {
	by, _, err := c.find(at(ref, o), "runtime", func(i *ImageConfig) string { return i.RuntimeConfig })
	if by == nil {
		return "", err
	}
	return by.RuntimeConfig, nil
}

// Verification returns who must have signed a package, or nil for nobody. As in
// Crossplane the name of the origin decides. If no ImageConfig applies to that, the
// declared name does, so that a mirror is no way around a signature. It fails as Origin does.
func (c ImageConfigs) Verification(ref Ref, o Origin) (*Verification, error) {
	has := func(i *ImageConfig) string {
		if i.Verification == nil {
			return ""
		}
		return i.Name // two are never the same
	}
	by, _, err := c.find(at(ref, o), "verification", has)
	if by == nil && err == nil {
		by, _, err = c.find(ref, "verification", has)
	}
	if by == nil {
		return nil, err
	}
	return by.Verification, nil
}

// UsualRegistry returns the usual name of a registry. Docker Hub has several, 443 is the
// port without another, and zeros before a port mean nothing.
func UsualRegistry(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && i > strings.LastIndexByte(host, ']') {
		port := cmp.Or(strings.TrimLeft(host[i+1:], "0"), "0")
		// A name without a dot is a registry's only by its port.
		if host = host[:i]; port != "443" || !strings.ContainsAny(host, ".:") && host != "localhost" {
			host += ":" + port
		}
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return "docker.io"
	}
	return host
}

// SameRepository reports whether two repositories are one, perhaps under different names
// of its registry.
func SameRepository(a, b string) bool {
	if a == b {
		return true
	}
	hostA, pathA, _ := strings.Cut(a, "/")
	hostB, pathB, _ := strings.Cut(b, "/")
	return pathA == pathB && UsualRegistry(hostA) == UsualRegistry(hostB)
}

func at(ref Ref, o Origin) Ref {
	ref.Repository = o.Repository
	return ref
}

// after returns what follows a prefix in a reference, and reports whether the reference has
// the prefix under any name of its registry.
func after(ref, prefix string) (rest string, ok bool) {
	host, path, _ := strings.Cut(ref, "/")
	names := []string{UsualRegistry(host)}
	if before, path, whole := strings.Cut(prefix, "/"); whole {
		prefix = UsualRegistry(before) + "/" + path
	} else { // perhaps the beginning of a name
		names = append(names, otherNames(names[0])...)
	}
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name+"/"+path, prefix); ok {
			return rest, true
		}
	}
	return "", false
}

// otherNames returns the names of a registry besides its usual one.
func otherNames(usual string) []string {
	others := []string{usual + ":443"}
	if usual == "docker.io" {
		others = append(others, "index.docker.io", "registry-1.docker.io")
	}
	return slices.DeleteFunc(others, func(name string) bool { return UsualRegistry(name) != usual })
}

// find returns the ImageConfig that sets a setting of a reference, or nil, and the prefix
// that matches.
func (c ImageConfigs) find(ref Ref, setting string, value func(*ImageConfig) string) (*ImageConfig, string, error) {
	var found, rival *ImageConfig // by the longest prefix so far
	longest, least := "", 0       // what follows the longest prefix has the least length
	for i := range c {
		cfg := &c[i]
		if cfg.Err == nil && value(cfg) == "" {
			continue
		}
		prefixes := cfg.Prefixes
		if cfg.Err != nil && len(prefixes) == 0 {
			prefixes = []string{""}
		}
		for _, p := range prefixes {
			rest, ok := after(ref.String(), p)
			switch {
			case !ok, found != nil && len(rest) > least:
			case found == nil || len(rest) < least || cfg.Err != nil:
				found, rival, longest, least = cfg, nil, p, len(rest)
			case rival == nil && value(found) != value(cfg):
				rival = cfg
			}
		}
	}
	switch {
	case found != nil && found.Err != nil:
		return nil, "", fmt.Errorf("ImageConfig %s applies to it and has errors", found.Name)
	case rival != nil:
		return nil, "", fmt.Errorf("ImageConfigs %s and %s both have %s for %s by the prefix %q; make one of the prefixes longer", found.Name, rival.Name, setting, ref, longest)
	}
	return found, longest, nil
}

// checkRepository checks that s is a registry's host and a path.
func checkRepository(s string) error {
	host, path, ok := strings.Cut(s, "/")
	if !ok || !registryHost.MatchString(host) || !repositoryPath.MatchString(path) {
		return errors.New("want host[:port]/path, in lower case and without tag or digest")
	}
	return nil
}

// hostPrefix and pathPrefix match prefixes of hosts, and of paths with versions.
var (
	hostPrefix = regexp.MustCompile(`^(?:\[[0-9a-f:.]*\]?|[a-z0-9][a-z0-9.-]*)(?::[0-9]{0,5})?$`)
	pathPrefix = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9._-]*(?:/[a-z0-9])?)*/?)?(?::[A-Za-z0-9._-]{0,128})?(?:@[a-z0-9:]*)?$`)
)

// ParseImagePrefix reads the prefix of an ImageConfig. A prefix without a
// registry gets [DefaultRegistry], as references do, and a host becomes lower
// case. A prefix that no reference can have is an error: its settings, such as a
// required signature, would never apply.
func ParseImagePrefix(s string) (string, error) {
	if _, rest, ok := strings.Cut(s, "://"); ok {
		return "", fmt.Errorf("%q: references have no scheme; write %s", s, rest)
	}
	host, path, hasPath := strings.Cut(s, "/")
	switch isHost := strings.ContainsAny(host, ".:") || host == "localhost"; {
	case s == "":
		return "", errors.New("is missing")
	case !isHost && !hasPath:
		return "", fmt.Errorf("%[1]q could be the beginning of a host or of a path; write a whole host, as in registry.example.org/, or %[2]s/%[1]s for a path of the default registry", s, DefaultRegistry)
	case !isHost:
		host, path = DefaultRegistry, s
	}
	host = strings.ToLower(host)
	if hasPath {
		host += "/"
	}
	if !hostPrefix.MatchString(strings.TrimSuffix(host, "/")) || !pathPrefix.MatchString(path) {
		return "", fmt.Errorf("%q matches no reference: want the beginning of host[:port]/path:tag, with the path in lower case, and without wildcards or spaces", s)
	}
	return host + path, nil
}

// Idle describes the verification policies that apply to none of the references,
// one line for each prefix.
func (c ImageConfigs) Idle(refs []Ref) []string {
	var idle []string
	for _, cfg := range c {
		if cfg.Verification == nil {
			continue
		}
		for _, p := range cfg.Prefixes {
			if !slices.ContainsFunc(refs, func(r Ref) bool {
				_, ok := after(r.String(), p)
				return ok
			}) {
				idle = append(idle, fmt.Sprintf("ImageConfig %s: no package of this cluster begins with %q, so its verification applies to none", cfg.Name, p))
			}
		}
	}
	return idle
}
