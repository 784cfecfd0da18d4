package types

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/manifest"
)

// former writes the canonical forms of types, one after the other into the same buffer.
type former struct {
	canon
	// each is called for every type, without its digest. The form is valid until each
	// returns.
	each func(t Type, form []byte)
}

// definition is the part of an object that applies to all its types.
type definition struct {
	spec     map[string]any
	group    string
	versions []map[string]any
	// stored is the name of the version that objects are stored in. If it is empty, the
	// API server refuses the definition.
	stored string
	// composite is set for a CompositeResourceDefinition.
	composite *composite
}

// composite has the fields of a CompositeResourceDefinition that a
// CustomResourceDefinition lacks.
type composite struct {
	// v2 is true for apiextensions.crossplane.io/v2.
	v2 bool
	// kind is the kind of the composite, and claim the kind of its claim. Both are empty
	// if there is no claim.
	kind, claim string
}

// object calls each for the types that an object defines.
func (f *former) object(object map[string]any) error {
	if IsManaged(object) {
		var err error
		if object, err = FromManaged(object); err != nil {
			return err
		}
	}
	apiVersion := manifest.Text(object, "apiVersion")
	_, version := manifest.GroupVersion(apiVersion)
	var d definition
	switch manifest.KindOf(object) {
	case manifest.CRD:
		if version != "v1" {
			return fmt.Errorf("%s: no API server serves apiVersion %s since Kubernetes 1.22: convert it to %s/v1", subject(object), apiVersion, manifest.CRD.Group)
		}
	case manifest.XRD:
		if version != "v1" && version != "v2" {
			return fmt.Errorf("%s: apiVersion is %s, want %s/v1 or %s/v2", subject(object), apiVersion, manifest.XRD.Group, manifest.XRD.Group)
		}
		d.composite = &composite{v2: version == "v2"}
	default:
		return nil
	}
	f.keys, f.ends = f.keys[:0], f.ends[:0]
	if err := f.definition(d, object["spec"]); err != nil {
		return fmt.Errorf("%s: %w", subject(object), at("spec", err))
	}
	return nil
}

// subject returns the name of an object for errors.
func subject(object map[string]any) string {
	return manifest.Text(object, "kind") + " " + manifest.Text(object, "metadata", "name")
}

func (f *former) definition(d definition, spec any) error {
	var ok bool
	if d.spec, ok = spec.(map[string]any); !ok {
		return want("a mapping", spec)
	}
	if d.group, ok = d.spec["group"].(string); !ok {
		return at("group", want("a string", d.spec["group"]))
	}
	storage := "storage"
	if d.composite != nil {
		storage = "referenceable"
	}
	if err := d.readVersions(storage); err != nil {
		return at("versions", err)
	}
	if d.composite == nil || d.spec["claimNames"] == nil {
		return f.kind(d, "names")
	}
	d.composite.kind = manifest.Text(d.spec, "names", "kind")
	d.composite.claim = manifest.Text(d.spec, "claimNames", "kind")
	if err := f.kind(d, "names"); err != nil {
		return err
	}
	return f.kind(d, "claimNames")
}

func (d *definition) readVersions(storage string) error {
	list, ok := d.spec["versions"].([]any)
	if !ok {
		return want("a list", d.spec["versions"])
	}
	for i, item := range list {
		v, ok := item.(map[string]any)
		if !ok {
			return atIndex(i, want("a mapping", item))
		}
		name, ok := v["name"].(string)
		if !ok {
			return atIndex(i, at("name", want("a string", v["name"])))
		}
		if manifest.Truth(v, storage) {
			d.stored = name
		}
		d.versions = append(d.versions, v)
	}
	return nil
}

// kind calls each for all versions of the kind that a field of the spec names.
func (f *former) kind(d definition, field string) error {
	names, ok := d.spec[field].(map[string]any)
	if !ok {
		return at(field, want("a mapping", d.spec[field]))
	}
	kind := manifest.Text(names, "kind")
	if kind == "" {
		return at(field, at("kind", want("a string", names["kind"])))
	}
	for i, v := range d.versions {
		f.buf = f.buf[:0]
		if err := f.form(d, field, names, i); err != nil {
			return err
		}
		f.each(Type{Group: d.group, Version: v["name"].(string), Kind: kind}, f.buf)
	}
	return nil
}

