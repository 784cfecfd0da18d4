package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/upgrade"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/resolve"
)

type outdatedOptions struct {
	fleetOptions
	clusters   []string
	output     outputFlag
	details    bool
	exitcode   bool
	prerelease bool
}

func newOutdated(g *global) *cobra.Command {
	var o outdatedOptions
	cmd := &cobra.Command{
		Use:   "outdated [PACKAGE...]",
		Short: "List newer versions of packages, with what they would change",
		Long: `Outdated lists the packages that clusters declare or depend on, if there is a newer
version. It shows the locked version, the newest of the same major version that suits
all dependents (UPDATE), the newest of all (LATEST), and what either changes in the
package's types and their controller. A version without the signatures that the
clusters require is listed with an error. Outdated writes nothing and talks to no
cluster.

Versions that the fleet excludes (the Packages document in clusters.yaml) or that
their publisher retracts are not proposed. A package at such a version is listed with
the reason, even if there is no newer version.

PACKAGE is a repository, its last part, or the name of a declaration; the default
is all packages. Only tags that are semantic versions count. Pre-releases are shown for
packages that are at one, or with --prerelease. JSON has all packages, with details.
If there are none because of an error, JSON has the error in place of them, and Markdown
has it too.

The exit status is 0, or 1 for an error, which may be about one package while the
others are listed; with --detailed-exitcode it is 2 if there is a newer version.`,
		Example: `  gitopsd outdated
  gitopsd outdated provider-helm --details
  gitopsd outdated --cluster prod -o json`,
		ValidArgsFunction: completePackages(&o.tree),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, g, args) },
	}
	o.registerOnline(cmd)
	f := cmd.Flags()
	o.tree.registerClusters(cmd, &o.clusters, "all")
	o.output.register(cmd, "text", "json", "markdown")
	f.BoolVar(&o.details, "details", false, "show what changes in each type")
	f.BoolVar(&o.exitcode, "detailed-exitcode", false, "exit with status 2 if there is a newer version")
	f.BoolVar(&o.prerelease, "prerelease", false, "count pre-releases as newer versions")
	return cmd
}

func (o *outdatedOptions) run(cmd *cobra.Command, g *global, patterns []string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	all, faults, err := o.list(cmd, g, patterns)
	if err != nil {
		return errors.Join(err, o.printErrors(cmd.OutOrStdout(), err))
	}
	if len(all) == 0 && faults != nil {
		return errors.Join(faults, o.printErrors(cmd.OutOrStdout(), faults))
	}
	errs := []error{faults}
	var told []string
	for _, p := range all {
		for _, text := range []string{p.Error, failure(p.Update), failure(p.Latest)} {
			if text != "" && !slices.Contains(told, text) {
				told = append(told, text)
				errs = append(errs, errors.New(text))
			}
		}
	}
	failed := errors.Join(errs...)
	if err := o.print(cmd.OutOrStdout(), all, len(patterns) > 0, failed); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if o.exitcode && slices.ContainsFunc(all, (*upgrade.Versions).Outdated) {
		return exitError(2)
	}
	return nil
}

// list returns the versions of the packages. faults are the errors of the repository; the
// packages without any are listed.
func (o *outdatedOptions) list(cmd *cobra.Command, g *global, patterns []string) (all []*upgrade.Versions, faults, err error) {
	tree, err := o.tree.open(cmd.Context())
	if err != nil {
		return nil, nil, err
	}
	defer tree.Close()
	upgrader, err := o.registry.upgrader(g, o.clusters, o.prerelease)
	if err != nil {
		return nil, nil, err
	}
	p := startProgress(cmd.ErrOrStderr())
	defer p.stop()
	p.step("looking for newer versions")
	all, state, err := upgrader.Outdated(cmd.Context(), tree.commit, patterns)
	if err != nil {
		return nil, nil, err
	}
	return all, state.Err(), nil
}

