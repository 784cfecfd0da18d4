package verify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources/lockfile"
)

// Options configure a comparison.
type Options struct {
	// Images are the images in the lock, and those with platforms from a registry.
	Images []lockfile.Image
	// Tree returns a live definition of a cluster for a comparison field by field. It may
	// send a request. If it fails, the finding has no fields.
	Tree func(cluster string, id manifest.ID) (map[string]any, error)
}

// Compare returns the report.
func Compare(ctx context.Context, clusters []Facts, o Options) *Report {
	c := &comparison{
		clusters: slices.SortedFunc(slices.Values(clusters), func(a, b Facts) int { return cmp.Compare(a.Name, b.Name) }),
		options:  o, images: newImages(o.Images),
		judged: make(map[*Controller]verdict), types: make(map[manifest.ID]*typeSeen),
		inContext: make(map[string][]finding), having: make(map[string]map[string]bool),
		admitted: make(map[string]bool), parameters: make(map[string][]string), foreign: make(map[string][]string),
	}
	r := &Report{Verdict: Same, Clusters: []string{}, NotVerified: []Gap{}, Findings: []Finding{}, Groups: []Group{}}
	for i := range c.clusters {
		cl := &c.clusters[i]
		r.Clusters = append(r.Clusters, cl.Name)
		for _, why := range cl.Gaps {
			r.NotVerified = append(r.NotVerified, Gap{Cluster: cl.Name, Reason: why})
		}
	}
	for _, id := range c.collect() {
		c.one(ctx, id)
		c.actors(id)
	}
	c.webhooks(r)
	c.admission()
	c.unread()
	r.Notes = slices.Concat(r.Notes, c.admissionNotes(), c.actorNotes())
	r.Types = len(c.types)
	for _, t := range c.types {
		if !t.acted && len(t.worst) > 0 {
			r.DefinitionOnly++
		}
	}
	r.LookedAt, r.Omitted = c.looked(), c.omissions()
	r.Findings = c.gathered()
	r.Groups = c.groups()
	switch {
	case len(r.NotVerified) > 0:
		r.Verdict = NotVerified
	case len(r.Findings) > 0:
		r.Verdict = Different
	}
	return r
}

// comparison is one run of Compare.
type comparison struct {
	clusters []Facts
	options  Options
	images   *images
	judged   map[*Controller]verdict
	types    map[manifest.ID]*typeSeen
	found    []single
	compared int
	// inContext are the findings of contexts, by clusters and workloads.
	inContext map[string][]finding
	// uncompared are contexts that were left out.
	uncompared []Omission
	// having are the clusters that have a type, by "plural.group".
	having map[string]map[string]bool
	// admitted are the webhooks and policies that match a type. parameters are the objects
	// with the parameters of policies, by cluster.
	admitted   map[string]bool
	parameters map[string][]string
	// foreign are the undeclared webhooks and policies that match a type, by cluster.
	foreign map[string][]string
}

// typeSeen is the result for one definition.
type typeSeen struct {
	name, pkg string
	managed   bool
	// acted reports whether everything that acts on it is declared, and alone whether its
	// package has no controller.
	acted, alone bool
	// worst is the worst finding in each cluster that has the type.
	worst map[string]Kind
}

// single is a finding about one type.
type single struct {
	kind    Kind
	id      manifest.ID
	sides   []Side
	details []string
	changes []Change
	// hashes are the sides', shown if all are about one type.
	hashes []string
	// held reports whether a workload itself has an image that is not rendered.
	held bool
	// object and types are set for a webhook or policy that matches types.
	object string
	types  []string
}

