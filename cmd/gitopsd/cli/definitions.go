package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/oci"
	"gitopsd.dev/sources/resolve"
	"gitopsd.dev/sources/xpkg"
)

// definition is a CRD or XRD, with its origin.
type definition struct {
	name string
	tree map[string]any
	pkg  string
	// controller acts on its types; nil if unknown.
	controller *behaviour.Identity
	// rendered reports whether the definition is from a rendered cluster, and alone whether
	// its package has no controller.
	rendered, alone bool
}

// definitions reads the definitions of a source.
func (o *typesOptions) definitions(cmd *cobra.Command, g *global, source string) ([]definition, error) {
	if _, err := os.Stat(source); err == nil {
		return fromFiles(source)
	}
	registered, unread := o.tree.registered()
	if slices.Contains(registered, source) {
		return o.fromCluster(cmd, g, source)
	}
	ref, err := sources.ParseRef(source)
	if err != nil {
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		err = fmt.Errorf("%q is neither a file, nor a registered cluster, nor a package: %w%s", source, err, sources.Meant(source, append(names, registered...)))
		return nil, errors.Join(err, unread)
	}
	if o.registry.vendor != "" {
		tree, err := o.tree.open(cmd.Context())
		if err != nil {
			return nil, err
		}
		defer tree.Close()
		layout, err := o.registry.layout(tree.commit.Files)
		if err != nil {
			return nil, err
		}
		return fromPackage(cmd.Context(), layout, ref)
	}
	client, err := o.registry.client(g.log(false))
	if err != nil {
		return nil, err
	}
	return fromPackage(cmd.Context(), client, ref)
}

func fromFiles(name string) ([]definition, error) {
	all, err := readObjects(nil, name)
	if err != nil {
		return nil, err
	}
	for i, o := range all {
		if all[i], err = installed(o); err != nil {
			return nil, err
		}
	}
	set, _ := manifest.NewSet(all)
	index := behaviour.NewIndex(set, nil)
	var found []definition
	for _, o := range all {
		if o.ID().Is(manifest.Definitions...) {
			controller, _ := index.Of(o) // without one in the files it is unknown
			found = append(found, defined(o, controller))
		}
	}
	return found, nil
}

// installed returns the object. For a ManagedResourceDefinition it returns the
// CustomResourceDefinition that this stands for.
func installed(o *manifest.Object) (*manifest.Object, error) {
	if !types.IsManaged(o.Tree()) {
		return o, nil
	}
	crd, err := types.FromManaged(o.Tree())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Origin(), err)
	}
	return manifest.New(crd, o.Origin())
}

func defined(o *manifest.Object, controller *behaviour.Identity) definition {
	return definition{name: o.ID().Name, tree: o.Tree(), pkg: o.Label(manifest.PackageLabel), controller: controller}
}

// fromCluster returns the definitions that are rendered for a registered cluster.
func (o *typesOptions) fromCluster(cmd *cobra.Command, g *global, name string) ([]definition, error) {
	fleet, err := o.open(cmd, g, name)
	if err != nil {
		return nil, err
	}
	defer fleet.Close()
	c := fleet.Get(name)
	if c == nil || c.Objects == nil {
		return nil, fleet.Err()
	}
	index := behaviour.NewIndex(c.Objects, c.Packages)
	var found []definition
	errs := []error{problem.Join(c.Problems())}
	for _, object := range c.Objects.All() {
		if !object.ID().Is(manifest.Definitions...) {
			continue
		}
		controller, err := index.Of(object)
		if err != nil {
			errs = append(errs, err)
		}
		d := defined(object, controller)
		d.rendered = true
		d.alone = err == nil && controller == nil && d.pkg != "" && object.ID().Is(manifest.CRD)
		found = append(found, d)
	}
	return found, errors.Join(errs...)
}

// fromPackage returns the definitions in a package. The controller of a Provider is
// rendered without any settings of a cluster.
func fromPackage(ctx context.Context, client oci.Reader, ref sources.Ref) ([]definition, error) {
	digest, err := client.Resolve(ctx, ref)
	if err != nil {
		return nil, err
	}
	pkg, err := xpkg.Read(ctx, client, ref.Repository, digest)
	if err != nil {
		return nil, err
	}
	var found []definition
	var crds []*manifest.Object
	for _, doc := range pkg.Documents {
		o, err := manifest.New(doc.Tree, manifest.Origin{Package: sources.Pin{Ref: ref, Digest: digest}})
		if err == nil {
			o, err = installed(o)
		}
		if err != nil {
			return nil, err
		}
		if o.ID().Is(manifest.Definitions...) {
			d := defined(o, nil)
			d.pkg = pkg.Meta.Name
			found = append(found, d)
		}
		if o.ID().Is(manifest.CRD) {
			crds = append(crds, o)
		}
	}
	if pkg.Meta.Kind == sources.Provider {
		controller, err := controllerOf(ctx, client, ref, pkg, crds)
		if err != nil {
			return nil, err
		}
		for i := range found {
			found[i].controller, found[i].alone = controller, controller == nil
		}
	}
	return found, nil
}

// controllerOf returns the controller of a package; nil if it has none.
func controllerOf(ctx context.Context, client oci.Reader, ref sources.Ref, pkg *sources.Package, crds []*manifest.Object) (*behaviour.Identity, error) {
	s := sources.Selected{
		Declaration: sources.Declaration{Kind: sources.Provider, Name: pkg.Meta.Name, Ref: ref},
		Pin:         sources.Pin{Ref: ref, Digest: pkg.Digest}, Package: pkg,
	}
	if pkg.Meta.Image != "" {
		image, err := resolve.ParseImage(pkg.Meta.Image)
		if err == nil {
			image.Digest, err = client.Resolve(ctx, image)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: spec.controller.image: %w", ref, err)
		}
		s.Runtime = image.Repository + "@" + string(image.Digest)
	} else if pkg.Runnable {
		s.Runtime = ref.Repository + "@" + string(pkg.Digest)
	} else {
		return nil, nil
	}
	c := runtime.Controller{Selected: s, Types: crds}
	objects, err := runtime.Objects(c)
	if err != nil {
		return nil, err
	}
	rights, err := runtime.Rights(c, nil)
	if err != nil {
		return nil, err
	}
	// Objects that are rendered for a cluster have the package's label, too.
	for i, o := range objects {
		objects[i] = o.WithMetadata(map[string]string{manifest.PackageLabel: s.Declaration.Name}, nil)
	}
	set, _ := manifest.NewSet(append(objects, rights...))
	i := slices.IndexFunc(objects, func(o *manifest.Object) bool { return o.ID().Is(manifest.Workloads...) })
	return behaviour.NewIndex(set, nil).Workload(objects[i]), nil
}
