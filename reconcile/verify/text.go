package verify

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
)

// TextOptions are how a report is shown to eyes.
type TextOptions struct {
	// Colour uses ANSI colours.
	Colour bool
	// Width wraps sentences, in columns; 0 does not.
	Width int
	// All shows every finding, detail, type and field instead of folding long
	// lists.
	All bool
}

// What is shown before the rest is folded.
const (
	shownFindings = 20
	shownGaps     = 10
	shownDetails  = 6
	shownSides    = 6
	shownTypes    = 3  // names of types in a line
	shownClusters = 3  // names of clusters in a line
	shownFields   = 6  // of one finding
	shownGroups   = 20 // of types
)

// Colours of ANSI terminals.
const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
	cyan  = "\x1b[36m"
	bold  = "\x1b[1m"
)

// WriteText writes the report for eyes: the verdict, what could not be verified,
// the findings, worst first, and a table of all types.
func (r *Report) WriteText(w io.Writer, o TextOptions) error {
	t := &textWriter{w: bufio.NewWriter(w), o: o}
	colour := green
	switch r.Verdict {
	case Different:
		colour = red
	case NotVerified:
		colour = cyan
	}
	t.say(bold+colour, r.Summary())
	t.gaps(r.NotVerified)
	for i := range r.Findings {
		if !o.All && i == shownFindings {
			t.line("\n… %s; --all shows them", prose.Count(len(r.Findings)-i, "more finding"))
			break
		}
		t.line("")
		t.finding(&r.Findings[i])
	}
	t.groups(r.Groups)
	for i, n := range r.Notes {
		if i == 0 {
			t.line("")
		}
		t.say("", "Note: "+n)
	}
	return t.w.Flush()
}

// Summary is the report in one line.
func (r *Report) Summary() string {
	what := fmt.Sprintf("%s in %s", prose.Count(r.Types, "type"), prose.Count(len(r.Clusters), "cluster"))
	switch {
	case r.Verdict == Same && len(r.Clusters) > 1:
		return what + ": verified, no difference"
	case r.Verdict == Same:
		return what + ": verified, as the repository declares"
	}
	var parts []string
	if n := len(r.Findings); n > 0 {
		parts = append(parts, prose.Count(n, "difference"))
	}
	if len(r.NotVerified) > 0 {
		names := make(map[string]bool)
		for _, g := range r.NotVerified {
			names[g.Cluster] = true
		}
		parts = append(parts, fmt.Sprintf("not everything could be verified (%s)", prose.Count(len(names), "cluster")))
	}
	return what + ": " + strings.Join(parts, ", and ")
}

// Title is a finding in one line.
func (f *Finding) Title() string {
	subject, it := f.subject()
	odd := f.odd()
	switch f.Kind {
	case TwoControllers:
		return fmt.Sprintf("%s: two controllers act on %s at once in %s", subject, it, odd)
	case UnknownImage:
		return fmt.Sprintf("%s: nobody knows what acts on %s in %s: the image that runs is not in clusters.lock", subject, it, odd)
	case WrongController:
		return fmt.Sprintf("%s: another controller than declared acts on %s in %s", subject, it, odd)
	case ControllerDiffers:
		return fmt.Sprintf("%s: the controller differs %s", subject, f.between())
	case SettingsDrifted:
		return fmt.Sprintf("%s: the controller runs with other settings than declared in %s", subject, odd)
	case SettingsDiffer:
		return fmt.Sprintf("%s: the controller's settings differ %s", subject, f.between())
	case CompositionDrifted:
		return fmt.Sprintf("%s: what is composed of %s is not what was declared in %s", subject, it, odd)
	case NoController:
		return fmt.Sprintf("%s: nothing acts on %s in %s: the controller does not run", subject, it, odd)
	case Drifted:
		return fmt.Sprintf("%s: changed by somebody in %s", subject, odd)
	case SchemaDiffers:
		return fmt.Sprintf("%s: the schema differs %s", subject, f.between())
	case Missing, WebhookDrifted, WebhookDiffers:
		what := map[Kind]string{Missing: "missing in " + odd, WebhookDrifted: "not as declared in " + odd, WebhookDiffers: "differs " + f.between()}
		return subject + ": " + what[f.Kind]
	case Unmanaged:
		return fmt.Sprintf("%s: live in %s, where nothing declares %s", subject, odd, it)
	}
	return subject + ": " + string(f.Kind)
}

