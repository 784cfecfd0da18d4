// Package why tells where an object of a cluster, or one field of it, comes from:
// the file and line it was written at, or the package and what declared it, and
// what changed it on its way.
//
// It finds changes by leaving things out: it removes each entry of the kustomizations
// that the object passes through in turn, builds, and compares the results. So the
// answer holds for every feature of kustomize. Kustomize's own transformer annotations
// name the file of every transformer that saw the object, whether it changed it or
// not, and no entry, line or field. A cluster's own patches are compared one after the
// other, as they are applied.
//
// find.go parses the question, why.go answers it, build.go leaves entries out,
// everything.go has the files to build, field.go finds fields in the files. The package
// is pure, like package render. Which commit changed a file last is sources/git's to
// tell, and who else writes to a live object reconcile's.
package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/kustomize"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// ErrNotFound is wrapped by the error for an object that is not rendered for the
// cluster.
var ErrNotFound = errors.New("is not among the cluster's objects")

// Input is what a cluster is rendered from.
type Input struct {
	render.Input
	// Packages are those of the cluster, dependencies included.
	Packages []sources.Selected
}

// Answer says where an object comes from, or a field of it.
type Answer struct {
	// Object is the object as it is rendered.
	Object *manifest.Object
	// Written is where the object was written, with the line of the field if
	// the field is written there. For an object that kustomize generates it is
	// the entry of the kustomization; if the place is unknown, the directory
	// that is built.
	Written manifest.Origin
	// Original is the field as it was written.
	Original Value
	// Field is the field as it is rendered.
	Field Value
	// Filled is where the field's value comes from when the object is applied, if it
	// is not rendered; empty for other fields.
	Filled string
	// Package is where an object of a package comes from, nil for others.
	Package *Provenance
	// Steps made or changed the object, in this order.
	Steps []Step
}

// Value is a field's value. The zero Value is a field that is not there.
type Value struct {
	Set bool
	// Value in JSON's types.
	Value any
}

// Provenance is the package that holds an object, and why the cluster has it.
type Provenance struct {
	Name string
	Pin  sources.Pin
	// Needs are the packages that depend on this one, the nearest first; the
	// last one is declared. Empty for a declared package.
	Needs []string
	// Declared is where it, or the last of Needs, is declared.
	Declared manifest.Origin
	// Steps set the version of the declaration.
	Steps []Step
}

// Effect is what a step does to an object.
type Effect string

// The effects.
const (
	// Makes: without the step there is no such object.
	Makes Effect = "makes"
	// Names: without the step the object has another name.
	Names Effect = "names"
	// Changes: the step changes the object, or the field.
	Changes Effect = "changes"
	// Unknown: without the step the build fails.
	Unknown Effect = "unknown"
)

// Step is one change of an object.
type Step struct {
	// File and Line are where the step is written. File is empty for what
	// gitopsd does by itself.
	File string
	Line int
	// What is the entry of the file, "patches[1]".
	What   string
	Effect Effect
	// Without is the field as it would be without the step, or was before it.
	Without Value
	// Paths are the fields that the step changes, when no field was asked
	// for.
	Paths []string
}

