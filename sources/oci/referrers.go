package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"gitopsd.dev/sources"
)

// maxReferrers bounds the referrers of a digest.
const maxReferrers = 1000

// emptyConfig is the artifact type of manifests with an empty configuration in registries
// that only know the configuration's type.
const emptyConfig = "application/vnd.oci.empty.v1+json"

// Referrers returns the manifests that refer to a digest and may be of an artifact
// type, in the registry's order. It uses the referrers API of the distribution
// specification or, if the registry or a proxy does not have it, the index under the tag
// "sha256-<hex>". The caller checks their type, and that they refer to the digest. The
// error is an [*Error].
func (c *Client) Referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error) {
	located := c.locate(repository)
	found, err := c.referrers(ctx, located, d, artifactType)
	if err != nil {
		return nil, c.explain(repository+"@"+string(d), located, err)
	}
	return found, nil
}

func (c *Client) referrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error) {
	query := "artifactType=" + url.QueryEscape(artifactType)
	var found []sources.Digest
	for range maxReferrers { // pages; one may have nothing of the type
		resp, err := c.do(ctx, request{repository: repository, path: "referrers/" + string(d), query: query, accept: acceptManifests})
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusOK && !headIsFinal(resp.StatusCode) || resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusNotImplemented {
			resp.Body.Close()
			return c.taggedReferrers(ctx, repository, d, artifactType)
		}
		link, kind := resp.Header.Get("Link"), resp.Header.Get("Content-Type")
		raw, err := readAll(resp, maxManifestBytes)
		if err != nil {
			return nil, err
		}
		page, err := ofType(raw, registryOf(repository), artifactType)
		if err != nil && !strings.HasPrefix(kind, string(types.OCIImageIndex)) { // a page of a proxy, say
			return c.taggedReferrers(ctx, repository, d, artifactType)
		}
		if err != nil {
			return nil, err
		}
		if found = append(found, page...); len(found) > maxReferrers {
			return nil, &problem{Malformed, fmt.Sprintf("%s lists more than %d referrers", registryOf(repository), maxReferrers)}
		}
		next, ok := nextPage(resp.Request, link)
		if !ok || next == query {
			return found, nil
		}
		query = next
	}
	return nil, &problem{Malformed, fmt.Sprintf("%s lists referrers without an end", registryOf(repository))}
}

// taggedReferrers reads the index under the tag, which is missing if there are no
// referrers.
func (c *Client) taggedReferrers(ctx context.Context, repository string, d sources.Digest, artifactType string) ([]sources.Digest, error) {
	raw, err := c.get(ctx, request{repository: repository, path: "manifests/" + strings.Replace(string(d), ":", "-", 1), accept: acceptManifests}, maxManifestBytes)
	var st *status
	if errors.As(err, &st) && st.code == http.StatusNotFound {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	found, err := ofType(raw, registryOf(repository), artifactType)
	if len(found) > maxReferrers {
		return nil, &problem{Malformed, fmt.Sprintf("%s lists more than %d referrers", registryOf(repository), maxReferrers)}
	}
	return found, err
}

// ofType returns the manifests of a type in an index.
func ofType(index []byte, host, artifactType string) ([]sources.Digest, error) {
	var doc struct {
		Manifests []struct {
			Digest       string `json:"digest"`
			ArtifactType string `json:"artifactType"`
		} `json:"manifests"`
	}
	if err := json.Unmarshal(index, &doc); err != nil {
		return nil, &problem{Malformed, fmt.Sprintf("%s sends a list of referrers that is not one", host)}
	}
	var found []sources.Digest
	for _, m := range doc.Manifests {
		switch m.ArtifactType {
		case artifactType, "", emptyConfig:
		default:
			continue
		}
		d, err := sources.ParseDigest(m.Digest)
		if err != nil {
			return nil, &problem{Malformed, fmt.Sprintf("%s lists a referrer by a digest that is not one: %s", host, printable(m.Digest))}
		}
		found = append(found, d)
	}
	return found, nil
}
