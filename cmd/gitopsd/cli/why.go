package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/why"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/git"
)

func newWhy(g *global) *cobra.Command {
	var (
		o        fleetOptions
		clusters []string
		output   outputFlag
	)
	cmd := &cobra.Command{
		Use:   "why OBJECT[:FIELD] | PACKAGE",
		Short: "Say which file, commit, package and patch an object or a field comes from, and why a package is there",
		Long: `Why shows where an object comes from: the file and line where it is written, with
the last commit that changed the file, or the package that contains it, with the
package's declaration; then each entry of a kustomization and each patch of the
registry that changes it. With a field, written as in plans, it shows the same for
the field, and the value that the field would have without each change.

Kinds may be written as for kubectl: deploy/web/frontend, crd/NAME.

For a package, named by its repository, the repository's last part or its
declaration, it shows why clusters have it: where it is declared, where its version is
written, which packages need it at which versions, who chose the version, and which
versions the fleet excludes or replaces.

It contacts no cluster and writes nothing; packages come from the cache or the
registry, by the digests in clusters.lock. It finds the entries by building the
kustomizations without each of them.`,
		Example: `  gitopsd why deployment.apps/web/frontend
  gitopsd why deployment/web/frontend:spec.template.spec.containers[name=app].image
  gitopsd why provider-helm
  gitopsd why --cluster prod-eu 'configmap/web/settings:data["log.level"]'`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeFirst(completeWhy(&o)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := output.check(); err != nil {
				return err
			}
			fleet, err := o.open(cmd, g, clusters...)
			if err != nil {
				return err
			}
			defer fleet.Close()
			// Nothing has been found yet; the errors are then the command's own.
			tellRest := func() {
				if len(clusters) == 0 {
					for _, p := range problem.Of(fleet.RegistryErr) {
						fmt.Fprintf(show.Cleaned(cmd.ErrOrStderr()), "gitopsd: not all clusters are known: %s\n", p)
					}
				}
				tellPartlyKnown(cmd.ErrOrStderr(), fleet.State)
			}
			h := newHistory(fleet.root, fleet.commit.Files)
			defer h.close()
			packages, err := explainPackages(cmd.Context(), fleet.State, args[0], h)
			if err != nil {
				return err
			}
			if len(packages) > 0 {
				tellRest()
				return writePackageWhy(cmd.OutOrStdout(), output.format, packages, h)
			}
			if !strings.Contains(args[0], "/") {
				return errors.Join(fmt.Errorf("%q: no cluster has such a package; for an object want kind[.group]/[namespace/]name, as plans show objects, and :field after it for one field", args[0]), fleet.Err())
			}
			answers, err := explain(cmd.Context(), fleet.State, args[0])
			if err != nil {
				return err
			}
			tellRest()
			if output.format == "json" {
				return writeWhyJSON(cmd.OutOrStdout(), answers, h)
			}
			return writeWhy(cmd.OutOrStdout(), answers, h)
		},
	}
	o.register(cmd)
	o.tree.registerClusters(cmd, &clusters, "all that have the object")
	output.register(cmd, "text", "json")
	return cmd
}

// tellPartlyKnown writes the problems of clusters about which an answer may lack something.
func tellPartlyKnown(w io.Writer, state *desired.State) {
	for _, c := range state.Clusters {
		for _, p := range c.Problems() {
			fmt.Fprintf(show.Cleaned(w), "gitopsd: cluster %s is only partly known: %s\n", c.Name, p.WithoutCluster())
		}
	}
}

// answer is the answer for one object in some clusters.
type answer struct {
	clusters []string
	id       manifest.ID
	field    field.Path
	*why.Answer
}

// explain searches every computed cluster. Clusters with equal answers share one. It returns
// an error if no cluster has the object.
func explain(ctx context.Context, state *desired.State, question string) ([]*answer, error) {
	var answers []*answer
	var missing error
	told := make(map[string]*answer)
	for _, c := range state.Clusters {
		if c.Objects == nil {
			continue // the state has the error
		}
		id, field, err := why.Find(c.Objects, question)
		var found *why.Answer
		if err == nil {
			found, err = why.Explain(ctx, why.Input{Input: c.Input(state.Commit.Files), Packages: c.Packages}, id, field)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, why.ErrNotFound):
			missing = errors.Join(missing, problem.In(c.Name, err))
			continue
		case err != nil:
			return nil, problem.In(c.Name, err)
		}
		a := &answer{id: id, field: field, Answer: found}
		text := a.head() + a.text(func(string) string { return "" })
		if same := told[text]; same != nil {
			same.clusters = append(same.clusters, c.Name)
			continue
		}
		a.clusters, told[text] = []string{c.Name}, a
		answers = append(answers, a)
	}
	if len(answers) == 0 {
		return nil, errors.Join(missing, state.Err())
	}
	return answers, nil
}

