// Package findings shows the reports of `gitopsd verify`: as text, and as a comment on
// a pull request.
//
// reconcile/verify finds and names the differences. cmd/gitopsd/show folds, wraps and cuts.
// text.go writes text, and markdown.go comments.
package findings

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/verify"
)

// Bounds on lists; the rest is folded.
const (
	shownFindings = 20
	shownGaps     = 10
	shownDetails  = 6
	shownSides    = 6
	shownTypes    = 3  // names of types in a line
	shownClusters = 4  // names of clusters without differences
	shownFields   = 6  // of one finding
	shownGroups   = 20 // of types
	shownOmitted  = 6
)

// WriteText writes the report for a terminal: the verdict, what could not be verified, the
// findings, worst first, and a table of all types. It returns errors of w.
func WriteText(w io.Writer, r *verify.Report, o show.Options) error {
	t := textWriter{show.NewText(w, o)}
	colour := show.Green
	switch r.Verdict {
	case verify.Different:
		colour = show.Red
	case verify.NotVerified:
		colour = show.Cyan
	}
	t.Say(show.Bold+colour, r.Summary())
	t.gaps(r.NotVerified)
	shown, folded := t.Fold(len(r.Findings), shownFindings)
	for i := range r.Findings[:shown] {
		t.Line("")
		t.finding(&r.Findings[i])
	}
	if folded > 0 {
		t.Line("")
		t.Line("… %s; --all shows them", prose.Count(folded, "more finding"))
	}
	t.groups(r.Groups)
	t.looked(r)
	for i, n := range r.Notes {
		if i == 0 {
			t.Line("")
		}
		t.Say(show.Plain, "Note: "+n)
	}
	return t.Flush()
}

// textWriter writes reports as text.
type textWriter struct{ *show.Text }

// gaps writes what could not be verified, each reason once.
func (t textWriter) gaps(all []verify.Gap) {
	var reasons show.Groups[string, string]
	for _, g := range all {
		if !slices.Contains(reasons.Of(g.Reason), g.Cluster) {
			reasons.Add(g.Reason, g.Cluster)
		}
	}
	if len(all) > 0 {
		t.Line("")
	}
	shown, folded := t.Fold(len(reasons.Keys), shownGaps)
	for _, why := range reasons.Keys[:shown] {
		first, rest, more := strings.Cut(strings.TrimRight(why, "\n"), "\n")
		t.Say(show.Cyan, fmt.Sprintf("? %s not verified: %s", verify.ClusterNames(reasons.Of(why)), first))
		if more {
			t.Indented("    ", show.Plain, rest)
		}
	}
	if folded > 0 {
		t.Line("? … %s", prose.Count(folded, "more reason"))
	}
}

func (t textWriter) finding(f *verify.Finding) {
	t.Say(show.Red, "! "+f.Title())
	if n := len(f.Types); n > 1 {
		shown, folded := t.Fold(n, shownTypes)
		names := strings.Join(f.Types[:shown], ", ")
		if folded > 0 {
			names += fmt.Sprintf(", … %d more", folded)
		}
		t.Say(show.Plain, "    "+names)
	}
	width := 0
	shown, folded := t.Fold(len(f.Sides), shownSides)
	for _, s := range f.Sides[:shown] {
		width = max(width, len([]rune(t.clusters(s))))
	}
	for _, s := range f.Sides[:shown] {
		t.Line("    %-*s  %s", width, t.clusters(s), s.What)
	}
	if folded > 0 {
		t.Line("    … %s", prose.Count(folded, "more group"))
	}
	shown, folded = t.Fold(len(f.Details), shownDetails)
	for _, d := range f.Details[:shown] {
		t.Say(show.Plain, "      "+d)
	}
	if folded > 0 {
		t.Line("      … %s", prose.Count(folded, "more line"))
	}
	t.changes(f)
	t.Say(show.Plain, "    Do: "+f.Advice)
}

func (t textWriter) clusters(s verify.Side) string {
	if t.All {
		return strings.Join(s.Clusters, ", ")
	}
	return verify.ClusterNames(s.Clusters)
}

