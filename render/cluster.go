package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/application"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources"
)

// cluster is the state of one cluster's rendering.
type cluster struct {
	input  Input
	wanted *Wanted
	// packages are sorted by name.
	packages []sources.Selected
	// held are the objects of each package that is not broken.
	held map[packageName][]*manifest.Object
	// configs are the configurations of the packages' controllers.
	configs   map[packageName]*runtime.Config
	plain     []*manifest.Object
	broken    []*PackageError
	conflicts []*manifest.DuplicateError
	// shared are the ServiceAccounts that several packages bring.
	shared    map[manifest.ID]bool
	inactive  []PackageType
	delegated []PackageType
	notes     []string
	// refused are the plain objects with errors, which are not rendered.
	refused []*ObjectError
	// beside are the objects beside refused EtcdNamespaces.
	beside []manifest.ID
	// left are Wanted.Left, and the resolved packages that are not rendered for their names.
	// rights are the rights that depend on the content of one that cannot be read.
	left   []sources.Selected
	rights []manifest.ID
	// etcd reports whether the repository has EtcdNamespaces for the cluster.
	etcd bool
	// frozen are the definitions that got rules for immutable fields.
	frozen map[manifest.ID]Frozen
	// described has the names of the definitions that APIResourceSchemas describe, by the
	// schema's name.
	described map[string]string
	// rules are the documents of conversion rules, by the definition's name.
	rules map[string][]*manifest.Object
	// lost are the errors of conversion rules that keep packages from being rendered, by
	// the package's name.
	lost map[string][]error
}

// packageName is a package's identity in a cluster.
type packageName struct {
	kind sources.PackageKind
	name string
}

func (n packageName) compare(o packageName) int {
	return cmp.Or(cmp.Compare(n.kind, o.kind), cmp.Compare(n.name, o.name))
}

func name(s sources.Selected) packageName {
	return packageName{s.Declaration.Kind, s.Declaration.Name}
}

func newCluster(in Input, w *Wanted, packages []sources.Selected) *cluster {
	c := &cluster{
		input:   in,
		wanted:  w,
		held:    make(map[packageName][]*manifest.Object, len(packages)),
		configs: make(map[packageName]*runtime.Config),
		plain:   w.Objects,
		left:    slices.Clone(w.Left),
		broken:  slices.Clone(w.Broken),
		shared:  make(map[manifest.ID]bool),
		frozen:  make(map[manifest.ID]Frozen),
	}
	sorted := slices.SortedStableFunc(slices.Values(packages), func(a, b sources.Selected) int { return name(a).compare(name(b)) })
	for i, err := range nameConflicts(in, sorted, w) {
		if err != nil {
			c.fail(sorted[i], err)
			c.left = append(c.left, sorted[i])
			continue
		}
		c.packages = append(c.packages, sorted[i])
	}
	for _, s := range c.packages {
		// An error comes up again when the package is expanded.
		c.configs[name(s)], _ = w.runtimeOf(s)
	}
	for _, d := range w.Packages {
		there := slices.ContainsFunc(packages, func(s sources.Selected) bool { return name(s) == packageName{d.Kind, d.Name} })
		if !there {
			c.broken = append(c.broken, &PackageError{Kind: d.Kind, Name: d.Name, Place: d.Place(), Err: fmt.Errorf("%s was not resolved", d.Ref)})
		}
	}
	return c
}

// nameConflicts returns an error for each package that has the name of another, and for
// those that depend on it; nil for the others. A dependency gives way to a declared package.
// What gitopsd renders is told apart by [manifest.PackageLabel] alone, so that a Provider and
// a Configuration of one name are in conflict too. Crossplane tells the kinds apart.
func nameConflicts(in Input, packages []sources.Selected, w *Wanted) []error {
	key := func(d sources.Declaration) packageName {
		if delegates(in, d.Kind) {
			return packageName{d.Kind, d.Name}
		}
		return packageName{name: d.Name}
	}
	declared := make(map[packageName]string) // the place
	for _, d := range w.Packages {
		declared[key(d)] = d.Place()
	}
	for _, s := range w.Held {
		declared[key(s.Declaration)] = s.Declaration.Place()
	}
	errs := make([]error, len(packages))
	same := make(map[packageName][]sources.Selected)
	for i, s := range packages {
		k := key(s.Declaration)
		if place, ok := declared[k]; ok && s.Parent != "" {
			errs[i] = fmt.Errorf("%s, on which %s depends, has the name of the package that %s declares; declare it under another", s.Pin, s.Parent, place)
			continue
		}
		same[k] = append(same[k], s)
	}
	for i, s := range packages {
		if all := same[key(s.Declaration)]; errs[i] == nil && len(all) > 1 {
			errs[i] = sameName(all)
		}
	}
	for changed := true; changed; {
		changed = false
		for i, s := range packages {
			for j, other := range packages {
				if errs[i] == nil && errs[j] != nil && dependsOn(s, other) {
					errs[i], changed = fmt.Errorf("%s depends on %s: %w", s.Pin.Ref, other.Repository(), errs[j]), true
				}
			}
		}
	}
	return errs
}

