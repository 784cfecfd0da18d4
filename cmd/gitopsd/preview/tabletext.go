package preview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/types/compat"
)

// Bounds on a table of types; the rest is folded.
const (
	shownBreaking   = 12 // definitions that break
	shownCompatible = 4  // other definitions that change, appear or go
)

// types writes the tables of types.
func (t textWriter) types(tables []*typeTable) {
	for i, table := range tables {
		if i > 0 {
			t.Line("")
		}
		t.Heading("", fmt.Sprintf("Types of %s in %s", table.title(), table.where()), table.counts())
		t.typeRows(table)
	}
}

// where returns the clusters, a few of many.
func (t *typeTable) where() string { return where(t.Clusters) }

// typeRows writes the rows of a table by class: breaking ones first, and long lists
// of others folded.
func (t textWriter) typeRows(table *typeTable) {
	rows := table.Rows
	for len(rows) > 0 {
		n := slices.IndexFunc(rows, func(r typeRow) bool { return r.class() != rows[0].class() })
		if n < 0 {
			n = len(rows)
		}
		t.typeClass(rows[:n])
		rows = rows[n:]
	}
}

func (t textWriter) typeClass(rows []typeRow) {
	shown := len(rows)
	breaking := rows[0].Compatibility == compat.Breaking
	switch {
	case t.All:
	case breaking && shown > shownBreaking:
		t.Say(show.Red, fmt.Sprintf("  ! %d break: %s", shown, summary(rows)))
		shown = shownBreaking
	case !breaking && shown > shownCompatible:
		shown = 0
	}
	for i := range rows[:shown] {
		t.typeRow(&rows[i])
	}
	rest := rows[shown:]
	if len(rest) == 0 {
		return
	}
	var names []string
	for i := range rest {
		names = append(names, rest[i].Name)
	}
	what := rest[0].word()
	if shown > 0 {
		what = "more " + what
	}
	t.Say(marks[rest[0].mark()].colour, fmt.Sprintf("  %s %d %s: %s", marks[rest[0].mark()].sign, len(rest), what, prose.Some(names, shownNames)))
}

// summary returns the number of definitions with each breaking finding, and the field that
// most of these have in common.
func summary(rows []typeRow) string {
	in := make(map[string]map[string]int) // finding to field, "" for all, to definitions
	for i := range rows {
		seen := make(map[[2]string]bool)
		for _, f := range rows[i].Findings {
			if f.Severity != compat.Breaking {
				continue
			}
			if in[f.Name] == nil {
				in[f.Name] = make(map[string]int)
			}
			for _, path := range []string{"", f.Path} {
				if key := [2]string{f.Name, path}; !seen[key] {
					seen[key] = true
					in[f.Name][path]++
				}
			}
		}
	}
	names := slices.SortedFunc(maps.Keys(in), func(a, b string) int {
		return cmp.Or(cmp.Compare(in[b][""], in[a][""]), cmp.Compare(a, b))
	})
	for i, name := range names {
		most, times := "", 1
		for _, path := range slices.Sorted(maps.Keys(in[name])) {
			if n := in[name][path]; path != "" && n > times {
				most, times = path, n
			}
		}
		names[i] = fmt.Sprintf("%s in %d", name, in[name][""])
		if most != "" {
			names[i] += fmt.Sprintf(" (%s in %d)", most, times)
		}
	}
	return strings.Join(names, ", ")
}

// word describes the change of a row's types.
func (r *typeRow) word() string {
	switch r.class() {
	case breakingRefused:
		return "breaking, refused"
	case breakingAllowed:
		if r.Change == typesRemoved {
			return "removed, which breaks"
		}
		return "breaking"
	case compatible:
		return "compatible"
	}
	return string(r.Change)
}

// mark returns the action whose mark a row gets.
func (r *typeRow) mark() plan.Action {
	switch {
	case r.class() == breakingRefused:
		return plan.Refused
	case r.Change == typesRemoved:
		return plan.Prune
	case r.Change == typesAdded:
		return plan.Create
	}
	return plan.Configure
}

func (t textWriter) typeRow(r *typeRow) {
	name := r.Name
	if v := r.versions(); v != "" {
		name += " (" + v + ")"
	}
	t.Say(marks[r.mark()].colour, fmt.Sprintf("  %s %s: %s", marks[r.mark()].sign, name, r.word()))
	if t.All {
		for _, v := range r.Versions {
			if v.Before != v.After {
				t.Line("      %s %s: %s -> %s", v.Version, v.Kind, cmp.Or(v.Before, "none"), cmp.Or(v.After, "none"))
			}
		}
	}
	t.findings(r)
	t.surveys(r.Surveys)
}

// told returns the detail of a finding for people. A value that is added or removed is not
// shown as "none -> …".
func told(f compat.Finding) string {
	const none = "none"
	what, values := "", f.Detail
	if i := strings.Index(f.Detail, ": "); i >= 0 && strings.Contains(f.Detail[i:], " -> ") {
		what, values = f.Detail[:i]+" ", f.Detail[i+len(": "):]
	}
	word := func(word, finding string) string {
		if strings.HasSuffix(cmp.Or(strings.TrimSpace(what), f.Name), finding) {
			return "" // the finding's name has the word
		}
		return " " + word
	}
	if now, ok := strings.CutPrefix(values, none+" -> "); ok {
		return what + now + word("added", "-added")
	}
	if old, ok := strings.CutSuffix(values, " -> "+none); ok {
		return what + old + word("removed", "-removed")
	}
	return f.Detail
}

// findings writes the findings about a type, one line for each kind. Compatible ones are only
// counted if there are many.
func (t textWriter) findings(r *typeRow) {
	type kind struct {
		name     string
		severity compat.Severity
	}
	var kinds show.Groups[kind, compat.Finding]
	for _, f := range r.Findings {
		kinds.Add(kind{f.Name, f.Severity}, f)
	}
	compatible, folded := 0, 0
	for _, k := range kinds.Keys {
		if k.severity != compat.Breaking {
			compatible++
		}
	}
	for k, list := range kinds.All() {
		if k.severity != compat.Breaking && compatible > shownCompatible && !t.All {
			folded += len(list)
			continue
		}
		first := list[0]
		line := strings.TrimSuffix(strings.TrimSpace(fmt.Sprintf("%s: %s %s", k.name, first.Version, first.Path)), ":")
		if k.severity == compat.Breaking {
			line = "breaking " + line
		}
		if detail := told(first); detail != "" && detail != first.Version { // the line has the version already
			line += ": " + detail
		}
		if len(list) > 1 {
			line += fmt.Sprintf(", and %d more", len(list)-1)
		}
		if reason, ok := r.Allowed[k.name]; ok && k.severity == compat.Breaking {
			line += " (allowed: " + reason + ")"
		}
		if k.severity == compat.Breaking && slices.Contains(r.LetThrough, k.name) {
			line += " (let through)"
		}
		colour := show.Plain
		if k.severity == compat.Breaking {
			colour = show.Red
		}
		t.Say(colour, "      "+line)
		if t.All {
			for _, f := range list[1:] {
				t.Say(show.Plain, "        "+f.String())
			}
		}
	}
	if folded > 0 {
		t.Line("      %s", prose.Count(folded, "compatible change"))
	}
}
