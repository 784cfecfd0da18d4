package cli

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/lockfile"
)

// packageWhy says why some clusters have a package, or why they do not get it. It is the
// JSON form of the answer.
type packageWhy struct {
	Clusters []string `json:"clusters"`
	// Package is the repository that is used, Version its tag or digest.
	Package string `json:"package"`
	Version string `json:"version"`
	Digest  string `json:"digest,omitempty"`
	// Record is the place of the digest in the lock; empty if it is not there yet.
	Record string `json:"record,omitempty"`
	// Declared is the object that declares it, nil for a dependency. Written is where
	// its version stands.
	Declared *placeJSON `json:"declared,omitempty"`
	Written  *placeJSON `json:"written,omitempty"`
	// NeededBy are the packages that depend on it.
	NeededBy []neededBy `json:"neededBy,omitempty"`
	// Chosen says who chose the version: a declaration, the fleet's rules, or the lock.
	Chosen string `json:"chosen,omitempty"`
	// Replaces names what it replaces.
	Replaces string `json:"replaces,omitempty"`
	// Excluded are the excluded versions of it, with reasons.
	Excluded []string `json:"excluded,omitempty"`
	// NoController reports whether it is a Provider with types alone.
	NoController bool `json:"noController,omitempty"`
	// Problems are the reasons why the clusters do not get it.
	Problems []string `json:"problems,omitempty"`
}

// neededBy is a package that depends on another.
type neededBy struct {
	Package    string `json:"package"`
	Version    string `json:"version"`
	Constraint string `json:"constraint"`
	// Declared is the object that declares it, nil if it is a dependency of NeededBy.
	Declared *placeJSON `json:"declared,omitempty"`
	NeededBy []neededBy `json:"neededBy,omitempty"`
}

// explainPackages returns the answers for the packages that a question names. Clusters with
// equal answers share one. There is no answer if no cluster has or declares such a package.
func explainPackages(ctx context.Context, state *desired.State, question string, h *history) ([]*packageWhy, error) {
	question = strings.TrimPrefix(question, "package/")
	version := ""
	if ref, err := sources.ParseRef(question); err == nil {
		question, version = ref.Repository, ref.Version()
	}
	var all []*packageWhy
	told := make(map[string]*packageWhy)
	for _, c := range state.Clusters {
		e := &packageExplainer{ctx: ctx, state: state, cluster: c, history: h}
		found, err := e.all(question)
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if version != "" && w.Version != version && w.Digest != version {
				continue
			}
			var text strings.Builder
			fmt.Fprintln(&text, w.Package, w.Version)
			w.write(&text, h)
			if same := told[text.String()]; same != nil {
				same.Clusters = append(same.Clusters, c.Name)
				continue
			}
			told[text.String()] = w
			w.Clusters = []string{c.Name}
			all = append(all, w)
		}
	}
	return all, nil
}

// packageExplainer explains the packages of one cluster.
type packageExplainer struct {
	ctx     context.Context
	state   *desired.State
	cluster *desired.Unit
	history *history
}

func (e *packageExplainer) all(question string) ([]*packageWhy, error) {
	var all []*packageWhy
	asked := func(name string, repositories ...string) bool {
		return slices.ContainsFunc(repositories, func(r string) bool { return upgrade.Matches(question, r, name) })
	}
	for _, s := range e.cluster.Packages {
		if !asked(s.Declaration.Name, s.Pin.Ref.Repository, s.Repository()) {
			continue
		}
		w := &packageWhy{
			Package: s.Pin.Ref.Repository, Version: s.Pin.Ref.Version(), Digest: string(s.Pin.Digest),
			Replaces: s.Replacement(), Excluded: e.excluded(s.Pin.Ref.Repository, s.Repository()), NeededBy: e.dependents(s, nil),
		}
		w.Record = e.record(w)
		if s.Parent == "" {
			w.Declared = e.place(s.Declaration)
		}
		var err error
		if w.Written, err = e.written(s.Declaration, s.Parent == ""); err != nil {
			return nil, err
		}
		w.Chosen = e.chosen(s, w)
		w.NoController = s.Declaration.Kind == sources.Provider && s.Runtime == "" && e.cluster.Objects != nil && !slices.ContainsFunc(e.cluster.Objects.All(), func(o *manifest.Object) bool {
			return o.ID().Is(manifest.Workloads...) && o.Label(manifest.PackageLabel) == s.Declaration.Name
		})
		all = append(all, w)
	}
	for _, d := range e.cluster.Declared {
		has := slices.ContainsFunc(e.cluster.Packages, func(s sources.Selected) bool {
			return s.Parent == "" && s.Declaration.Kind == d.Kind && s.Declaration.Name == d.Name
		})
		if has || !asked(d.Name, d.Ref.Repository) {
			continue
		}
		w := &packageWhy{
			Package: d.Ref.Repository, Version: d.Ref.Version(), Declared: e.place(d),
			Excluded: e.excluded(d.Ref.Repository), NeededBy: e.dependents(sources.Selected{Pin: sources.Pin{Ref: d.Ref}}, nil),
		}
		var err error
		if w.Written, err = e.written(d, true); err != nil {
			return nil, err
		}
		for _, p := range e.cluster.Faults {
			if p.Package == d.Name {
				w.Problems = append(w.Problems, p.Reason)
			}
		}
		all = append(all, w)
	}
	return append(all, e.kept(all, asked)...), nil
}

