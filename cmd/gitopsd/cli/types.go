package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/types/harm"
	"gitopsd.dev/sources"
)

// typesOptions are the flags of `gitopsd types` and the commands below it.
type typesOptions struct {
	fleetOptions
	output outputFlag
}

func (o *typesOptions) register(cmd *cobra.Command) {
	o.fleetOptions.register(cmd)
	o.output.register(cmd, "text", "json")
}

const typesSources = `A SOURCE is a file or directory of YAML, a package (REPOSITORY:TAG or
REPOSITORY@DIGEST), or the name of a registered cluster, for the objects rendered for it.`

func newTypes(g *global) *cobra.Command {
	var o typesOptions
	cmd := &cobra.Command{
		Use:   "types [SOURCE]...",
		Short: "List types with their digests, compare them, or pin objects to them",
		Long: `Types lists the types that CRDs and XRDs define, with a digest of everything that
affects an API server's behaviour. Types with the same digest are the same, whatever
their documentation and formatting.

The digest of a controller covers the images, arguments and environment of the
workload that acts on a type's objects. A CRD of a plain manifest names that workload,
a Deployment, StatefulSet or DaemonSet, by the annotation
` + manifest.ControllerAnnotation + `: <namespace>/<name>. For an XRD the digest covers the
Compositions and the Functions that they name.

` + typesSources + ` The
default is every registered cluster.`,
		Example: `  gitopsd types
  gitopsd types prod
  gitopsd types xpkg.crossplane.io/crossplane-contrib/provider-helm:v0.19.0
  gitopsd types diff crd-old.yaml crd-new.yaml`,
		ValidArgsFunction: orFiles(completeRegistered(&o.tree)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.output.check(); err != nil {
				return err
			}
			var unread error // of the registry
			if len(args) == 0 {
				root, err := o.tree.root()
				if err != nil {
					return err
				}
				if args, unread = o.tree.registered(); len(args) == 0 {
					return cmp.Or(unread, fmt.Errorf("%s registers no clusters; name a SOURCE", filepath.Join(root, sources.RegistryFile)))
				}
			}
			var all []listedType
			for _, name := range args {
				found, err := o.definitions(cmd, g, name)
				if err != nil {
					return err
				}
				for _, d := range found {
					list, err := types.Of(d.tree)
					if err != nil {
						return fmt.Errorf("%s: %s: %w", name, d.name, err)
					}
					for _, t := range list {
						all = append(all, listedType{Source: name, Group: t.Group, Version: t.Version, Kind: t.Kind, Digest: t.Digest, Package: d.pkg, Controller: listController(d.controller), NoController: d.alone})
					}
				}
			}
			return cmp.Or(o.list(cmd.OutOrStdout(), all, len(args) > 1), unread)
		},
	}
	o.register(cmd)
	cmd.AddCommand(newTypesDiff(g), newTypesPin(g))
	return cmd
}

// listedType is one line of the list.
type listedType struct {
	Source  string `json:"source"`
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Digest  string `json:"digest"`
	Package string `json:"package,omitempty"`
	// Controller acts on objects of the type; nil if unknown. NoController reports whether
	// the package has types alone.
	Controller   *listedController `json:"controller,omitempty"`
	NoController bool              `json:"noController,omitempty"`
}

// listedController is a controller. Two with the same digest behave the same.
type listedController struct {
	Digest string `json:"digest"`
	// Workload is "Deployment namespace/name".
	Workload string `json:"workload,omitempty"`
	// Images are the workload's by container, by digest where there is one. Settings is a
	// hash of all commands, arguments and variables.
	Images   map[string]string `json:"images,omitempty"`
	Settings string            `json:"settings,omitempty"`
	// Config are the keys of ConfigMaps and Secrets that the workload refers to. Rights is a
	// hash of the rights of its account.
	Config []string `json:"config,omitempty"`
	Rights string   `json:"rights,omitempty"`
	// Compositions are those for a composite type, with a hash of each. Functions are those
	// that they name, with their locked digests.
	Compositions map[string]string `json:"compositions,omitempty"`
	Functions    map[string]string `json:"functions,omitempty"`
	// Composes are the types that they compose, with a hash of each and of what acts on
	// it.
	Composes map[string]string `json:"composes,omitempty"`
	// Conversion is the digest of the type's conversion rules, by the definition.
	Conversion map[string]string `json:"conversion,omitempty"`
}

