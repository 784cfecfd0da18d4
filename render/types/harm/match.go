package harm

import (
	"slices"
	"strings"

	"gitopsd.dev/render/field"
	"gitopsd.dev/render/types/compat"
)

// finding is a breaking finding with its path parsed.
type finding struct {
	compat.Finding
	path field.Path
	// versions are the versions that it concerns: one, or two if objects are converted from
	// the first to the second; none means all.
	versions []string
	class    class
}

func newFinding(f compat.Finding) finding {
	path := f.Path
	if i := strings.IndexByte(path, '('); i >= 0 {
		path = path[:i] // a branch of a schema is about the field
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

// last returns the version in which a finding shows; empty means all.
func (f *finding) last() string {
	if len(f.versions) == 0 {
		return ""
	}
	return f.versions[len(f.versions)-1]
}

// causes reports whether a finding may cause a harm: the kind fits, and one of the fields
// is the other or in it.
func (f *finding) causes(h Harm, path field.Path) bool {
	if v := f.last(); v != "" && h.Version != "" && v != h.Version || !f.class.byObjects() && f.class != byNone {
		return false
	}
	// A null that is no longer allowed gets the default as well.
	defaults := strings.HasPrefix(f.Name, "default-") || f.Name == "nullable-removed"
	fits := true
	switch h.Kind {
	case Lost:
		fits = slices.Contains(dropping, f.Name)
	case Defaulted:
		fits = defaults
	case Unfilled:
		fits = f.Name == compat.VersionsDisagree && len(f.path) == len(path)
	case Invalid, Stuck:
		fits = f.Name != "field-removed" // a default may be invalid as well
	}
	return fits && related(f.path, path)
}

// dropping are the findings that may drop fields.
var dropping = []string{"field-removed", "pruning-on", "additional-properties-removed", "embedded-resource-removed", "embedded-resource-added",
	"type-changed", "type-narrowed", "versions-disagree", "storage-version-drops", "default-removed", "default-changed"}

// related reports whether two paths are the same, or one leads to the other. pattern is a
// path of a schema.
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

// parsePath parses a path in the API server's spelling, as far as possible: the key of a
// mapping may contain any character.
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
