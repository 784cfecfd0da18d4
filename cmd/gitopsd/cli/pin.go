package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/edit"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

type pinOptions struct {
	fleetOptions
	cluster string
	context string
	update  bool
	check   bool
	// behaviour also pins objects to the controllers of their types.
	behaviour bool
}

func newTypesPin(g *global) *cobra.Command {
	var o pinOptions
	cmd := &cobra.Command{
		Use:   "pin FILE...",
		Short: "Pin objects to their types by an annotation",
		Long: `Pin gives each object in the files the annotation ` + manifest.PinAnnotation + ` with the digest of
its type. From then on ` + "`gitopsd plan` and `gitopsd run`" + ` refuse the object in a cluster
where its type differs, for instance by another version of the package.

The types are those that the working tree renders for the registered clusters,
patches included. If the clusters differ, name one with --cluster, or use the
types that a live cluster serves (--context). Objects whose types no CRD defines
stay as they are.

With --behaviour objects also get the annotation ` + manifest.ControllerAnnotation + `, with the
digest of what acts on their type, as ` + "`gitopsd types`" + ` lists it: the controller's images
and settings, or Compositions and Functions. (On a CRD or XRD this annotation names the
controller, and stays as it is.) Objects with such a pin keep it up to date without the
flag. Controllers are known for registered clusters only, not with --context.

An existing pin to another type or behaviour is an error; --update renews it.
Nothing else in the files changes.`,
		Example: `  gitopsd types pin clusters/dev/bucket.yaml
  gitopsd types pin --behaviour --cluster prod clusters/base/database.yaml
  gitopsd types pin --update --cluster prod clusters/base/*.yaml
  gitopsd types pin --check clusters/base/*.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.cluster != "" && o.context != "":
				return errors.New("--cluster takes the types as they are rendered, --context as they are live: use one of them")
			case o.behaviour && o.context != "":
				return errors.New("--behaviour takes what is rendered for registered clusters, and --context types as they are live: use one of them")
			case o.check && o.update:
				return errors.New("--check writes nothing and cannot be combined with --update")
			}
			return o.run(cmd, g, args)
		},
	}
	o.register(cmd)
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "use the types that are rendered for this registered cluster (default: any, if all agree)")
	f.StringVar(&o.context, "context", "", "use the types that a live cluster serves, by this context of your own kubeconfig")
	f.BoolVar(&o.behaviour, "behaviour", false, "pin objects to the controllers behind their types, too")
	f.BoolVar(&o.update, "update", false, "renew pins that name another type or behaviour")
	f.BoolVar(&o.check, "check", false, "write nothing; exit with status 1 if an object is not pinned, or pinned to another type or behaviour")
	refuseEmpty(f, "context")
	annotate(f, "update", noVariable)  // of lock it names a package
	annotate(f, "context", noVariable) // elsewhere it is cluster=context
	annotate(f, "cluster", yields, "context")
	annotate(f, "behaviour", yields, "context")
	o.tree.namesClusters(cmd)
	completeFlag(cmd, "context", completeContexts)
	return cmd
}

// findDigest returns the digest of a type or of what acts on it, "" if nothing defines the type.
// where is the place that was searched, as in "cluster dev".
type findDigest func(gvk schema.GroupVersionKind) (digest, where string, err error)

func (o *pinOptions) run(cmd *cobra.Command, g *global, files []string) error {
	pins := []*pinning{{options: o, annotation: manifest.PinAnnotation, flag: "gitopsd types pin", all: true}}
	var err error
	if o.context != "" {
		var done func()
		if pins[0].find, done, err = o.live(cmd.Context()); err == nil {
			defer done()
		}
	} else {
		behaviour := &pinning{options: o, annotation: manifest.ControllerAnnotation, what: "the controller of ", flag: "gitopsd types pin --behaviour", all: o.behaviour}
		pins = append(pins, behaviour)
		pins[0].find, behaviour.find, err = o.rendered(cmd, g)
	}
	if err != nil {
		return err
	}
	edited := make([][]byte, len(files))
	var faults, done []string
	for i, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		right := 0
		for _, p := range pins {
			p.faults, p.done, p.right = nil, nil, 0
			p.note = func(format string, args ...any) {
				fmt.Fprintf(show.Cleaned(cmd.ErrOrStderr()), "gitopsd: "+format+"\n", args...)
			}
			changed, err := p.file(name, text)
			if err != nil {
				return err
			}
			if changed != nil {
				text, edited[i] = changed, changed
			}
			faults, done = append(faults, p.faults...), append(done, p.done...)
			right += p.right
		}
		if edited[i] == nil && right > 0 {
			done = append(done, fmt.Sprintf("%s: %s as it is", name, prose.Agree(right, "pin stays", "pins stay")))
		}
	}
	if len(faults) > 0 {
		return listed(faults) // and nothing is written
	}
	for i, name := range files {
		if edited[i] == nil {
			continue
		}
		if err := replaceFile(name, edited[i]); err != nil {
			return err
		}
	}
	for _, l := range done {
		if _, err := fmt.Fprintln(show.Cleaned(cmd.OutOrStdout()), l); err != nil {
			return err
		}
	}
	return nil
}

// pinning writes one kind of pin into files.
type pinning struct {
	options *pinOptions
	// annotation has the pin. what precedes the type's name in messages. flag is the command
	// that writes the pin.
	annotation, what, flag string
	// all pins objects that are not pinned yet.
	all  bool
	find findDigest
	note func(format string, args ...any)
	// For one file: faults prevent all files from being written, done are the pins that were
	// set, and right counts those that are up to date.
	faults, done []string
	right        int
}

// file returns the edited text of a file, nil if there is nothing to write.
func (p *pinning) file(name string, text []byte) ([]byte, error) {
	written := 0
	edited, err := edit.Annotate(text, p.annotation, func(obj edit.Object) (string, error) {
		digest, err := p.object(name, obj)
		switch {
		case digest == "":
		case digest == obj.Value:
			p.right++
		default:
			written++
		}
		return digest, err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if written > 0 && !p.options.check {
		return edited, nil
	}
	return nil, nil
}

// object returns the digest for an object's pin, or "" to leave it alone.
func (p *pinning) object(file string, obj edit.Object) (string, error) {
	if obj.APIVersion == "" || obj.Kind == "" || obj.Name == "" {
		return "", nil // not an object: a patch, a values file, a kustomization
	}
	fault := func(format string, args ...any) {
		p.faults = append(p.faults, fmt.Sprintf("%s:%d: %s %s", file, obj.Line, obj, fmt.Sprintf(format, args...)))
	}
	gvk := schema.FromAPIVersionAndKind(obj.APIVersion, obj.Kind)
	if p.annotation == manifest.ControllerAnnotation {
		gk := manifest.GroupKind(gvk.GroupKind())
		if !p.all && obj.Value == "" || slices.Contains(manifest.Definitions, gk) || gk == manifest.MRD {
			return "", nil
		}
	}
	name := p.what + gvk.GroupVersion().String() + " " + gvk.Kind
	id := manifest.ID{Group: gvk.Group, Kind: gvk.Kind, Name: obj.Name}
	custom := plan.StageOf(id) == plan.Custom && !ours(gvk.Group) && p.what == ""
	digest, where, err := p.find(gvk)
	switch {
	case errors.Is(err, errPartlyKnown) && obj.Value == "" && !custom:
		return "", nil
	case err != nil:
		fault("cannot be pinned: %v", err)
		return "", nil
	case digest == "" && obj.Value != "":
		fault("is pinned, but no CRD defines %s in %s; remove the annotation %s", gvk.GroupVersion().String()+" "+gvk.Kind, where, p.annotation)
		return "", nil
	case digest == "":
		if custom {
			p.note("%s:%d: %s is left as it is: no CRD defines %s in %s", file, obj.Line, obj, name, where)
		}
		return "", nil
	case obj.Value == digest:
		return digest, nil
	case p.options.check && obj.Value == "":
		fault("is not pinned: %s is %s in %s; run `%s`", name, digest, where, p.flag)
		return "", nil
	case obj.Value != "" && !p.options.update:
		fault("is pinned to %s, but %s is %s in %s; --update renews the pin", obj.Value, name, digest, where)
		return "", nil
	}
	p.done = append(p.done, fmt.Sprintf("%s:%d: %s is pinned to %s %s of %s", file, obj.Line, obj, name, digest, where))
	return digest, nil
}

// ours reports whether gitopsd or kustomize reads the objects of a group, so that they are
// never applied.
func ours(group string) bool {
	return group == manifest.GroupPackages || group == manifest.Group || group == "kustomize.config.k8s.io"
}

// live returns a function that finds types in a live cluster until done is called.
func (o *pinOptions) live(ctx context.Context) (find findDigest, done func(), err error) {
	where := "context " + o.context
	cluster, err := kube.New(kube.Config{Name: o.context, Trusted: true, Context: o.context, UserAgent: userAgent()})
	if err != nil {
		return nil, nil, err
	}
	return func(gvk schema.GroupVersionKind) (string, string, error) {
		tree, err := cluster.Definition(ctx, gvk.Group, gvk.Kind)
		if kube.ClassOf(err) == kube.NoSuchType || err == nil && tree == nil {
			return "", where, nil
		}
		if err != nil {
			return "", where, err
		}
		digest, err := digestIn(tree, gvk)
		return digest, where, err
	}, cluster.Close, nil
}

// digestIn returns the digest of a type in a definition.
func digestIn(definition map[string]any, gvk schema.GroupVersionKind) (string, error) {
	all, err := types.Of(definition)
	if err != nil {
		return "", err
	}
	var versions []string
	for _, t := range all {
		if t.Kind != gvk.Kind {
			continue
		}
		if t.Version == gvk.Version {
			return t.Digest, nil
		}
		versions = append(versions, t.Version)
	}
	return "", fmt.Errorf("its type has no version %s, only %s", gvk.Version, strings.Join(versions, ", "))
}

// rendered returns functions that find types and behaviours in the objects rendered for the
// registered clusters.
func (o *pinOptions) rendered(cmd *cobra.Command, g *global) (typeOf, behaviourOf findDigest, err error) {
	var only []string
	if o.cluster != "" {
		only = []string{o.cluster}
	}
	fleet, err := o.open(cmd, g, only...)
	if err != nil {
		return nil, nil, err
	}
	defer fleet.Close()
	if o.cluster == "" && fleet.RegistryErr != nil { // a cluster that is not known may have another type
		return nil, nil, fleet.RegistryErr
	}
	tellPartlyKnown(cmd.ErrOrStderr(), fleet.State)
	typeOf = func(gvk schema.GroupVersionKind) (string, string, error) {
		return agreed(fleet.State, gvk, "types", func(_ *desired.Unit, o *manifest.Object) (string, error) { return digestIn(o.Tree(), gvk) })
	}
	behaviourOf = func(gvk schema.GroupVersionKind) (string, string, error) {
		return agreed(fleet.State, gvk, "controllers of", func(c *desired.Unit, o *manifest.Object) (string, error) {
			i, err := c.Behaviour(o)
			if err != nil {
				return "", err
			}
			if pkg := o.Label(manifest.PackageLabel); i == nil && pkg != "" {
				return "", fmt.Errorf("package %s, which defines %s, has no controller", pkg, gvk.GroupKind())
			}
			if i == nil {
				return "", fmt.Errorf("nothing declares what acts on %s; name the workload by the annotation %s of %s", gvk.GroupKind(), manifest.ControllerAnnotation, o.ID())
			}
			return i.Digest(), nil
		})
	}
	return typeOf, behaviourOf, nil
}

// errPartlyKnown is in the error for a type that no CRD defines, as far as is known.
var errPartlyKnown = errors.New("correct that first")

// agreed returns a digest if it is the same in all clusters that define the type. what is the
// plural of the thing with the digest, for an error. If no cluster does, and one has errors,
// the error is errPartlyKnown.
func agreed(state *desired.State, gvk schema.GroupVersionKind, what string, digestOf func(*desired.Unit, *manifest.Object) (string, error)) (digest, where string, err error) {
	var clusters show.Groups[string, string] // by digest
	for _, c := range state.Clusters {
		object := c.Definition(gvk)
		if object == nil {
			continue
		}
		digest, err := digestOf(c, object)
		if err != nil {
			return "", "", fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		clusters.Add(digest, c.Name)
	}
	switch len(clusters.Keys) {
	case 0:
		names, partly := make([]string, 0, len(state.Clusters)), []string(nil)
		for _, c := range state.Clusters {
			names = append(names, c.Name)
			if !c.Complete() {
				partly = append(partly, c.Name)
			}
		}
		if partly != nil {
			return "", "", fmt.Errorf("whether a CRD defines %s %s is not known while %s: %w",
				gvk.GroupVersion(), gvk.Kind, prose.Agree(len(partly), "cluster has errors", "clusters have errors")+" ("+prose.Some(partly, 6)+")", errPartlyKnown)
		}
		return "", clusterNames(names), nil
	case 1:
		return clusters.Keys[0], clusterNames(clusters.Of(clusters.Keys[0])), nil
	}
	var each []string
	for digest, names := range clusters.All() {
		each = append(each, fmt.Sprintf("%s in %s", digest, clusterNames(names)))
	}
	return "", "", fmt.Errorf("the clusters have different %s %s/%s %s: %s; name the one that is meant with --cluster", what, gvk.Group, gvk.Version, gvk.Kind, strings.Join(each, ", "))
}

func clusterNames(names []string) string {
	if len(names) == 1 {
		return "cluster " + names[0]
	}
	return "clusters " + prose.Some(names, 6)
}
