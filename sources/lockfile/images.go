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
	// Digest is the one that is rendered, of an index or a single manifest.
	Digest sources.Digest
	// Platforms are the manifests in the index. A node that runs the image
	// reports Digest or one of these.
	Platforms []sources.Digest
}

// Images returns the images in the lock, sorted by repository and version.
// Versions with contested records are left out.
func (f *File) Images() []Image {
	type version struct{ repository, version string }
	runtime := make(map[version]string)
	for k, r := range f.records {
		if k.Item == ItemRuntime {
			runtime[version{k.Repository, k.Version}] = r.sum
		}
	}
	found := make(map[version]*Image)
	for k, r := range f.records {
		if k.Item != "" || f.Contested(k.Repository, k.Version) != nil {
			continue
		}
		v := version{k.Repository, k.Version}
		found[v] = &Image{Repository: k.Repository, Version: k.Version, Digest: sources.Digest(cmp.Or(runtime[v], r.sum))}
	}
	for k, r := range f.records {
		i := found[version{k.Repository, k.Version}]
		if i == nil || !strings.Contains(k.Item, "/") {
			continue
		}
		// The platforms of the package are those of the controller where the
		// controller's image is the package's own.
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