// kept returns the packages that only the lock has for the cluster, because errors keep
// their declarations from being read. told are the packages that have an answer already.
func (e *packageExplainer) kept(told []*packageWhy, asked func(name string, repositories ...string) bool) []*packageWhy {
	var all []*packageWhy
	for _, l := range e.state.Lock.Selections(e.cluster.Name) {
		is := func(w *packageWhy) bool { return w.Package == l.Repository }
		if slices.ContainsFunc(told, is) || slices.ContainsFunc(all, is) || !asked(path.Base(l.Repository), l.Repository) ||
			slices.ContainsFunc(e.cluster.Packages, func(s sources.Selected) bool { return s.Pin.Ref.Repository == l.Repository }) {
			continue
		}
		w := &packageWhy{
			Package: l.Repository, Version: l.Version, Excluded: e.excluded(l.Repository),
			Chosen: fmt.Sprintf("by %s, which keeps it until the errors are corrected", sources.LockFile),
		}
		d, _ := e.state.Lock.Digest(l.Repository, l.Version)
		w.Digest = string(d)
		w.Record = e.record(w)
		for _, p := range e.cluster.Faults {
			is := p.Package != ""
			p.Cluster, p.Package = "", "" // several may have one reason
			if is && !slices.Contains(w.Problems, p.String()) {
				w.Problems = append(w.Problems, p.String())
			}
		}
		all = append(all, w)
	}
	return all
}

// record returns the place of a package's digest in the lock, empty if it is not there yet.
func (e *packageExplainer) record(w *packageWhy) string {
	if line := e.state.Committed.Line(lockfile.Key{Repository: w.Package, Version: w.Version}); line > 0 {
		return fmt.Sprintf("%s:%d", sources.LockFile, line)
	}
	return ""
}

// place returns where a package is declared.
func (e *packageExplainer) place(d sources.Declaration) *placeJSON {
	return &placeJSON{File: d.File, Line: d.Document.Line, Commit: e.history.hash(d.File)}
}

// written returns where the version of a declared package is written, nil if it is not
// written in one piece.
func (e *packageExplainer) written(d sources.Declaration, declared bool) (*placeJSON, error) {
	spec, _ := d.Document.Tree["spec"].(map[string]any)
	text, _ := spec["package"].(string)
	if !declared || text == "" {
		return nil, nil
	}
	in := e.cluster.Input(e.state.Commit.Files)
	found, err := edit.Find(e.ctx, []render.Input{{Cluster: in.Cluster, Files: in.Files, Path: in.Path, Remote: in.Remote}}, []string{text})
	if err != nil {
		return nil, err
	}
	p, ok := found.Places[edit.Declared{Cluster: e.cluster.Name, Kind: d.Kind, Name: d.Name}]
	if !ok {
		return nil, nil
	}
	return &placeJSON{File: p.File, Line: p.Line, Commit: e.history.hash(p.File), Value: p.Text}, nil
}

// chosen says who chose the version of a package that the cluster has.
func (e *packageExplainer) chosen(s sources.Selected, w *packageWhy) string {
	rules := &e.state.Registry.Rules
	selects := slices.ContainsFunc(e.state.Committed.Selections(e.cluster.Name), func(l lockfile.Selection) bool {
		return l.Repository == w.Package && l.Version == w.Version
	})
	by := rules.Replaced(s.Replaces)
	switch {
	case by != nil && s.Replaces.Repository != "" && by.With.Version() != "":
		return "by the replacement at " + by.Place
	case by != nil && s.Replaces.Repository != "" && by.Directory != "":
		return "by the files in the directory, which is named at " + by.Place
	case s.Parent == "":
		if waiting := e.waiting(w); waiting != "" {
			return fmt.Sprintf("by %s; %s", sources.LockFile, waiting)
		}
		return "by the declaration"
	case rules.Selected(s.Repository()) != nil:
		return "selected at " + rules.Selected(s.Repository()).Place
	case selects:
		return fmt.Sprintf("by %s, until `gitopsd lock --update=%s`", sources.LockFile, w.Package)
	}
	return fmt.Sprintf("just now, for the packages that need it; %s does not have it yet", sources.LockFile)
}

