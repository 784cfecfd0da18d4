// Package render computes the objects of each cluster. It is pure: the same files,
// remote bases, patches and packages give the same objects, byte for byte. It uses no
// network, no clock and no cluster.
//
// A [Renderer] works in two steps, with the resolution of packages in between:
//
//   - [Renderer.Want] (want.go) builds the cluster's kustomization and separates
//     packages and their settings from plain objects. declare.go reads declarations;
//     imageconfig.go and runtimeconfig.go read settings.
//   - [Renderer.Expand] (expand.go) makes the objects of the resolved packages
//     (package.go), once for the whole fleet, applies the cluster's patches, and
//     checks that every object is defined once (cluster.go) and has no name that is
//     gitopsd's own (own.go). activate.go selects the types of a package, delegate.go
//     leaves packages to Crossplane, immutable.go adds rules for immutable fields,
//     conversions.go handles conversion rules and etcd.go etcd namespaces.
//
// A broken package affects nothing else: the result has everything that could be
// rendered, together with typed errors. [Rendered.Keeps] reports which objects must
// stay in a cluster because their rendering is unknown.
//
// Neighbours: render/manifest has objects, render/kustomize builds and patches,
// render/runtime and render/webhook are for a package's controller. sources/resolve
// resolves packages, and reconcile plans and applies the objects.
package render

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources"
)

// Input is one cluster as declared in the fleet repository.
type Input struct {
	// Cluster is the cluster's name, for errors.
	Cluster string
	// Files is the fleet repository.
	Files fs.FS
	// Path is the directory in Files to build.
	Path string
	// Remote are the remote bases that the build may use.
	Remote remote.Bases
	// Patches change the rendered objects, those of packages included.
	Patches []kustomize.Patch
	// EnforcePins adds policies that make the API server refuse objects that are pinned
	// to other types or controllers.
	EnforcePins bool
	// Targets installs the definitions of KubernetesTarget and KubernetesApplication
	// even if the cluster has no object of these kinds.
	Targets bool
	// Publications are the publications of the cluster, and of others to its namespaces.
	Publications []target.Publication
	// Delegate makes the Crossplane in the cluster install the packages, pinned.
	Delegate bool
	// Converter serves the cluster's conversion rules.
	Converter Converter
	// Etcd is how the cluster runs the proxies of its EtcdNamespaces.
	Etcd etcd.Proxy
}

// Wanted is the content of a cluster's directory.
type Wanted struct {
	// Objects are applied as they are.
	Objects []*manifest.Object
	// Packages are the valid declarations to resolve, sorted by kind and name.
	Packages []sources.Declaration
	// Images are the cluster's ImageConfigs, including those with errors.
	Images sources.ImageConfigs
	// Broken are packages with an invalid declaration.
	Broken []*PackageError
	// Unreadable are the declarations of Broken, with the fields that can be read. Ref
	// has at most a repository.
	Unreadable []sources.Declaration
	// Notes are for people: patches in kustomizations that match nothing.
	Notes []string

	// Held are packages that the cluster keeps although they are not rendered. Set them
	// before Expand, since the rights of other packages depend on them.
	Held []sources.Selected
	// Left are packages that could not be resolved or verified, and stay as they are. A
	// Package that cannot be read is nil. Set them before Expand, too.
	Left []sources.Selected

	// policies are the ManagedResourceActivationPolicies.
	policies []*manifest.Object
	// rules are the documents of conversion rules, and schemas the APIResourceSchemas.
	rules, schemas []*manifest.Object
	// runtimes are the cluster's DeploymentRuntimeConfigs by name.
	runtimes map[string]runtimeConfig
}

// Bare reports whether the cluster's directory has neither objects nor packages.
func (w *Wanted) Bare() bool {
	return len(w.Objects)+len(w.Packages)+len(w.Broken)+len(w.Unreadable) == 0
}

