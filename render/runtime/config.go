package runtime

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Config is what a DeploymentRuntimeConfig sets. A nil *Config sets nothing.
type Config struct {
	// Name is the object's name.
	Name string
	// Deployment, Service and ServiceAccount are for the objects of that kind.
	Deployment, Service, ServiceAccount Template
	// Spec is the Deployment's, validated; nil if there is none.
	Spec map[string]any
}

// Template is the metadata of an object.
type Template struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// containerName is the name of the controller's container; a container of this name
// in a configuration configures the controller.
const containerName = "package-runtime"

// Image returns the configuration's image for the controller, empty if it sets none.
func (c *Config) Image() string {
	for _, container := range containers(c.Spec) {
		m, _ := container.(map[string]any)
		if image, _ := m["image"].(string); m["name"] == containerName && image != "" {
			return image
		}
	}
	return ""
}

// Check returns an error for a controller image without a digest: two clusters with
// the same lines in the lock would run different images. Errors begin with the field
// below spec.
func (c *Config) Check() error {
	for i, container := range containers(c.Spec) {
		m, _ := container.(map[string]any)
		image, _ := m["image"].(string)
		if m["name"] != containerName || image == "" {
			continue
		}
		if _, digest, _ := strings.Cut(image, "@"); digest == "" {
			return fmt.Errorf("template.spec.containers[%d].image: %s names no digest; write <image>@sha256:<digest>, so that all clusters run the same, or leave it to the package", i, image)
		}
	}
	return nil
}

func containers(spec map[string]any) []any {
	template, _ := spec["template"].(map[string]any)
	pod, _ := template["spec"].(map[string]any)
	list, _ := pod["containers"].([]any)
	return list
}

// template returns the metadata of an object; name is its name unless the
// configuration sets another.
func (c *Config) template(part func(*Config) Template, name string) Template {
	var t Template
	if c != nil {
		t = part(c)
	}
	if t.Name == "" {
		t.Name = name
	}
	return t
}

// apply adds labels and annotations to an object.
func (t Template) apply(tree map[string]any) map[string]any {
	meta, _ := tree["metadata"].(map[string]any)
	for field, values := range map[string]map[string]string{"labels": t.Labels, "annotations": t.Annotations} {
		if len(values) == 0 {
			continue
		}
		m := make(map[string]any, len(values))
		for k, v := range values {
			m[k] = v
		}
		meta[field] = m
	}
	return tree
}

func (c Controller) deployment() Template {
	return c.Config.template(func(c *Config) Template { return c.Deployment }, c.Selected.Declaration.Name)
}

func (c Controller) service() Template {
	return c.Config.template(func(c *Config) Template { return c.Service }, c.Selected.Declaration.Name)
}

func (c Controller) serviceAccount() Template {
	return c.Config.template(func(c *Config) Template { return c.ServiceAccount }, c.Selected.Declaration.Name)
}

// ServiceName returns the name of the Service for the controller's webhooks.
func (c Controller) ServiceName() string { return c.service().Name }

// account returns the name of the ServiceAccount that the controller runs as.
func (c Controller) account() string {
	if c.Config != nil {
		template, _ := c.Config.Spec["template"].(map[string]any)
		pod, _ := template["spec"].(map[string]any)
		if given, _ := pod["serviceAccountName"].(string); given != "" {
			return given
		}
	}
	return c.serviceAccount().Name
}

// makesAccount reports whether the ServiceAccount comes with the package. One that
// the configuration names for the pod alone does not.
func (c Controller) makesAccount() bool { return c.account() == c.serviceAccount().Name }

