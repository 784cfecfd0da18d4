package verify

import (
	"maps"
	"slices"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Compare compares a rendered configuration with the live one, nil if that is
// missing, and sets the result.
func (w *Webhook) Compare(rendered *manifest.Object, live map[string]any) {
	w.Missing = live == nil
	if live == nil {
		return
	}
	want, have := admissionForm(rendered.Tree()), admissionForm(live)
	if hash(want) == hash(have) {
		return
	}
	for _, c := range plan.Diff(w.ID, want, have) {
		w.Drift = append(w.Drift, c.Path)
	}
}

// admissionForm returns the part of a webhook configuration, policy or binding that
// decides what the API server does, with the API server's defaults.
func admissionForm(tree map[string]any) map[string]any {
	switch manifest.KindOf(tree) {
	case manifest.ValidatingPolicy, manifest.MutatingPolicy:
		return map[string]any{"spec": policyForm(manifest.Mapping(tree, "spec"))}
	case manifest.ValidatingPolicyBinding, manifest.MutatingPolicyBinding:
		return map[string]any{"spec": bindingForm(manifest.Mapping(tree, "spec"))}
	}
	return webhookForm(tree)
}

// webhookForm returns the part of a configuration that decides what the API server
// does: its webhooks, with the API server's defaults
// (admissionregistration.k8s.io/v1), and without CA bundles, which somebody else
// provides.
func webhookForm(tree map[string]any) map[string]any {
	mutating := manifest.KindOf(tree) == manifest.MutatingWebhooks
	list, _ := tree["webhooks"].([]any)
	hooks := make([]any, len(list))
	for i, h := range list {
		hooks[i] = h
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
	if rules, ok := form["rules"].([]any); ok {
		rules = slices.Clone(rules)
		for j, r := range rules {
			if rule, ok := r.(map[string]any); ok {
				rules[j] = filled(rule, map[string]any{"scope": "*"})
			}
		}
		form["rules"] = rules
	}
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

func hasBundle(tree map[string]any) bool {
	list, _ := tree["webhooks"].([]any)
	return !slices.ContainsFunc(list, func(h any) bool {
		hook, _ := h.(map[string]any)
		client, _ := hook["clientConfig"].(map[string]any)
		bundle, _ := client["caBundle"].(string)
		return bundle == ""
	})
}

func hash(form map[string]any) string {
	return string(sources.DigestOf(manifest.AppendJSON(nil, form)))
}
