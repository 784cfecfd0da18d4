package oci

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// Tags returns the tags of a repository, sorted as text. It follows the pages
// of a long list, on the same registry only. The error is an [*Error].
func (c *Client) Tags(ctx context.Context, repository string) ([]string, error) {
	located := c.locate(repository)
	tags, err := c.tags(ctx, located)
	if err != nil {
		return nil, c.explain(repository, located, err)
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

func (c *Client) tags(ctx context.Context, repository string) ([]string, error) {
	repo, err := parseRepository(repository)
	if err != nil {
		return nil, err
	}
	var tags []string
	query := "n=1000"
	for {
		r := request{repository: repository, path: "tags/list", query: query}
		resp, err := c.do(ctx, r)
		if err != nil {
			return nil, err
		}
		link := resp.Header.Get("Link")
		body, err := readAll(resp, maxTagsPageBytes)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tags []string `json:"tags"`
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return nil, &problem{Malformed, fmt.Sprintf("%s sends a list of tags that is not one", repo.RegistryStr())}
		}
		tags = append(tags, page.Tags...)
		if len(tags) > maxTags {
			return nil, &problem{Malformed, fmt.Sprintf("%s lists more than %d tags", repo.RegistryStr(), maxTags)}
		}
		next, ok := nextPage(resp.Request, link)
		if !ok || len(page.Tags) == 0 || next == query {
			return tags, nil
		}
		query = next
	}
}

// nextPage returns the query of the next page from a Link header
// (RFC 8288: <url>; rel="next"). The rest of the address is ignored, so that the next
// page comes from the same registry.
func nextPage(req *http.Request, link string) (query string, ok bool) {
	target, rest, ok := strings.Cut(strings.TrimPrefix(link, "<"), ">")
	if !ok || !strings.HasPrefix(link, "<") || !strings.Contains(rest, "next") {
		return "", false
	}
	u, err := url.Parse(target)
	if err != nil {
		return "", false
	}
	return req.URL.ResolveReference(u).RawQuery, true
}
