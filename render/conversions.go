package render

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/render/webhook"
	"gitopsd.dev/sources"
)

// Conversion has the conversion rules of a definition.
type Conversion struct {
	// Set is the compiled rules. Clusters with equal definitions and rules share it.
	Set *conversion.Set
	// Documents are the rules as written.
	Documents []conversion.Document
	// Definition is the CustomResourceDefinition as rendered: it names the Set by its
	// digest, and the server. Before is the definition before that, as patched.
	Definition, Before *manifest.Object
	// Bundle is the ConfigMap that holds the Set in a cluster.
	Bundle *manifest.Object
}

// compiled is the part of a Conversion that clusters share.
type compiled struct {
	set    *conversion.Set
	bundle *manifest.Object
}

// Converter is the server of a cluster's conversion rules. The zero value serves none.
type Converter struct {
	// Image is the image of the server in the cluster, and Replicas the number of its pods.
	Image    string
	Replicas int
	// URL is the daemon's address for the cluster, if the daemon is the server; empty if
	// Image is set.
	URL string
}

// rulesKey identifies a definition and its rules, and the places for errors.
type rulesKey struct {
	definition sources.Digest
	documents  string
}

// schemaKey identifies an APIResourceSchema, and the hub version that rules name for it.
type schemaKey struct {
	schema sources.Digest
	origin manifest.Origin
	hub    string
}

// serves reports whether a server of conversion rules runs in the cluster.
func (c *cluster) serves() bool { return c.input.Converter.Image != "" && len(c.wanted.rules) > 0 }

// server returns the objects of the server. It runs even if all rules have errors, since
// definitions in the cluster may still use it.
func (c *cluster) server() ([]*manifest.Object, error) {
	if !c.serves() {
		return nil, nil
	}
	return converter.Objects(converter.Config{Image: c.input.Converter.Image, Replicas: c.input.Converter.Replicas})
}

// withRules adds the ConfigMaps of conversion rules to a cluster's objects, in place of
// others of their names, and makes the server require them. required maps the changed
// server to the patched one.
func (c *cluster) withRules(objects []*manifest.Object, conversions map[string]*Conversion) (with []*manifest.Object, required map[*manifest.Object]*manifest.Object, err error) {
	if len(conversions) == 0 {
		return objects, nil, nil
	}
	var sets []*conversion.Set
	bundles := make(map[manifest.ID]bool)
	for _, name := range slices.Sorted(maps.Keys(conversions)) {
		sets = append(sets, conversions[name].Set)
		with = append(with, conversions[name].Bundle)
		bundles[conversions[name].Bundle.ID()] = true
	}
	for _, o := range objects {
		if bundles[o.ID()] {
			c.refuse(o, errors.New("gitopsd makes an object of that name for conversion rules; remove this one from the manifests"))
			continue
		}
		with = append(with, o)
	}
	required = make(map[*manifest.Object]*manifest.Object)
	for i, o := range with {
		if o.ID() != converter.Workload() {
			continue
		}
		if with[i], err = converter.Require(o, sets); err != nil {
			return nil, nil, err
		}
		required[with[i]] = o
	}
	return with, required, nil
}

// describe adds the definitions that APIResourceSchemas describe to the plain objects, and
// assigns rules to definitions. A definition with an error is not rendered, and stays
// unchanged in the cluster.
func (r *Renderer) describe(c *cluster) {
	r.describeSchemas(c)
	c.rules = make(map[string][]*manifest.Object)
	for _, o := range c.wanted.rules {
		name := c.subject(o)
		c.rules[name] = append(c.rules[name], o)
	}
	copied := func(o *manifest.Object) bool {
		return o.ID().Is(manifest.CRD) && o.Annotation(manifest.ConversionAnnotation) != "" && c.rules[o.ID().Name] == nil
	}
	if !slices.ContainsFunc(c.plain, copied) {
		return
	}
	c.plain = slices.DeleteFunc(slices.Clone(c.plain), func(o *manifest.Object) bool {
		if !copied(o) {
			return false
		}
		c.refuse(o, fmt.Errorf("it has the annotation %s, which gitopsd sets where there are conversion rules, and there are none for it: add them, or remove the annotation and spec.conversion", manifest.ConversionAnnotation))
		return true
	})
}

