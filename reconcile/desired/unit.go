package desired

import (
	"cmp"
	"context"
	"io/fs"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/health"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prove"
	"gitopsd.dev/render"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/remote"
	"gitopsd.dev/render/target"
	"gitopsd.dev/render/types/compat"
	"gitopsd.dev/render/validate"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
)

// ID identifies a unit of work in the fleet. It is comparable.
type ID struct {
	// Cluster is the registered name of the cluster that the unit is in; for an
	// application, of the cluster that has its declaration: a DNS label.
	Cluster string
	// Name tells it from other units in the cluster: a DNS subdomain. It is empty
	// for the cluster's own manifests.
	Name string
}

// String returns the cluster's name, followed by a dot and the unit's name if it has
// one. It also names the unit's inventory and checkpoint.
func (id ID) String() string {
	if id.Name == "" {
		return id.Cluster
	}
	return id.Cluster + "." + id.Name
}

// ParseID is the reverse of [ID.String].
func ParseID(name string) ID {
	cluster, unit, _ := strings.Cut(name, ".")
	return ID{Cluster: cluster, Name: unit}
}

// Unit is a unit of work: an inventory in a cluster, and its desired objects. The manifests of
// a registered cluster are one.
type Unit struct {
	ID ID
	// Cluster is the registration of the unit's cluster.
	clusters.Cluster
	// Beside are all registered clusters; nil for an application.
	Beside []clusters.Cluster
	// Declaration is the object with the unit's annotations if that is not the registration.
	Declaration string
	// After are the units that must be ready before this one is changed.
	After []ID
	// Suspend reports whether the unit is left alone.
	Suspend bool
	// ReportDrift reports whether drift is reported instead of corrected.
	ReportDrift bool
	// Commit is the commit that declares it; empty for a working tree.
	Commit string
	// Declared are the packages that its manifests declare, and Unreadable those whose
	// declarations have errors, with the fields that can be read.
	Declared, Unreadable []sources.Declaration
	// Images are the ImageConfigs among its manifests.
	Images sources.ImageConfigs
	// Packages are the selected packages, sorted by repository.
	Packages []sources.Selected
	// Objects are all rendered objects; nil if rendering failed as a whole.
	Objects *manifest.Set
	// Bare reports whether none of Objects comes from the cluster's directory.
	Bare bool
	// Err is why rendering failed as a whole. It does not name the cluster.
	Err error
	// Faults are the problems of single packages and objects.
	Faults []problem.Problem
	// Notes are worth reading, but not faults.
	Notes []string
	// Waiting are revisions of packages that wait for approval.
	Waiting []string
	// Inactive are types that no activation policy activates, and Delegated the types of
	// packages that Crossplane installs.
	Inactive, Delegated []render.PackageType
	// Incomplete names the packages that could not be resolved or rendered.
	Incomplete []string
	// Health has the rules for the health of kinds; nil if rendering failed as a whole.
	Health *health.Custom
	// Patched are the objects that Spec.Patches changed, as they were before, by ID.
	Patched map[manifest.ID]*manifest.Object
	// Conversions are the conversion rules of definitions in Objects, by the
	// definition's name.
	Conversions map[string]*render.Conversion
	// Frozen are the definitions with rules for immutable fields, by ID.
	Frozen map[manifest.ID]render.Frozen
	// Keeps reports whether an existing object that is not in Objects must stay because it
	// may still be desired; pkg is its package. It is nil if rendering failed as a whole:
	// then all must stay.
	Keeps func(id manifest.ID, pkg string) bool
	// LineOf returns the line of a field in the file of an object; 0 if unknown. It is nil if
	// rendering failed as a whole.
	LineOf func(o *manifest.Object, path string) int
	// FindType returns a definition that has a type with a digest, and where it was found:
	// in the rendered objects of any cluster of the state, in its packages as published, or
	// in other versions of these in the lock. It may fetch packages. The definition is nil if
	// there is none.
	FindType func(ctx context.Context, gvk schema.GroupVersionKind, digest string) (definition map[string]any, where string)
	// FindBehaviour returns the behaviour with a digest that acts on a kind's objects, and
	// where it was found: in any cluster of the state, or with another version in the lock of
	// the package that defines the kind. It may fetch packages. The behaviour is nil if there
	// is none.
	FindBehaviour func(ctx context.Context, kind schema.GroupKind, digest string) (i *behaviour.Identity, where string)
	// Types caches the compiled types that objects are checked by, for all clusters.
	Types *validate.Cache
	// Proofs caches the proofs of conversion rules, for all clusters.
	Proofs *prove.Cache

	// allowances are the breaking changes of types that declarations allow, by the package's
	// name.
	allowances map[string]allowances
	// index finds what acts on the types of Objects.
	index func() *behaviour.Index
	// with renders the unit with other packages. It returns nil if that fails.
	with func(ctx context.Context, packages []sources.Selected) *manifest.Set
	// gates are the objects of packages to wait for, by the package's name.
	gates map[string]plan.Gates
	// idle are notes on verification policies that match nothing, on packages that stay as
	// they are, and on versions that a rule would exclude.
	idle []string
	// bases are the remote bases that it is rendered from.
	bases remote.Bases
	// publications are those of its cluster, and those to its namespaces.
	publications []target.Publication
	// home reports whether a cluster is published to its namespaces.
	home bool
}