func writeWhy(w io.Writer, answers []*answer, h *history) error {
	w = show.Cleaned(w) // subjects of commits, names of files and values may be hostile
	for i, a := range answers {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if _, err := fmt.Fprintf(w, "%s, in cluster %s\n%s", a.head(), strings.Join(a.clusters, ", "), a.text(h.of)); err != nil {
			return err
		}
	}
	return nil
}

// head returns the first line: the object, and the field with its value.
func (a *answer) head() string {
	switch {
	case len(a.field) == 0:
		return a.id.String()
	case a.Filled != "":
		return fmt.Sprintf("%s: %s is filled in when it is applied", a.id, a.field)
	case !a.Field.Set:
		return fmt.Sprintf("%s: %s is not there", a.id, a.field)
	}
	return fmt.Sprintf("%s: %s is %s", a.id, a.field, value(a.Field))
}

// text returns an answer without its first line; changed returns the commit that
// last changed a file.
func (a *answer) text(changed func(file string) string) string {
	var b strings.Builder
	line := func(head, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s%s\n", head, fmt.Sprintf(format, args...))
	}
	made := slices.ContainsFunc(a.Steps, func(s why.Step) bool { return s.Effect == why.Makes })
	original := ""
	if len(a.field) > 0 && a.Original.Set {
		original = ", as " + value(a.Original)
	}
	switch {
	case a.Package != nil:
		where := fmt.Sprintf("package.yaml:%d", a.Written.Line)
		if a.Written.File == "" {
			where = "not in its contents"
		}
		line("package", "%s (%s), %s%s", a.Package.Name, a.Package.Pin, where, original)
		for _, by := range a.Package.Needs {
			line("", "needed by %s", by)
		}
		if a.Package.Declared.File != "" {
			line("declared", "%s%s", a.Package.Declared, changed(a.Package.Declared.File))
		}
		for _, s := range a.Package.Steps {
			line("", "its version by %s%s", place(s), changed(s.File))
		}
	case a.Written == (manifest.Origin{}):
		line("written", "by gitopsd, for the packages' controllers")
	case a.Written.For != "":
		line("written", "by gitopsd, for %s", a.Written.For)
	case !made:
		line("written", "%s%s%s", a.Written, original, changed(a.Written.File))
	}
	for _, s := range a.Steps {
		switch s.Effect {
		case why.Makes:
			line("made", "by %s%s", place(s), changed(s.File))
		case why.Names:
			line("named", "by %s%s", place(s), changed(s.File))
		case why.Unknown:
			line("perhaps", "by %s, without which nothing can be built%s", place(s), changed(s.File))
		case why.Changes:
			what := ": " + strings.Join(s.Paths, ", ")
			if len(a.field) > 0 {
				what = "; otherwise it would be " + value(s.Without)
				if !s.Without.Set {
					what = "; otherwise it would not be there"
				}
			}
			line("changed", "by %s%s%s", place(s), what, changed(s.File))
		}
	}
	if a.Filled != "" {
		line("filled in", "with %s, by annotation %s", a.Filled, manifest.InjectCAAnnotation)
	}
	return b.String()
}

func place(s why.Step) string {
	switch {
	case s.File == "":
		return s.What
	case s.Line == 0:
		return s.File + ", " + s.What
	}
	return fmt.Sprintf("%s:%d, %s", s.File, s.Line, s.What)
}

// value returns a field on one line.
func value(v why.Value) string {
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v.Value); err != nil {
		return fmt.Sprint(v.Value)
	}
	const most = 100
	shown := strings.TrimSuffix(text.String(), "\n")
	if len(shown) > most {
		return strings.ToValidUTF8(shown[:most], "") + fmt.Sprintf("… (%d characters)", len(shown))
	}
	return shown
}

