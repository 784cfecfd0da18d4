package proof

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/field"
	"gitopsd.dev/render/manifest"
)

// edit is a change to an object in the other version.
type edit struct {
	what  change
	path  field.Path
	value any
}

type change int

const (
	set change = iota
	removeField
	removeItem
	swapItems
	addLabel
)

// mostEdits limits the edits that are tried on one object.
const mostEdits = 3

func (e edit) String() string {
	switch e.what {
	case set:
		return fmt.Sprintf("set %s to %s", e.path, shown(e.value))
	case removeField:
		return fmt.Sprintf("remove %s", e.path)
	case removeItem:
		return fmt.Sprintf("drop item %s", e.path)
	case swapItems:
		return fmt.Sprintf("swap the first items of %s", e.path)
	}
	return "add a label"
}

// edits returns some edits of an object in the other version. They are the same for the
// same number.
func (t *trial) edits(there map[string]any, number uint64) []edit {
	root := t.to.schema.withoutMeta()
	random := rand.New(rand.NewPCG(number, 0x65646974))
	var all []edit
	collect(root, there, nil, random, &all)
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(len(all), mostEdits-1)]
	return append(all, edit{what: addLabel})
}

// collect adds the edits of a value.
func collect(s schema, v any, path field.Path, random *rand.Rand, all *[]edit) {
	branches := s.branches()
	s = branches[0]
	add := func(e edit) { *all = append(*all, e) }
	switch v := v.(type) {
	case map[string]any:
		properties := manifest.Mapping(s, "properties")
		for _, name := range slices.Sorted(maps.Keys(properties)) {
			inner, has := v[name]
			at := append(slices.Clip(path), field.Key(name))
			switch {
			case has:
				collect(s.field(name), inner, at, random, all)
				if !s.requires(name) {
					add(edit{removeField, at, nil})
				}
			default:
				g := &generator{random: random, left: 20}
				if value, ok := g.whole(s.field(name), deepest-4, random.IntN(4)); ok {
					add(edit{set, at, value})
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if properties[key] == nil && s.additional() != nil {
				at := append(slices.Clip(path), field.Key(key))
				collect(s.additional(), v[key], at, random, all)
				add(edit{removeField, at, nil})
			}
		}
	case []any:
		for i, item := range v {
			at := append(slices.Clip(path), field.Index(i))
			collect(s.items(), item, at, random, all)
			add(edit{removeItem, at, nil})
		}
		if len(v) > 1 {
			add(edit{swapItems, path, nil})
		}
	default:
		if values := s.scalars(); len(values) > 1 {
			add(edit{set, path, values[random.IntN(len(values))]})
		}
	}
}

// apply returns the object with the edit. It reports false if the object lacks the field.
func (e edit) apply(object map[string]any) (map[string]any, bool) {
	object = exact.Clone(object)
	if e.what == addLabel {
		meta := manifest.Mapping(object, "metadata")
		labels := manifest.Mapping(meta, "labels")
		if labels == nil {
			labels = make(map[string]any)
			meta["labels"] = labels
		}
		labels["edited"] = "yes"
		return object, true
	}
	if e.what == swapItems {
		v, _ := e.path.In(object)
		l, _ := v.([]any)
		if len(l) < 2 {
			return nil, false
		}
		l[0], l[1] = l[1], l[0]
		return object, true
	}
	last := e.path[len(e.path)-1]
	parent, ok := e.path[:len(e.path)-1].In(object)
	if !ok {
		return nil, false
	}
	switch p := parent.(type) {
	case map[string]any:
		if _, has := p[last.Key]; last.List || !has && e.what != set {
			return nil, false
		}
		if e.what == set {
			p[last.Key] = e.value
		} else {
			delete(p, last.Key)
		}
		return object, true
	case []any:
		if !last.List || last.Index >= len(p) {
			return nil, false
		}
		if e.what == set {
			p[last.Index] = e.value
			return object, true
		}
		shorter := slices.Delete(slices.Clone(p), last.Index, last.Index+1)
		return replaced(object, e.path[:len(e.path)-1], shorter)
	}
	return nil, false
}

// replaced changes the value at a path in the object, and returns the object.
func replaced(object map[string]any, path field.Path, value any) (map[string]any, bool) {
	parent, _ := path[:len(path)-1].In(object)
	last := path[len(path)-1]
	switch p := parent.(type) {
	case map[string]any:
		p[last.Key] = value
		return object, true
	case []any:
		if last.List && last.Index < len(p) {
			p[last.Index] = value
			return object, true
		}
	}
	return nil, false
}

// edited tries the laws on an object that was changed in the other version: the change
// is there after another round trip, and a change that concerns no rule changes nothing
// else. made reports whether the change was possible.
func (t *trial) edited(object, there map[string]any, e edit, partial bool) (findings []Finding, made bool) {
	plain, ok := e.apply(there)
	if !ok || !t.to.schema.withoutMeta().merges(plain) {
		return nil, false // the API server refuses this change
	}
	changed := plain
	if !partial {
		// The API server fills in the defaults of this version when the edit is written.
		changed = exact.Clone(plain)
		if err := t.to.checks.Default(changed); err != nil || t.to.checks.Check(t.ctx, changed) != nil {
			return nil, false
		}
	}
	back, _, err := t.convert(changed, t.from)
	var again map[string]any
	if err == nil {
		again, _, err = t.convert(back, t.to)
	}
	if err != nil {
		return []Finding{{Law: Total, Reason: "after an edit: " + err.Error(), Edit: e.String(), Converted: there}}, true
	}
	want, have := t.plain(changed, t.to, t.excusedThere), t.plain(again, t.to, t.excusedThere)
	if d := differences(want, have); len(d) > 0 {
		if !t.returns(t.plain(changed, t.to, nil)) {
			return nil, true // it does not come back without an edit either, which breaks another law
		}
		return []Finding{{Law: Edits, Edit: e.String(), Differences: d, Converted: there}}, true
	}
	switch e.what {
	case addLabel:
		labelled, _ := e.apply(t.plain(object, t.from, t.excused))
		if d := differences(labelled, t.plain(back, t.from, t.excused)); len(d) > 0 {
			f := Finding{Law: Edits, Edit: e.String(), Differences: d, Converted: there, back: true}
			if bare, _, err := t.convert(plain, t.from); err == nil && len(differences(labelled, t.plain(bare, t.from, t.excused))) == 0 {
				f.Advice = fmt.Sprintf("the API server fills in a default of %s; give %s the same default, or add a rule", t.to.version, t.from.version)
			}
			return []Finding{f}, true
		}
	case swapItems:
		if !t.to.schema.isMap(e.path) {
			return nil, true // the order of items may matter
		}
		want, have := t.plain(object, t.from, t.excused), t.plain(back, t.from, t.excused)
		if d := differences(ordered(want), ordered(have)); len(d) > 0 {
			return []Finding{{Law: Edits, Edit: e.String(), Differences: d, Converted: there, back: true}}, true
		}
	}
	return nil, true
}

// returns reports whether an object of the other version without a stash comes back
// unchanged.
func (t *trial) returns(object map[string]any) bool {
	here, _, err := t.convert(object, t.from)
	if err != nil {
		return false
	}
	back, _, err := t.convert(here, t.to)
	return err == nil && len(differences(t.plain(object, t.to, t.excusedThere), t.plain(back, t.to, t.excusedThere))) == 0
}

// isMap reports whether a field is a list with keys, so that the order of its items does
// not matter.
func (s schema) isMap(path field.Path) bool {
	for _, step := range path {
		switch {
		case step.List:
			s = s.items()
		case manifest.Mapping(s, "properties")[step.Key] != nil:
			s = s.field(step.Key)
		default:
			s = s.additional()
		}
	}
	return s.text("x-kubernetes-list-type") == "map"
}

// ordered sorts the items of all lists in a value, and returns the value.
func ordered(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for _, inner := range v {
			ordered(inner)
		}
	case []any:
		for _, inner := range v {
			ordered(inner)
		}
		slices.SortFunc(v, func(a, b any) int {
			return strings.Compare(string(manifest.AppendJSON(nil, a)), string(manifest.AppendJSON(nil, b)))
		})
	}
	return v
}
