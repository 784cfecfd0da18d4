package runtime

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Config has the settings of a DeploymentRuntimeConfig. A nil *Config sets nothing.
type Config struct {
	// Name is the object's name.
	Name string
	// Deployment, Service and ServiceAccount have the metadata of the object of that kind.
	Deployment, Service, ServiceAccount Template
	// Spec is the spec of the Deployment, validated; nil if there is none.
	Spec map[string]any
}

// Template is the metadata of an object.
type Template struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ContainerName is the name of the controller's container. A configuration configures the
// controller with a container of this name.
const ContainerName = "package-runtime"

// Image returns the configuration's image for the controller; "" if it sets none.
func (c *Config) Image() string {
	if c == nil {
		return ""
	}
	for _, container := range containers(c.Spec) {
		m, _ := container.(map[string]any)
		if image := manifest.Text(m, "image"); m["name"] == ContainerName && image != "" {
			return image
		}
	}
	return ""
}

// Check fails if the controller's image has no digest: clusters with the same lines in the
// lock could run different images. Errors begin with the field below spec.
func (c *Config) Check() error {
	for i, container := range containers(c.Spec) {
		m, _ := container.(map[string]any)
		image := manifest.Text(m, "image")
		if m["name"] != ContainerName || image == "" {
			continue
		}
		if _, digest, _ := strings.Cut(image, "@"); digest == "" {
			return fmt.Errorf("template.spec.containers[%d].image: %s names no digest; write <image>@sha256:<digest>, so that all clusters run the same, or leave it to the package", i, image)
		}
	}
	return nil
}

func containers(spec map[string]any) []any {
	return manifest.List(spec, "template", "spec", "containers")
}

// apply adds labels and annotations to an object.
func (t Template) apply(tree map[string]any) map[string]any {
	meta := manifest.Mapping(tree, "metadata")
	for field, values := range map[string]map[string]string{"labels": t.Labels, "annotations": t.Annotations} {
		if len(values) > 0 {
			meta[field] = manifest.FromTextMap(values)
		}
	}
	return tree
}

// config returns the configuration, empty if there is none.
func (c Controller) config() Config {
	if c.Config == nil {
		return Config{}
	}
	return *c.Config
}

// named returns a template with the package's name, unless it has another.
func (c Controller) named(t Template) Template {
	t.Name = cmp.Or(t.Name, c.Selected.Declaration.Name)
	return t
}

func (c Controller) deployment() Template     { return c.named(c.config().Deployment) }
func (c Controller) service() Template        { return c.named(c.config().Service) }
func (c Controller) serviceAccount() Template { return c.named(c.config().ServiceAccount) }

// ServiceName returns the name of the Service for the controller's webhooks.
func (c Controller) ServiceName() string { return c.service().Name }

// account returns the name of the ServiceAccount that the controller runs as.
func (c Controller) account() string {
	return cmp.Or(manifest.Text(c.config().Spec, "template", "spec", "serviceAccountName"), c.serviceAccount().Name)
}

// makesAccount reports whether the ServiceAccount is rendered with the package, unlike one
// that the configuration only names for the pod.
func (c Controller) makesAccount() bool { return c.account() == c.serviceAccount().Name }

// deployment returns the spec of the controller's Deployment. As in Crossplane, it
// keeps the fields of the configuration except those that tie the Deployment to the
// package: the selector, the labels and environment that identify the controller,
// the mount of its certificate, and the pull policy if the declaration sets one. Pull
// secrets are added to those of the configuration.
func deployment(c Controller) map[string]any {
	d := c.Selected.Declaration
	config := c.config().Spec
	spec := clone(config)
	template := clone(spec["template"])
	meta, pod := clone(template["metadata"]), clone(template["spec"])
	template["metadata"], template["spec"], spec["template"] = meta, pod, template

	optional(spec, "replicas", int64(1))
	// Without probes a container is ready as soon as it runs, even if it ends at once.
	if deadline, ok := spec["progressDeadlineSeconds"].(int64); !ok || deadline > minReadySeconds {
		optional(spec, "minReadySeconds", int64(minReadySeconds))
	}
	// The selector is immutable, so it must not depend on the version.
	selector := clone(spec["selector"])
	selector["matchLabels"] = map[string]any{manifest.PackageLabel: d.Name}
	spec["selector"] = selector
	labels := clone(meta["labels"])
	labels[manifest.PackageLabel] = d.Name
	labels[manifest.ProviderLabel] = ownName(c.Selected)
	labels[manifest.RevisionLabel] = c.Selected.Revision()
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
	container, others := map[string]any{"name": ContainerName}, []any{}
	for _, other := range containers(config) {
		if m, _ := other.(map[string]any); m["name"] == ContainerName {
			container = clone(m)
		} else {
			others = append(others, other)
		}
	}
	complete(c, container)
	pod["containers"] = append([]any{container}, others...)
	if all := volumes(c, pod["volumes"], container); len(all) > 0 {
		pod["volumes"] = all
	}
	// Two versions never run at once, unless one waits for the other.
	strategy := "Recreate"
	if electsLeader(c.Selected.Package.Meta, container) {
		strategy = "RollingUpdate"
	}
	optional(spec, "strategy", map[string]any{"type": strategy})
	spec["strategy"] = rolling(clone(spec["strategy"]))
	scraped(meta, container)
	return spec
}

// rolling sets the API server's defaults of the strategy RollingUpdate. Fields that the
// API server defaults would stay when the strategy changes to Recreate, and make that
// change fail.
func rolling(strategy map[string]any) map[string]any {
	optional(strategy, "type", "RollingUpdate")
	if strategy["type"] == "RollingUpdate" {
		parameters := clone(strategy["rollingUpdate"])
		optional(parameters, "maxSurge", "25%")
		optional(parameters, "maxUnavailable", "25%")
		strategy["rollingUpdate"] = parameters
	}
	return strategy
}