// subject is what the finding is about, and the pronoun for it.
func (f *Finding) subject() (subject, it string) {
	switch {
	case f.Object != "":
		return f.Object, "it"
	case len(f.Types) == 1:
		return f.Types[0], "it"
	case f.Package != "":
		return fmt.Sprintf("%d types of package %s", len(f.Types), f.Package), "them"
	}
	return fmt.Sprintf("%d types", len(f.Types)), "them"
}

// odd names the clusters that are to be looked at.
func (f *Finding) odd() string {
	var names []string
	for _, s := range f.Sides {
		if s.Odd {
			names = append(names, s.Clusters...)
		}
	}
	slices.Sort(names)
	return clusterNames(names)
}

// between says who differs from whom.
func (f *Finding) between() string {
	if !f.Sides[0].Odd {
		return fmt.Sprintf("in %s from %s", f.odd(), clusterNames(f.Sides[0].Clusters))
	}
	if len(f.Sides) == 2 {
		return fmt.Sprintf("between %s and %s", clusterNames(f.Sides[0].Clusters), clusterNames(f.Sides[1].Clusters))
	}
	return fmt.Sprintf("between %d groups of clusters", len(f.Sides))
}

func clusterNames(names []string) string {
	if len(names) > shownClusters+1 {
		return fmt.Sprintf("%d clusters (%s, …)", len(names), strings.Join(names[:2], ", "))
	}
	return enumerated(names)
}

