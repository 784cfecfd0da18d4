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
// (Provider, Configuration and Function of pkg.crossplane.io) and their settings
// (ImageConfig, DeploymentRuntimeConfig, ManagedResourceActivationPolicy) from
// objects that are applied as they are. What was built before from the same files
// is not built again.
//
// Settings are no objects of the cluster's, which need not know their kinds; but
// where Crossplane is to install packages, it gets its settings too.
//
// If the build fails there is no Wanted; if it is because remote bases are not
// here, the error has a *kustomize.MissingError. If declarations of packages are at fault
// there is one with the rest, and an error that joins a PackageError for each.
func (r *Renderer) Want(ctx context.Context, in Input) (*Wanted, error) {
	if _, err := fs.Stat(in.Files, in.Path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("spec.path: there is no %s in the repository", in.Path)
	}
	objects, err := r.builder.Build(ctx, in.Files, in.Path, in.Remote)
	if err != nil {
		return nil, err
	}
	w := &Wanted{runtimes: make(map[string]runtimeConfig)}
	var errs []error
	var declared, images, configs []*manifest.Object
	for _, o := range objects {
		switch id := o.ID(); {
		case id.Is(manifest.Packages...):
			declared = append(declared, o)
		case id.Is(manifest.ImageConfig):
			images = append(images, o)
		case id.Is(manifest.RuntimeConfig):
			configs = append(configs, o)
		case id.Is(manifest.ActivationPolicy) && !in.Delegate:
			w.policies = append(w.policies, o)
		default:
			w.Objects = append(w.Objects, o)
		}
	}
	for _, o := range images {
		w.Images = append(w.Images, imageConfig(o, w.Objects))
	}
	if !in.Delegate { // else how controllers run is Crossplane's business
		for _, o := range configs {
			w.runtimes[o.ID().Name] = readRuntimeConfig(o)
		}
	}
	if in.Delegate || slices.ContainsFunc(declared, func(o *manifest.Object) bool { return delegates(in, sources.PackageKind(o.ID().Kind)) }) {
		w.Objects = append(append(w.Objects, images...), configs...)
	}
	for _, o := range declared {
		d, err := declaration(o)
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
	runtimeConfigVersion = manifest.GroupPackages + "/v1beta1"
	// defaultRuntimeConfig is what Crossplane takes when a package names none.
	defaultRuntimeConfig = "default"
)
