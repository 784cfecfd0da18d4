package render

import (
	"cmp"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

// runtimeConfig is a DeploymentRuntimeConfig, or the error from reading it.
type runtimeConfig struct {
	config *runtime.Config
	err    error
}

// runtimeConfigSpec is the spec of a DeploymentRuntimeConfig
// (pkg.crossplane.io/v1beta1).
type runtimeConfigSpec struct {
	DeploymentTemplate struct {
		Metadata runtime.Template       `json:"metadata"`
		Spec     *appsv1.DeploymentSpec `json:"spec"`
	} `json:"deploymentTemplate"`
	ServiceTemplate struct {
		Metadata runtime.Template `json:"metadata"`
	} `json:"serviceTemplate"`
	ServiceAccountTemplate struct {
		Metadata runtime.Template `json:"metadata"`
	} `json:"serviceAccountTemplate"`
}

// readRuntimeConfig reads a DeploymentRuntimeConfig.
func readRuntimeConfig(o *manifest.Object) runtimeConfig {
	var spec runtimeConfigSpec
	fail := func(err error) runtimeConfig {
		return runtimeConfig{err: fmt.Errorf("%s: %s %s: %w", o.Origin(), manifest.RuntimeConfig.Kind, o.ID().Name, err)}
	}
	if err := decodeSpec(o, "v1beta1", &spec); err != nil {
		return fail(err)
	}
	for part, t := range map[string]runtime.Template{
		"deploymentTemplate": spec.DeploymentTemplate.Metadata, "serviceTemplate": spec.ServiceTemplate.Metadata, "serviceAccountTemplate": spec.ServiceAccountTemplate.Metadata,
	} {
		for _, values := range []map[string]string{t.Labels, t.Annotations} {
			for key := range values {
				if reserved(key) {
					return fail(fmt.Errorf("spec.%s.metadata: %s: is gitopsd's own to set", part, key))
				}
			}
		}
	}
	c := &runtime.Config{
		Name:           o.ID().Name,
		Deployment:     spec.DeploymentTemplate.Metadata,
		Service:        spec.ServiceTemplate.Metadata,
		ServiceAccount: spec.ServiceAccountTemplate.Metadata,
	}
	// The Go type validates. The result is the tree, which has only the fields that are
	// set.
	c.Spec = manifest.Mapping(o.Tree(), "spec", "deploymentTemplate", "spec")
	if err := c.Check(); err != nil {
		return fail(fmt.Errorf("spec.deploymentTemplate.spec.%w", err))
	}
	return runtimeConfig{config: c}
}

// runtimeOf returns the configuration of a package's controller, in Crossplane's order: the
// one that an ImageConfig names, else the declaration, else the one named default. It is
// nil if there is none.
func (w *Wanted) runtimeOf(s sources.Selected) (*runtime.Config, error) {
	if s.Declaration.Kind != sources.Provider {
		return nil, nil
	}
	name, err := w.Images.Runtime(s.Pin.Ref, s.Origin)
	if err != nil {
		return nil, err
	}
	name = cmp.Or(name, s.Declaration.RuntimeConfig, defaultRuntimeConfig)
	c, there := w.runtimes[name]
	switch {
	case !there && name == defaultRuntimeConfig:
		return nil, nil
	case !there:
		return nil, fmt.Errorf("its controller uses the %s %s, which is not among the cluster's manifests", manifest.RuntimeConfig.Kind, name)
	case c.err != nil:
		return nil, fmt.Errorf("its controller uses the %s %s, which has errors", manifest.RuntimeConfig.Kind, name)
	}
	return c.config, nil
}

// ControllerImage returns the image that a DeploymentRuntimeConfig sets for a package's
// controller; "" if none does. Expand reports invalid configurations.
func (w *Wanted) ControllerImage(s sources.Selected) string {
	c, err := w.runtimeOf(s)
	if err != nil || c == nil {
		return ""
	}
	return c.Image()
}

// describe returns a text of everything that a package's objects depend on besides its
// content.
func describe(s sources.Selected, c *runtime.Config) (string, error) {
	d := s.Declaration
	authority := authority(d)
	d.File, d.Document = "", sources.Document{} // the place, and fields that are in d already
	text, err := json.Marshal([]any{d, s.PullSecrets, c, authority})
	return string(text), err
}
