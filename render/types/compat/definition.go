package compat

import (
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// definition is what both kinds of definition say, with the API server's and
// Crossplane's defaults. types.Of has checked the types of the values, so
// whatever is not of its type is absent.
type definition struct {
	spec, names, claimNames map[string]any
	group, scope            string
	preserves               bool
	webhook                 bool
	reviewVersions          []string
	versions                []apiVersion
	stored                  []string // status.storedVersions
	xrd                     bool
}

type apiVersion struct {
	name                        string
	served, storage, deprecated bool
	warning                     string
	schema                      node
	fields                      map[string]any
}

// node is a schema. A nil node is an absent one; what that means depends on
// where it is absent.
type node = map[string]any

func mapping(m map[string]any, field string) map[string]any {
	v, _ := m[field].(map[string]any)
	return v
}

func text(m map[string]any, field string) string {
	v, _ := m[field].(string)
	return v
}

func truth(m map[string]any, field string) bool {
	v, _ := m[field].(bool)
	return v
}

func strs(v any) []string {
	list, _ := v.([]any)
	var all []string
	for _, item := range list {
		if s, ok := item.(string); ok {
			all = append(all, s)
		}
	}
	return all
}

// read is nil for nil.
func read(object map[string]any) *definition {
	if object == nil {
		return nil
	}
	spec := mapping(object, "spec")
	conversion := mapping(spec, "conversion")
	d := &definition{
		spec: spec, names: mapping(spec, "names"), claimNames: mapping(spec, "claimNames"),
		group: text(spec, "group"), scope: text(spec, "scope"),
		preserves:      truth(spec, "preserveUnknownFields"),
		webhook:        text(conversion, "strategy") == "Webhook",
		reviewVersions: strs(mapping(conversion, "webhook")["conversionReviewVersions"]),
		stored:         strs(mapping(object, "status")["storedVersions"]),
		xrd:            manifest.KindOf(object) == manifest.XRD,
	}
	storage := "storage"
	if d.xrd {
		storage = "referenceable"
		if d.scope == "" && strings.HasSuffix(text(object, "apiVersion"), "/v1") {
			d.scope = "LegacyCluster"
		} else if d.scope == "" {
			d.scope = "Namespaced"
		}
	}
	list, _ := spec["versions"].([]any)
	for _, item := range list {
		v, _ := item.(map[string]any)
		d.versions = append(d.versions, apiVersion{
			name: text(v, "name"), served: truth(v, "served"), storage: truth(v, storage),
			deprecated: truth(v, "deprecated"), warning: text(v, "deprecationWarning"),
			schema: mapping(mapping(v, "schema"), "openAPIV3Schema"), fields: v,
		})
	}
	return d
}

func (d *definition) version(name string) *apiVersion {
	for i := range d.versions {
		if d.versions[i].name == name {
			return &d.versions[i]
		}
	}
	return nil
}

func (d *definition) storageVersion() string {
	for _, v := range d.versions {
		if v.storage {
			return v.name
		}
	}
	return ""
}

func nameOf(names map[string]any, field string) string {
	v, kind := text(names, field), text(names, "kind")
	switch {
	case v != "":
		return v
	case field == "listKind":
		return kind + "List"
	case field == "singular":
		return strings.ToLower(kind)
	}
	return ""
}

// storage is which versions objects are stored in.
type storage struct {
	versions []string
	// known is false if no status says so: then any version that there was may
	// still be in etcd.
	known bool
}

func (s storage) has(version string) bool { return slices.Contains(s.versions, version) }

// may reports whether objects may be stored in a version of the old definition.
func (s storage) may(version string) bool { return s.has(version) || !s.known }

func (c *comparison) definitions(old, new *definition, opts Options) {
	switch {
	case old == nil && new == nil:
		return
	case old == nil:
		c.add(Finding{Name: "definition-added", Severity: Compatible, Detail: changed(absent{}, describe(new))})
		return
	case new == nil:
		c.add(Finding{Name: "definition-removed", Severity: Breaking, Breaks: everybody, Detail: changed(describe(old), absent{})})
		return
	}
	stored := storage{versions: opts.StoredVersions, known: true}
	if len(stored.versions) == 0 {
		stored.versions = old.stored
	}
	if len(stored.versions) == 0 {
		stored = storage{versions: []string{old.storageVersion()}}
	}
	c.names("", old.names, new.names)
	if old.group != new.group {
		c.add(Finding{Name: "group-changed", Severity: Breaking, Breaks: everybody, Detail: changed(old.group, new.group)})
	}
	if old.scope != new.scope {
		c.add(Finding{Name: "scope-changed", Severity: Breaking, Breaks: everybody, Detail: changed(old.scope, new.scope)})
	}
	if old.preserves != new.preserves {
		c.pruning("", "", new.preserves, "spec.preserveUnknownFields: "+changed(old.preserves, new.preserves))
	}
	if new.xrd {
		c.composites(old, new)
	}
	c.conversion(old, new, stored)
	c.versions(old, new, stored)
}

func describe(d *definition) string {
	served := []string{}
	for _, v := range d.versions {
		if v.served {
			served = append(served, v.name)
		}
	}
	return text(d.names, "kind") + "." + d.group + " (" + strings.Join(served, ", ") + ")"
}

// pruning is what x-kubernetes-preserve-unknown-fields and
// spec.preserveUnknownFields have in common.
func (c *comparison) pruning(version, path string, preserves bool, detail string) {
	if preserves {
		c.add(Finding{Name: "pruning-off", Severity: Compatible, Version: version, Path: path, Breaks: Readers, Detail: detail})
		return
	}
	c.add(Finding{Name: "pruning-on", Severity: Breaking, Version: version, Path: path, Breaks: everybody, Detail: detail})
}

// names compares the names of a kind; what is "claim " for those of a claim.
func (c *comparison) names(what string, old, new map[string]any) {
	for _, n := range []struct {
		field, finding string
		breaks         Parties
	}{
		{"kind", "kind-changed", everybody}, {"plural", "plural-changed", everybody},
		{"listKind", "list-kind-changed", Readers | Controllers}, {"singular", "singular-changed", Writers | Readers},
	} {
		if o, n2 := nameOf(old, n.field), nameOf(new, n.field); o != n2 {
			c.add(Finding{Name: n.finding, Severity: Breaking, Breaks: n.breaks, Detail: what + changed(o, n2)})
		}
	}
	removed, added := difference(strs(old["shortNames"]), strs(new["shortNames"]))
	for _, n := range removed {
		c.add(Finding{Name: "short-name-removed", Severity: Breaking, Breaks: Writers | Readers, Detail: what + changed(n, absent{})})
	}
	for _, n := range added {
		c.add(Finding{Name: "short-name-added", Severity: Compatible, Detail: what + changed(absent{}, n)})
	}
	removed, added = difference(strs(old["categories"]), strs(new["categories"]))
	for _, n := range removed {
		c.add(Finding{Name: "category-removed", Severity: Compatible, Breaks: Readers, Detail: what + changed(n, absent{})})
	}
	for _, n := range added {
		c.add(Finding{Name: "category-added", Severity: Compatible, Detail: what + changed(absent{}, n)})
	}
}

// difference is what only one of two sets has, sorted.
func difference(old, new []string) (removed, added []string) {
	return missing(old, new), missing(new, old)
}

// missing is what is in a and not in b, each once.
func missing(a, b []string) []string {
	in := make(map[string]bool, len(b))
	for _, s := range b {
		in[s] = true
	}
	var left []string
	for _, s := range a {
		if !in[s] {
			in[s] = true
			left = append(left, s)
		}
	}
	slices.Sort(left)
	return left
}

// composites compares what only a CompositeResourceDefinition has.
func (c *comparison) composites(old, new *definition) {
	switch o, n := nameOf(old.claimNames, "kind"), nameOf(new.claimNames, "kind"); {
	case o == "" && n != "":
		c.add(Finding{Name: "claim-added", Severity: Compatible, Detail: changed(absent{}, n)})
	case o != "" && n == "":
		c.add(Finding{Name: "claim-removed", Severity: Breaking, Breaks: everybody, Detail: changed(o, absent{})})
	case o != "":
		c.names("claim ", old.claimNames, new.claimNames)
	}
	// No keys are all keys.
	o, n := strs(old.spec["connectionSecretKeys"]), strs(new.spec["connectionSecretKeys"])
	removed, added := difference(o, n)
	switch {
	case len(n) > 0 && (len(o) == 0 || len(removed) > 0):
		c.add(Finding{Name: "connection-keys-narrowed", Severity: Breaking, Breaks: Readers, Detail: changed(keys(o), keys(n))})
	case len(o) > 0 && (len(n) == 0 || len(added) > 0):
		c.add(Finding{Name: "connection-keys-widened", Severity: Compatible, Detail: changed(keys(o), keys(n))})
	}
	for _, f := range []struct{ field, absent string }{
		{"defaultCompositeDeletePolicy", "Background"}, {"defaultCompositionUpdatePolicy", "Automatic"},
		{"defaultCompositionRef", ""}, {"defaultCompositionRevisionSelector", ""}, {"enforcedCompositionRef", ""},
	} {
		o, n := orDefault(old.spec[f.field], f.absent), orDefault(new.spec[f.field], f.absent)
		if !equalData(o, n) {
			c.add(Finding{Name: "composition-changed", Severity: Compatible, Breaks: Controllers, Detail: "spec." + f.field + ": " + changed(o, n)})
		}
	}
}

func keys(list []string) any {
	if len(list) == 0 {
		return "all"
	}
	return list
}

func orDefault(v any, def string) any {
	switch {
	case v != nil:
		return v
	case def == "":
		return absent{}
	}
	return def
}

func (c *comparison) conversion(old, new *definition, stored storage) {
	strategy := map[bool]string{false: "None", true: "Webhook"}
	switch {
	case old.webhook && !new.webhook:
		f := Finding{Name: "conversion-removed", Severity: Breaking, Breaks: everybody, Detail: changed(strategy[true], strategy[false])}
		inOne := !slices.ContainsFunc(stored.versions, func(s string) bool { return s != new.storageVersion() })
		if inOne && len(new.versions) == 1 && (stored.known || len(old.versions) == 1) {
			f.Severity, f.Breaks = Compatible, 0 // there is nothing to convert
		}
		c.add(f)
	case !old.webhook && new.webhook:
		c.add(Finding{Name: "conversion-added", Severity: Compatible, Detail: changed(strategy[false], strategy[true])})
	case new.webhook && !slices.Equal(old.reviewVersions, new.reviewVersions):
		c.add(Finding{Name: "conversion-review-versions-changed", Severity: Compatible, Breaks: Controllers, Detail: changed(old.reviewVersions, new.reviewVersions)})
	}
}

func (c *comparison) versions(old, new *definition, stored storage) {
	if o, n := old.storageVersion(), new.storageVersion(); o != n {
		c.add(Finding{Name: "storage-version-changed", Severity: Compatible, Detail: changed(o, n)})
	}
	for i := range old.versions {
		o := &old.versions[i]
		n := new.version(o.name)
		if n == nil {
			c.removed(o, stored, new)
			continue
		}
		switch {
		case o.served && !n.served:
			c.add(Finding{Name: "version-unserved", Severity: Breaking, Version: o.name, Breaks: Writers | Readers | Controllers, Detail: changed("served", "not served")})
		case !o.served && n.served:
			c.add(Finding{Name: "version-served", Severity: Compatible, Version: o.name, Detail: changed("not served", "served")})
		}
		c.version(old, new, o, n, stored)
	}
	for i := range new.versions {
		if v := &new.versions[i]; old.version(v.name) == nil {
			c.add(Finding{Name: "version-added", Severity: Compatible, Version: v.name, Detail: changed(absent{}, v.name), Advice: conventionsOfVersion(v, new.xrd)})
		}
	}
	if !new.webhook {
		c.disagreements(old, new, stored)
	}
}

// removed is about a version that the new definition does not have.
func (c *comparison) removed(v *apiVersion, stored storage, new *definition) {
	if stored.has(v.name) {
		detail := "status.storedVersions has " + v.name
		if !stored.known {
			detail = v.name + " is the storage version"
		}
		c.add(Finding{Name: "stored-version-removed", Severity: Breaking, Version: v.name, Breaks: everybody, Detail: detail})
	}
	f := Finding{Name: "version-removed", Version: v.name}
	switch {
	case v.served:
		f.Severity, f.Breaks, f.Detail = Breaking, Writers|Readers|Controllers, changed("served", absent{})
	case !stored.known:
		f.Severity, f.Breaks, f.Detail = Breaking, StoredObjects, changed("not served, but perhaps in status.storedVersions", absent{})
		f.Advice = advice["stored-version-removed"]
	default:
		f.Severity, f.Detail = Compatible, changed("not served", absent{})
	}
	c.add(f)
}

// version compares a version that both definitions have. Of one that is not served
// only stored objects notice anything, and the others that read them.
func (c *comparison) version(oldDefinition, newDefinition *definition, old, new *apiVersion, stored storage) {
	name, isStored := old.name, stored.may(old.name)
	served := old.served && new.served
	from := len(c.findings)
	defer func() {
		for i := range c.findings[from:] {
			if f := &c.findings[from+i]; !served {
				f.unserved(isStored)
			}
		}
	}()
	switch {
	case !old.deprecated && new.deprecated:
		c.add(Finding{Name: "version-deprecated", Severity: Compatible, Version: name, Detail: changed("not deprecated", "deprecated "+new.warning)})
	case old.deprecated && !new.deprecated:
		c.add(Finding{Name: "version-undeprecated", Severity: Compatible, Version: name, Detail: changed("deprecated", "not deprecated")})
	case old.warning != new.warning:
		c.add(Finding{Name: "deprecation-warning-changed", Severity: Documentation, Version: name, Detail: changed(old.warning, new.warning)})
	}
	if !newDefinition.xrd {
		c.subresources(name, mapping(old.fields, "subresources"), mapping(new.fields, "subresources"))
	}
	c.columns(name, old.fields["additionalPrinterColumns"], new.fields["additionalPrinterColumns"])
	c.selectableFields(name, old.fields["selectableFields"], new.fields["selectableFields"])

	breaks := Writers
	if stored.has(name) || isStored && !served {
		breaks |= StoredObjects
	}
	w := walk{version: name, narrows: breaks, oldKeeps: oldDefinition.preserves, newKeeps: newDefinition.preserves}
	w.statusApart = mapping(mapping(new.fields, "subresources"), "status") != nil
	w.node(place{root: true}, old.schema, new.schema)
	w.compile(new.schema)
	for _, f := range w.findings {
		c.add(f)
	}
}

// unserved leaves of a finding what it is in a version that nobody can ask for:
// objects stored in it are read by its schema, with its defaults, whatever version
// they are asked for in.
func (f *Finding) unserved(isStored bool) {
	if f.Name == "rule-refused" || f.Severity != Breaking {
		return
	}
	f.Breaks &^= Writers
	switch {
	case !isStored:
		f.Severity, f.Breaks = Compatible, 0
		f.Advice = "nothing to do: the version is not served, and no object is stored in it"
	case strings.HasPrefix(f.Name, "default-"):
	case f.Breaks&StoredObjects == 0:
		f.Severity, f.Breaks = Compatible, 0
		f.Advice = "nothing to do: the version is not served"
	default:
		f.Breaks = StoredObjects
	}
}

func (c *comparison) subresources(version string, old, new map[string]any) {
	switch o, n := old["status"] != nil, new["status"] != nil; {
	case !o && n:
		c.add(Finding{Name: "status-subresource-added", Severity: Breaking, Version: version, Breaks: Writers | Controllers, Detail: changed(absent{}, "status")})
	case o && !n:
		c.add(Finding{Name: "status-subresource-removed", Severity: Breaking, Version: version, Breaks: Writers | Controllers, Detail: changed("status", absent{})})
	}
	o, n := mapping(old, "scale"), mapping(new, "scale")
	switch {
	case o == nil && n != nil:
		c.add(Finding{Name: "scale-subresource-added", Severity: Compatible, Version: version, Detail: changed(absent{}, n)})
	case o != nil && n == nil:
		c.add(Finding{Name: "scale-subresource-removed", Severity: Breaking, Version: version, Breaks: Writers | Readers | Controllers, Detail: changed(o, absent{})})
	case o != nil:
		for _, path := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
			if a, b := text(o, path), text(n, path); a != b {
				c.add(Finding{Name: "scale-subresource-changed", Severity: Breaking, Version: version, Breaks: Writers | Readers | Controllers, Detail: path + ": " + changed(a, b)})
			}
		}
	}
}

