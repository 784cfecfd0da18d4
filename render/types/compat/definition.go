package compat

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// definition is a definition with its versions.
type definition struct {
	types.Definition
	versions []types.Version
	// rules is the digest of the conversion rules that convert its objects; empty if
	// another webhook converts, or nothing.
	rules string
}

// node is a schema. nil is an absent schema; its meaning depends on the place.
type node = map[string]any

// read returns an object as a definition; nil for nil.
func read(object map[string]any) *definition {
	if object == nil {
		return nil
	}
	d := types.Read(object)
	_, rules := conversion.Asked(object)
	return &definition{d, d.Versions(), rules}
}

func (d *definition) version(name string) *types.Version {
	for i := range d.versions {
		if d.versions[i].Name == name {
			return &d.versions[i]
		}
	}
	return nil
}

func (d *definition) storageVersion() string {
	for _, v := range d.versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// storage has the versions that objects are stored in.
type storage struct {
	versions []string
	// known is false if there is no status: objects may be stored in any version of the
	// old definition.
	known bool
}

func (s storage) has(version string) bool { return slices.Contains(s.versions, version) }

// may reports whether objects may be stored in a version of the old definition.
func (s storage) may(version string) bool { return s.has(version) || !s.known }

func (c *comparison) definitions(ctx context.Context, old, new *definition, opts Options) {
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
		stored.versions = old.StoredVersions()
	}
	if len(stored.versions) == 0 {
		stored = storage{versions: []string{old.storageVersion()}}
	}
	c.names("", old.Names, new.Names)
	if old.Group != new.Group {
		c.add(Finding{Name: "group-changed", Severity: Breaking, Breaks: everybody, Detail: changed(old.Group, new.Group)})
	}
	if old.Scope != new.Scope {
		c.add(Finding{Name: ScopeChanged, Severity: Breaking, Breaks: everybody, Detail: changed(old.Scope, new.Scope)})
	}
	if old.PreservesUnknownFields != new.PreservesUnknownFields {
		c.pruning("", "", new.PreservesUnknownFields, "spec.preserveUnknownFields: "+changed(old.PreservesUnknownFields, new.PreservesUnknownFields))
	}
	if new.XRD {
		c.composites(old, new)
	}
	c.conversion(old, new, stored)
	c.rules(old, new)
	c.versions(ctx, old, new, stored)
}

func describe(d *definition) string {
	served := []string{}
	for _, v := range d.versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return d.Names.Kind + "." + d.Group + " (" + strings.Join(served, ", ") + ")"
}

// pruning reports a change of x-kubernetes-preserve-unknown-fields or
// spec.preserveUnknownFields.
func (c *comparison) pruning(version, path string, preserves bool, detail string) {
	if preserves {
		c.add(Finding{Name: "pruning-off", Severity: Compatible, Version: version, Path: path, Breaks: Readers, Detail: detail})
		return
	}
	c.add(Finding{Name: "pruning-on", Severity: Breaking, Version: version, Path: path, Breaks: everybody, Detail: detail})
}

// names compares the names of a kind; what is "claim " for a claim.
func (c *comparison) names(what string, old, new types.Names) {
	for _, n := range []struct {
		old, new, finding string
		breaks            Parties
	}{
		{old.Kind, new.Kind, "kind-changed", everybody}, {old.Plural, new.Plural, "plural-changed", everybody},
		{old.ListKind, new.ListKind, "list-kind-changed", Readers | Controllers},
		{old.Singular, new.Singular, "singular-changed", Writers | Readers},
	} {
		if n.old != n.new {
			c.add(Finding{Name: n.finding, Severity: Breaking, Breaks: n.breaks, Detail: what + changed(n.old, n.new)})
		}
	}
	removed, added := difference(old.ShortNames(), new.ShortNames())
	for _, n := range removed {
		c.add(Finding{Name: "short-name-removed", Severity: Breaking, Breaks: Writers | Readers, Detail: what + changed(n, absent{})})
	}
	for _, n := range added {
		c.add(Finding{Name: "short-name-added", Severity: Compatible, Detail: what + changed(absent{}, n)})
	}
	removed, added = difference(old.Categories(), new.Categories())
	for _, n := range removed {
		c.add(Finding{Name: "category-removed", Severity: Compatible, Breaks: Readers, Detail: what + changed(n, absent{})})
	}
	for _, n := range added {
		c.add(Finding{Name: "category-added", Severity: Compatible, Detail: what + changed(absent{}, n)})
	}
}

// difference returns the elements that only one of two sets has, sorted.
func difference(old, new []string) (removed, added []string) {
	return missing(old, new), missing(new, old)
}