// volumes adds the Secret with the serving certificate to the pod's volumes, and an
// empty /tmp unless the configuration mounts something there. It mounts both.
func volumes(c Controller, configured any, container map[string]any) []any {
	var more, mounts []any
	if c.Webhooks {
		var items []any
		for _, key := range []string{"tls.crt", "tls.key", "ca.crt"} {
			items = append(items, map[string]any{"key": key, "path": key})
		}
		more = append(more, map[string]any{"name": "tls-server-certs", "secret": map[string]any{
			"secretName": ServingSecret(c.Selected.Declaration.Name), "items": items,
		}})
		mounts = append(mounts, map[string]any{"name": "tls-server-certs", "mountPath": servingCerts, "readOnly": true})
	}
	configuredTmp := false
	for _, mount := range manifest.List(container, "volumeMounts") {
		m, _ := mount.(map[string]any)
		at := path.Clean(manifest.Text(m, "mountPath"))
		if c.Webhooks && at == servingCerts {
			continue
		}
		configuredTmp = configuredTmp || at == "/tmp"
		mounts = append(mounts, mount)
	}
	if !configuredTmp {
		more = append(more, map[string]any{"name": "package-runtime-tmp", "emptyDir": map[string]any{}})
		mounts = append(mounts, map[string]any{"name": "package-runtime-tmp", "mountPath": "/tmp"})
	}
	if len(mounts) > 0 {
		container["volumeMounts"] = mounts
	}
	return byName(more, configured)
}

// LeaderElectionAnnotation, "true" in the metadata of a package, declares that its
// controller elects a leader regardless of settings. Then two versions never reconcile the
// same objects, and the Deployment may use the strategy RollingUpdate. For the change from
// a version without leader election, set the strategy Recreate. A DeploymentRuntimeConfig
// declares the same with the provider's own setting on the controller's container: the
// argument --leader-election or --leader-elect, or the variable LEADER_ELECTION. A strategy
// in the DeploymentRuntimeConfig takes precedence.
const LeaderElectionAnnotation = "meta." + manifest.Group + "/leader-election"

// leaderElection matches the argument. Providers read their arguments with kingpin, where
// --no-leader-election overrides a variable.
var leaderElection = regexp.MustCompile(`^--?(no-)?(?:enable-)?leader-elect(?:ion)?(?:=(.*))?$`)

// electsLeader reports whether a controller elects a leader. As in programs, the last
// argument takes precedence over others, and arguments over the variable. The package's
// annotation comes last.
func electsLeader(meta sources.PackageMeta, container map[string]any) bool {
	elects := manifest.Text(meta.Document.Tree, "metadata", "annotations", LeaderElectionAnnotation) == "true"
	for _, e := range manifest.List(container, "env") {
		if variable, _ := e.(map[string]any); variable["name"] == "LEADER_ELECTION" {
			elects, _ = strconv.ParseBool(manifest.Text(variable, "value"))
		}
	}
	for _, argument := range append(manifest.Texts(container, "command"), manifest.Texts(container, "args")...) {
		if m := leaderElection.FindStringSubmatch(argument); m != nil {
			elects, _ = strconv.ParseBool(cmp.Or(m[2], "true"))
			elects = elects && m[1] == ""
		}
	}
	return elects
}

// scraped adds the annotations for Prometheus to the pod, as in Crossplane, unless it has
// prometheus.io/scrape.
func scraped(meta, container map[string]any) {
	annotations := clone(meta["annotations"])
	if _, said := annotations["prometheus.io/scrape"]; said {
		return
	}
	port := int64(metricsPort)
	for _, p := range manifest.List(container, "ports") {
		if p, _ := p.(map[string]any); p["name"] == "metrics" {
			if n, ok := p["containerPort"].(int64); ok {
				port = n
			}
		}
	}
	annotations["prometheus.io/scrape"] = "true"
	annotations["prometheus.io/port"] = strconv.FormatInt(port, 10)
	annotations["prometheus.io/path"] = "/metrics"
	meta["annotations"] = annotations
}

// complete sets the fields of the controller's container.
func complete(c Controller, container map[string]any) {
	ports := []any{map[string]any{"name": "metrics", "containerPort": int64(metricsPort)}}
	if c.Webhooks {
		ports = append(ports, map[string]any{"name": "webhook", "containerPort": int64(WebhookPort)})
	}
	if pull := string(c.Selected.Declaration.PullPolicy); pull != "" {
		container["imagePullPolicy"] = pull
	}
	optional(container, "imagePullPolicy", string(sources.PullIfNotPresent))
	optional(container, "image", c.Image())
	container["ports"] = byName(container["ports"], ports)
	variables := []any{
		env("POD_NAMESPACE", "metadata.namespace"),
		env("PROVIDER_NAME", "metadata.labels['"+manifest.ProviderLabel+"']"),
		env("REVISION_NAME", "metadata.labels['"+manifest.RevisionLabel+"']"),
	}
	if c.Webhooks {
		variables = append(variables,
			map[string]any{"name": "TLS_SERVER_CERTS_DIR", "value": servingCerts},
			// The name that older providers use.
			map[string]any{"name": "WEBHOOK_TLS_CERT_DIR", "value": "$(TLS_SERVER_CERTS_DIR)"})
	}
	container["env"] = byName(variables, container["env"])
	optional(container, "securityContext", map[string]any{
		"runAsNonRoot": true, "runAsUser": int64(userID), "runAsGroup": int64(userID),
		"allowPrivilegeEscalation": false, "privileged": false, "readOnlyRootFilesystem": true,
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

// byName joins two lists of named elements. Of two elements with the same name it keeps
// that of the first list.
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
