package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// mostDetails bounds a finding's details, such as the pods of many clusters.
const mostDetails = 20

// gathered returns the findings, worst first. Equal findings of several types or clusters are
// one.
func (c *comparison) gathered() []Finding {
	// First by type: a package's controller acts on all of its types.
	byType := make(map[string]*Finding)
	hashes := make(map[*Finding][]string)
	var order []string
	for _, s := range c.found {
		t := c.types[s.id]
		pkg, key := "", fmt.Sprintln(s.kind, s.sides, s.details, s.id, s.object, s.types)
		if t != nil {
			if s.kind != SecondActor { // one workload may write the types of several packages
				pkg = t.pkg
			}
			key = fmt.Sprintln(s.kind, pkg, s.sides, s.details)
		}
		f := byType[key]
		if f == nil {
			f = &Finding{Kind: s.kind, Package: pkg, Sides: s.sides, Details: s.details, Advice: advice[s.kind]}
			if held := heldAdvice[s.kind]; s.held && held != "" {
				f.Advice = held
			}
			if t == nil {
				f.Object, f.Types = cmp.Or(s.object, s.id.String()), s.types
			}
			byType[key] = f
			hashes[f] = s.hashes
			order = append(order, key)
		}
		if t != nil {
			f.Types = append(f.Types, t.name)
		}
		f.Changes = append(f.Changes, s.changes...)
	}
	// Then by cluster: several clusters may have the same finding.
	byCluster := make(map[string]*Finding)
	var all []*Finding
	for _, key := range order {
		f := byType[key]
		slices.Sort(f.Types)
		if len(f.Sides) > 1 {
			for i, h := range hashes[f] {
				if len(f.Types) == 1 && h != "" {
					f.Sides[i].What += " (" + h + ")"
				}
			}
			all = append(all, f)
			continue
		}
		key := fmt.Sprintln(f.Kind, f.Package, f.Types, f.Object, f.Sides[0].What, f.Advice)
		if same := byCluster[key]; same != nil {
			same.Sides[0].Clusters = append(slices.Clone(same.Sides[0].Clusters), f.Sides[0].Clusters...)
			slices.Sort(same.Sides[0].Clusters)
			same.Details = append(slices.Clone(same.Details), f.Details...)
			same.Changes = append(same.Changes, f.Changes...)
			continue
		}
		byCluster[key] = f
		all = append(all, f)
	}
	slices.SortStableFunc(all, func(a, b *Finding) int {
		return cmp.Or(
			cmp.Compare(a.Kind.rank(), b.Kind.rank()),
			cmp.Compare(a.Package, b.Package),
			slices.Compare(a.Types, b.Types),
			cmp.Compare(a.Object, b.Object),
			slices.Compare(a.Sides[0].Clusters, b.Sides[0].Clusters),
		)
	})
	findings := make([]Finding, len(all))
	for i, f := range all {
		if more := len(f.Details) - mostDetails; more > 0 {
			f.Details = append(slices.Clone(f.Details[:mostDetails]), "and "+prose.Agree(more, "more line like these", "more lines like these"))
		}
		findings[i] = *f
	}
	return findings
}

// unread marks types as not verified in clusters where something about them could not be
// read. The cluster's gaps have the reasons.
func (c *comparison) unread() {
	for i := range c.clusters {
		cl := &c.clusters[i]
		if cl.Unread || len(cl.Gaps) == 0 {
			continue
		}
		for id, d := range cl.Definitions {
			if t := c.types[id]; t.worst[cl.Name] == "" && d.Rendered != nil && d.Live != nil && !cl.acted(d) {
				t.worst[cl.Name] = NotVerifiedState
			}
		}
	}
}

// declares reports whether everything that acts on a type is declared: a controller, or
// Compositions with all their Functions.
func declares(b *behaviour.Identity) bool {
	if b == nil {
		return false
	}
	undeclared := slices.ContainsFunc(b.Functions, func(f behaviour.Part) bool { return f.Value == "" })
	return b.Workload != manifest.ID{} || len(b.Compositions) > 0 && !undeclared
}

// acted reports whether everything that acts on a type could be read.
func (c *Facts) acted(d *Definition) bool {
	if !c.AdmissionRead || d.Misnamed {
		return false
	}
	if d.Behaviour == nil {
		return true
	}
	if c.Actors == nil {
		return false
	}
	if d.Behaviour.Workload == (manifest.ID{}) {
		return d.Composed != nil
	}
	w := c.Controllers[d.Behaviour.Workload]
	return w != nil && !w.Unread && w.Rights.Read && w.ConfigMaps.Read
}

