package harm

import (
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/types/compat"
)

// finding is a breaking finding with its path parsed.
type finding struct {
	compat.Finding
	path field.Path
	// versions are those that it concerns: one, or two of which objects pass from the
	// first to the second; none for all.
	versions []string
	class    class
}

func newFinding(f compat.Finding) finding {
	path := f.Path
	if i := strings.IndexByte(path, '('); i >= 0 {
		path = path[:i] // a branch of it is about the field
	}
	one := finding{Finding: f, class: classes[f.Name]}
	if path != "" {
		one.path, _ = field.ParseSchema(path)
	}
	if f.Version != "" {
		one.versions = strings.Split(f.Version, " -> ")
	}
	return one
}

// last is the version in which a finding shows; empty for all.
func (f *finding) last() string {
	if len(f.versions) == 0 {
		return ""
	}
	return f.versions[len(f.versions)-1]
}

// causes reports whether a harm may be this finding's: it is of the right kind, and one of
// the fields is in the other.
func (f *finding) causes(h Harm, path field.Path) bool {
	if v := f.last(); v != "" && h.Version != "" && v != h.Version || f.class != byData && f.class != byNone {
		return false
	}
	// A null that may not be any more gets the default as well.
	defaults := strings.HasPrefix(f.Name, "default-") || f.Name == "nullable-removed"
	switch h.Kind {
	case Lost:
		if !drops(f.Name) {
			return false
		}
	case Defaulted:
		if !defaults {
			return false
		}
	case Invalid, Stuck:
		// A default may be invalid as well.
		if f.Name == "field-removed" {
			return false
		}
	}
	return related(f.path, path)
}

// drops reports whether fields may go by a finding.
func drops(name string) bool {
	switch name {
	case "field-removed", "pruning-on", "additional-properties-removed", "embedded-resource-removed", "embedded-resource-added",
		"type-changed", "type-narrowed", "versions-disagree", "storage-version-drops", "default-removed", "default-changed":
		return true
	}
	return false
}

// related reports whether one of two paths leads to the other; pattern is of a schema.
func related(pattern, path field.Path) bool {
	for i := range min(len(pattern), len(path)) {
		p, at := pattern[i], path[i]
		switch {
		case p.List != at.List:
			return false
		case p.Every:
		case !p.List && p.Key != at.Key:
			return false
		}
	}
	return true
}

// parsePath parses a field's path as the API server names it, as far as it can be read:
// a key of a mapping may have any character.
func parsePath(text string) field.Path {
	for text != "" {
		if p, err := field.Parse(text); err == nil {
			return p
		}
		i := strings.LastIndexAny(text, ".[")
		if i < 0 {
			return nil
		}
		text = text[:i]
	}
	return nil
}