// printErrors writes a document with the errors because of which there is no list.
func (o *outdatedOptions) printErrors(w io.Writer, err error) error {
	switch o.output.format {
	case "json":
		var all []*upgrade.Versions
		for _, text := range problemTexts(err) {
			all = append(all, &upgrade.Versions{Clusters: []string{}, Error: text})
		}
		return show.JSON(w, all)
	case "markdown":
		return writeErrors(show.Cleaned(w), err)
	}
	return nil
}

// writeErrors writes the errors as Markdown.
func writeErrors(w io.Writer, err error) error {
	_, failed := fmt.Fprint(w, "**Errors**\n"+show.Fenced("", strings.Join(problemTexts(err), "\n\n")))
	return failed
}

// upgrader returns the finder of newer versions, for the named clusters.
func (o *registryOptions) upgrader(g *global, clusters []string, prerelease bool) (*upgrade.Upgrader, error) {
	packages, err := o.packages(g.log(false))
	if err != nil {
		return nil, err
	}
	computer, err := o.computer(g.log(false), resolve.Add, nil, clusters)
	if err != nil {
		return nil, err
	}
	return upgrade.New(upgrade.Config{Computer: computer, Digest: packages.Digest, Verify: packages.Verify, Tags: packages.Tags, Fetch: packages.Fetch, Prerelease: prerelease})
}

func failure(c *upgrade.Candidate) string {
	if c == nil {
		return ""
	}
	return c.Error
}

// print writes the outdated packages, and those that the user named. failed has all errors,
// which only Markdown has a section for.
func (o *outdatedOptions) print(w io.Writer, all []*upgrade.Versions, asked bool, failed error) error {
	if o.output.format == "json" {
		return show.JSON(w, append([]*upgrade.Versions{}, all...)) // a list, also if empty
	}
	shown := slices.DeleteFunc(slices.Clone(all), func(p *upgrade.Versions) bool { return !p.Outdated() && !p.TakenBack() && !asked })
	w = show.Cleaned(w) // publishers choose versions and reasons
	if o.output.format == "markdown" {
		if err := o.markdown(w, shown, all); err != nil || failed == nil {
			return err
		}
		fmt.Fprintln(w)
		return writeErrors(w, failed)
	}
	if len(shown) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "PACKAGE\tCLUSTERS\tCURRENT\tUPDATE\tLATEST\tTYPES")
		for _, p := range shown {
			update, latest := p.Update, p.Latest
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Repository, prose.Some(p.Clusters, 4), sources.Abbreviate(p.Current), candidate(update), candidate(latest), effect(p))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if o.details {
		for _, p := range shown {
			for _, c := range candidates(p) {
				fmt.Fprintf(w, "\n%s %s -> %s\n", p.Repository, sources.Abbreviate(p.Current), c.Version)
				writeChanges(w, "  ", c.Changes, true)
				writeController(w, "  ", c)
			}
		}
	}
	_, err := fmt.Fprintln(w, verdict(all))
	return err
}

// verdict returns the last line.
func verdict(all []*upgrade.Versions) string {
	repositories, newer, unknown := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, p := range all {
		repositories[p.Repository] = true
		switch {
		case p.Outdated():
			newer[p.Repository] = true
		case p.Error != "":
			unknown[p.Repository] = true
		}
	}
	has := "have newer versions"
	if len(newer) == 1 {
		has = "has a newer version"
	}
	text := fmt.Sprintf("%d of %s %s", len(newer), prose.Count(len(repositories), "package"), has)
	if len(unknown) > 0 {
		text += fmt.Sprintf(", and of %d it is not known", len(unknown))
	}
	return text
}

// candidates returns the newer versions of a package, each once.
func candidates(p *upgrade.Versions) []*upgrade.Candidate {
	var all []*upgrade.Candidate
	for _, c := range []*upgrade.Candidate{p.Update, p.Latest} {
		if c != nil && !slices.Contains(all, c) {
			all = append(all, c)
		}
	}
	return all
}

func candidate(c *upgrade.Candidate) string {
	if c == nil {
		return "-"
	}
	return c.Version
}

