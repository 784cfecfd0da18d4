package render

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Want builds a cluster's kustomization and separates what it declares: packages
// (Provider, Configuration and Function of pkg.crossplane.io) and the policies
// that activate their types from objects that are applied as they are. What was
// built before from the same files is not built again.
//
// If the build fails there is no Wanted. If declarations of packages are at fault
// there is one with the rest, and an error that joins a PackageError for each.
func (r *Renderer) Want(ctx context.Context, in Input) (*Wanted, error) {
	if _, err := fs.Stat(in.Files, in.Path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cluster %s: spec.path: there is no %s in the repository", in.Cluster, in.Path)
	}
	objects, err := r.builder.Build(ctx, in.Files, in.Path)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", in.Cluster, err)
	}
	w := &Wanted{}
	var errs []error
	var declared []*manifest.Object
	for _, o := range objects {
		switch {
		case isPackage(o.ID()):
			declared = append(declared, o)
		case isPolicy(o.ID()) && !in.Delegate:
			w.policies = append(w.policies, o)
		default:
			w.Objects = append(w.Objects, o)
		}
	}
	for _, o := range declared {
		d, err := declaration(o)
		if err == nil && !delegates(in, d.Kind) {
			err = checkRuntimeConfig(d, w.Objects)
		}
		if err != nil {
			broken := &PackageError{Kind: sources.PackageKind(o.ID().Kind), Name: o.ID().Name, Err: fmt.Errorf("%s: %w", o.Origin(), err)}
			w.Broken = append(w.Broken, broken)
			errs = append(errs, broken)
			continue
		}
		w.Packages = append(w.Packages, d)
	}
	slices.SortFunc(w.Packages, func(a, b sources.Declaration) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return w, errors.Join(errs...)
}

const (
	packageGroup = "pkg.crossplane.io"
	// defaultRuntimeConfig is what Crossplane takes when a package names none.
	defaultRuntimeConfig = "default"
)

func isPackage(id manifest.ID) bool {
	if id.Group != packageGroup {
		return false
	}
	switch sources.PackageKind(id.Kind) {
	case sources.Provider, sources.Configuration, sources.Function:
		return true
	}
	return false
}

// checkRuntimeConfig refuses a package whose controller is configured by an
// object, rather than run it without.
func checkRuntimeConfig(d sources.Declaration, plain []*manifest.Object) error {
	name := cmp.Or(d.RuntimeConfig, defaultRuntimeConfig)
	if d.Kind == sources.Configuration {
		return nil
	}
	i := slices.IndexFunc(plain, func(o *manifest.Object) bool {
		id := o.ID()
		return id.Group == packageGroup && id.Kind == "DeploymentRuntimeConfig" && id.Name == name
	})
	switch {
	case i >= 0:
		return fmt.Errorf("spec.runtimeConfigRef: the DeploymentRuntimeConfig %s (%s) would configure its controller, which gitopsd does not honour yet; remove it, or write a patch for the Deployment %s/%s", name, plain[i].Origin(), runtimeNamespace, d.Name)
	case name != defaultRuntimeConfig:
		return fmt.Errorf("spec.runtimeConfigRef: there is no DeploymentRuntimeConfig %s among the cluster's objects", name)
	}
	return nil
}
