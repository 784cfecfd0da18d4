package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Change is one field that differs. A subtree that is only on one side is one
// change, not one for each of its leaves.
type Change struct {
	// Path as kubectl explain has it, with list elements by what identifies
	// them: spec.containers[name=web].image, metadata.labels["a.b/c"].
	Path string
	// Old and New are the values, in JSON's types. Old is nil and Added true
	// for a field that was not there, New nil and Removed true for one that
	// goes.
	Old, New       any
	Added, Removed bool
	// Hidden says that the values are a Secret's; Old and New are nil.
	Hidden bool
}

// Diff lists what differs between an object as it is and as it would be, in the
// order of paths, without what the API server keeps by itself (status,
// managedFields, versions and times).
func Diff(id manifest.ID, before, after map[string]any) []Change {
	d := differ{hide: id.Group == "" && id.Kind == "Secret"}
	d.object("", before, after, func(key string) bool {
		return key == "status" || key == "apiVersion" || key == "kind"
	})
	return d.changes
}

// lastApplied is where kubectl keeps a whole object, Secrets included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// maintained are the fields of metadata that the API server keeps, and the
// annotation that changes with every change.
var maintained = map[string]bool{
	"metadata.managedFields": true, "metadata.resourceVersion": true, "metadata.generation": true,
	"metadata.uid": true, "metadata.creationTimestamp": true, "metadata.selfLink": true,
	`metadata.annotations["` + AppliedAnnotation + `"]`: true,
	`metadata.annotations["` + TypesAnnotation + `"]`:   true,
}

type differ struct {
	changes []Change
	hide    bool
}

