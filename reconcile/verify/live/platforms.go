package live

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
	"gitopsd.dev/sources/resolve"
)

// lookup looks up the platforms of an image once. late is set if the time of the cluster
// that it was for was over.
type lookup struct {
	once     sync.Once
	children []sources.Child
	err      error
	late     bool
}

// platforms looks up the platforms of images of plain manifests that are rendered by digest,
// run by another digest, and are not in the lock. The registry's answer is verified by the
// digest of the index.
func (in *reading) platforms(ctx context.Context) {
	for id, c := range in.facts.Controllers {
		var images []behaviour.Part // as rendered
		for _, p := range c.Wanted.Images {
			rendered, err := sources.ParseDigest(p.Value)
			if err != nil || in.has(rendered) || !runsOther(c.Instances, p.Name, rendered) {
				continue
			}
			if images == nil {
				images = behaviour.FromWorkload(in.wanted.Objects.Get(id).Tree()).Images
			}
			i := slices.IndexFunc(images, func(q behaviour.Part) bool { return q.Name == p.Name })
			ref, err := resolve.ParseImage(images[i].Value)
			if err == nil {
				err = in.lookup(ctx, ref.Repository, rendered)
			}
			if err != nil {
				in.facts.Gap(fmt.Errorf("%s: an image that runs may be a platform of the rendered one, which cannot be looked up: %w", id, err))
			}
		}
	}
}

// has reports whether the lock has the platforms of an image.
func (r *Reader) has(d sources.Digest) bool {
	return slices.ContainsFunc(r.cfg.Images, func(i lockfile.Image) bool { return i.Digest == d && len(i.Platforms) > 0 })
}

func runsOther(instances []verify.Instance, container string, rendered sources.Digest) bool {
	return slices.ContainsFunc(instances, func(i verify.Instance) bool {
		return slices.ContainsFunc(i.Images, func(p behaviour.Part) bool {
			d, ok := behaviour.ImageDigest(p.Value)
			return p.Name == container && ok && d != rendered
		})
	})
}

// lookup looks up the platforms of an image. If another cluster looks them up and its time
// ends, lookup tries again for this one.
func (r *Reader) lookup(ctx context.Context, repository string, d sources.Digest) error {
	for {
		r.mu.Lock()
		l := r.looked[d]
		if l == nil {
			l = new(lookup)
			r.looked[d] = l
		}
		r.mu.Unlock()
		l.once.Do(func() {
			l.children, l.err = r.cfg.Platforms(ctx, repository, d)
			l.late = l.err != nil && ctx.Err() != nil
		})
		if !l.late || ctx.Err() != nil {
			return l.err
		}
		r.mu.Lock()
		if r.looked[d] == l {
			delete(r.looked, d)
		}
		r.mu.Unlock()
	}
}

// Images returns the images in the lock, and those with platforms that were looked up.
func (r *Reader) Images() []lockfile.Image {
	all := slices.Clone(r.cfg.Images)
	for d, l := range r.looked {
		i := lockfile.Image{Digest: d}
		for _, c := range l.children {
			i.Platforms = append(i.Platforms, c.Digest)
		}
		all = append(all, i)
	}
	return all
}