// collect returns every definition, in order.
func (c *comparison) collect() []manifest.ID {
	for i := range c.clusters {
		cl := &c.clusters[i]
		for id, d := range cl.Definitions {
			t := c.types[id]
			if t == nil {
				t = &typeSeen{worst: make(map[string]Kind)}
				c.types[id] = t
			}
			// The names come from the first cluster that renders the type.
			if t.name == "" || d.Rendered != nil && !t.managed {
				t.name, t.pkg = d.name(), d.Package
			}
			t.managed = t.managed || d.Rendered != nil
			t.acted = t.acted || d.Misnamed || declares(d.Behaviour)
			t.alone = t.alone || d.alone()
			if d.Live != nil && !cl.Unread {
				for _, plural := range d.Resources {
					name := plural + "." + d.Group
					if c.having[name] == nil {
						c.having[name] = make(map[string]bool)
					}
					c.having[name][cl.Name] = true
				}
			}
			if !cl.Unread {
				t.worst[cl.Name] = ""
			}
		}
	}
	return slices.SortedFunc(maps.Keys(c.types), manifest.ID.Compare)
}

// here is a definition in one cluster.
type here struct {
	cluster string
	*Definition
	control *Controller // nil if no workload is behind it
	planned map[manifest.ID]Planned
	// pending and behind report whether comparison.pending reports the difference: of the
	// type, and of its controller or Compositions.
	pending, behind bool
}

// one compares one definition in all clusters.
func (c *comparison) one(ctx context.Context, id manifest.ID) {
	var all []here
	for i := range c.clusters {
		cl := &c.clusters[i]
		if d := cl.Definitions[id]; d != nil && !cl.Unread {
			h := here{cluster: cl.Name, Definition: d, planned: cl.Planned}
			if d.Behaviour != nil {
				h.control = cl.Controllers[d.Behaviour.Workload]
			}
			all = append(all, h)
		}
	}
	c.pending(id, all)
	c.schema(ctx, id, all)
	c.conversion(id, all)
	c.behaviour(id, all)
}

// schema compares the types in the API servers with the rendered ones, and with each
// other.
func (c *comparison) schema(ctx context.Context, id manifest.ID, all []here) {
	var compare []here
	problems := newPartition()
	for _, h := range all {
		switch {
		case h.pending:
			continue
		case h.Live == nil:
			problems.add(string(Missing), h.cluster, "rendered, and not there", nil)
			continue
		case h.Rendered == nil:
			if c.types[id].managed {
				problems.add(string(Unmanaged), h.cluster, "live, and not declared there", nil)
			}
		case !slices.Equal(h.Rendered, h.Live):
			key := fmt.Sprint(Drifted, " ", types.Sum(h.Live), types.Sum(h.Rendered))
			problems.add(key, h.cluster, "not what was rendered", nil)
			if len(problems.sides[key].Clusters) == 1 {
				c.change(&problems.sides[key].changes, id, "rendered", h.cluster, func() ([]compat.Finding, error) { return h.Drift, nil })
			}
			continue // it differs from other clusters for the same reason
		}
		compare = append(compare, h)
	}
	c.reportEach(id, problems)
	p := newPartition()
	first := make(map[string]string)
	for _, h := range compare {
		sum := types.Sum(h.Live)
		if first[sum] == "" {
			first[sum] = h.cluster
		}
		p.add(sum, h.cluster, cmp.Or(h.Source, origin(h.Definition)), patched(h.Patches, h.cluster))
	}
	sides := p.ordered()
	if len(sides) < 2 {
		return
	}
	for _, s := range sides {
		s.hash = Brief(s.key)
	}
	changes := &sides[0].changes
	for _, s := range sides[1:] {
		from, to := first[sides[0].key], first[s.key]
		c.change(changes, id, from, to, func() ([]compat.Finding, error) { return c.fields(ctx, id, from, to) })
	}
	c.report(SchemaDiffers, id, sides)
}

func origin(d *Definition) string {
	if d.Rendered == nil {
		return "defined by nothing in the repository"
	}
	return "plain manifest"
}

// Brief returns a hash for people.
func Brief(sum string) string {
	algorithm, rest, _ := strings.Cut(sum, ":")
	return algorithm + ":" + rest[:min(len(rest), 12)]
}