// groups groups all types by package.
func (c *comparison) groups() []Group {
	type key struct {
		pkg     string
		managed bool
	}
	members := make(map[key][]*typeSeen)
	for _, id := range slices.SortedFunc(maps.Keys(c.types), manifest.ID.Compare) {
		t := c.types[id]
		k := key{t.pkg, t.managed}
		members[k] = append(members[k], t)
	}
	order := slices.SortedFunc(maps.Keys(members), func(a, b key) int {
		rank := func(k key) int {
			switch {
			case k.pkg != "":
				return 0
			case k.managed:
				return 1
			}
			return 2
		}
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.pkg, b.pkg))
	})
	groups := []Group{}
	for _, k := range order {
		g := Group{Package: k.pkg, Managed: k.managed, States: states(members[k])}
		for _, t := range members[k] {
			g.Types = append(g.Types, t.name)
			if !t.acted && len(t.worst) > 0 {
				g.DefinitionOnly = append(g.DefinitionOnly, t.name)
				if t.alone {
					g.NoController = append(g.NoController, t.name)
				}
			}
		}
		slices.Sort(g.Types)
		slices.Sort(g.DefinitionOnly)
		slices.Sort(g.NoController)
		groups = append(groups, g)
	}
	return groups
}

// states groups clusters by the worst finding about any of the types in them.
func states(members []*typeSeen) []State {
	kind := make(map[string]Kind)
	for _, t := range members {
		for cluster, k := range t.worst {
			if k == "" {
				k = kind[cluster]
			} else {
				k = worst(kind[cluster], k)
			}
			kind[cluster] = k
		}
	}
	// Clusters with findings are grouped by the number of types concerned, the
	// others are not: clusters need not have the same types.
	type key struct {
		kind  Kind
		types int
	}
	byState := make(map[key]*State)
	for cluster, k := range kind {
		n := 0
		for _, t := range members {
			if have, seen := t.worst[cluster]; seen && (k == "" || have != "") {
				n++
			}
		}
		in := key{k, n}
		if k == "" {
			in.types = 0
		}
		s := byState[in]
		if s == nil {
			s = &State{State: cmp.Or(string(k), SameState)}
			byState[in] = s
		}
		s.Types = max(s.Types, n)
		s.Clusters = append(s.Clusters, cluster)
	}
	all := []State{}
	for _, s := range byState {
		slices.Sort(s.Clusters)
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b State) int {
		return cmp.Or(
			cmp.Compare(Kind(a.State).rank(), Kind(b.State).rank()), // "same" has none and is first
			cmp.Compare(b.Types, a.Types),
			slices.Compare(a.Clusters, b.Clusters),
		)
	})
	return all
}

// webhooks compares webhook configurations with the rendered ones, and with each
// other.
func (c *comparison) webhooks(r *Report) {
	type seen struct{ problems, rendered *partition }
	all := make(map[manifest.ID]*seen)
	var held []string
	for i := range c.clusters {
		cl := &c.clusters[i]
		for _, w := range cl.Webhooks {
			s := all[w.ID]
			if s == nil {
				s = &seen{newPartition(), newPartition()}
				all[w.ID] = s
			}
			planned := cl.Planned[w.ID]
			switch {
			case w.Missing && w.Held:
				held = append(held, w.ID.String())
				continue
			case planned.Kind != "" && (w.Missing || len(w.Drift) > 0):
				s.problems.add(string(planned.Kind)+" "+planned.Why, cl.Name, "wanted as declared, "+planned.Why, nil)
				continue
			case w.Missing:
				s.problems.add(string(WebhookDrifted), cl.Name, "rendered, and not there", nil)
				continue
			case len(w.Drift) > 0:
				text := "not as rendered: " + prose.Some(w.Drift, 4)
				s.problems.add(string(WebhookDrifted)+" "+text, cl.Name, text, nil)
				continue
			}
			s.rendered.add(w.Rendered, cl.Name, "rendered by "+cmp.Or(w.Package, "a plain manifest")+" ("+Brief(w.Rendered)+")", nil)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(all), manifest.ID.Compare) {
		c.reportEach(id, all[id].problems)
		if sides := all[id].rendered.ordered(); len(sides) > 1 {
			c.report(WebhookDiffers, id, sides)
		}
	}
	slices.Sort(held)
	for _, id := range slices.Compact(held) {
		r.Notes = append(r.Notes, id+" is held back until it has a CA bundle, and checks and fills in nothing")
	}
}
