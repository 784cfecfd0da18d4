package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// allowed are the kinds that a package may hold, by the xpkg specification. Packages
// are third-party: with any other kind one could take rights that the repository
// does not grant.
var allowed = map[sources.PackageKind][]manifest.GroupKind{
	sources.Provider: {manifest.CRD, manifest.ValidatingWebhooks, manifest.MutatingWebhooks},
	sources.Configuration: {
		manifest.XRD, manifest.Composition, manifest.ActivationPolicy,
		{Group: manifest.GroupOperations, Kind: "Operation"},
		{Group: manifest.GroupOperations, Kind: "CronOperation"},
		{Group: manifest.GroupOperations, Kind: "WatchOperation"},
	},
}

// expansion is the content of a package, equal in all clusters that declare it
// alike.
type expansion struct {
	// objects are the package's, with all of its types, and a Provider's controller.
	objects []*manifest.Object
	// active are the types that the package installs whatever the policies say.
	active map[manifest.ID]bool
	// published are the definitions to which rules for immutable fields were added, as
	// they were before.
	published map[manifest.ID]*manifest.Object
	// notes are for a person to read.
	notes []string
	// policies are a Configuration's ManagedResourceActivationPolicies.
	policies []*manifest.Object
}

// contents returns the expansion of one package.
func contents(s sources.Selected, config *runtime.Config) (*expansion, error) {
	d, p := s.Declaration, s.Package
	switch {
	case p == nil:
		return nil, errors.New("its content was not fetched")
	case d.Kind != p.Meta.Kind:
		return nil, fmt.Errorf("%s is a %s package; declare it as one", s.Pin, p.Meta.Kind)
	case len(d.Name) > maxName:
		return nil, fmt.Errorf("its name has more than %d characters; declare it with a shorter one", maxName)
	}
	e, err := held(s)
	if err != nil {
		return nil, err
	}
	objects := e.objects
	if d.Kind == sources.Provider {
		if objects, err = withController(s, config, objects); err != nil {
			return nil, err
		}
	}
	labels := maps.Clone(d.CommonLabels)
	if labels == nil {
		labels = make(map[string]string, 1)
	}
	labels[manifest.PackageLabel] = d.Name
	for i, o := range objects {
		objects[i] = o.WithMetadata(labels, d.CommonAnnotations)
	}
	if _, duplicates := manifest.NewSet(objects); len(duplicates) > 0 {
		return nil, duplicates[0]
	}
	e.objects = objects
	return e, e.freeze(d)
}

// held returns the objects in the package, validated, with a
// CustomResourceDefinition in place of each ManagedResourceDefinition.
func held(s sources.Selected) (*expansion, error) {
	e := &expansion{active: make(map[manifest.ID]bool)}
	objects := make([]*manifest.Object, 0, len(s.Package.Documents)+4)
	for _, doc := range s.Package.Documents {
		some, err := manifest.FromDocument(doc, manifest.Origin{File: "package.yaml", Package: s.Pin})
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	for _, o := range objects {
		if types.IsManaged(o.Tree()) && s.Declaration.Kind == sources.Provider {
			crd, err := installed(o)
			if err != nil {
				return nil, err
			}
			if manifest.Text(o.Tree(), "spec", "state") == "Active" {
				e.active[crd.ID()] = true
			}
			o = crd
		}
		id := o.ID()
		if !id.Is(allowed[s.Declaration.Kind]...) {
			return nil, fmt.Errorf("%s: %s: a %s package must not hold a %s", o.Origin(), id, s.Declaration.Kind, id.Kind)
		}
		for _, values := range []map[string]string{o.Labels(), o.Annotations()} {
			for _, key := range slices.Sorted(maps.Keys(values)) {
				if reserved(key) {
					return nil, fmt.Errorf("%s: %s: a package must not set %s; that is for the fleet repository", o.Origin(), id, key)
				}
			}
		}
		if id.Is(manifest.ActivationPolicy) {
			e.policies = append(e.policies, o)
			continue
		}
		e.objects = append(e.objects, o)
	}
	return e, nil
}

// installed returns the CustomResourceDefinition of a ManagedResourceDefinition.
func installed(mrd *manifest.Object) (*manifest.Object, error) {
	tree, err := types.FromManaged(mrd.Tree())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mrd.Origin(), err)
	}
	return manifest.New(tree, mrd.Origin())
}

// withController completes webhooks and adds the controller's objects.
func withController(s sources.Selected, config *runtime.Config, objects []*manifest.Object) ([]*manifest.Object, error) {
	c := runtime.Controller{Selected: s, Config: config}
	service := webhook.Service{Namespace: runtime.Namespace, Name: c.ServiceName(), Port: runtime.WebhookPort}
	for i, o := range objects {
		if o.ID().Is(manifest.CRD) {
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
