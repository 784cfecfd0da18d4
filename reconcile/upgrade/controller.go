package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

// controller returns what a version changes in the behaviour behind a package's types. Both
// versions are rendered without settings of clusters. Types that only one of them has do not
// count.
func (u *Upgrader) controller(ctx context.Context, state *desired.State, p *Versions, c *Candidate, pkg *sources.Package) ([]behaviour.Difference, error) {
	old := bare(p.selected)
	now := old
	now.Pin = sources.Pin{Ref: sources.Ref{Repository: p.Repository, Tag: c.Version}, Digest: c.Digest}
	now.Package = pkg
	if old.Declaration.Kind == sources.Function {
		if old.Pin.Digest == now.Pin.Digest {
			return nil, nil
		}
		return []behaviour.Difference{{What: "image", Name: "of the function", Before: string(old.Pin.Digest), After: string(now.Pin.Digest)}}, nil
	}
	var err error
	if now.Runtime, err = u.image(ctx, state, p, pkg); err != nil {
		return nil, err
	}
	before, err := expand(ctx, old)
	if err != nil {
		return nil, err
	}
	after, err := expand(ctx, now)
	if err != nil {
		return nil, err
	}
	return before.differences(after), nil
}

// bare returns a selected package without its declaration's settings.
func bare(s sources.Selected) sources.Selected {
	return sources.Selected{
		Declaration: sources.Declaration{Kind: s.Declaration.Kind, Name: s.Declaration.Name, Ref: s.Declaration.Ref},
		Pin:         s.Pin, Package: s.Package, Runtime: s.Runtime,
	}
}

// image returns the controller's image by digest: the one in the package's metadata, or the
// package itself. It is empty if the package has no controller.
func (u *Upgrader) image(ctx context.Context, state *desired.State, p *Versions, pkg *sources.Package) (string, error) {
	switch {
	case pkg.Meta.Image != "":
	case pkg.Runnable:
		return p.Repository + "@" + string(pkg.Digest), nil
	default:
		return "", nil
	}
	ref, err := resolve.ParseImage(pkg.Meta.Image)
	if err != nil {
		return "", err
	}
	if ref.Digest == "" {
		from, err := state.Get(p.Clusters[0]).Images.Origin(ref, nil)
		if err != nil {
			return "", err
		}
		if ref.Digest, err = u.cfg.Digest(ctx, from, ref.Tag); err != nil {
			return "", fmt.Errorf("the controller's image %s: %w", pkg.Meta.Image, err)
		}
	}
	return ref.Repository + "@" + string(ref.Digest), nil
}

// expanded are the rendered objects of a package.
type expanded struct {
	index   *behaviour.Index
	objects *manifest.Set
}

func expand(ctx context.Context, s sources.Selected) (expanded, error) {
	var r render.Renderer
	rendered, err := r.Expand(ctx, render.Input{}, new(render.Wanted), []sources.Selected{s})
	if err != nil {
		return expanded{}, err
	}
	return expanded{behaviour.NewIndex(rendered.Objects, nil), rendered.Objects}, nil
}

func (e expanded) differences(now expanded) []behaviour.Difference {
	var all []behaviour.Difference
	compared := make(map[[2]string]bool)
	for _, o := range e.objects.All() {
		after := now.objects.Get(o.ID())
		if after == nil || !o.ID().Is(manifest.Definitions...) {
			continue
		}
		was, _ := e.index.Of(o)
		is, _ := now.index.Of(after) // a package names no controller in an annotation
		if was == nil && is == nil {
			continue
		}
		was, is = cmp.Or(was, new(behaviour.Identity)), cmp.Or(is, new(behaviour.Identity))
		if compared[[2]string{was.Digest(), is.Digest()}] {
			continue
		}
		compared[[2]string{was.Digest(), is.Digest()}] = true
		for _, d := range behaviour.Differences(was, is) {
			if !slices.Contains(all, d) {
				all = append(all, d)
			}
		}
	}
	return all
}
