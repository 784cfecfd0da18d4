package plan

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/types/compat"
)

// TextOptions are how a plan is shown to eyes.
type TextOptions struct {
	// Colour uses ANSI colours.
	Colour bool
	// All shows every object and every field instead of folding long lists.
	All bool
}

// What is shown before the rest is folded.
const (
	shownNames   = 3 // of objects of one kind that are created or pruned
	shownChanges = 6 // of fields of one object
)

// marks are the signs that actions are shown with, as Terraform's users know
// them, and their colours.
var marks = map[Action]struct{ sign, colour string }{
	Create:    {"+", "\x1b[32m"},
	Configure: {"~", "\x1b[33m"},
	Prune:     {"-", "\x1b[31m"},
	Wait:      {"…", "\x1b[36m"},
	Held:      {"=", "\x1b[36m"},
	Conflict:  {"!", "\x1b[31m"},
	Refused:   {"!", "\x1b[31m"},
}

// Summary is the plan in one line.
func (p *Plan) Summary() string {
	parts := []string{
		fmt.Sprintf("%d to create", p.Count(Create)),
		fmt.Sprintf("%d to change", p.Count(Configure)),
		fmt.Sprintf("%d to prune", p.Count(Prune)),
		fmt.Sprintf("%d unchanged", p.Count(Unchanged)),
	}
	for _, a := range []Action{Held, Wait, Conflict, Refused} {
		if n := p.Count(a); n > 0 {
			name := map[Action]string{Held: "held", Wait: "waiting", Conflict: "in conflict", Refused: "refused"}[a]
			parts = append(parts, fmt.Sprintf("%d %s", n, name))
		}
	}
	return strings.Join(parts, ", ")
}

// WriteText writes the plans for eyes: grouped by package, long lists folded.
func (f *Fleet) WriteText(w io.Writer, o TextOptions) error {
	t := &textWriter{w: bufio.NewWriter(w), o: o}
	if tables := f.TypeTables(); len(tables) > 0 {
		t.types(tables)
		t.line("")
	}
	for i, c := range f.Clusters {
		if i > 0 {
			t.line("")
		}
		t.cluster(c)
	}
	if len(f.Lock) > 0 {
		t.line("")
		t.line("%s", t.bold("clusters.lock"))
		for _, l := range f.Lock {
			action := Create
			if l[0] == '-' {
				action = Prune
			}
			t.line("  %s", t.paint(action, l))
		}
	}
	for _, n := range f.Notes {
		t.line("")
		t.line("Note: %s", n)
	}
	return t.w.Flush()
}

type textWriter struct {
	w *bufio.Writer
	o TextOptions
}

func (t *textWriter) line(format string, args ...any) {
	fmt.Fprintf(t.w, format+"\n", args...)
}

func (t *textWriter) paint(a Action, text string) string {
	if !t.o.Colour {
		return text
	}
	return marks[a].colour + text + "\x1b[0m"
}

func (t *textWriter) bold(text string) string {
	if !t.o.Colour {
		return text
	}
	return "\x1b[1m" + text + "\x1b[0m"
}

func (t *textWriter) cluster(c ClusterPlan) {
	switch {
	case c.Plan == nil:
		t.line("%s: %s", t.bold("Cluster "+c.Name), t.paint(Refused, "no plan"))
	default:
		t.line("%s: %s", t.bold("Cluster "+c.Name), c.Plan.Summary())
	}
	if c.Err != "" {
		t.indented("  ", t.paint(Refused, c.Err))
	}
	if c.Plan == nil {
		return
	}
	for _, g := range c.Plan.groups() {
		t.line("  %s", t.bold(title(c, g.name)))
		t.notes(c.Details[g.name])
		t.steps(g.steps)
	}
	for _, name := range c.quiet() {
		t.line("  %s: unchanged", t.bold(title(c, name)))
		t.notes(c.Details[name])
	}
	for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
		t.line("  nothing is known of %s: %s", gk, c.Plan.Unreadable[gk])
	}
}

// title is a package with its version, and the revision that it is.
func title(c ClusterPlan, name string) string {
	title := bump(name, c.Before[name], c.Packages[name])
	if revision := c.Revisions[name]; revision != "" {
		title = strings.TrimSuffix(title, ")") + ", revision " + revision + ")"
	}
	return title
}

// notes writes where a package comes from and who signed it.
func (t *textWriter) notes(p Package) {
	for _, n := range p.notes() {
		t.line("      %s", n)
	}
}

