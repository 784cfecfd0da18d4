package proof

import (
	"iter"
	"maps"
	"math/rand/v2"
	"slices"

	"gitopsd.dev/render/manifest"
)

// Limits of generated values. Deeper parts of a schema are left out.
const (
	deepest     = 12
	mostValues  = 400 // in one object
	mostChoices = 8   // branches of a union

	mostTogether = 8 // objects with values that rules seek in all fields
)

// generator makes values of a schema, a decoded openAPIV3Schema. It is deterministic.
type generator struct {
	random *rand.Rand
	// left is the number of values that the current object may still get.
	left int
	// together is set while whole prefers values that rules seek.
	together bool
}

func newGenerator(seed uint64) *generator {
	return &generator{random: rand.New(rand.NewPCG(seed, 0x676974)), left: mostValues}
}

// alone yields values with one leaf each, and the parents of the leaf. Server-side apply
// converts such objects. The first turn (0) yields one value of each leaf, and empty
// parents; the second yields all other values.
func (g *generator) alone(s schema, turn int) iter.Seq[any] {
	return func(yield func(any) bool) { g.yieldAlone(s, turn, 0, yield) }
}

func (g *generator) yieldAlone(s schema, turn, depth int, yield func(any) bool) bool {
	if depth > deepest {
		return true
	}
	for i, branch := range s.branches() {
		if i > 0 && turn == 0 {
			break
		}
		if !g.yieldAloneIn(branch, turn, depth, yield) {
			return false
		}
	}
	return true
}

func (g *generator) yieldAloneIn(s schema, turn, depth int, yield func(any) bool) bool {
	switch s.shape() {
	case object:
		if turn == 0 && !yield(map[string]any{}) {
			return false
		}
		for _, name := range s.fields() {
			for v := range g.alone(s.field(name), turn) {
				if !yield(map[string]any{name: v}) {
					return false
				}
			}
		}
	case mapping:
		if turn == 0 && !yield(map[string]any{}) {
			return false
		}
		i, keys := 0, s.keys()
		for v := range g.alone(s.additional(), turn) {
			if !yield(map[string]any{keys[i%len(keys)]: v}) {
				return false
			}
			i++
		}
	case list:
		if turn == 0 && !yield([]any{}) {
			return false
		}
		for v := range g.alone(s.items(), turn) {
			if !yield([]any{g.withKeys(s, v, 0)}) {
				return false
			}
		}
	default:
		values := s.scalars()
		if len(values) == 0 {
			return true
		}
		if turn == 0 {
			values = values[:1]
		} else {
			values = values[1:]
		}
		for _, v := range values {
			if !yield(v) {
				return false
			}
		}
		return true
	}
	if turn > 0 && s.truth("nullable") {
		return yield(nil)
	}
	return true
}

// withKeys returns the item of a list with its keys.
func (g *generator) withKeys(list schema, item any, i int) any {
	m, ok := item.(map[string]any)
	if !ok {
		return item
	}
	items := list.items()
	for _, key := range list.texts("x-kubernetes-list-map-keys") {
		if _, has := m[key]; !has && items.field(key) != nil {
			m = maps.Clone(m)
			if v, ok := nth(items.field(key).scalars(), i); ok {
				m[key] = v
			}
		}
	}
	return m
}

// around yields whole values that differ in one field each: with every value of every
// leaf, with each branch of a union, and without each field.
func (g *generator) around(s schema) iter.Seq[any] {
	return func(yield func(any) bool) { g.yieldBranches(s, 0, false, yield) }
}

// deciding yields whole values with values that rules seek: in all fields together, and in
// one field each.
func (g *generator) deciding(s schema) iter.Seq[any] {
	return func(yield func(any) bool) {
		for i := range mostTogether {
			g.left, g.together = mostValues, true
			v, ok := g.whole(s, 0, i)
			g.together = false
			if ok && !yield(v) {
				return
			}
		}
		g.yieldBranches(s, 0, true, yield)
	}
}

func (g *generator) yieldBranches(s schema, depth int, sought bool, yield func(any) bool) bool {
	for _, branch := range s.branches() {
		if !g.yieldAround(branch, depth, sought, yield) {
			return false
		}
	}
	return true
}

// yieldAround yields the values of around, or only those that rules seek.
func (g *generator) yieldAround(s schema, depth int, sought bool, yield func(any) bool) bool {
	if depth > deepest || sought && !s.truth(decides) {
		return true
	}
	vary := func(inner schema, with func(any) any) bool {
		return g.yieldBranches(inner, depth+1, sought, func(v any) bool { return yield(with(v)) })
	}
	g.left = mostValues
	whole, ok := g.whole(s, depth, 0)
	if !ok {
		return true
	}
	var others []any // values that differ in their own shape
	switch s.shape() {
	case object:
		all := whole.(map[string]any)
		if depth == 0 && !sought && !yield(all) {
			return false
		}
		for _, name := range s.fields() {
			if !vary(s.field(name), func(v any) any {
				m := maps.Clone(all)
				m[name] = v
				return m
			}) {
				return false
			}
			if !sought && !s.requires(name) {
				m := maps.Clone(all)
				delete(m, name)
				if !yield(m) {
					return false
				}
			}
		}
	case mapping:
		all := whole.(map[string]any)
		keys := s.keys()
		for _, key := range keys[:min(len(keys), 2+len(s.texts(namedKeys)))] {
			if !vary(s.additional(), func(v any) any {
				m := maps.Clone(all)
				m[key] = v
				return m
			}) {
				return false
			}
		}
		others = []any{map[string]any{}}
	case list:
		all := whole.([]any)
		if !vary(s.items(), func(v any) any {
			l := slices.Clone(all)
			if len(l) == 0 {
				return []any{g.withKeys(s, v, 0)}
			}
			l[len(l)-1] = v
			return l
		}) {
			return false
		}
		others = []any{[]any{}, slices.Clone(all[:len(all)/2])}
	default:
		values := s.scalars()
		if sought {
			values = s.sought()
		}
		for _, v := range values {
			if !yield(v) {
				return false
			}
		}
		return true
	}
	if sought {
		return g.sized(s, depth, yield)
	}
	if s.truth("nullable") {
		others = append(others, nil)
	}
	for _, v := range others {
		if !yield(v) {
			return false
		}
	}
	return true
}

