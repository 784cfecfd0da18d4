package desired

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"sync"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/errgroup"
)

// parallelFetches bounds the remote bases that are fetched at a time for a
// cluster.
const parallelFetches = 4

// want is the first half of rendering. Rendering uses no network: it returns the remote bases
// that it lacks, which are fetched before it starts again, until none is missing. A cluster
// without remote bases is rendered once.
func (c *Computer) want(ctx context.Context, files fs.FS, cl *Unit) (*render.Wanted, error) {
	cl.bases = remote.Bases{Allowed: c.cfg.Remote}
	for {
		w, err := c.renderer.Want(ctx, cl.Input(files))
		if w != nil {
			return w, err
		}
		var missing *kustomize.MissingError
		if !errors.As(err, &missing) {
			return nil, &problem.Error{Lasting: true, Err: err} // the commit's files alone decide
		}
		// Each round adds a base, and package kustomize limits how many a build has.
		if err := c.fetchBases(ctx, cl, missing.Bases); err != nil {
			return nil, err
		}
	}
}

// fetchBases fetches the missing bases of a cluster.
func (c *Computer) fetchBases(ctx context.Context, cl *Unit, missing []kustomize.Missing) error {
	trees := make(map[sources.Tree]fs.FS)
	var mu sync.Mutex // of trees
	var g errgroup.Group
	g.SetLimit(parallelFetches)
	errs := make([]error, len(missing))
	for i, m := range missing {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, m.Timeout)
			defer cancel()
			files, err := c.cfg.FetchTree(ctx, m.Tree)
			if err != nil {
				errs[i] = m.Fault(err)
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			trees[m.Tree] = files
			return nil
		})
	}
	_ = g.Wait() // each has its own error
	if cl.bases.Trees == nil {
		cl.bases.Trees = make(map[sources.Tree]fs.FS)
	}
	maps.Copy(cl.bases.Trees, trees)
	return errors.Join(errs...)
}