func enumerated(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

type textWriter struct {
	w *bufio.Writer
	o TextOptions
}

func (t *textWriter) line(format string, args ...any) { fmt.Fprintf(t.w, format+"\n", args...) }

func (t *textWriter) paint(colour, text string) string {
	if !t.o.Colour {
		return text
	}
	return colour + text + "\x1b[0m"
}

// say writes a sentence, wrapped, in a colour; "" is none.
func (t *textWriter) say(colour, text string) {
	for _, l := range prose.Wrap(text, t.o.Width) {
		if colour != "" {
			l = t.paint(colour, l)
		}
		t.line("%s", l)
	}
}

// room is how many of n lines to show, and how many are folded.
func (t *textWriter) room(n, most int) (shown, folded int) {
	if t.o.All || n <= most+1 {
		return n, 0
	}
	return most, n - most
}

// gaps writes what could not be verified, the same reason once.
func (t *textWriter) gaps(all []Gap) {
	var reasons []string
	clusters := make(map[string][]string)
	for _, g := range all {
		if clusters[g.Reason] == nil {
			reasons = append(reasons, g.Reason)
		}
		if !slices.Contains(clusters[g.Reason], g.Cluster) {
			clusters[g.Reason] = append(clusters[g.Reason], g.Cluster)
		}
	}
	if len(reasons) > 0 {
		t.line("")
	}
	shown, folded := t.room(len(reasons), shownGaps)
	for _, why := range reasons[:shown] {
		lines := strings.Split(strings.TrimRight(why, "\n"), "\n")
		t.say(cyan, fmt.Sprintf("? %s not verified: %s", clusterNames(clusters[why]), lines[0]))
		for _, l := range lines[1:] {
			t.say("", "    "+l)
		}
	}
	if folded > 0 {
		t.line("? … %s", prose.Count(folded, "more reason"))
	}
}

func (t *textWriter) finding(f *Finding) {
	t.say(red, "! "+f.Title())
	if n := len(f.Types); n > 1 {
		shown, folded := t.room(n, shownTypes)
		names := strings.Join(f.Types[:shown], ", ")
		if folded > 0 {
			names += fmt.Sprintf(", … %d more", folded)
		}
		t.say("", "    "+names)
	}
	width := 0
	shown, folded := t.room(len(f.Sides), shownSides)
	for _, s := range f.Sides[:shown] {
		width = max(width, len([]rune(t.clusters(s))))
	}
	for _, s := range f.Sides[:shown] {
		t.line("    %-*s  %s", width, t.clusters(s), s.What)
	}
	if folded > 0 {
		t.line("    … %s", prose.Count(folded, "more group"))
	}
	shown, folded = t.room(len(f.Details), shownDetails)
	for _, d := range f.Details[:shown] {
		t.say("", "      "+d)
	}
	if folded > 0 {
		t.line("      … %s", prose.Count(folded, "more line"))
	}
	t.changes(f)
	t.say("", "    Do: "+f.Advice)
}

func (t *textWriter) clusters(s Side) string {
	if t.o.All {
		return strings.Join(s.Clusters, ", ")
	}
	return clusterNames(s.Clusters)
}

// changes writes schemas field by field, as `gitopsd types diff` does.
func (t *textWriter) changes(f *Finding) {
	left := shownFields
	for i, c := range f.Changes {
		if !t.o.All && left <= 0 {
			t.line("      … and %s", prose.Count(len(f.Changes)-i, "more type"))
			return
		}
		t.line("      %s, %s -> %s:", c.Type, c.From, c.To)
		shown, folded := t.room(len(c.Fields), left)
		left -= shown + 1
		for _, field := range c.Fields[:shown] {
			t.say("", "        "+field.String())
		}
		if folded > 0 {
			t.line("        … %s", prose.Count(folded, "more finding"))
		}
	}
}

// groups writes the table of all types. Packages of which nothing is to be said are
// folded when there are many.
func (t *textWriter) groups(all []Group) {
	if len(all) == 0 {
		return
	}
	t.line("")
	type row struct{ name, types, text string }
	var rows []row
	quiet, quietTypes := 0, 0
	count := 0
	for _, g := range all {
		agrees := g.Package != "" && len(g.States) == 1 && g.States[0].State == same
		if !t.o.All && len(all) > shownGroups && agrees {
			quiet++
			quietTypes += len(g.Types)
			continue
		}
		if !t.o.All && count >= shownGroups && g.Managed {
			continue
		}
		count++
		name := g.Package
		if name == "" {
			name = "(plain manifests)"
		}
		if !g.Managed {
			name = "(defined by nobody)"
		}
		rows = append(rows, row{name, prose.Count(len(g.Types), "type"), g.text()})
	}
	width, numbers := 0, 0
	for _, r := range rows {
		width, numbers = max(width, len([]rune(r.name))), max(numbers, len(r.types))
	}
	for _, r := range rows {
		t.line("%-*s  %*s  %s", width, r.name, numbers, r.types, r.text)
	}
	if quiet > 0 {
		t.line("%s with %s: no difference", prose.Count(quiet, "other package"), prose.Count(quietTypes, "type"))
	}
	if hidden := len(all) - quiet - count; hidden > 0 {
		t.line("… %s; --all shows them", prose.Count(hidden, "more package")+" with differences")
	}
}

// stateWords are findings in a word, for tables.
var stateWords = map[Kind]string{
	TwoControllers: "two controllers", UnknownImage: "unknown image", WrongController: "not the declared controller",
	ControllerDiffers: "controller differs", SettingsDrifted: "settings changed", SettingsDiffer: "settings differ",
	CompositionDrifted: "composition changed", NoController: "no controller runs", Drifted: "schema changed",
	SchemaDiffers: "schema differs", Missing: "missing", Unmanaged: "not declared",
}

// text is a group's states in one line: "same in 48 clusters; prod-eu: missing".
func (g *Group) text() string {
	if len(g.States) == 0 {
		return "not verified"
	}
	var parts []string
	for i, s := range g.States {
		if i == shownSides {
			parts = append(parts, "…")
			break
		}
		switch {
		case s.State == same && !g.Managed:
			parts = append(parts, "in "+clusterNames(s.Clusters))
		case s.State == same && len(s.Clusters) == 1:
			parts = append(parts, "as declared in "+clusterNames(s.Clusters))
		case s.State == same && len(s.Clusters) > shownClusters+1:
			parts = append(parts, fmt.Sprintf("same in %d clusters", len(s.Clusters)))
		case s.State == same:
			parts = append(parts, "same in "+clusterNames(s.Clusters))
		case s.Types < len(g.Types):
			parts = append(parts, fmt.Sprintf("%s: %s (%d)", clusterNames(s.Clusters), stateWords[Kind(s.State)], s.Types))
		default:
			parts = append(parts, fmt.Sprintf("%s: %s", clusterNames(s.Clusters), stateWords[Kind(s.State)]))
		}
	}
	return strings.Join(parts, "; ")
}
