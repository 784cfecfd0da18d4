package preview

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// counts are the numbers of a plan's steps, each in one class.
type counts struct {
	// by is the number of steps by action, without drift and rejected. Unchanged includes
	// cosmetic.
	by                        map[plan.Action]int
	drift, rejected, cosmetic int

	// unvalidated is the number of steps that may be rejected. They are counted above as well.
	unvalidated int
}

func count(p *plan.Plan) counts {
	n := counts{by: make(map[plan.Action]int)}
	for i := range p.Steps {
		s := &p.Steps[i]
		if doubtful(s) || early(s) {
			n.unvalidated++
		}
		switch {
		case s.Rejected != "":
			n.rejected++
		case isCosmetic(s):
			n.cosmetic++
			n.by[plan.Unchanged]++
		case s.Action == plan.Configure && s.Drift:
			n.drift++
		default:
			n.by[s.Action]++
		}
	}
	return n
}

// text returns the numbers that are not zero, changes first. Unchanged objects come last; their
// number in several clusters is from least to most.
func (n counts) text(least, most int) string {
	var parts []string
	add := func(n int, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(n.by[plan.Create], "new")
	if changed := n.by[plan.Configure]; changed > 0 {
		parts = append(parts, prose.Count(changed, "change"))
	}
	add(n.drift, "drifted")
	add(n.by[plan.Prune], "to prune")
	add(n.by[plan.Wait], "waiting")
	add(n.by[plan.Held], "held")
	add(n.by[plan.Conflict], "in conflict")
	add(n.by[plan.Refused], "refused")
	add(n.rejected, "rejected")
	add(n.unvalidated, "not validated")
	if most > 0 {
		unchanged := fmt.Sprintf("%d unchanged", least)
		if least < most {
			unchanged = fmt.Sprintf("%d to %d unchanged", least, most)
		}
		if n.cosmetic > 0 {
			unchanged += fmt.Sprintf(" (%d except for their generator)", n.cosmetic)
		}
		parts = append(parts, unchanged)
	}
	if len(parts) == 0 {
		return "no objects"
	}
	return strings.Join(parts, ", ")
}

// doubtful reports whether the API server may reject a step: it could not validate the step,
// and not only because earlier steps of the plan bring what is missing.
func doubtful(s *plan.Step) bool {
	return s.NotValidated != "" && s.Action.Writes() && (!s.Premature || s.Action == plan.Configure)
}

// early reports whether a new object could be validated by nothing, since earlier steps of the
// plan bring its namespace or type. The API server may reject it.
func early(s *plan.Step) bool {
	return s.NotValidated != "" && s.Action.Writes() && !doubtful(s) && !s.Checked
}

// generator is the annotation with the version of a definition's generator.
const generator = "controller-gen.kubebuilder.io/version"

// isCosmetic reports whether a step changes only the generator's annotation of a definition.
func isCosmetic(s *plan.Step) bool {
	return s.Action == plan.Configure && s.ID.Is(manifest.CRD) && s.Compatibility == compat.Identical && s.Rejected == "" && s.NotValidated == "" &&
		len(s.Changes) > 0 && !slices.ContainsFunc(s.Changes, func(c plan.Change) bool { return c.Path != `metadata.annotations["`+generator+`"]` })
}

// verdict summarizes the plans of all clusters in a line.
type verdict struct {
	text   string
	colour show.Colour
}

// verdict summarizes the plans of all clusters. Each cluster counts in its worst class.
func (f *Fleet) verdict() verdict {
	var unplanned, failing, held, changing, unread, suspended, matching, guarded int
	for i := range f.Clusters {
		c := &f.Clusters[i]
		if !c.Suspended {
			guarded += guardedPrunes(c.Plan)
		}
		switch p := c.Plan; {
		case p == nil:
			unplanned++
		case c.Suspended:
			suspended++
		case p.Failing() > 0 || c.Err != "":
			failing++
		case p.HasChanges():
			changing++
		case attention(p) > 0:
			held++
		case len(p.Unreadable) > 0:
			unread++
		default:
			matching++
		}
	}
	target := "match " + f.target()
	if f.Against != "" {
		target = "are as at " + f.against()
	}
	if n := len(f.Clusters); matching == n && len(f.Lock)+len(f.Errors) == 0 {
		if n == 0 {
			return verdict{"No changes: no cluster is registered", show.Cyan}
		}
		if n == 1 {
			target = singular(target)
		}
		return verdict{"No changes: " + prose.Count(n, "cluster") + " " + target, show.Green}
	}
	var parts []string
	add := func(n int, one, many string) {
		switch {
		case n == 0:
		case len(parts) == 0:
			parts = append(parts, prose.Agree(n, "cluster "+one, "clusters "+many))
		default:
			parts = append(parts, prose.Agree(n, one, many))
		}
	}
	add(unplanned, "has no plan", "have no plan")
	add(failing, "has steps that would fail", "have steps that would fail")
	add(changing, "changes", "change")
	add(held, "holds objects back", "hold objects back")
	add(unread, "could not be read whole", "could not be read whole")
	add(suspended, "is suspended", "are suspended")
	add(matching, singular(target), target)
	if n := len(f.Errors); n > 0 {
		parts = append(parts, prose.Count(n, "error"))
	}
	if n := len(f.Lock); n > 0 {
		parts = append(parts, prose.Agree(n, "line of clusters.lock changes", "lines of clusters.lock change"))
	}
	text := strings.Join(parts, ", ")
	if guarded > 0 {
		text += fmt.Sprintf("; %s until the annotation %s allows it", prose.Agree(guarded, "object is kept", "objects are kept"), manifest.AllowPruneAnnotation)
	}
	switch {
	case unplanned+failing+len(f.Errors) > 0:
		return verdict{"Problems: " + text, show.Red}
	case changing+len(f.Lock) > 0:
		return verdict{"Changes: " + text, show.Yellow}
	case held > 0:
		return verdict{"Held back: " + text, show.Yellow}
	case unread > 0:
		return verdict{"No changes found: " + text, show.Yellow}
	}
	return verdict{"No changes: " + text, show.Cyan}
}

// guardedPrunes returns the number of prunes that are held since they are too many at once.
func guardedPrunes(p *plan.Plan) int {
	if p == nil {
		return 0
	}
	n := 0
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Action == plan.Held && s.Allow != nil && s.Allow.Annotation == manifest.AllowPruneAnnotation {
			n++
		}
	}
	return n
}