// sameName is the error of packages of one name, which are sorted by kind.
func sameName(packages []sources.Selected) error {
	var texts []string
	for _, s := range packages {
		texts = append(texts, s.Pin.String())
	}
	first := packages[0].Declaration
	if first.Kind == packages[len(packages)-1].Declaration.Kind || first.File == "" {
		return fmt.Errorf("%s have the same name; declare one of them under another", strings.Join(texts, " and "))
	}
	// The name of a Provider is in the names of its controller's objects.
	return fmt.Errorf("%s have the same name, and the label %s could not tell their objects apart; rename the %s at %s, whose objects keep their names",
		strings.Join(texts, " and "), manifest.PackageLabel, first.Kind, first.Place())
}

// dependsOn reports whether a package needs another, as sources/resolve reads it.
func dependsOn(s, other sources.Selected) bool {
	if s.Package == nil || s.Declaration.SkipDependencyResolution {
		return false
	}
	return slices.ContainsFunc(s.Package.Meta.DependsOn, func(d sources.Dependency) bool { return d.Repository == other.Repository() })
}

// notef adds a note.
func (c *cluster) notef(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// refuse records the error of a plain object.
func (c *cluster) refuse(o *manifest.Object, err error) {
	c.refused = append(c.refused, &ObjectError{ID: o.ID(), Origin: o.Origin(), Err: err})
}

// fail records the error of a package.
func (c *cluster) fail(s sources.Selected, err error) {
	delete(c.held, name(s))
	c.broken = append(c.broken, &PackageError{Kind: s.Declaration.Kind, Name: s.Declaration.Name, Place: s.Declaration.Place(), Err: err})
}

// bind adds the objects that give controllers of Providers their rights, which depend on
// the cluster's other Providers.
func (c *cluster) bind(expanded map[packageName]*expansion) {
	controllers := make([]runtime.Controller, len(c.packages))
	for i, p := range c.packages {
		controllers[i] = runtime.Controller{Selected: p, Config: c.configs[name(p)]}
		if e := expanded[name(p)]; e != nil && controllers[i].Image() == "" {
			controllers[i].Types = e.definitions()
		}
	}
	for _, s := range slices.Concat(c.wanted.Held, c.left) {
		if s.Declaration.Kind == sources.Configuration || s.Declaration.Kind == sources.Function {
			continue
		}
		config, _ := c.wanted.runtimeOf(s) // an error is the declaration's
		controllers = append(controllers, runtime.Controller{Selected: s, Config: config})
	}
	for i, s := range c.packages {
		if s.Declaration.Kind != sources.Provider || expanded[name(s)] == nil || c.held[name(s)] == nil {
			continue
		}
		rights, err := runtime.Rights(controllers[i], controllers)
		if err != nil {
			c.fail(s, err)
			continue
		}
		if unclear := runtime.Unclear(controllers[i], controllers); len(unclear) > 0 {
			c.rights = append(c.rights, runtime.RightsIDs(s.Declaration.Name)...)
			rights = slices.DeleteFunc(rights, func(o *manifest.Object) bool { return o.ID().Is(manifest.ClusterRoleBinding) })
			c.notef("package %s: the accounts that have its rights stay the same, since %s may be of its family and cannot be read", s.Declaration.Name, strings.Join(unclear, ", "))
		}
		c.held[name(s)] = append(slices.Clone(c.held[name(s)]), rights...)
		if controllers[i].Image() == "" {
			c.noteIdle(s)
			continue
		}
		if strangers := runtime.Strangers(controllers[i], controllers); len(strangers) > 0 {
			c.notef("package %s names the same family as %s, and they get no rights on each other's types: a family is of one registry and organization",
				s.Declaration.Name, strings.Join(strangers, ", "))
		}
	}
}

// noteIdle notes a declaration that configures a controller although its package has none.
// It ignores ImageConfigs and the configuration named default: they are for many packages,
// some of which may have no controller.
func (c *cluster) noteIdle(s sources.Selected) {
	if d := s.Declaration; d.RuntimeConfig != "" && d.RuntimeConfig != defaultRuntimeConfig {
		c.notef("%s: Provider %s: spec.runtimeConfigRef means nothing, since %s has types and no controller; a %s gives it one by the image of a container %s",
			d.Place(), d.Name, s.Pin.Ref, manifest.RuntimeConfig.Kind, runtime.ContainerName)
	}
}

// noteAdopt notes a declaration that would adopt, although it is no object in the cluster. With
// delegation it is one.
func (c *cluster) noteAdopt(s sources.Selected) {
	d := s.Declaration
	if _, adopts := manifest.Mapping(d.Document.Tree, "metadata", "annotations")[manifest.AdoptAnnotation]; adopts {
		c.notef("%s: %s %s: %s means nothing here, since the package itself is no object in the cluster; have one of the Cluster's spec.patches annotate the package's objects, or annotate the Cluster with the owners that the plan names",
			d.Place(), d.Kind, d.Name, manifest.AdoptAnnotation)
	}
}

// settle removes objects that are defined more than once, and every package that
// defines one of them: the intended definition is unknown, and a package without
// one of its objects is incomplete. All of them stay unchanged in the cluster.
// Controllers may share an account.
func (c *cluster) settle() {
	all := slices.Clone(c.plain)
	owner := make(map[*manifest.Object]sources.Selected)
	for _, s := range c.packages {
		for _, o := range c.held[name(s)] {
			all = append(all, o)
			owner[o] = s
		}
	}
	set, duplicates := manifest.NewSet(all)
	if len(duplicates) == 0 {
		return
	}
	for _, d := range duplicates {
		named := c.namedAccount(d, owner)
		if named && alike(d.Objects) {
			c.shared[d.ID] = true
			continue
		}
		err := error(d)
		if named {
			err = fmt.Errorf("%w, or the same labels and annotations in spec.serviceAccountTemplate of each %s, and the same commonLabels and commonAnnotations for each package", d, manifest.RuntimeConfig.Kind)
		}
		c.conflicts = append(c.conflicts, d)
		for _, o := range d.Objects {
			if s, packaged := owner[o]; packaged && c.held[name(s)] != nil {
				c.fail(s, err)
			}
		}
	}
	c.plain = slices.DeleteFunc(slices.Clone(c.plain), func(o *manifest.Object) bool { return set.Get(o.ID()) == nil })
}

// namedAccount reports whether the definitions are of one ServiceAccount that the
// configurations of several controllers name. A package does not get the account of
// another by its name alone.
func (c *cluster) namedAccount(d *manifest.DuplicateError, owner map[*manifest.Object]sources.Selected) bool {
	return d.ID.Is(manifest.ServiceAccount) && !slices.ContainsFunc(d.Objects, func(o *manifest.Object) bool {
		config := c.configs[name(owner[o])]
		return config == nil || config.ServiceAccount.Name != d.ID.Name
	})
}

// alike reports whether objects differ at most in the package that they are of.
func alike(objects []*manifest.Object) bool {
	of := map[string]string{manifest.PackageLabel: ""}
	first := objects[0].WithMetadata(of, nil).Hash()
	return !slices.ContainsFunc(objects[1:], func(o *manifest.Object) bool { return o.WithMetadata(of, nil).Hash() != first })
}

// withTargets returns the plain objects with the objects of publications, and with the
// definitions of targets if the cluster needs them.
func (c *cluster) withTargets() ([]*manifest.Object, error) {
	objects := slices.Clip(c.plain)
	for _, p := range c.input.Publications {
		if p.Home == c.input.Cluster && p.Automatic {
			made, err := target.Automatic(p)
			if err != nil {
				return nil, err
			}
			objects = append(objects, made...)
		}
		if p.Cluster == c.input.Cluster {
			made, err := target.Grant(p)
			if err != nil {
				return nil, err
			}
			objects = append(objects, made...)
		}
	}
	return target.AddDefinitions(objects, c.input.Targets)
}

// grants reports whether connections use ServiceAccounts of the cluster.
func (c *cluster) grants() bool {
	return slices.ContainsFunc(c.input.Publications, func(p target.Publication) bool { return p.Cluster == c.input.Cluster && p.Role != "" })
}

// objects returns the plain objects, the packages' objects, the server of conversion rules,
// and gitopsd's namespace if the cluster needs it: for controllers, accounts of connections, or
// CAs of etcd namespaces. Pins had ConfigMaps in it, and clusters with these keep it. An account
// that packages share is the first one's.
func (c *cluster) objects(server []*manifest.Object) ([]*manifest.Object, error) {
	objects := slices.Clone(c.plain)
	for _, s := range c.packages {
		for _, o := range c.held[name(s)] {
			if !c.shared[o.ID()] || manifest.Find(objects, o.ID()) == nil {
				objects = append(objects, o)
			}
		}
	}
	objects = append(objects, server...)
	if !c.input.EnforcePins && !c.serves() && !c.grants() && !c.etcd && (c.input.Delegate || !c.hasProvider()) {
		return objects, nil
	}
	namespace, err := runtime.System()
	if err != nil {
		return nil, err
	}
	// The repository may define the namespace itself, with its own labels.
	if manifest.Find(c.wanted.Objects, namespace.ID()) != nil {
		return objects, nil
	}
	return append(objects, namespace), nil
}

// refuseInvalid leaves out objects with owners and applications with errors. Patches may cause or
// mend these.
func (c *cluster) refuseInvalid(objects []*manifest.Object) []*manifest.Object {
	return slices.DeleteFunc(slices.Clone(objects), func(o *manifest.Object) bool {
		err := o.CheckOwners()
		if err == nil && o.ID().Is(manifest.Application) {
			_, err = application.Read(o.Tree())
		}
		if err != nil {
			c.refuse(o, err)
		}
		return err != nil
	})
}

// hasProvider reports whether the cluster has Providers, including broken ones, since
// their controllers stay in the cluster.
func (c *cluster) hasProvider() bool {
	return slices.ContainsFunc(c.packages, func(s sources.Selected) bool { return s.Declaration.Kind == sources.Provider }) ||
		slices.ContainsFunc(c.broken, func(e *PackageError) bool { return e.Kind != sources.Configuration && e.Kind != sources.Function }) // a misspelled kind too
}

// bare reports whether none of the objects comes from the directory or a package.
func (c *cluster) bare(set *manifest.Set) bool {
	has := func(o *manifest.Object) bool { return set.Get(o.ID()) != nil }
	for _, objects := range c.held {
		if slices.ContainsFunc(objects, has) {
			return false
		}
	}
	for _, name := range c.described {
		if set.Get(manifest.CRD.ID("", name)) != nil {
			return false
		}
	}
	return !slices.ContainsFunc(c.wanted.Objects, has)
}

func (c *cluster) rendered(set *manifest.Set) *Rendered {
	slices.SortStableFunc(c.broken, func(a, b *PackageError) int {
		return packageName{a.Kind, a.Name}.compare(packageName{b.Kind, b.Name})
	})
	r := &Rendered{
		Objects: set, Bare: c.bare(set), Broken: c.broken, Conflicts: c.conflicts, Inactive: c.inactive, Delegated: c.delegated, Notes: c.notes,
		Refused: c.refused, Frozen: c.frozen,
		selected: make(map[string]bool, len(c.packages)),
		runs:     make(map[string]bool, len(c.packages)),
		broken:   make(map[string]bool, len(c.broken)),
		conflict: make(map[manifest.ID]bool, len(c.conflicts)),
	}
	for _, s := range c.packages {
		r.selected[s.Declaration.Name] = true
	}
	for _, o := range set.All() {
		if pkg := o.Label(manifest.PackageLabel); pkg != "" && o.ID().Is(manifest.Deployment) {
			r.runs[pkg] = true
		}
	}
	for _, e := range c.broken {
		r.broken[e.Name] = true
	}
	for _, s := range c.left { // another package may have its name
		r.broken[s.Declaration.Name] = true
	}
	for _, e := range c.conflicts {
		r.conflict[e.ID] = true
	}
	for _, e := range c.refused {
		r.conflict[e.ID] = true
	}
	for _, id := range slices.Concat(c.beside, c.rights) {
		r.conflict[id] = true
	}
	r.unknown = len(r.broken) > 0 || slices.ContainsFunc(slices.Collect(maps.Keys(r.conflict)), func(id manifest.ID) bool { return id.Is(manifest.CRD) })
	return r
}
