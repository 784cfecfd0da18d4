package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// convertOptions are the flags of `gitopsd convert`.
type convertOptions struct {
	typesOptions
	rules []string
	crds  []string
	to    string
	check bool
	test  string
}

func newConvert(g *global) *cobra.Command {
	var o convertOptions
	cmd := &cobra.Command{
		Use:   "convert -f RULES --to VERSION FILE...",
		Short: "Convert objects between versions of their type by conversion rules, and prove the rules",
		Long: `Convert converts objects to another version of their CustomResourceDefinition, by
conversion rules (APIConversionRules), and prints them. It needs no cluster. A FILE is
YAML or JSON, a directory of it, or - for the standard input, as from
"kubectl get -o yaml". Messages on stderr say which values are kept in an annotation
because the version cannot hold them, and which rules failed.

The definition is read from the files of the rules or from their directory, or else
from --crd: a file or directory, a package (REPOSITORY:TAG or REPOSITORY@DIGEST), or the
name of a registered cluster.

--check compiles the rules, and tries them on objects that it generates from the
schemas: there and back, with edits in between. It shows the smallest object that
does not come back as it was, that has fields which the other version lacks, or that
is not valid there. It tries FILEs, too. Two runs try the same objects.

--test runs examples. Each file below DIR has one object in several versions; the
first document is converted to the version of each of the others, and compared.

The exit status is 0, or 1 for an error, or 2 if --check or --test found something.`,
		Example: `  gitopsd convert -f rules.yaml --to v2 widget.yaml
  kubectl get widgets -A -o yaml | gitopsd convert -f rules.yaml --to v2 -
  gitopsd convert -f rules.yaml --check
  gitopsd convert -f rules.yaml --test examples/`,
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, g, args) },
	}
	o.fleetOptions.register(cmd)
	f := cmd.Flags()
	f.StringSliceVarP(&o.rules, "filename", "f", nil, "file or directory with conversion rules (required); may be given more than once")
	f.StringSliceVar(&o.crds, "crd", nil, "file, directory, package or cluster that has the definition; may be given more than once (default: the directory of the rules)")
	f.StringVar(&o.to, "to", "", "version to convert to")
	f.BoolVar(&o.check, "check", false, "compile the rules, and try them on generated objects")
	f.StringVar(&o.test, "test", "", "directory with examples to run, or one file")
	annotate(f, "to", yields, "check", "test")
	annotate(f, "check", yields, "to", "test")
	annotate(f, "test", yields, "to", "check")
	o.output.register(cmd, "yaml", "json")
	return cmd
}

func (o *convertOptions) run(cmd *cobra.Command, g *global, args []string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	switch {
	case len(o.rules) == 0:
		return errors.New("-f is required: the file with the conversion rules")
	case o.test != "" && (o.check || len(args) > 0):
		return errors.New("--test runs the examples of a directory; leave out --check and other files")
	case o.to != "" && (o.check || o.test != ""):
		return errors.New("--to is for converting; leave it out with --check and --test")
	case o.to == "" && !o.check && o.test == "":
		return errors.New("--to is required: the version to convert to (or give --check or --test)")
	case o.to != "" && len(args) == 0:
		return errors.New("name the objects to convert: a file, a directory, or - for the standard input")
	}
	sets, err := o.compile(cmd, g)
	if err != nil {
		return err
	}
	switch {
	case o.test != "":
		return o.runTests(cmd.OutOrStdout(), sets)
	case o.check:
		return o.prove(cmd, sets, args)
	}
	return o.convert(cmd, sets, args)
}

// ruleSet is a definition with its rules.
type ruleSet struct {
	definition types.Definition
	tree       map[string]any
	documents  []conversion.Document
	*conversion.Set
}