// waiting says which revision of a declared package waits for approval, "" for none.
func (e *packageExplainer) waiting(w *packageWhy) string {
	for _, waits := range e.state.Waiting {
		if r := waits.Active.Ref; r.Repository == w.Package && r.Version() == w.Version && slices.Contains(waits.Clusters, e.cluster.Name) {
			return waits.String()
		}
	}
	return ""
}

// excluded returns the excluded versions of repositories.
func (e *packageExplainer) excluded(repositories ...string) []string {
	var all []string
	for _, x := range e.state.Registry.Rules.Excludes {
		if slices.ContainsFunc(repositories, func(r string) bool { return sources.SameRepository(r, x.Repository) }) {
			all = append(all, fmt.Sprintf("%s: %s (%s)", x.Versions, x.Reason, x.Place))
		}
	}
	return all
}

// dependents returns the packages that depend on one, each with its own dependents, up to
// those that are declared. below are the repositories that were visited on the way.
func (e *packageExplainer) dependents(of sources.Selected, below []string) []neededBy {
	below = append(slices.Clone(below), of.Repository())
	var all []neededBy
	for _, s := range e.cluster.Packages {
		if s.Declaration.SkipDependencyResolution || slices.Contains(below, s.Repository()) {
			continue
		}
		for _, d := range s.Package.Meta.DependsOn {
			if d.Repository != of.Repository() {
				continue
			}
			n := neededBy{Package: s.Pin.Ref.Repository, Version: s.Pin.Ref.Version(), Constraint: d.Constraint}
			if s.Parent == "" {
				n.Declared = e.place(s.Declaration)
			} else {
				n.NeededBy = e.dependents(s, below)
			}
			all = append(all, n)
		}
	}
	return all
}

func writePackageWhy(w io.Writer, format string, all []*packageWhy, h *history) error {
	if format == "json" {
		return show.JSON(w, all)
	}
	w = show.Cleaned(w)
	for i, a := range all {
		if i > 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s %s, in cluster %s\n", a.Package, sources.Abbreviate(a.Version), strings.Join(a.Clusters, ", "))
		a.write(w, h)
	}
	return nil
}

// write writes an answer without its first line.
func (a *packageWhy) write(w io.Writer, h *history) {
	line := func(head, text string) { fmt.Fprintf(w, "  %-12s%s\n", head, text) }
	if a.Replaces != "" {
		line("used", a.Replaces)
	}
	if a.Declared != nil {
		line("declared", a.Declared.text(h))
	}
	if p := a.Written; p != nil && p.File != a.Declared.File {
		line("", "its version at "+p.text(h))
	}
	head := "needed by"
	var show func(list []neededBy, indent string)
	show = func(list []neededBy, indent string) {
		for _, n := range list {
			text := fmt.Sprintf("%s%s %s, which needs %s", indent, n.Package, sources.Abbreviate(n.Version), n.Constraint)
			if n.Declared != nil {
				text += "; declared at " + n.Declared.text(h)
			}
			line(head, text)
			head = ""
			show(n.NeededBy, indent+"  ")
		}
	}
	show(a.NeededBy, "")
	if a.Chosen != "" {
		line("version", a.Chosen)
	}
	if a.Digest != "" {
		text := a.Digest
		if a.Record != "" {
			text += " (" + a.Record + ")"
		}
		line("digest", text)
	}
	if a.NoController {
		line("controller", "none: the package has types alone")
	}
	head = "excluded"
	for _, x := range a.Excluded {
		line(head, x)
		head = ""
	}
	for _, p := range a.Problems {
		line("refused", strings.ReplaceAll(p, "\n", "\n"+strings.Repeat(" ", 14)))
	}
}

// text returns a place with the commit that last changed the file.
func (p *placeJSON) text(h *history) string {
	return fmt.Sprintf("%s:%d%s", p.File, p.Line, h.of(p.File))
}
