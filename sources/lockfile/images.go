package lockfile

import (
	"cmp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Image is an image that the lock expects to run: a Provider's controller, or a
// package that runs itself.
type Image struct {
	// Repository and Version are the package's.
	Repository, Version string
	// Digest of the index or single manifest, as it is rendered.
	Digest sources.Digest
	// Platforms are the digests of the manifests in the index. A node that runs the
	// image reports Digest or one of these.
	Platforms []sources.Digest
}

// Images returns the images in the lock, sorted by repository and version.
// Versions with contested records are left out.
func (f *File) Images() []Image {
	found := make(map[Key]*Image)
	for k, r := range f.records {
		if k.Item != "" || f.Contested(k.Repository, k.Version) != nil {
			continue
		}
		runtime, _ := f.Lookup(Key{k.Repository, k.Version, ItemRuntime})
		found[k] = &Image{Repository: k.Repository, Version: k.Version, Digest: sources.Digest(cmp.Or(runtime, r.sum))}
	}
	for k, r := range f.records {
		i := found[k.version()]
		if i == nil || !strings.Contains(k.Item, "/") {
			continue
		}
		// If the controller's image is the package itself, its platforms are the
		// package's.
		own, _ := f.Digest(k.Repository, k.Version)
		if strings.HasPrefix(k.Item, ItemRuntime+"/") != (i.Digest == own) {
			i.Platforms = append(i.Platforms, sources.Digest(r.sum))
		}
	}
	var all []Image
	for _, i := range found {
		slices.Sort(i.Platforms)
		all = append(all, *i)
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Version, b.Version))
	})
	return all
}
