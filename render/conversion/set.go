package conversion

import "errors"

// Set is the compiled rules of one CustomResourceDefinition. It is immutable and
// safe for concurrent use.
type Set struct {
	name     string
	hub      string
	versions []string
	schemas  map[string]map[string]any
	digest   string
	warnings []string
}

// Name returns the name of the CustomResourceDefinition, "widgets.example.io".
func (s *Set) Name() string { return s.name }

// Versions returns all versions of the definition, in the order in which it has them.
func (s *Set) Versions() []string { return s.versions }

// Hub returns the version through which pairs without rules of their own are
// converted; empty if no document sets one.
func (s *Set) Hub() string { return s.hub }

// Schema returns the openAPIV3Schema of a version, nil if there is none. It must not
// be changed.
func (s *Set) Schema(version string) map[string]any { return s.schemas[version] }

// Digest identifies what the set does: "h1:" and base64, equal for equal schemas and
// rules however these are spelt.
func (s *Set) Digest() string { return s.digest }

// Warnings are sentences about what may go wrong with some objects: preserved fields
// without a limit of size.
func (s *Set) Warnings() []string { return s.warnings }

// Compile compiles the rules of a CustomResourceDefinition. All documents must belong
// to it; see [Belongs]. The error joins all that was found, each with document,
// conversion, rule and field path.
func Compile(definition map[string]any, documents []Document) (*Set, error) {
	return nil, errors.New("no rules are compiled yet")
}

// Belongs reports whether a document is conversion rules for the definition or
// APIResourceSchema of that name, by the document's name or its label.
func Belongs(tree map[string]any, name string) bool { return false }

// Convert converts an object to a version. The object is of the definition's kind, in
// one of its versions, with the values that [Decode] or [sources.DecodeYAML] return.
// It is not changed, and the converted object may share parts of it. The error says
// why the object or the version is none of the set's; no value of a field makes one.
func (s *Set) Convert(object map[string]any, to string) (converted map[string]any, report Report, err error) {
	return nil, Report{}, errors.New("no rules are compiled yet")
}
