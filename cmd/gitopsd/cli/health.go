package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/sources/errgroup"
)

// healthOptions are the flags of `gitopsd health`.
type healthOptions struct {
	placeOptions
	crds   []string
	output outputFlag
}

func newHealth() *cobra.Command {
	var o healthOptions
	cmd := &cobra.Command{
		Use:   "health OBJECT|FILE...",
		Short: "Say whether objects are healthy, and by which rule",
		Long: `Health judges objects as ` + "`gitopsd run`" + ` does when it waits for them: healthy, in
progress, failed or unknown, with the reason and the rule that decided. (Of a package
that Crossplane installs, run also verifies the revision that is active.)

A FILE is YAML or JSON, a directory of it, or - for the standard input, as from
"kubectl get -o yaml". No cluster is needed. Types are taken from the definitions among
the documents, and from --crds. Objects in a file are never late.

An OBJECT is written as in plans, kind[.group]/[namespace/]name. It is read, with its
definition, from every registered cluster, from those that --cluster names, or from the
context of your own kubeconfig that --context names.

The first of these that has a rule for a kind decides: the annotation ` + manifest.HealthAnnotation + `
on its definition, spec.health of the cluster in clusters.yaml (with a FILE: of the
one that --cluster names), rules that gitopsd brings, general rules.

The exit status is 0 if all are healthy, 2 if one is in progress or failed, and 1 for
an error or if no rule can judge one.`,
		Example: `  gitopsd health deployment.apps/web/frontend
  gitopsd health --context my-context bucket.s3.aws.upbound.io/logs
  kubectl get rollouts -A -o yaml | gitopsd health -
  gitopsd health --crds crds/ gadget.yaml -o json | jq '.[].status'`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: orFiles(completeObjects(&o.tree, new(registryOptions))),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	o.register(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&o.crds, "crds", nil, "file or directory with definitions of objects' types; may be given more than once")
	o.output.register(cmd, "text", "json")
	return cmd
}

// judged is the verdict on one object.
type judged struct {
	// Cluster is the cluster or context; empty for a file.
	Cluster string        `json:"cluster,omitempty"`
	File    string        `json:"file,omitempty"`
	Object  string        `json:"object"`
	Status  health.Status `json:"status"`
	Reason  string        `json:"reason"`
	Rule    string        `json:"rule"`
}

// String returns the verdict on one line.
func (j judged) String() string {
	words := map[health.Status]string{health.Healthy: "healthy", health.InProgress: "in progress", health.Failed: "failed", health.Unknown: "unknown"}
	where := ""
	if j.Cluster != "" {
		where = " in " + j.Cluster
	}
	return fmt.Sprintf("%s%s: %s: %s (rule: %s)", j.Object, where, words[j.Status], j.Reason, j.Rule)
}

func (o *healthOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.output.check(); err != nil {
		return err
	}
	var found []judged
	var errs []error
	files, objects, err := sortArguments(args)
	if err != nil {
		return err
	}
	if len(files) > 0 {
		some, err := o.files(cmd.Context(), cmd.InOrStdin(), files)
		found, errs = append(found, some...), append(errs, err)
	} else if f := cmd.Flags().Lookup("crds"); f.Changed && !annotated(f, fromVariable) {
		return errors.New("--crds: the definitions of objects in clusters are read there; leave the flag out")
	}
	if len(objects) > 0 {
		some, err := o.objects(cmd, objects)
		found, errs = append(found, some...), append(errs, err)
	}
	if err := o.write(cmd.OutOrStdout(), found); err != nil {
		return err
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	unknown := 0
	for _, j := range found {
		switch j.Status {
		case health.InProgress, health.Failed:
			return exitError(2)
		case health.Unknown:
			unknown++
		}
	}
	if unknown > 0 {
		return fmt.Errorf("%d of %d objects cannot be judged: give their kind a rule, with the annotation %s on its definition or spec.health of the cluster in %s",
			unknown, len(found), manifest.HealthAnnotation, sources.RegistryFile)
	}
	return nil
}

func (o *healthOptions) write(w io.Writer, found []judged) error {
	if o.output.format == "json" {
		return show.JSON(w, append([]judged{}, found...)) // a list, also if empty
	}
	for _, j := range found {
		if _, err := fmt.Fprintln(w, j); err != nil {
			return err
		}
	}
	return nil
}

// sortArguments separates files from objects.
func sortArguments(args []string) (files, objects []string, err error) {
	for _, arg := range args {
		_, missing := os.Stat(arg)
		switch kind, name, isObject := strings.Cut(arg, "/"); {
		case arg == "-" || missing == nil:
			files = append(files, arg)
		case !isObject || kind == "" || kind == "." || kind == ".." || name == "" || strings.Count(name, "/") > 1 || isYAML(arg):
			return nil, nil, fmt.Errorf("%q is neither a file, nor an object: want kind[.group]/[namespace/]name, as plans show objects", arg)
		default:
			objects = append(objects, arg)
		}
	}
	return files, objects, nil
}

// files judges the objects in files.
func (o *healthOptions) files(ctx context.Context, stdin io.Reader, names []string) ([]judged, error) {
	rules := new(health.Custom)
	var definitions []*manifest.Object
	for _, name := range o.crds {
		objects, err := readObjects(nil, name)
		if err != nil {
			return nil, fmt.Errorf("--crds: %w", err)
		}
		if !slices.ContainsFunc(objects, func(d *manifest.Object) bool { return d.ID().Is(manifest.Definitions...) }) {
			return nil, fmt.Errorf("--crds: %s has no definition", name)
		}
		definitions = append(definitions, objects...)
	}
	all, err := readObjects(stdin, names...)
	if err != nil {
		return nil, err
	}
	definitions = append(definitions, all...)
	definitions = slices.DeleteFunc(definitions, func(d *manifest.Object) bool { return !d.ID().Is(manifest.Definitions...) })
	var errs []error
	for _, d := range definitions {
		if err := rules.AddAnnotated(d.Tree()); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", d.Origin(), d.ID(), err))
		}
	}
	define := func(gk manifest.GroupKind) map[string]any {
		for _, d := range definitions {
			if types.Read(d.Tree()).Defines(gk) {
				return d.Tree()
			}
		}
		return nil
	}
	if len(o.clusters) > 1 {
		return nil, errors.New("--cluster: objects in files are judged by the rules of one cluster; name one")
	}
	if len(o.clusters) == 1 {
		_, list, err := o.registry(ctx)
		if len(list) == 0 {
			return nil, err
		}
		errs = append(errs, err, addRules(rules, list[0], define))
	}
	var found []judged
	for _, object := range all {
		if object.ID().Is(manifest.Definitions...) && object.Tree()["status"] == nil {
			continue // it only defines a type
		}
		var t *health.Type
		if d := define(kindOf(object.ID())); d != nil {
			_, version := manifest.GroupVersion(object.APIVersion())
			t = health.NewType(d, version)
		}
		v := health.Rules{Custom: rules.Of}.Of(object.Tree(), t, time.Time{})
		found = append(found, judge(v, judged{File: object.Origin().File, Object: object.ID().String()}))
	}
	if len(found) == 0 {
		errs = append(errs, fmt.Errorf("%s: there is no object to judge, only definitions or nothing", strings.Join(names, ", ")))
	}
	return found, errors.Join(errs...)
}

// judge adds a verdict to j. The reason is cleaned, since it may be an object's text.
func judge(v health.Verdict, j judged) judged {
	j.Status, j.Rule = v.Status, v.Rule
	j.Reason = oneLine(v.Reason)
	return j
}

// oneLine returns a text from a cluster on one line, without control characters.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, strings.Join(strings.Fields(text), " "))
}