// missing returns the elements of a that are not in b, each once and sorted.
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

// composites compares the fields that only a CompositeResourceDefinition has.
func (c *comparison) composites(old, new *definition) {
	switch o, n := old.Claims.Kind, new.Claims.Kind; {
	case o == "" && n != "":
		c.add(Finding{Name: "claim-added", Severity: Compatible, Detail: changed(absent{}, n)})
	case o != "" && n == "":
		c.add(Finding{Name: "claim-removed", Severity: Breaking, Breaks: everybody, Detail: changed(o, absent{})})
	case o != "":
		c.names("claim ", old.Claims, new.Claims)
	}
	// An empty list means all keys.
	o, n := manifest.Texts(old.Spec, "connectionSecretKeys"), manifest.Texts(new.Spec, "connectionSecretKeys")
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
		o, n := orDefault(old.Spec[f.field], f.absent), orDefault(new.Spec[f.field], f.absent)
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

// orDefault returns v, or def if v is nil. The default "" means absent.
func orDefault(v, def any) any {
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
	case old.Converts && !new.Converts:
		f := Finding{Name: "conversion-removed", Severity: Breaking, Breaks: everybody, Detail: changed(strategy[true], strategy[false])}
		inOne := !slices.ContainsFunc(stored.versions, func(s string) bool { return s != new.storageVersion() })
		if inOne && len(new.versions) == 1 && (stored.known || len(old.versions) == 1) {
			f.Severity, f.Breaks = Compatible, 0 // no object needs conversion
		}
		if others := slices.DeleteFunc(slices.Clone(stored.versions), func(s string) bool { return s == new.storageVersion() }); stored.known && len(others) > 0 {
			f.Detail += ", and status.storedVersions has " + strings.Join(others, ", ") + ", which nothing converts then: run `gitopsd migrate --yes` before"
		}
		c.add(f)
	case !old.Converts && new.Converts:
		c.add(Finding{Name: "conversion-added", Severity: Compatible, Detail: changed(strategy[false], strategy[true])})
	case new.Converts && !slices.Equal(old.ReviewVersions, new.ReviewVersions):
		c.add(Finding{Name: "conversion-review-versions-changed", Severity: Compatible, Breaks: Controllers, Detail: changed(old.ReviewVersions, new.ReviewVersions)})
	}
}

// rules compares conversion rules, if a webhook converts objects before and after.
func (c *comparison) rules(old, new *definition) {
	if !old.Converts || !new.Converts || old.rules == new.rules {
		return
	}
	const webhook = "another webhook"
	switch {
	case old.rules == "":
		c.add(Finding{Name: "conversion-rules-added", Severity: Compatible, Breaks: Readers | Controllers, Detail: changed(webhook, new.rules)})
	case new.rules == "":
		c.add(Finding{Name: "conversion-rules-removed", Severity: Breaking, Breaks: StoredObjects, Detail: changed(old.rules, webhook)})
	default:
		c.add(Finding{Name: "conversion-rules-changed", Severity: Compatible, Breaks: Readers | Controllers, Detail: changed(old.rules, new.rules)})
	}
}

func (c *comparison) versions(ctx context.Context, old, new *definition, stored storage) {
	if o, n := old.storageVersion(), new.storageVersion(); o != n {
		c.add(Finding{Name: "storage-version-changed", Severity: Compatible, Detail: changed(o, n)})
	}
	for i := range old.versions {
		o := &old.versions[i]
		n := new.version(o.Name)
		if n == nil {
			c.removed(o, stored, new)
			continue
		}
		switch {
		case o.Served && !n.Served:
			c.add(Finding{Name: "version-unserved", Severity: Breaking, Version: o.Name, Breaks: Writers | Readers | Controllers, Detail: changed("served", "not served")})
		case !o.Served && n.Served:
			c.add(Finding{Name: "version-served", Severity: Compatible, Version: o.Name, Detail: changed("not served", "served")})
		}
		c.version(ctx, old, new, o, n, stored)
	}
	for i := range new.versions {
		if v := &new.versions[i]; old.version(v.Name) == nil {
			c.add(Finding{Name: "version-added", Severity: Compatible, Version: v.Name, Detail: changed(absent{}, v.Name), Advice: conventionsOfVersion(v, new.XRD)})
		}
	}
	if !new.Converts {
		c.disagreements(ctx, old, new, stored)
	}
}

// StoredVersionRemoved is the finding that a version is removed that objects may be stored
// in. The API server refuses that, even if it is allowed.
const StoredVersionRemoved = "stored-version-removed"

