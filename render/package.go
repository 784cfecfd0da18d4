package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// allowed are the kinds that a package may hold, by the xpkg specification. Packages
// are third-party: with another kind, a package could take rights that the repository
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

// movable are the kinds of objects that keep their names if they move from manifests to a
// package, or from one package to another. The names of webhook configurations have the
// package's.
var movable = slices.Concat(manifest.Definitions, manifest.Packages, []manifest.GroupKind{manifest.MRD}, allowed[sources.Configuration])

// expansion is the content of a package. Clusters with equal declarations share it.
type expansion struct {
	// objects are the package's objects with all of its types, and the controller of a
	// Provider if it has one.
	objects []*manifest.Object
	// active are the types that the package installs regardless of policies.
	active map[manifest.ID]bool
	// frozen are the definitions that got rules for immutable fields, by ID. By is not
	// set.
	frozen map[manifest.ID]Frozen
	// notes are for people.
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
	}
	if err := checkName(d.Name); err != nil { // a dependency's name is the last part of its repository
		return nil, fmt.Errorf("its name: %w; declare it under another", err)
	}
	e, err := held(s)
	if err != nil {
		return nil, err
	}
	if d.Kind == sources.Provider {
		if err := e.withController(s, config); err != nil {
			return nil, err
		}
	}
	labels := runtime.Labels(d)
	for i, o := range e.objects {
		e.objects[i] = o.WithMetadata(labels, d.CommonAnnotations)
	}
	if _, duplicates := manifest.NewSet(e.objects); len(duplicates) > 0 {
		return nil, duplicates[0]
	}
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
		o, left, err := authored(o)
		if err != nil {
			return nil, err
		}
		if len(left) > 0 {
			e.notes = append(e.notes, fmt.Sprintf("%s: left out, since only API servers and controllers set it: %s", id, strings.Join(left, ", ")))
		}
		if id.Is(manifest.ActivationPolicy) {
			e.policies = append(e.policies, o)
			continue
		}
		e.objects = append(e.objects, o)
	}
	return e, nil
}

// authored returns a package's object with the metadata that authors write. Packages with
// exported objects may have more: the object would be deleted because of owners that the
// cluster does not have, or could not be deleted or updated. left is what is left out.
func authored(o *manifest.Object) (bare *manifest.Object, left []string, err error) {
	meta := manifest.Mapping(o.Tree(), "metadata")
	kept := make(map[string]any, len(meta))
	for _, key := range slices.Sorted(maps.Keys(meta)) {
		if meta[key] == nil || slices.Contains([]string{"name", "namespace", "labels", "annotations"}, key) {
			kept[key] = meta[key]
		} else {
			left = append(left, "metadata."+key)
		}
	}
	if len(left) == 0 {
		return o, nil, nil
	}
	bare, err = manifest.New(manifest.With(o.Tree(), kept, "metadata"), o.Origin())
	return bare, left, err
}

// installed returns the CustomResourceDefinition of a ManagedResourceDefinition.
func installed(mrd *manifest.Object) (*manifest.Object, error) {
	tree, err := types.FromManaged(mrd.Tree())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mrd.Origin(), err)
	}
	return manifest.New(tree, mrd.Origin())
}

// definitions returns the package's CustomResourceDefinitions.
func (e *expansion) definitions() []*manifest.Object {
	return slices.DeleteFunc(slices.Clone(e.objects), func(o *manifest.Object) bool { return !o.ID().Is(manifest.CRD) })
}

// withController completes webhooks and adds the controller's objects. In a package
// without a controller, the webhooks are for a Service that the fleet may define.
func (e *expansion) withController(s sources.Selected, config *runtime.Config) error {
	c := runtime.Controller{Selected: s, Config: config}
	service := webhook.Service{Namespace: runtime.Namespace, Name: c.ServiceName(), Port: runtime.WebhookPort}
	var idle []string
	for i, o := range e.objects {
		var err error
		switch {
		case webhook.Idle(o.Tree()):
			idle = append(idle, o.ID().Name)
			o, err = manifest.New(webhook.WithoutConversion(o.Tree()), o.Origin())
		case webhook.Needed(o.Tree()):
			c.Webhooks = true
			o, err = registered(o, s.Declaration.Name, service)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", e.objects[i].Origin(), e.objects[i].ID(), err)
		}
		e.objects[i] = o
		if o.ID().Is(manifest.CRD) {
			c.Types = append(c.Types, o)
		}
	}
	if len(idle) > 0 {
		e.notes = append(e.notes, fmt.Sprintf("Provider %s wants a webhook to convert types that have one version only, and nothing to convert: they are installed without it (%s)", s.Declaration.Name, first(idle)))
	}
	controller, err := runtime.Objects(c)
	if err != nil {
		return err
	}
	for i, o := range controller {
		if err := checkOwnName(o, s, config); err != nil {
			return err
		}
		if o.ID().Is(manifest.Service) {
			controller[i] = o.WithMetadata(nil, certified(s.Declaration))
		}
	}
	e.objects = append(e.objects, controller...)
	return nil
}

// registered completes an object with webhooks that the package's controller serves.
func registered(o *manifest.Object, pkg string, service webhook.Service) (*manifest.Object, error) {
	tree, err := webhook.Complete(o.Tree(), service)
	if err != nil {
		return nil, err
	}
	if o.ID().Is(manifest.Webhooks...) {
		tree = manifest.With(tree, webhook.Name(pkg, o.ID().Name), "metadata", "name")
	}
	if o, err = manifest.New(tree, o.Origin()); err != nil {
		return nil, err
	}
	source := webhook.Source{Object: manifest.Service.ID(service.Namespace, service.Name)}
	return o.WithMetadata(nil, map[string]string{manifest.InjectCAAnnotation: source.String()}), nil
}

// certified returns the annotations that give the Service of a controller its
// certificate.
func certified(d sources.Declaration) map[string]string {
	annotations := map[string]string{manifest.ServingCertAnnotation: runtime.ServingSecret(d.Name)}
	if authority := authority(d); authority != "" {
		annotations[manifest.AuthorityAnnotation] = authority
	}
	return annotations
}

// authority returns the name of the Secret with the CA for a declaration; "" for none.
func authority(d sources.Declaration) string {
	return manifest.Text(d.Document.Tree, "metadata", "annotations", manifest.AuthorityAnnotation)
}
