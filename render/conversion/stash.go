package conversion

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// The API server refuses a conversion whose annotations have more than 256 KiB in all,
// and with it every LIST of the type. So all stay below maxAnnotations, and the stash
// below maxStash.
const (
	maxAnnotations = 224 << 10
	maxStash       = 128 << 10
	// maxEntries is how many fields a stash has at most; one that anybody has written
	// may have more. maxTries is how often an object is converted to see what of it
	// still holds.
	maxEntries = 4000
	maxTries   = 32
)

// entry is one field in the stash: its value, or that it was absent.
type entry struct {
	path   field.Path
	value  any
	absent bool
}

// stash is the fields by version.
type stash map[string][]entry

// stashPath is where the stash is.
var stashPath = field.Path{field.Key("metadata"), field.Key("annotations"), field.Key(manifest.ConversionStashAnnotation)}

// readStash reads the annotation. Anybody can write annotations: what it does not
// understand is left out, and garbage says so.
func readStash(object map[string]any) (s stash, garbage string) {
	text := manifest.Text(object, "metadata", "annotations", manifest.ConversionStashAnnotation)
	switch {
	case text == "":
		return nil, ""
	case len(text) > maxAnnotations:
		return nil, fmt.Sprintf("ignored, since it has %d bytes, and conversions write at most %d", len(text), maxStash)
	}
	tree, err := exact.Decode([]byte(text))
	versions, ok := tree.(map[string]any)
	if err != nil || !ok {
		return nil, "ignored, since no conversion wrote it"
	}
	s = stash{}
	n, bad := 0, 0
	for _, version := range keys(versions) {
		entries, ok := versions[version].([]any)
		if !ok {
			bad++
		}
		for _, item := range entries {
			m, _ := item.(map[string]any)
			text, ok := m["path"].(string)
			path, err := field.Parse(text)
			value, has := m["value"]
			if n++; !ok || err != nil || n > maxEntries {
				bad++
				continue
			}
			s[version] = append(s[version], entry{path, value, !has})
		}
	}
	switch {
	case bad == 1:
		garbage = "1 entry ignored, since no conversion wrote it"
	case bad > 1:
		garbage = fmt.Sprintf("%d entries ignored, since no conversion wrote them", bad)
	}
	return s, garbage
}

func (s stash) encode() ([]byte, error) {
	versions := map[string]any{}
	for version, entries := range s {
		var list []any
		for _, e := range entries {
			list = append(list, e.tree())
		}
		if len(list) > 0 {
			versions[version] = list
		}
	}
	if len(versions) == 0 {
		return nil, nil
	}
	return exact.Encode(versions)
}

// tree is the entry as the annotation has it.
func (e entry) tree() map[string]any {
	item := map[string]any{"path": e.path.String()}
	if !e.absent {
		item["value"] = e.value
	}
	return item
}

func (e entry) size() int {
	if e.absent {
		return 0
	}
	text, err := exact.Encode(e.value)
	if err != nil {
		return 0
	}
	return len(text)
}

// write puts the stash on an object that is not shared, and returns what did not fit.
func (s stash) write(object map[string]any) (dropped stash) {
	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return s
	}
	annotations := map[string]any{}
	room := maxAnnotations
	for k, v := range manifest.Mapping(metadata, "annotations") {
		annotations[k] = v
		text, _ := v.(string)
		room -= len(k) + len(text)
	}
	room = min(room-len(manifest.ConversionStashAnnotation), maxStash)
	dropped = s.shrink(room)
	text, err := s.encode()
	if err != nil || len(text) == 0 {
		return dropped
	}
	annotations[manifest.ConversionStashAnnotation] = string(text)
	metadata["annotations"] = annotations
	return dropped
}

// shrink takes the largest fields out of the stash until it has at most room bytes and
// maxEntries fields, and returns them.
func (s stash) shrink(room int) (dropped stash) {
	type sized struct {
		version string
		index   int
		size    int
	}
	var all []sized
	total := len("{}")
	for _, version := range keys(s) {
		name, _ := exact.Encode(version)
		total += len(name) + len(":[],")
		for i, e := range s[version] {
			text, err := exact.Encode(e.tree())
			size := len(text) + len(",")
			if err != nil {
				size = room // it cannot be kept
			}
			total += size
			all = append(all, sized{version, i, size})
		}
	}
	slices.SortStableFunc(all, func(a, b sized) int { return cmp.Compare(b.size, a.size) })
	out := map[string]map[int]bool{}
	dropped = stash{}
	for n, f := range all {
		if total <= room && len(all)-n <= maxEntries {
			break
		}
		total -= f.size
		if out[f.version] == nil {
			out[f.version] = map[int]bool{}
		}
		out[f.version][f.index] = true
		dropped[f.version] = append(dropped[f.version], s[f.version][f.index])
	}
	for version, gone := range out {
		var left []entry
		for i, e := range s[version] {
			if !gone[i] {
				left = append(left, e)
			}
		}
		s[version] = left
	}
	return dropped
}

