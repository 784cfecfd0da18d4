package desired

import (
	"context"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/rules"
	"gitopsd.dev/sources/xpkg"
)

// Local is a directory with the files of a package.
type Local struct {
	// Repository is the one that clusters have the package of.
	Repository string
	// Name is the directory's, for people.
	Name  string
	Files fs.FS
}

// replace makes cfg read packages from directories: those of the commit that its
// rules name, and the local ones. Each is built once.
func (c *Computer) replace(cfg *resolve.Config, files fs.FS) {
	dirs := make(map[string]fs.FS)
	var local []rules.Replace
	for _, l := range c.cfg.Local {
		dirs[l.Name] = l.Files
		local = append(local, rules.Replace{Repository: l.Repository, Directory: l.Name, Local: true, Place: "--replace"})
	}
	// They come in place of the fleet's own replacements.
	fleet := slices.DeleteFunc(slices.Clone(cfg.Rules.Replaces), func(by rules.Replace) bool {
		return slices.ContainsFunc(local, func(l rules.Replace) bool { return l.Repository == by.Repository })
	})
	cfg.Rules.Replaces = append(local, fleet...)

	type built struct {
		image *xpkg.Image
		err   error
	}
	images := make(map[string]built)
	var mu sync.Mutex // of images
	build := func(name string) (*xpkg.Image, error) {
		mu.Lock()
		defer mu.Unlock()
		b, ok := images[name]
		if ok {
			return b.image, b.err
		}
		dir := dirs[name]
		if dir == nil {
			dir, b.err = fs.Sub(files, name)
		}
		if b.err == nil {
			b.image, b.err = xpkg.Build(dir)
		}
		images[name] = b
		return b.image, b.err
	}
	cfg.Directory = func(_ context.Context, name string) (sources.Digest, error) {
		image, err := build(name)
		if err != nil {
			return "", err
		}
		return image.Digest(), nil
	}
	fetch := cfg.Fetch
	cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		if from.Directory == "" {
			return fetch(ctx, from, d)
		}
		return c.fetch(ctx, from, d, func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
			image, err := build(from.Directory)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", from, err)
			}
			return xpkg.Read(ctx, image, from.Repository, d)
		})
	}
}

// Uses reports whether some cluster has a package of this machine, or an error
// instead that may be about it.
func (s *State) Uses(l Local) bool {
	return s.replaces(rules.Replace{Repository: l.Repository})
}

// replaces reports whether some cluster has a replacement. It is also true if that
// is not known.
func (s *State) replaces(by rules.Replace) bool {
	return slices.ContainsFunc(s.Clusters, func(c *Unit) bool {
		return !c.Remove && (c.Err != nil || len(c.Faults) > 0) || slices.ContainsFunc(c.Packages, func(p sources.Selected) bool {
			return p.Replaces.Repository == by.Repository && (by.Version == "" || p.Replaces.Tag == by.Version)
		})
	})
}
