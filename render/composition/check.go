package composition

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Finding is an error in a Composition.
type Finding struct {
	// Composition is the Composition, written at Origin.
	Composition manifest.ID
	Origin      manifest.Origin
	// Path is the place in the Composition.
	Path string
	// Reason is the error, and Advice what to do.
	Reason, Advice string
	// APIVersion and Kind are set if no known object defines the kind. The cluster may
	// serve it nevertheless.
	APIVersion, Kind string
}

// String returns the finding in one line.
func (f *Finding) String() string {
	return fmt.Sprintf("%s (%s): %s: %s; %s", f.Composition, f.Origin, f.Path, f.Reason, f.Advice)
}

// Known knows types of a cluster that no object defines. Both functions may be nil.
type Known struct {
	// Delegated reports whether Crossplane installs the kind with a package.
	Delegated func(manifest.GroupKind) bool
	// Inactive returns advice to activate a kind of a package that is not installed; ""
	// for other kinds.
	Inactive func(manifest.GroupKind) string
}

// most bounds the findings for one Composition.
const most = 20

// Check returns the errors in the Compositions among a cluster's objects.
func Check(objects *manifest.Set, known Known) []Finding {
	c := checker{known: known, definitions: make(map[manifest.GroupKind]*manifest.Object)}
	var compositions []*manifest.Object
	for _, o := range objects.All() {
		switch id := o.ID(); {
		case id.Is(manifest.Definitions...):
			d := types.Read(o.Tree())
			for _, kind := range d.Kinds() {
				c.definitions[manifest.GroupKind{Group: d.Group, Kind: kind}] = o
			}
		case id.Is(manifest.Composition):
			compositions = append(compositions, o)
		}
	}
	var all []Finding
	for _, o := range compositions {
		c.of = o
		c.found = nil
		c.check()
		if more := len(c.found) - most; more > 0 {
			c.found = append(c.found[:most], Finding{
				Composition: o.ID(), Origin: o.Origin(), Path: "spec",
				Reason: fmt.Sprintf("%d more findings like these", more), Advice: "correct the first ones",
			})
		}
		all = append(all, c.found...)
	}
	return all
}

type checker struct {
	known       Known
	definitions map[manifest.GroupKind]*manifest.Object
	of          *manifest.Object
	found       []Finding
}

func (c *checker) fail(path, advice, format string, args ...any) *Finding {
	c.found = append(c.found, Finding{Composition: c.of.ID(), Origin: c.of.Origin(), Path: path, Reason: fmt.Sprintf(format, args...), Advice: advice})
	return &c.found[len(c.found)-1]
}

// check checks one Composition.
func (c *checker) check() {
	apiVersion, kind := compositeOf(c.of.Tree())
	if kind == "" {
		return // the API server reports that
	}
	composite := c.kind("spec.compositeTypeRef", apiVersion, kind)
	if v := composite.referenceable; v != "" && v != composite.version {
		c.fail("spec.compositeTypeRef.apiVersion", "make another Composition with "+v+", since this field cannot be changed",
			"Crossplane looks for Compositions of %s in its referenceable version %s, and does not find this one", composite.kind, v)
	}
	for _, t := range Templates(c.of.Tree()) {
		composed := c.kind(t.Path, t.APIVersion, t.Kind)
		if t.Base != nil && composed.shape != nil {
			for _, name := range composed.lacking(t.Base) {
				c.lacks(t.Path+"."+name, name, composed)
			}
		}
		for _, f := range t.Fields {
			in := composed
			if f.Composite {
				in = composite
			}
			steps, err := split(f.Name)
			switch {
			case err != nil:
				c.fail(f.Path, "correct it", "%v", err)
			case in.shape != nil && !in.has(steps):
				c.lacks(f.Path, f.Name, in)
			}
		}
	}
}

func (c *checker) lacks(path, name string, in defined) {
	advice := "correct the field's name"
	if in.pkg != "" {
		advice += ", or use a version of package " + in.pkg + " that has it"
	}
	c.fail(path, advice, "%s has no field %s in %s", in.kind, name, in.version)
}

// defined is a version of a kind.
type defined struct {
	*shape
	kind, version, pkg string
	// referenceable is the version of an XRD that Compositions name.
	referenceable string
}

// kind looks up a kind in a version and adds a finding if it cannot exist. The shape is nil
// if the fields are not known.
func (c *checker) kind(path, apiVersion, kind string) defined {
	group, version := manifest.GroupVersion(apiVersion)
	gk := manifest.GroupKind{Group: group, Kind: kind}
	name := kind + "." + group
	if Foreign(group) {
		return defined{}
	}
	o := c.definitions[gk]
	if o == nil {
		if c.known.Delegated != nil && c.known.Delegated(gk) {
			return defined{}
		}
		if c.known.Inactive != nil {
			if how := c.known.Inactive(gk); how != "" {
				c.fail(path, how, "the type %s is not activated", name)
				return defined{}
			}
		}
		advice := "declare the package that has it, or correct apiVersion and kind"
		if others := c.others(gk); others != "" {
			advice = "correct apiVersion and kind (there is " + others + "), or declare the package that has it"
		}
		f := c.fail(path, advice, "no package or manifest of the cluster defines %s", name)
		f.APIVersion, f.Kind = apiVersion, kind
		return defined{}
	}
	d := types.Read(o.Tree())
	var served []string
	referenceable := ""
	for _, v := range d.Versions() {
		if d.XRD && v.Storage {
			referenceable = v.Name
		}
	}
	for _, v := range d.Versions() {
		if v.Served && v.Name == version {
			return defined{shapeOf(d, v), name, version, o.Label(manifest.PackageLabel), referenceable}
		}
		if v.Served {
			served = append(served, v.Name)
		}
	}
	c.fail(path+".apiVersion", "use "+oneOf(served), "%s is not served in version %s", name, version)
	return defined{}
}

func oneOf(versions []string) string {
	if len(versions) == 0 {
		return "another type, since no version of this one is served"
	}
	return strings.Join(versions, " or ")
}

// others returns the kinds that differ from kind only in case or group.
func (c *checker) others(kind manifest.GroupKind) string {
	var names []string
	for gk := range c.definitions {
		if strings.EqualFold(gk.Kind, kind.Kind) {
			names = append(names, gk.Kind+"."+gk.Group)
		}
	}
	slices.Sort(names)
	return strings.Join(names[:min(len(names), 3)], ", ")
}

// Foreign reports whether no package defines the kinds of a group: they are of the API
// server, of Crossplane itself or of functions.
func Foreign(group string) bool {
	switch group {
	case manifest.GroupPackages, manifest.GroupComposites, manifest.GroupOperations, "protection.crossplane.io", "secrets.crossplane.io":
		return true
	}
	return manifest.BuiltIn(group) || strings.HasSuffix(group, functionGroups)
}
