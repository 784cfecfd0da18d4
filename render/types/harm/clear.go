package harm

import "gitopsd.dev/render/types/compat"

// class is the kind of evidence that objects give about a breaking finding.
type class int

const (
	// byData: the objects show whether the finding harms them. The zero value.
	byData class = iota
	// byClients: the finding breaks clients, but no stored object. A return to an earlier
	// definition is safe, since its clients still exist.
	byClients
	// byBoth: the objects show whether the finding harms them, and it breaks clients as well.
	byBoth
	// byVersion: the finding breaks clients of one version. The objects show who writes in
	// that version.
	byVersion
	// byNone: the finding concerns every object.
	byNone
	// never: the API server refuses the definition, whatever objects exist.
	never
)

// classes has the class of each finding that is not byData.
var classes = map[string]class{
	compat.StoredVersionRemoved: never, "rule-refused": never,

	"definition-removed": byNone, "group-changed": byNone, "kind-changed": byNone, "plural-changed": byNone, compat.ScopeChanged: byNone,
	"conversion-removed": byNone, "conversion-rules-removed": byNone, "claim-removed": byNone,

	"version-removed": byVersion, "version-unserved": byVersion,

	"list-kind-changed": byClients, "singular-changed": byClients, "short-name-removed": byClients,
	"status-subresource-added": byClients, "status-subresource-removed": byClients,
	"scale-subresource-removed": byClients, "selectable-field-removed": byClients,
	"connection-keys-narrowed": byClients, "type-widened": byClients,

	// Autoscalers write another field, which the API server checks now.
	"scale-subresource-changed": byBoth,
	// Whoever applies a part of an atomic list or map removes the parts of others.
	"list-type-changed": byBoth, "list-map-keys-changed": byBoth, "map-type-changed": byBoth,
}

// byObjects reports whether objects may be harmed, and their fields show who writes them.
func (c class) byObjects() bool { return c == byData || c == byBoth }

// Clears reports whether a breaking finding harms nobody, as far as the objects show.
// back reports whether the new definition was in use before, with its clients. A finding
// that is not in the survey is never cleared.
func (s *Survey) Clears(f compat.Finding, back bool) bool {
	if !s.Known() || s.unmatched > 0 {
		return false
	}
	for i := range s.Tolls {
		t := &s.Tolls[i]
		if t.Name == f.Name && t.Version == f.Version && t.Path == f.Path {
			return s.clear(t, back)
		}
	}
	return false
}

func (s *Survey) clear(t *Toll, back bool) bool {
	switch {
	case t.class == never:
		return false
	case s.Looked > 0 && (t.Harmed > 0 || t.Unjudged != "" || t.class == byNone):
		return false
	case t.class == byVersion:
		return back && t.Written == 0 && t.Kept == 0
	case t.class == byClients || t.class == byBoth:
		return back
	}
	return true
}

// Tells reports whether the objects of a type can show anything about a finding.
func Tells(f compat.Finding) bool {
	return f.Severity == compat.Breaking && classes[f.Name] != never
}
