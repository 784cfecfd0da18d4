package compat

import (
	"strings"

	"gitopsd.dev/render/manifest"
)

const embeddedResource = "x-kubernetes-embedded-resource"

// embedded compares whether a value is a whole Kubernetes object. If it no longer is, it
// loses its apiVersion, kind and metadata, except for fields that the schema keeps.
func (w *walk) embedded(p place, old, new node) {
	switch o, n := manifest.Truth(old, embeddedResource), manifest.Truth(new, embeddedResource); {
	case !o && n:
		w.limit(p, "embedded-resource-added", narrower, absent{}, true)
	case o && !n:
		lost := w.unembedded(new)
		if len(lost) == 0 || p.nested {
			w.limit(p, "embedded-resource-removed", wider, true, absent{})
			return
		}
		w.other(p, "embedded-resource-removed", Breaking, everybody, changed(true, absent{})+", which drops "+strings.Join(lost, ", "))
	}
}

// unembedded returns the fields of every Kubernetes object that a schema drops, in whole
// or in part.
func (w *walk) unembedded(s node) []string {
	var lost []string
	others, kept, _ := rest(s, w.newKeeps)
	for _, name := range resourceFields {
		field, named := manifest.Mapping(s, "properties")[name].(map[string]any)
		switch {
		case !named && !kept:
			lost = append(lost, name)
			continue
		case !named:
			field = others
		}
		if name == "metadata" && !keepsUnknown(field) && !w.newKeeps {
			lost = append(lost, name) // the fields that the schema does not name
		}
	}
	return lost
}