// The JSON form of the answer.
type (
	whyJSON struct {
		Clusters []string     `json:"clusters"`
		Object   string       `json:"object"`
		Field    string       `json:"field,omitempty"`
		Value    any          `json:"value,omitempty"`
		Filled   string       `json:"filled,omitempty"`
		Written  *placeJSON   `json:"written,omitempty"`
		Package  *packageJSON `json:"package,omitempty"`
		Steps    []stepJSON   `json:"steps"`
	}
	placeJSON struct {
		File   string `json:"file"`
		Line   int    `json:"line,omitempty"`
		Commit string `json:"commit,omitempty"`
		Value  any    `json:"value,omitempty"`
	}
	packageJSON struct {
		Name     string     `json:"name"`
		Pin      string     `json:"pin"`
		NeededBy []string   `json:"neededBy,omitempty"`
		Declared *placeJSON `json:"declared,omitempty"`
		Steps    []stepJSON `json:"steps,omitempty"`
	}
	stepJSON struct {
		Effect  why.Effect `json:"effect"`
		What    string     `json:"what"`
		File    string     `json:"file,omitempty"`
		Line    int        `json:"line,omitempty"`
		Commit  string     `json:"commit,omitempty"`
		Without any        `json:"without,omitempty"`
		Fields  []string   `json:"fields,omitempty"`
	}
)

func writeWhyJSON(w io.Writer, answers []*answer, h *history) error {
	steps := func(list []why.Step) []stepJSON {
		out := make([]stepJSON, 0, len(list))
		for _, s := range list {
			out = append(out, stepJSON{Effect: s.Effect, What: s.What, File: s.File, Line: s.Line, Commit: h.hash(s.File), Without: s.Without.Value, Fields: s.Paths})
		}
		return out
	}
	at := func(o manifest.Origin, v why.Value) *placeJSON {
		if o.File == "" {
			return nil
		}
		p := &placeJSON{File: o.File, Line: o.Line, Value: v.Value}
		if o.Package == (sources.Pin{}) {
			p.Commit = h.hash(o.File)
		}
		return p
	}
	all := make([]whyJSON, 0, len(answers))
	for _, a := range answers {
		j := whyJSON{Clusters: a.clusters, Object: a.id.String(), Field: a.field.String(), Value: a.Field.Value, Filled: a.Filled, Written: at(a.Written, a.Original), Steps: steps(a.Steps)}
		if p := a.Package; p != nil {
			j.Package = &packageJSON{Name: p.Name, Pin: p.Pin.String(), NeededBy: p.Needs, Declared: at(p.Declared, why.Value{}), Steps: steps(p.Steps)}
		}
		all = append(all, j)
	}
	return show.JSON(w, all)
}

// history finds the commit that last changed a file, if the fleet is in a Git
// repository.
type history struct {
	dir   *git.Directory
	head  sources.Commit
	files fs.FS
	known map[string]changed
}

// changed is the last change of a file.
type changed struct {
	hash, text string
}

func newHistory(root string, files fs.FS) *history {
	h := &history{files: files, known: make(map[string]changed)}
	if head, dir, err := commitOf(root, "HEAD"); err == nil { // else there is no repository, or no commit yet
		h.dir, h.head = dir, head
	}
	return h
}

func (h *history) close() {
	if h.dir != nil {
		h.dir.Close()
	}
}

// of returns the text to show after the name of a file.
func (h *history) of(file string) string { return h.look(file).text }

// hash returns the commit's hash, empty if there is none.
func (h *history) hash(file string) string { return h.look(file).hash }

func (h *history) look(file string) changed {
	if h.dir == nil || file == "" {
		return changed{}
	}
	c, ok := h.known[file]
	if !ok {
		c = h.read(file)
		h.known[file] = c
	}
	return c
}

func (h *history) read(file string) changed {
	now, err := fs.ReadFile(h.files, file)
	if err != nil {
		return changed{} // a directory
	}
	if was, err := fs.ReadFile(h.head.Files, file); err != nil || string(was) != string(now) {
		return changed{text: " (not committed)"}
	}
	c, found, err := h.dir.LastChange("HEAD", file)
	if err != nil || !found {
		return changed{}
	}
	return changed{hash: c.Hash, text: fmt.Sprintf(" (%s %s: %s)", sources.ShortHash(c.Hash), c.Time.Format("2006-01-02"), c.Subject)}
}
