package preview

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Bounds on lists; the rest is folded.
const (
	shownNames   = 3 // of objects of one kind that are created or pruned
	shownChanges = 5 // of fields of one object
	shownNotes   = 8
)

// marks are the signs and colours of actions, as in Terraform.
var marks = map[plan.Action]struct {
	sign   string
	colour show.Colour
}{
	plan.Create:    {"+", show.Green},
	plan.Configure: {"~", show.Yellow},
	plan.Prune:     {"-", show.Red},
	plan.Wait:      {"…", show.Cyan},
	plan.Held:      {"=", show.Cyan},
	plan.Conflict:  {"!", show.Red},
	plan.Refused:   {"!", show.Red},
}

// shownAlike is how many groups of clusters are shown with their steps. Further ones are shown
// as numbers.
const shownAlike = 8

// WriteText writes the plans for a terminal: the verdict, the changes of types, the steps of
// each group of clusters by package, with long lists folded, and the verdict again. It leaves
// out the errors of plans, which the caller writes to stderr. It returns errors of w.
func (f *Fleet) WriteText(w io.Writer, o show.Options) error {
	t := textWriter{Text: show.NewText(w, o), errorless: true}
	verdict := f.verdict()
	t.Say(verdict.colour, verdict.text)
	more := f.tables(t)
	more = f.clusters(t) || more
	if len(f.Lock) > 0 {
		t.Line("")
		t.lock(f.Lock)
	}
	shown, folded := t.Fold(len(f.Notes), shownNotes)
	for _, n := range f.Notes[:shown] {
		t.Line("")
		t.Say(show.Plain, "Note: "+n)
	}
	if folded > 0 {
		t.Line("… %s", prose.Count(folded, "more note"))
	}
	if more || len(f.Lock)+len(f.Notes) > 0 {
		t.Line("")
		if legend := f.legend(); legend != "" {
			t.Say(show.Plain, legend)
		}
		t.Say(verdict.colour, verdict.text)
	}
	return t.Flush()
}

// tables writes the tables of types, controllers and proofs, each after an empty line, and
// reports whether there are any.
func (f *Fleet) tables(t textWriter) bool {
	types, controllers, proofs := f.typeTables(), alone(f.controllerTables()), f.proofTables()
	if len(types) > 0 {
		t.Line("")
		t.types(types)
	}
	if len(controllers) > 0 {
		t.Line("")
		t.controllers(controllers)
	}
	if len(proofs) > 0 {
		t.Line("")
		t.proofs(proofs)
	}
	return len(types)+len(controllers)+len(proofs) > 0
}

// clusters writes the clusters, those with equal plans once, and reports whether it wrote
// anything. If very many plans differ, it writes only the numbers of the last ones.
func (f *Fleet) clusters(t textWriter) bool {
	all := unplanned(f.alike())
	if len(all) == 0 || len(all) == 1 && all[0].first().silent() {
		return false
	}
	shown, _ := t.Fold(len(all), shownAlike)
	for _, a := range all[:shown] {
		t.Line("")
		t.cluster(a)
	}
	var names show.Groups[string, string] // by the plan in one line
	for _, a := range all[shown:] {
		names.Add(a.headline(), a.names()...)
	}
	if len(names.Keys) > 0 {
		t.Line("")
		t.Say(show.Plain, "Other plans, by their numbers (--all or --cluster NAME shows them):")
	}
	lines, folded := t.Fold(len(names.Keys), shownAlike)
	for _, line := range names.Keys[:lines] {
		t.Heading("  ", upper(Subject(names.Of(line))), line)
	}
	if folded > 0 {
		t.Line("  … %s", prose.Count(folded, "more line"))
	}
	return true
}

// unplanned puts the clusters without a plan into one group, whatever their errors.
func unplanned(all []*alike) []*alike {
	var kept []*alike
	var none *alike
	for _, a := range all {
		switch {
		case a.first().Plan != nil:
			kept = append(kept, a)
		case none == nil:
			none = &alike{of: slices.Clone(a.of)}
			kept = append(kept, none)
		default:
			none.of = append(none.of, a.of...)
		}
	}
	return kept
}

// textWriter writes plans as text.
type textWriter struct {
	*show.Text
	// placeless leaves out places in the repository, errorless the reasons why there is no
	// plan.
	placeless, errorless bool
}

// cluster writes a group of clusters with equal plans.
func (t textWriter) cluster(a *alike) {
	c := a.first()
	if c.Plan == nil {
		t.Line("%s: %s", t.Paint(show.Bold, a.title()), t.Paint(show.Red, "no plan"))
	} else {
		t.Heading("", a.title(), a.headline())
	}
	if t.All && len(a.of) > shownClusters {
		t.Say(show.Plain, "  "+strings.Join(a.names(), ", "))
	}
	t.body(a)
}

