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

// Bounds on what is shown, unless everything is: groups of clusters, and lines of each kind in a
// group.
const (
	mostDetails  = 12
	mostProblems = 5
	mostPackages = 10
	mostNotes    = 2
	mostPlaces   = 2
)

// detail has the lines that are the same for some clusters.
type detail struct {
	clusters []string
	phase    status.Phase
	message  string
	// packages are about packages that run in another version than the wanted one, and more
	// about failed migrations.
	packages, more, notes []string
	// problems have no cluster, and "file" in place of their origin, if they have one. places
	// has the origins of each.
	problems []problem.Problem
	places   [][]string
}

// key is equal for clusters with the same lines. Problems in different files count as the same.
func (d *detail) key() string {
	return fmt.Sprintf("%q", []any{d.phase, d.message, d.packages, d.problems, d.more, d.notes})
}

// add adds the clusters of a detail with the same key.
func (d *detail) add(o *detail) {
	d.clusters = append(d.clusters, o.clusters...)
	for i, places := range o.places {
		d.places[i] = append(d.places[i], places...)
	}
}

// lines returns the problems with their files, a few of many, and the failed migrations.
func (d *detail) lines() []string {
	all := make([]string, len(d.problems))
	for i, p := range d.problems {
		slices.Sort(d.places[i])
		p.Origin = prose.Some(slices.Compact(d.places[i]), mostPlaces)
		all[i] = p.String()
	}
	return append(all, d.more...)
}

// writeDetails writes the messages, problems and notes of clusters.
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

// detailOf returns the detail of a cluster, nil if it has no lines.
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

// versions returns the running and the wanted version of a package, "" if they are the same or
// the running one is unknown.
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
