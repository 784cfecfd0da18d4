package conversion

import (
	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/conversion/stash"
)

// marks are what rules do with the fields of a version, as a tree.
type marks struct {
	// free marks are those of values that are computed: no field of these is missed.
	free bool
	// claimed is a field that a rule reads by its path, read one that an expression
	// reads, part a list of which rules read elements.
	claimed, read, part bool
	// preserve, drop and derived are what the author says.
	preserve, drop, derived bool
	// written is where the rule that writes the field is.
	written string
	// from is the path that the pair back reads to write this field; empty if it is
	// computed there.
	from     string
	children map[string]*marks
}

// eachMark is the child for all elements of a list and values of a map.
const eachMark = "[]"

// at returns the marks of a field, and makes them if need be.
func (m *marks) at(path rules.Path) *marks {
	for _, s := range path {
		m = m.make(markOf(s))
	}
	return m
}

// markOf is the name of the child for a step.
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

// child returns the marks of a field without making any.
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

// under returns the marks of a field while rules are compiled: what is said of a whole
// is said of its parts.
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

// kept reports whether nothing of the field is missed if no rule reads it.
func (m *marks) kept() bool { return m.free || m.read || m.preserve || m.derived }

// any reports whether there are marks below.
func (m *marks) any() bool { return len(m.children) > 0 }

// lost reports whether the author says of a field, or of what it is in, that it is not
// kept.
func (m *marks) lost(path rules.Path) bool {
	for _, s := range path {
		if m = m.child(markOf(s)); m.drop || m.derived {
			return true
		}
	}
	return false
}

// writes reports whether a rule writes a field, a part of it, or what it is in.
func (m *marks) writes(path rules.Path) bool {
	for _, s := range path {
		if m = m.child(markOf(s)); m.written != "" {
			return true
		}
	}
	return m.writesBelow()
}

func (m *marks) writesBelow() bool {
	for _, child := range m.children {
		if child.written != "" || child.writesBelow() {
			return true
		}
	}
	return false
}

// partial marks the list of a path that reads an element: it is no longer copied, and
// its other elements are not read.
func (m *marks) partial(path rules.Path) {
	for i, s := range path {
		if s.Element {
			at := m.at(path[:i])
			at.part = true
			return
		}
	}
}

// ignored returns the fields that are never stashed: dropped on purpose, or computed
// by the pair back.
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
