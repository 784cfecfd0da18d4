// Package findings shows to people what `gitopsd verify` found: as text, where long
// lists are folded, and as a comment on a pull request.
//
// What differs, and what it is called, is reconcile/verify's.
package findings

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/verify"
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
	shownClusters = 4  // names of clusters that have all that they should
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
func WriteText(w io.Writer, r *verify.Report, o TextOptions) error {
	t := &textWriter{w: bufio.NewWriter(w), o: o}
	colour := green
	switch r.Verdict {
	case verify.Different:
		colour = red
	case verify.NotVerified:
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
func (t *textWriter) gaps(all []verify.Gap) {
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
		t.say(cyan, fmt.Sprintf("? %s not verified: %s", verify.ClusterNames(clusters[why]), lines[0]))
		for _, l := range lines[1:] {
			t.say("", "    "+l)
		}
	}
	if folded > 0 {
		t.line("? … %s", prose.Count(folded, "more reason"))
	}
}

func (t *textWriter) finding(f *verify.Finding) {
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

func (t *textWriter) clusters(s verify.Side) string {
	if t.o.All {
		return strings.Join(s.Clusters, ", ")
	}
	return verify.ClusterNames(s.Clusters)
}

// changes writes schemas field by field, as `gitopsd types diff` does.
func (t *textWriter) changes(f *verify.Finding) {
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
func (t *textWriter) groups(all []verify.Group) {
	if len(all) == 0 {
		return
	}
	t.line("")
	type row struct{ name, types, text string }
	var rows []row
	quiet, quietTypes := 0, 0
	count := 0
	for _, g := range all {
		agrees := g.Package != "" && len(g.States) == 1 && g.States[0].State == verify.SameState
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
		rows = append(rows, row{name, prose.Count(len(g.Types), "type"), groupText(&g)})
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
var stateWords = map[verify.Kind]string{
	verify.TwoControllers: "two controllers", verify.UnknownImage: "unknown image", verify.WrongController: "not the declared controller",
	verify.ControllerDiffers: "controller differs", verify.SettingsDrifted: "settings changed", verify.SettingsDiffer: "settings differ",
	verify.CompositionDrifted: "composition changed", verify.NoController: "no controller runs", verify.Drifted: "schema changed",
	verify.SchemaDiffers: "schema differs", verify.Missing: "missing", verify.Unmanaged: "not declared",
}

// groupText is a group's states in one line: "same in 48 clusters; prod-eu: missing".
func groupText(g *verify.Group) string {
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
		case s.State == verify.SameState && !g.Managed:
			parts = append(parts, "in "+verify.ClusterNames(s.Clusters))
		case s.State == verify.SameState && len(s.Clusters) == 1:
			parts = append(parts, "as declared in "+verify.ClusterNames(s.Clusters))
		case s.State == verify.SameState && len(s.Clusters) > shownClusters:
			parts = append(parts, fmt.Sprintf("same in %d clusters", len(s.Clusters)))
		case s.State == verify.SameState:
			parts = append(parts, "same in "+verify.ClusterNames(s.Clusters))
		case s.Types < len(g.Types):
			parts = append(parts, fmt.Sprintf("%s: %s (%d)", verify.ClusterNames(s.Clusters), stateWords[verify.Kind(s.State)], s.Types))
		default:
			parts = append(parts, fmt.Sprintf("%s: %s", verify.ClusterNames(s.Clusters), stateWords[verify.Kind(s.State)]))
		}
	}
	return strings.Join(parts, "; ")
}