func (d *differ) object(path string, before, after map[string]any, skip func(key string) bool) {
	keys := slices.Collect(maps.Keys(before))
	for k := range after {
		if _, both := before[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		p := child(path, k)
		if maintained[p] || skip != nil && skip(k) {
			continue
		}
		old, was := before[k]
		now, is := after[k]
		d.value(p, old, now, was, is)
	}
}

func (d *differ) value(path string, old, now any, was, is bool) {
	if was == is && reflect.DeepEqual(old, now) {
		return
	}
	if was && is {
		switch o := old.(type) {
		case map[string]any:
			if n, ok := now.(map[string]any); ok {
				d.object(path, o, n, nil)
				return
			}
		case []any:
			if n, ok := now.([]any); ok {
				d.list(path, o, n)
				return
			}
		}
	}
	// Secret data comes and goes as a whole map too; its keys are shown one by
	// one all the same.
	if d.secret(path) {
		for _, whole := range []struct {
			v     any
			added bool
		}{{old, false}, {now, true}} {
			if m, ok := whole.v.(map[string]any); ok {
				for _, k := range slices.Sorted(maps.Keys(m)) {
					d.changes = append(d.changes, Change{Path: child(path, k), Added: whole.added && !was, Removed: !whole.added && !is, Hidden: true})
				}
				return
			}
		}
	}
	c := Change{Path: path, Old: old, New: now, Added: !was, Removed: !is}
	if d.secret(path) || strings.HasSuffix(path, `["`+lastApplied+`"]`) {
		c.Old, c.New, c.Hidden = nil, nil, true
	} else if path == "metadata.annotations" {
		c.Old, c.New = withoutLastApplied(old), withoutLastApplied(now)
	}
	d.changes = append(d.changes, c)
}

// secret reports whether a value under the path must not be seen: all of a Secret's
// but metadata, its type and whether it is immutable.
func (d *differ) secret(path string) bool {
	return d.hide && !strings.HasPrefix(path, "metadata") && path != "type" && path != "immutable"
}

func withoutLastApplied(v any) any {
	m, ok := v.(map[string]any)
	if _, there := m[lastApplied]; !ok || !there {
		return v
	}
	m = maps.Clone(m)
	delete(m, lastApplied)
	return m
}

// identifying are the fields that tell list elements apart, in the order in
// which they are tried: the merge keys of Kubernetes' own types.
var identifying = [][]string{
	{"name"}, {"key"}, {"type"}, {"uid"}, {"containerPort", "protocol"}, {"port", "protocol"},
	{"mountPath"}, {"devicePath"}, {"ip"}, {"topologyKey", "whenUnsatisfiable"}, {"id"},
}

func (d *differ) list(path string, before, after []any) {
	keys := identify(before, after)
	if keys == nil {
		for i := range max(len(before), len(after)) {
			var old, now any
			if i < len(before) {
				old = before[i]
			}
			if i < len(after) {
				now = after[i]
			}
			d.value(fmt.Sprintf("%s[%d]", path, i), old, now, i < len(before), i < len(after))
		}
		return
	}
	later := make(map[string]any, len(after))
	for _, e := range after {
		later[element(e, keys)] = e
	}
	known := make(map[string]bool, len(before))
	for _, e := range before {
		name := element(e, keys)
		known[name] = true
		now, is := later[name]
		d.value(path+name, e, now, true, is)
	}
	var order []string
	for _, e := range after {
		name := element(e, keys)
		order = append(order, name)
		if !known[name] {
			d.value(path+name, nil, e, false, true)
		}
	}
	was := slices.DeleteFunc(names(before, keys), func(n string) bool { return later[n] == nil })
	is := slices.DeleteFunc(order, func(n string) bool { return !known[n] })
	if !slices.Equal(was, is) {
		d.changes = append(d.changes, Change{Path: path + " (order)", Old: strings.Join(was, " "), New: strings.Join(is, " ")})
	}
}

func names(list []any, keys []string) []string {
	var ns []string
	for _, e := range list {
		ns = append(ns, element(e, keys))
	}
	return ns
}

// identify finds the fields that every element of both lists has, and that tell
// the elements of each apart; nil if there are none.
func identify(lists ...[]any) []string {
candidates:
	for _, keys := range identifying {
		for _, list := range lists {
			seen := make(map[string]bool, len(list))
			for _, e := range list {
				name := element(e, keys)
				if name == "" || seen[name] {
					continue candidates
				}
				seen[name] = true
			}
		}
		return keys
	}
	return nil
}

// element is "[name=web]", or "" when the element lacks the first key; the
// others may be left to defaults.
func element(e any, keys []string) string {
	m, ok := e.(map[string]any)
	if !ok {
		return ""
	}
	var parts []string
	for i, k := range keys {
		switch v := m[k].(type) {
		case string, int64, float64, bool:
			parts = append(parts, fmt.Sprintf("%s=%v", k, v))
		default:
			if i == 0 {
				return ""
			}
		}
	}
	return "[" + strings.Join(parts, ",") + "]"
}

var plainKey = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*$`)

func child(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return fmt.Sprintf("%s[%q]", path, key)
	case path == "":
		return key
	}
	return path + "." + key
}

// mostShown is how much of a value is shown to a person.
const mostShown = 80

// show is a value in a line.
func show(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return "(cannot be shown)"
	}
	text := strings.TrimSpace(b.String())
	if len(text) <= mostShown {
		return text
	}
	switch v := v.(type) {
	case map[string]any:
		return fmt.Sprintf("{%s}", prose.Some(slices.Sorted(maps.Keys(v)), 5))
	case []any:
		return "[" + prose.Count(len(v), "element") + "]"
	}
	cut := []rune(text)
	return fmt.Sprintf("%s…\" (%d characters)", string(cut[:min(len(cut), mostShown)]), len(cut)-2)
}

// String is the change in one line.
func (c Change) String() string {
	switch {
	case c.Hidden && c.Added:
		return c.Path + ": (added)"
	case c.Hidden && c.Removed:
		return c.Path + ": (removed)"
	case c.Hidden:
		return c.Path + ": (changed)"
	case c.Added:
		return fmt.Sprintf("%s: + %s", c.Path, show(c.New))
	case c.Removed:
		return fmt.Sprintf("%s: - %s", c.Path, show(c.Old))
	}
	return fmt.Sprintf("%s: %s -> %s", c.Path, show(c.Old), show(c.New))
}
