package validate

import (
	"maps"
	"slices"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Fields of spec that Crossplane adds to composites and claims. Their schemas depend on
// Crossplane's version, so every value is accepted.
var (
	compositeFields = []string{"claimRef", "compositionRef", "compositionRevisionRef", "compositionRevisionSelector", "compositionSelector",
		"compositionUpdatePolicy", "environmentConfigRefs", "publishConnectionDetailsTo", "resourceRefs", "writeConnectionSecretToRef"}
	claimFields = []string{"compositeDeletePolicy", "compositionRef", "compositionRevisionRef", "compositionRevisionSelector", "compositionSelector",
		"compositionUpdatePolicy", "publishConnectionDetailsTo", "resourceRef", "writeConnectionSecretToRef"}
	modernFields = []string{"crossplane"}
)

// longestComposite is the length of the longest name of a composite or claim, since
// Crossplane uses the name as a label. A definition may allow less.
const longestComposite = 63

// compositeSchema returns the schema of the kind that Crossplane makes of a
// CompositeResourceDefinition, where all of Crossplane's versions agree
// (github.com/crossplane/crossplane, internal/xcrd): it has the properties, required and
// rules of spec, and the length of a name. It accepts everything in status, which an apply does not set.
func compositeSchema(d types.Definition, root map[string]any, claim bool) map[string]any {
	fields := modernFields
	switch {
	case claim:
		fields = claimFields
	case d.Scope == "LegacyCluster":
		fields = compositeFields
	}
	spec := extended(manifest.Mapping(root, "properties", "spec"), fields, "required", "x-kubernetes-validations", "x-kubernetes-preserve-unknown-fields")
	if required := manifest.List(spec, "required"); required != nil {
		spec["required"] = slices.DeleteFunc(slices.Clone(required), func(v any) bool {
			name, ok := v.(string)
			return ok && slices.Contains(fields, name)
		})
	}
	longest := int64(longestComposite)
	if n, ok := manifest.Mapping(root, "properties", "metadata", "properties", "name")["maxLength"].(int64); ok {
		longest = min(longest, n)
	}
	return map[string]any{
		"type": "object", "required": []any{"spec"},
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string"}, "kind": map[string]any{"type": "string"},
			"metadata": map[string]any{"type": "object", "properties": map[string]any{
				"name": map[string]any{"type": "string", "maxLength": longest},
			}},
			"spec":   spec,
			"status": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
		},
	}
}

// extended returns a schema with the properties of another one, some of its keywords, and
// further fields that accept any value.
func extended(schema map[string]any, fields []string, keywords ...string) map[string]any {
	properties := make(map[string]any)
	maps.Copy(properties, manifest.Mapping(schema, "properties"))
	for _, f := range fields {
		properties[f] = map[string]any{"x-kubernetes-preserve-unknown-fields": true}
	}
	with := map[string]any{"type": "object", "properties": properties}
	for _, keyword := range keywords {
		if v := schema[keyword]; v != nil {
			with[keyword] = v
		}
	}
	return with
}
