package reconcile

import (
	"bytes"
	"context"
	"io/fs"
	"time"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// A daemon that starts while the repository cannot be reached, or while its newest commit
// cannot be used, does not know what to apply. But it knows which clusters there are, from the
// commit or else from the process before, and serves what is in them; see serve.go. It does so
// too while the first commit is computed, for clusters with API servers that need it all the
// time, and later for a cluster whose document has errors.

// Registry keeps the last registry of clusters without errors for the next process.
type Registry interface {
	// LoadRegistry returns the text that was saved last; empty if there is none.
	LoadRegistry(ctx context.Context) ([]byte, error)
	// SaveRegistry replaces the text. It returns within seconds.
	SaveRegistry(ctx context.Context, text []byte) error
}

// previous is the registry of the process before, with the units of its clusters, until this
// one has a registry without errors. The zero value is none.
type previous struct {
	registry *clusters.Registry
	units    map[desired.ID]*desired.Unit
}

// kept is a place where the registry is kept for the next process.
type kept struct {
	Registry
	text []byte // that is there
	// failed: the last attempt to save failed. The next one is not before retry.
	failed bool
	retry  time.Time
}

// keepAgain is how long a place that failed is left alone.
const keepAgain = time.Minute

// places returns where the registry is kept.
func places(cfg Config) []kept {
	var all []kept
	for _, r := range cfg.Registries {
		all = append(all, kept{Registry: r})
	}
	return all
}

// loadPrevious loads the registry that the process before left: that of the first place that
// has one.
func (d *Daemon) loadPrevious(ctx context.Context) {
	if d.cfg.Home == nil {
		return
	}
	for i := range d.kept {
		k := &d.kept[i]
		text, err := k.LoadRegistry(ctx)
		if err != nil {
			d.cfg.Log.Warn("the last registry of clusters cannot be read; until there is a commit, another copy of it may be used, or none", "error", err)
			continue
		}
		k.text = text
		registry, err := clusters.Parse(sources.RegistryFile, text)
		if err != nil || len(registry.Clusters) == 0 || d.previous.registry != nil {
			continue
		}
		d.previous = previous{registry: registry, units: make(map[desired.ID]*desired.Unit)}
		for _, c := range registry.Clusters {
			u := desired.Registered(c, "")
			d.previous.units[u.ID] = u
		}
	}
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
func (d *Daemon) keepRegistry(ctx context.Context) {
	if !d.unkept || d.now.state.RegistryErr != nil {
		return
	}
	text, err := fs.ReadFile(d.now.state.Commit.Files, sources.RegistryFile)
	if err != nil {
		return
	}
	d.previous, d.unkept = previous{}, false
	for i := range d.kept {
		k := &d.kept[i]
		if bytes.Equal(text, k.text) {
			continue
		}
		if time.Now().Before(k.retry) {
			d.unkept = true
			continue
		}
		err := k.SaveRegistry(ctx, text)
		if err == nil {
			k.text, k.failed, k.retry = text, false, time.Time{}
			continue
		}
		d.unkept = true
		if !k.failed && ctx.Err() == nil {
			d.cfg.Log.Warn("if the next process starts while the repository cannot be used, it may serve clusters as they were registered before", "error", err)
		}
		k.failed, k.retry = true, time.Now().Add(keepAgain)
	}
}
