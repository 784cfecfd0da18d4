package remote

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Prefixes are the prefixes of the repositories that an operator allows.
type Prefixes []Prefix

// Prefix allows the repositories with the same scheme, host and port, and a path that
// begins with the same segments.
type Prefix struct{ of address }

// ParsePrefixes parses URLs: "https://github.com/kubernetes-sigs/" for all
// repositories of an organisation, "https://github.com/kubernetes-sigs/kueue" for
// one.
func ParsePrefixes(urls []string) (Prefixes, error) {
	var all Prefixes
	for _, text := range urls {
		p, err := parsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", Shown(text), err)
		}
		all = append(all, p)
	}
	return all, nil
}

func parsePrefix(text string) (Prefix, error) {
	if !strings.Contains(text, "://") || strings.Contains(text, "?") {
		return Prefix{}, errors.New("want the beginning of a repository's URL, as in https://github.com/kubernetes-sigs/")
	}
	a, rest, err := parseHost(text)
	if err != nil {
		return Prefix{}, err
	}
	if a.scheme == "ssh" {
		return Prefix{}, errors.New("remote bases are fetched without credentials, and SSH needs a key; use https")
	}
	if rest = strings.TrimSuffix(rest, "/"); rest != "" {
		if a.path, err = segments(rest); err != nil {
			return Prefix{}, err
		}
	}
	return Prefix{a}, nil
}

func (p Prefix) String() string { return p.of.repository() }

func (p Prefixes) String() string {
	texts := make([]string, len(p))
	for i, one := range p {
		texts[i] = one.String()
	}
	return strings.Join(texts, ", ")
}

// allow reports whether the repository of an address may be used.
func (p Prefixes) allow(a address) bool {
	return slices.ContainsFunc(p, func(prefix Prefix) bool { return prefix.matches(a) })
}

// Check returns an error if the repository with a URL must not be used. It is for
// redirects of servers: it allows https if http is allowed.
func (p Prefixes) Check(repository string) error {
	a, rest, err := parseHost(repository)
	if err == nil {
		a.path, err = segments(strings.Trim(rest, "/"))
	}
	if err != nil {
		return err
	}
	plain := a
	plain.scheme = "http"
	if !p.allow(a) && (a.scheme != "https" || !p.allow(plain)) {
		return fmt.Errorf("that is not below what --allow-remote-bases allows (%s)", p)
	}
	return nil
}

func (p Prefix) matches(a address) bool {
	n := len(p.of.path)
	if p.of.scheme != a.scheme || p.of.host != a.host || n > len(a.path) {
		return false
	}
	want, have := p.of.path, slices.Clone(a.path[:n])
	if n > 0 && n == len(a.path) {
		// A repository has two names, with and without .git.
		want = slices.Clone(want)
		want[n-1], have[n-1] = strings.TrimSuffix(want[n-1], ".git"), strings.TrimSuffix(have[n-1], ".git")
	}
	return slices.Equal(want, have)
}
