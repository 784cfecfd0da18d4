package application

import (
	"fmt"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
)

// serviceAccountToken is the type of Secrets that are valid only in their own cluster. An
// API server deletes them if their account does not exist.
const serviceAccountToken = "kubernetes.io/service-account-token"

// Rendered has the objects of an application for the cluster of its target.
type Rendered struct {
	// Objects are the objects of the templates, and their Secrets.
	Objects *manifest.Set
	// Of has the IDs of each rendered resource's object and Secrets, in this order, by the
	// resource's name.
	Of map[string][]manifest.ID
	// Faults are the errors of single resources, by name. Their objects are not in Objects.
	Faults map[string]error
}

// Render returns the objects of an application. secret returns a Secret of its namespace,
// or an error that becomes the fault of the resource.
func (a *Application) Render(secret func(name string) (tree map[string]any, err error)) *Rendered {
	r := &Rendered{Of: make(map[string][]manifest.ID), Faults: make(map[string]error)}
	var objects []*manifest.Object
	by := make(map[manifest.ID][]string)
	secrets := &secrets{read: secret, all: make(map[string]*source)}
	for _, resource := range a.Resources {
		all, err := a.render(resource, secrets)
		if err != nil {
			r.Faults[resource.Name] = err
			continue
		}
		for _, o := range all {
			r.Of[resource.Name] = append(r.Of[resource.Name], o.ID())
			by[o.ID()] = append(by[o.ID()], resource.Name)
		}
		objects = append(objects, all...)
	}
	set, duplicates := manifest.NewSet(objects)
	for _, d := range duplicates {
		for _, name := range by[d.ID] {
			r.Faults[name] = d
			delete(r.Of, name)
		}
	}
	r.Objects = set
	r.drop()
	return r
}

// Refuse removes an object and the resources that include it; err becomes their fault. It is
// for errors that are known only in the target's cluster.
func (r *Rendered) Refuse(id manifest.ID, err error) {
	for name, ids := range r.Of {
		if slices.Contains(ids, id) {
			r.Faults[name] = err
			delete(r.Of, name)
		}
	}
	r.drop()
}

// drop removes the objects that no resource without a fault includes.
func (r *Rendered) drop() {
	stays := make(map[manifest.ID]bool)
	for _, ids := range r.Of {
		for _, id := range ids {
			stays[id] = true
		}
	}
	var objects []*manifest.Object
	for _, o := range r.Objects.All() {
		if stays[o.ID()] {
			objects = append(objects, o)
		}
	}
	r.Objects, _ = manifest.NewSet(objects) // nothing is defined twice
}

// render returns the object of a template first, and its Secrets.
func (a *Application) render(resource Resource, secrets *secrets) ([]*manifest.Object, error) {
	origin := manifest.Origin{File: fmt.Sprintf("KubernetesApplication %s, resource %s", a, resource.Name)}
	tree := manifest.Without(resource.Template, "status") // samples that were read from a cluster have one
	object, err := manifest.New(tree, origin)
	if err != nil {
		return nil, err
	}
	if id := object.ID(); id.Namespace == runtime.Namespace || id == manifest.Namespace.ID("", runtime.Namespace) {
		return nil, fmt.Errorf("%s: gitopsd keeps its own objects in namespace %s; choose another", origin, runtime.Namespace)
	}
	if err := object.CheckOwners(); err != nil {
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	if object.Annotation(manifest.InjectCAAnnotation) != "" {
		return nil, fmt.Errorf("%s: metadata.annotations: %s works in a cluster's own manifests alone; set caBundle in the template, or declare the object there", origin, manifest.InjectCAAnnotation)
	}
	all := []*manifest.Object{object}
	for _, name := range resource.Secrets {
		if object.ID().Namespace == "" {
			return nil, fmt.Errorf("%s: spec.secrets: the object has no namespace that Secret %s could go to", origin, name)
		}
		source, err := secrets.get(name)
		if err != nil {
			return nil, err
		}
		copied := manifest.NewTree(manifest.Secret.ID(object.ID().Namespace, resource.Name+"-"+name), nil)
		for _, field := range []string{"type", "data"} {
			if v, ok := source[field]; ok && v != serviceAccountToken {
				copied[field] = v
			}
		}
		o, err := manifest.New(copied, origin)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	for i, o := range all {
		all[i] = o.WithMetadata(nil, map[string]string{manifest.ApplicationAnnotation: a.String()})
	}
	return all, nil
}

// mostSecrets bounds the total size of an application's Secrets, counting each copy: a
// short template could ask for very many copies.
const mostSecrets = 8 << 20

// secrets reads the Secrets of an application, each once.
type secrets struct {
	read  func(name string) (map[string]any, error)
	all   map[string]*source
	total int
}

// source is a Secret as it was read.
type source struct {
	tree map[string]any
	size int
	err  error
}

// get returns a Secret for one more copy.
func (s *secrets) get(name string) (map[string]any, error) {
	one := s.all[name]
	if one == nil {
		one = new(source)
		if one.tree, one.err = s.read(name); one.err == nil {
			one.size = len(manifest.AppendJSON(nil, manifest.Mapping(one.tree, "data")))
		}
		s.all[name] = one
	}
	if s.total += one.size; s.total > mostSecrets {
		return nil, fmt.Errorf("the Secrets of its resources are larger than %d MiB together; let resources share a copy", mostSecrets>>20)
	}
	return one.tree, one.err
}
