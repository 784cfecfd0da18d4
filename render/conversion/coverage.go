package conversion

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/conversion/structural"
	"gitopsd.dev/render/manifest"
)

// cover records an error for each field of a schema that nothing reads.
func (c *compiler) cover(schema map[string]any, s *marks, where, path string) {
	if covered(schema, s) {
		return
	}
	if structural.Kind(schema) == structural.Object && s.any() {
		fields := manifest.Mapping(schema, "properties")
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			c.cover(manifest.Mapping(fields, name), s.under(name), where, path+"."+name)
		}
		return
	}
	c.fail(where, "%s of %s is lost: nothing reads it; %s", path, c.from, c.remedy(path, s))
}

// covered reports whether every field of a schema is read, kept or dropped.
func covered(schema map[string]any, s *marks) bool {
	if s.kept() || s.claimed || s.drop {
		return true
	}
	fields := manifest.Mapping(schema, "properties")
	if structural.Kind(schema) != structural.Object || len(fields) == 0 {
		return false
	}
	for name := range fields {
		if !covered(manifest.Mapping(fields, name), s.under(name)) {
			return false
		}
	}
	return true
}

// remedy returns advice on how to convert a field that nothing reads.
func (c *compiler) remedy(path string, s *marks) string {
	if s.from != "" {
		return fmt.Sprintf("add the rule {from: %s.%s, to: %s}", c.from, path, unmistaken(s.from, c.to))
	}
	field := unmistaken(path, c.from)
	if s.part {
		return fmt.Sprintf("rules read only some of its elements: add preserve: [%s], which keeps the others", field)
	}
	return fmt.Sprintf("add a rule {from: %s.%s, to: <field of %s>}, or preserve: [%s], which keeps and restores it, or drop: [%s], which loses it on purpose", c.from, path, c.to, field, field)
}

// unmistaken returns a path as a rule must spell it: if its first field has the name of
// the version, it begins with self.
func unmistaken(path, version string) string {
	if path == version || strings.HasPrefix(path, version+".") || strings.HasPrefix(path, version+"[") {
		return "self." + path
	}
	return path
}