func kindOf(id manifest.ID) manifest.GroupKind {
	return manifest.GroupKind{Group: id.Group, Kind: id.Kind}
}

// addRules adds the rules of a cluster's registration.
func addRules(rules *health.Custom, cl clusters.Cluster, define func(manifest.GroupKind) map[string]any) error {
	var errs []error
	for _, r := range desired.HealthRules(&cl.Spec) {
		if err := rules.Add(r, define(r.Kind)); err != nil {
			errs = append(errs, fmt.Errorf("cluster %s: %s: %w", cl.Name, r.From, err))
		}
	}
	return errors.Join(errs...)
}

// objects judges objects in clusters. The error is about objects and clusters that cannot be
// read.
func (o *healthOptions) objects(cmd *cobra.Command, names []string) ([]judged, error) {
	list, faults := o.places(cmd.Context())
	progress := startProgress(cmd.ErrOrStderr())
	defer progress.stop()
	progress.step("reading %s", strings.Join(names, ", "))
	found := make([][]*judged, len(list)) // by cluster and name; nil if it is not there
	missing := make([][]error, len(list)) // why, in the same order
	errs := make([]error, len(list))
	var g errgroup.Group
	g.SetLimit(readAtOnce)
	for i, p := range list {
		g.Go(func() error {
			found[i], missing[i], errs[i] = p.judge(cmd.Context(), names)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var all []judged
	for n := range names {
		var absent []error
		there := false
		for i := range list {
			switch {
			case errs[i] != nil && found[i] == nil: // the cluster cannot be read
			case found[i][n] != nil:
				all = append(all, *found[i][n])
				there = true
			case missing[i][n] != nil:
				absent = append(absent, missing[i][n])
			}
		}
		// Not every object is in every cluster of the fleet.
		if !there || len(o.clusters) > 0 {
			errs = append(errs, absent...)
		}
	}
	return all, errors.Join(append(errs, faults)...)
}

// errNoKind is in the error for an object of a kind that a cluster does not serve.
var errNoKind = errors.New("the cluster serves no such kind")

// judge judges objects of one cluster. For each name, found has the verdict or missing has
// the reason why there is no such object. An object that cannot be read has neither.
func (p asked) judge(ctx context.Context, names []string) (found []*judged, missing []error, err error) {
	client, err := p.connect(ctx)
	if err != nil {
		return nil, nil, problem.In(p.Name, err)
	}
	defer client.Close()
	served, err := client.All(ctx)
	if err != nil {
		return nil, nil, problem.In(p.Name, err)
	}
	found, missing = make([]*judged, len(names)), make([]error, len(names))
	var errs []error
	for i, name := range names {
		v, id, err := p.look(ctx, client, served, name)
		switch {
		case err == nil:
			j := judge(v, judged{Cluster: p.Name, Object: id.String()})
			found[i] = &j
		case errors.Is(err, errNoKind), kube.IsMissing(err):
			missing[i] = problem.In(p.Name, err)
		default:
			errs = append(errs, problem.In(p.Name, err))
		}
	}
	return found, missing, errors.Join(errs...)
}

func (p asked) look(ctx context.Context, client *kube.Client, served *kube.Everything, name string) (health.Verdict, manifest.ID, error) {
	t, id, err := parseObject(served, name)
	if err != nil {
		return health.Verdict{}, id, err
	}
	tree, _, err := client.Get(ctx, t, id)
	if err != nil {
		return health.Verdict{}, id, err
	}
	var definition map[string]any
	hidden := ""
	if !manifest.BuiltIn(t.Group) {
		// Without the right to read definitions, the object alone is judged.
		definition, err = client.Definition(ctx, t.Group, t.Kind)
		switch {
		case kube.ClassOf(err) == kube.Forbidden:
			hidden = fmt.Sprintf("; its definition could say more, and you have no right to read it (get %s)", manifest.CRD.ID("", t.Resource+"."+t.Group))
		case err != nil:
			return health.Verdict{}, id, err
		}
	}
	rules := new(health.Custom)
	define := func(gk manifest.GroupKind) map[string]any {
		if gk == kindOf(id) {
			return definition
		}
		return nil
	}
	var typ *health.Type
	if definition != nil {
		typ = health.NewType(definition, t.Version)
		_ = rules.AddAnnotated(definition) // the verdict says what is wrong with it
	}
	own := p.Cluster
	own.Spec.Health = slices.DeleteFunc(slices.Clone(own.Spec.Health), func(r clusters.HealthRule) bool { return r.Group != id.Group || r.Kind != id.Kind })
	_ = addRules(rules, own, define) // as above
	v := health.Rules{Custom: rules.Of}.Of(tree, typ, time.Now())
	if v.Status == health.Unknown {
		v.Reason += hidden
	}
	return v, id, nil
}

// parseObject returns the served type and the ID of an object that is written as
// kind[.group]/[namespace/]name. The kind may be the plural or, for Kubernetes' own kinds, the
// short name. Case does not matter. The error wraps errNoKind if nothing serves the kind.
func parseObject(served *kube.Everything, text string) (kube.Type, manifest.ID, error) {
	word, rest, _ := strings.Cut(text, "/")
	kind, group, hasGroup := strings.Cut(word, ".")
	builtIn, _ := manifest.BuiltInKind(kind)
	var fits []kube.Type
	var kinds []string
	for _, t := range served.Types {
		named := strings.EqualFold(t.Kind, kind) || strings.EqualFold(t.Resource, kind) || builtIn == manifest.GroupKind{Group: t.Group, Kind: t.Kind}
		if named && (!hasGroup || t.Group == group) {
			fits = append(fits, t)
		}
		kinds = append(kinds, strings.ToLower(t.Kind))
	}
	slices.SortFunc(fits, func(a, b kube.Type) int { return cmp.Compare(a.Group, b.Group) })
	switch {
	case len(fits) == 0 && len(served.Stale) > 0:
		return kube.Type{}, manifest.ID{}, fmt.Errorf("%s: the cluster serves no such kind, as far as it can say: %s do not answer", text, strings.Join(served.Stale, ", "))
	case len(fits) == 0:
		return kube.Type{}, manifest.ID{}, fmt.Errorf("%s: %w%s", text, errNoKind, sources.Meant(kind, kinds))
	case len(fits) > 1 && fits[0].Group != "":
		var names []string
		for _, t := range fits {
			names = append(names, strings.ToLower(t.Kind)+"."+t.Group)
		}
		return kube.Type{}, manifest.ID{}, fmt.Errorf("%s: the cluster serves several such kinds: write %s", text, strings.Join(names, " or "))
	}
	t := fits[0]
	namespace, name, both := strings.Cut(rest, "/")
	switch {
	case both && !t.Namespaced:
		return t, manifest.ID{}, fmt.Errorf("%s: a %s has no namespace: write %s/%s", text, t.Kind, word, name)
	case !both && t.Namespaced:
		return t, manifest.ID{}, fmt.Errorf("%s: a %s has a namespace: write %s/NAMESPACE/%s", text, t.Kind, word, rest)
	case !both:
		namespace, name = "", rest
	}
	return t, t.ID(namespace, name), nil
}