func patched(patches []string, cluster string) []string {
	if len(patches) == 0 {
		return nil
	}
	return in(cluster, []string{"changed by its own " + strings.Join(patches, ", ")})
}

// byCluster returns notes with the clusters that they are about, sorted. said has the
// clusters of each note.
func byCluster(said map[string][]string) []string {
	var notes []string
	for _, note := range slices.Sorted(maps.Keys(said)) {
		notes = append(notes, ClusterNames(said[note])+": "+note)
	}
	return notes
}

// in prefixes lines with their cluster.
func in(cluster string, lines []string) []string {
	all := make([]string, len(lines))
	for i, l := range lines {
		all[i] = cluster + ": " + l
	}
	return all
}

// change adds the differences field by field, for at most MaxChanges types.
func (c *comparison) change(to *[]Change, id manifest.ID, from, there string, fields func() ([]compat.Finding, error)) {
	if c.compared >= MaxChanges {
		return
	}
	c.compared++
	found, err := fields()
	if err != nil || len(found) == 0 {
		return
	}
	*to = append(*to, Change{Type: c.types[id].name, From: from, To: there, Fields: found})
}

func (c *comparison) fields(ctx context.Context, id manifest.ID, from, to string) ([]compat.Finding, error) {
	before, err := c.options.Tree(from, id)
	if err != nil {
		return nil, err
	}
	after, err := c.options.Tree(to, id)
	if err != nil {
		return nil, err
	}
	report, err := compat.Compare(ctx, before, after, compat.Options{})
	return report.Findings, err
}

// behaviour compares the programs that act on a type with the rendered ones, and
// with each other.
func (c *comparison) behaviour(id manifest.ID, all []here) {
	problems, acts, settings := newPartition(), newPartition(), newPartition()
	var running []here
	named := slices.ContainsFunc(all, func(h here) bool { return h.Behaviour != nil })
	for _, h := range all {
		switch {
		case h.Live == nil, h.Rendered == nil, !named, h.Misnamed:
			// Nothing can act on the type, or it has another finding.
		case h.alone():
			acts.add("", h.cluster, "no controller: its package has types alone", nil)
		case h.Behaviour == nil:
			acts.add("", h.cluster, "nobody knows what: no package, and no annotation "+manifest.ControllerAnnotation, nil)
		case h.control == nil:
			c.composed(h, problems, acts)
		case h.control.Unread:
		default:
			running = append(running, h)
			v := c.judge(h.control)
			if h.behind {
				continue
			}
			if v.problem != "" {
				key := string(v.problem) + " " + v.what
				if v.held {
					key += " (held)" // another advice
				}
				problems.add(key, h.cluster, v.what, in(h.cluster, v.details))
				problems.sides[key].held = v.held
				continue
			}
			acts.add(v.images, h.cluster, v.what, nil)
			settings.add(v.images+"\n"+behaviour.SettingsDigest(v.settings), h.cluster, v.what, patched(h.control.Patches, h.cluster))
		}
	}
	c.reportEach(id, problems)
	if sides := acts.ordered(); len(sides) > 1 {
		sides[0].details = append(composesBetween(all, sides), sides[0].details...)
		c.report(ControllerDiffers, id, sides)
	} else if sides := settings.ordered(); len(sides) > 1 {
		for i, s := range sides {
			s.What += ", settings " + letter(i) // a hash could give away a short value
		}
		sides[0].details = append(c.settingsBetween(all, sides), sides[0].details...)
		c.report(SettingsDiffer, id, sides)
	}
	for _, f := range c.contexts(running) {
		c.report(f.kind, id, f.sides)
	}
}

// judge compares a running controller with the rendered one, once.
func (c *comparison) judge(control *Controller) verdict {
	v, ok := c.judged[control]
	if !ok {
		v = c.images.judge(control)
		c.judged[control] = v
	}
	return v
}