func (r *Renderer) describeSchemas(c *cluster) {
	if len(c.wanted.schemas) == 0 {
		return
	}
	c.plain = slices.Clone(c.plain)
	c.described = make(map[string]string, len(c.wanted.schemas))
	for _, schema := range c.wanted.schemas {
		name := conversion.Defined(schema.Tree())
		hub := hubOf(schema, c.wanted.rules)
		o, err := recall(r, &r.schemas, schemaKey{schema.Hash(), schema.Origin(), hub}, func() (*manifest.Object, error) { return described(schema, hub) })
		if err != nil {
			id := schema.ID()
			if name != "" {
				id = manifest.CRD.ID("", name)
			}
			c.described[schema.ID().Name] = id.Name
			c.refused = append(c.refused, &ObjectError{ID: id, Origin: schema.Origin(), Err: err})
			continue
		}
		c.described[schema.ID().Name] = name
		c.plain = append(c.plain, o)
	}
}

// Described returns the CustomResourceDefinition that an APIResourceSchema describes.
// objects are the objects of its cluster; rules among them may name the hub version.
func Described(schema *manifest.Object, objects []*manifest.Object) (*manifest.Object, error) {
	return described(schema, hubOf(schema, objects))
}

// hubOf returns the hub version that the rules for a schema name; "" for none.
func hubOf(schema *manifest.Object, objects []*manifest.Object) string {
	names := []string{schema.ID().Name, conversion.Defined(schema.Tree())}
	var rules []*manifest.Object
	for _, o := range objects {
		if o.ID().Is(manifest.ConversionRules...) && slices.Contains(names, conversion.Subject(o.Tree())) {
			rules = append(rules, o)
		}
	}
	return conversion.Hub(documents(rules))
}

func described(schema *manifest.Object, hub string) (*manifest.Object, error) {
	tree, err := conversion.Definition(schema.Tree(), hub)
	if err != nil {
		return nil, err
	}
	return manifest.New(tree, schema.Origin())
}

func documents(rules []*manifest.Object) []conversion.Document {
	all := make([]conversion.Document, len(rules))
	for i, o := range rules {
		all[i] = conversion.Document{Origin: o.Origin(), Tree: o.Tree()}
	}
	return all
}

// WithoutRules returns the content without conversion rules.
func (w *Wanted) WithoutRules() *Wanted {
	other := *w
	other.rules = nil
	return &other
}

// subject returns the name of the definition that a document of rules belongs to.
func (c *cluster) subject(rules *manifest.Object) string {
	name := conversion.Subject(rules.Tree())
	if defined, ok := c.described[name]; ok {
		return defined
	}
	return name
}

// convert compiles the conversion rules of the cluster against its patched definitions,
// and makes the definitions name them. If rules have errors, their definition is left out
// with its package, and stays unchanged in the cluster.
func (r *Renderer) convert(c *cluster, objects []*manifest.Object) ([]*manifest.Object, map[string]*Conversion) {
	if len(c.wanted.rules) == 0 {
		return objects, nil
	}
	unclaimed := maps.Clone(c.rules)
	kept := slices.Clone(objects)
	conversions := make(map[string]*Conversion)
	for i, o := range objects {
		name := o.ID().Name
		if !o.ID().Is(manifest.CRD) || c.rules[name] == nil {
			continue
		}
		converted, err := r.converted(c.input, o, c.rules[name])
		delete(unclaimed, name)
		if err != nil {
			c.unconverted(o, err)
			kept[i] = nil
			continue
		}
		if len(converted.Set.Versions()) == 1 {
			// A webhook would have nothing to do; see webhook.Idle.
			c.notef("%s: the conversion rules are for %s, which has one version and needs none", c.rules[name][0].Origin(), name)
			continue
		}
		conversions[name], kept[i] = converted, converted.Definition
	}
	for _, s := range c.packages {
		if errs := c.lost[s.Declaration.Name]; errs != nil {
			c.fail(s, errors.Join(errs...))
		}
	}
	lost := func(o *manifest.Object) bool {
		return o == nil || c.lost[o.Label(manifest.PackageLabel)] != nil && !c.shared[o.ID()]
	}
	kept = slices.DeleteFunc(kept, lost)
	maps.DeleteFunc(conversions, func(_ string, v *Conversion) bool { return lost(v.Definition) })
	if len(unclaimed) > 0 {
		c.unclaimed(unclaimed, objects)
	}
	return kept, conversions
}