// ScopeChanged is the finding that a definition has another scope, which no API server accepts.
const ScopeChanged = "scope-changed"

// removed reports a version that the new definition lacks.
func (c *comparison) removed(v *types.Version, stored storage, new *definition) {
	if stored.has(v.Name) {
		migrate := "run `gitopsd migrate --yes"
		for _, plural := range []string{new.Names.Plural, new.Claims.Plural} {
			if new.XRD && plural != "" { // those that Crossplane made are migrated by name
				migrate += " " + plural + "." + new.Group
			}
		}
		migrate += "`"
		detail := v.Name + " is the storage version"
		switch {
		case stored.known && v.Storage:
			detail += ": make another one the storage version, then " + migrate
		case stored.known:
			detail = "status.storedVersions has " + v.Name + ": " + migrate
		}
		c.add(Finding{Name: StoredVersionRemoved, Severity: Breaking, Version: v.Name, Breaks: everybody, Detail: detail})
	}
	f := Finding{Name: "version-removed", Version: v.Name}
	switch {
	case v.Served:
		f.Severity, f.Breaks, f.Detail = Breaking, Writers|Readers|Controllers, changed("served", absent{})
	case !stored.known:
		f.Severity, f.Breaks, f.Detail = Breaking, StoredObjects, changed("not served, but perhaps in status.storedVersions", absent{})
		f.Advice = advice[StoredVersionRemoved]
	default:
		f.Severity, f.Detail = Compatible, changed("not served", absent{})
	}
	c.add(f)
}

// version compares a version that both definitions have. A change in an unserved
// version concerns only stored objects and their readers.
func (c *comparison) version(ctx context.Context, oldDefinition, newDefinition *definition, old, new *types.Version, stored storage) {
	name, isStored := old.Name, stored.may(old.Name)
	served := old.Served && new.Served
	from := len(c.findings)
	defer func() {
		for i := range c.findings[from:] {
			if f := &c.findings[from+i]; !served {
				f.unserved(isStored)
			}
		}
	}()
	switch {
	case !old.Deprecated && new.Deprecated:
		c.add(Finding{Name: "version-deprecated", Severity: Compatible, Version: name, Detail: changed("not deprecated", "deprecated "+new.Warning)})
	case old.Deprecated && !new.Deprecated:
		c.add(Finding{Name: "version-undeprecated", Severity: Compatible, Version: name, Detail: changed("deprecated", "not deprecated")})
	case old.Warning != new.Warning:
		c.add(Finding{Name: "deprecation-warning-changed", Severity: Documentation, Version: name, Detail: changed(old.Warning, new.Warning)})
	}
	breaks := Writers
	if stored.has(name) || isStored && !served {
		breaks |= StoredObjects
	}
	if !newDefinition.XRD {
		c.subresources(old, new, breaks, oldDefinition.PreservesUnknownFields)
	}
	c.columns(name, old.Columns, new.Columns)
	c.selectableFields(name, old.SelectableFields, new.SelectableFields)

	w := c.walk(name, breaks, oldDefinition.PreservesUnknownFields, newDefinition.PreservesUnknownFields)
	w.statusApart = manifest.Mapping(new.Subresources, "status") != nil
	w.node(ctx, place{root: true}, old.Schema, new.Schema)
	w.compile(ctx, oldDefinition, old.Schema, new.Schema)
	for _, f := range w.findings {
		c.add(f)
	}
}

// unserved adjusts a finding about a version that is not served. Objects stored in it are
// read with its schema and its defaults, in whatever version they are requested.
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