// settingsBetween returns the names of settings that differ between sides.
func (c *comparison) settingsBetween(all []here, sides []*side) []string {
	of := func(s *side) []behaviour.Part {
		for _, h := range all {
			if h.cluster == s.Clusters[0] && h.control != nil {
				return c.judge(h.control).settings
			}
		}
		return nil
	}
	var names []string
	for _, s := range sides[1:] {
		names = append(names, behaviour.Differing(of(sides[0]), of(s))...)
	}
	slices.Sort(names)
	return []string{"differing: " + prose.Some(slices.Compact(names), 8)}
}

// composed compares the Compositions and Functions behind a composite type.
func (c *comparison) composed(h here, problems, acts *partition) {
	if h.Composed == nil {
		return // it was not read, which is a gap
	}
	differing, runs, functions := c.images.differing(h.Definition)
	if h.behind {
		return // c.pending reports it
	}
	if len(differing) > 0 {
		names := make([]string, len(differing))
		for i, d := range differing {
			names[i] = d.text
		}
		text := "not as rendered: " + prose.Some(names, 4)
		problems.add(string(CompositionDrifted)+" "+text, h.cluster, text, nil)
		return
	}
	shown := *h.Behaviour
	shown.Settings = nil // a hash could give away a short value
	what := shown.String() + " (" + Brief(shown.Digest()) + ")"
	acts.add(runs, h.cluster, strings.Join(append([]string{what}, functions...), ", "), nil)
}

// reportEach adds a finding for each side of problems. The key of a side begins with its kind.
func (c *comparison) reportEach(id manifest.ID, problems *partition) {
	for _, s := range problems.ordered() {
		kind, _, _ := strings.Cut(s.key, " ")
		c.report(Kind(kind), id, []*side{s})
	}
}

// report adds a finding about one type.
func (c *comparison) report(kind Kind, id manifest.ID, sides []*side) {
	s := single{kind: kind, id: id}
	most := 0
	if strings.HasSuffix(string(kind), "differs") || strings.HasSuffix(string(kind), "differ") {
		total := 0
		for _, p := range sides {
			total += len(p.Clusters)
		}
		if n := len(sides[0].Clusters); 2*n > total {
			most = n // the first side is most of them
		}
	}
	for i, p := range sides {
		p.Odd = i > 0 || most == 0
		s.sides = append(s.sides, p.Side)
		s.details = append(s.details, p.details...)
		s.changes = append(s.changes, p.changes...)
		s.hashes = append(s.hashes, p.hash)
		s.held = s.held || p.held
		if !p.Odd {
			continue
		}
		for _, name := range p.Clusters {
			if t := c.types[id]; t != nil {
				t.worst[name] = worst(t.worst[name], kind)
			}
		}
	}
	c.found = append(c.found, s)
}

// partition groups clusters into sides by a key.
type partition struct {
	sides map[string]*side
}

type side struct {
	Side
	key     string
	hash    string
	details []string
	changes []Change
	held    bool
}

func newPartition() *partition { return &partition{sides: make(map[string]*side)} }

func (p *partition) add(key, cluster, what string, details []string) {
	s := p.sides[key]
	if s == nil {
		s = &side{key: key, Side: Side{What: what}}
		p.sides[key] = s
	}
	s.Clusters = append(s.Clusters, cluster)
	for _, d := range details {
		if !slices.Contains(s.details, d) {
			s.details = append(s.details, d)
		}
	}
}

// ordered returns the sides, the one with most clusters first.
func (p *partition) ordered() []*side {
	return slices.SortedFunc(maps.Values(p.sides), func(a, b *side) int {
		return cmp.Or(cmp.Compare(len(b.Clusters), len(a.Clusters)), slices.Compare(a.Clusters, b.Clusters), cmp.Compare(a.key, b.key))
	})
}