// steps writes the steps of a group. What is merely created or pruned, or has
// nothing else to say for itself than others of its kind, is folded by kind.
func (t *textWriter) steps(steps []*Step) {
	for i := 0; i < len(steps); {
		s := steps[i]
		run := t.sameKind(steps[i:])
		if !t.o.All && len(run) > shownNames+1 {
			var names []string
			for _, other := range run[:shownNames] {
				names = append(names, qualified(other))
			}
			line := fmt.Sprintf("%s %d × %s: %s, … %d more", marks[s.Action].sign, len(run), kindOf(s), strings.Join(names, ", "), len(run)-shownNames)
			if s.Action == Refused {
				line += ", refused: " + t.reason(s)
			}
			t.line("    %s", t.paint(s.Action, line))
			i += len(run)
			continue
		}
		t.step(s)
		i++
	}
}

// sameKind is the beginning of steps that can be folded into one line.
func (t *textWriter) sameKind(steps []*Step) []*Step {
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

// reason is the step's, but for what the table of types says.
func (t *textWriter) reason(s *Step) string {
	if t.o.All {
		return s.Reason
	}
	return brief(s)
}

func brief(s *Step) string {
	if change, _ := typeChange(s); change != "" && s.Action == Refused && s.Compatibility == compat.Breaking {
		return fmt.Sprintf("breaking, see its types; the package's annotation %s can allow it", compat.AllowAnnotation)
	}
	return s.Reason
}

// foldable says that there is no more to say of a step than one line.
func (t *textWriter) foldable(s *Step) bool {
	switch s.Action {
	case Create, Prune:
		return s.Rejected == ""
	case Refused:
		return s.Pin == nil && IsDefinition(s.ID)
	case Configure:
		return IsDefinition(s.ID) && s.Rejected == "" && s.NotValidated == "" && len(s.Unpinned) == 0 && len(t.told(s)) == 0
	}
	return false
}

func kindOf(s *Step) string {
	kind := strings.ToLower(s.ID.Kind)
	if s.ID.Group != "" {
		kind += "." + s.ID.Group
	}
	return kind
}

func qualified(s *Step) string {
	if s.ID.Namespace != "" {
		return s.ID.Namespace + "/" + s.ID.Name
	}
	return s.ID.Name
}

func (t *textWriter) step(s *Step) {
	line := fmt.Sprintf("%s %s", marks[s.Action].sign, s.ID)
	switch s.Action {
	case Create, Configure, Prune:
	default:
		line += " " + string(s.Action)
	}
	if reason := t.reason(s); reason != "" {
		line += ": " + reason
	}
	t.line("    %s", t.paint(s.Action, line))
	if len(s.After) > 0 && s.Action.Writes() {
		t.line("        once %s is ready", strings.Join(s.After, ", "))
	}
	if s.Pin != nil {
		t.mismatch(s.Pin)
	}
	if len(s.Unpinned) > 0 {
		t.line("        %s", t.paint(Refused, "pinned to the type as it was: "+pinnedIDs(s.Unpinned)))
	}
	t.changes(s)
	if s.Rejected != "" {
		t.indented("        ", t.paint(Refused, "the API server would not accept it: "+s.Rejected))
	}
	if s.NotValidated != "" && s.Action == Configure {
		t.line("        not validated: %s", s.NotValidated)
	}
}

// mismatch writes what an object's pinned type differs in from the cluster's.
func (t *textWriter) mismatch(m *Mismatch) {
	for i, f := range m.Findings {
		if i == shownChanges && !t.o.All {
			t.line("        … %s", plural(len(m.Findings)-i, "more difference"))
			return
		}
		t.line("        %s", f)
	}
}

// told are the changes of a step that are worth telling one by one. What becomes
// of types is in their table.
func (t *textWriter) told(s *Step) []Change {
	if change, _ := typeChange(s); change == "" || t.o.All {
		return s.Changes
	}
	return slices.DeleteFunc(slices.Clone(s.Changes), func(c Change) bool { return strings.HasPrefix(c.Path, "spec.versions") })
}

// changes writes the fields that differ: what the API server acts upon first,
// documentation only as a count unless everything is asked for.
func (t *textWriter) changes(s *Step) {
	if t.o.All {
		for _, c := range s.Changes {
			t.line("        %s", c)
		}
		return
	}
	var shown []Change
	documentation := 0
	for _, c := range t.told(s) {
		if IsCRD(s.ID) && c.isDocumentation() {
			documentation++
		} else {
			shown = append(shown, c)
		}
	}
	more := 0
	if len(shown) > shownChanges {
		more = len(shown) - shownChanges + 1
		shown = shown[:shownChanges-1]
	}
	for _, c := range shown {
		t.line("        %s", c)
	}
	var folded []string
	if more > 0 {
		folded = append(folded, plural(more, "more field"))
	}
	if documentation > 0 {
		folded = append(folded, plural(documentation, "description"))
	}
	if len(folded) > 0 {
		t.line("        … %s", strings.Join(folded, " and "))
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (t *textWriter) indented(indent, text string) {
	for l := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		t.line("%s%s", indent, l)
	}
}
