package oci

import (
	"context"
	"fmt"
	"io"
	"strings"

	"gitopsd.dev/sources"
)

// Mirrored fetches what is declared of one registry from another, as container
// runtimes do with their mirrors: names stay those of the declaration, in the
// lock too, and digests decide what is accepted. A mirror is asked instead of
// the registry, never beside it, so that what is fetched does not depend on
// which of the two answers.
type Mirrored struct {
	client *Client
	hosts  map[string]string
}

// Mirrored returns what fetches from mirrors: a map of registry to
// "host[:port]", as they stand before the first slash of a repository.
func (c *Client) Mirrored(mirrors map[string]string) (*Mirrored, error) {
	for registry, host := range mirrors {
		for _, s := range []string{registry, host} {
			if _, err := sources.ParseRef(s + "/x:v0"); err != nil || !strings.ContainsAny(s, ".:") && s != "localhost" {
				return nil, fmt.Errorf("mirror of %q: %q is not a registry's host[:port]", registry, s)
			}
		}
	}
	return &Mirrored{client: c, hosts: mirrors}, nil
}

func (m *Mirrored) repository(name string) string {
	registry, path, _ := strings.Cut(name, "/")
	if host, ok := m.hosts[registry]; ok {
		return host + "/" + path
	}
	return name
}

// Resolve is Client.Resolve at the mirror.
func (m *Mirrored) Resolve(ctx context.Context, ref sources.Ref) (sources.Digest, error) {
	ref.Repository = m.repository(ref.Repository)
	return m.client.Resolve(ctx, ref)
}

// Manifest is Client.Manifest at the mirror.
func (m *Mirrored) Manifest(ctx context.Context, repository string, d sources.Digest) ([]byte, error) {
	return m.client.Manifest(ctx, m.repository(repository), d)
}

// Blob is Client.Blob at the mirror.
func (m *Mirrored) Blob(ctx context.Context, repository string, d sources.Digest, size int64) (io.ReadCloser, error) {
	return m.client.Blob(ctx, m.repository(repository), d, size)
}

// Tags is Client.Tags at the mirror.
func (m *Mirrored) Tags(ctx context.Context, repository string) ([]string, error) {
	return m.client.Tags(ctx, m.repository(repository))
}
