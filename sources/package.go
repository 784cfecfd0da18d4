package sources

import (
	"errors"
	"io/fs"
	"time"
)

// LockFile is the path of the lock in a fleet repository, RegistryFile that of
// the registry of clusters.
const (
	LockFile     = "clusters.lock"
	RegistryFile = "clusters.yaml"
)

// ErrNotFound is in the chain of errors that say that a registry does not have
// what was asked for, or hides it.
var ErrNotFound = errors.New("not found")

// ErrLate is in the chain of errors that say that a registry did not answer in
// time.
var ErrLate = errors.New("late")

// ErrNoRoom is in the chain of errors that say that other packages leave no
// memory for one, which is no fault of its own or of its registry.
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
	// Time is the committer's.
	Time time.Time
	// Files is the tree, read-only and safe for concurrent use. It holds
	// regular files and directories; a symbolic link in it fails to open.
	Files fs.FS
}

// ContentFS is a file system that can name its content, as a tree of Git's can.
type ContentFS interface {
	fs.FS
	// Content names all files and directories but except, a file at the root:
	// two file systems with the same name have the same ones. It reads none of
	// them.
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
	// Repository is where it was read from: its Origin's.
	Repository string
	// Digest is that of the index or manifest it was read by.
	Digest Digest
	// Children are the platforms of an index, sorted by platform; empty for
	// a single manifest.
	Children []Child
	// Content is the digest of package.yaml, what defines the types.
	Content Digest
	// Meta is what package.yaml says of the package itself.
	Meta PackageMeta
	// Documents are the objects of package.yaml without the meta object, in
	// the order they stand there.
	Documents []Document
}

// Child is one platform's manifest in an index.
type Child struct {
	// Platform is "os/architecture[/variant]".
	Platform string
	// Digest is that of the platform's manifest.
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
	// when the package's own image is the controller's.
	Image string
	// DependsOn are the packages that must be there too.
	DependsOn []Dependency
	// Document is the whole meta object.
	Document Document
}

// Dependency is one entry of a package's spec.dependsOn.
type Dependency struct {
	// Kind is empty where the metadata does not say.
	Kind PackageKind
	// Repository of the package.
	Repository string
	// Constraint is a semver range or a digest.
	Constraint string
}

// PullPolicy says when a locked tag is looked at again.
type PullPolicy string

// The pull policies, with Crossplane's names. IfNotPresent is the default.
const (
	PullAlways       PullPolicy = "Always"
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullNever        PullPolicy = "Never"
)

// Declaration is a package that a cluster's manifests ask for: a Provider,
// Configuration or Function of pkg.crossplane.io.
type Declaration struct {
	Kind PackageKind
	// Name is the object's name, unique by kind in a cluster.
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
	// CommonLabels go on every object of the package, CommonAnnotations too.
	CommonLabels      map[string]string
	CommonAnnotations map[string]string
	// File is where it is declared, in the fleet repository or a remote base.
	File string
	// RuntimeConfig is the name in spec.runtimeConfigRef.
	RuntimeConfig string
	// ByType is the annotation gitopsd.dev/install: by-type: of a Provider's
	// types a cluster gets those that its activation policies name.
	ByType bool
	// Document is the whole object.
	Document Document
}

// Selected is a package that a cluster gets: one that it declares, or a
// dependency of one.
type Selected struct {
	// Declaration is what asked for it; a dependency's has the defaults of
	// its fields and a Name made from the repository's last element.
	Declaration Declaration
	// Pin is what it resolved to.
	Pin Pin
	// Package is its content.
	Package *Package
	// Origin is where it was fetched from.
	Origin Origin
	// Verified says by whose signature it was accepted, for people; empty if
	// nobody asks for one.
	Verified string
	// Runtime is a Provider's controller image by digest,
	// "repository@sha256:…", under the name that clusters pull it by; empty for
	// packages without a controller.
	Runtime string
	// PullSecrets are the names of Secrets that a cluster needs to pull it.
	PullSecrets []string
	// Parent is the repository of the package that depends on it, empty for
	// a declared package.
	Parent string
}

// Revision is the name that Crossplane gives to this revision of the package:
// the package's name and the first twelve digits of the digest.
func (s Selected) Revision() string {
	const most = 50 // characters of the name, so that all of it is a DNS label
	name := s.Declaration.Name
	return name[:min(most, len(name))] + "-" + s.Pin.Digest.Short()
}
