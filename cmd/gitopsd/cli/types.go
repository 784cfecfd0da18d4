package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/local"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/xpkg"
)

// typesOptions are the flags of `gitopsd types` and the commands below it.
type typesOptions struct {
	tree     treeOptions
	registry registryOptions
	output   string
}

func (o *typesOptions) register(cmd *cobra.Command) {
	o.tree.register(cmd)
	o.registry.register(cmd)
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)) // an error means that the flag does not exist
}

const typesSources = `A SOURCE is a file or directory of YAML, a package (REPOSITORY:TAG or
REPOSITORY@DIGEST), or the name of a registered cluster: what is rendered for it.`

func newTypes(g *global) *cobra.Command {
	var o typesOptions
	cmd := &cobra.Command{
		Use:   "types SOURCE...",
		Short: "List types with their digests, or compare them",
		Long: `Types lists the types that CRDs and XRDs define, with a digest of everything that
an API server's behaviour depends on. Two types with the same digest are the
same, whatever documentation and formatting they have.

` + typesSources,
		Example: `  gitopsd types prod
  gitopsd types xpkg.crossplane.io/crossplane-contrib/provider-helm:v0.19.0
  gitopsd types diff crd-old.yaml crd-new.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
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
						all = append(all, listedType{Source: name, Group: t.Group, Version: t.Version, Kind: t.Kind, Digest: t.Digest, Package: d.pkg, Controller: d.controller})
					}
				}
			}
			return o.list(cmd.OutOrStdout(), all, len(args) > 1)
		},
	}
	o.register(cmd)
	cmd.AddCommand(newTypesDiff(g), newTypesPin(g))
	return cmd
}

func (o *typesOptions) check() error {
	if o.output != "text" && o.output != "json" {
		return fmt.Errorf("--output %q: use text or json", o.output)
	}
	return nil
}

// listedType is one line of the list.
type listedType struct {
	Source  string `json:"source"`
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	Digest  string `json:"digest"`
	Package string `json:"package,omitempty"`
	// Controller is the image behind the type, by digest, where it is known.
	Controller string `json:"controller,omitempty"`
}

func (o *typesOptions) list(w io.Writer, all []listedType, several bool) error {
	if o.output == "json" {
		return writeJSON(w, all)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "KIND\tGROUP/VERSION\tDIGEST\tPACKAGE\tCONTROLLER"
	if several {
		head = "SOURCE\t" + head
	}
	fmt.Fprintln(t, head)
	for _, l := range all {
		if several {
			fmt.Fprintf(t, "%s\t", l.Source)
		}
		fmt.Fprintf(t, "%s\t%s/%s\t%s\t%s\t%s\n", l.Kind, l.Group, l.Version, l.Digest, cmp.Or(l.Package, "-"), cmp.Or(l.Controller, "-"))
	}
	return t.Flush()
}

func newTypesDiff(g *global) *cobra.Command {
	var o typesOptions
	var exitcode bool
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say what becomes of those who use the types when NEW replaces OLD",
		Long: `Diff compares the types of two sources: which are equivalent, which are not, and
what each difference means to stored objects, writers, readers and controllers.

` + typesSources + `

The exit status is 0, or 1 for an error; with --detailed-exitcode it is 2 when a
difference breaks somebody.`,
		Example: `  gitopsd types diff xpkg.example.org/acme/db:v1.0.0 xpkg.example.org/acme/db:v2.0.0
  gitopsd types diff staging prod`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
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
			compared, err := compat.CompareAll(byName(before), byName(after))
			if err != nil {
				return err
			}
			if err := o.writeComparison(cmd.OutOrStdout(), compared); err != nil {
				return err
			}
			if exitcode && slices.ContainsFunc(compared, func(c compat.Change) bool { return c.Compatibility == compat.Breaking }) {
				return exitError(2)
			}
			return nil
		},
	}
	o.register(cmd)
	cmd.Flags().BoolVar(&exitcode, "detailed-exitcode", false, "exit with status 2 when a difference breaks somebody")
	return cmd
}

func byName(all []definition) map[string]map[string]any {
	m := make(map[string]map[string]any)
	for _, d := range all {
		m[d.name] = d.tree
	}
	return m
}

func (o *typesOptions) writeComparison(w io.Writer, all []compat.Change) error {
	if o.output == "json" {
		return writeJSON(w, all)
	}
	for _, c := range all {
		if c.Change == compat.Same {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s: %s, %s\n", c.Name, c.Change, c.Compatibility); err != nil {
			return err
		}
		for _, f := range c.Findings {
			if _, err := fmt.Fprintf(w, "  %s\n", f); err != nil {
				return err
			}
		}
	}
	n := compat.Summarize(all)
	_, err := fmt.Fprintf(w, "%d the same, %d changed, %d added, %d removed; %d breaking\n", n.Same, n.Changed, n.Added, n.Removed, n.Breaking)
	return err
}

// definition is a CRD or XRD, and where it comes from.
type definition struct {
	name       string
	tree       map[string]any
	pkg        string
	controller string
}

// definitions reads the definitions of a source.
func (o *typesOptions) definitions(cmd *cobra.Command, g *global, source string) ([]definition, error) {
	if info, err := os.Stat(source); err == nil {
		return fromFiles(source, info.IsDir())
	}
	if root, err := local.FindRoot(o.tree.repo); err == nil && slices.Contains(registered(root), source) {
		return o.fromCluster(cmd, g, root, source)
	}
	ref, err := sources.ParseRef(source)
	if err != nil {
		return nil, fmt.Errorf("%q is neither a file, nor a registered cluster, nor a package: %w", source, err)
	}
	client, err := o.registry.client(g.log(false))
	if err != nil {
		return nil, err
	}
	return fromPackage(cmd.Context(), client, ref)
}

func fromFiles(name string, dir bool) ([]definition, error) {
	var found []definition
	read := func(name string) error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		docs, err := sources.DecodeYAML(f, sources.Limits{})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, doc := range docs {
			objects, err := manifest.FromDocument(doc, manifest.Origin{File: name})
			if err != nil {
				return err
			}
			for _, object := range objects {
				found = appendDefinition(found, object, "")
			}
		}
		return nil
	}
	if !dir {
		return found, read(name)
	}
	err := walkYAML(name, read)
	return found, err
}

func appendDefinition(to []definition, o *manifest.Object, controller string) []definition {
	id := o.ID()
	if !compat.Definition(id.Group, id.Kind) {
		return to
	}
	return append(to, definition{name: id.Name, tree: o.Tree(), pkg: o.Label("gitopsd.dev/package"), controller: controller})
}

// fromCluster takes what is rendered for a registered cluster.
func (o *typesOptions) fromCluster(cmd *cobra.Command, g *global, root, name string) ([]definition, error) {
	commit, files, err := tree(root)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	computer, err := o.registry.computer(g.log(false), resolve.Add, nil, []string{name})
	if err != nil {
		return nil, err
	}
	state, err := compute(cmd.Context(), cmd, computer, commit)
	if err != nil {
		return nil, err
	}
	c := state.Get(name)
	if c == nil || c.Objects == nil {
		return nil, state.Err()
	}
	controllers := make(map[string]string)
	for _, p := range c.Packages {
		controllers[p.Declaration.Name] = p.Runtime
	}
	var found []definition
	for _, object := range c.Objects.All() {
		found = appendDefinition(found, object, controllers[object.Label("gitopsd.dev/package")])
	}
	return found, errors.Join(c.Faults...)
}

func fromPackage(ctx context.Context, client *oci.Client, ref sources.Ref) ([]definition, error) {
	digest, err := client.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	pkg, err := xpkg.Read(ctx, client, ref.Repository, digest)
	if err != nil {
		return nil, err
	}
	var found []definition
	for _, doc := range pkg.Documents {
		o, err := manifest.New(doc.Tree, manifest.Origin{Package: sources.Pin{Ref: ref, Digest: digest}})
		if err != nil {
			return nil, err
		}
		found = appendDefinition(found, o, "")
	}
	for i := range found {
		found[i].pkg = pkg.Meta.Name
		switch {
		case pkg.Meta.Kind != sources.Provider:
		case pkg.Meta.Image != "":
			found[i].controller = pkg.Meta.Image
		default:
			found[i].controller = ref.Repository + "@" + string(digest)
		}
	}
	return found, nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// walkYAML calls do for each YAML or JSON file below a directory.
func walkYAML(dir string, do func(name string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := dir + string(os.PathSeparator) + e.Name()
		switch {
		case e.IsDir():
			err = walkYAML(name, do)
		case strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"), strings.HasSuffix(name, ".json"):
			err = do(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
