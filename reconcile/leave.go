package reconcile

import (
	"context"
	"io/fs"
	"slices"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// maxLookBack bounds how many commits are read to find how a cluster was
// registered that left while the daemon was not running.
const maxLookBack = 50

// leave notes the clusters that left the registry since the state before, when
// these are to be emptied. They keep their lines in the lock until they are
// empty: so a daemon that starts anew knows that it has not done with them.
func (d *Daemon) leave(ctx context.Context, before, now *desired.State) {
	if !d.cfg.PruneRemoved {
		return
	}
	for name := range d.leaving {
		if !now.Registry.Removed(name) {
			d.cfg.Log.Info("the cluster is in the registry again", "cluster", name)
			delete(d.leaving, name)
		}
	}
	registered := make(map[string]clusters.Cluster)
	if before != nil {
		for _, c := range before.Clusters {
			registered[c.Name] = c.Cluster
		}
	} else {
		registered = d.lookBack(ctx, now)
	}
	for name, c := range registered {
		if now.Registry.Removed(name) && d.leaving[name] == nil {
			d.cfg.Log.Info("the cluster left the registry; everything that gitopsd applied to it is pruned", "cluster", name)
			d.leaving[name] = emptied(c)
		}
	}
}

// emptied is a cluster that is wanted to have nothing.
func emptied(c clusters.Cluster) *desired.Cluster {
	none, _ := manifest.NewSet(nil) // nothing is defined twice
	return &desired.Cluster{Cluster: c, Objects: none, Leaving: true}
}

// lookBack finds how the clusters were registered that are in the lock and not in
// the registry any more, in the commits before the one in charge.
func (d *Daemon) lookBack(ctx context.Context, now *desired.State) map[string]clusters.Cluster {
	found := make(map[string]clusters.Cluster)
	missing := slices.DeleteFunc(now.Committed.Clusters(), func(name string) bool { return !now.Registry.Removed(name) })
	commit := now.Commit
	for range maxLookBack {
		if len(missing) == 0 {
			return found
		}
		parent, ok, err := d.cfg.Repository.Parent(ctx, commit.Hash)
		if err != nil || !ok {
			if err != nil {
				d.cfg.Log.Error("reading an older commit", "error", err)
			}
			break
		}
		commit = parent
		text, err := fs.ReadFile(commit.Files, sources.RegistryFile)
		if err != nil {
			continue
		}
		registry, _ := clusters.Parse(sources.RegistryFile, text) // as far as it was valid
		missing = slices.DeleteFunc(missing, func(name string) bool {
			c, ok := registry.Get(name)
			if ok {
				found[name] = c
			}
			return ok
		})
	}
	for _, name := range missing {
		d.cfg.Log.Error("a cluster that is in the lock left the registry, and no recent commit says how it was registered; its objects stay. Register it again and remove it once more to have them pruned", "cluster", name)
	}
	return found
}

// left forgets the clusters that have become empty, and their lines in the lock.
func (d *Daemon) left() {
	for _, name := range d.workers.takeGone() {
		if d.leaving[name] == nil {
			continue
		}
		delete(d.leaving, name)
		d.cfg.Log.Info("nothing of gitopsd's is left in the cluster", "cluster", name)
	}
}
