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
	"gitopsd.dev/render/types/compat"
)

// Bounds on lists; the rest is folded.
const (
	shownNames   = 3 // of objects of one kind that are created or pruned
	shownChanges = 5 // of fields of one object
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

// headline returns a plan in one line: the number of steps of each action.
func headline(p *plan.Plan) string {
	parts := []string{
		fmt.Sprintf("%d to create", p.Count(plan.Create)),
		fmt.Sprintf("%d to change", p.Count(plan.Configure)),
		fmt.Sprintf("%d to prune", p.Count(plan.Prune)),
		fmt.Sprintf("%d unchanged", p.Count(plan.Unchanged)),
	}
	for _, a := range []plan.Action{plan.Held, plan.Wait, plan.Conflict, plan.Refused} {
		if n := p.Count(a); n > 0 {
			name := map[plan.Action]string{plan.Held: "held", plan.Wait: "waiting", plan.Conflict: "in conflict", plan.Refused: "refused"}[a]
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	return strings.Join(parts, ", ")
}

// WriteText writes the plans for a terminal: grouped by package, long lists folded.
// Errors are those of w.
func (f *Fleet) WriteText(w io.Writer, o show.Options) error {
	t := textWriter{show.NewText(w, o)}
	if tables := f.TypeTables(); len(tables) > 0 {
		t.types(tables)
		t.Line("")
	}
	if tables := alone(f.ControllerTables()); len(tables) > 0 {
		t.controllers(tables)
		t.Line("")
	}
	if tables := f.ProofTables(); len(tables) > 0 {
		t.proofs(tables)
		t.Line("")
	}
	for i, c := range f.Clusters {
		if i > 0 {
			t.Line("")
		}
		t.cluster(c)
	}
	if len(f.Lock) > 0 {
		t.Line("")
		t.Line("%s", t.Paint(show.Bold, "clusters.lock"))
		for _, l := range f.Lock {
			colour := show.Green
			if l[0] == '-' {
				colour = show.Red
			}
			t.Line("  %s", t.Paint(colour, l))
		}
	}
	for _, n := range f.Notes {
		t.Line("")
		t.Say(show.Plain, "Note: "+n)
	}
	return t.Flush()
}

// textWriter writes plans as text.
type textWriter struct{ *show.Text }

func (t textWriter) cluster(c ClusterPlan) {
	switch {
	case c.Plan == nil:
		t.Line("%s: %s", t.Paint(show.Bold, "Cluster "+c.Name), t.Paint(show.Red, "no plan"))
	default:
		t.Heading("", "Cluster "+c.Name, headline(c.Plan))
	}
	if c.Err != "" {
		t.Indented("  ", show.Red, c.Err)
	}
	if c.Plan == nil {
		return
	}
	for _, g := range groups(c.Plan) {
		t.Line("  %s", t.Paint(show.Bold, title(c, g.name)))
		t.notes(c.Details[g.name])
		t.steps(g.steps)
	}
	for _, name := range c.quiet() {
		t.Line("  %s: unchanged", t.Paint(show.Bold, title(c, name)))
		t.notes(c.Details[name])
	}
	t.tried(c.Plan.Steps)
	for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
		t.Say(show.Plain, fmt.Sprintf("  nothing is known of %s: %s", gk, c.Plan.Unreadable[gk]))
	}
}

// title returns a package with its version and revision.
func title(c ClusterPlan, name string) string {
	title := bump(name, c.Before[name], c.Packages[name])
	if revision := c.Revisions[name]; revision != "" {
		title = strings.TrimSuffix(title, ")") + ", revision " + revision + ")"
	}
	return title
}

// notes writes where a package comes from and who signed it.
func (t textWriter) notes(p PackageDetails) {
	for _, n := range p.notes() {
		t.Say(show.Plain, "      "+n)
	}
}

// steps writes the steps of a group. Steps that differ in their names only are
// folded by kind.
func (t textWriter) steps(steps []*plan.Step) {
	for i := 0; i < len(steps); {
		s := steps[i]
		run := t.sameKind(steps[i:])
		if shown, folded := t.Fold(len(run), shownNames); folded > 0 {
			var names []string
			for _, other := range run[:shown] {
				names = append(names, qualified(other))
			}
			line := fmt.Sprintf("    %s %d × %s: %s, … %d more", marks[s.Action].sign, len(run), kindOf(s), strings.Join(names, ", "), folded)
			if !s.Action.Writes() {
				line += fmt.Sprintf(", %s: %s", s.Action, t.reason(s))
			}
			t.Say(marks[s.Action].colour, line)
			i += len(run)
			continue
		}
		t.step(s)
		i++
	}
}

// sameKind returns the first steps that can be folded into one line.
func (t textWriter) sameKind(steps []*plan.Step) []*plan.Step {
	first := steps[0]
	if !t.foldable(first) {
		return steps[:1]
	}
	n := 0
	for _, s := range steps {
		if s.Action != first.Action || s.ID.Kind != first.ID.Kind || s.ID.Group != first.ID.Group || t.reason(s) != t.reason(first) || !t.foldable(s) {
			break
		}
		n++
	}
	return steps[:n]
}

// reason returns the step's reason without what the table of types shows.
func (t textWriter) reason(s *plan.Step) string {
	if t.All {
		return s.Reason
	}
	return brief(s)
}

func brief(s *plan.Step) string {
	if change, _ := typeChange(s); change != "" && s.Package != "" && s.Action == plan.Refused && s.Compatibility == compat.Breaking {
		// The types name the findings; after these comes the way out.
		if names, ok := strings.CutPrefix(s.Reason, "breaking: "); ok {
			_, how, _ := strings.Cut(names, "; ")
			return "breaking, see its types; " + how
		}
		return fmt.Sprintf("breaking, see its types; the package's annotation %s can allow it", manifest.AllowBreakingAnnotation)
	}
	return s.Reason
}

// foldable reports whether one line says everything about a step.
func (t textWriter) foldable(s *plan.Step) bool {
	switch s.Action {
	case plan.Create, plan.Prune:
		return s.Rejected == "" && !t.doubtful(s)
	case plan.Held:
		return len(s.Changes) == 0
	case plan.Refused:
		return s.Pin == nil && s.Controller == nil && s.ID.Is(manifest.Definitions...)
	case plan.Configure:
		return s.ID.Is(manifest.Definitions...) && s.Rejected == "" && s.NotValidated == "" && len(s.Unpinned) == 0 && len(s.Outgrown) == 0 && len(t.told(s)) == 0
	}
	return false
}

// doubtful reports whether the API server could not say if it would accept a step, for
// another reason than that the plan creates its namespace or type first.
func (t textWriter) doubtful(s *plan.Step) bool {
	return s.NotValidated != "" && s.Action.Writes() && (!s.Premature || s.Action == plan.Configure || t.All)
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

func (t textWriter) step(s *plan.Step) {
	line := fmt.Sprintf("    %s %s", marks[s.Action].sign, s.ID)
	if !s.Action.Writes() {
		line += " " + string(s.Action)
	}
	if reason := t.reason(s); reason != "" {
		line += ": " + reason
	}
	t.Say(marks[s.Action].colour, line)
	if len(s.After) > 0 && s.Action.Writes() {
		t.Say(show.Plain, fmt.Sprintf("        once %s is ready", strings.Join(s.After, ", ")))
	}
	if s.Pin != nil {
		t.mismatch(s.Pin)
	}
	if s.Controller != nil {
		t.controllerMismatch(s.Controller)
	}
	if len(s.Unpinned) > 0 {
		t.Say(show.Red, "        pinned to the type as it was: "+prose.Some(ids(s.Unpinned), shownNames))
	}
	t.outgrown(s.Outgrown)
	t.changes(s)
	if s.Rejected != "" {
		t.Indented("        ", show.Red, "the API server would not accept it: "+s.Rejected)
	}
	if t.doubtful(s) {
		t.Indented("        ", show.Plain, "not validated: "+s.NotValidated)
	}
}

func ids(list []manifest.ID) []string {
	var names []string
	for _, id := range list {
		names = append(names, id.String())
	}
	return names
}

// outgrown writes the objects that stay as they are, but that a definition would not
// accept any more.
func (t textWriter) outgrown(list []plan.Outgrown) {
	shown, folded := t.Fold(len(list), shownNames)
	for _, o := range list[:shown] {
		t.Indented("        ", show.Red, fmt.Sprintf("%s stays as it is, but would not be accepted again: %s", o.ID, o.Why))
	}
	if folded > 0 {
		t.Line("        … %s", prose.Count(folded, "more object"))
	}
}

// mismatch writes the differences between an object's pinned type and the cluster's.
func (t textWriter) mismatch(m *plan.Mismatch) {
	shown, folded := t.Fold(len(m.Findings), shownChanges)
	for _, f := range m.Findings[:shown] {
		t.Say(show.Plain, "        "+f.String())
	}
	if folded > 0 {
		t.Line("        … %s", prose.Count(folded, "more difference"))
	}
}

// controllerMismatch writes the differences between the behaviour that an object is
// pinned to and the cluster's.
func (t textWriter) controllerMismatch(m *plan.ControllerMismatch) {
	shown, folded := t.Fold(len(m.Differences), shownChanges)
	for _, d := range m.Differences[:shown] {
		t.Say(show.Plain, "        controller: "+d.String())
	}
	if folded > 0 {
		t.Line("        … %s", prose.Count(folded, "more difference"))
	}
}

// told returns the changes of a step to show one by one. Changes of types are in
// their table.
func (t textWriter) told(s *plan.Step) []plan.Change {
	if change, _ := typeChange(s); change == "" || t.All {
		return s.Changes
	}
	return slices.DeleteFunc(slices.Clone(s.Changes), func(c plan.Change) bool { return strings.HasPrefix(c.Path, "spec.versions") })
}

// changes writes the fields that differ: those that the API server acts on first,
// documentation only as a count unless everything is shown.
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

// isDocumentation reports whether a change of a CRD's schema is documentation: of a
// description, but not of a field of that name.
func isDocumentation(c plan.Change) bool {
	path, ok := strings.CutSuffix(c.Path, ".description")
	return ok && strings.Contains(path, ".openAPIV3Schema") && !strings.HasSuffix(path, ".properties")
}
