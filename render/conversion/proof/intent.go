package proof

import (
	"encoding/json"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion/rules"
)

// intent has the documents' statements about fields: those that are lost on purpose, the
// rules that write a field, and the values that rules seek.
type intent struct {
	hub   string
	pairs []rules.Pair
	// origins are the documents of pairs, by index.
	origins []string
	// sought is what the rules seek in the objects of each version.
	sought map[string][]sought
}

// of returns the index of the pair for converting from one version to another; -1 if
// there is none.
func (in intent) of(from, to string) int {
	return slices.IndexFunc(in.pairs, func(p rules.Pair) bool { return p.From == from && p.To == to })
}

// legs returns the indices of the pairs that convert an object from one version to
// another: one, or two through the hub.
func (in intent) legs(from, to string) []int {
	if i := in.of(from, to); i >= 0 || in.hub == "" || in.hub == from || in.hub == to {
		return []int{i}
	}
	return []int{in.of(from, in.hub), in.of(in.hub, to)}
}

// excused returns the fields of a version that need not come back from another: those
// dropped on the way there, and those derived on the way back. On a way through the hub,
// fields of the hub count like fields of the same name.
func (in intent) excused(version, by string) []rules.Path {
	var all []rules.Path
	for _, i := range in.legs(version, by) {
		if i >= 0 {
			all = append(all, paths(in.pairs[i].Drop)...)
		}
	}
	for _, i := range in.legs(by, version) {
		if i >= 0 {
			all = append(all, paths(in.pairs[i].Derive)...)
		}
	}
	return all
}

func paths(fields []rules.Field) []rules.Path {
	all := make([]rules.Path, len(fields))
	for i, f := range fields {
		all[i] = f.Path
	}
	return all
}

// writers returns the places of the rules that write a field, a field in it, or one that
// it is in. The path has no indices, as general returns it.
func (in intent) writers(from, to, path string) []string {
	var all []string
	for _, i := range in.legs(from, to) {
		if i < 0 {
			continue
		}
		for _, r := range in.pairs[i].Rules {
			for _, w := range writes(r, nil) {
				if around(w.path, path) || around(path, w.path) {
					all = append(all, in.origins[i]+": "+w.where)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

type written struct{ path, where string }

// writes returns the fields that a rule and its rules for items write.
func writes(r rules.Rule, parent rules.Path) []written {
	to := r.To
	if len(to) > 0 && to[0].Key == "item" && !to[0].Each && parent != nil {
		to = append(append(slices.Clip(parent), rules.Step{Each: true}), to[1:]...)
	} else if parent != nil {
		to = parent
	}
	if len(r.Items) == 0 {
		return []written{{anywhere(to), r.Where}}
	}
	var all []written
	for _, item := range r.Items {
		all = append(all, writes(item, to)...)
	}
	return all
}

// anywhere returns the text of a path without indices.
func anywhere(p rules.Path) string {
	var b strings.Builder
	for _, s := range p {
		if s.Each || s.Element {
			b.WriteString("[]")
			continue
		}
		b.WriteString("." + s.Key)
	}
	return strings.TrimPrefix(b.String(), ".")
}

// around reports whether the first path is the second, or a parent of it.
func around(parent, path string) bool {
	rest, ok := strings.CutPrefix(path, parent)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// remove removes a field and its empty parents, and reports whether the value is empty
// then. An index in the path stands for all elements.
func remove(v any, path rules.Path) (empty bool) {
	if len(path) == 0 {
		return true
	}
	step := path[0]
	switch v := v.(type) {
	case map[string]any:
		for name, inner := range v {
			if (step.Each || !step.Element && name == step.Key) && remove(inner, path[1:]) {
				delete(v, name)
			}
		}
		return len(v) == 0
	case []any:
		if step.Each || step.Element {
			for _, item := range v {
				remove(item, path[1:])
			}
			return len(path) == 1
		}
	}
	return false
}

// numeric replaces numbers that are kept as text, in place: by an int64 if it can hold
// the number, or else by a float64.
func numeric(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			v[k] = numeric(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = numeric(inner)
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	return v
}