// differences returns the fields of a schema in which a differs from b, with the
// values of a. ignored are fields that are passed over.
func differences(schema map[string]any, a, b any, ignored *marks, path field.Path) []entry {
	if ignored != nil && (ignored.drop || ignored.derived) {
		return nil
	}
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	kind := kindOf(schema)
	if aIsMap && bIsMap && kind != kindList {
		var all []entry
		names := maps.Clone(am)
		for k := range bm {
			if _, ok := names[k]; !ok {
				names[k] = nil
			}
		}
		for _, name := range keys(names) {
			s := child(schema, name)
			if s == nil || name == manifest.ConversionStashAnnotation && len(path) == 2 && path[0].Key == "metadata" {
				continue // no field: nothing of it is kept
			}
			inner := ignored.child(name)
			if inner == noMarks && kind == kindMap {
				inner = ignored.child(eachMark)
			}
			next := append(slices.Clone(path), field.Key(name))
			av, aHas := present(s, am, name)
			bv, bHas := present(s, bm, name)
			switch {
			case len(path) == 1 && path[0].Key == "metadata":
				// Labels that are empty are none.
				av, _ := av.(map[string]any)
				bv, _ := bv.(map[string]any)
				if av == nil {
					av = map[string]any{}
				}
				if bv == nil {
					bv = map[string]any{}
				}
				all = append(all, differences(s, av, bv, inner, next)...)
			case len(path) == 0 && name == "metadata" && !(aHas && bHas):
			case aHas && bHas:
				all = append(all, differences(s, av, bv, inner, next)...)
			case inner.drop || inner.derived:
			case aHas:
				all = append(all, entry{path: next, value: known(s, av)})
			case bHas:
				all = append(all, entry{path: next, absent: true})
			}
		}
		return all
	}
	if all, ok := byKey(schema, a, b, ignored, path); ok {
		return all
	}
	if a = known(schema, a); exact.Equal(a, known(schema, b)) {
		return nil
	}
	return []entry{{path: path, value: a}}
}

// present returns a field; null is absent where a schema does not allow it.
func present(schema map[string]any, m map[string]any, name string) (any, bool) {
	v, ok := m[name]
	return v, ok && (v != nil || nullable(schema))
}

// known returns a value without fields that its schema does not have.
func known(schema map[string]any, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(v))
		for k, value := range v {
			if s := child(schema, k); s != nil && (value != nil || nullable(s)) {
				out[k] = known(s, value)
			}
		}
		return out
	case []any:
		s := element(schema)
		if s == nil {
			return v
		}
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = known(s, item)
		}
		return out
	}
	return v
}

// byKey compares two lists whose elements have keys, if these are the same and in one
// order.
func byKey(schema map[string]any, a, b any, ignored *marks, path field.Path) ([]entry, bool) {
	as, aIsList := a.([]any)
	bs, bIsList := b.([]any)
	names := manifest.Texts(schema, "x-kubernetes-list-map-keys")
	if !aIsList || !bIsList || len(as) != len(bs) || len(names) == 0 || manifest.Text(schema, "x-kubernetes-list-type") != "map" {
		return nil, false
	}
	var all []entry
	seen := map[string]bool{}
	for i := range as {
		step, ok := keyed(names, as[i])
		other, okToo := keyed(names, bs[i])
		if !ok || !okToo || step.String() != other.String() || seen[step.String()] {
			return nil, false
		}
		seen[step.String()] = true
		all = append(all, differences(element(schema), as[i], bs[i], ignored.child(eachMark), append(slices.Clone(path), step))...)
	}
	return all, true
}

func keyed(names []string, item any) (field.Step, bool) {
	m, _ := item.(map[string]any)
	var match []field.Pair
	for _, name := range names {
		switch v := m[name].(type) {
		case string, int64, bool:
			match = append(match, field.Pair{Field: name, Value: fmt.Sprint(v)})
		default:
			return field.Step{}, false
		}
	}
	step := field.Element(match...)
	// What cannot be read back is no path.
	if again, err := field.Parse("a" + step.String()); err != nil || len(again) != 2 || again.String() != "a"+step.String() {
		return field.Step{}, false
	}
	return step, true
}

