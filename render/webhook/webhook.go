// Package webhook completes the webhooks of packages and of plain manifests.
//
// A package does not know the Service of its controller, nor the other packages of a
// cluster. webhook.go gives its webhooks the name, namespace and port of the Service, and
// its configurations unique names ([Name]). inject.go handles CA bundles, which are not
// known when a cluster is rendered: [manifest.InjectCAAnnotation] names the source, and
// [Open] leaves the fields out until reconcile/certs fills them in. serving.go finds the
// servers of webhooks, convert.go sets the webhook for conversion rules.
//
// Everything else stays as written, such as the path of a webhook. render/runtime makes
// the Service.
package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Service is the Service of a package's webhooks.
type Service struct {
	Namespace string
	Name      string
	Port      int64
}

// maxName is the length of an object's name.
const maxName = 253

// Name returns the name of a package's webhook configuration in a cluster:
// "<package>.<name>", since generators give the configurations of all packages the same
// names. It depends on these two names only, so that other packages and new versions do
// not change it. If it is too long, or ambiguous because the package's name has a dot, it
// ends in a hash of both names.
func Name(pkg, name string) string {
	full := pkg + "." + name
	if len(full) <= maxName && !strings.Contains(pkg, ".") {
		return full
	}
	sum := sha256.Sum256([]byte(pkg + "/" + name))
	hash := hex.EncodeToString(sum[:8])
	return strings.TrimRight(full[:min(len(full), maxName-len(hash)-1)], "-.") + "-" + hash
}

// Needed reports whether an object of a package has webhooks for the package's controller.
func Needed(tree map[string]any) bool {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingWebhooks, manifest.MutatingWebhooks:
		return len(manifest.List(tree, "webhooks")) > 0
	case manifest.CRD:
		return types.Read(tree).Converts && !Idle(tree)
	}
	return false
}

// Idle reports whether a CRD has a conversion webhook although it has one version only.
// Such a webhook has nothing to convert, but breaks an API server that rewrites every
// object, with another encryption key for example.
func Idle(tree map[string]any) bool {
	if manifest.KindOf(tree) != manifest.CRD {
		return false
	}
	d := types.Read(tree)
	return d.Converts && len(d.Versions()) == 1
}

// WithoutConversion returns a copy of a CRD without its conversion webhook. The copy shares
// unchanged parts.
func WithoutConversion(tree map[string]any) map[string]any {
	return manifest.With(tree, map[string]any{"strategy": "None"}, "spec", "conversion")
}

// Complete returns a copy of a [Needed] object that names the Service. The copy has no CA
// bundles, and no annotations that make other controllers inject them. It shares unchanged
// parts. Complete fails if a webhook has a URL. Errors name the field.
func Complete(tree map[string]any, service Service) (map[string]any, error) {
	tree = withoutInjectors(tree)
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
		completed[i] = manifest.With(webhook, config, "clientConfig")
	}
	return manifest.With(tree, completed, "webhooks"), nil
}

func withoutInjectors(tree map[string]any) map[string]any {
	for key := range manifest.Mapping(tree, "metadata", "annotations") {
		if otherInjector(key) {
			tree = manifest.Without(tree, "metadata", "annotations", key)
		}
	}
	return tree
}

func completeConversion(tree map[string]any, service Service) (map[string]any, error) {
	conversion := manifest.Mapping(tree, "spec", "conversion")
	webhook, ok := conversion["webhook"].(map[string]any)
	if !ok && conversion["webhook"] != nil {
		return nil, errors.New("spec.conversion.webhook: want a mapping")
	}
	config, err := clientConfig(webhook["clientConfig"], service)
	if err != nil {
		return nil, fmt.Errorf("spec.conversion.webhook.clientConfig: %w", err)
	}
	webhook = manifest.With(webhook, config, "clientConfig")
	if len(manifest.List(webhook, "conversionReviewVersions")) == 0 {
		// Required by the API; packages leave it to the package manager.
		webhook = manifest.With(webhook, []any{"v1"}, "conversionReviewVersions")
	}
	return manifest.With(tree, webhook, "spec", "conversion", "webhook"), nil
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
	config = manifest.With(config, completed, "service")
	delete(config, bundleField)
	return config, nil
}
