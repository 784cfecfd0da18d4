package render

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

const installByType = "by-type"

// alwaysInstalled are the kinds that configure providers, which policies do not apply to
// (github.com/crossplane/crossplane, internal/converter).
var alwaysInstalled = []string{"ProviderConfig", "ClusterProviderConfig", "ProviderConfigUsage"}

// PackageType is a type that a package defines and that is not rendered.
type PackageType struct {
	// Definition is the object that would define the type.
	Definition manifest.ID
	// Group and Kind are the type's own.
	Group, Kind string
	// Package is the package's name in the cluster.
	Package string
}

// policy is a ManagedResourceActivationPolicy.
type policy struct {
	object   *manifest.Object
	patterns []string
}

func (p policy) String() string {
	return fmt.Sprintf("%s %s (%s)", manifest.ActivationPolicy.Kind, p.object.ID().Name, p.object.Origin())
}

// policies are all policies of a cluster.
type policies []policy

// activate reports whether the type of a definition is active. Crossplane reads patterns
// as [path.Match] does.
func (p policies) activate(crd string) bool {
	return slices.ContainsFunc(p, func(one policy) bool {
		return slices.ContainsFunc(one.patterns, func(pattern string) bool { return matches(pattern, crd) })
	})
}

func matches(pattern, name string) bool {
	ok, _ := path.Match(pattern, name) // parsePolicy has checked the pattern
	return ok
}

// key returns a text that is equal for sets of policies that activate the same.
func (p policies) key() string {
	var all []string
	for _, one := range p {
		all = append(all, one.patterns...)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "\n")
}

// parsePolicy reads a policy strictly: ignoring a part would activate other types
// than the policy names.
func parsePolicy(o *manifest.Object) (policy, error) {
	p := policy{object: o}
	err := func() error {
		if v := o.Version(); v != "v1alpha1" && v != "v1beta1" && v != "v1" {
			return fmt.Errorf("apiVersion: %s is not known; write %s/v1alpha1", o.APIVersion(), manifest.GroupComposites)
		}
		spec := manifest.Mapping(o.Tree(), "spec")
		if spec == nil {
			return errors.New("spec: is missing, or not a mapping")
		}
		for key := range spec {
			if key != "activate" {
				return fmt.Errorf("spec.%s: is not a field of a %s", key, manifest.ActivationPolicy.Kind)
			}
		}
		list := manifest.List(spec, "activate")
		if len(list) == 0 {
			return errors.New("spec.activate: want a list of the names of types, such as buckets.s3.aws.upbound.io or *.s3.aws.upbound.io")
		}
		for i, item := range list {
			pattern, ok := item.(string)
			if !ok {
				return fmt.Errorf("spec.activate.%d: %w", i, wantString(item))
			}
			if _, err := path.Match(pattern, ""); err != nil {
				return fmt.Errorf("spec.activate.%d: %q is not a pattern: '*' stands for any text, '?' for a character, '[a-z]' for one of several", i, pattern)
			}
			p.patterns = append(p.patterns, pattern)
		}
		return nil
	}()
	if err != nil {
		return p, fmt.Errorf("%s: %s %s: %w", o.Origin(), manifest.ActivationPolicy.Kind, o.ID().Name, err)
	}
	return p, nil
}

