package webhook

import (
	"maps"

	"gitopsd.dev/render/manifest"
)

// Converted returns a copy of a CRD with a conversion webhook. client is its clientConfig,
// without a CA bundle. It replaces spec.conversion and annotations for its CA bundle. The
// copy shares unchanged parts.
func Converted(tree, client map[string]any) map[string]any {
	tree = withoutInjectors(tree)
	meta := manifest.Mapping(tree, "metadata")
	if annotations := manifest.Mapping(meta, "annotations"); annotations[manifest.InjectCAAnnotation] != nil {
		annotations = maps.Clone(annotations)
		delete(annotations, manifest.InjectCAAnnotation)
		tree = with(tree, "metadata", with(meta, "annotations", annotations))
	}
	return with(tree, "spec", with(manifest.Mapping(tree, "spec"), "conversion", map[string]any{
		"strategy": "Webhook",
		"webhook":  map[string]any{"clientConfig": client, "conversionReviewVersions": []any{"v1"}},
	}))
}