// unconverted records a definition that cannot be rendered because of its rules.
func (c *cluster) unconverted(o *manifest.Object, err error) {
	pkg := o.Label(manifest.PackageLabel)
	i := slices.IndexFunc(c.packages, func(s sources.Selected) bool { return s.Declaration.Name == pkg })
	if i < 0 {
		c.refuse(o, err)
		return
	}
	if c.lost == nil {
		c.lost = make(map[string][]error)
	}
	c.lost[pkg] = append(c.lost[pkg], fmt.Errorf("%s of %s: %w", o.ID(), c.packages[i].Pin.Ref, err))
}

// converted compiles the rules of a definition, and makes the definition name them.
func (r *Renderer) converted(in Input, o *manifest.Object, rules []*manifest.Object) (*Conversion, error) {
	if in.Converter == (Converter{}) {
		return nil, fmt.Errorf("it has conversion rules (%s), and the cluster has nothing to serve them: set spec.conversion of the Cluster, to service: {image: <image of gitopsd>} for a server in the cluster, or to url: https://<where the cluster reaches the daemon>", rules[0].Origin())
	}
	if o.Label(manifest.PackageLabel) != "" && types.Read(o.Tree()).Converts {
		return nil, fmt.Errorf("it has conversion rules (%s), and its package brings a webhook that converts its objects: remove the rules, or have one of the Cluster's spec.patches set spec.conversion of the definition to {strategy: None}", rules[0].Origin())
	}
	documents := documents(rules)
	key := rulesKey{definition: o.Hash()}
	for _, doc := range rules {
		key.documents += doc.Origin().String() + " " + string(doc.Hash()) + "\n"
	}
	made, err := recall(r, &r.rules, key, func() (compiled, error) {
		set, err := conversion.Compile(o.Tree(), documents)
		if err != nil {
			return compiled{}, err
		}
		configMap, err := bundle.Object(set, o.Tree(), documents)
		return compiled{set, configMap}, err
	})
	if err != nil {
		return nil, err
	}
	set := made.set
	client := map[string]any{}
	annotations := map[string]string{manifest.ConversionAnnotation: set.Digest()}
	path := conversion.Path(in.Cluster, set.Name(), set.Digest())
	if in.Converter.URL != "" {
		client["url"] = in.Converter.URL + path
	} else {
		service := converter.Service()
		client["service"] = map[string]any{"namespace": service.Namespace, "name": service.Name, "port": int64(converter.Port), "path": path}
		annotations[manifest.InjectCAAnnotation] = webhook.Source{Object: service}.String()
	}
	definition, err := manifest.New(webhook.Converted(o.Tree(), client), o.Origin())
	if err != nil {
		return nil, err
	}
	return &Conversion{Set: set, Documents: documents, Definition: definition.WithMetadata(nil, annotations), Before: o, Bundle: made.bundle}, nil
}

// unclaimed notes the rules that belong to no definition of the cluster.
func (c *cluster) unclaimed(rules map[string][]*manifest.Object, objects []*manifest.Object) {
	var names []string
	for _, o := range objects {
		if o.ID().Is(manifest.CRD) {
			names = append(names, o.ID().Name)
		}
	}
	for _, o := range c.wanted.rules {
		name := c.subject(o)
		if rules[name] == nil {
			continue
		}
		id := manifest.CRD.ID("", name)
		defines := func(t PackageType) bool { return t.Definition == id }
		fail := func(format string, args ...any) { c.refuse(o, fmt.Errorf(format, args...)) }
		switch {
		case slices.ContainsFunc(c.refused, func(e *ObjectError) bool { return e.ID == id || name != "" && c.described[e.ID.Name] == name }),
			slices.ContainsFunc(c.conflicts, func(e *manifest.DuplicateError) bool { return e.ID == id }):
			// The definition has an error of its own.
		case slices.ContainsFunc(c.inactive, defines):
			c.notef("%s: the conversion rules are for %s, a type that no policy activates", o.Origin(), name)
		case slices.ContainsFunc(c.delegated, defines):
			fail("the conversion rules are for %s, of a package that Crossplane installs; gitopsd can convert only objects of definitions that it applies itself", name)
		case manifest.Find(objects, manifest.XRD.ID("", name)) != nil:
			fail("the conversion rules are for %s, a CompositeResourceDefinition; only objects of CustomResourceDefinitions are converted by rules", name)
		case len(c.broken) > 0:
			c.notef("%s: the conversion rules are for %s, which is not rendered while packages have errors", o.Origin(), name)
		case name == "":
			fail("the conversion rules name no definition: give them its name, or the label %s", conversion.Label)
		default:
			fail("the conversion rules are for %s, and the cluster gets no CustomResourceDefinition of that name%s", name, sources.Meant(name, names))
		}
	}
}
