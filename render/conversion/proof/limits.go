package proof

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/manifest"
)

// sizes is a keyword of this package: the numbers of items, or of keys, of a list or map
// that another version limits.
const sizes = "\x00sizes"

// Limits of sizes that are tried. Larger ones make objects that are slow to convert.
const (
	longestText = 1024
	mostItems   = 128
	mostSized   = 4000 // values in all items
)

// size, as a value that is sought, stands for a text, list or map of that size.
type size int

// limited returns the values of a version at the limits of another one: in fields of the same
// name, and in those that rules move without a change.
func (in intent) limited(from, to *side) []sought {
	all := from.schema.withoutMeta().limitedBy(to.schema.withoutMeta(), nil)
	if i := in.of(from.version, to.version); i >= 0 {
		for _, r := range in.pairs[i].Rules {
			all = append(all, moved(r, from, to, nil, nil)...)
		}
	}
	return all[:min(len(all), mostSought)]
}

// moved returns the values at the limits of the field to which a rule moves another one. self
// and item are the fields whose elements the rule is for; nil for the object.
func moved(r rules.Rule, from, to *side, self, item rules.Path) []sought {
	path, err := rules.ParsePath(r.From)
	if err != nil || r.Transform != "" {
		return nil
	}
	switch first := path[0].Key; {
	case first == "self":
		path = append(slices.Clip(self), path[1:]...)
	case first == from.version:
		path = path[1:]
	default:
		return nil
	}
	target := r.To
	if item != nil {
		target = append(slices.Clip(item), target[1:]...)
	}
	all := from.schema.in(path).limitedBy(to.schema.in(target), path)
	each := rules.Step{Each: true}
	for _, inner := range r.Items {
		if inner.To[0].Key == "item" {
			all = append(all, moved(inner, from, to, append(slices.Clip(path), each), append(slices.Clip(target), each))...)
		}
	}
	return all
}

// in returns the schema of a field; nil if there is none.
func (s schema) in(path rules.Path) schema {
	for _, step := range path {
		switch {
		case s == nil:
			return nil
		case (step.Each || step.Element) && s["items"] != nil:
			s = s.items()
		case step.Each || step.Element || s.field(step.Key) == nil:
			s = s.additional()
		default:
			s = s.field(step.Key)
		}
	}
	return s
}

// limitedBy returns the values just beyond the limits of another schema, in the field of that
// path and in all fields in it that both schemas have.
func (s schema) limitedBy(other schema, path rules.Path) []sought {
	if s == nil || other == nil || s.shape() != other.shape() || s.text("type") != other.text("type") {
		return nil
	}
	var all []sought
	if values := s.beyond(other); values != nil {
		all = append(all, sought{path, values})
	}
	below := func(inner, of schema, step rules.Step) {
		all = append(all, inner.limitedBy(of, append(slices.Clip(path), step))...)
	}
	switch s.shape() {
	case object:
		for _, name := range slices.Sorted(maps.Keys(manifest.Mapping(s, "properties"))) {
			below(s.field(name), other.field(name), rules.Step{Key: name})
		}
	case mapping:
		below(s.additional(), other.additional(), rules.Step{Each: true})
	case list:
		below(s.items(), other.items(), rules.Step{Each: true})
	}
	return all
}

// beyond returns the values just beyond the limits of another schema, as far as the schema
// allows them.
func (s schema) beyond(other schema) []any {
	var all []any
	for _, what := range []string{"Length", "Items", "Properties"} {
		for _, edge := range []struct {
			keyword string
			beyond  int64
		}{{"max", 1}, {"min", -1}} {
			n, ok := other[edge.keyword+what].(int64)
			if n += edge.beyond; !ok || n < 0 || n > longestText+1 {
				continue
			}
			most, hasMost := s["max"+what].(int64)
			least, _ := s["min"+what].(int64)
			if (!hasMost || n <= most) && n >= least {
				all = append(all, size(n))
			}
		}
	}
	for _, edge := range []struct {
		keyword, exclusive string
		beyond             float64
	}{{"maximum", "exclusiveMaximum", 1}, {"minimum", "exclusiveMinimum", -1}} {
		n, ok := number(other[edge.keyword])
		if !ok {
			continue
		}
		if !other.truth(edge.exclusive) {
			n += edge.beyond
		}
		var v any = n
		if n == math.Trunc(n) && math.Abs(n) < 1<<53 {
			v = int64(n)
		}
		if s.admits(v) {
			all = append(all, v)
		}
	}
	return all
}

// sized yields lists or maps of the sizes that another version limits. It reports whether to
// go on.
func (g *generator) sized(s schema, depth int, yield func(any) bool) bool {
	inner := s.items()
	if s.shape() == mapping {
		inner = s.additional()
	}
	for _, n := range manifest.List(s, sizes) {
		n := int(n.(size))
		g.left = mostValues
		item, ok := g.whole(inner, depth+1, 0)
		if used := mostValues - g.left; !ok || n > mostItems+1 || n*used > mostSized {
			continue
		}
		var v any
		if s.shape() == mapping {
			m := make(map[string]any)
			for i := range n {
				m["k"+strconv.Itoa(i)] = item
			}
			v = m
		} else {
			l := make([]any, n)
			for i := range l {
				l[i] = s.numbered(item, i)
			}
			v = l
		}
		if !yield(v) {
			return false
		}
	}
	return true
}

// numbered returns an item of a list, which differs from the others if it has to.
func (s schema) numbered(item any, i int) any {
	number := func(of schema, v any) any {
		var next any = int64(i + 1)
		if of.text("type") == "string" {
			next = "k" + strconv.Itoa(i)
		}
		if of["enum"] == nil && of.admits(next) {
			return next
		}
		return v
	}
	switch s.text("x-kubernetes-list-type") {
	case "set":
		return number(s.items(), item)
	case "map":
		m, ok := item.(map[string]any)
		keys := s.texts("x-kubernetes-list-map-keys")
		if !ok || len(keys) == 0 {
			return item
		}
		m = maps.Clone(m)
		m[keys[0]] = number(s.items().field(keys[0]), m[keys[0]])
		return m
	}
	return item
}
