package reconcile

import (
	"io/fs"
	"slices"

	"gitopsd.dev/reconcile/checkpoint"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// A starting daemon resumes where an earlier one ended.
//
// After an attempt that left nothing to do, a checkpoint records the state of the unit and
// an identifier of everything that it was computed from (reconcile/checkpoint). If the
// identifier is still the same for every unit when a daemon starts, nothing is computed: no
// package is read and nothing rendered. Each worker only verifies that its unit is unchanged,
// and watches it. As soon as a unit has changed, or is due, or the branch has a newer commit,
// everything is computed as usual. A unit that this process must serve something for has no
// checkpoint.

// resume returns a first revision from the checkpoints, and the registry and the lock of the
// newest commit; nil if the commit must be computed.
func (d *Daemon) resume() *revision {
	if d.now != nil || d.cfg.Checkpoints == nil || d.pending.there {
		return nil
	}
	text, err := fs.ReadFile(d.head.Files, sources.RegistryFile)
	if err != nil {
		return nil
	}
	s := &desired.State{Commit: d.head}
	if s.Registry, err = clusters.Parse(sources.RegistryFile, text); err != nil {
		return nil
	}
	if s.Committed, err = desired.ReadLock(d.head.Files); err != nil {
		return nil
	}
	s.Lock = s.Committed.Clone()
	for _, name := range s.Lock.Clusters() {
		if s.Registry.Removed(name) {
			return nil // it is to leave the lock
		}
	}
	r := &revision{state: s, commit: s.Commit, committed: s.Committed, input: d.inputOf(s), at: make(map[desired.ID]*checkpoint.Record)}
	for _, c := range s.Registry.Clusters {
		u := desired.Registered(c, s.Commit.Hash)
		if c.Spec.Conversion != nil && c.Spec.Conversion.URL != "" {
			return nil // its rules are served, even while it is suspended
		}
		if !u.Suspend {
			at := d.cfg.Checkpoints.Load(u.ID.String(), r.input)
			if at == nil {
				return nil
			}
			r.at[u.ID], u.Notes = at, at.Notes
		}
		s.Clusters = append(s.Clusters, u)
	}
	if len(r.at) == 0 {
		return nil
	}
	d.cfg.Log.Info("the commit is the one that the clusters were left with; nothing is computed unless one is not as it was",
		"commit", sources.ShortHash(d.head.Hash), "clusters", len(r.at))
	return r
}

// inputOf returns an identifier of everything that a state was computed from; "" if the next
// computation may give another result all the same, if the registry does not have all units,
// or if the state has problems that no missing checkpoint tells of.
func (d *Daemon) inputOf(s *desired.State) string {
	files, ok := s.Commit.Files.(sources.ContentFS)
	derived := slices.ContainsFunc(s.Clusters, func(u *desired.Unit) bool { return u.ID.Name != "" })
	// Any other unit with problems lacks its checkpoint.
	suspended := slices.ContainsFunc(s.Clusters, func(u *desired.Unit) bool { return u.Suspend && !u.Complete() })
	if !ok || d.cfg.Checkpoints == nil || s.Always || derived || suspended || s.RegistryErr != nil || len(s.Waiting) > 0 {
		return ""
	}
	content, err := files.Content(sources.LockFile)
	if err != nil {
		d.cfg.Log.Error("reading the commit", "commit", sources.ShortHash(s.Commit.Hash), "error", err)
		return ""
	}
	return string(sources.DigestOf([]byte(d.cfg.Settings + "\x00" + content + "\x00" + string(s.Lock.Format()))))
}

// keep stores the checkpoint of a unit at rest. After an attempt without a checkpoint only the
// certificates are kept, for a process that makes no attempt: the unit may still be in the earlier state,
// and the next process would take it for done.
func (ws *workers) keep(w *worker, j *job, o unit.Outcome) {
	switch {
	case ws.cfg.Checkpoints == nil, j.at() != nil, o.Phase == status.Unreachable, o.Phase == status.Waiting, o.Phase == status.Suspended:
		return // nothing new is known
	}
	r := &checkpoint.Record{Certificates: w.certificates}
	if o.Checkpoint != nil && j.of.input != "" {
		r.Input, r.Cluster, r.Again = j.of.input, o.Checkpoint, o.Again.UTC().Round(0)
		r.Objects, r.Packages, r.Notes = j.want.Objects.Len(), packages(j.want, o, w.running), j.want.Notes
	}
	if w.kept.Equal(r) {
		return
	}
	// Also if it cannot be stored, so that the failure is not reported in every pass.
	w.kept = r
	if r.Cluster == nil && len(r.Certificates) == 0 {
		ws.forget(w.id)
		return
	}
	if err := ws.cfg.Checkpoints.Save(w.id.String(), r); err != nil {
		ws.cfg.Log.Warn("the next start will compute everything", "error", err)
		if r.Cluster == nil {
			ws.forget(w.id) // the earlier one
		}
	}
}

// forget deletes the checkpoint of a unit that left the fleet.
func (ws *workers) forget(id desired.ID) {
	if ws.cfg.Checkpoints == nil {
		return
	}
	if err := ws.cfg.Checkpoints.Delete(id.String()); err != nil {
		ws.cfg.Log.Warn("a checkpoint stays behind", "error", err)
	}
}

// askForState asks the daemon to compute the state, because the worker's unit has changed.
func (ws *workers) askForState(w *worker) {
	ws.show(w, status.Waiting, "it has changed since the last daemon left it; its objects are computed first")
	select {
	case ws.moved <- struct{}{}:
	default: // asked already
	}
}
