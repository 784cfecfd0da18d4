package compat

import (
	"fmt"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// conventions returns the advice on a new field: warnings of the Kubernetes API
// conventions, since the field is easy to change now and hard to change later, or else the
// general advice.
func conventions(s node) string {
	var c doubts
	c.look(s, "")
	if found := c.String(); found != "" {
		return "before others use it: " + found
	}
	return advice["field-added"]
}

// conventionsOfVersion returns the advice on a new version.
func conventionsOfVersion(v *types.Version, xrd bool) string {
	if !xrd && manifest.Mapping(v.Subresources, "status") == nil && manifest.Mapping(v.Schema, "properties")["status"] != nil {
		return "before others use it: it has a status but no status subresource"
	}
	return advice["version-added"]
}

// doubts counts the parts of a schema that the API conventions warn about.
type doubts struct {
	booleans, floats, unsigned, maps, lists, conditions int
}

func (d *doubts) look(s node, name string) {
	switch manifest.Text(s, "type") {
	case "boolean":
		d.booleans++
	case "number":
		d.floats++
	case "integer":
		if strings.HasPrefix(manifest.Text(s, "format"), "uint") {
			d.unsigned++
		}
	case "object":
		if s["additionalProperties"] != nil {
			d.maps++
		}
	case "array":
		keys := manifest.Texts(s, "x-kubernetes-list-map-keys")
		switch {
		case name == "conditions" && (manifest.Text(s, "x-kubernetes-list-type") != "map" || len(keys) != 1 || keys[0] != "type"):
			d.conditions++
		case manifest.Text(s, "x-kubernetes-list-type") == "":
			d.lists++
		}
	}
	for name, property := range manifest.Mapping(s, "properties") {
		if p, ok := property.(map[string]any); ok {
			d.look(p, name)
		}
	}
	if values := manifest.Mapping(s, "additionalProperties"); values != nil {
		d.look(values, "")
	}
	if items := manifest.Mapping(s, "items"); items != nil {
		d.look(items, "")
	}
}

func (d *doubts) String() string {
	var found []string
	for _, c := range []struct {
		n         int
		one, many string
	}{
		{d.booleans, "a boolean (no third value later)", "%d booleans (no third value later)"},
		{d.floats, "a float (not the same on all platforms)", "%d floats (not the same on all platforms)"},
		{d.unsigned, "an unsigned integer (some languages have none)", "%d unsigned integers (some languages have none)"},
		{d.maps, "a map (a list with keys can grow)", "%d maps (a list with keys can grow)"},
		{d.lists, "a list without x-kubernetes-list-type", "%d lists without x-kubernetes-list-type"},
		{d.conditions, "conditions that are not a map list by type", "%d conditions that are not a map list by type"},
	} {
		switch c.n {
		case 0:
		case 1:
			found = append(found, c.one)
		default:
			found = append(found, fmt.Sprintf(c.many, c.n))
		}
	}
	return strings.Join(found, ", ")
}
