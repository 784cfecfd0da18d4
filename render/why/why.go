// Package why explains where an object of a cluster, or one field of it, comes from:
// the file and line where it was written, or its package and the package's declaration,
// and the steps that changed it.
//
// It finds changes by experiment: it removes the entries of the kustomizations that the
// object passes through, one at a time, builds, and compares the results. So the
// answer is correct for every feature of kustomize. Kustomize's own transformer annotations
// name the file of every transformer that saw the object, even if it changed nothing, and
// no entry, line or field. A cluster's own patches are compared one after the other, as they
// are applied.
//
// find.go parses the question, why.go answers it, build.go leaves entries out,
// everything.go has the files to build, field.go finds fields in the files. The package
// is pure, like package render. sources/git knows which commit changed a file last, and
// reconcile who else writes to a live object.
package why

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

// ErrNotFound is wrapped by the errors for objects that are not rendered for the cluster.
var ErrNotFound = errors.New("is not among the cluster's objects")

// Input is the input of a cluster's rendering.
type Input struct {
	render.Input
	// Packages are the packages of the cluster, including dependencies.
	Packages []sources.Selected
}

// Answer explains where an object or one of its fields comes from.
type Answer struct {
	// Object is the rendered object.
	Object *manifest.Object
	// Written is where the object was written, with the line of the field if
	// the field is written there. For an object that kustomize generates it is
	// the entry of the kustomization. If the place is unknown, it is the directory of the
	// build.
	Written manifest.Origin
	// Original is the field as written.
	Original Value
	// Field is the field as rendered.
	Field Value
	// Filled is the source of a field that is not rendered but filled in when the object
	// is applied; empty for other fields.
	Filled string
	// Package is the package of the object; nil for other objects.
	Package *Provenance
	// Steps are the steps that made or changed the object, in order.
	Steps []Step
}

// Value is the value of a field. The zero Value is a missing field.
type Value struct {
	Set bool
	// Value has JSON's types.
	Value any
}

// Provenance is the package that holds an object, and why the cluster has it.
type Provenance struct {
	Name string
	Pin  sources.Pin
	// Needs are the packages that depend on this one, the nearest first. The last one is
	// declared. It is empty for a declared package.
	Needs []string
	// Declared is the declaration of the package, or of the last of Needs.
	Declared manifest.Origin
	// Steps are the steps that set the version of the declaration.
	Steps []Step
}

// Effect is the effect of a step on an object.
type Effect string

// The effects.
const (
	// Makes means that there is no such object without the step.
	Makes Effect = "makes"
	// Names means that the object has another name without the step.
	Names Effect = "names"
	// Changes means that the step changes the object, or the field.
	Changes Effect = "changes"
	// Unknown means that the build fails without the step.
	Unknown Effect = "unknown"
)

// Step is one change of an object.
type Step struct {
	// File and Line are where the step is written. File is empty for steps that gitopsd
	// takes by itself.
	File string
	Line int
	// What is the entry of the file, "patches[1]".
	What   string
	Effect Effect
	// Without is the field without the step, or before it.
	Without Value
	// Paths are the fields that the step changes, if the question is about the whole
	// object.
	Paths []string
}

// Explain explains where an object comes from, or its field asked if that is not empty.
// The error wraps [ErrNotFound] if the object is not rendered for the cluster. Explain also
// fails if the object does not have the field and no step removed it, if the cluster
// cannot be rendered, or if the kustomizations have too many entries.
func Explain(ctx context.Context, in Input, id manifest.ID, asked field.Path) (*Answer, error) {
	e := &explainer{in: in, id: id, field: question(asked)}
	final, err := e.expand(ctx, len(in.Patches), true)
	if err != nil {
		return nil, err
	}
	a := &Answer{Object: final.Objects.Get(id)}
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
		// Explain the steps before the rules without them.
		if s, differs := e.compare(f.Before, f.After, Makes); differs {
			s.File, s.Line, s.What = f.By.File, f.By.Line, "annotation "+manifest.ImmutableAnnotation
			frozen = append(frozen, s)
		}
		before = f.Before
	}
	var built []Step
	switch pkg, delegated := e.holder(a.Written.Package), e.delegated(id); {
	case id.Group == manifest.GroupPackages && delegated != nil:
		built, err = e.pinned(ctx, a, delegated, before)
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

// expand renders the cluster with the first of its own patches, and with conversion
// rules or without.
func (e *explainer) expand(ctx context.Context, patches int, rules bool) (*render.Rendered, error) {
	in := e.in.Input
	in.Patches = in.Patches[:patches]
	// Ignore broken objects. If the question is about one, it is not found.
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

// patched has the effects of the cluster's own patches on an object.
type patched struct {
	// before is the object before the patches; nil if it had another name.
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
		if n == 0 {
			p.before = now
		} else if s, differs := e.compare(last, now, Names); differs {
			s.File, s.What = sources.RegistryFile, fmt.Sprintf("cluster %s, spec.patches[%d]", e.in.Cluster, n-1)
			p.steps = append(p.steps, s)
		}
		last = now
	}
	return p, nil
}

// compare returns the step between two versions of an object, and whether it has an effect.
// missing is the effect if there is no object without the step.
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
		return Step{Effect: Changes, Without: was}, !reflect.DeepEqual(was, e.field.value(with))
	}
	paths := differences(nil, without.Tree(), with.Tree())
	return Step{Effect: Changes, Paths: paths}, len(paths) > 0
}

// selected returns the first selected package that is the one, or nil.
func (e *explainer) selected(is func(s sources.Selected) bool) *sources.Selected {
	i := slices.IndexFunc(e.in.Packages, is)
	if i < 0 {
		return nil
	}
	return &e.in.Packages[i]
}

// holder returns the selected package with a pin, or nil.
func (e *explainer) holder(pin sources.Pin) *sources.Selected {
	return e.selected(func(s sources.Selected) bool { return s.Pin == pin && pin != (sources.Pin{}) })
}

// delegated returns the selected package that an object makes Crossplane install, or nil.
func (e *explainer) delegated(id manifest.ID) *sources.Selected {
	return e.selected(func(s sources.Selected) bool {
		return string(s.Declaration.Kind) == id.Kind && s.Declaration.Name == id.Name
	})
}

// pinned explains an object that makes Crossplane install a package: its declaration or
// the packages that need it, and gitopsd's pin.
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

// holds sets the package of an answer: the packages that need it, and the declaration.
func (e *explainer) holds(ctx context.Context, a *Answer, pkg *sources.Selected) error {
	a.Package = &Provenance{Name: pkg.Declaration.Name, Pin: pkg.Pin}
	declared := pkg
	for seen := map[string]bool{}; declared != nil && declared.Parent != "" && !seen[declared.Parent]; {
		seen[declared.Parent] = true
		a.Package.Needs = append(a.Package.Needs, declared.Parent)
		parent := declared.Parent
		declared = e.selected(func(s sources.Selected) bool { return s.Pin.Ref.Repository == parent })
	}
	if declared == nil {
		return nil
	}
	return e.declaration(ctx, a.Package, declared.Declaration)
}

// packaged explains an object of a package: the original, gitopsd's change, and the
// declaration of the package.
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

// declaration finds the declaration of a package, and the steps that set its version.
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

// similar suggests objects of the same kind, or a similar kind, for an error.
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
