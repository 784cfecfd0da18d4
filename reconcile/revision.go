package reconcile

import (
	"maps"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/lockfile"
)

// revision is a commit with its state. It is immutable: each job keeps its own, and
// several exist side by side.
type revision struct {
	state *desired.State
	// commit is the state's own commit, or the commit of the lock on top of it.
	// committed is the lock as commit has it.
	commit    sources.Commit
	committed *lockfile.File
	// input identifies everything that state was computed from; empty if the next
	// computation of the same commit may give another result.
	input string
	// at has the checkpoints of the units if state was resumed from an earlier process;
	// then state has no objects.
	at map[desired.ID]*checkpoint.Record
	// computing: the state has nothing but a registry, of a commit that is being computed.
	computing bool
	// perhaps are the units of the process before, if the state's registry has errors: its
	// documents with errors may be meant for some of them.
	perhaps map[desired.ID]*desired.Unit
	// before are the clusters as they were registered last, by name; nil unless the state's
	// registry has errors.
	before map[string]clusters.Cluster
}

// lastRegistered returns revision.before. last is the revision in charge so far; may be nil.
func (r *revision) lastRegistered(last *revision) map[string]clusters.Cluster {
	if !r.state.Registry.Faulty {
		return nil
	}
	before := make(map[string]clusters.Cluster)
	for id, u := range r.perhaps {
		before[id.Cluster] = u.Cluster
	}
	if last != nil {
		maps.Copy(before, last.before)
		for _, c := range last.state.Registry.Clusters {
			before[c.Name] = c
		}
	}
	return before
}

// locked returns the revision with its lock committed on top.
func (r revision) locked(commit sources.Commit) *revision {
	r.commit, r.committed = commit, r.state.Lock
	return &r
}