// changes writes schemas field by field, as `gitopsd types diff` does.
func (t textWriter) changes(f *verify.Finding) {
	left := shownFields
	for i, c := range f.Changes {
		if !t.All && left <= 0 {
			t.Line("      … and %s", prose.Count(len(f.Changes)-i, "more type"))
			return
		}
		t.Line("      %s, %s -> %s:", c.Type, c.From, c.To)
		shown, folded := t.Fold(len(c.Fields), left)
		left -= shown + 1
		for _, field := range c.Fields[:shown] {
			t.Say(show.Plain, "        "+field.String())
		}
		if folded > 0 {
			t.Line("        … %s", prose.Count(folded, "more finding"))
		}
	}
}

// groups writes the table of all types. In a long table, packages without differences are
// folded.
func (t textWriter) groups(all []verify.Group) {
	if len(all) == 0 {
		return
	}
	t.Line("")
	type row struct{ name, types, text string }
	var rows []row
	quiet, quietTypes := 0, 0
	count := 0
	for _, g := range all {
		agrees := g.Package != "" && len(g.States) == 1 && g.States[0].State == verify.SameState
		if !t.All && len(all) > shownGroups && agrees {
			quiet++
			quietTypes += len(g.Types)
			continue
		}
		if !t.All && count >= shownGroups && g.Managed {
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
		t.Line("%-*s  %*s  %s", width, r.name, numbers, r.types, r.text)
	}
	if quiet > 0 {
		t.Line("%s with %s: no difference", prose.Count(quiet, "other package"), prose.Count(quietTypes, "type"))
	}
	if hidden := len(all) - quiet - count; hidden > 0 {
		t.Line("… %s; --all shows them", prose.Count(hidden, "more package")+" with differences")
	}
}

// stateWords are short names of findings, for tables.
var stateWords = map[verify.Kind]string{
	verify.TwoControllers: "two controllers", verify.UnknownImage: "unknown image", verify.WrongController: "not the declared controller",
	verify.ControllerDiffers: "controller differs", verify.SettingsDrifted: "settings changed", verify.SettingsDiffer: "settings differ",
	verify.ConfigDrifted: "configuration changed", verify.ConfigDiffers: "configuration differs", verify.RightsDrifted: "rights changed",
	verify.RightsDiffer: "rights differ", verify.AdmissionDiffers: "admission differs", verify.CompositionDrifted: "composition changed",
	verify.NoController: "no controller runs", verify.SecondActor: "second actor", verify.Refused: "refused", verify.RolledBack: "rolled back", verify.NotApplied: "not applied yet",
	verify.Drifted:       "schema changed",
	verify.SchemaDiffers: "schema differs", verify.ConversionDrifted: "conversion drifted", verify.ConversionDiffers: "conversion differs", verify.NotVerifiedState: "not verified", verify.Missing: "missing", verify.Unmanaged: "not declared",
}

// groupText returns a group's states in one line: "same in 48 clusters; prod-eu: missing".
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
	only := "definition only"
	n := len(g.DefinitionOnly)
	if n == len(g.NoController) {
		only = "no controller, definition only"
	}
	switch {
	case n == len(g.Types):
		parts = append(parts, only)
	case n > 0:
		parts = append(parts, fmt.Sprintf("%s (%d)", only, n))
	}
	return strings.Join(parts, "; ")
}

// looked writes what was compared and what was left out, each once for all clusters.
func (t textWriter) looked(r *verify.Report) {
	t.Line("")
	t.Say(show.Plain, "Looked at: "+r.LookedAt.String())
	if r.DefinitionOnly > 0 {
		t.Say(show.Plain, fmt.Sprintf("Definition only: %s, since nobody declares all that acts on %s", prose.Count(r.DefinitionOnly, "type"), map[bool]string{true: "it", false: "them"}[r.DefinitionOnly == 1]))
	}
	type omission struct{ what, reason string }
	var omitted show.Groups[omission, string]
	for _, o := range r.Omitted {
		omitted.Add(omission{o.What, o.Reason}, o.Cluster)
	}
	shown, folded := t.Fold(len(omitted.Keys), shownOmitted)
	for _, o := range omitted.Keys[:shown] {
		t.Say(show.Plain, fmt.Sprintf("Not looked at: %s in %s: %s", o.what, verify.ClusterNames(omitted.Of(o)), o.reason))
	}
	if folded > 0 {
		t.Line("… %s", prose.Count(folded, "more object")+" not looked at; --all shows them")
	}
}
