package webhook

import "gitopsd.dev/render/manifest"

// Converted returns a copy of a CRD with a conversion webhook. client is its clientConfig,
// without a CA bundle. It replaces spec.conversion and annotations for its CA bundle. The
// copy shares unchanged parts.
func Converted(tree, client map[string]any) map[string]any {
	tree = manifest.Without(withoutInjectors(tree), "metadata", "annotations", manifest.InjectCAAnnotation)
	return manifest.With(tree, map[string]any{
		"strategy": "Webhook",
		"webhook":  map[string]any{"clientConfig": client, "conversionReviewVersions": []any{"v1"}},
	}, "spec", "conversion")
}
