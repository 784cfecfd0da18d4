package render

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Want builds a cluster's kustomization and separates packages (Provider,
// Configuration and Function of pkg.crossplane.io) and their settings (ImageConfig,
// DeploymentRuntimeConfig, ManagedResourceActivationPolicy) from plain objects, which are
// applied as they are. It reuses builds of unchanged files. Conversion rules are
// settings of definitions, and an APIResourceSchema stands for the definition that it
// describes; both are plain objects next to an APIExport, which is for kcp.
//
// Settings are not applied, since the cluster may not serve their kinds. If Crossplane
// installs packages, its settings are applied too.
//
// If the build fails, the Wanted is nil; the error wraps a [*kustomize.MissingError]
// if remote bases are missing. Otherwise the error joins a [PackageError] for each
// invalid declaration, and the Wanted has the rest.
func (r *Renderer) Want(ctx context.Context, in Input) (*Wanted, error) {
	if err := present(in.Files, in.Path); err != nil {
		return nil, err
	}
	objects, notes, err := r.builder.Build(ctx, in.Files, in.Path, in.Remote)
	if err != nil {
		return nil, err
	}
	if len(objects) == 0 {
		notes = append(slices.Clip(notes), in.Path+" has no manifests")
	}
	w := &Wanted{Notes: notes, runtimes: make(map[string]runtimeConfig)}
	var errs []error
	var declared, images, configs []*manifest.Object
	for _, o := range objects {
		switch id := o.ID(); {
		case id.Is(manifest.Packages...), misspelled(o):
			declared = append(declared, o)
		case id.Is(manifest.ImageConfig):
			images = append(images, o)
		case id.Is(manifest.RuntimeConfig):
			configs = append(configs, o)
		case id.Is(manifest.ActivationPolicy) && !in.Delegate:
			w.policies = append(w.policies, o)
		case id.Is(manifest.ConversionRules...):
			w.rules = append(w.rules, o)
		case id.Is(manifest.ResourceSchema):
			w.schemas = append(w.schemas, o)
		default:
			w.Objects = append(w.Objects, o)
		}
	}
	if slices.ContainsFunc(w.Objects, func(o *manifest.Object) bool { return o.ID().Is(manifest.APIExports...) }) {
		w.Objects = append(append(w.Objects, w.rules...), w.schemas...)
		w.rules, w.schemas = nil, nil
	}
	for _, o := range images {
		w.Images = append(w.Images, imageConfig(o, w.Objects))
	}
	if !in.Delegate { // otherwise Crossplane runs the controllers
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
			broken := &PackageError{Kind: sources.PackageKind(o.ID().Kind), Name: o.ID().Name, Place: o.Origin().Place(), Err: err}
			w.Broken = append(w.Broken, broken)
			w.Unreadable = append(w.Unreadable, readable(o, d))
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

// present returns an error if dir does not exist, or has no files: Git keeps no empty
// directories, so that one in a working tree is missing in its commit. Other problems are
// the build's.
func present(files fs.FS, dir string) error {
	found := false
	err := fs.WalkDir(files, dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		found = true
		return fs.SkipAll
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		var names []string
		entries, _ := fs.ReadDir(files, path.Dir(dir)) // an error suggests nothing
		for _, e := range entries {
			names = append(names, path.Join(path.Dir(dir), e.Name()))
		}
		return fmt.Errorf("spec.path: there is no %s in the repository%s", dir, sources.Meant(dir, names))
	case err == nil && !found:
		return fmt.Errorf("spec.path: there is no file in %s, and Git keeps no empty directories", dir)
	}
	return nil
}

const (
	runtimeConfigVersion = manifest.GroupPackages + "/v1beta1"
	// defaultRuntimeConfig is what Crossplane uses for packages that name none.
	defaultRuntimeConfig = "default"
)
