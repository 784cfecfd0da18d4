package conversion

import (
	"maps"
	"slices"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
)

// marks is a tree of the fields of a version, with their use by rules.
type marks struct {
	// free is set for computed values: their fields need not be read.
	free bool
	// claimed is set if a rule reads the field by its path, read if an expression reads
	// it, and part if rules read single elements of the list.
	claimed, read, part bool
	// computed is the place of an expression that reads the field, and copied is set if the
	// field is copied or moved as well.
	computed string
	copied   bool
	// preserve, drop and derived are set by the document.
	preserve, drop, derived bool
	// written is the place of the rule that writes the field.
	written string
	// from is the path that the pair back reads to write this field; empty if the pair
	// computes it.
	from     string
	children map[string]*marks
}

// eachMark names the child for all elements of a list, or all values of a map.
const eachMark = "[]"

// at returns the marks of a field, and adds them if missing.
func (m *marks) at(path rules.Path) *marks {
	for _, s := range path {
		m = m.make(markOf(s))
	}
	return m
}

// markOf returns the name of the child for a step.
func markOf(s rules.Step) string {
	if s.Element || s.Each {
		return eachMark
	}
	return s.Key
}

// each returns the marks of all elements.
func (m *marks) each() *marks { return m.make(eachMark) }

func (m *marks) make(name string) *marks {
	if m.free {
		return &marks{free: true}
	}
	if m.children == nil {
		m.children = map[string]*marks{}
	}
	if m.children[name] == nil {
		m.children[name] = &marks{preserve: m.kept()}
	}
	return m.children[name]
}

var noMarks = &marks{}

// child returns the marks of a field without adding any.
func (m *marks) child(name string) *marks {
	switch {
	case m == nil:
		return noMarks
	case m.free:
		return m
	case m.children[name] == nil:
		return noMarks
	}
	return m.children[name]
}

// under returns the marks of a field in m. If m is kept, so are its fields.
func (m *marks) under(name string) *marks {
	c := m.child(name)
	if !m.kept() {
		return c
	}
	if c == noMarks {
		return &marks{preserve: true}
	}
	c.preserve = true
	return c
}

// kept reports whether the field and all fields in it need not be read by a rule.
func (m *marks) kept() bool { return m.free || m.read || m.preserve || m.derived }

// any reports whether fields in m have marks.
func (m *marks) any() bool { return len(m.children) > 0 }

// lost reports whether a field, or one that it is in, is under drop or derive.
func (m *marks) lost(path rules.Path) bool {
	for _, s := range path {
		if m = m.child(markOf(s)); m.drop || m.derived {
			return true
		}
	}
	return false
}

// writes reports whether a rule writes a field, a field in it, or one that it is in.
func (m *marks) writes(path rules.Path) bool {
	for _, s := range path {
		if m = m.child(markOf(s)); m.written != "" {
			return true
		}
	}
	return m.writesBelow()
}

// lossy returns the fields that only expressions read, sorted, with the places of these:
// if the result does not give the field back, the stash keeps it.
func (m *marks) lossy(path rules.Path) []rules.Field {
	if m.preserve || m.drop || m.derived {
		return nil
	}
	var all []rules.Field
	if m.computed != "" && !m.copied {
		all = append(all, rules.Field{Path: path, Where: m.computed})
	}
	for _, name := range slices.Sorted(maps.Keys(m.children)) {
		step := rules.Step{Key: name}
		if name == eachMark {
			step = rules.Step{Each: true}
		}
		all = append(all, m.children[name].lossy(append(slices.Clip(path), step))...)
	}
	return all
}

func (m *marks) writesBelow() bool {
	for _, child := range m.children {
		if child.written != "" || child.writesBelow() {
			return true
		}
	}
	return false
}

// ignored returns the fields that are never stashed: those under drop, and those that
// the pair back computes.
func (m *marks) ignored() *stash.Ignored {
	i := &stash.Ignored{All: m.drop || m.derived, Fields: map[string]*stash.Ignored{}}
	for name, child := range m.children {
		below := child.ignored()
		switch {
		case below == nil:
		case name == eachMark:
			i.Each = below
		default:
			i.Fields[name] = below
		}
	}
	if !i.All && i.Each == nil && len(i.Fields) == 0 {
		return nil
	}
	return i
}