// Explain returns where an object comes from, or where a field of it does. The error
// wraps [ErrNotFound] if the object is not rendered for the cluster. It is an error,
// too, if the object does not have the field and no step removed it, if the cluster
// cannot be rendered, or if the kustomizations have too many entries.
func Explain(ctx context.Context, in Input, id manifest.ID, asked field.Path) (*Answer, error) {
	e := &explainer{in: in, id: id, field: question(asked)}
	final, err := e.expand(ctx, len(in.Patches), true)
	if err != nil {
		return nil, err
	}
	a := &Answer{Object: final.Objects.Get(id), Written: manifest.Origin{}}
	if a.Object == nil {
		return nil, fmt.Errorf("%s: %w%s", id, ErrNotFound, similar(final.Objects, id))
	}
	a.Written, a.Field = a.Object.Origin(), e.field.value(a.Object)
	if from, ok := webhook.Filled(a.Object, asked); ok {
		a.Filled = "the CA of " + from.Object.String()
	}
	var converted []Step
	if c := final.Conversions[id.Name]; c != nil && c.Definition.ID() == id {
		for _, d := range c.Documents {
			if s, differs := e.compare(c.Before, c.Definition, Makes); differs {
				s.File, s.Line, s.What = d.Origin.File, d.Origin.Line, "conversion rules"
				converted = append(converted, s)
			}
		}
	}
	patched, err := e.patches(ctx)
	if err != nil {
		return nil, err
	}
	before := patched.before
	if before == nil { // a patch gave it its name
		a.Steps = append(patched.steps, converted...)
		return a, nil
	}
	var frozen []Step
	if f, ok := final.Frozen[id]; ok {
		// What comes before the rules is explained without them.
		if s, differs := e.compare(f.Before, f.After, Makes); differs {
			s.File, s.Line, s.What = f.By.File, f.By.Line, "annotation "+manifest.ImmutableAnnotation
			frozen = append(frozen, s)
		}
		before = f.Before
	}
	var built []Step
	switch pkg := e.holder(a.Written.Package); {
	case id.Group == manifest.GroupPackages && e.delegated(id) != nil:
		built, err = e.pinned(ctx, a, e.delegated(id), before)
	case pkg != nil:
		built, err = e.packaged(ctx, a, pkg, before)
	case a.Written.File != "":
		built, err = e.kustomized(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	a.Steps = slices.Concat(built, frozen, patched.steps, converted)
	if len(asked) > 0 && !a.Field.Set && a.Filled == "" && !a.Original.Set && !slices.ContainsFunc(a.Steps, func(s Step) bool { return s.Without.Set }) {
		return nil, fmt.Errorf("%s has no field %s, and nothing on its way removed one", id, asked)
	}
	return a, nil
}

type explainer struct {
	in       Input
	id       manifest.ID
	field    question
	renderer render.Renderer
}

// expand renders the cluster with the first patches of its own, and with conversion
// rules or without.
func (e *explainer) expand(ctx context.Context, patches int, rules bool) (*render.Rendered, error) {
	in := e.in.Input
	in.Patches = in.Patches[:patches]
	// What is broken is not what was asked about; if it is, it is not found.
	w, err := e.renderer.Want(ctx, in)
	if w == nil {
		return nil, err
	}
	if !rules {
		w = w.WithoutRules()
	}
	r, err := e.renderer.Expand(ctx, in, w, e.in.Packages)
	if r == nil {
		return nil, err
	}
	return r, nil
}

// patched is what became of an object by the cluster's own patches.
type patched struct {
	// before is the object before them, nil if it had another name.
	before *manifest.Object
	steps  []Step
}

func (e *explainer) patches(ctx context.Context) (patched, error) {
	var p patched
	var last *manifest.Object
	for n := 0; n <= len(e.in.Patches); n++ {
		rendered, err := e.expand(ctx, n, false)
		if err != nil {
			return p, err
		}
		now := rendered.Objects.Get(e.id)
		switch {
		case n == 0:
			p.before = now
		default:
			if s, differs := e.compare(last, now, Names); differs {
				s.File, s.What = sources.RegistryFile, fmt.Sprintf("cluster %s, spec.patches[%d]", e.in.Cluster, n-1)
				p.steps = append(p.steps, s)
			}
		}
		last = now
	}
	return p, nil
}

// compare says what a step does that makes an object of another; missing is its
// effect where there is no object without it.
func (e *explainer) compare(without, with *manifest.Object, missing Effect) (Step, bool) {
	switch {
	case without == nil && with == nil:
		return Step{}, false
	case without == nil:
		return Step{Effect: missing}, missing == Makes || e.field.ofName()
	case with == nil:
		return Step{}, false
	}
	if len(e.field) > 0 {
		was := e.field.value(without)
		return Step{Effect: Changes, Without: was}, !equal(was, e.field.value(with))
	}
	paths := differences(nil, without.Tree(), with.Tree())
	return Step{Effect: Changes, Paths: paths}, len(paths) > 0
}

// holder is the selected package of a pin, nil if there is none.
func (e *explainer) holder(pin sources.Pin) *sources.Selected {
	if pin == (sources.Pin{}) {
		return nil
	}
	i := slices.IndexFunc(e.in.Packages, func(s sources.Selected) bool { return s.Pin == pin })
	if i < 0 {
		return nil
	}
	return &e.in.Packages[i]
}

// delegated is the selected package that an object has Crossplane install, nil if
// it is no such object.
func (e *explainer) delegated(id manifest.ID) *sources.Selected {
	i := slices.IndexFunc(e.in.Packages, func(s sources.Selected) bool {
		return string(s.Declaration.Kind) == id.Kind && s.Declaration.Name == id.Name
	})
	if i < 0 {
		return nil
	}
	return &e.in.Packages[i]
}

// pinned explains an object that has Crossplane install a package: how it was
// declared, or what needs it, and that gitopsd pins it.
func (e *explainer) pinned(ctx context.Context, a *Answer, pkg *sources.Selected, before *manifest.Object) ([]Step, error) {
	if pkg.Parent != "" {
		return []Step{{What: "gitopsd, for Crossplane to install the dependency", Effect: Makes}}, e.holds(ctx, a, pkg)
	}
	steps, err := e.kustomized(ctx, a)
	if err != nil {
		return nil, err
	}
	built, err := e.build(ctx, e.everything())
	if err != nil {
		return nil, err
	}
	if s, differs := e.compare(built, before, Makes); differs {
		s.What = "gitopsd, which pins the package as " + sources.LockFile + " has it"
		steps = append(steps, s)
	}
	return steps, nil
}

// holds notes the package of an object, what needs it, and where that is
// declared.
func (e *explainer) holds(ctx context.Context, a *Answer, pkg *sources.Selected) error {
	a.Package = &Provenance{Name: pkg.Declaration.Name, Pin: pkg.Pin}
	declared := pkg
	for seen := map[string]bool{}; declared != nil && declared.Parent != "" && !seen[declared.Parent]; {
		seen[declared.Parent] = true
		a.Package.Needs = append(a.Package.Needs, declared.Parent)
		i := slices.IndexFunc(e.in.Packages, func(s sources.Selected) bool { return s.Pin.Ref.Repository == declared.Parent })
		if i < 0 {
			declared = nil
			break
		}
		declared = &e.in.Packages[i]
	}
	if declared == nil {
		return nil
	}
	return e.declaration(ctx, a.Package, declared.Declaration)
}

// packaged explains an object of a package: how it stands there, what gitopsd
// made of it, and where the package is declared.
func (e *explainer) packaged(ctx context.Context, a *Answer, pkg *sources.Selected, before *manifest.Object) ([]Step, error) {
	if err := e.holds(ctx, a, pkg); err != nil {
		return nil, err
	}
	for _, doc := range pkg.Package.Documents {
		if doc.Line != a.Written.Line {
			continue
		}
		tree := doc.Tree
		if types.IsManaged(tree) {
			var err error
			if tree, err = types.FromManaged(tree); err != nil {
				return nil, err
			}
		}
		original, err := manifest.New(tree, a.Written)
		if err != nil || original.ID() != e.id {
			continue
		}
		a.Original = e.field.value(original)
		if s, differs := e.compare(original, before, Makes); differs {
			s.What = "gitopsd, for the package"
			return []Step{s}, nil
		}
		return nil, nil
	}
	return []Step{{What: "gitopsd, for the package's controller", Effect: Makes}}, nil
}

// declaration finds where a package is declared, and what sets its version.
func (e *explainer) declaration(ctx context.Context, p *Provenance, d sources.Declaration) error {
	var builder kustomize.Builder
	objects, _, err := builder.Build(ctx, e.in.Files, e.in.Path, e.in.Remote)
	if err != nil {
		return err
	}
	for _, o := range objects {
		id := o.ID()
		if id.Kind != string(d.Kind) || id.Name != d.Name || id.Group != manifest.GroupPackages {
			continue
		}
		p.Declared = o.Origin()
		of := &explainer{in: e.in, id: id, field: question{field.Key("spec"), field.Key("package")}}
		about := &Answer{Object: o, Written: o.Origin()}
		p.Steps, err = of.kustomized(ctx, about)
		p.Declared = about.Written
		return err
	}
	return nil
}

// similar are objects of the same kind or name, for an error.
func similar(set *manifest.Set, id manifest.ID) string {
	var same, all []string
	for _, o := range set.All() {
		all = append(all, o.ID().Kind)
		switch other := o.ID(); {
		case strings.EqualFold(other.Kind, id.Kind) && other.Name == id.Name:
			same = slices.Insert(same, 0, other.String())
		case strings.EqualFold(other.Kind, id.Kind):
			same = append(same, other.String())
		}
	}
	const most = 5
	switch {
	case len(same) == 0:
		return sources.Meant(id.Kind, all)
	case len(same) > most:
		return fmt.Sprintf("; of this kind it has %s and %d more", strings.Join(same[:most], ", "), len(same)-most)
	}
	return "; of this kind it has " + strings.Join(same, ", ")
}
