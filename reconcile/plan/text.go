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
		t.line("  %s", t.bold(title(g, c.Packages)))
		t.steps(g.steps)
	}
	for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
		t.line("  nothing is known of %s: %s", gk, c.Plan.Unreadable[gk])
	}
}

func title(g group, packages map[string]string) string {
	switch ref := packages[g.name]; {
	case g.name == "":
		return "manifests"
	case ref == "":
		return "package " + g.name
	default:
		return fmt.Sprintf("package %s (%s)", g.name, ref)
	}
}

// steps writes the steps of a group. What is merely created or pruned is folded
// by kind; what changes, or has a reason that matters, is listed.
func (t *textWriter) steps(steps []*Step) {
	for i := 0; i < len(steps); {
		s := steps[i]
		run := sameKind(steps[i:])
		if !t.o.All && len(run) > shownNames+1 {
			var names []string
			for _, other := range run[:shownNames] {
				names = append(names, qualified(other))
			}
			t.line("    %s", t.paint(s.Action, fmt.Sprintf("%s %d × %s: %s, … %d more",
				marks[s.Action].sign, len(run), kindOf(s), strings.Join(names, ", "), len(run)-shownNames)))
			i += len(run)
			continue
		}
		t.step(s)
		i++
	}
}

// sameKind is the beginning of steps that can be folded into one line.
func sameKind(steps []*Step) []*Step {
	first := steps[0]
	if first.Action != Create && first.Action != Prune {
		return steps[:1]
	}
	n := 0
	for _, s := range steps {
		if s.Action != first.Action || s.ID.Kind != first.ID.Kind || s.ID.Group != first.ID.Group || s.Reason != first.Reason || s.Rejected != "" {
			break
		}
		n++
	}
	return steps[:max(n, 1)]
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
	if s.Reason != "" {
		line += ": " + s.Reason
	}
	t.line("    %s", t.paint(s.Action, line))
	if len(s.After) > 0 && s.Action.Writes() {
		t.line("        once %s is ready", strings.Join(s.After, ", "))
	}
	t.findings(s)
	t.changes(s)
	if s.Rejected != "" {
		t.indented("        ", t.paint(Refused, "the API server would not accept it: "+s.Rejected))
	}
	if s.NotValidated != "" && s.Action == Configure {
		t.line("        not validated: %s", s.NotValidated)
	}
}

// findings writes what replacing a type means to those who use it: what breaks,
// one line a kind of finding with the fields it concerns, and the rest as a count.
func (t *textWriter) findings(s *Step) {
	var names []string
	breaking := make(map[string][]compat.Finding)
	compatible := 0
	for _, f := range s.Findings {
		if f.Severity != compat.Breaking {
			compatible++
			continue
		}
		if breaking[f.Name] == nil {
			names = append(names, f.Name)
		}
		breaking[f.Name] = append(breaking[f.Name], f)
	}
	for _, name := range names {
		all := breaking[name]
		first := all[0]
		line := strings.TrimSpace(fmt.Sprintf("breaking %s: %s %s", name, first.Version, first.Path))
		if first.Detail != "" {
			line += ": " + first.Detail
		}
		if len(all) > 1 {
			line += fmt.Sprintf(", and %d more", len(all)-1)
		}
		t.line("        %s", t.paint(Refused, line))
		if t.o.All {
			for _, f := range all[1:] {
				t.line("          %s", f)
			}
		}
	}
	if compatible > 0 {
		t.line("        %s", plural(compatible, "compatible change")+" of the type")
	}
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
	for _, c := range s.Changes {
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
