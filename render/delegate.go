package render

import (
	"fmt"
	"maps"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// delegates reports whether the Crossplane in the cluster installs packages of a
// kind. It always installs Functions, since it finds them by objects that only its
// package manager creates.
func delegates(in Input, kind sources.PackageKind) bool {
	return in.Delegate || kind == sources.Function
}

// delegated returns the object that makes the Crossplane in a cluster install a
// package: its declaration, or a new one for a dependency, pinned to the locked digest.
// Crossplane resolves nothing itself: each dependency has its own object, and a digest is
// pulled once only.
func delegated(s sources.Selected) (*manifest.Object, error) {
	d := s.Declaration
	if err := checkName(d.Name); err != nil { // a dependency's name is the last part of its repository
		return nil, fmt.Errorf("its name: %w; declare it under another", err)
	}
	if s.Origin.Directory != "" {
		return nil, fmt.Errorf("it is built from %s, and Crossplane installs packages from registries only; publish it", s.Origin)
	}
	if d.Immutable != "" {
		return nil, fmt.Errorf("%s: Crossplane installs its types, and gitopsd does not render them; remove the annotation", manifest.ImmutableAnnotation)
	}
	tree := map[string]any{"apiVersion": manifest.GroupPackages + "/v1", "kind": string(d.Kind), "metadata": map[string]any{"name": d.Name}}
	origin := manifest.Origin{Package: s.Pin}
	spec := make(map[string]any)
	if d.Document.Tree != nil {
		tree, origin = maps.Clone(d.Document.Tree), manifest.Origin{File: d.File, Line: d.Document.Line}
		maps.Copy(spec, manifest.Mapping(tree, "spec"))
		delete(tree, "status")
	}
	spec["package"] = s.Pin.String()
	spec["skipDependencyResolution"] = true
	// Never is kept: the package must be in Crossplane's cache.
	if d.PullPolicy != sources.PullNever {
		spec["packagePullPolicy"] = string(sources.PullIfNotPresent)
	}
	tree["spec"] = spec
	o, err := manifest.New(tree, origin)
	if err != nil {
		return nil, err
	}
	return o.WithMetadata(map[string]string{manifest.PackageLabel: d.Name}, nil), nil
}

// checkPins fails if a patch changes the version of a package that Crossplane installs,
// since a patch must not bypass the lock.
func checkPins(objects []*manifest.Object, pins map[manifest.ID]string) error {
	for _, o := range objects {
		if !o.ID().Is(manifest.Packages...) {
			continue
		}
		spec := manifest.Mapping(o.Tree(), "spec")
		if want := pins[o.ID()]; spec["package"] != want || spec["skipDependencyResolution"] != true {
			return fmt.Errorf("patches: %s: spec.package is %v and spec.skipDependencyResolution %v, where clusters.lock wants %q and true; change the declaration instead",
				o.ID(), spec["package"], spec["skipDependencyResolution"], want)
		}
	}
	return nil
}

// delegatedTypes returns the types that exist once Crossplane has installed a package.
func delegatedTypes(s sources.Selected) []PackageType {
	if s.Package == nil {
		return nil
	}
	var all []PackageType
	for _, d := range s.Package.Documents {
		o, err := manifest.New(d.Tree, manifest.Origin{})
		if err != nil {
			continue // Crossplane will say so
		}
		if !o.ID().Is(manifest.CRD, manifest.XRD, manifest.MRD) {
			continue
		}
		defined := types.Read(d.Tree)
		for _, kind := range defined.Kinds() {
			all = append(all, PackageType{Definition: o.ID(), Group: defined.Group, Kind: kind, Package: s.Declaration.Name})
		}
	}
	return all
}
