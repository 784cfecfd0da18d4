package render

import (
	"errors"
	"fmt"
	"slices"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/immutable"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Frozen is a definition that got rules for immutable fields.
type Frozen struct {
	// Before is the definition without the rules, and After with them. Neither has the
	// cluster's own patches.
	Before, After *manifest.Object
	// Paths are the immutable fields.
	Paths []field.Path
	// By is the place of the annotation: the package's declaration, or the definition
	// itself.
	By manifest.Origin
}

// ObjectError is an error of one plain object in one cluster. Nothing else is affected.
type ObjectError struct {
	ID     manifest.ID
	Origin manifest.Origin
	Err    error
}

func (e *ObjectError) Error() string { return fmt.Sprintf("%s: %s: %v", e.Origin, e.ID, e.Err) }
func (e *ObjectError) Unwrap() error { return e.Err }

// freeze adds the rules for the immutable fields that a package's declaration names. It
// fails if one of the fields cannot be immutable, since the author relies on it.
func (e *expansion) freeze(d sources.Declaration) error {
	if d.Immutable == "" {
		return nil
	}
	failed := func(err error) error { return fmt.Errorf("%s: %w", manifest.ImmutableAnnotation, err) }
	fields, err := immutable.Parse(d.Immutable)
	if err != nil {
		return failed(err)
	}
	paths := make(map[string][]field.Path)
	var names []string
	for _, f := range fields {
		if paths[f.Definition] == nil {
			names = append(names, f.Definition)
		}
		paths[f.Definition] = append(paths[f.Definition], f.Path)
	}
	e.frozen = make(map[manifest.ID]Frozen, len(names))
	var errs []error
	for _, name := range names {
		i := slices.IndexFunc(e.objects, func(o *manifest.Object) bool { return o.ID().Is(manifest.Definitions...) && o.ID().Name == name })
		if i < 0 {
			errs = append(errs, failed(fmt.Errorf("%s: the package has no such definition%s", name, e.nearest(name))))
			continue
		}
		o := e.objects[i]
		frozen, notes, err := freeze(o, paths[name])
		if err != nil {
			errs = append(errs, failed(fmt.Errorf("%s: %w", name, err)))
			continue
		}
		e.objects[i], e.frozen[o.ID()] = frozen, Frozen{Before: o, After: frozen, Paths: paths[name]}
		for _, n := range notes {
			e.notes = append(e.notes, fmt.Sprintf("%s %s: %s: %s: %s", d.Kind, d.Name, manifest.ImmutableAnnotation, name, n))
		}
	}
	return errors.Join(errs...)
}

func freeze(o *manifest.Object, paths []field.Path) (*manifest.Object, []string, error) {
	tree, notes, err := immutable.Apply(o.Tree(), paths)
	if err != nil {
		return nil, nil, err
	}
	frozen, err := manifest.New(tree, o.Origin())
	return frozen, notes, err
}

// nearest suggests the definition that was most likely meant.
func (e *expansion) nearest(name string) string {
	var names []string
	for _, o := range e.objects {
		if o.ID().Is(manifest.Definitions...) {
			names = append(names, o.ID().Name)
		}
	}
	if len(names) == 0 {
		return "; it has none"
	}
	return sources.Meant(name, names)
}

// freezePlain adds the rules for immutable fields that plain definitions name themselves. A
// definition with an error is not rendered, and stays unchanged in the cluster.
func (c *cluster) freezePlain() {
	plain := make([]*manifest.Object, 0, len(c.plain))
	for _, o := range c.plain {
		value, annotated := o.Annotations()[manifest.ImmutableAnnotation]
		switch {
		case !annotated || o.ID().Is(manifest.Packages...):
		case !o.ID().Is(manifest.Definitions...):
			c.notef("%s: %s: %s means nothing here; it is for CustomResourceDefinitions and packages", o.Origin(), o.ID(), manifest.ImmutableAnnotation)
		default:
			frozen, err := c.frozenPlain(o, value)
			if err != nil {
				c.refuse(o, fmt.Errorf("%s: %w", manifest.ImmutableAnnotation, err))
				continue
			}
			o = frozen
		}
		plain = append(plain, o)
	}
	c.plain = plain
}

func (c *cluster) frozenPlain(o *manifest.Object, value string) (*manifest.Object, error) {
	fields, err := immutable.ParseOwn(o.ID().Name, value)
	if err != nil {
		return nil, err
	}
	var paths []field.Path
	for _, f := range fields {
		paths = append(paths, f.Path)
	}
	frozen, notes, err := freeze(o, paths)
	if err != nil {
		return nil, err
	}
	c.frozen[o.ID()] = Frozen{Before: o, After: frozen, Paths: paths, By: o.Origin()}
	for _, n := range notes {
		c.notef("%s: %s: %s: %s", o.Origin(), o.ID(), manifest.ImmutableAnnotation, n)
	}
	return frozen, nil
}

// freezePackage records the definitions of a package that got rules.
func (c *cluster) freezePackage(s sources.Selected, e *expansion) {
	for id, f := range e.frozen {
		f.By = manifest.Origin{File: s.Declaration.File, Line: s.Declaration.Document.Line}
		c.frozen[id] = f
	}
}

// noteThawed notes the definitions that lack the rule for a field after the cluster's own
// patches: a patch removed it, or serves a version that has none.
func (r *Rendered) noteThawed() {
	for _, o := range r.Objects.All() {
		f, ok := r.Frozen[o.ID()]
		if ok && o != f.After && !immutable.Holds(o.Tree(), f.Paths) {
			r.notef("patches: %s: a field that %s (%s) names can be changed, since a patch of the cluster removes its rule, or serves a version without one", o.ID(), manifest.ImmutableAnnotation, f.By)
		}
	}
}
