package xpkg

import (
	"cmp"
	"context"
	"slices"

	"gitopsd.dev/sources"
)

// Platforms returns the platforms of an image, for instance a controller's,
// sorted, or none if d is a single image's digest. It leaves out attestations, children
// without a platform, and platforms with several children (Windows has one for each
// build), since it is unknown which of them a node runs. The error is the Source's, or
// an [*InvalidError] for other content.
func Platforms(ctx context.Context, src Source, repository string, d sources.Digest) ([]sources.Child, error) {
	r := newReader(src, repository)
	m, err := r.manifest(ctx, d)
	if err != nil {
		return nil, named(repository+"@"+string(d), err)
	}
	if m.Manifests == nil {
		return nil, nil
	}
	count := make(map[string]int)
	var children []sources.Child
	for _, c := range *m.Manifests {
		if c.Platform == nil || c.Platform.OS == "unknown" || c.Annotations["vnd.docker.reference.type"] != "" {
			continue
		}
		name, err := c.Platform.name(c.Digest)
		if err != nil {
			return nil, named(repository+"@"+string(d), err)
		}
		if name != "" {
			count[name]++
			children = append(children, sources.Child{Platform: name, Digest: c.Digest})
		}
	}
	children = slices.DeleteFunc(children, func(c sources.Child) bool { return count[c.Platform] > 1 })
	slices.SortFunc(children, func(a, b sources.Child) int { return cmp.Compare(a.Platform, b.Platform) })
	return children, nil
}
