package glance

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
)

// How many lines of a kind are shown of a cluster, unless all are asked for, and of how
// many clusters that do not agree.
const (
	mostDetails  = 12
	mostProblems = 5
	mostPackages = 10
	mostNotes    = 2
	mostPlaces   = 2
)

// detail is what is to be said of some clusters alike.
type detail struct {
	clusters []string
	phase    status.Phase
	message  string
	// packages are those that run in another version than they should, notes the clusters',
	// and more what is to be said of failed migrations.
	packages, more, notes []string
	// problems have no cluster, and a word for their origins: what one cluster has from a
	// file is not told of another that has it from none. places has the origins of each.
	problems []problem.Problem
	places   [][]string
}

// key is the same for clusters of which the same is to be said, which may have it from files
// of their own.
func (d *detail) key() string {
	return fmt.Sprintf("%q", []any{d.phase, d.message, d.packages, d.problems, d.more, d.notes})
}

// add adds clusters of which the same is to be said.
func (d *detail) add(o *detail) {
	d.clusters = append(d.clusters, o.clusters...)
	for i, places := range o.places {
		d.places[i] = append(d.places[i], places...)
	}
}

// lines returns the problems, a line each, with the files that they are in, a few of many.
func (d *detail) lines() []string {
	all := make([]string, len(d.problems))
	for i, p := range d.problems {
		slices.Sort(d.places[i])
		p.Origin = prose.Some(slices.Compact(d.places[i]), mostPlaces)
		all[i] = p.String()
	}
	return append(all, d.more...)
}

// writeDetails writes what is to be said of clusters beside the table.
func writeDetails(t *show.Text, units []status.Unit) {
	var all []*detail
	alike := make(map[string]*detail)
	for i := range units {
		d := detailOf(&units[i])
		if d == nil {
			continue
		}
		key := d.key()
		if same := alike[key]; same != nil {
			same.add(d)
			continue
		}
		alike[key] = d
		all = append(all, d)
	}
	shown, folded := t.Fold(len(all), mostDetails)
	for _, d := range all[:shown] {
		d.write(t)
	}
	if folded > 0 {
		var names []string
		for _, d := range all[shown:] {
			names = append(names, d.clusters...)
		}
		t.Line("")
		t.Say(show.Plain, fmt.Sprintf("… and more is to be said of %s (--all or --cluster NAME shows it)", prose.Some(names, 3)))
	}
}

// detailOf returns what is to be said of a cluster; nil for nothing.
func detailOf(u *status.Unit) *detail {
	d := &detail{clusters: []string{u.Name}, phase: u.Phase, message: u.Message}
	if u.Failures > 1 && !u.NextTry.IsZero() {
		d.message += fmt.Sprintf("\n%d attempts in a row; the next one is at %s", u.Failures, at(u.NextTry))
	}
	for _, p := range u.Packages {
		if text := versions(p); text != "" {
			d.packages = append(d.packages, text)
		}
	}
	for _, p := range u.Problems {
		var places []string
		if p.Origin != "" {
			places, p.Origin = []string{p.Origin}, "file"
		}
		p.Cluster = ""
		d.problems, d.places = append(d.problems, p), append(d.places, places)
	}
	for _, m := range u.Migrations {
		if m.State == status.MigrationFailed {
			d.more = append(d.more, fmt.Sprintf("storage migration of %s: %s", m.Definition, m.Message))
		}
	}
	d.notes = append(d.notes, u.Notes...)
	if d.message == "" && len(d.packages)+len(d.problems)+len(d.more)+len(d.notes) == 0 {
		return nil
	}
	return d
}

// versions returns the version of a package that runs beside the one that is wanted, if
// it is known to be another.
func versions(p status.PackageState) string {
	switch {
	case p.Running == "" || p.Running == p.Version:
		return ""
	case p.Version == "":
		return fmt.Sprintf("package %s: %s runs, and what is wanted is not known", p.Name, p.Running)
	}
	return fmt.Sprintf("package %s: %s runs, %s is wanted", p.Name, p.Running, p.Version)
}

func (d *detail) write(t *show.Text) {
	text := string(d.phase)
	message, more, _ := strings.Cut(d.message, "\n")
	if message != "" {
		text += ": " + message
	}
	t.Line("")
	t.Heading("", prose.Some(d.clusters, 3), text)
	if more != "" {
		t.Indented("  ", show.Plain, more)
	}
	d.list(t, show.Yellow, "", d.packages, mostPackages, "package")
	d.list(t, colourOf(d.phase), "! ", d.lines(), mostProblems, "problem")
	d.list(t, show.Plain, "note: ", d.notes, mostNotes, "note")
}

// list writes lines, and how many more there are.
func (d *detail) list(t *show.Text, c show.Colour, mark string, lines []string, most int, what string) {
	shown, folded := t.Fold(len(lines), most)
	for _, l := range lines[:shown] {
		t.Indented("  "+mark, c, l)
	}
	if folded > 0 {
		t.Line("  … and %s (--all)", prose.Count(folded, "more "+what))
	}
}