// target names what clusters are compared with.
func (f *Fleet) target() string {
	if f.Revision != "" {
		return f.Revision
	}
	return "the " + f.Source
}

// against names the revision that was compared with. The hash of a commit is shortened.
func (f *Fleet) against() string {
	const long, short = 40, 10 // digits
	if len(f.Against) == long && strings.Trim(f.Against, "0123456789abcdef") == "" {
		return f.Against[:short]
	}
	return f.Against
}

// singular returns a verb phrase of [Fleet.verdict] for one cluster.
func singular(phrase string) string {
	if rest, ok := strings.CutPrefix(phrase, "are "); ok {
		return "is " + rest
	}
	verb, rest, _ := strings.Cut(phrase, " ")
	return verb + "es " + rest
}

// transition returns the packages whose versions change, a few of many, and the revisions that
// were compared. It is empty if there are neither.
func (f *Fleet) transition() string {
	var bumps []string
	for i := range f.Clusters {
		c := &f.Clusters[i]
		if c.Plan == nil {
			continue
		}
		for _, g := range groups(c.Plan) {
			old, now := version(c.Before[g.name]), version(c.Packages[g.name])
			if text := g.name + " " + old + " -> " + now; old != "" && now != "" && old != now && !slices.Contains(bumps, text) {
				bumps = append(bumps, text)
			}
		}
	}
	text := prose.Some(bumps, shownNames)
	if f.Against == "" {
		return text
	}
	revisions := f.against() + " -> " + strings.TrimPrefix(f.target(), "the ")
	if text == "" {
		return revisions
	}
	return text + " (" + revisions + ")"
}

// legend explains the marks that the plans use, "" for none.
func (f *Fleet) legend() string {
	used := make(map[plan.Action]bool)
	for i := range f.Clusters {
		if p := f.Clusters[i].Plan; p != nil {
			for j := range p.Steps {
				if s := &p.Steps[j]; !isCosmetic(s) {
					used[markOf(s)] = true
				}
			}
		}
	}
	for _, t := range f.typeTables() {
		for i := range t.Rows {
			used[t.Rows[i].mark()] = true
		}
	}
	used[plan.Refused] = used[plan.Refused] || used[plan.Conflict]
	var parts []string
	for _, a := range plan.Actions {
		if text := meanings[a]; text != "" && used[a] {
			parts = append(parts, marks[a].sign+" "+text)
		}
	}
	return strings.Join(parts, "   ")
}

// meanings explains the marks of actions.
var meanings = map[plan.Action]string{
	plan.Create:    "new",
	plan.Configure: "changed",
	plan.Prune:     "removed",
	plan.Wait:      "waits",
	plan.Held:      "held back",
	plan.Refused:   "would fail",
}

// markOf returns the action whose mark a step gets.
func markOf(s *plan.Step) plan.Action {
	if s.Rejected != "" {
		return plan.Refused
	}
	return s.Action
}