// columns compares printer columns by name. Their order is a finding of its own,
// since scripts cut columns by number.
func (c *comparison) columns(version string, old, new any) {
	o, n := columns(old), columns(new)
	var kept, order []string
	for _, col := range o {
		i := slices.IndexFunc(n, func(m map[string]any) bool { return text(m, "name") == text(col, "name") })
		if i < 0 {
			c.add(Finding{Name: "printer-column-removed", Severity: Compatible, Version: version, Breaks: Readers, Detail: changed(text(col, "name"), absent{})})
			continue
		}
		kept = append(kept, text(col, "name"))
		for _, field := range []string{"type", "format", "jsonPath", "priority"} {
			a, b := orDefault(col[field], ""), orDefault(n[i][field], "")
			if field == "priority" {
				a, b = orZero(col[field]), orZero(n[i][field])
			}
			if !equalData(a, b) {
				c.add(Finding{Name: "printer-column-changed", Severity: Compatible, Version: version, Breaks: Readers, Detail: text(col, "name") + " " + field + ": " + changed(a, b)})
			}
		}
	}
	for _, col := range n {
		name := text(col, "name")
		if slices.Contains(kept, name) {
			order = append(order, name)
			continue
		}
		c.add(Finding{Name: "printer-column-added", Severity: Compatible, Version: version, Detail: changed(absent{}, name)})
	}
	if !slices.Equal(kept, order) {
		c.add(Finding{Name: "printer-columns-reordered", Severity: Compatible, Version: version, Breaks: Readers, Detail: changed(kept, order)})
	}
}

func orZero(v any) any {
	if v == nil {
		return int64(0)
	}
	return v
}

// columns without any are the one that the API server prints.
func columns(v any) []map[string]any {
	list, _ := v.([]any)
	var all []map[string]any
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	if len(all) == 0 {
		all = []map[string]any{{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}}
	}
	return all
}

func (c *comparison) selectableFields(version string, old, new any) {
	removed, added := difference(paths(old), paths(new))
	for _, p := range removed {
		c.add(Finding{Name: "selectable-field-removed", Severity: Breaking, Version: version, Breaks: Readers | Controllers, Detail: changed(p, absent{})})
	}
	for _, p := range added {
		c.add(Finding{Name: "selectable-field-added", Severity: Compatible, Version: version, Detail: changed(absent{}, p)})
	}
}

func paths(v any) []string {
	list, _ := v.([]any)
	var all []string
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, text(m, "jsonPath"))
		}
	}
	return all
}