// restore returns the object with those fields of the stash that still hold, the
// fields that were restored, and those that were not and why.
//
// A field holds if it makes no difference to what the object is in the version that
// it comes from: converted back with it, the object is as without it, or nearer to
// the source. And it must not stand in the way of what the source has now, see
// [pair.hides].
func (p *pair) restore(object, source map[string]any, entries []entry, budget *cel.Budget) (restored map[string]any, kept []entry, stale map[int]string) {
	stale = map[int]string{}
	before, _ := p.back.forward(object, budget)
	tries := 0
	type candidate struct {
		index int
		entry entry
	}
	var usable []candidate
	for i, e := range entries {
		if why := p.unusable(e); why != "" {
			stale[i] = why
		} else {
			usable = append(usable, candidate{i, e})
		}
	}
	// Parents before what is in them, so that one does not undo the other.
	slices.SortStableFunc(usable, func(a, b candidate) int { return cmp.Compare(len(a.entry.path), len(b.entry.path)) })
	var try func(group []candidate)
	try = func(group []candidate) {
		if len(group) == 0 {
			return
		}
		if tries++; tries > maxTries || budget.Late() {
			for _, c := range group {
				stale[c.index] = "too many fields of the stash do not hold"
				if budget.Late() {
					stale[c.index] = cel.ErrCost.Error()
				}
			}
			return
		}
		tree, ok := clone(object), true
		for _, c := range group {
			ok = ok && c.entry.apply(tree)
		}
		if ok {
			after, _ := p.back.forward(tree, budget)
			if !budget.Late() && p.holds(after, before, source) {
				object, before = tree, after
				for _, c := range group {
					kept = append(kept, c.entry)
				}
				return
			}
		}
		if len(group) == 1 {
			stale[group[0].index] = "the object was changed in version " + p.from
			return
		}
		try(group[:len(group)/2])
		try(group[len(group)/2:])
	}
	forwarded, unrestored := object, before
	for {
		try(usable)
		if len(kept) == 0 {
			return object, nil, stale
		}
		hidden := p.hides(object, before, source, budget)
		left := slices.DeleteFunc(slices.Clone(usable), func(c candidate) bool {
			over := slices.ContainsFunc(hidden, func(path field.Path) bool { return overlap(c.entry.path, path) })
			if _, is := stale[c.index]; over && !is {
				stale[c.index] = "the object was changed in version " + p.from
			}
			_, is := stale[c.index]
			return is
		})
		if len(hidden) == 0 || len(left) == len(kept) {
			return object, kept, stale
		}
		usable, object, before, kept = left, forwarded, unrestored, nil
	}
}

// hides returns the fields of a restored object that keep something of the source from
// coming back. What before, the restored object converted back, lacks of the source
// goes into the stash. There it must hold in turn, which it does only if the object
// has those fields that the source alone gives.
func (p *pair) hides(restored, before, source map[string]any, budget *cel.Budget) []field.Path {
	missing := differences(p.seen, source, before, p.ignored, nil)
	if len(missing) == 0 {
		return nil
	}
	whole := clone(before)
	for _, e := range missing {
		e.apply(whole)
	}
	with, _ := p.forward(whole, budget)
	without, _ := p.forward(before, budget)
	var all []field.Path
	for _, d := range differences(p.seenTo, with, without, nil, nil) {
		v, ok := d.path.In(restored)
		if d.absent == ok || ok && !exact.Equal(v, d.value) {
			all = append(all, d.path)
		}
	}
	return all
}

// overlap reports whether one path is the other or leads to it.
func overlap(a, b field.Path) bool {
	n := min(len(a), len(b))
	return a[:n].String() == b[:n].String()
}

// holds reports whether after differs from before only where it is as the source.
func (p *pair) holds(after, before, source map[string]any) bool {
	for _, d := range differences(p.seen, after, before, nil, nil) {
		v, ok := d.path.In(source)
		if d.absent == ok || ok && !exact.Equal(v, d.value) {
			return false
		}
	}
	return true
}

// unusable returns why a field of the stash cannot be one of the target's.
func (p *pair) unusable(e entry) string {
	schema := p.seenTo
	for i, s := range e.path {
		var next map[string]any
		if s.List {
			if s.Match == nil || kindOf(schema) != kindList {
				return "it is no field"
			}
			next = element(schema)
		} else {
			next = child(schema, s.Key)
		}
		if next == nil || i == 0 && len(e.path) < 3 && s.Key == "metadata" {
			return "it is no field"
		}
		schema = next
	}
	if e.path[0].Key == "metadata" && e.path[len(e.path)-1].Key == manifest.ConversionStashAnnotation {
		return "it is the stash itself"
	}
	if e.absent {
		return ""
	}
	if err := fits(schema, e.value, ""); err != nil {
		return err.Error()
	}
	return ""
}

// apply writes the field into a tree, and reports whether it could: elements are not
// added to lists.
func (e entry) apply(tree any) bool {
	last := len(e.path) - 1
	for _, s := range e.path[:last] {
		v, ok := s.In(tree)
		if !ok || v == nil {
			m, isMap := tree.(map[string]any)
			if s.List || !isMap {
				return false
			}
			if e.absent {
				return true
			}
			v = map[string]any{}
			m[s.Key] = v
		}
		tree = v
	}
	s := e.path[last]
	if m, ok := tree.(map[string]any); ok && !s.List {
		if e.absent {
			delete(m, s.Key)
		} else {
			m[s.Key] = clone(e.value)
		}
		return true
	}
	return false
}

// clone copies a value.
func clone[T any](v T) T {
	switch tree := any(v).(type) {
	case map[string]any:
		out := make(map[string]any, len(tree))
		for k, value := range tree {
			out[k] = clone(value)
		}
		return any(out).(T)
	case []any:
		out := make([]any, len(tree))
		for i, value := range tree {
			out[i] = clone(value)
		}
		return any(out).(T)
	}
	return v
}
