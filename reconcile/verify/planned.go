package verify

import (
	"cmp"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/lockfile"
)

// Planned is why an object is not as rendered in a cluster: `gitopsd run` refuses to apply or
// prune it, or has not done so yet.
type Planned struct {
	// Kind is [Refused], [RolledBack] or [NotApplied].
	Kind Kind
	// Why is for people: "refused: …".
	Why string
	// Member reports whether the live object is in gitopsd's inventory.
	Member bool
}

// Behind reports whether anything in the cluster differs from what was rendered, so that a
// plan may explain it. known is as Images in [Options].
func (c *Facts) Behind(known []lockfile.Image) bool {
	if c.Unread {
		return false
	}
	images := newImages(known)
	for _, d := range c.Definitions {
		if d.Rendered != nil && !d.asRendered() {
			return true
		}
		if d.Composed != nil {
			if differing, _, _ := images.differing(d); len(differing) > 0 {
				return true
			}
		}
	}
	for _, w := range c.Controllers {
		drifted := func(a aspect) bool { return len(a.of(w).Drift) > 0 }
		if !w.Unread && (images.judge(w).problem != "" || slices.ContainsFunc(aspects, drifted)) {
			return true
		}
	}
	return slices.ContainsFunc(c.Webhooks, func(w Webhook) bool { return w.Missing && !w.Held || len(w.Drift) > 0 })
}

// Explain notes which objects are not yet as rendered, by a plan for the cluster, and why.
// Objects that others changed or deleted are not among them, nor are new ones: no plan tells
// these from deleted ones.
func (c *Facts) Explain(p *plan.Plan) {
	// A package is refused as a whole, because of one breaking change.
	broken := make(map[string]*plan.Step)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Package != "" && broken[s.Package] == nil && s.Action == plan.Refused && s.Compatibility == compat.Breaking && !s.Drift {
			broken[s.Package] = s
		}
	}
	c.Planned = make(map[manifest.ID]Planned)
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Drift {
			continue
		}
		if s.Rollback.Done {
			c.Planned[s.ID] = Planned{RolledBack, "rolled back: " + s.Rollback.Why, s.Member}
			continue
		}
		switch s.Action {
		case plan.Configure, plan.Prune:
			c.Planned[s.ID] = Planned{NotApplied, "not applied yet", s.Member}
		case plan.Refused, plan.Conflict:
			why := s.Reason
			if root := broken[s.Package]; root != nil {
				why = root.ID.Name + ": " + root.Reason
			}
			said := "refused: "
			if s.Action == plan.Conflict {
				said = "in conflict: "
			}
			c.Planned[s.ID] = Planned{Refused, said + why, s.Member}
		case plan.Wait, plan.Held:
			c.Planned[s.ID] = Planned{NotApplied, "not applied yet: " + cmp.Or(s.Reason, string(s.Action)), s.Member}
		}
	}
}

// pending reports that a type, or its controller or Compositions, was declared and is not
// applied, and marks the clusters' entries.
func (c *comparison) pending(id manifest.ID, all []here) {
	found := newPartition()
	for i := range all {
		h := &all[i]
		if h.Rendered == nil {
			continue
		}
		var why Planned
		var details []string
		waits := false // for the configuration or rights of the controller
		note := func(p Planned, detail string) {
			if p.Kind == "" {
				return
			}
			if why.Kind == "" || p.Kind.rank() < why.Kind.rank() {
				why = p
			}
			if detail != "" {
				details = append(details, detail)
			}
		}
		if !h.asRendered() {
			note(h.planned[id], "")
			h.pending = h.planned[id].Kind != ""
		}
		if h.control != nil && !h.control.Unread {
			v := c.judge(h.control)
			if !v.held && (v.problem == WrongController || v.problem == SettingsDrifted || v.problem == NoController) {
				p := h.planned[h.Behaviour.Workload]
				detail := v.what
				if v.runs != "" {
					detail = "until then " + v.runs + " runs"
				}
				note(p, detail)
				h.behind = p.Kind != ""
			}
			for _, a := range aspects {
				if ctx := a.of(h.control); ctx.waits(h.planned) {
					waits = true
					for _, id := range ctx.From {
						note(h.planned[id], "")
					}
					details = append(details, "until then other than rendered: "+prose.Some(ctx.Drift, 4))
				}
			}
		} else if h.Composed != nil {
			differing, _, _ := c.images.differing(h.Definition)
			for _, d := range differing {
				note(h.planned[d.id], d.text)
			}
			h.behind = len(differing) > 0 && !slices.ContainsFunc(differing, func(d difference) bool { return h.planned[d.id].Kind == "" })
		}
		if !h.pending && !h.behind && !waits {
			continue
		}
		what := "wanted " + cmp.Or(h.Source, "as declared") + ", " + why.Why
		found.add(string(why.Kind)+" "+what, h.cluster, what, in(h.cluster, details))
	}
	c.reportEach(id, found)
}

// atOnce returns the image IDs of one program in words.
func (x *images) atOnce(ids []string) string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = x.name(id)
	}
	text := strings.Join(names, " and ")
	if len(ids) > 1 {
		text += " at once"
	}
	return text
}

// difference is a Composition or Function that is not as rendered.
type difference struct {
	id   manifest.ID
	text string
}

// differing compares the Compositions and Functions behind a composite type with the
// rendered ones. runs is equal for clusters with the same; undeclared are the running
// Functions that the cluster does not declare, in words.
func (x *images) differing(d *Definition) (all []difference, runs string, undeclared []string) {
	for _, name := range behaviour.Differing(d.Behaviour.Compositions, d.Composed.Compositions) {
		all = append(all, difference{manifest.Composition.ID("", name), "composition " + name})
	}
	runs = d.Behaviour.Digest()
	for _, f := range d.Behaviour.Functions {
		i := slices.IndexFunc(d.Composed.Functions, func(p behaviour.Part) bool { return p.Name == f.Name })
		if i < 0 {
			continue // its Composition differs
		}
		ids := strings.Split(d.Composed.Functions[i].Value, ", ")
		for n, id := range ids {
			ids[n] = x.plain(id, f.Value)
		}
		slices.Sort(ids)
		ids = slices.Compact(ids)
		function := manifest.Function.ID("", f.Name)
		switch {
		case ids[len(ids)-1] == "":
			all = append(all, difference{function, "function " + f.Name + " does not run"})
		case f.Value == "":
			// The cluster does not declare it; the same must run elsewhere.
			runs += "\n" + strings.Join(ids, ", ")
			undeclared = append(undeclared, "function "+f.Name+" runs "+x.atOnce(ids))
		case len(ids) > 1 || ids[0] != f.Value:
			all = append(all, difference{function, "function " + f.Name + " runs " + x.atOnce(ids)})
		}
	}
	return all, runs, undeclared
}