// whole returns a value with every field, and with two items in lists and maps. Other
// numbers give other values. It reports false if there is no value.
func (g *generator) whole(s schema, depth, number int) (any, bool) {
	if depth > deepest || g.left <= 0 {
		return nil, false
	}
	g.left--
	branches := s.branches()
	s = branches[number%len(branches)]
	switch s.shape() {
	case object:
		m := make(map[string]any)
		for _, name := range s.fields() {
			if v, ok := g.whole(s.field(name), depth+1, number); ok {
				m[name] = v
			} else if s.requires(name) {
				return nil, false
			}
		}
		return m, true
	case mapping:
		m := make(map[string]any)
		for i := range s.count("Properties", max(2, len(s.texts(namedKeys)))) {
			if v, ok := g.whole(s.additional(), depth+1, number+i); ok {
				m[s.key(i)] = v
			}
		}
		return m, true
	case list:
		l := []any{}
		for i := range s.count("Items", 2) {
			if v, ok := g.whole(s.items(), depth+1, number+i); ok {
				l = append(l, v)
			}
		}
		return l, true
	}
	if g.together {
		if v, ok := nth(s.sought(), number); ok {
			return v, true
		}
	}
	return nth(s.scalars(), number)
}

// any returns a random value.
func (g *generator) any(s schema, depth int) (any, bool) {
	if depth > deepest || g.left <= 0 {
		return nil, false
	}
	g.left--
	branches := s.branches()
	s = branches[g.random.IntN(len(branches))]
	if s.truth("nullable") && g.random.IntN(8) == 0 {
		return nil, true
	}
	switch s.shape() {
	case object:
		m := make(map[string]any)
		sparse := g.random.IntN(4) == 0
		for _, name := range s.fields() {
			if !s.requires(name) && (sparse && g.random.IntN(4) > 0 || g.random.IntN(4) == 0) {
				continue
			}
			if v, ok := g.any(s.field(name), depth+1); ok {
				m[name] = v
			}
		}
		return m, true
	case mapping:
		m := make(map[string]any)
		keys := s.keys()
		for range s.count("Properties", g.random.IntN(4)) {
			if v, ok := g.any(s.additional(), depth+1); ok {
				m[keys[g.random.IntN(len(keys))]] = v
			}
		}
		return m, true
	case list:
		l := []any{}
		for i := range s.count("Items", g.random.IntN(4)) {
			v, ok := g.any(s.items(), depth+1)
			if !ok {
				continue
			}
			if item, ok := v.(map[string]any); ok {
				for _, key := range s.texts("x-kubernetes-list-map-keys") {
					delete(item, key)
				}
				v = g.withKeys(s, item, i)
			}
			l = append(l, v)
		}
		if s.text("x-kubernetes-list-type") == "set" {
			l = distinct(l)
		}
		return l, true
	}
	values := s.scalars()
	if len(values) == 0 {
		return nil, false
	}
	return values[g.random.IntN(len(values))], true
}

// distinct removes repeated items.
func distinct(items []any) []any {
	seen := make(map[string]bool)
	return slices.DeleteFunc(items, func(v any) bool {
		text := string(manifest.AppendJSON(nil, v))
		was := seen[text]
		seen[text] = true
		return was
	})
}

func nth(values []any, i int) (any, bool) {
	if len(values) == 0 {
		return nil, false
	}
	return values[i%len(values)], true
}

// objects yields objects of a root schema, without apiVersion, kind and metadata. The
// sequence has no end, and is the same for equal seeds.
func objects(root schema, seed uint64) iter.Seq[map[string]any] {
	root = root.withoutMeta()
	g := newGenerator(seed)
	return func(yield func(map[string]any) bool) {
		systematic := []iter.Seq[any]{g.alone(root, 0), g.around(root), g.alone(root, 1)}
		if root.truth(decides) {
			systematic = append([]iter.Seq[any]{g.deciding(root)}, systematic...)
		}
		var streams []func() (any, bool)
		for _, s := range systematic {
			next, stop := iter.Pull(s)
			defer stop()
			streams = append(streams, next)
		}
		streams = append(streams, func() (any, bool) {
			g.left = mostValues
			return g.any(root, 0)
		})
		// The streams take turns, so that a limit leaves out some objects of each.
		for {
			for _, next := range streams {
				v, _ := next()
				if m, ok := v.(map[string]any); ok && !yield(m) {
					return
				}
			}
		}
	}
}

func (s schema) withoutMeta() schema {
	properties := maps.Clone(manifest.Mapping(s, "properties"))
	for _, name := range []string{"apiVersion", "kind", "metadata"} {
		delete(properties, name)
	}
	s = maps.Clone(s)
	if s == nil {
		s = schema{}
	}
	s["properties"] = properties
	return s
}