// compile reads the rules and their definitions. A document without a definition is an error.
func (o *convertOptions) compile(cmd *cobra.Command, g *global) ([]ruleSet, error) {
	documents, definitions, err := readRules(o.rules)
	if err != nil {
		return nil, err
	}
	if len(documents) == 0 {
		return nil, fmt.Errorf("%s: there are no conversion rules: no document of the kind APIConversionRules", strings.Join(o.rules, ", "))
	}
	for _, source := range o.crds {
		found, err := o.definitionsOf(cmd, g, source)
		if err != nil {
			return nil, fmt.Errorf("--crd: %w", err)
		}
		definitions = append(definitions, found...)
	}
	if len(definitions) == 0 && len(o.crds) == 0 {
		if definitions, err = definitionsBeside(o.rules); err != nil {
			return nil, err
		}
	}
	var sets []ruleSet
	var errs []error
	seen := make(map[string]map[string]any)
	for _, tree := range definitions {
		name := manifest.Text(tree, "metadata", "name")
		if before, again := seen[name]; again {
			if !exact.Equal(before, tree) {
				errs = append(errs, fmt.Errorf("there are two definitions of %q, and they differ; give one of them with -f or --crd", name))
			}
			continue
		}
		seen[name] = tree
		s := ruleSet{tree: tree}
		for _, d := range documents {
			if conversion.Belongs(d.Tree, name) {
				s.documents = append(s.documents, d)
			}
		}
		if len(s.documents) == 0 {
			continue
		}
		if conversion.IsResourceSchema(tree) {
			if s.tree, err = conversion.Definition(tree, conversion.Hub(s.documents)); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		s.definition = types.Read(s.tree)
		if s.Set, err = conversion.Compile(s.tree, s.documents); err != nil {
			errs = append(errs, err)
			continue
		}
		sets = append(sets, s)
	}
	errs = append(errs, unclaimed(documents, definitions, len(o.crds) > 0)...)
	return sets, errors.Join(errs...)
}

// definitionsOf reads the definitions of a file, directory, package or cluster.
func (o *convertOptions) definitionsOf(cmd *cobra.Command, g *global, source string) ([]map[string]any, error) {
	if _, err := os.Stat(source); err == nil {
		_, definitions, err := readRules([]string{source})
		return definitions, err
	}
	found, err := o.definitions(cmd, g, source)
	var definitions []map[string]any
	for _, d := range found {
		if defines(d.tree) {
			definitions = append(definitions, d.tree)
		}
	}
	return definitions, err
}

// unclaimed returns an error for each document that belongs to no definition. given reports
// whether --crd was given.
func unclaimed(documents []conversion.Document, definitions []map[string]any, given bool) []error {
	var errs []error
	for _, d := range documents {
		name := manifest.Text(d.Tree, "metadata", "name")
		if label, ok := manifest.Mapping(d.Tree, "metadata", "labels")[rules.Label].(string); ok {
			name = label
		}
		if slices.ContainsFunc(definitions, func(tree map[string]any) bool {
			return conversion.Belongs(d.Tree, manifest.Text(tree, "metadata", "name"))
		}) {
			continue
		}
		advice := "name the file, package or cluster that has it with --crd"
		if given {
			advice = "--crd does not have it either"
		}
		errs = append(errs, fmt.Errorf("%s: the rules are for %q, and no definition has that name; %s", d.Origin, name, advice))
	}
	return errs
}

// readRules reads the rules and the definitions in files.
func readRules(names []string) (documents []conversion.Document, definitions []map[string]any, err error) {
	for _, name := range names {
		err := eachDocument(name, nil, func(doc sources.Document, origin manifest.Origin) error {
			switch {
			case rules.Is(doc.Tree):
				documents = append(documents, conversion.Document{Origin: origin, Tree: doc.Tree})
			case defines(doc.Tree):
				definitions = append(definitions, doc.Tree)
			}
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return documents, definitions, nil
}

// definitionsBeside reads the definitions in the directories of files.
func definitionsBeside(names []string) ([]map[string]any, error) {
	var definitions []map[string]any
	seen := make(map[string]bool)
	for _, name := range names {
		dir := filepath.Dir(name)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.IsDir() || !isYAML(e.Name()) {
				continue
			}
			err := eachDocument(filepath.Join(dir, e.Name()), nil, func(doc sources.Document, _ manifest.Origin) error {
				if defines(doc.Tree) {
					definitions = append(definitions, doc.Tree)
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return definitions, nil
}

// defines reports whether a document is a definition that can have conversion rules.
func defines(tree map[string]any) bool {
	return manifest.KindOf(tree) == manifest.CRD || conversion.IsResourceSchema(tree)
}

// rulesFor returns the rules for an object, nil if there are none.
func rulesFor(sets []ruleSet, object *manifest.Object) *ruleSet {
	for i := range sets {
		if sets[i].definition.Defines(kindOf(object.ID())) {
			return &sets[i]
		}
	}
	return nil
}

// convert converts the objects in files, and prints them.
func (o *convertOptions) convert(cmd *cobra.Command, sets []ruleSet, names []string) error {
	var converted [][]byte
	others := 0
	for _, name := range names {
		objects, err := readObjects(cmd.InOrStdin(), name)
		if err != nil {
			return err
		}
		for _, object := range objects {
			s := rulesFor(sets, object)
			if s == nil {
				others++
				continue
			}
			tree, report, err := s.Convert(object.Tree(), o.to)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", object.Origin(), object.ID(), err)
			}
			writeReport(cmd.ErrOrStderr(), object, report)
			text, err := o.text(tree, object.Origin())
			if err != nil {
				return fmt.Errorf("%s: %s: %w", object.Origin(), object.ID(), err)
			}
			converted = append(converted, text)
		}
	}
	if len(converted) == 0 {
		return fmt.Errorf("%s: there is no object of %s, which the rules are for", strings.Join(names, ", "), setNames(sets))
	}
	if others > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "left out %s not of %s\n", prose.Count(others, "object"), setNames(sets))
	}
	for i, text := range converted {
		if i > 0 && o.output.format == "yaml" {
			text = append([]byte("---\n"), text...)
		}
		if _, err := cmd.OutOrStdout().Write(text); err != nil {
			return err
		}
	}
	return nil
}

func setNames(sets []ruleSet) string {
	names := make([]string, len(sets))
	for i, s := range sets {
		names[i] = s.Name()
	}
	return strings.Join(names, ", ")
}

// text returns a converted object as YAML or JSON.
func (o *convertOptions) text(tree map[string]any, origin manifest.Origin) ([]byte, error) {
	tree = proof.Numeric(tree)
	if o.output.format == "json" {
		var b strings.Builder
		err := show.JSON(&b, tree)
		return []byte(b.String()), err
	}
	object, err := manifest.New(tree, origin)
	if err != nil {
		return nil, err
	}
	return object.YAML()
}

// writeReport writes which fields were lost, kept and restored, and which rules failed.
func writeReport(w io.Writer, object *manifest.Object, r conversion.Report) {
	w = show.Cleaned(w)
	say := func(notes []conversion.Note, what func(conversion.Note) string) {
		for _, n := range notes {
			fmt.Fprintf(w, "%s: %s: %s -> %s: %s\n", object.Origin(), object.ID(), n.From, n.To, what(n))
		}
	}
	say(r.Failed, func(n conversion.Note) string {
		return fmt.Sprintf("%s is left out, since %s failed: %s", n.Path, n.Rule, n.Err)
	})
	say(r.Ignored, func(n conversion.Note) string { return n.Path + ": " + n.Err })
	say(r.Dropped, func(n conversion.Note) string {
		if n.Err != "" {
			return fmt.Sprintf("%s is lost: %s", n.Path, n.Err)
		}
		return fmt.Sprintf("%s is lost: with its %d bytes the annotations would be too long", n.Path, n.Bytes)
	})
	say(r.Stashed, func(n conversion.Note) string {
		return fmt.Sprintf("%s is kept in an annotation (%d bytes)", n.Path, n.Bytes)
	})
	say(r.Restored, func(n conversion.Note) string { return n.Path + " is restored from the annotation" })
	say(r.Stale, func(n conversion.Note) string {
		return fmt.Sprintf("%s is not restored from the annotation: %s", n.Path, n.Err)
	})
}

// prove tries the rules, and prints the results.
func (o *convertOptions) prove(cmd *cobra.Command, sets []ruleSet, names []string) error {
	given, err := readObjects(cmd.InOrStdin(), names...)
	if err != nil {
		return err
	}
	failed := false
	w := show.Cleaned(cmd.OutOrStdout()) // it shows values of objects
	for i := range sets {
		s := &sets[i]
		c := proof.Config{Rules: s.Set, Documents: s.documents, Definition: s.tree, Stash: manifest.ConversionStashAnnotation}
		for _, object := range given {
			if rulesFor(sets, object) == s {
				c.Objects = append(c.Objects, object.Tree())
			}
		}
		if len(given) > 0 && len(c.Objects) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: there is no object of %s\n", strings.Join(names, ", "), s.Name())
		}
		for _, warning := range s.Warnings() {
			fmt.Fprintf(show.Cleaned(cmd.ErrOrStderr()), "%s: %s\n", s.Name(), warning)
		}
		result, err := proof.Run(cmd.Context(), c)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name(), err)
		}
		failed = failed || result.Failed()
		if _, err := fmt.Fprintf(w, "%s: %s\n", s.Name(), result); err != nil {
			return err
		}
	}
	if failed {
		return exitError(2)
	}
	return nil
}

// runTests runs the examples of a directory.
func (o *convertOptions) runTests(w io.Writer, sets []ruleSet) error {
	var files []string
	note := func(name string) error {
		files = append(files, name)
		return nil
	}
	if info, err := os.Stat(o.test); err == nil && info.IsDir() {
		if err := walkYAML(o.test, note); err != nil {
			return err
		}
	} else {
		files = []string{o.test}
	}
	w = show.Cleaned(w)
	tests, failed := 0, 0
	for _, name := range files {
		objects, err := readObjects(nil, name)
		if err != nil {
			return err
		}
		if len(objects) < 2 {
			return fmt.Errorf("%s: an example has one object in several versions: the first is converted to the version of each of the others", name)
		}
		s := rulesFor(sets, objects[0])
		if s == nil {
			return fmt.Errorf("%s: %s is not of %s, which the rules are for", objects[0].Origin(), objects[0].ID(), setNames(sets))
		}
		for _, want := range objects[1:] {
			tests++
			have, report, err := s.Convert(objects[0].Tree(), want.Version())
			if err != nil {
				return fmt.Errorf("%s: %s: %w", want.Origin(), want.ID(), err)
			}
			if want.Annotation(manifest.ConversionStashAnnotation) == "" {
				have = proof.WithoutAnnotation(have, manifest.ConversionStashAnnotation)
			}
			differences := proof.Compare(want.Tree(), have)
			result := "ok  "
			if len(differences) > 0 {
				failed++
				result = "FAIL"
			}
			fmt.Fprintf(w, "%s %s: %s -> %s\n", result, want.Origin(), objects[0].Version(), want.Version())
			for _, d := range differences {
				fmt.Fprintf(w, "       %s\n", strings.ReplaceAll(d.String(), "\n", "\n       "))
			}
			if len(differences) > 0 {
				for _, n := range report.Failed {
					fmt.Fprintf(w, "       %s failed: %s\n", n.Rule, n.Err)
				}
			}
		}
	}
	switch {
	case tests == 0:
		return fmt.Errorf("%s: there are no examples", o.test)
	case failed > 0:
		fmt.Fprintf(w, "%d of %d examples failed (- wanted, + converted)\n", failed, tests)
		return exitError(2)
	}
	return nil
}
