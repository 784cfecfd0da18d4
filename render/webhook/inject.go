package webhook

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

const bundleField = "caBundle"

// variable stands for a CA bundle in sample configurations, such as Crossplane's design of
// webhooks.
const variable = "${CA_BUNDLE}"

// otherInjectors are prefixes of annotations that make other controllers inject bundles:
// cert-manager's cainjector, and OpenShift's service-ca.
var otherInjectors = []string{"cert-manager.io/inject-", "certmanager.k8s.io/inject-", "service.beta.openshift.io/inject-cabundle"}

// Source is the source of a CA bundle.
type Source struct {
	// Object is a Service with a certificate from gitopsd, or a Secret in the cluster.
	Object manifest.ID
}

// String returns the annotation's value.
func (s Source) String() string {
	return s.Object.Kind + "/" + s.Object.Namespace + "/" + s.Object.Name
}

// ParseSource parses a [manifest.InjectCAAnnotation]: "Service/<namespace>/<name>",
// "Secret/<namespace>/<name>", or "<namespace>/<name>" for a Service.
func ParseSource(text string) (Source, error) {
	parts := strings.Split(strings.TrimSpace(text), "/")
	if len(parts) == 2 {
		parts = slices.Insert(parts, 0, manifest.Service.Kind)
	}
	bad := func(part string) bool { return part == "" || strings.ContainsAny(part, " \t\r\n,") }
	if len(parts) == 3 && !slices.ContainsFunc(parts, bad) {
		switch kind := (manifest.GroupKind{Kind: parts[0]}); kind {
		case manifest.Service, manifest.Secret:
			return Source{kind.ID(parts[1], parts[2])}, nil
		}
	}
	return Source{}, fmt.Errorf("%s: %q: want Service/<namespace>/<name> or Secret/<namespace>/<name>", manifest.InjectCAAnnotation, text)
}

// client is one clientConfig, or the spec of an APIService.
type client struct {
	path   field.Path
	config map[string]any
}

// clients returns the parts of an object that have a CA bundle.
func clients(tree map[string]any) []client {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingWebhooks, manifest.MutatingWebhooks:
		var all []client
		for _, w := range manifest.List(tree, "webhooks") {
			hook, _ := w.(map[string]any)
			named := field.Element(field.Pair{Field: "name", Value: manifest.Text(hook, "name")})
			path := field.Path{field.Key("webhooks"), named, field.Key("clientConfig")}
			all = append(all, client{path, manifest.Mapping(hook, "clientConfig")})
		}
		return all
	case manifest.APIService:
		return []client{{field.Path{field.Key("spec")}, manifest.Mapping(tree, "spec")}}
	case manifest.CRD:
		if !types.Read(tree).Converts {
			return nil
		}
		path := field.Path{field.Key("spec"), field.Key("conversion"), field.Key("webhook"), field.Key("clientConfig")}
		return []client{{path, manifest.Mapping(tree, "spec", "conversion", "webhook", "clientConfig")}}
	}
	return nil
}

// Takes returns a function that reports whether a clientConfig of an object gets the CA bundle
// that the object's [manifest.InjectCAAnnotation] names. If webhooks are of the Service that
// it names, the others do not: they have servers of their own, which the CA did not sign for.
func Takes(tree map[string]any) func(config map[string]any) bool {
	source, err := ParseSource(manifest.Text(tree, "metadata", "annotations", manifest.InjectCAAnnotation))
	of := func(config map[string]any) bool { return serviceOf(config) == source.String() }
	if err == nil && slices.ContainsFunc(clients(tree), func(c client) bool { return of(c.config) }) {
		return of
	}
	return func(map[string]any) bool { return true }
}

// Left returns the fields of an object for CA bundles that are filled in and not set, as plans
// show them.
func Left(tree map[string]any) []string {
	var paths []string
	takes := Takes(tree)
	for _, c := range clients(tree) {
		if c.config[bundleField] == nil && takes(c.config) {
			paths = append(paths, bundlePath(c))
		}
	}
	return paths
}

// Filled returns the source of a CA bundle that gitopsd fills in when it applies an object.
// ok is false for other fields.
func Filled(o *manifest.Object, path field.Path) (from Source, ok bool) {
	from, err := ParseSource(o.Annotation(manifest.InjectCAAnnotation))
	if err != nil || len(path) == 0 || path[len(path)-1].Key != bundleField {
		return Source{}, false
	}
	// An element of a list may be named by its index.
	config, ok := path[:len(path)-1].In(o.Tree())
	if !ok {
		return Source{}, false
	}
	takes := Takes(o.Tree())
	return from, slices.ContainsFunc(clients(o.Tree()), func(c client) bool {
		return reflect.ValueOf(config).Kind() == reflect.Map && reflect.ValueOf(c.config).Pointer() == reflect.ValueOf(config).Pointer() && takes(c.config)
	})
}

func bundlePath(c client) string {
	return append(slices.Clip(c.path), field.Key(bundleField)).String()
}

