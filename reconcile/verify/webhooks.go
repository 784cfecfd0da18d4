package verify

import (
	"maps"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Compare compares a rendered configuration with the live one, which may be nil, and sets
// Missing and Drift.
func (w *Webhook) Compare(rendered *manifest.Object, live map[string]any) {
	w.Missing = live == nil
	if live == nil {
		return
	}
	want, have := admissionForm(rendered.Tree()), admissionForm(live)
	if hash(want) == hash(have) {
		return
	}
	for _, c := range plan.Diff(want, have) {
		w.Drift = append(w.Drift, c.Path)
	}
}

// admissionForm returns the part of a webhook configuration, policy or binding that the API
// server acts on, with its defaults.
func admissionForm(tree map[string]any) map[string]any {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingPolicy, manifest.MutatingPolicy:
		return map[string]any{"spec": policyForm(manifest.Mapping(tree, "spec"))}
	case manifest.ValidatingPolicyBinding, manifest.MutatingPolicyBinding:
		return map[string]any{"spec": bindingForm(manifest.Mapping(tree, "spec"))}
	}
	return webhookForm(tree)
}

// webhookForm returns the webhooks of a configuration with the API server's defaults
// (admissionregistration.k8s.io/v1), without CA bundles, which others fill in.
func webhookForm(tree map[string]any) map[string]any {
	mutating := manifest.KindOf(tree) == manifest.MutatingWebhooks
	hooks := append([]any{}, manifest.List(tree, "webhooks")...)
	for i, h := range hooks {
		if hook, ok := h.(map[string]any); ok {
			hooks[i] = hookForm(hook, mutating)
		}
	}
	return map[string]any{"webhooks": hooks}
}

func hookForm(hook map[string]any, mutating bool) map[string]any {
	form := filled(hook, map[string]any{
		"failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": int64(10),
		"namespaceSelector": map[string]any{}, "objectSelector": map[string]any{},
	})
	if mutating {
		form = filled(form, map[string]any{"reinvocationPolicy": "Never"})
	}
	if client, ok := form["clientConfig"].(map[string]any); ok {
		client = maps.Clone(client)
		delete(client, "caBundle")
		if service, ok := client["service"].(map[string]any); ok {
			client["service"] = filled(service, map[string]any{"port": int64(443)})
		}
		form["clientConfig"] = client
	}
	scopeRules(form, "rules")
	return form
}

// filled returns a copy with defaults for missing fields.
func filled(m, defaults map[string]any) map[string]any {
	copied := maps.Clone(m)
	if copied == nil {
		copied = make(map[string]any, len(defaults))
	}
	for k, v := range defaults {
		if copied[k] == nil {
			copied[k] = v
		}
	}
	return copied
}

func hash(form map[string]any) string {
	return string(sources.DigestOf(manifest.AppendJSON(nil, form)))
}
