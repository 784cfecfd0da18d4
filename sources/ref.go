package sources

import (
	"fmt"
	"regexp"
	"strings"
)

// Ref is a package reference: a repository with a tag, a digest, or both
// ("tag@digest": the digest decides, the tag is for people). Refs are
// comparable.
type Ref struct {
	// Repository is the registry's host, by its usual name and in lower case, and the
	// path, for instance "xpkg.upbound.io/upbound/provider-aws".
	Repository string
	// Tag may be empty when Digest is not.
	Tag string
	// Digest may be empty when Tag is not.
	Digest Digest
}

// DefaultRegistry is the registry of a repository that names none, as in
// Crossplane 1.x and 2.x.
const DefaultRegistry = "xpkg.crossplane.io"

// The grammar of github.com/distribution/reference, for the parts used here.
var (
	repositoryPath = regexp.MustCompile(`^[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*$`)
	registryHost   = regexp.MustCompile(`^(?:\[[0-9a-fA-F:]+\]|[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?)(?::[0-9]{1,5})?$`)
	tagName        = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// ParseRef parses "[registry/]path[:tag][@digest]". A reference with neither
// tag nor digest is an error rather than "latest". A repository without a registry
// gets [DefaultRegistry], and a registry its usual name ([UsualRegistry]).
func ParseRef(s string) (Ref, error) {
	fail := func(format string, args ...any) (Ref, error) {
		return Ref{}, fmt.Errorf("package reference %q: %s", s, fmt.Sprintf(format, args...))
	}
	var r Ref
	rest, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		d, err := ParseDigest(digest)
		if err != nil {
			return fail("%v", err)
		}
		r.Digest = d
	}
	// A colon after the last slash starts the tag; one before it, a port.
	r.Repository = rest
	if colon := strings.LastIndexByte(rest, ':'); colon > strings.LastIndexByte(rest, '/') {
		r.Repository, r.Tag = rest[:colon], rest[colon+1:]
		if !tagName.MatchString(r.Tag) {
			return fail("tag %q is not valid: letters, digits, '_', '.' and '-', at most 128", r.Tag)
		}
	}
	if r.Tag == "" && r.Digest == "" {
		return fail("it names neither a tag nor a digest; write %s:<version> or %s@sha256:<digest>", rest, rest)
	}
	host, path, hasHost := strings.Cut(r.Repository, "/")
	if !hasHost || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, path = DefaultRegistry, r.Repository
		r.Repository = host + "/" + path
	}
	if !registryHost.MatchString(host) {
		return fail("%q is not a registry's host[:port]", host)
	}
	// The lock, mirrors and policies must see one package under all names of a registry.
	r.Repository = UsualRegistry(strings.ToLower(host)) + "/" + path
	if !repositoryPath.MatchString(path) {
		return fail("%q is not a repository path: lower-case letters, digits and single separators", path)
	}
	return r, nil
}

// ParseRepository parses "[registry/]path", a repository without tag and digest. It
// returns the repository as in a [Ref], and reports whether s is one.
func ParseRepository(s string) (repository string, ok bool) {
	r, err := ParseRef(s + "@" + string(DigestOf(nil)))
	if err != nil || r.Tag != "" {
		return "", false
	}
	return r.Repository, true
}

// Version returns the version as the lock has it: the tag, or the digest if there is
// no tag.
func (r Ref) Version() string {
	if r.Tag != "" {
		return r.Tag
	}
	return string(r.Digest)
}

// String returns the reference in the form that [ParseRef] reads.
func (r Ref) String() string {
	s := r.Repository
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + string(r.Digest)
	}
	return s
}

// Pin is a reference and the digest it resolved to. Two clusters with equal
// pins run the same package. Pins are comparable.
type Pin struct {
	// Ref is the reference as declared.
	Ref Ref
	// Digest of the index or manifest that the reference resolved to.
	Digest Digest
}

// String returns the pinned reference, "repository:tag@digest".
func (p Pin) String() string {
	r := p.Ref
	r.Digest = p.Digest
	return r.String()
}
