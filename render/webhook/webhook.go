// Package webhook completes the webhooks that come in packages: a package cannot
// know the Service behind which its controller will be found.
//
// It owns the name, namespace and port in every clientConfig of a webhook
// configuration, and of a CustomResourceDefinition that converts by webhook. The
// path stays as the package has it, and so does the CA bundle, which is not known
// when a cluster is rendered. The Service itself is render/runtime's.
package webhook

import (
	"errors"
	"fmt"
	"maps"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Service is where the API server finds a package's webhooks.
type Service struct {
	Namespace string
	Name      string
	Port      int64
}

// Needed reports whether an object has webhooks that a package's controller is to
// serve.
func Needed(tree map[string]any) bool {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingWebhooks, manifest.MutatingWebhooks:
		return len(manifest.List(tree, "webhooks")) > 0
	case manifest.CRD:
		return types.Read(tree).Converts
	}
	return false
}

// Complete returns a copy of an object, for which [Needed] is true, that names
// the Service. The copy shares what does not change. It fails, naming the field,
// if a webhook is to be served from elsewhere, by URL.
func Complete(tree map[string]any, service Service) (map[string]any, error) {
	if manifest.KindOf(tree) == manifest.CRD {
		return completeConversion(tree, service)
	}
	webhooks := manifest.List(tree, "webhooks")
	completed := make([]any, len(webhooks))
	for i, w := range webhooks {
		webhook, ok := w.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("webhooks.%d: want a mapping", i)
		}
		config, err := clientConfig(webhook["clientConfig"], service)
		if err != nil {
			return nil, fmt.Errorf("webhooks.%d.clientConfig: %w", i, err)
		}
		completed[i] = with(webhook, "clientConfig", config)
	}
	return with(tree, "webhooks", completed), nil
}

func completeConversion(tree map[string]any, service Service) (map[string]any, error) {
	spec := manifest.Mapping(tree, "spec")
	conversion := manifest.Mapping(spec, "conversion")
	webhook, ok := conversion["webhook"].(map[string]any)
	if !ok && conversion["webhook"] != nil {
		return nil, errors.New("spec.conversion.webhook: want a mapping")
	}
	config, err := clientConfig(webhook["clientConfig"], service)
	if err != nil {
		return nil, fmt.Errorf("spec.conversion.webhook.clientConfig: %w", err)
	}
	webhook = with(webhook, "clientConfig", config)
	if len(manifest.List(webhook, "conversionReviewVersions")) == 0 {
		// Required by the API; packages leave it to the package manager.
		webhook = with(webhook, "conversionReviewVersions", []any{"v1"})
	}
	return with(tree, "spec", with(spec, "conversion", with(conversion, "webhook", webhook))), nil
}

func clientConfig(v any, service Service) (map[string]any, error) {
	config, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, errors.New("want a mapping")
	}
	if url := config["url"]; url != nil {
		return nil, fmt.Errorf("url: %v: a package's webhooks are served by its controller, behind a Service; the package must not name another server", url)
	}
	old, ok := config["service"].(map[string]any)
	if !ok && config["service"] != nil {
		return nil, errors.New("service: want a mapping")
	}
	completed := make(map[string]any, 4)
	maps.Copy(completed, old)
	completed["namespace"] = service.Namespace
	completed["name"] = service.Name
	completed["port"] = service.Port
	return with(config, "service", completed), nil
}

// with returns a copy of m in which one key has another value.
func with(m map[string]any, key string, value any) map[string]any {
	copied := make(map[string]any, len(m)+1)
	maps.Copy(copied, m)
	copied[key] = value
	return copied
}