// Open removes CA bundles that are filled in later: placeholders (an empty value, a line
// break, "${CA_BUNDLE}"), and all bundles if the object is annotated for another injector.
// Fields that gitopsd does not apply, it does not own, so it overwrites no bundle. If the
// placeholder is "${CA_BUNDLE}" and the object names one Service, Open adds
// [manifest.InjectCAAnnotation] for it. Open returns o itself if nothing changes.
func Open(o *manifest.Object) (*manifest.Object, error) {
	all := clients(o.Tree())
	others := injected(o)
	var open []int
	asks, named := false, make(map[string]bool)
	for i, c := range all {
		bundle, set := c.config[bundleField]
		if !set || !others && !placeholder(bundle) {
			continue
		}
		open = append(open, i)
		asks = asks || bundle == variable
		named[serviceOf(c.config)] = true
	}
	if len(open) == 0 {
		return o, nil
	}
	var add map[string]string
	if asks && !others && o.Annotation(manifest.InjectCAAnnotation) == "" {
		if len(named) != 1 || named[""] {
			return o, nil // Misuse has the error
		}
		for service := range named {
			add = map[string]string{manifest.InjectCAAnnotation: service}
		}
	}
	tree := o.Tree()
	if o.ID().Is(manifest.Webhooks...) {
		hooks := slices.Clone(manifest.List(tree, "webhooks"))
		for _, i := range open {
			hook, _ := hooks[i].(map[string]any) // it has a clientConfig
			hooks[i] = manifest.Without(hook, "clientConfig", bundleField)
		}
		tree = manifest.With(tree, hooks, "webhooks")
	} else {
		var path []string
		for _, step := range all[0].path {
			path = append(path, step.Key)
		}
		tree = manifest.Without(tree, append(path, bundleField)...)
	}
	opened, err := manifest.New(tree, o.Origin())
	if err != nil {
		return nil, err
	}
	return opened.WithMetadata(nil, add), nil
}

// serviceOf returns the Service of a clientConfig in the form of [Source.String]; "" for
// none.
func serviceOf(config map[string]any) string {
	namespace, name := manifest.Text(config, "service", "namespace"), manifest.Text(config, "service", "name")
	if namespace == "" || name == "" {
		return ""
	}
	return Source{manifest.Service.ID(namespace, name)}.String()
}

// placeholder reports whether a bundle has no certificate on purpose.
func placeholder(bundle any) bool {
	text, ok := bundle.(string)
	switch text = strings.TrimSpace(text); {
	case bundle == nil:
		return true
	case !ok:
		return false
	case text == variable:
		return true
	}
	data, err := base64.StdEncoding.DecodeString(text)
	return err == nil && strings.TrimSpace(string(data)) == ""
}

// injected reports whether another controller fills in the object's bundles.
func injected(o *manifest.Object) bool {
	for key := range manifest.Mapping(o.Tree(), "metadata", "annotations") {
		if otherInjector(key) {
			return true
		}
	}
	return false
}

func otherInjector(annotation string) bool {
	return slices.ContainsFunc(otherInjectors, func(prefix string) bool { return strings.HasPrefix(annotation, prefix) })
}

// Misuse returns an error if an object asks for CA bundles that cannot be filled in. get
// returns an object of the same cluster, or nil.
func Misuse(o *manifest.Object, get func(manifest.ID) *manifest.Object) error {
	o = o.Rendered() // bundles may be filled in already
	value := o.Annotation(manifest.InjectCAAnnotation)
	all := clients(o.Tree())
	if value == "" {
		for _, c := range all {
			if c.config[bundleField] == variable {
				return fmt.Errorf("%s: %s stands for the CA of one Service, and the object does not name one alone; annotate it with %s: Service/<namespace>/<name>",
					bundlePath(c), variable, manifest.InjectCAAnnotation)
			}
		}
		return nil
	}
	source, err := ParseSource(value)
	if err != nil {
		return err
	}
	switch {
	case len(all) == 0 && o.ID().Is(manifest.CRD):
		return fmt.Errorf("%s means nothing here, since no webhook converts its objects; remove it", manifest.InjectCAAnnotation)
	case len(all) == 0 && o.ID().Is(manifest.Webhooks...):
		return nil // it has no webhooks yet
	case len(all) == 0:
		return fmt.Errorf("%s means nothing on a %s; webhook configurations, APIServices and CRDs that convert by webhook have a CA bundle", manifest.InjectCAAnnotation, o.ID().Kind)
	case injected(o):
		return fmt.Errorf("%s and another injector's annotation are both there; keep one of them", manifest.InjectCAAnnotation)
	}
	takes := Takes(o.Tree())
	for _, c := range all {
		if c.config[bundleField] != nil && takes(c.config) {
			return fmt.Errorf("%s is set, though %s has gitopsd fill it in; remove one of the two", bundlePath(c), manifest.InjectCAAnnotation)
		}
	}
	if source.Object.Is(manifest.Secret) {
		return nil // its content is known only in the cluster
	}
	service := get(source.Object)
	switch {
	case service == nil:
		return fmt.Errorf("%s names %s, which the cluster does not get; name a Service of the repository or of a package, or a Secret", manifest.InjectCAAnnotation, source.Object)
	case service.Annotation(manifest.ServingCertAnnotation) == "":
		return fmt.Errorf("%s names %s, which has no certificate of gitopsd's; annotate that with %s: <name of a Secret>, or name a Secret here",
			manifest.InjectCAAnnotation, source.Object, manifest.ServingCertAnnotation)
	}
	return nil
}
