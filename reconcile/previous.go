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
// cannot be used, does not know what to apply. But it knows which clusters there are, from the
// commit or else from the process before, and serves what is in them; see serve.go. It does so
// too while the first commit is computed, for clusters with API servers that need it all the
// time, and later for a cluster whose document has errors.

// previous is the registry of the process before, with the units of its clusters. The zero
// value is none.
type previous struct {
	text     []byte
	registry *clusters.Registry
	units    map[desired.ID]*desired.Unit
}

// loadPrevious loads the registry that the process before left.
func loadPrevious(cfg Config) previous {
	if cfg.Checkpoints == nil || cfg.Home == nil {
		return previous{}
	}
	text := cfg.Checkpoints.LoadRegistry()
	registry, err := clusters.Parse(sources.RegistryFile, text)
	if err != nil {
		return previous{}
	}
	p := previous{text: text, registry: registry, units: make(map[desired.ID]*desired.Unit)}
	for _, c := range registry.Clusters {
		u := desired.Registered(c, "")
		p.units[u.ID] = u
	}
	return p
}

// perhaps returns the units of the process before, if errors in the registry of a state leave
// open which units there are; otherwise nil.
func (p *previous) perhaps(s *desired.State) map[desired.ID]*desired.Unit {
	if s.RegistryErr == nil {
		return nil
	}
	return p.units
}

// serveFirst serves clusters before there is a commit to apply. All of them wait for that.
func (d *Daemon) serveFirst(ctx context.Context) {
	if d.cfg.Home == nil {
		return
	}
	if silent, _ := d.silent(); d.polling != nil && d.head.Hash == "" && !silent {
		return // the repository answers within moments
	}
	d.stuck = d.stuck || d.computing == nil && d.polling == nil
	d.first = d.first.next(d)
	if d.first == nil {
		return
	}
	why := "waits for the first commit since the daemon started, which is being computed"
	if d.head.Hash == "" {
		why = "waits for the first commit since the daemon started: the repository has not answered yet"
	}
	if d.stuck {
		why = "waits for a commit: none could be used since the daemon started"
	}
	var names []string
	held := make(map[desired.ID]string)
	for _, u := range d.first.state.Clusters {
		names = append(names, u.ID.String())
		held[u.ID] = why
	}
	d.cfg.Board.Know(names)
	d.workers.assign(ctx, d.first, held)
}

// next returns the revision for serveFirst: r if it still is the right one; nil for none. Its
// state has a registry and units without objects, and no lock.
func (r *revision) next(d *Daemon) *revision {
	if r != nil && r.commit.Hash == d.head.Hash && r.computing == !d.stuck {
		return r
	}
	s := &desired.State{Commit: sources.Commit{Hash: d.head.Hash}, Registry: d.previous.registry}
	if d.head.Hash != "" {
		text, err := fs.ReadFile(d.head.Files, sources.RegistryFile)
		if err != nil {
			return nil // without it nobody is registered
		}
		s.Registry, s.RegistryErr = clusters.Parse(sources.RegistryFile, text)
	}
	if s.Registry == nil {
		return nil
	}
	next := &revision{state: s, commit: s.Commit, computing: !d.stuck, perhaps: d.previous.perhaps(s)}
	next.before = next.lastRegistered(nil)
	for _, c := range s.Registry.Clusters {
		if c.Spec.NeedsDaemon() || d.stuck {
			s.Clusters = append(s.Clusters, desired.Registered(c, d.head.Hash))
		}
	}
	return next
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
	err = d.cfg.Checkpoints.SaveRegistry(text)
	if err == nil {
		d.previous, d.unkept = previous{text: text}, false
		return
	}
	if !d.unkept { // it is tried with each commit, and told once
		d.cfg.Log.Warn("if the next process starts while the repository cannot be used, it may serve clusters as they were registered before", "error", err)
	}
	d.previous, d.unkept = previous{}, true
}
