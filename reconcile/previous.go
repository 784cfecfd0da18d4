package reconcile

import (
	"bytes"
	"context"
	"io/fs"
	"slices"
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
	// LoadRegistry returns the text that was saved last, and when; empty if there is none. It
	// returns within seconds.
	LoadRegistry(ctx context.Context) (text []byte, saved time.Time, err error)
	// SaveRegistry replaces the text. It returns within seconds.
	SaveRegistry(ctx context.Context, text []byte) error
}

// previous is the registry of the process before, with the units of its clusters, until this
// one has a registry without errors. The zero value is none.
type previous struct {
	registry *clusters.Registry
	units    map[desired.ID]*desired.Unit
	saved    time.Time
}

// kept is a place where the registry is kept for the next process.
type kept struct {
	Registry
	text []byte // that is there
	// failed: the last attempt to load or save failed. The next one is not before next. Without
	// a failure, the text is saved again then: somebody may have removed it.
	failed bool
	next   time.Time
}

// keepAgain is how long a place that failed is left alone, and keepLonger one that did not.
const (
	keepAgain  = time.Minute
	keepLonger = time.Hour
)

// places returns where the registry is kept.
func places(cfg Config) []kept {
	var all []kept
	for _, r := range cfg.Registries {
		all = append(all, kept{Registry: r})
	}
	return all
}

// loadPrevious loads the registry that the process before left: the one that was saved last, of
// the places that have one. A place that failed is asked again later.
func (d *Daemon) loadPrevious(ctx context.Context) {
	if d.cfg.Home == nil {
		return
	}
	for i := range d.kept {
		k := &d.kept[i]
		if !k.next.IsZero() && (!k.failed || time.Now().Before(k.next)) {
			continue
		}
		text, saved, err := k.LoadRegistry(ctx)
		if err != nil {
			if !k.failed && ctx.Err() == nil {
				d.cfg.Log.Warn("the last registry of clusters cannot be read; until there is a commit, another copy of it may be used, or none", "error", err)
			}
			k.failed, k.next = true, time.Now().Add(keepAgain)
			continue
		}
		k.text, k.failed, k.next = text, false, time.Now().Add(keepLonger)
		registry, err := clusters.Parse(sources.RegistryFile, text)
		if err != nil || len(registry.Clusters) == 0 || !saved.After(d.previous.saved) {
			continue
		}
		d.previous = previous{registry: registry, units: make(map[desired.ID]*desired.Unit), saved: saved}
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
	if d.previous.registry == nil {
		d.loadPrevious(ctx)
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
	if d.now.state.RegistryErr != nil {
		return
	}
	d.previous = previous{}
	due := func(k kept) bool { return !time.Now().Before(k.next) }
	if !d.unkept && !slices.ContainsFunc(d.kept, due) {
		return
	}
	text, err := fs.ReadFile(d.now.state.Commit.Files, sources.RegistryFile)
	if err != nil {
		return
	}
	d.unkept = false
	for i := range d.kept {
		k := &d.kept[i]
		if bytes.Equal(text, k.text) && !due(*k) {
			continue
		}
		if k.failed && !due(*k) {
			d.unkept = true
			continue
		}
		err := k.SaveRegistry(ctx, text)
		if err == nil {
			k.text, k.failed, k.next = text, false, time.Now().Add(keepLonger)
			continue
		}
		d.unkept = true
		if !k.failed && ctx.Err() == nil {
			d.cfg.Log.Warn("if the next process starts while the repository cannot be used, it may serve clusters as they were registered before", "error", err)
		}
		k.text, k.failed, k.next = nil, true, time.Now().Add(keepAgain)
	}
}