func listController(i *behaviour.Identity) *listedController {
	if i == nil {
		return nil
	}
	parts := func(list []behaviour.Part) map[string]string {
		m := make(map[string]string, len(list))
		for _, p := range list {
			m[p.Name] = p.Value
		}
		return m
	}
	c := &listedController{Digest: i.Digest(), Images: parts(i.Images), Compositions: parts(i.Compositions), Functions: parts(i.Functions), Composes: parts(i.Composes), Conversion: parts(i.Conversion)}
	if len(i.Images) > 0 {
		c.Workload, c.Settings = i.String(), behaviour.SettingsDigest(i.Settings)
		for _, p := range i.Config {
			c.Config = append(c.Config, p.Name)
		}
		if len(i.Rights) > 0 {
			c.Rights = behaviour.SettingsDigest(i.Rights)
		}
	}
	return c
}

// String returns one line for people, without the digest.
func (c *listedController) String() string {
	var parts []string
	if c.Workload != "" {
		parts = append(parts, c.Workload)
	}
	for _, list := range []struct {
		what   string
		values map[string]string
	}{{"", c.Images}, {"composition ", c.Compositions}, {"function ", c.Functions}, {"composes ", c.Composes}, {"conversion ", c.Conversion}} {
		for _, name := range slices.Sorted(maps.Keys(list.values)) {
			parts = append(parts, list.what+name+" "+cmp.Or(list.values[name], "(not declared)"))
		}
	}
	if c.Settings != "" {
		parts = append(parts, "settings "+c.Settings)
	}
	if len(c.Config) > 0 {
		parts = append(parts, prose.Some(c.Config, 4))
	}
	if c.Rights != "" {
		parts = append(parts, "rights "+c.Rights)
	}
	return strings.Join(parts, ", ")
}

func (o *typesOptions) list(w io.Writer, all []listedType, several bool) error {
	if o.output.format == "json" {
		return show.JSON(w, all)
	}
	w = show.Cleaned(w) // packages choose the arguments of controllers
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "KIND\tGROUP/VERSION\tDIGEST\tPACKAGE\tCONTROLLER"
	if several {
		head = "SOURCE\t" + head
	}
	fmt.Fprintln(t, head)
	controllers := make(map[string]string)
	for _, l := range all {
		if several {
			fmt.Fprintf(t, "%s\t", l.Source)
		}
		controller := "-"
		if l.NoController {
			controller = "no controller"
		}
		if l.Controller != nil {
			controller = l.Controller.Digest
			controllers[controller] = l.Controller.String()
		}
		fmt.Fprintf(t, "%s\t%s/%s\t%s\t%s\t%s\n", l.Kind, l.Group, l.Version, l.Digest, cmp.Or(l.Package, "-"), controller)
	}
	if err := t.Flush(); err != nil || len(controllers) == 0 {
		return err
	}
	text := show.NewText(w, show.Options{})
	text.Line("")
	text.Line("CONTROLLER")
	for _, digest := range slices.Sorted(maps.Keys(controllers)) {
		text.Line("%s  %s", digest, controllers[digest])
	}
	return text.Flush()
}

func newTypesDiff(g *global) *cobra.Command {
	var o typesOptions
	var objects objectsOptions
	var exitcode bool
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Show what changes for users of the types when NEW replaces OLD",
		Long: `Diff compares the types of two sources. It prints which types are equivalent, and
what each difference means for stored objects, writers, readers and controllers. For
types of both sources it also compares the controllers, if both are known. Controllers
of clusters are compared as rendered, those of packages without any settings.

With --objects it also reads the objects of the types that break, from files or from a
registered cluster. It names those that would lose a field, become invalid or get another
default, with the owners of the field. No value is shown.

` + typesSources + `

The exit status is 0, or 1 for an error; with --detailed-exitcode it is 2 if a
difference is breaking.`,
		Example: `  gitopsd types diff xpkg.example.org/acme/db:v1.0.0 xpkg.example.org/acme/db:v2.0.0
  gitopsd types diff staging prod
  gitopsd types diff crd-old.yaml crd-new.yaml --objects prod`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: orFiles(completeRegistered(&o.tree)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.output.check(); err != nil {
				return err
			}
			before, err := o.definitions(cmd, g, args[0])
			if err != nil {
				return err
			}
			after, err := o.definitions(cmd, g, args[1])
			if err != nil {
				return err
			}
			old, now := setOf(before), setOf(after)
			compared, err := compat.CompareAll(cmd.Context(), old, now)
			if err != nil {
				return err
			}
			all := compareControllers(compared, before, after)
			if objects.source != "" {
				if err := objects.survey(cmd.Context(), &o, all, old, now); err != nil {
					return err
				}
			}
			if err := o.writeComparison(cmd.OutOrStdout(), all); err != nil {
				return err
			}
			if exitcode && slices.ContainsFunc(compared, func(c compat.Change) bool { return c.Compatibility == compat.Breaking }) {
				return exitError(2)
			}
			return nil
		},
	}
	o.register(cmd)
	objects.live.register(cmd)
	completeFlag(cmd, "context", completePairs(completeRegistered(&o.tree), false))
	cmd.Flags().StringVar(&objects.source, "objects", "", "file, directory or registered cluster with objects of the types, to say which of them would be harmed")
	refuseEmpty(cmd.Flags(), "objects")
	cmd.Flags().BoolVar(&exitcode, "detailed-exitcode", false, "exit with status 2 if a difference is breaking")
	return cmd
}

