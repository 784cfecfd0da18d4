// Package render computes what each cluster is to hold. It is pure: the same
// files, remote bases, patches and packages give the same objects, byte for byte;
// it uses no network, no clock and no cluster.
//
// It has two halves, since what a cluster asks for must be known before packages
// are resolved. Want (want.go) builds the cluster's kustomization and separates
// packages and their settings from plain objects; declare.go reads declarations,
// imageconfig.go and runtimeconfig.go settings. Expand
// (expand.go) makes objects of the packages that were found (package.go), once
// for the whole fleet, applies the cluster's patches, and sees to it that every
// object is defined once (cluster.go). Which of a package's types a cluster gets
// is in activate.go, packages that are left to Crossplane are in delegate.go, rules for
// immutable fields in immutable.go, conversion rules in conversions.go, etcd namespaces in
// etcd.go. A Renderer does both.
//
// One broken package takes nothing else with it: what could be rendered is
// returned together with typed errors, and Rendered.Keeps tells what must stay
// in a cluster because nobody knows what has become of it.
//
// Neighbours: render/manifest has objects, render/kustomize builds and patches,
// render/runtime and render/webhook are for a package's controller. Of
// sources, render knows the vocabulary only; resolving is sources/resolve's, and
// what comes of the objects is reconcile's.
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
	"gitopsd.dev/render/remote"
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
	// Remote are the directories of other repositories that the build may use.
	Remote remote.Bases
	// Patches change the rendered objects, those of packages included.
	Patches []kustomize.Patch
	// EnforcePins adds the policies by which the API server refuses objects that are
	// pinned to other types or controllers.
	EnforcePins bool
	// Targets installs the definitions of KubernetesTarget and KubernetesApplication,
	// also if no object is of these kinds.
	Targets bool
	// Publications are those of the cluster, and those to its namespaces.
	Publications []target.Publication
	// Delegate leaves packages to the Crossplane in the cluster, pinned.
	Delegate bool
	// Converter is what serves the cluster's conversion rules.
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
	// Unreadable are the declarations of Broken as far as they can be read. Ref has
	// only a repository, and is zero if that cannot be read either.
	Unreadable []sources.Declaration
	// Notes are no errors: patches in kustomizations that match nothing.
	Notes []string

	// Held are packages that the cluster keeps as they are, though they are not
	// rendered: set them before Expand. Other packages' rights depend on them.
	Held []sources.Selected

	// policies are the ManagedResourceActivationPolicies.
	policies []*manifest.Object
	// rules are the documents of conversion rules, and schemas the APIResourceSchemas.
	rules, schemas []*manifest.Object
	// runtimes are the cluster's DeploymentRuntimeConfigs by name.
	runtimes map[string]runtimeConfig
}

// Faults returns the errors in settings of packages. A package that such a setting
// concerns has an error of its own.
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
	// Patched are the objects that the cluster's patches changed, by ID, as they
	// were before.
	Patched map[manifest.ID]*manifest.Object
	// Idle are the cluster's patches that match nothing.
	Idle []kustomize.Idle
	// Inactive are the types of packages that no policy activates.
	Inactive []PackageType
	// Delegated are the types of the packages that Crossplane installs.
	Delegated []PackageType
	// Notes are for a person to read; they are not errors.
	Notes []string

	// selected are the names of rendered packages; complete reports whether there
	// are no others, unresolved dependencies included.
	selected map[string]bool
	complete bool
	broken   map[string]bool
	// unknown reports whether definitions may be missing in Objects that the cluster
	// keeps, and that are converted by rules.
	unknown bool
	// conflict are the objects in Conflicts and Refused, those that enforce pins to a type
	// which is one of them or has errors, and those beside an EtcdNamespace with errors.
	conflict map[manifest.ID]bool
}

// Keeps reports whether an object that gitopsd applied to the cluster, and that is
// not in Objects, must stay: it is in conflict or refused, its package is broken, its
// package may be one that could not be resolved, or it converts objects of a definition
// that stays. pkg is the object's
// [manifest.PackageLabel].
func (r *Rendered) Keeps(id manifest.ID, pkg string) bool {
	switch {
	case r.conflict[id], r.unknown && converter.Part(id):
		return true
	case pkg == "":
		return false
	}
	return r.broken[pkg] || !r.complete && !r.selected[pkg]
}

// Err joins the errors of Broken, Refused and Conflicts; nil if there are none.
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

// PackageError is an error of one package in one cluster. It concerns no other
// package and no plain object.
type PackageError struct {
	Kind sources.PackageKind
	// Name is the package's name in the cluster.
	Name string
	Err  error
}

func (e *PackageError) Error() string { return fmt.Sprintf("%s %s: %v", e.Kind, e.Name, e.Err) }
func (e *PackageError) Unwrap() error { return e.Err }