// effect returns one line: what the newer versions change, which dependents hold a version
// back, and which versions nobody should use.
func effect(p *upgrade.Versions) string {
	var parts []string
	for _, c := range candidates(p) {
		what := c.Types.String()
		switch {
		case c.Error != "":
			what = "not known"
		case c.ControllerError != "":
			what += ", what changes in the controller is not known"
		case len(c.Controller) > 0 && c.Types == (compat.Count{Same: c.Types.Same}):
			what = "types unchanged, controller changed"
		}
		if n := len(c.Misfits); n > 0 {
			what += ", and the conversion rules of " + prose.Count(n, "type") + " do not fit"
		}
		parts = append(parts, c.Version+": "+what)
	}
	if len(p.Held) > 0 {
		parts = append(parts, p.Latest.Version+" is not "+strings.Join(p.Held, " nor "))
	}
	parts = append(parts, p.Skipped...)
	if p.Excluded != "" {
		parts = append(parts, sources.Abbreviate(p.Current)+" is excluded: "+p.Excluded)
	}
	if p.Retracted != "" {
		parts = append(parts, sources.Abbreviate(p.Current)+" is retracted: "+p.Retracted)
	}
	if p.Replaces != "" {
		parts = append(parts, p.Replaces)
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, "; ")
	case p.Error != "":
		return "not known"
	case p.Note != "":
		return p.Note
	}
	return "up to date"
}

func (o *outdatedOptions) markdown(w io.Writer, shown, all []*upgrade.Versions) error {
	if len(shown) == 0 {
		text := prose.Agree(len(all), "package is", "packages are") + " up to date"
		if slices.ContainsFunc(all, func(p *upgrade.Versions) bool { return p.Error != "" }) {
			text = verdict(all)
		}
		_, err := fmt.Fprintln(w, text+".")
		return err
	}
	fmt.Fprint(w, "| Package | Clusters | Current | Update | Latest | Types |\n|---|---|---|---|---|---|\n")
	for _, p := range shown {
		cells := []string{"`" + p.Repository + "`", strings.Join(p.Clusters, ", "), "`" + sources.Abbreviate(p.Current) + "`", candidate(p.Update), candidate(p.Latest), effect(p)}
		for i, c := range cells {
			cells[i] = show.Sentence(c)
		}
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
	if !o.details {
		return nil
	}
	for _, p := range shown {
		for _, c := range candidates(p) {
			var b strings.Builder
			writeChanges(&b, "", c.Changes, true)
			writeController(&b, "", c)
			fmt.Fprint(w, show.Details(fmt.Sprintf("%s %s → %s", p.Repository, sources.Abbreviate(p.Current), c.Version), "", b.String()))
		}
	}
	return nil
}

// writeController writes what changes in the controller of a package's types.
func writeController(w io.Writer, indent string, c *upgrade.Candidate) {
	for _, d := range c.Controller {
		fmt.Fprintf(w, "%scontroller: %s\n", indent, d)
	}
	if c.ControllerError != "" {
		fmt.Fprintf(w, "%scontroller: not known: %s\n", indent, c.ControllerError)
	}
	for _, m := range c.Misfits {
		fmt.Fprintf(w, "%sconversion rules of %s do not fit (%s): %s\n", indent, m.Definition, prose.Some(m.Clusters, 4), strings.ReplaceAll(m.Error, "\n", "\n"+indent+"  "))
	}
}

// writeChanges writes the changes of types: only breaking ones, or with everything all.
func writeChanges(w io.Writer, indent string, all []compat.Change, everything bool) {
	for _, c := range all {
		if c.Change == compat.Same || !everything && c.Compatibility != compat.Breaking {
			continue
		}
		fmt.Fprintf(w, "%s%s: %s, %s\n", indent, c.Name, c.Change, c.Compatibility)
		for _, f := range c.Findings {
			if everything || f.Severity == compat.Breaking {
				fmt.Fprintf(w, "%s  %s\n", indent, f)
			}
		}
	}
}