// subresources compares the subresources of a version. breaks are the parties that break if
// values are no longer accepted; keeps reports whether the old definition preserves unknown
// fields everywhere.
func (c *comparison) subresources(old, new *types.Version, breaks Parties, keeps bool) {
	version := old.Name
	switch o, n := old.Subresources["status"] != nil, new.Subresources["status"] != nil; {
	case !o && n:
		c.add(Finding{Name: "status-subresource-added", Severity: Breaking, Version: version, Breaks: Writers | Controllers, Detail: changed(absent{}, "status")})
	case o && !n:
		c.add(Finding{Name: "status-subresource-removed", Severity: Breaking, Version: version, Breaks: Writers | Controllers, Detail: changed("status", absent{})})
	}
	o, n := manifest.Mapping(old.Subresources, "scale"), manifest.Mapping(new.Subresources, "scale")
	if o != nil && n == nil {
		c.add(Finding{Name: "scale-subresource-removed", Severity: Breaking, Version: version, Breaks: Writers | Readers | Controllers, Detail: changed(o, absent{})})
		return
	}
	harmless := o == nil && n != nil
	for _, keyword := range []string{"specReplicasPath", "statusReplicasPath", "labelSelectorPath"} {
		a, b := manifest.Text(o, keyword), manifest.Text(n, keyword)
		if a == b {
			continue
		}
		f := Finding{
			Name: "scale-subresource-added", Severity: Breaking, Version: version, Path: pathOf(cmp.Or(b, a)), Breaks: breaks,
			Detail: keyword + ": " + changed(orDefault(o[keyword], ""), orDefault(n[keyword], "")),
		}
		suits := b == "" || suitsScale(old.Schema, b, keyword, keeps)
		switch {
		case o == nil && suits:
			continue
		case o != nil && suits:
			f.Name, f.Breaks = "scale-subresource-changed", Writers|Readers|Controllers
		case o != nil:
			f.Name, f.Breaks = "scale-subresource-changed", breaks|Writers|Readers|Controllers
		}
		harmless = false
		c.add(f)
	}
	if harmless {
		c.add(Finding{Name: "scale-subresource-added", Severity: Compatible, Version: version, Detail: changed(absent{}, n), Advice: "nothing to do"})
	}
}

// suitsScale reports whether a schema has only values in a field that the subresource scale
// accepts: replicas from 0 to MaxInt32, or else a selector that is a string. The API server
// checks them in every write, whether they change or not. Of replicas in the status only the
// type counts: who writes them can correct them. keeps is as for rest.
func suitsScale(s node, path, keyword string, keeps bool) bool {
	for _, name := range namesIn(path) {
		if manifest.Text(s, "type") != "object" {
			return false
		}
		inner := manifest.Mapping(s, "properties", name)
		if inner == nil {
			_, kept, _ := rest(s, keeps)
			return !kept
		}
		s = inner
	}
	typ := manifest.Text(s, "type")
	switch {
	case manifest.Truth(s, "nullable"):
		return false
	case keyword == "labelSelectorPath":
		return typ == "string"
	case keyword == "statusReplicasPath":
		return typ == "integer"
	}
	least, most := limitOf(s, "minimum", "exclusiveMinimum", -1), limitOf(s, "maximum", "exclusiveMaximum", +1)
	return typ == "integer" && least.set && least.value >= 0 &&
		(most.set && most.value <= math.MaxInt32 || checkedFormat(typ, manifest.Text(s, "format")) == "int32")
}

// namesIn returns the names in a path of the subresource scale, which has only dots.
func namesIn(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }

// pathOf returns a path of the subresource scale as a finding's path.
func pathOf(path string) string {
	text := ""
	for _, name := range namesIn(path) {
		text += field.Key(name).String()
	}
	return text
}

// columns compares printer columns by name. Their order is a finding of its own,
// since scripts cut columns by number.
func (c *comparison) columns(version string, old, new any) {
	o, n := columns(old), columns(new)
	var kept, order []string
	for _, col := range o {
		i := slices.IndexFunc(n, func(m map[string]any) bool { return manifest.Text(m, "name") == manifest.Text(col, "name") })
		if i < 0 {
			c.add(Finding{Name: "printer-column-removed", Severity: Compatible, Version: version, Breaks: Readers, Detail: changed(manifest.Text(col, "name"), absent{})})
			continue
		}
		kept = append(kept, manifest.Text(col, "name"))
		for _, field := range []struct {
			name   string
			absent any
		}{{"type", ""}, {"format", ""}, {"jsonPath", ""}, {"priority", int64(0)}} {
			a, b := orDefault(col[field.name], field.absent), orDefault(n[i][field.name], field.absent)
			if !equalData(a, b) {
				c.add(Finding{Name: "printer-column-changed", Severity: Compatible, Version: version, Breaks: Readers, Detail: manifest.Text(col, "name") + " " + field.name + ": " + changed(a, b)})
			}
		}
	}
	for _, col := range n {
		name := manifest.Text(col, "name")
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

// mappings returns the mappings in a list.
func mappings(v any) []map[string]any {
	list, _ := v.([]any)
	var all []map[string]any
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			all = append(all, m)
		}
	}
	return all
}

// columns returns printer columns. If there are none, it returns the API server's default.
func columns(v any) []map[string]any {
	if all := mappings(v); len(all) > 0 {
		return all
	}
	return []map[string]any{{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}}
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
	var all []string
	for _, m := range mappings(v) {
		all = append(all, manifest.Text(m, "jsonPath"))
	}
	return all
}
