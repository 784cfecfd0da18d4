// Package webhook completes the webhooks of packages and of plain manifests.
//
// A package cannot know the Service behind which its controller will be found, nor
// which other packages a cluster has. webhook.go gives its webhooks the name,
// namespace and port of the Service, and its configurations names of their own
// ([Name]). inject.go is about CA bundles, which are not known when a cluster is
// rendered: manifest.InjectCAAnnotation says where an object's bundles come from, and
// the fields themselves are left out ([Open]) until reconcile/certs fills them in.
//
// The path of a webhook and everything else stay as written. The Service is
// render/runtime's.
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

// Service is where the API server finds a package's webhooks.
type Service struct {
	Namespace string
	Name      string
	Port      int64
}

// maxName is the length of an object's name.
const maxName = 253

// Name returns the name that a configuration of a package has in a cluster:
// "<package>.<name>". Generators give the configurations of all packages the same
// names. It depends on these two names only, so that no other package and no new
// version changes it. If it would be too long, or if the package's name has a dot,
// so that another pair of names could read the same, it ends in a hash of both.
func Name(pkg, name string) string {
	full := pkg + "." + name
	if len(full) <= maxName && !strings.Contains(pkg, ".") {
		return full
	}
	sum := sha256.Sum256([]byte(pkg + "/" + name))
	hash := hex.EncodeToString(sum[:8])
	return strings.TrimRight(full[:min(len(full), maxName-len(hash)-1)], "-.") + "-" + hash
}

// Needed reports whether an object has webhooks that a package's controller is to
// serve.
func Needed(tree map[string]any) bool {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingWebhooks, manifest.MutatingWebhooks:
		return len(manifest.List(tree, "webhooks")) > 0
	case manifest.CRD:
		return types.Read(tree).Converts && !Idle(tree)
	}
	return false
}

// Idle reports whether a CRD has a webhook convert objects, though its only version
// leaves nothing to convert. Such a webhook serves nobody, and stops an API server
// that reads every object to write it again in another form, with another key for
// example.
func Idle(tree map[string]any) bool {
	if manifest.KindOf(tree) != manifest.CRD {
		return false
	}
	d := types.Read(tree)
	return d.Converts && len(d.Versions()) == 1
}

// WithoutConversion returns a copy of a CRD, for which [Idle] is true, that converts
// by no webhook. The copy shares what does not change.
func WithoutConversion(tree map[string]any) map[string]any {
	return with(tree, "spec", with(manifest.Mapping(tree, "spec"), "conversion", map[string]any{"strategy": "None"}))
}

// Complete returns a copy of an object, for which [Needed] is true, that names
// the Service, without the CA bundles that the package has and without annotations by
// which other controllers would fill in theirs. The copy shares what does not change.
// It fails, naming the field, if a webhook is to be served from
// elsewhere, by URL.
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
		completed[i] = with(webhook, "clientConfig", config)
	}
	return with(tree, "webhooks", completed), nil
}

func withoutInjectors(tree map[string]any) map[string]any {
	meta := manifest.Mapping(tree, "metadata")
	annotations := maps.Clone(manifest.Mapping(meta, "annotations"))
	maps.DeleteFunc(annotations, func(key string, _ any) bool { return otherInjector(key) })
	if len(annotations) == len(manifest.Mapping(meta, "annotations")) {
		return tree
	}
	return with(tree, "metadata", with(meta, "annotations", annotations))
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
	config = with(config, "service", completed)
	delete(config, bundleField)
	return config, nil
}

// with returns a copy of m in which one key has another value.
func with(m map[string]any, key string, value any) map[string]any {
	copied := make(map[string]any, len(m)+1)
	maps.Copy(copied, m)
	copied[key] = value
	return copied
}