func setOf(all []definition) compat.Set {
	s := make(compat.Set)
	for _, d := range all {
		s.Add(d.tree)
	}
	return s
}

// comparedTypes is the difference in one definition, and in what acts on its types.
type comparedTypes struct {
	compat.Change
	// Controller are the differences between the controllers; empty if there are none or if
	// a controller is unknown.
	Controller []behaviour.Difference `json:"controller,omitempty"`
	// Objects says how the change affects objects; nil if they were not read.
	Objects *harm.Survey `json:"objects,omitempty"`
}

// compareControllers adds the differences between the controllers of types that both sources
// have.
func compareControllers(all []compat.Change, before, after []definition) []comparedTypes {
	of := func(list []definition) map[compat.SetKey]*definition {
		m := make(map[compat.SetKey]*definition, len(list))
		for i, d := range list {
			m[compat.SetKey{Kind: manifest.Text(d.tree, "kind"), Name: manifest.Text(d.tree, "metadata", "name")}] = &list[i]
		}
		return m
	}
	old, now := of(before), of(after)
	compared := make([]comparedTypes, len(all))
	for i, c := range all {
		compared[i].Change = c
		key := compat.SetKey{Kind: c.Kind, Name: c.Name}
		compared[i].Controller = differences(old[key], now[key])
	}
	return compared
}

// differences compares the controllers of two definitions. A missing controller means that
// there is none if the definition is from a cluster or package. For a file it may be unknown.
func differences(a, b *definition) []behaviour.Difference {
	if a == nil || b == nil || a.controller == nil && b.controller == nil {
		return nil
	}
	old, now := a.controller, b.controller
	if old == nil && (a.rendered || a.alone) {
		old = new(behaviour.Identity)
	}
	if now == nil && (b.rendered || b.alone) {
		now = new(behaviour.Identity)
	}
	if old == nil || now == nil || old.Digest() == now.Digest() {
		return nil
	}
	return behaviour.Differences(old, now)
}

func (o *typesOptions) writeComparison(w io.Writer, all []comparedTypes) error {
	if o.output.format == "json" {
		return show.JSON(w, all)
	}
	t := show.NewText(w, show.Options{})
	named := make(map[string]int)
	changes := make([]compat.Change, len(all))
	for i, c := range all {
		named[c.Name]++
		changes[i] = c.Change
	}
	type group struct {
		names       []string
		differences []behaviour.Difference
	}
	var controllers []*group
	differing := 0
	for _, c := range all {
		name := c.Name
		if named[name] > 1 {
			name = c.Kind + " " + name
		}
		if len(c.Controller) > 0 {
			differing++
			i := slices.IndexFunc(controllers, func(g *group) bool { return slices.Equal(g.differences, c.Controller) })
			if i < 0 {
				controllers, i = append(controllers, &group{differences: c.Controller}), len(controllers)
			}
			controllers[i].names = append(controllers[i].names, name)
		}
		if c.Change.Change == compat.Same {
			continue
		}
		t.Line("%s: %s, %s", name, c.Change.Change, c.Compatibility)
		for _, f := range c.Findings {
			t.Say(show.Plain, "  "+f.String())
		}
		writeSurvey(t, c.Objects)
	}
	for _, g := range controllers {
		t.Line("controller of %s differs", prose.Some(g.names, 6))
		for _, d := range g.differences {
			t.Say(show.Plain, "  "+d.String())
		}
	}
	n := compat.Summarize(changes)
	text := fmt.Sprintf("%d the same, %d changed, %d added, %d removed; %d breaking", n.Same, n.Changed, n.Added, n.Removed, n.Breaking)
	if differing > 0 {
		text += fmt.Sprintf("; %d with another controller", differing)
	}
	t.Line("%s", text)
	return t.Flush()
}
