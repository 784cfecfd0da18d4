package sources

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// The paths of the lock and of the registry of clusters in a fleet repository.
const (
	LockFile     = "clusters.lock"
	RegistryFile = "clusters.yaml"
)

// ErrIgnored is in the chain of errors about a file or directory of a working tree that Git
// ignores.
var ErrIgnored = errors.New("is ignored by Git, so that no commit has it: `git add --force` it, or remove what names it")

// ErrNotFound is in the chain of errors about content that a registry does not
// have or does not show.
var ErrNotFound = errors.New("not found")

// ErrUnfit is in the chain of errors about a package that cannot be used as it was
// published: it is invalid, or lacks a required signature.
var ErrUnfit = errors.New("unfit")

// ErrLate is in the chain of errors about a registry that did not answer in
// time.
var ErrLate = errors.New("late")

// ErrUnasked is in the chain of errors about something that only a registry
// knows, if no registry may be asked.
var ErrUnasked = errors.New("no registry is asked")

// ErrNoRoom is in the chain of errors about a package that does not fit into memory
// beside the packages in use. Neither the package nor its registry is at fault.
var ErrNoRoom = errors.New("there is no memory for the package")

// Commit is one state of a fleet repository.
type Commit struct {
	// Hash is the commit's object name, 40 hexadecimal digits; empty for a
	// working tree.
	Hash string
	// Subject is the first line of the commit's message.
	Subject string
	// Author is "name <mail>" as the commit has it.
	Author string
	// Time is the time of the commit, from the committer's clock.
	Time time.Time
	// Files is the tree, read-only and safe for concurrent use. It holds
	// regular files and directories; a symbolic link in it fails to open.
	Files fs.FS
}

// ShortHash returns the first ten digits of a commit's hash, for people.
func ShortHash(hash string) string { return hash[:min(10, len(hash))] }

// ContentFS is a file system that can name its content, as a Git tree can.
type ContentFS interface {
	fs.FS
	// Content returns a name for the content of all files and directories, leaving
	// out except, a file at the root. File systems with equal names have equal
	// content. It reads no files, and fails if the root cannot be read.
	Content(except string) (string, error)
}

// PackageKind is a package's type, as its metadata names it.
type PackageKind string

// The package types of Crossplane's xpkg specification.
const (
	Provider      PackageKind = "Provider"
	Configuration PackageKind = "Configuration"
	Function      PackageKind = "Function"
)

// Package is the content of one package, parsed once per digest and shared by
// all clusters. It must not be changed.
type Package struct {
	// Repository that it was read from.
	Repository string
	// Digest of the index or manifest that it was read by.
	Digest Digest
	// Children are the platforms of an index, sorted by platform; empty for
	// a single manifest.
	Children []Child
	// Content is the digest of package.yaml, which defines the types.
	Content Digest
	// Runnable reports whether the package's own image has a program to run: an
	// Entrypoint or a Cmd in its configuration. It is only set for Providers whose
	// metadata names no image. Such a package without a program has only types.
	Runnable bool
	// Meta describes the package itself.
	Meta PackageMeta
	// Documents are the objects of package.yaml without the meta object, in
	// their order.
	Documents []Document
}

// Child is one platform's manifest in an index.
type Child struct {
	// Platform is "os/architecture[/variant]".
	Platform string
	// Digest of the platform's manifest.
	Digest Digest
}

// PackageMeta is the meta object of a package (meta.pkg.crossplane.io).
type PackageMeta struct {
	Kind PackageKind
	// Name is the meta object's name.
	Name string
	// Crossplane is the version constraint in spec.crossplane.version, empty
	// if there is none.
	Crossplane string
	// Image is a Provider's controller image in spec.controller.image; empty
	// when the package's own image is the controller's, or it has none.
	Image string
	// DependsOn are the packages that this one needs.
	DependsOn []Dependency
	// Document is the whole meta object.
	Document Document
}

// Dependency is one entry of a package's spec.dependsOn.
type Dependency struct {
	// Kind is empty if the metadata does not say.
	Kind PackageKind
	// Repository of the package.
	Repository string
	// Constraint is a semver range or a digest.
	Constraint string
}