// Registered returns the unit of a cluster's own manifests, with only the registration. A
// cluster that must be emptied waits for no other, and has no desired objects.
func Registered(c clusters.Cluster, commit string) *Unit {
	u := &Unit{
		ID: ID{Cluster: c.Name}, Cluster: c, Commit: commit,
		Suspend: c.Spec.Suspend, ReportDrift: c.Spec.Drift == clusters.Report,
	}
	if c.Remove {
		u.Objects, _ = manifest.NewSet(nil) // nothing is defined twice
		return u
	}
	for _, on := range c.Spec.DependsOn {
		u.After = append(u.After, ID{Cluster: on})
	}
	return u
}

// allowances are the allowances of a package's declaration, for its version.
type allowances struct {
	version string
	all     []compat.Allowance
}

// Order returns the declared order of the packages, by name. Packages of several kinds and one
// name share theirs, since gitopsd.dev/package is on the objects of all.
func (c *Unit) Order() map[string]plan.Order {
	order := make(map[string]plan.Order, len(c.Packages))
	for _, p := range c.Packages {
		o := plan.Order{DependsOn: annotation(p.Declaration, manifest.DependsOnAnnotation), File: p.Declaration.File}
		same := order[p.Declaration.Name]
		if same.DependsOn != "" {
			o.DependsOn += "," + same.DependsOn
		}
		o.File = cmp.Or(o.File, same.File) // that of a dependency is empty
		order[p.Declaration.Name] = o
	}
	return order
}

func annotation(d sources.Declaration, key string) string {
	return manifest.Text(d.Document.Tree, "metadata", "annotations", key)
}

// Allows reports whether a package's declaration allows a breaking finding, and the
// reason.
func (c *Unit) Allows(pkg string, f compat.Finding) (reason string, ok bool) {
	a := c.allowances[pkg]
	found, ok := compat.Allowed(a.all, a.version, f)
	return found.Reason, ok
}

// readAllowances reads the allowances of the declarations. A malformed one allows
// nothing.
func (c *Unit) readAllowances() {
	c.allowances = make(map[string]allowances)
	for _, p := range c.Packages {
		text := annotation(p.Declaration, manifest.AllowBreakingAnnotation)
		if text == "" {
			continue
		}
		all, err := compat.ParseAllowances(text)
		if err != nil {
			c.fault(problem.Problem{Package: p.Declaration.Name, Origin: p.Declaration.Place(), Reason: err.Error()})
			continue
		}
		if p.Declaration.Kind != sources.Function { // which has no types, and may have a Provider's name
			c.allowances[p.Declaration.Name] = allowances{p.Pin.Ref.Version(), all}
		}
	}
}

// Publishes reports whether the objects are published in an etcd namespace of the cluster's own.
func (c *Unit) Publishes() bool { return c.Spec.Etcd != nil && c.Spec.Etcd.Namespace != "" }

// Complete reports whether Objects has all desired objects of the cluster.
func (c *Unit) Complete() bool { return c.Err == nil && len(c.Faults) == 0 }

// Origin returns the origin of a package for the cluster, also if the package could not be
// resolved. ok is false if the cluster does not have the package.
func (cl *Unit) Origin(repository string) (o sources.Origin, ok bool) {
	for _, p := range cl.Packages {
		if p.Pin.Ref.Repository == repository {
			return p.Origin, true
		}
	}
	for _, d := range cl.Declared {
		if d.Ref.Repository == repository {
			o, err := cl.Images.Origin(d.Ref, d.PullSecrets)
			return o, err == nil
		}
	}
	return sources.Origin{}, false
}

// Problems returns all problems of the cluster: Err and Faults.
func (cl *Unit) Problems() []problem.Problem {
	if cl.Err == nil {
		return cl.Faults
	}
	return append(problem.Of(problem.In(cl.Name, cl.Err)), cl.Faults...)
}

// fault adds a problem of a package or an object that the commit and its pinned packages
// decide, so that it stays until somebody changes the repository.
func (cl *Unit) fault(p problem.Problem) {
	p.Lasting = true
	cl.passingFault(p)
}

// passingFault adds a problem that may pass, such as a registry that does not answer.
func (cl *Unit) passingFault(p problem.Problem) {
	p.Cluster = cl.Name
	cl.Faults = append(cl.Faults, p)
}

// Input returns the input for rendering the cluster from the repository's files.
func (cl *Unit) Input(files fs.FS) render.Input {
	in := render.Input{Cluster: cl.Name, Files: files, Path: cl.Spec.Path, Remote: cl.bases, Delegate: cl.Spec.Packages == clusters.Delegate, EnforcePins: cl.Spec.Pins == clusters.Enforce}
	in.Patches = patches(cl)
	if c := cl.Spec.Conversion; c != nil && c.Service != nil {
		in.Converter = render.Converter{Image: c.Service.Image, Replicas: *c.Service.Replicas}
	} else if c != nil {
		in.Converter = render.Converter{URL: c.URL}
	}
	if e := cl.Spec.Etcd; e != nil && e.Proxy != nil {
		in.Etcd = etcd.Proxy{Image: e.Proxy.Image, GRPCGo: e.Proxy.GRPCGo, URL: e.Proxy.URL}
		if e.Proxy.Replicas != nil {
			in.Etcd.Replicas = *e.Proxy.Replicas
		}
	}
	in.Targets, in.Publications = cl.Spec.Targets || cl.home, cl.publications
	return in
}
