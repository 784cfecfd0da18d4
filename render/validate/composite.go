package validate

import (
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Fields of spec that Crossplane adds to composites and claims. What they may hold
// depends on Crossplane's version, so every value of them is accepted.
var (
	compositeFields = []string{"claimRef", "compositionRef", "compositionRevisionRef", "compositionRevisionSelector", "compositionSelector",
		"compositionUpdatePolicy", "environmentConfigRefs", "publishConnectionDetailsTo", "resourceRefs", "writeConnectionSecretToRef"}
	claimFields = []string{"compositeDeletePolicy", "compositionRef", "compositionRevisionRef", "compositionRevisionSelector", "compositionSelector",
		"compositionUpdatePolicy", "publishConnectionDetailsTo", "resourceRef", "writeConnectionSecretToRef"}
	modernFields = []string{"crossplane"}
)

// longestComposite is the length of the longest name that Crossplane gives a composite
// or claim, since the name becomes a label.
const longestComposite = 63

// compositeSchema returns the schema of the kind that Crossplane makes of a
// CompositeResourceDefinition, as far as all its versions agree
// (github.com/crossplane/crossplane, internal/xcrd): of the definition's schema it takes
// properties, required and rules of spec. Everything is accepted in status, which an
// apply does not set.
func compositeSchema(d types.Definition, root map[string]any, claim bool) map[string]any {
	from := manifest.Mapping(root, "properties", "spec")
	properties := maps.Clone(manifest.Mapping(from, "properties"))
	if properties == nil {
		properties = make(map[string]any)
	}
	fields := modernFields
	switch {
	case claim:
		fields = claimFields
	case d.Scope == "LegacyCluster":
		fields = compositeFields
	}
	for _, f := range fields {
		properties[f] = map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	}
	spec := map[string]any{"type": "object", "properties": properties}
	for _, keyword := range []string{"required", "x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields"} {
		if v := from[keyword]; v != nil {
			spec[keyword] = v
		}
	}
	if required := manifest.List(spec, "required"); required != nil {
		spec["required"] = slices.DeleteFunc(slices.Clone(required), func(v any) bool {
			name, ok := v.(string)
			return ok && slices.Contains(fields, name)
		})
	}
	return map[string]any{
		"type": "object", "required": []any{"spec"},
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string"}, "kind": map[string]any{"type": "string"},
			"metadata": map[string]any{"type": "object", "properties": map[string]any{
				"name": map[string]any{"type": "string", "maxLength": int64(longestComposite)},
			}},
			"spec":   spec,
			"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		},
	}
}