// deployment returns the spec of the controller's Deployment. As in Crossplane, it
// keeps the configuration's fields but for those that tie the Deployment to the
// package: its selector, the labels and environment that identify the controller,
// and the pull policy. Pull secrets are added to the configuration's own.
func deployment(c Controller) map[string]any {
	d := c.Selected.Declaration
	var config map[string]any
	if c.Config != nil {
		config = c.Config.Spec
	}
	spec := clone(config)
	template := clone(spec["template"])
	meta, pod := clone(template["metadata"]), clone(template["spec"])
	template["metadata"], template["spec"], spec["template"] = meta, pod, template

	optional(spec, "replicas", int64(1))
	// By default two versions never run at once.
	optional(spec, "strategy", map[string]any{"type": "Recreate"})
	// The selector is immutable: it must stay equal when the version changes.
	selector := clone(spec["selector"])
	selector["matchLabels"] = map[string]any{manifest.PackageLabel: d.Name}
	spec["selector"] = selector
	provider := c.Selected.Package.Meta.Name
	if provider == "" {
		provider = d.Name
	}
	labels := clone(meta["labels"])
	labels[manifest.PackageLabel] = d.Name
	labels[manifest.ProviderLabel] = labelValue(provider)
	labels[revisionLabel] = labelValue(c.Selected.Revision())
	meta["labels"] = labels

	optional(pod, "serviceAccountName", c.account())
	optional(pod, "securityContext", map[string]any{
		"runAsNonRoot": true, "runAsUser": int64(userID), "runAsGroup": int64(userID),
		"seccompProfile": map[string]any{"type": "RuntimeDefault"},
	})
	if own := c.Selected.PullSecrets; len(own) > 0 {
		var secrets []any
		for _, name := range own {
			secrets = append(secrets, map[string]any{"name": name})
		}
		pod["imagePullSecrets"] = byName(pod["imagePullSecrets"], secrets)
	}
	container, others := map[string]any{"name": containerName}, []any{}
	for _, other := range containers(config) {
		if m, _ := other.(map[string]any); m["name"] == containerName {
			container = clone(m)
		} else {
			others = append(others, other)
		}
	}
	complete(c, container)
	pod["containers"] = append([]any{container}, others...)
	return spec
}

// complete sets the fields of the controller's container.
func complete(c Controller, container map[string]any) {
	ports := []any{map[string]any{"name": "metrics", "containerPort": int64(metricsPort)}}
	if c.Webhooks {
		ports = append(ports, map[string]any{"name": "webhook", "containerPort": int64(WebhookPort)})
	}
	pull := string(c.Selected.Declaration.PullPolicy)
	if pull == "" {
		pull = string(sources.PullIfNotPresent)
	}
	optional(container, "image", Image(c.Selected))
	container["imagePullPolicy"] = pull
	container["ports"] = byName(container["ports"], ports)
	container["env"] = byName([]any{
		env("POD_NAMESPACE", "metadata.namespace"),
		env("PROVIDER_NAME", "metadata.labels['"+manifest.ProviderLabel+"']"),
		env("REVISION_NAME", "metadata.labels['"+revisionLabel+"']"),
	}, container["env"])
	optional(container, "securityContext", map[string]any{
		"runAsNonRoot": true, "runAsUser": int64(userID), "runAsGroup": int64(userID),
		"allowPrivilegeEscalation": false, "privileged": false,
		"capabilities": map[string]any{"drop": []any{"ALL"}},
	})
}

// clone copies a mapping's first level; anything else becomes an empty mapping.
func clone(v any) map[string]any {
	m, _ := v.(map[string]any)
	if m == nil {
		return make(map[string]any)
	}
	return maps.Clone(m)
}

func optional(m map[string]any, key string, value any) {
	if m[key] == nil {
		m[key] = value
	}
}

// byName joins two lists of named elements; of two with one name it keeps the first
// list's.
func byName(first, second any) []any {
	list, _ := first.([]any)
	list = slices.Clone(list)
	named := func(v any) any {
		m, _ := v.(map[string]any)
		return m["name"]
	}
	more, _ := second.([]any)
	for _, v := range more {
		if name := named(v); name == nil || !slices.ContainsFunc(list, func(o any) bool { return named(o) == name }) {
			list = append(list, v)
		}
	}
	return list
}