// readPolicies reads the cluster's own policies and those in its Configurations.
// While a policy is invalid, packages that are installed by type are not rendered.
func readPolicies(own []*manifest.Object, expanded map[packageName]*expansion) (policies, []error) {
	all := slices.Clone(own)
	for _, e := range expanded {
		all = append(all, e.policies...)
	}
	slices.SortStableFunc(all, func(a, b *manifest.Object) int { return a.ID().Compare(b.ID()) })
	var read policies
	var errs []error
	for _, o := range all {
		p, err := parsePolicy(o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		read = append(read, p)
	}
	return read, errs
}

// selection is the part of a package that a set of policies activates.
type selection struct {
	objects  []*manifest.Object
	inactive []PackageType
	types    int
}

// choose removes the types that no policy activates from a package's objects. The
// remaining objects are shared with the package's other clusters. The controller
// keeps its rights for all types of the package, as in Crossplane: a type that held
// objects when it was deactivated stays installed, and its objects must not be
// orphaned.
func choose(s sources.Selected, e *expansion, p policies) *selection {
	chosen := &selection{objects: make([]*manifest.Object, 0, len(e.objects))}
	for _, o := range e.objects {
		if !e.subject(o) {
			chosen.objects = append(chosen.objects, o)
			continue
		}
		chosen.types++
		if p.activate(o.ID().Name) {
			chosen.objects = append(chosen.objects, o)
			continue
		}
		d := types.Read(o.Tree())
		chosen.inactive = append(chosen.inactive, PackageType{Definition: o.ID(), Group: d.Group, Kind: d.Names.Kind, Package: s.Declaration.Name})
	}
	return chosen
}

// share appends, without a copy if list is empty: most clusters have one list only, and
// a large package has a thousand types.
func share(list, more []PackageType) []PackageType {
	if len(list) == 0 {
		return slices.Clip(more)
	}
	return append(list, more...)
}

// subject reports whether policies apply to an object of the package.
func (e *expansion) subject(o *manifest.Object) bool {
	if !o.ID().Is(manifest.CRD) || e.active[o.ID()] {
		return false
	}
	return !slices.Contains(alwaysInstalled, types.Read(o.Tree()).Names.Kind)
}

// activate removes inactive types from packages that are installed by type, and notes
// likely mistakes.
func (r *Renderer) activate(c *cluster, expanded map[packageName]*expansion) {
	all, errs := readPolicies(c.wanted.policies, expanded)
	for _, err := range errs {
		c.notef("%v", err)
	}
	found := make(map[string]bool) // patterns that match a type that is installed by type
	for _, s := range c.packages {
		e := expanded[name(s)]
		switch {
		case s.Declaration.ByType && c.input.Delegate:
			c.notef("Provider %s is installed by Crossplane, whose policies decide about its types, its default one (%q) among them; %s means nothing here",
				s.Declaration.Name, "*", manifest.InstallAnnotation)
		case e == nil || s.Declaration.Kind != sources.Provider:
		case !s.Declaration.ByType:
			c.noteWhole(s, e, all, found)
		case len(errs) > 0:
			c.fail(s, errors.Join(errs...))
		default:
			chosen, err := recall(r, &r.selections, selectionKey{e, all.key()}, func() (*selection, error) { return choose(s, e, all), nil })
			if err != nil {
				c.fail(s, err)
				continue
			}
			c.held[name(s)] = chosen.objects
			c.inactive = share(c.inactive, chosen.inactive)
			c.noteByType(s, e, chosen, all, found)
		}
	}
	if len(errs) > 0 || len(c.broken) > 0 {
		return // the patterns may be for packages that could not be rendered
	}
	for _, p := range all {
		for _, pattern := range p.patterns {
			if !found[pattern] {
				c.notef("%s: pattern %q matches no type of this cluster's packages", p, pattern)
			}
		}
	}
}

// noteWhole notes that policies would leave out types of a package if it were
// installed by type.
func (c *cluster) noteWhole(s sources.Selected, e *expansion, all policies, found map[string]bool) {
	types, active := 0, 0
	for _, o := range e.objects {
		if !e.subject(o) {
			continue
		}
		types++
		if note(all, o.ID().Name, found) {
			active++
		}
	}
	if active > 0 && active < types {
		c.notef("Provider %s installs all of its %d types, though policies name %s; to get these alone, annotate its declaration with %s: %s",
			s.Declaration.Name, types, counted(active), manifest.InstallAnnotation, installByType)
	}
}

func counted(n int) string {
	if n == 1 {
		return "one of them"
	}
	return fmt.Sprintf("%d of them", n)
}

// noteByType adds the notes about a package that is installed by type.
func (c *cluster) noteByType(s sources.Selected, e *expansion, chosen *selection, all policies, found map[string]bool) {
	for _, o := range e.objects {
		if e.subject(o) {
			note(all, o.ID().Name, found)
		}
	}
	switch {
	case len(c.broken) > 0: // a package with errors may have the policies
	case chosen.types > 0 && len(chosen.inactive) == chosen.types:
		which := "its only type"
		if chosen.types > 1 {
			which = fmt.Sprintf("any of its %d types", chosen.types)
		}
		c.notef("Provider %s is installed by type, and no %s activates %s", s.Declaration.Name, manifest.ActivationPolicy.Kind, which)
	case len(chosen.inactive) > 0 && !runtime.SafeStart(s.Package.Meta):
		c.notef("Provider %s is installed by type (%d of %d), and does not say that its controller starts where types are missing (capability safe-start); if it does not, activate the types that it asks for",
			s.Declaration.Name, chosen.types-len(chosen.inactive), chosen.types)
	}
}

// note marks the patterns that match a type and reports whether any does.
func note(all policies, crd string, found map[string]bool) (active bool) {
	for _, p := range all {
		for _, pattern := range p.patterns {
			if matches(pattern, crd) {
				found[pattern], active = true, true
			}
		}
	}
	return active
}