// PullPolicy says when a locked tag is looked up again.
type PullPolicy string

// The pull policies, with Crossplane's names. IfNotPresent is the default.
const (
	PullAlways       PullPolicy = "Always"
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullNever        PullPolicy = "Never"
)

// Declaration is a package in a cluster's manifests: a Provider, Configuration
// or Function of pkg.crossplane.io.
type Declaration struct {
	Kind PackageKind
	// Name is the object's name, unique among objects of a kind in a cluster.
	Name string
	// Ref is spec.package.
	Ref Ref
	// PullPolicy is spec.packagePullPolicy.
	PullPolicy PullPolicy
	// PullSecrets are the names in spec.packagePullSecrets.
	PullSecrets []string
	// ManualActivation is spec.revisionActivationPolicy: Manual.
	ManualActivation bool
	// IgnoreCrossplaneConstraints and SkipDependencyResolution are the fields
	// of the same names.
	IgnoreCrossplaneConstraints bool
	SkipDependencyResolution    bool
	// CommonLabels and CommonAnnotations are added to every object of the package.
	CommonLabels      map[string]string
	CommonAnnotations map[string]string
	// File is where it is declared, in the fleet repository or a remote base.
	File string
	// RuntimeConfig is the name in spec.runtimeConfigRef.
	RuntimeConfig string
	// ByType is the annotation gitopsd.dev/install: by-type. The cluster gets only the
	// types that its activation policies name.
	ByType bool
	// Immutable is the annotation gitopsd.dev/immutable: fields of the package's types
	// that cannot be changed once they are set.
	Immutable string
	// Document is the whole object.
	Document Document
}

// Place returns the file and line of the declaration, "clusters/dev/widgets.yaml:3",
// without the line if it is unknown, or "" for a dependency.
func (d *Declaration) Place() string {
	if d.File == "" || d.Document.Line == 0 {
		return d.File
	}
	return fmt.Sprintf("%s:%d", d.File, d.Document.Line)
}

// Selected is a package that a cluster gets: a declared one, or a dependency of
// one.
type Selected struct {
	// Declaration of the package. A dependency's has defaults, and the last element of
	// the repository as its Name.
	Declaration Declaration
	// Pin is the reference and the digest it resolved to.
	Pin Pin
	// Package is its content.
	Package *Package
	// Origin is where it was fetched from.
	Origin Origin
	// Verified describes the accepted signature for people; empty if none is required.
	Verified string
	// Runtime is a Provider's controller image, "repository@sha256:…", as clusters pull
	// it; empty for packages without a controller.
	Runtime string
	// PullSecrets are the names of Secrets that a cluster needs to pull it.
	PullSecrets []string
	// Replaces is the reference that the fleet replaces by Pin; zero if it is not
	// replaced.
	Replaces Ref
	// Parent is the repository of the package that depends on it, empty for
	// a declared package.
	Parent string
}

// Undeclared returns the declaration that a dependency lacks: it selects the same version.
// ok is false for a declared package.
func (s Selected) Undeclared() (d Declaration, ok bool) {
	return Declaration{Kind: s.Declaration.Kind, Name: s.Declaration.Name, Ref: cmp.Or(s.Replaces, s.Pin.Ref)}, s.Parent != ""
}

// Repository returns the repository that other packages know it by.
func (s Selected) Repository() string {
	if s.Replaces.Repository != "" {
		return s.Replaces.Repository
	}
	return s.Pin.Ref.Repository
}

// Replacement describes for people what the package replaces, or returns "" if it
// replaces nothing.
func (s Selected) Replacement() string {
	if s.Replaces.Repository == "" {
		return ""
	}
	text := "in place of " + s.Replaces.String()
	if s.Origin.Directory != "" {
		text += ", from " + s.Origin.String()
	}
	return text
}

// Revision returns Crossplane's name for this revision of the package: the
// package's name and the first twelve digits of the digest.
func (s Selected) Revision() string {
	const most = 50 // characters of the name, so that all of it is a DNS label
	name := s.Declaration.Name
	return name[:min(most, len(name))] + "-" + s.Pin.Digest.Short()
}
