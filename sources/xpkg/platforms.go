package xpkg

import (
	"cmp"
	"context"
	"slices"

	"gitopsd.dev/sources"
)

// Platforms lists the platforms of an image that need not be a package, such as
// a controller's, sorted; none when digest d is that of a single image. Left out
// are attestations, children without a platform, and platforms that are there
// more than once (Windows, by its builds): which of them a node runs does not
// follow from the platform.
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
