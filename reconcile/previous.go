package reconcile

import (
	"bytes"
	"context"
	"io/fs"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// A daemon that starts while the repository cannot be reached, or while its newest commit
// cannot be used, does not know what to apply. But it knows which clusters the process before
// had, and serves what is in them; see serve.go. It does so too while the first commit is
// computed, for clusters with API servers that need it all the time, and later for a cluster
// whose document has errors.

// previous is the registry of the process before. The zero value is none.
type previous struct {
	text []byte
	// all has every cluster, and needing those with API servers that need the daemon.
	all, needing *revision
	// stuck reports whether no commit could be used so far.
	stuck bool
}

// loadPrevious loads the registry that the process before left.
func loadPrevious(cfg Config) (p previous) {
	if cfg.Checkpoints == nil || cfg.Home == nil {
		return p
	}
	text := cfg.Checkpoints.LoadRegistry()
	registry, err := clusters.Parse(sources.RegistryFile, text)
	if err != nil {
		return p
	}
	p.text = text
	p.all = &revision{state: &desired.State{Registry: registry}}
	p.needing = &revision{state: &desired.State{Registry: registry}}
	for _, c := range registry.Clusters {
		u := desired.Registered(c, "")
		p.all.state.Clusters = append(p.all.state.Clusters, u)
		if c.Spec.NeedsDaemon() {
			p.needing.state.Clusters = append(p.needing.state.Clusters, u)
		}
	}
	return p
}

// servePrevious serves the clusters of the process before. All of them wait for a commit.
func (d *Daemon) servePrevious(ctx context.Context) {
	d.previous.stuck = d.previous.stuck || d.computing == nil
	of, why := d.previous.needing, "waits for the first commit since the daemon started, which is being computed"
	if d.previous.stuck {
		of, why = d.previous.all, "waits for a commit: none could be used since the daemon started"
	}
	if of == nil || len(of.state.Clusters) == 0 {
		return
	}
	var names []string
	held := make(map[desired.ID]string)
	for _, u := range of.state.Clusters {
		names = append(names, u.ID.String())
		held[u.ID] = why
	}
	d.cfg.Board.Know(names)
	d.workers.assign(ctx, of, held)
}

// perhaps returns the units of the process before, if errors in the registry of a state leave
// open which units there are; otherwise nil.
func (p *previous) perhaps(s *desired.State) map[desired.ID]*desired.Unit {
	if s.RegistryErr == nil || p.all == nil {
		return nil
	}
	units := make(map[desired.ID]*desired.Unit)
	for _, u := range p.all.state.Clusters {
		units[u.ID] = u
	}
	return units
}

// keepRegistry keeps the registry of the revision in charge for the next process.
func (d *Daemon) keepRegistry() {
	if d.cfg.Checkpoints == nil || d.now.state.RegistryErr != nil {
		return
	}
	text, err := fs.ReadFile(d.now.state.Commit.Files, sources.RegistryFile)
	if err != nil || bytes.Equal(text, d.previous.text) {
		return
	}
	// Also if it fails, so that the failure is not reported with every commit.
	d.previous = previous{text: text}
	if err := d.cfg.Checkpoints.SaveRegistry(text); err != nil {
		d.cfg.Log.Warn("if the next process starts while the repository cannot be used, it does not serve what clusters have", "error", err)
	}
}
