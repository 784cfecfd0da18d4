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
	// Repository is the repository of the package that it replaces.
	Repository string
	// Name is the name of the directory.
	Name  string
	Files fs.FS
}

// replace makes cfg read packages from directories: directories of the commit in its rules, and
// local ones. Each package is built once.
func (c *Computer) replace(cfg *resolve.Config, files fs.FS) {
	dirs := make(map[string]fs.FS)
	var local []rules.Replace
	for _, l := range c.cfg.Local {
		dirs[l.Name] = l.Files
		local = append(local, rules.Replace{Repository: l.Repository, Directory: l.Name, Local: true, Place: "--replace"})
	}
	// They take precedence over the fleet's own replacements.
	fleet := slices.DeleteFunc(slices.Clone(cfg.Rules.Replaces), func(by rules.Replace) bool {
		return slices.ContainsFunc(local, func(l rules.Replace) bool { return sources.SameRepository(l.Repository, by.Repository) })
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
			b.image, b.err = xpkg.Build(dir, nil)
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

// Uses reports whether a cluster has a local package, or has problems, so that it may.
func (s *State) Uses(l Local) bool {
	return s.replaces(rules.Replace{Repository: l.Repository})
}

// replaces reports whether a cluster may have a replacement.
func (s *State) replaces(by rules.Replace) bool {
	return s.some(func(p sources.Selected) bool {
		return sources.SameRepository(p.Replaces.Repository, by.Repository) && (by.Version == "" || p.Replaces.Tag == by.Version)
	})
}
