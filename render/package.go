package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// allowed are the kinds that a package may hold, by the xpkg specification. A
// package is somebody else's: with any other kind it could take rights that the
// repository does not give it.
var allowed = map[sources.PackageKind]map[[2]string]bool{
	sources.Provider: {
		{"apiextensions.k8s.io", "CustomResourceDefinition"}:               true,
		{"admissionregistration.k8s.io", "ValidatingWebhookConfiguration"}: true,
		{"admissionregistration.k8s.io", "MutatingWebhookConfiguration"}:   true,
	},
	sources.Configuration: {
		{"apiextensions.crossplane.io", "CompositeResourceDefinition"}: true,
		{"apiextensions.crossplane.io", "Composition"}:                 true,
	},
}

var errFunction = errors.New("a Function needs Crossplane's own package manager in the cluster, which runs it; gitopsd cannot install it itself, and spec.packages: delegate, which would hand it over, is not there yet")

// contents makes the objects of one package: what it holds and, for a Provider,
// its controller. They are the same in every cluster that declares the package
// alike.
func contents(s sources.Selected, config *runtime.Config) ([]*manifest.Object, error) {
	d, p := s.Declaration, s.Package
	switch {
	case d.Kind == sources.Function:
		return nil, errFunction
	case p == nil:
		return nil, errors.New("its content was not fetched")
	case d.Kind != p.Meta.Kind:
		return nil, fmt.Errorf("%s is a %s package; declare it as one", s.Pin, p.Meta.Kind)
	case len(d.Name) > maxName:
		return nil, fmt.Errorf("its name has more than %d characters; declare it with a shorter one", maxName)
	}
	objects, err := held(s)
	if err != nil {
		return nil, err
	}
	if d.Kind == sources.Provider {
		if objects, err = withController(s, config, objects); err != nil {
			return nil, err
		}
	}
	labels := maps.Clone(d.CommonLabels)
	if labels == nil {
		labels = make(map[string]string, 1)
	}
	labels[PackageLabel] = d.Name
	for i, o := range objects {
		objects[i] = o.WithMetadata(labels, d.CommonAnnotations)
	}
	if _, duplicates := manifest.NewSet(objects); len(duplicates) > 0 {
		return nil, duplicates[0]
	}
	return objects, nil
}

// held are the objects in the package, checked.
func held(s sources.Selected) ([]*manifest.Object, error) {
	objects := make([]*manifest.Object, 0, len(s.Package.Documents)+4)
	for _, doc := range s.Package.Documents {
		some, err := manifest.FromDocument(doc, manifest.Origin{File: "package.yaml", Package: s.Pin})
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	for _, o := range objects {
		id := o.ID()
		if !allowed[s.Declaration.Kind][[2]string{id.Group, id.Kind}] {
			return nil, fmt.Errorf("%s: %s: a %s package must not hold a %s", o.Origin(), id, s.Declaration.Kind, id.Kind)
		}
		for _, values := range []map[string]string{o.Labels(), o.Annotations()} {
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if reserved(key) {
					return nil, fmt.Errorf("%s: %s: a package must not set %s; that is for the fleet repository", o.Origin(), id, key)
				}
			}
		}
	}
	return objects, nil
}

// withController completes webhooks and adds what the controller needs.
func withController(s sources.Selected, config *runtime.Config, objects []*manifest.Object) ([]*manifest.Object, error) {
	c := runtime.Controller{Selected: s, Config: config}
	service := webhook.Service{Namespace: runtime.Namespace, Name: c.ServiceName(), Port: runtime.WebhookPort}
	for i, o := range objects {
		if o.ID().Kind == "CustomResourceDefinition" {
			c.Types = append(c.Types, o)
		}
		if !webhook.Needed(o.Tree()) {
			continue
		}
		c.Webhooks = true
		tree, err := webhook.Complete(o.Tree(), service)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", o.Origin(), o.ID(), err)
		}
		if objects[i], err = manifest.New(tree, o.Origin()); err != nil {
			return nil, err
		}
	}
	controller, err := runtime.Objects(c)
	if err != nil {
		return nil, err
	}
	return append(objects, controller...), nil
}