// Faults returns the errors in settings of packages. Each package with such a setting
// has an error of its own.
func (w *Wanted) Faults() []error {
	var faults []error
	for _, c := range w.Images {
		if c.Err != nil {
			faults = append(faults, c.Err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.runtimes)) {
		if err := w.runtimes[name].err; err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

// Rendered are the objects of a cluster, with the packages that could not be
// rendered.
type Rendered struct {
	// Objects are all rendered objects.
	Objects *manifest.Set
	// Bare reports whether none of Objects comes from the cluster's directory or its
	// packages: all are made from the registry.
	Bare bool
	// Broken are the packages without any object in Objects.
	Broken []*PackageError
	// Conflicts are objects that are defined more than once, and therefore not in
	// Objects. A package that defines one of them is in Broken.
	Conflicts []*manifest.DuplicateError
	// Refused are the plain objects that could not be rendered, and therefore are not in
	// Objects.
	Refused []*ObjectError
	// Conversions are the conversion rules of definitions, by the definition's name.
	Conversions map[string]*Conversion
	// Frozen are the definitions that got rules for immutable fields, by ID.
	Frozen map[manifest.ID]Frozen
	// Patched are the objects that the cluster's patches changed, by ID, before the
	// change.
	Patched map[manifest.ID]*manifest.Object
	// Idle are the cluster's patches that match nothing.
	Idle []kustomize.Idle
	// Inactive are the types of packages that no policy activates.
	Inactive []PackageType
	// Delegated are the types of the packages that Crossplane installs.
	Delegated []PackageType
	// Notes are for people; they are not errors.
	Notes []string

	// selected are the names of resolved packages, and runs of those with a controller in
	// Objects. broken are the names of packages with errors.
	selected, runs, broken map[string]bool
	// pinned reports whether pins are enforced.
	pinned bool
	// unknown reports whether the cluster may keep definitions with conversion rules that
	// are not in Objects.
	unknown bool
	// conflict are the objects in Conflicts and Refused, the objects that enforce pins to
	// types of such a definition, the objects beside an EtcdNamespace with errors, and rights
	// of a family that a package may be of which cannot be read.
	conflict map[manifest.ID]bool
}

// Keeps reports whether an object that gitopsd applied to the cluster, and that is not in
// Objects, must stay. It is in conflict or refused, it converts objects of a definition that
// stays, or it may be wanted by a package with errors. Such a package may have another name
// than before, and dependencies, activation policies and types that are not known. So all of
// these stay while there is one:
//
//   - the objects of this package, and of packages that are not rendered;
//   - what any package may bring under the same name: definitions, Compositions and the like,
//     with the pins to them, and accounts that packages share;
//   - controllers without a package, and those of packages that have none any more.
//
// pkg is the object's [manifest.PackageLabel].
func (r *Rendered) Keeps(id manifest.ID, pkg string) bool {
	switch {
	case r.conflict[id], r.unknown && converter.Part(id):
		return true
	case len(r.broken) == 0:
		return false
	case id.Is(movable...), r.pinned && pins.OfSomeDefinition(id):
		return true
	case runtime.Part(id) && !ownName(id) && !r.runs[pkg]:
		return true
	case pkg == "":
		return false
	}
	return id.Is(manifest.ServiceAccount) || r.broken[pkg] || !r.selected[pkg]
}

// Err joins the errors of Broken, Refused and Conflicts.
func (r *Rendered) Err() error {
	var errs []error
	for _, e := range r.Broken {
		errs = append(errs, e)
	}
	for _, e := range r.Refused {
		errs = append(errs, e)
	}
	for _, e := range r.Conflicts {
		told := slices.ContainsFunc(r.Broken, func(b *PackageError) bool { return errors.Is(b, e) })
		if !told {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// PackageError is an error of one package in one cluster. Other packages and plain objects
// are not affected.
type PackageError struct {
	Kind sources.PackageKind
	// Name is the package's name in the cluster.
	Name string
	// Place is the file and line of its declaration; empty for a dependency.
	Place string
	Err   error
}

func (e *PackageError) Error() string {
	if e.Place == "" {
		return fmt.Sprintf("%s %s: %v", e.Kind, e.Name, e.Err)
	}
	return fmt.Sprintf("%s %s (%s): %v", e.Kind, e.Name, e.Place, e.Err)
}
func (e *PackageError) Unwrap() error { return e.Err }