// form writes the canonical form of one kind in one version, keys in order.
func (f *former) form(d definition, field string, names map[string]any, version int) error {
	start := len(f.buf)
	if d.composite != nil {
		f.key(start, "composite")
		if err := f.compositeFields(d, field == "claimNames"); err != nil {
			return err
		}
	}
	f.key(start, "conversion")
	if err := f.conversion(d.spec["conversion"]); err != nil {
		return at("conversion", err)
	}
	f.key(start, "group")
	f.str(d.group)
	f.key(start, "names")
	if err := f.names(names); err != nil {
		return at(field, err)
	}
	if v := d.spec["preserveUnknownFields"]; v != nil && d.composite == nil {
		if err := f.boolField(start, "preserveUnknownFields", v); err != nil {
			return at("preserveUnknownFields", err)
		}
	}
	f.key(start, "scope")
	if err := f.scope(d, field); err != nil {
		return at("scope", err)
	}
	f.key(start, "storage")
	f.str(d.stored)
	f.key(start, "version")
	if err := f.version(d, d.versions[version]); err != nil {
		return at("versions", atIndex(version, err))
	}
	f.closeObject(start)
	return nil
}

// conversion writes the conversion strategy, without the address of a webhook.
func (f *former) conversion(v any) error {
	start := len(f.buf)
	if v == nil {
		f.key(start, "strategy")
		f.str("None")
		f.closeObject(start)
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	if webhook, ok := m["webhook"].(map[string]any); ok && webhook["conversionReviewVersions"] != nil {
		// The order matters: the API server uses the first version that it knows.
		f.key(start, "conversionReviewVersions")
		if err := f.data(webhook["conversionReviewVersions"]); err != nil {
			return at("webhook", at("conversionReviewVersions", err))
		}
	}
	if strategy := m["strategy"]; strategy != nil {
		if err := f.stringField(start, "strategy", strategy); err != nil {
			return at("strategy", err)
		}
	}
	f.closeObject(start)
	return nil
}

func (f *former) names(names map[string]any) error {
	start := len(f.buf)
	kind := manifest.Text(names, "kind")
	for _, k := range [...]string{"categories", "kind", "listKind", "plural", "shortNames", "singular"} {
		v := names[k]
		switch {
		case k == "listKind" && (v == nil || v == ""):
			v = kind + "List"
		case k == "singular" && (v == nil || v == ""):
			v = strings.ToLower(kind)
		case v == nil:
			continue
		}
		var err error
		switch k {
		case "categories", "shortNames":
			err = f.setField(start, k, v, true, stringElement)
		default:
			err = f.stringField(start, k, v)
		}
		if err != nil {
			return at(k, err)
		}
	}
	f.closeObject(start)
	return nil
}

// scope writes the scope of the CRD, or of the CRD that Crossplane makes of an XRD.
func (f *former) scope(d definition, field string) error {
	v := d.spec["scope"]
	if d.composite != nil {
		switch {
		case field == "claimNames":
			v = "Namespaced"
		case v == nil && d.composite.v2:
			v = "Namespaced"
		case v == nil:
			v = "LegacyCluster"
		}
	}
	return stringElement(&f.canon, v)
}

// version writes one version of a definition.
func (f *former) version(d definition, v map[string]any) error {
	start := len(f.buf)
	for _, k := range [...]string{"additionalPrinterColumns", "deprecated", "deprecationWarning", "name", "schema", "selectableFields", "served", "subresources"} {
		value := v[k]
		if value == nil && k != "additionalPrinterColumns" && k != "schema" {
			continue
		}
		var err error
		switch k {
		case "additionalPrinterColumns":
			err = f.columns(start, k, value)
		case "schema":
			err = f.versionSchema(start, value)
		case "deprecated", "served":
			err = f.boolField(start, k, value)
		case "deprecationWarning", "name":
			err = f.stringField(start, k, value)
		case "selectableFields":
			err = f.setField(start, k, value, true, selectableField)
		case "subresources":
			if d.composite == nil { // Crossplane sets the subresources of composites
				err = f.subresources(start, k, value)
			}
		}
		if err != nil {
			return at(k, err)
		}
	}
	f.closeObject(start)
	return nil
}

func (f *former) versionSchema(start int, v any) error {
	m, ok := v.(map[string]any)
	if !ok && v != nil {
		return want("a mapping", v)
	}
	f.key(start, "schema")
	return at("openAPIV3Schema", schema(&f.canon, m["openAPIV3Schema"]))
}

// columns writes the printer columns in order. If there are none, the API server prints
// the age.
func (f *former) columns(start int, k string, v any) error {
	list, ok := v.([]any)
	if !ok && v != nil {
		return want("a list", v)
	}
	f.key(start, k)
	if len(list) == 0 {
		f.buf = append(f.buf, `[{"jsonPath":".metadata.creationTimestamp","name":"Age","type":"date"}]`...)
		return nil
	}
	f.buf = append(f.buf, '[')
	for i, item := range list {
		if i > 0 {
			f.buf = append(f.buf, ',')
		}
		if err := f.column(item); err != nil {
			return atIndex(i, err)
		}
	}
	f.buf = append(f.buf, ']')
	return nil
}

func (f *former) column(v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	start := len(f.buf)
	for _, k := range [...]string{"format", "jsonPath", "name", "priority", "type"} {
		v := m[k]
		if v == nil || k == "priority" && isZero(v) {
			continue
		}
		field := f.stringField
		if k == "priority" {
			field = f.integerField
		}
		if err := field(start, k, v); err != nil {
			return at(k, err)
		}
	}
	f.closeObject(start)
	return nil
}

func isZero(v any) bool { return v == int64(0) || v == float64(0) }

func selectableField(c *canon, v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	path, ok := m["jsonPath"].(string)
	if !ok {
		return at("jsonPath", want("a string", m["jsonPath"]))
	}
	c.str(path)
	return nil
}

// subresources writes the subresources. Only scale has fields.
func (f *former) subresources(start int, k string, v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	if m["scale"] == nil && m["status"] == nil {
		return nil
	}
	f.key(start, k)
	inner := len(f.buf)
	if scale := m["scale"]; scale != nil {
		f.key(inner, "scale")
		if err := f.scale(scale); err != nil {
			return at("scale", err)
		}
	}
	if m["status"] != nil {
		f.key(inner, "status")
		f.buf = append(f.buf, "{}"...)
	}
	f.closeObject(inner)
	return nil
}

func (f *former) scale(v any) error {
	m, ok := v.(map[string]any)
	if !ok {
		return want("a mapping", v)
	}
	start := len(f.buf)
	for _, k := range [...]string{"labelSelectorPath", "specReplicasPath", "statusReplicasPath"} {
		if v := m[k]; v != nil {
			if err := f.stringField(start, k, v); err != nil {
				return at(k, err)
			}
		}
	}
	f.closeObject(start)
	return nil
}

// compositeFields writes the fields that only a CompositeResourceDefinition has: how
// composites choose their composition, and the kinds of composite and claim.
func (f *former) compositeFields(d definition, claim bool) error {
	start := len(f.buf)
	if claim {
		f.key(start, "claimOf")
		f.str(d.composite.kind)
	} else if d.composite.claim != "" {
		f.key(start, "claimedBy")
		f.str(d.composite.claim)
	}
	if keys := d.spec["connectionSecretKeys"]; keys != nil {
		if err := f.setField(start, "connectionSecretKeys", keys, true, stringElement); err != nil {
			return at("connectionSecretKeys", err)
		}
	}
	for _, p := range [...]struct{ field, absent string }{
		{"defaultCompositeDeletePolicy", "Background"},
		{"defaultCompositionRef", ""},
		{"defaultCompositionRevisionSelector", ""},
		{"defaultCompositionUpdatePolicy", "Automatic"},
		{"enforcedCompositionRef", ""},
	} {
		v := d.spec[p.field]
		if v == nil {
			if p.absent == "" {
				continue
			}
			v = p.absent
		}
		f.key(start, p.field)
		if err := f.data(v); err != nil {
			return at(p.field, err)
		}
	}
	f.closeObject(start)
	return nil
}