// body writes a group of clusters without the heading.
func (t textWriter) body(a *alike) {
	c := a.first()
	if c.Err != "" && !t.errorless {
		t.Indented("  ", show.Red, c.Err)
	}
	if c.Plan == nil {
		return
	}
	told := make(map[string]bool)
	for _, g := range groups(c.Plan) {
		t.group(a, g, told)
	}
	for _, name := range c.quiet() {
		t.Line("  %s: unchanged", t.Paint(show.Bold, title(c, name)))
		t.notes(c.Details[name])
	}
	t.early(c.Plan.Steps)
	t.tried(c.Plan.Steps)
	for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
		t.Say(show.Plain, fmt.Sprintf("  nothing is known of %s: %s", gk, c.Plan.Unreadable[gk]))
	}
}

// title returns a package with its version and revision.
func title(c *ClusterPlan, name string) string {
	title := bump(name, c.Before[name], c.Packages[name])
	if c.BeforeLocked[name] {
		title = strings.TrimSuffix(title, ")") + ", the earlier version from clusters.lock)"
	}
	if revision := c.Revisions[name]; revision != "" {
		title = strings.TrimSuffix(title, ")") + ", revision " + revision + ")"
	}
	return title
}

// notes writes the origin and the signature of a package.
func (t textWriter) notes(p PackageDetails) {
	for _, n := range p.notes() {
		t.Say(show.Plain, "      "+n)
	}
}

func kindOf(s *plan.Step) string {
	kind := strings.ToLower(s.ID.Kind)
	if s.ID.Group != "" {
		kind += "." + s.ID.Group
	}
	return kind
}

func qualified(s *plan.Step) string {
	if s.ID.Namespace != "" {
		return s.ID.Namespace + "/" + s.ID.Name
	}
	return s.ID.Name
}

func ids(list []manifest.ID) []string {
	var names []string
	for _, id := range list {
		names = append(names, id.String())
	}
	return names
}

// few writes the first of n lines of a step, about most, and how many more there are.
func (t textWriter) few(n, most int, what string, line func(i int)) {
	shown, folded := t.Fold(n, most)
	for i := range shown {
		line(i)
	}
	if folded > 0 {
		t.Line("        … %s", prose.Count(folded, "more "+what))
	}
}

// outgrown writes the objects that stay as they are although the definition would no longer
// accept them.
func (t textWriter) outgrown(list []plan.Outgrown) {
	t.few(len(list), shownNames, "object", func(i int) {
		t.Indented("        ", show.Red, fmt.Sprintf("%s stays as it is, but would not be accepted again: %s", list[i].ID, list[i].Why))
	})
}

// mismatch writes the differences between an object's pinned type and the cluster's.
func (t textWriter) mismatch(m *plan.Mismatch) {
	t.few(len(m.Findings), shownChanges, "difference", func(i int) { t.Say(show.Plain, "        "+m.Findings[i].String()) })
}

// controllerMismatch writes the differences between an object's pinned behaviour and the
// cluster's.
func (t textWriter) controllerMismatch(m *plan.ControllerMismatch) {
	t.few(len(m.Differences), shownChanges, "difference", func(i int) { t.Say(show.Plain, "        controller: "+m.Differences[i].String()) })
}

// told returns the changes of a step to show one by one. The table of types has the others.
func (t textWriter) told(s *plan.Step) []plan.Change {
	if change, _ := changeOf(s); change == "" || t.All {
		return s.Changes
	}
	return slices.DeleteFunc(slices.Clone(s.Changes), func(c plan.Change) bool { return strings.HasPrefix(c.Path, "spec.versions") })
}

// changes writes the fields that differ. Unless everything is shown, descriptions are only
// counted.
func (t textWriter) changes(s *plan.Step) {
	if t.All {
		for _, c := range s.Changes {
			t.Line("        %s", c)
		}
		return
	}
	var shown []plan.Change
	documentation := 0
	for _, c := range t.told(s) {
		if s.ID.Is(manifest.CRD) && isDocumentation(c) {
			documentation++
		} else {
			shown = append(shown, c)
		}
	}
	n, more := t.Fold(len(shown), shownChanges)
	for _, c := range shown[:n] {
		t.Line("        %s", c)
	}
	var folded []string
	if more > 0 {
		folded = append(folded, prose.Count(more, "more field"))
	}
	if documentation > 0 {
		folded = append(folded, prose.Count(documentation, "description"))
	}
	if len(folded) > 0 {
		t.Line("        … %s", strings.Join(folded, " and "))
	}
}

// isDocumentation reports whether a change of a CRD's schema is a change of a description, and
// not of a field with that name.
func isDocumentation(c plan.Change) bool {
	path, ok := strings.CutSuffix(c.Path, ".description")
	return ok && strings.Contains(path, ".openAPIV3Schema") && !strings.HasSuffix(path, ".properties")
}
